//! Finds out which node has which slot, and keeps finding out.
//!
//! The task starts with the first check, on that check's runtime. It asks a
//! master that is connected anyway, and only without any the addresses that
//! were given: again when a redirect or a loss says that the map is wrong, often
//! while a master is missing, and now and then in any case.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, ProtocolVersion};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::map::{Map, Range};
use super::{Shared, State};
use crate::store::redis::backoff::{FIRST_BACKOFF, LAST_BACKOFF, jittered};
use crate::store::redis::connection::MISSES;
use crate::store::redis::dial::{CONNECT_TIMEOUT, address};
use crate::store::redis::error;
use crate::store::redis::news::Told;
use crate::store::redis::node::Node;
use crate::store::{StoreError, StoreErrorKind, StoreEvent};

/// At least so long between two looks, however many redirects there are.
const PAUSE: Duration = Duration::from_millis(100);
/// While a master is missing: another one may take its slots.
const WHILE_MISSING: Duration = Duration::from_secs(1);
const WHILE_WELL: Duration = Duration::from_secs(10);

/// Keeps the map true until the limiter is gone.
pub(super) async fn survey(cluster: OnRuntime) {
    let mut backoff = FIRST_BACKOFF;
    let mut told = Told::Nothing;
    loop {
        let Some(shared) = cluster.0.upgrade() else { return };
        let pause = match shared.first_in_time(shared.ask_anybody()).await {
            Ok(ranges) => {
                backoff = FIRST_BACKOFF;
                if told != Told::Nothing {
                    told = Told::Nothing;
                    shared.tell(&StoreEvent::Left { address: &shared.address() });
                }
                if shared.draw(&ranges) { WHILE_WELL } else { WHILE_MISSING }
            }
            Err(error) => {
                shared.give_up_first();
                // Of masters that were known their own connections tell.
                let news = Told::of(&error);
                if told < news && !matches!(*shared.state.borrow(), State::Known(_)) {
                    told = news;
                    shared.tell(&StoreEvent::Lost { address: &shared.address(), error: &error });
                }
                let pause = backoff;
                backoff = (backoff * 2).min(LAST_BACKOFF);
                pause
            }
        };
        let refresh = shared.refresh.clone();
        drop(shared);
        sleep(jittered(PAUSE)).await;
        // The time is up, or somebody has asked for another look.
        let _ = timeout(jittered(pause), refresh.notified()).await;
    }
}

/// What the task holds of its cluster. Dropped with the task, when its runtime
/// ends: the next check on another one starts it again.
pub(super) struct OnRuntime(Weak<Shared>);

impl OnRuntime {
    pub(super) fn of(cluster: &Arc<Shared>) -> Self {
        Self(Arc::downgrade(cluster))
    }
}

impl Drop for OnRuntime {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.state.send_if_modified(|state| {
                let is_unknown = matches!(state, State::Unknown);
                if is_unknown {
                    *state = State::Untried;
                }
                is_unknown
            });
            shared.is_surveyed.store(false, Ordering::Release);
        }
    }
}

impl Shared {
    fn tell(&self, event: &StoreEvent<'_>) {
        (self.common.events)(event);
    }

    /// The very first look is waited for, but not for longer than a silent
    /// server would be.
    async fn first_in_time<T>(&self, look: impl Future<Output = T>) -> T {
        let mut look = std::pin::pin!(look);
        match timeout(self.common.deadline * MISSES, &mut look).await {
            Ok(seen) => seen,
            Err(_) => {
                self.give_up_first();
                look.await
            }
        }
    }

    fn give_up_first(&self) {
        self.state.send_if_modified(|state| {
            let is_first = matches!(state, State::Untried);
            if is_first {
                *state = State::Unknown;
            }
            is_first
        });
    }

    /// What the first one tells that can tell anything.
    async fn ask_anybody(&self) -> Result<Vec<Range>, StoreError> {
        let mut nodes = self.lock_nodes().clone();
        fastrand::shuffle(&mut nodes);
        for node in &nodes {
            if let Some(live) = node.link.live()
                && let Ok(ranges) = ask(live.connection, node.link.address()).await
            {
                return Ok(ranges);
            }
        }
        let mut asked = JoinSet::new();
        for seed in &self.seeds {
            asked.spawn(dial_and_ask(seed.clone()));
        }
        let mut failure = StoreError::new(StoreErrorKind::Disconnected);
        while let Some(told) = asked.join_next().await {
            match told {
                Ok(Ok(ranges)) => return Ok(ranges),
                Ok(Err(error)) => failure = error,
                Err(_) => {}
            }
        }
        Err(failure)
    }

    /// Takes over a map, and connects to all that is new in it. Answers whether
    /// every master is connected already.
    fn draw(self: &Arc<Self>, ranges: &[Range]) -> bool {
        let mut nodes = self.lock_nodes();
        let drawn = ranges.iter().filter_map(|range| {
            let node = self.node_at(&mut nodes, range.host.as_deref()?, range.port).ok()?;
            Some((range.start, range.end, node))
        });
        let map = Map::new(drawn.collect());
        let mut masters: Vec<Arc<Node>> = Vec::new();
        for node in map.nodes() {
            if !masters.iter().any(|known| Arc::ptr_eq(known, node)) {
                masters.push(node.clone());
            }
        }
        let is_gone = |node: &mut Arc<Node>| {
            let has_slots = masters.iter().any(|master| Arc::ptr_eq(master, node));
            // Who is about to get its first slots is named before it has any.
            !has_slots && !node.is_named.swap(false, Ordering::Relaxed)
        };
        let gone: Vec<_> = nodes.extract_if(.., is_gone).collect();
        self.state.send_replace(State::Known(map));
        drop(nodes);
        for node in gone {
            node.leave();
            self.tell(&StoreEvent::Left { address: node.link.address() });
        }
        for node in &masters {
            node.link.supervise();
        }
        masters.iter().all(|node| node.link.is_up())
    }
}

async fn dial_and_ask(seed: ConnectionInfo) -> Result<Vec<Range>, StoreError> {
    #[cfg(feature = "tls")]
    if matches!(seed.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        crate::store::redis::tls::ensure_provider();
    }
    let address = address(seed.addr());
    let settings = seed.redis_settings().clone().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(CONNECT_TIMEOUT));
    let dialled = async {
        let client = Client::open(seed.set_redis_settings(settings))?;
        client.get_multiplexed_async_connection_with_config(&config).await
    };
    let connection = dialled.await.map_err(|error| error::classify(&error))?;
    ask(connection, &address).await
}

/// What one node tells, which listens at that address.
async fn ask(mut connection: MultiplexedConnection, address: &str) -> Result<Vec<Range>, StoreError> {
    let mut command = redis::cmd("CLUSTER");
    let asked = timeout(CONNECT_TIMEOUT, command.arg("SLOTS").query_async(&mut connection)).await;
    let reply = asked
        .map_err(|_| StoreError::new(StoreErrorKind::Timeout))?
        .map_err(|error| error::classify(&error))?;
    let mut ranges = Range::all(&reply).ok_or_else(|| StoreError::new(StoreErrorKind::Other))?;
    let own_host = address.rsplit_once(':').map(|(host, _)| host.to_owned());
    for range in &mut ranges {
        range.host = range.host.take().or_else(|| own_host.clone());
    }
    // A node that belongs to no cluster yet, or no more, has nothing to tell.
    if ranges.is_empty() {
        return Err(StoreError::new(StoreErrorKind::ClusterDown));
    }
    Ok(ranges)
}
