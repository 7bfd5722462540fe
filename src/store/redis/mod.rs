//! The shared store.
//!
//! A check is one script call on one held connection, within one deadline for
//! everything. Whatever goes wrong becomes a [`StoreError`]; a charge whose
//! outcome is unknown is never sent again.

mod connection;
mod error;
mod script;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Cmd, ConnectionInfo, IntoConnectionInfo, RedisError};
use tokio::time::{Instant, timeout};

use self::connection::{Events, Link, Probe};
use self::script::Script;
use crate::algorithm::{Rule, State};
use crate::clock::Millis;
use crate::policy::MAX_POLICIES;
use crate::store::{StoreError, StoreErrorKind, StoreEvent};

/// More checks than this at once are not sent but decided by the fallback.
const MAX_WAITING: usize = 4096;

/// An idle connection is probed by the kernel after this.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// One policy's part in a check on Redis.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The whole key, with namespace and hash tag.
    pub(crate) key: String,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
}

/// The state of each key before a check.
pub(crate) type Before = ArrayVec<Remembered, MAX_POLICIES>;

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
        match (u64::try_from(count), Millis::try_from(left)) {
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
    waiting: AtomicUsize,
    events: Events,
}

impl RedisStore {
    /// A store on a server that need not be there yet: nothing is sent before
    /// the first check.
    ///
    /// # Errors
    ///
    /// When the URL is not one of Redis, or asks for what this build lacks.
    pub(crate) fn new(
        url: &str,
        namespace: &str,
        deadline: Duration,
        events: impl Fn(&StoreEvent<'_>) + Send + Sync + 'static,
    ) -> Result<Self, RedisError> {
        let keepalive =
            TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
        let target: ConnectionInfo = url.into_connection_info()?.set_tcp_settings(keepalive);
        let events: Events = Arc::new(events);
        let fixed_window = Arc::new(Script::new(script::FIXED_WINDOW));
        let probe = WriteProbe { script: fixed_window.clone(), namespace: namespace.to_owned() };
        let db = target.redis_settings().db();
        let link = Link::new(target, deadline, probe, events.clone())?;
        Ok(Self { link, fixed_window, deadline, db, waiting: AtomicUsize::new(0), events })
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

    /// One check: answers with the state before it.
    ///
    /// Dropped before the answer, it has counted once or not at all.
    pub(crate) async fn charge(&self, asked: &[Asked]) -> Result<Before, StoreError> {
        self.within_deadline(async |connection| {
            let reply = self.fixed_window.run(connection, |command| fill(command, asked)).await?;
            if reply.len() != 2 * asked.len() {
                return Err(unexpected_reply());
            }
            Ok(reply.chunks_exact(2).map(|pair| Remembered::from_reply(pair[0], pair[1])).collect())
        })
        .await
    }

    /// Forgets keys by their exact names.
    pub(crate) async fn reset(&self, keys: &[String]) -> Result<(), StoreError> {
        self.within_deadline(async |connection| redis::cmd("DEL").arg(keys).query_async(connection).await)
            .await
    }

    async fn within_deadline<T>(
        &self,
        send: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let answer = self.send_within_deadline(send).await;
        let latency = started.elapsed();
        (self.events)(&match &answer {
            Ok(_) => StoreEvent::Answered { latency },
            Err(error) => StoreEvent::Failed { error, latency },
        });
        answer
    }

    async fn send_within_deadline<T>(
        &self,
        send: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, StoreError> {
        if let Some(error) = self.link.unavailable() {
            return Err(error);
        }
        let _place = Place::take(&self.waiting)?;
        let started = Instant::now();
        let late = |_| StoreError::new(StoreErrorKind::Timeout);
        let connection = timeout(self.deadline, self.link.connection()).await;
        let mut live = connection.map_err(late).inspect_err(|_| self.link.missed_first())??;
        let left = self.deadline.saturating_sub(started.elapsed());
        let answer = match timeout(left, send(&mut live.connection)).await {
            Ok(answer) => answer.map_err(|error| error::classify(&error)),
            Err(elapsed) => Err(late(elapsed)),
        };
        match &answer {
            Ok(_) => self.link.answered(),
            Err(error) => self.link.failed(&live, error),
        }
        answer
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
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize) -> Result<Self, StoreError> {
        let place = Self(waiting);
        if waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            return Err(StoreError::new(StoreErrorKind::Overload));
        }
        Ok(place)
    }
}

impl Drop for Place<'_> {
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
}

impl Probe for WriteProbe {
    async fn probe(&self, mut connection: MultiplexedConnection) -> Result<(), RedisError> {
        // No policy name has a dot.
        let key = format!("{}.probe:rl:{:08x}", self.namespace, fastrand::u32(..));
        // The second charge finds a longer window than its own, so between them
        // and the deletion every command of the script is run.
        for window in [1000, 1] {
            let rule = Rule { limit: 2, window, block: 0, enforced: true };
            let asked = [Asked { key: key.clone(), rule, cost: 1 }];
            let reply = self.script.run(&mut connection, |command| fill(command, &asked)).await?;
            if reply.len() != 2 {
                return Err(unexpected_reply());
            }
        }
        redis::cmd("DEL").arg(&key).query_async(&mut connection).await
    }
}

/// The arguments of the script, as its head describes them.
fn fill(command: &mut Cmd, asked: &[Asked]) {
    command.arg(asked.len());
    for asked in asked {
        command.arg(&asked.key);
    }
    for asked in asked {
        let Rule { limit, window, block, enforced } = asked.rule;
        // What is above the limit is too large, however far above.
        let cost = asked.cost.min(crate::policy::MAX_LIMIT + 1);
        command.arg(limit).arg(window).arg(block).arg(cost).arg(u8::from(enforced));
    }
}

fn unexpected_reply() -> RedisError {
    RedisError::from((redis::ErrorKind::UnexpectedReturnType, "not two integers for each key"))
}

#[cfg(test)]
mod tests;
