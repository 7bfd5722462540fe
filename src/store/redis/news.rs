//! What is told of a connection, and in which order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::store::{StoreError, StoreEvent};

/// What is told of the connection, to whom it concerns.
pub(super) type Events = Arc<dyn Fn(&StoreEvent<'_>) + Send + Sync>;

/// Tells what happens, in order and without a lock that an observer could meet:
/// one that asks the limiter something may cause the next news itself.
pub(super) struct News {
    events: Events,
    queue: Mutex<VecDeque<Item>>,
    /// Held by whoever is telling.
    telling: Mutex<()>,
}

pub(super) enum Item {
    Connected,
    Lost(StoreError),
    Misconfigured(StoreError),
}

impl News {
    pub(super) fn new(events: Events) -> Self {
        Self { events, queue: Mutex::default(), telling: Mutex::default() }
    }

    pub(super) fn queue(&self, item: Item) {
        self.lock_queue().push_back(item);
    }

    /// Tells what is queued, unless somebody is at it: they tell this too.
    pub(super) fn tell(&self, address: &str) {
        loop {
            let Ok(telling) = self.telling.try_lock() else { return };
            while let Some(item) = self.pop() {
                (self.events)(&match &item {
                    Item::Connected => StoreEvent::Connected { address },
                    Item::Lost(error) => StoreEvent::Lost { address, error },
                    Item::Misconfigured(error) => StoreEvent::Misconfigured { address, error },
                });
            }
            drop(telling);
            // Somebody may have queued after the last look and before the drop.
            if self.lock_queue().is_empty() {
                return;
            }
        }
    }

    fn pop(&self) -> Option<Item> {
        self.lock_queue().pop_front()
    }

    fn lock_queue(&self) -> MutexGuard<'_, VecDeque<Item>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the outside knows of the connection that is missing. An outage is told
/// once; that it is somebody's mistake is worth a second line.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    #[default]
    Nothing,
    Lost,
    Misconfigured,
}

impl Told {
    pub(super) fn of(error: &StoreError) -> Self {
        if error.kind().is_misconfiguration() { Self::Misconfigured } else { Self::Lost }
    }
}
