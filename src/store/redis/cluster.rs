//! A cluster: one supervised connection for each master, and which of them has
//! which slot.
//!
//! Each node is lost and comes back by itself, so that the slots of the others
//! never wait for it. The map of the slots is drawn by a background task, see
//! [`survey`]; a check goes to where the map says, and follows one redirect.

mod map;
mod slot;
mod survey;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use self::map::Map;
pub(crate) use self::slot::Tag;
use super::dial;
use super::error;
use super::news::Events;
use super::node::{Common, Hop, Node};
use super::script::Asking;
use crate::store::{StoreError, StoreErrorKind, StoreEvent};

/// The nodes of one store.
pub(super) struct Cluster(Arc<Shared>);

struct Shared {
    /// Where to ask first. All with the same credentials.
    seeds: Vec<ConnectionInfo>,
    common: Common,
    /// Those of the map, and those that a redirect has led to.
    nodes: Mutex<Vec<Arc<Node>>>,
    state: watch::Sender<State>,
    /// That the map may be wrong.
    refresh: Arc<Notify>,
    is_surveyed: AtomicBool,
}

enum State {
    Untried,
    /// Nobody could tell.
    Unknown,
    Known(Map),
}

impl Cluster {
    /// A cluster that nobody has talked to yet, with at least one seed.
    pub(super) fn new(seeds: Vec<ConnectionInfo>, common: Common) -> Self {
        let refresh = Arc::new(Notify::new());
        let common = Common { events: watching(common.events, refresh.clone()), ..common };
        let (state, _) = watch::channel(State::Untried);
        Self(Arc::new(Shared {
            seeds,
            common,
            nodes: Mutex::default(),
            state,
            refresh,
            is_surveyed: AtomicBool::new(false),
        }))
    }

    /// The hosts and ports to start from.
    pub(super) fn address(&self) -> String {
        self.0.address()
    }

    /// Whether every master is connected.
    pub(super) fn is_up(&self) -> bool {
        matches!(&*self.0.state.borrow(), State::Known(map) if map.nodes().all(|node| node.link.is_up()))
    }

    /// Whether any master is connected.
    pub(super) fn is_partly_up(&self) -> bool {
        matches!(&*self.0.state.borrow(), State::Known(map) if map.nodes().any(|node| node.link.is_up()))
    }

    /// Why a check of that slot must not even wait, if so.
    pub(super) fn unavailable(&self, tag: Tag<'_>) -> Option<StoreError> {
        if !self.be_surveyed() {
            // Outside of a runtime nothing can be waited for.
            return Some(StoreError::new(StoreErrorKind::Disconnected));
        }
        let found = match &*self.0.state.borrow() {
            State::Untried => return None,
            State::Unknown => Err(StoreErrorKind::Disconnected),
            State::Known(map) => map.node(tag.slot()).cloned().ok_or(StoreErrorKind::ClusterDown),
        };
        match found {
            Ok(node) => node.link.unavailable(),
            Err(kind) => Some(StoreError::new(kind)),
        }
    }

    /// The master of a slot. Waits only while nobody has told of any.
    pub(super) async fn node(&self, tag: Tag<'_>) -> Result<Arc<Node>, StoreError> {
        let mut changes = self.0.state.subscribe();
        let tried = changes.wait_for(|state| !matches!(state, State::Untried)).await;
        let node = match tried.as_deref() {
            Ok(State::Known(map)) => map.node(tag.slot()).cloned().ok_or(StoreErrorKind::ClusterDown),
            _ => Err(StoreErrorKind::Disconnected),
        };
        node.map_err(StoreError::new)
    }

    /// What follows redirects, for as long as it takes.
    pub(super) fn guide(&self) -> Guide {
        Guide(Arc::downgrade(&self.0))
    }

    /// Starts the background task if none runs. Answers whether one does.
    fn be_surveyed(&self) -> bool {
        if self.0.is_surveyed.load(Ordering::Acquire) {
            return Handle::try_current().is_ok();
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        if !self.0.is_surveyed.swap(true, Ordering::AcqRel) {
            runtime.spawn(survey::survey(survey::OnRuntime::of(&self.0)));
        }
        true
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The background task ends at its next look.
        self.0.refresh.notify_one();
    }
}

/// Tells the surveyor of losses, and then whom it concerns.
fn watching(events: Events, refresh: Arc<Notify>) -> Events {
    Arc::new(move |event: &StoreEvent<'_>| {
        if matches!(event, StoreEvent::Lost { .. }) {
            refresh.notify_one();
        }
        events(event);
    })
}

