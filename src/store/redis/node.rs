//! One server: the connection to it, and what is known of the scripts there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{ConnectionInfo, RedisError};

use super::Scripts;
use super::cluster::Home;
use super::connection::{Link, Live};
use super::news::Events;
use super::probe::WriteProbe;
use crate::store::StoreEvent;

/// The only server, or one master of a cluster.
pub(super) struct Node {
    pub(super) link: Link<WriteProbe>,
    /// Of this server: another one may have lost the text or not.
    pub(super) scripts: Arc<Scripts>,
    /// Whether a redirect has led here since the last look at the cluster.
    pub(super) is_named: AtomicBool,
    is_gone: Arc<AtomicBool>,
}

/// What all nodes of one store have in common.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) namespace: String,
    pub(super) deadline: Duration,
    pub(super) events: Events,
    pub(super) generations: Arc<AtomicU64>,
}

impl Node {
    pub(super) fn new(
        target: ConnectionInfo,
        common: &Common,
        home: Option<Home>,
    ) -> Result<Self, RedisError> {
        let Common { namespace, deadline, events, generations } = common.clone();
        let scripts = Arc::new(Scripts::new());
        let is_gone = Arc::default();
        let events = while_there(events, Arc::clone(&is_gone));
        let probe = WriteProbe { scripts: scripts.clone(), namespace, deadline, home };
        let link = Link::new(target, deadline, probe, events, generations)?;
        Ok(Self { link, scripts, is_named: AtomicBool::new(false), is_gone })
    }

    /// It has left the cluster: nothing more is told of it.
    pub(super) fn leave(&self) {
        self.is_gone.store(true, Ordering::Release);
    }
}

/// Tells nothing of a node that has left: it would be missed for ever.
fn while_there(events: Events, is_gone: Arc<AtomicBool>) -> Events {
    Arc::new(move |event: &StoreEvent<'_>| {
        if !is_gone.load(Ordering::Acquire) {
            events(event);
        }
    })
}

/// A connection, and the server that it is to. It does not keep the server's
/// supervision going: who waits for a late answer may outlive the limiter.
#[derive(Clone)]
pub(super) struct Hop {
    node: Weak<Node>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) live: Live,
}

impl Hop {
    pub(super) fn new(node: &Arc<Node>, live: Live) -> Self {
        Self { node: Arc::downgrade(node), scripts: node.scripts.clone(), live }
    }

    /// `None` when nobody uses it any more.
    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade()
    }
}
