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

use arrayvec::ArrayVec;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};
use tokio::time::{Instant, timeout};

use self::connection::{Events, Link, Live, Probe};
use self::script::Script;
pub(crate) use self::target::{Target, TargetError};
use crate::algorithm::{Act, Amount, Kind, Rule, State};
use crate::clock::Millis;
use crate::policy::{MAX_LIMIT, MAX_WINDOW};
use crate::store::{StoreError, StoreErrorKind, StoreEvent};

/// More checks than this at once are not sent but decided by the fallback.
const MAX_WAITING: usize = 4096;

/// One policy's part in a check on Redis.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The whole key, with namespace, hash tag and the algorithm's suffix.
    pub(crate) key: String,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
    pub(crate) act: Act,
    /// Blocks with less than this left are over, see [`Rule::pardon`].
    pub(crate) pardon: Millis,
    /// `None` where no reservations are kept.
    pub(crate) reservations: Option<Reservations>,
    /// What this replica has counted by itself and sends in front.
    pub(crate) owed: Option<Owed>,
}

impl Asked {
    /// Whether it is a charge of a fixed window, and nothing else.
    fn is_plain(&self) -> bool {
        let is_charge = self.rule.kind == Kind::FixedWindow && self.act == Act::Charge;
        is_charge && self.pardon == 0 && self.reservations.is_none() && self.owed.is_none()
    }
}

/// Where the open reservations of a counter are, and the one that is meant.
#[derive(Clone, Debug)]
pub(crate) struct Reservations {
    pub(crate) key: String,
    /// `name=amount`, empty for none.
    pub(crate) member: String,
    pub(crate) held_for: Millis,
}

/// What is owed to one counter, see the script.
#[derive(Clone, Debug)]
pub(crate) struct Owed {
    /// The key that is set when the delta is added. `None`: there is no delta.
    pub(crate) marker: Option<String>,
    pub(crate) floor: Amount,
    pub(crate) delta: Amount,
    pub(crate) left: Millis,
    pub(crate) blocked: bool,
}

/// The state of each key before a check.
pub(crate) type Before = Vec<Remembered>;

/// What Redis remembered of one key, with the time left on its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    amount: Amount,
    left: Millis,
    blocked: bool,
    /// What open reservations hold.
    pub(crate) open: u64,
}

/// How many integers the script answers with for each counter.
const REPLIED: usize = 4;

impl Remembered {
    /// The same on a clock that reads `now`.
    pub(crate) fn at(self, kind: Kind, now: Millis) -> State {
        let mark = now.saturating_add(self.left);
        match kind {
            _ if self.blocked => State::Blocked { until: mark },
            Kind::FixedWindow if self.left == 0 => State::Idle,
            Kind::TokenBucket { .. } if self.amount.is_zero() => State::Idle,
            // Also with nothing counted: where its sub-windows begin is Redis' to say.
            _ => State::Counting { amount: self.amount, mark },
        }
    }

    fn from_reply(reply: &[i64]) -> Option<Self> {
        let &[current, previous, left, open] = reply else { return None };
        // No block of ours is longer; one that somebody has set is told as if.
        let longest = MAX_WINDOW.as_secs() * 1000;
        let number = |number| u64::try_from(number).unwrap_or(0);
        let amount = Amount { current: number(current), previous: number(previous) };
        let left = number(left).min(longest);
        Some(Self { amount, left, blocked: current < 0 && left > 0, open: number(open) })
    }
}