/// Follows redirects.
pub(super) struct Guide(Weak<Shared>);

impl Guide {
    /// A connection to where a redirect leads.
    pub(super) async fn follow(
        &self,
        redirect: &RedisError,
        from: &Hop,
        until: Instant,
    ) -> Result<Hop, StoreError> {
        let (address, _) = redirect.redirect_node().unwrap_or_default();
        let gone = || StoreError::new(StoreErrorKind::Disconnected);
        let (cluster, from) = (self.0.upgrade().ok_or_else(gone)?, from.node().ok_or_else(gone)?);
        if asking(redirect) == Some(Asking::No) {
            cluster.refresh.notify_one();
        }
        let late = |_| Err(StoreError::new(StoreErrorKind::Timeout));
        timeout_at(until, cluster.connection_to(address, &from)).await.unwrap_or_else(late)
    }

    /// The class of an error. A redirect that is not followed is no mistake of
    /// anybody: slots are on their way.
    pub(super) fn classify(&self, error: &RedisError) -> StoreError {
        match error.code() {
            Some(code) if asking(error).is_some() => StoreError::with_code(StoreErrorKind::ClusterDown, code),
            _ => {
                if let (true, Some(cluster)) = (error.is_cluster_error(), self.0.upgrade()) {
                    cluster.refresh.notify_one();
                }
                error::classify(error)
            }
        }
    }
}

/// How to follow a redirect. `None`: it is another error.
pub(super) fn asking(error: &RedisError) -> Option<Asking> {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => Some(Asking::No),
        ErrorKind::Server(ServerErrorKind::Ask) => Some(Asking::Yes),
        _ => None,
    }
}

impl Shared {
    fn address(&self) -> String {
        let mut addresses: Vec<_> = self.seeds.iter().map(|seed| dial::address(seed.addr())).collect();
        addresses.sort_unstable();
        addresses.join(",")
    }

    fn lock_nodes(&self) -> MutexGuard<'_, Vec<Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection_to(self: &Arc<Self>, address: &str, from: &Node) -> Result<Hop, StoreError> {
        let host_and_port = |address: &str| {
            let (host, port) = address.rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some((host.to_owned(), port.parse::<u16>().ok()?))
        };
        let (host, port) =
            host_and_port(address).ok_or_else(|| StoreError::new(StoreErrorKind::ClusterDown))?;
        // Without a host it is that of the node which said so.
        let host = match host.is_empty() {
            true => host_and_port(from.link.address()).map_or(host, |(host, _)| host),
            false => host,
        };
        let node = self.node_at(&mut self.lock_nodes(), &host, port)?;
        node.is_named.store(true, Ordering::Relaxed);
        if let Some(error) = node.link.unavailable() {
            return Err(error);
        }
        let live = node.link.connection().await?;
        Ok(Hop::new(&node, live))
    }

    /// The node that listens there, known before or not.
    fn node_at(
        self: &Arc<Self>,
        nodes: &mut Vec<Arc<Node>>,
        host: &str,
        port: u16,
    ) -> Result<Arc<Node>, StoreError> {
        // With the credentials, and the trust, of the first one.
        let seed = self.seeds.first().ok_or_else(|| StoreError::new(StoreErrorKind::Other))?.clone();
        let addr = match seed.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        let address = dial::address(&addr);
        if let Some(known) = nodes.iter().find(|node| node.link.address() == address) {
            return Ok(known.clone());
        }
        let home = Home { cluster: Arc::downgrade(self), address };
        let node = Node::new(seed.set_addr(addr), &self.common, Some(home));
        let node = Arc::new(node.map_err(|error| error::classify(&error))?);
        nodes.push(node.clone());
        Ok(node)
    }
}

/// Where a node is at home: for its probe, which needs a key that the node has.
pub(super) struct Home {
    cluster: Weak<Shared>,
    address: String,
}

impl Home {
    /// A key that starts so, in a slot of the node. `None` when it has none.
    pub(super) fn key(&self, stem: &str) -> Option<String> {
        let slots: Vec<_> = match &*self.cluster.upgrade()?.state.borrow() {
            State::Known(map) => map.slots_of(&self.address).collect(),
            State::Untried | State::Unknown => return None,
        };
        if slots.is_empty() {
            return None;
        }
        let is_here = |key: &String| slots.iter().any(|slots| slots.contains(&Tag::of(key).slot()));
        // All slots are met long before: keys spread evenly.
        (0..1 << 20).map(|_| format!("{stem}{{{:08x}}}", fastrand::u32(..))).find(is_here)
    }
}
