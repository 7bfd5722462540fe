//! The shared store.
//!
//! A check is one script call on one held connection, within one deadline for
//! everything. Whatever goes wrong becomes a [`StoreError`]; a charge whose
//! outcome is unknown is never sent again.

mod connection;
mod error;
mod script;
mod target;
#[cfg(feature = "tls")]
mod tls;

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};
use tokio::time::{Instant, timeout};

use self::connection::{Events, Link, Live, Probe};
use self::script::Script;
pub(crate) use self::target::{Target, TargetError};
use crate::algorithm::{Rule, State};
use crate::clock::Millis;
use crate::policy::{MAX_LIMIT, MAX_WINDOW};
use crate::store::{StoreError, StoreErrorKind, StoreEvent};

/// More checks than this at once are not sent but decided by the fallback.
const MAX_WAITING: usize = 4096;

/// One policy's part in a check on Redis.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The whole key, with namespace and hash tag.
    pub(crate) key: String,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
    /// What this replica has counted by itself and sends in front.
    pub(crate) owed: Option<Owed>,
}

/// What is owed to one counter, see the script.
#[derive(Clone, Debug)]
pub(crate) struct Owed {
    /// The key that is set when the delta is added. `None`: there is no delta.
    pub(crate) marker: Option<String>,
    pub(crate) floor: u64,
    pub(crate) delta: u64,
    pub(crate) left: Millis,
    pub(crate) blocked: bool,
}

/// The state of each key before a check.
pub(crate) type Before = Vec<Remembered>;

/// What Redis remembered of one key, with the time left on its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembered {
    Nothing,
    Counting { count: u64, left: Millis },
    Blocked { left: Millis },
}

impl Remembered {
    /// The same on a clock that reads `now`.
    pub(crate) fn at(self, now: Millis) -> State {
        match self {
            Self::Nothing => State::Idle,
            Self::Counting { count, left } => State::Counting { count, end: now.saturating_add(left) },
            Self::Blocked { left } => State::Blocked { until: now.saturating_add(left) },
        }
    }

    fn from_reply(count: i64, left: i64) -> Self {
        // No block of ours is longer; one that somebody has set is told as if.
        let longest = MAX_WINDOW.as_secs() * 1000;
        match (u64::try_from(count), Millis::try_from(left).map(|left| left.min(longest))) {
            (_, Err(_) | Ok(0)) => Self::Nothing,
            (Ok(count), Ok(left)) => Self::Counting { count, left },
            (Err(_), Ok(left)) => Self::Blocked { left },
        }
    }
}

/// Counts in Redis.
pub(crate) struct RedisStore {
    link: Link<WriteProbe>,
    fixed_window: Arc<Script>,
    deadline: Duration,
    db: i64,
    waiting: Arc<AtomicUsize>,
    events: Events,
}

impl RedisStore {
    /// A store on a server that need not be there yet: nothing is sent before
    /// the first check.
    ///
    /// # Errors
    ///
    /// When the client refuses the target.
    pub(crate) fn new(
        target: Target,
        namespace: &str,
        deadline: Duration,
        events: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let target = target.into_inner();
        let events: Events = Arc::new(events);
        let fixed_window = Arc::new(Script::new(script::FIXED_WINDOW));
        let probe = WriteProbe { script: fixed_window.clone(), namespace: namespace.to_owned(), deadline };
        let db = target.redis_settings().db();
        let link = Link::new(target, deadline, probe, events.clone())?;
        Ok(Self { link, fixed_window, deadline, db, waiting: Arc::default(), events })
    }

    /// Which counters these are: the server and its database.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.link.address(), self.db)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Why a check must not even wait, if so.
    pub(crate) fn unavailable(&self) -> Option<StoreError> {
        self.link.unavailable()
    }

    /// A place and a connection for one check, within the deadline that starts
    /// now.
    pub(crate) async fn turn(&self) -> Result<Turn, StoreError> {
        let started = Instant::now();
        let turn = async {
            if let Some(error) = self.link.unavailable() {
                return Err(error);
            }
            let place = Place::take(&self.waiting)?;
            self.link.asks();
            let connection = timeout(self.deadline, self.link.connection()).await;
            let late = |_| StoreError::new(StoreErrorKind::Timeout);
            let live = connection.map_err(late).inspect_err(|_| self.link.asks())??;
            Ok(Turn { live, started, _place: place })
        };
        turn.await.inspect_err(|error| {
            (self.events)(&StoreEvent::Failed { error, latency: started.elapsed() });
        })
    }

    /// One check: answers with the state before it, and after what is owed.
    ///
    /// Dropped before the answer, it has counted once or not at all. It does
    /// not borrow, so that an answer that is late can still be waited for.
    pub(crate) fn charge(
        &self,
        turn: &Turn,
        asked: Vec<Asked>,
    ) -> impl Future<Output = Result<Before, StoreError>> + Send + use<> {
        let (script, mut connection) = (self.fixed_window.clone(), turn.live.connection.clone());
        let server_now = turn.live.server_now();
        async move {
            let sent = script.run(&mut connection, |command| fill(command, &asked, server_now)).await;
            let reply = sent.map_err(|error| error::classify(&error))?;
            if reply.len() != 2 * asked.len() {
                return Err(error::classify(&unexpected_reply()));
            }
            Ok(reply.chunks_exact(2).map(|pair| Remembered::from_reply(pair[0], pair[1])).collect())
        }
    }

