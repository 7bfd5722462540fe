//! What one check holds while Redis is asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::node::Hop;
use crate::store::{StoreError, StoreErrorKind};

/// More checks than this at once are not sent but decided by the fallback.
const MAX_WAITING: usize = 4096;

/// One check's turn on a connection.
pub(crate) struct Turn {
    pub(super) hop: Hop,
    /// Where a redirect has led, if there was one.
    pub(super) landed: Arc<OnceLock<Hop>>,
    pub(super) generation: u64,
    pub(super) started: Instant,
    #[expect(dead_code, reason = "given back when it is dropped")]
    pub(super) place: Place,
}

impl Turn {
    /// Which connection it is on: a new one may be to a server that has lost
    /// what the last one was told.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Where an answer is waited for.
    pub(super) fn hop(&self) -> &Hop {
        self.landed.get().unwrap_or(&self.hop)
    }
}

/// One of the places for checks under way. Given back however the check ends.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    pub(super) fn take(waiting: &Arc<AtomicUsize>) -> Result<Self, StoreError> {
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