/// Counts in Redis.
pub(crate) struct RedisStore {
    link: Link<WriteProbe>,
    scripts: Arc<Scripts>,
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
        let scripts = Arc::new(Scripts::new());
        let probe = WriteProbe { scripts: scripts.clone(), namespace: namespace.to_owned(), deadline };
        let db = target.redis_settings().db();
        let link = Link::new(target, deadline, probe, events.clone())?;
        Ok(Self { link, scripts, deadline, db, waiting: Arc::default(), events })
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
        let (scripts, mut connection) = (self.scripts.clone(), turn.live.connection.clone());
        let server_now = turn.live.server_now();
        async move {
            let script = scripts.of(&asked);
            let sent = script.run(&mut connection, |command| fill(command, &asked, server_now)).await;
            let reply = sent.map_err(|error| error::classify(&error))?;
            if reply.len() != REPLIED * asked.len() {
                return Err(error::classify(&unexpected_reply()));
            }
            Ok(reply.chunks_exact(REPLIED).filter_map(Remembered::from_reply).collect())
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

/// The scripts of a server.
struct Scripts {
    check: Script,
    fixed_charges: Script,
}

impl Scripts {
    fn new() -> Self {
        Self { check: Script::new(script::CHECK), fixed_charges: Script::new(script::FIXED_CHARGES) }
    }

    /// The quickest one that can play a check.
    fn of(&self, asked: &[Asked]) -> &Script {
        if asked.iter().all(Asked::is_plain) { &self.fixed_charges } else { &self.check }
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

/// Two checks like any other, on a key that is nobody's: what passes them can
/// decide. A ping would also be answered by a replica, by a server that
/// is out of memory, and to a user that may not do what the script does.
struct WriteProbe {
    scripts: Arc<Scripts>,
    namespace: String,
    deadline: Duration,
}

impl Probe for WriteProbe {
    async fn probe(&self, mut connection: MultiplexedConnection) -> Result<Duration, RedisError> {
        // No policy name has a dot.
        let key = format!("{}.probe:rl:{:08x}", self.namespace, fastrand::u32(..));
        let open = format!("{key}:=open");
        let asked = |window, act| {
            let rule =
                Rule { kind: Kind::FixedWindow, limit: 5, window, block: 0, enforced: true, pardon: 0 };
            let reservations = Reservations { key: open.clone(), member: "probe=1".to_owned(), held_for: 1 };
            let reservations = (act != Act::Charge).then_some(reservations);
            Asked { key: key.clone(), rule, cost: 1, act, pardon: 0, reservations, owed: None }
        };
        // The two checks take one script each. What settles finds the count of the
        // first, what reserves a longer window than its own: with the deletion every command of the script is run.
        let first = [asked(1000, Act::Charge)];
        let second = [asked(1000, Act::Settle), asked(1, Act::Reserve)];
        for asked in [&first[..], &second] {
            let fill = |command: &mut Cmd| fill(command, asked, Duration::ZERO);
            if self.scripts.of(asked).run(&mut connection, fill).await?.len() != REPLIED * asked.len() {
                return Err(unexpected_reply());
            }
        }
        let () = redis::cmd("DEL").arg(&[key, open]).query_async(&mut connection).await?;
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
    let owed = || asked.iter().enumerate().filter_map(|(i, asked)| Some((i, asked, asked.owed.as_ref()?)));
    let markers = || owed().filter_map(|(_, _, owed)| owed.marker.as_ref());
    let reservations = || asked.iter().filter_map(|asked| asked.reservations.as_ref());
    command.arg(asked.len() + markers().count() + reservations().count());
    for asked in asked {
        command.arg(&asked.key);
    }
    for marker in markers() {
        command.arg(marker);
    }
    for reservations in reservations() {
        command.arg(&reservations.key);
    }
    command.arg(asked.len()).arg(owed().count());
    let mut open = asked.len() + markers().count();
    for asked in asked {
        open += usize::from(asked.reservations.is_some());
        fill_counter(command, asked, open);
    }
    let mut marker = asked.len();
    for (i, asked, owed) in owed() {
        marker += usize::from(owed.marker.is_some());
        let at = if owed.marker.is_some() { marker } else { 0 };
        command.arg(i + 1).arg(at);
        for amount in [owed.floor, owed.delta] {
            command.arg(amount.current.min(MAX_LIMIT)).arg(amount.previous.min(MAX_LIMIT));
        }
        command.arg(moment(&asked.rule, owed, server_now)).arg(u8::from(owed.blocked));
    }
}

fn fill_counter(command: &mut Cmd, asked: &Asked, open: usize) {
    let Rule { kind, limit, window, block, enforced, .. } = asked.rule;
    let algorithm = match kind {
        Kind::FixedWindow => 'f',
        Kind::SlidingWindow => 's',
        Kind::TokenBucket { .. } => 'b',
    };
    let act = match asked.act {
        Act::Charge => 'c',
        Act::Reserve => 'r',
        Act::Settle => 's',
        Act::Refund { .. } => 'u',
    };
    let keeps = asked.reservations.is_some().then_some('o');
    let pardons = (asked.pardon > 0).then_some('p');
    let form: ArrayVec<u8, 4> = [Some(algorithm), Some(act), keeps, pardons]
        .into_iter()
        .flatten()
        .map(|letter| letter as u8)
        .collect();
    command.arg(&form[..]);
    // What is above the limit is too large, however far above.
    let cost = asked.cost.min(MAX_LIMIT + 1);
    command.arg(limit).arg(window).arg(block).arg(cost).arg(u8::from(enforced));
    if let Kind::TokenBucket { refill } = kind {
        command.arg(refill);
    }
    if let Some(reservations) = &asked.reservations {
        command.arg(open);
        if matches!(asked.act, Act::Reserve | Act::Settle) {
            command.arg(&reservations.member);
        }
        if asked.act == Act::Reserve {
            command.arg(reservations.held_for);
        }
    }
    if let Act::Refund { left } = asked.act {
        command.arg(left);
    }
    if asked.pardon > 0 {
        command.arg(asked.pardon);
    }
}

/// The moment of a debt on the server's clock: the end of a window or a block,
/// the index of a sub-window, or the moment of a level.
fn moment(rule: &Rule, owed: &Owed, server_now: Duration) -> u64 {
    let millis = |time: Duration| time.as_secs() * 1000 + u64::from(time.subsec_millis());
    let end = millis(server_now + Duration::from_millis(owed.left));
    match rule.kind {
        _ if owed.blocked => end,
        Kind::FixedWindow => end,
        // The end is known to a few milliseconds: the nearest one is meant.
        Kind::SlidingWindow => (end + rule.window / 2) / rule.window.max(1) - 1,
        Kind::TokenBucket { .. } => millis(server_now),
    }
}

fn unexpected_reply() -> RedisError {
    RedisError::from((redis::ErrorKind::UnexpectedReturnType, "not four integers for each key"))
}

#[cfg(test)]
mod tests;