    /// Waits for an answer until the deadline. What comes later is the
    /// caller's.
    pub(crate) async fn answer<T>(
        &self,
        turn: &Turn,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let left = self.deadline.saturating_sub(turn.started.elapsed());
        let late = |_| Err(StoreError::new(StoreErrorKind::Timeout));
        let answer = timeout(left, answer).await.unwrap_or_else(late);
        let latency = turn.started.elapsed();
        match &answer {
            Ok(_) => {
                self.link.answered();
                (self.events)(&StoreEvent::Answered { latency });
            }
            Err(error) => {
                self.link.failed(&turn.live, error);
                (self.events)(&StoreEvent::Failed { error, latency });
            }
        }
        answer
    }

    /// Until it is of no more use to wait for an answer of that turn.
    pub(crate) fn superseded(&self, turn: &Turn) -> impl Future<Output = ()> + Send + use<> {
        self.link.superseded(turn.generation())
    }

    /// Forgets keys by their exact names.
    pub(crate) async fn reset(&self, keys: &[String]) -> Result<(), StoreError> {
        let turn = self.turn().await?;
        let mut connection = turn.live.connection.clone();
        let mut command = redis::cmd("DEL");
        let forget = command.arg(keys).query_async(&mut connection);
        self.answer(&turn, async { forget.await.map_err(|error| error::classify(&error)) }).await
    }

    /// The connection that checks use now, if there is one.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.link.generation()
    }
}

/// One check's turn on the connection.
pub(crate) struct Turn {
    live: Live,
    started: Instant,
    _place: Place,
}

impl Turn {
    /// Which connection it is on: a new one may be to a server that has lost
    /// what the last one was told.
    pub(crate) fn generation(&self) -> u64 {
        self.live.generation
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.link.address())
            .field("deadline", &self.deadline)
            .field("connected", &self.is_up())
            .finish_non_exhaustive()
    }
}

/// One of the places for checks under way. Given back however the check ends.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(waiting: &Arc<AtomicUsize>) -> Result<Self, StoreError> {
        let place = Self(waiting.clone());
        if waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            return Err(StoreError::new(StoreErrorKind::Overload));
        }
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Two charges like any other, on a key that is nobody's: what passes them can
/// decide checks. A ping would also be answered by a replica, by a server that
/// is out of memory, and to a user that may not do what the script does.
struct WriteProbe {
    script: Arc<Script>,
    namespace: String,
    deadline: Duration,
}

impl Probe for WriteProbe {
    async fn probe(&self, mut connection: MultiplexedConnection) -> Result<Duration, RedisError> {
        // No policy name has a dot.
        let key = format!("{}.probe:rl:{:08x}", self.namespace, fastrand::u32(..));
        // The second charge finds a longer window than its own, so between them
        // and the deletion every command of the script is run.
        for window in [1000, 1] {
            let rule = Rule { limit: 2, window, block: 0, enforced: true };
            let asked = [Asked { key: key.clone(), rule, cost: 1, owed: None }];
            let reply =
                self.script.run(&mut connection, |command| fill(command, &asked, Duration::ZERO)).await?;
            if reply.len() != 2 {
                return Err(unexpected_reply());
            }
        }
        let () = redis::cmd("DEL").arg(&key).query_async(&mut connection).await?;
        // The last one alone, for the first may have had to send the script. A
        // server that is too far away answers a probe, and then no check in time.
        let asked = redis::cmd("TIME");
        let answer = timeout(self.deadline, asked.query_async(&mut connection)).await;
        let (seconds, micros): (u64, u32) =
            answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Duration::from_secs(seconds) + Duration::from_micros(micros.into()))
    }
}

/// The arguments of the script, as its head describes them.
fn fill(command: &mut Cmd, asked: &[Asked], server_now: Duration) {
    let owed = || asked.iter().enumerate().filter_map(|(i, asked)| Some((i, asked.owed.as_ref()?)));
    let markers = || owed().filter_map(|(_, owed)| owed.marker.as_ref());
    command.arg(asked.len() + markers().count());
    for asked in asked {
        command.arg(&asked.key);
    }
    for marker in markers() {
        command.arg(marker);
    }
    command.arg(asked.len()).arg(owed().count());
    for asked in asked {
        let Rule { limit, window, block, enforced } = asked.rule;
        // What is above the limit is too large, however far above.
        let cost = asked.cost.min(MAX_LIMIT + 1);
        command.arg(limit).arg(window).arg(block).arg(cost).arg(u8::from(enforced));
    }
    let mut marker = asked.len();
    for (i, owed) in owed() {
        marker += usize::from(owed.marker.is_some());
        let at = if owed.marker.is_some() { marker } else { 0 };
        let end = server_now + Duration::from_millis(owed.left);
        command.arg(i + 1).arg(at).arg(owed.floor.min(MAX_LIMIT)).arg(owed.delta.min(MAX_LIMIT));
        command.arg(end.as_secs() * 1000 + u64::from(end.subsec_millis())).arg(u8::from(owed.blocked));
    }
}

fn unexpected_reply() -> RedisError {
    RedisError::from((redis::ErrorKind::UnexpectedReturnType, "not two integers for each key"))
}

#[cfg(test)]
mod tests;
