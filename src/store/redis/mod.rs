//! The shared store.
//!
//! A check is one script call on one held connection, within one deadline for
//! everything. Whatever goes wrong becomes a [`StoreError`]; a charge whose
//! outcome is unknown is never sent again.

mod backoff;
mod check;
mod cluster;
mod connection;
mod dial;
mod error;
mod news;
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

use redis::RedisError;
use tokio::time::{Instant, timeout};

pub(crate) use self::check::{Asked, Before, Owed, Remembered, Reservations};
use self::check::{REPLIED, fill};
use self::cluster::Cluster;
pub(crate) use self::cluster::Tag;
use self::news::Events;
use self::node::{Common, Hop, Node};
use self::request::{Request, Way};
use self::script::Script;
pub(crate) use self::target::{Target, TargetError};
use self::turn::Place;
pub(crate) use self::turn::Turn;
use crate::store::{StoreError, StoreErrorKind, StoreEvent};

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

fn unexpected_reply() -> RedisError {
    RedisError::from((redis::ErrorKind::UnexpectedReturnType, "not four integers for each key"))
}

#[cfg(test)]
mod tests;
