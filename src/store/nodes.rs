//! Which servers of a store are connected, as its events tell.

use std::collections::BTreeMap;

use super::StoreEvent;

/// The servers by address, and whether each is connected.
#[derive(Debug, Default)]
pub(crate) struct Nodes(BTreeMap<Box<str>, bool>);

impl Nodes {
    pub(crate) fn learn(&mut self, event: &StoreEvent<'_>) {
        match event {
            StoreEvent::Connected { address } => {
                self.0.insert((*address).into(), true);
            }
            StoreEvent::Lost { address, .. } => {
                self.0.insert((*address).into(), false);
            }
            StoreEvent::Left { address } => {
                self.0.remove(*address);
            }
            _ => {}
        }
    }

    /// How many are connected, and how many there are.
    pub(crate) fn connected(&self) -> (usize, usize) {
        (self.0.values().filter(|&&connected| connected).count(), self.0.len())
    }
}
