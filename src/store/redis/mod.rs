//! The shared store.
//!
//! A check is one script call on one held connection, within one deadline for
//! everything. Whatever goes wrong becomes a [`StoreError`]; a charge whose
//! outcome is unknown is never sent again.

mod cluster;
mod connection;
mod error;
mod node;
mod probe;
mod request;
mod script;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod turn;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;
use redis::{Cmd, RedisError};
use tokio::time::{Instant, timeout};

use self::cluster::Cluster;
pub(crate) use self::cluster::Tag;
use self::connection::Events;
use self::node::{Common, Hop, Node};
use self::request::{Request, Way};
use self::script::Script;
pub(crate) use self::target::{Target, TargetError};
use self::turn::Place;
pub(crate) use self::turn::Turn;
use crate::algorithm::{Act, Amount, Kind, Rule, State};
use crate::clock::Millis;
use crate::policy::{MAX_LIMIT, MAX_WINDOW};
use crate::store::{StoreError, StoreErrorKind, StoreEvent};

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
    servers: Servers,
    deadline: Duration,
    db: i64,
    waiting: Arc<AtomicUsize>,
    events: Events,
    generations: Arc<AtomicU64>,
    /// The generation for which what is owed is being paid.
    paid_on: AtomicU64,
}

enum Servers {
    One(Arc<Node>),
    Cluster(Cluster),
}

impl RedisStore {
    /// A store on servers that need not be there yet: nothing is sent before
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
        let (events, generations): (Events, _) = (Arc::new(events), Arc::default());
        let common = Common {
            namespace: namespace.to_owned(),
            deadline,
            events: events.clone(),
            generations: Arc::clone(&generations),
        };
        let (servers, db) = match target {
            Target::One(target) => {
                let db = target.redis_settings().db();
                (Servers::One(Arc::new(Node::new(*target, &common, None)?)), db)
            }
            Target::Cluster(seeds) => (Servers::Cluster(Cluster::new(seeds, common)), 0),
        };
        let (waiting, paid_on) = (Arc::default(), AtomicU64::new(0));
        Ok(Self { servers, deadline, db, waiting, events, generations, paid_on })
    }

    /// Which counters these are: the server and its database.
    pub(crate) fn place(&self) -> String {
        format!("{}/{}", self.address(), self.db)
    }

    fn address(&self) -> String {
        match &self.servers {
            Servers::One(node) => node.link.address().to_owned(),
            Servers::Cluster(cluster) => cluster.address(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// Whether all of it is connected.
    pub(crate) fn is_up(&self) -> bool {
        match &self.servers {
            Servers::One(node) => node.link.is_up(),
            Servers::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// Why a check of such a key must not even wait, if so.
    pub(crate) fn unavailable(&self, tag: Tag<'_>) -> Option<StoreError> {
        match &self.servers {
            Servers::One(node) => node.link.unavailable(),
            Servers::Cluster(cluster) => cluster.unavailable(tag),
        }
    }

    /// A place and a connection for one check of such a key, within the
    /// deadline that starts now.
    pub(crate) async fn turn(&self, tag: Tag<'_>) -> Result<Turn, StoreError> {
        let started = Instant::now();
        let turn = async {
            if let Some(error) = self.unavailable(tag) {
                return Err(error);
            }
            let place = Place::take(&self.waiting)?;
            let late = |_| StoreError::new(StoreErrorKind::Timeout);
            let node = match &self.servers {
                Servers::One(node) => node.clone(),
                Servers::Cluster(cluster) => {
                    timeout(self.deadline, cluster.node(tag)).await.map_err(late)??
                }
            };
            node.link.asks();
            let left = self.deadline.saturating_sub(started.elapsed());
            let connection = timeout(left, node.link.connection()).await;
            let live = connection.map_err(late).inspect_err(|_| node.link.asks())??;
            // Before the look whether the connection is still the one: a later
            // number of the same server would be that of what it has lost.
            let latest = self.generations.load(Ordering::Acquire);
            let is_current = node.link.generation() == Some(live.generation);
            let generation = if is_current { latest } else { live.generation };
            let (hop, landed) = (Hop::new(&node, live), Arc::default());
            Ok(Turn { hop, landed, generation, started, place })
        };
        turn.await.inspect_err(|error| {
            (self.events)(&StoreEvent::Failed { error, latency: started.elapsed() });
        })
    }

    /// One check: answers with the state before it, and after what is owed. All
    /// its keys are in the slot of the turn.
    ///
    /// Dropped before the answer, it has counted once or not at all. It does
    /// not borrow, so that an answer that is late can still be waited for.
    pub(crate) fn charge(
        &self,
        turn: &Turn,
        asked: Vec<Asked>,
    ) -> impl Future<Output = Result<Before, StoreError>> + Send + use<> {
        let way = self.way(turn);
        async move {
            let keys = asked.len();
            let reply = way.send(Request::Charge(asked)).await?;
            if reply.len() != REPLIED * keys {
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
        let hop = turn.hop();
        let node = hop.node();
        match &answer {
            Ok(_) => {
                if let Some(node) = node {
                    node.link.answered();
                }
                (self.events)(&StoreEvent::Answered { latency });
            }
            Err(error) => {
                if let Some(node) = node {
                    node.link.failed(&hop.live, error);
                }
                (self.events)(&StoreEvent::Failed { error, latency });
            }
        }
        answer
    }

    /// Until it is of no more use to wait for an answer of that turn.
    pub(crate) fn superseded(&self, turn: &Turn) -> impl Future<Output = ()> + Send + use<> {
        let hop = turn.hop();
        let superseded = hop.node().map(|node| node.link.superseded(hop.live.generation));
        async move {
            if let Some(superseded) = superseded {
                superseded.await;
            }
        }
    }

    /// Forgets keys by their exact names. They are in one slot.
    pub(crate) async fn reset(&self, keys: Vec<String>) -> Result<(), StoreError> {
        let tag = keys.first().map_or_else(Tag::default, |key| Tag::of(key));
        let turn = self.turn(tag).await?;
        let forget = self.way(&turn).send(Request::Forget(keys));
        self.answer(&turn, async { forget.await.map(drop) }).await
    }

    /// A number that grows with each connection to any of the servers, while
    /// there is one.
    pub(crate) fn generation(&self) -> Option<u64> {
        match &self.servers {
            Servers::One(node) => node.link.generation(),
            Servers::Cluster(cluster) => {
                cluster.is_partly_up().then(|| self.generations.load(Ordering::Acquire))
            }
        }
    }

    /// Whether nobody pays for this generation yet: of the masters of a cluster
    /// several may connect at once.
    pub(crate) fn starts_to_pay(&self, generation: u64) -> bool {
        self.paid_on.swap(generation, Ordering::Relaxed) != generation
    }

    /// Parts what can be sent together: all of it to one server, to a cluster
    /// what is in one slot.
    pub(crate) fn parted<T>(&self, items: Vec<T>, key: impl Fn(&T) -> &str) -> Vec<Vec<T>> {
        if !self.is_cluster() {
            return vec![items];
        }
        let mut parts = BTreeMap::<u16, Vec<T>>::new();
        for item in items {
            parts.entry(Tag::of(key(&item)).slot()).or_default().push(item);
        }
        parts.into_values().collect()
    }

    fn way(&self, turn: &Turn) -> Way {
        let guide = match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => Some(cluster.guide()),
        };
        Way { hop: turn.hop.clone(), landed: turn.landed.clone(), guide, until: turn.started + self.deadline }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.address())
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
