//! What the local table knows of one identity, and what it owes Redis.

use compact_str::CompactString;

use super::shard::Rank;
use super::{Charged, PolicyId};
use crate::algorithm::State;
use crate::clock::Millis;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) policy: PolicyId,
    pub(super) key: CompactString,
    pub(super) hash: u64,
    pub(super) state: State,
    pub(super) first_len: u8,
    /// The count as of the last answer of Redis, in the window that is open.
    pub(super) told: Option<u64>,
    /// The connection on which it was told, 0 for none. Redis may have lost
    /// what it told on another one.
    pub(super) told_by: u64,
    /// At least so much is counted in this window: what was told, and charges
    /// of unknown outcome. Telling Redis twice does no harm.
    pub(super) floor: u64,
    /// Charges that surely never reached Redis. They come on top of the floor,
    /// and must be added once.
    pub(super) delta: u64,
    /// Names the delta once it has been sent. It is not changed from then on
    /// until Redis has acknowledged it.
    pub(super) sent_as: Option<Marker>,
    /// Whether Redis has refused in this state.
    pub(super) denied: bool,
    pub(super) rank: Rank,
    /// The end under which the slot stands in `Shard::queue`.
    pub(super) end: Millis,
}

impl Slot {
    /// What an end of the window or a block makes meaningless.
    pub(super) fn forget_window(&mut self) {
        self.told = None;
        self.told_by = 0;
        (self.floor, self.delta, self.sent_as) = (0, 0, None);
    }

    pub(super) fn known(&self, now: Millis) -> Known {
        let state = self.state.at(now);
        match state {
            State::Idle => Known::default(),
            _ => Known { state, told: self.told, floor: self.floor, delta: self.delta },
        }
    }

    /// Remembers for Redis what was charged here.
    pub(super) fn charged(&mut self, added: u64, charged: Charged) {
        match charged {
            Charged::Here => {}
            Charged::Unsent if self.sent_as.is_none() => self.delta += added,
            Charged::Unsent | Charged::Unknown => self.floor += added,
        }
    }

    /// Whether Redis has not acknowledged a charge or a block of this process.
    pub(super) fn owes(&self, now: Millis) -> bool {
        let is_even = self.delta == 0 && self.floor <= self.told.unwrap_or(0);
        match self.state.at(now) {
            State::Idle => false,
            State::Counting { .. } => !is_even,
            State::Blocked { .. } => self.told_by == 0,
        }
    }

    pub(super) fn debt(
        &mut self,
        generation: u64,
        now: Millis,
        marker: impl FnOnce() -> Marker,
    ) -> Option<Debt> {
        let state = self.state.at(now);
        let end = state.end()?;
        let is_even = self.delta == 0 && self.floor <= self.told.unwrap_or(0);
        if is_even && self.told_by == generation {
            return None;
        }
        if self.delta > 0 && self.sent_as.is_none() {
            self.sent_as = Some(marker());
        }
        let blocked = matches!(state, State::Blocked { .. });
        Some(Debt { marker: self.sent_as, floor: self.floor, delta: self.delta, left: end - now, blocked })
    }

    pub(super) fn paid(&mut self, marker: Option<Marker>, generation: u64) {
        if marker.is_some() && self.sent_as == marker {
            // From now on it is part of what Redis has counted.
            self.floor += std::mem::take(&mut self.delta);
            self.sent_as = None;
        }
        self.told_by = generation;
    }
}

/// What is known of an identity when Redis answers, or then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) state: State,
    pub(super) told: Option<u64>,
    pub(super) floor: u64,
    pub(super) delta: u64,
}

impl Known {
    /// What is known after Redis has answered. Two answers may be mirrored in
    /// the other order than Redis gave them, so within one window the larger
    /// count is the later one, and a running block stands.
    pub(super) fn merge(self, said: &Said, window: Millis, now: Millis) -> Self {
        let blocked = |until| Self { state: State::Blocked { until }, ..Self::default() };
        match (self.state, said.state.at(now)) {
            (State::Counting { end, .. }, State::Counting { count, end: said_end }) => {
                // Another window would end about a whole window later.
                let is_same = said_end < end.saturating_add(window / 2);
                let (told, floor, end) = if is_same {
                    // What Redis has counted now comes on top of a floor that it
                    // has not reached.
                    let told = self.told.unwrap_or(0);
                    let charged = if self.floor > told { said.charged } else { 0 };
                    (count.max(told), self.floor.saturating_add(charged).max(count), said_end.max(end))
                } else {
                    (count, count, said_end)
                };
                let count = floor.max(told).saturating_add(self.delta);
                Self { state: State::Counting { count, end }, told: Some(told), floor, delta: self.delta }
            }
            (State::Blocked { until }, State::Blocked { until: said }) => blocked(until.max(said)),
            (State::Blocked { until }, _) | (_, State::Blocked { until }) => blocked(until),
            (_, State::Counting { count, end }) => {
                Self { state: State::Counting { count, end }, told: Some(count), floor: count, delta: 0 }
            }
            (_, State::Idle) => Self::default(),
        }
    }
}

/// Names one debt of one process, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker(pub(super) u64, pub(super) u64);

impl std::fmt::Display for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}.{:x}", self.0, self.1)
    }
}

/// What Redis must be told of one identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Debt {
    /// `None`: there is no delta.
    pub(crate) marker: Option<Marker>,
    /// At least so much is counted in this window.
    pub(crate) floor: u64,
    /// And so much comes on top.
    pub(crate) delta: u64,
    pub(crate) left: Millis,
    pub(crate) blocked: bool,
}

/// A debt, and whose it is.
#[derive(Debug)]
pub(crate) struct Debtor {
    pub(crate) policy: PolicyId,
    pub(crate) key: CompactString,
    pub(crate) first_len: u8,
    pub(crate) debt: Debt,
}

/// What Redis has said of one identity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    /// After the check.
    pub(crate) state: State,
    /// What the check has added to it, unless that was counted here already.
    pub(crate) charged: u64,
    pub(crate) refused: bool,
    /// The connection that it came by.
    pub(crate) generation: u64,
    /// [`LocalTable::resets`] when it was asked.
    pub(crate) resets: u64,
}
