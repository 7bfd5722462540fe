//! One lock's part of the local table: its slots, and which of them goes first.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use compact_str::CompactString;
use hashbrown::HashTable;
use slab::Slab;

use super::debt::{Ledger, Open, Slot};
use super::{Asked, Charged, LocalTable, Share};
use crate::algorithm::{Act, Amount, Kind, Line, State};
use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};

/// How many ended entries an insertion sweeps: more than it adds.
const SWEPT_PER_INSERT: usize = 4;

/// Who goes first when a shard is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Something is left: losing it gives its client some budget back.
    Open,
    /// Used up: losing it gives a whole budget back.
    UsedUp,
    /// Refused or blocked: stays.
    Refused,
}

impl Rank {
    const ALL: [Self; 3] = [Self::Open, Self::UsedUp, Self::Refused];

    pub(super) fn after(outcome: &Outcome) -> Self {
        if outcome.blocked || matches!(outcome.refusal, Some(Refusal::Limit | Refusal::Blocked)) {
            Self::Refused
        } else if outcome.remaining == 0 {
            Self::UsedUp
        } else {
            Self::Open
        }
    }
}

/// What a check makes of one identity.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) before: Amount,
    pub(super) state: State,
    pub(super) rank: Rank,
    pub(super) now: Millis,
    /// When the state is forgotten.
    pub(super) end: Option<Millis>,
    pub(super) open: Option<Open>,
}

impl Change {
    pub(super) fn new(before: State, line: &Line, outcome: &Outcome, now: Millis) -> Self {
        Self {
            before: before.amount(),
            state: line.state,
            rank: Rank::after(outcome),
            now,
            end: line.rule.end(line.state),
            open: None,
        }
    }
}

pub(super) enum Stored<'a> {
    In(&'a mut Slot),
    /// An idle state needs no slot.
    Nothing,
    NoRoom,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) slots: Slab<Slot>,
    /// Positions in `slots`, found by hash.
    index: HashTable<usize>,
    /// Every slot once, in the order in which slots may go.
    queue: BTreeSet<(Rank, Millis, usize)>,
    pub(super) capacity: usize,
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    pub(super) fn position(&self, hash: u64, asked: &Asked<'_>) -> Option<usize> {
        let same = |&position: &usize| {
            let slot = &self.slots[position];
            slot.policy == asked.policy && slot.key == asked.key
        };
        self.index.find(hash, same).copied()
    }

    /// One policy's part in a check: what is known of the identity, or what it
    /// shares with other newcomers, and the limit in force.
    pub(super) fn line(
        &mut self,
        position: Option<usize>,
        shared: Option<State>,
        asked: &Asked<'_>,
        share: Share,
        now: Millis,
    ) -> Line {
        let Asked { ref rule, cost, mut act, .. } = *asked;
        let Some(position) = position else {
            let rule = share.of_rule(rule, 0);
            if shared.is_some() && act == Act::Reserve {
                // There is no room to remember a reservation either.
                act = Act::Charge;
            }
            let state = rule.at(shared.unwrap_or_default(), now);
            return Line { rule, cost, act, state, open: 0 };
        };
        let slot = &mut self.slots[position];
        let rule = slot.bring_to(rule, share, now);
        slot.settled(asked);
        Line { rule, cost, act, state: slot.state, open: slot.open_at(now) }
    }

    /// The outcome with the wait that is true for a replica's share of what Redis
    /// has told of.
    pub(super) fn with_wait(
        &self,
        position: Option<usize>,
        asked: &Asked<'_>,
        share: Share,
        outcome: Outcome,
        now: Millis,
    ) -> Outcome {
        let is_share = share != Share::WHOLE && asked.rule.kind != Kind::FixedWindow;
        match position {
            Some(position) if is_share && outcome.refusal == Some(Refusal::Limit) => {
                let wait = self.slots[position].wait(&asked.rule, share, asked.cost, now);
                Outcome { retry_after_ms: wait.or(outcome.retry_after_ms), ..outcome }
            }
            _ => outcome,
        }
    }

    /// Stores a state after a check. Answers whether there was room for it.
    pub(super) fn keep(
        &mut self,
        place: (Option<usize>, u64),
        asked: &Asked<'_>,
        change: Change,
        charged: Charged,
        table: &LocalTable,
    ) -> bool {
        match self.store(place, asked, change, table) {
            Stored::In(slot) => {
                slot.charged(change.before, charged);
                if let Some(open) = change.open {
                    slot.reserve(open, change.now);
                }
                if charged != Charged::Here {
                    table.remember_debts();
                }
                true
            }
            Stored::Nothing => true,
            Stored::NoRoom => false,
        }
    }

    /// Writes a state into its slot, or into a new one.
    pub(super) fn store(
        &mut self,
        (position, hash): (Option<usize>, u64),
        asked: &Asked<'_>,
        change: Change,
        table: &LocalTable,
    ) -> Stored<'_> {
        let end = change.end.max(change.open.map(|open| open.lapses));
        if let Some(position) = position {
            let slot = &mut self.slots[position];
            if matches!(change.state, State::Blocked { .. }) && slot.state != change.state {
                // Redis is to be told of the block, the counts are over.
                slot.forget_window();
            }
            slot.state = change.state;
            // An ended slot keeps its place and is swept from there.
            let end = end.max(slot.lapses()).unwrap_or(slot.end);
            if (slot.rank, slot.end) != (change.rank, end) {
                self.queue.remove(&(slot.rank, slot.end, position));
                (slot.rank, slot.end) = (change.rank, end);
                self.queue.insert((change.rank, end, position));
            }
            return Stored::In(&mut self.slots[position]);
        }
        let Some(end) = end else {
            return Stored::Nothing;
        };
        self.sweep(SWEPT_PER_INSERT, change.now, table);
        if !self.make_room(table) {
            return Stored::NoRoom;
        }
        let position = self.slots.insert(Slot {
            policy: asked.policy,
            key: CompactString::from(asked.key),
            hash,
            state: change.state,
            first_len: asked.first_len,
            window: asked.rule.window,
            ledger: Ledger::default(),
            open: None,
            denied: false,
            rank: change.rank,
            end,
        });
        let slots = &self.slots;
        self.index.insert_unique(hash, position, |&position| slots[position].hash);
        self.queue.insert((change.rank, end, position));
        table.entries.fetch_add(1, Ordering::Relaxed);
        Stored::In(&mut self.slots[position])
    }

    pub(super) fn forget(&mut self, hash: u64, asked: &Asked<'_>, table: &LocalTable) {
        if let Some(position) = self.position(hash, asked) {
            self.remove(position, table);
        }
    }

    /// Whether a newcomer would find no room.
    pub(super) fn must_overflow(&self, now: Millis) -> bool {
        self.slots.len() >= self.capacity
            && self.queue.first().is_none_or(|&(rank, end, _)| rank == Rank::Refused && now < end)
    }

    fn make_room(&mut self, table: &LocalTable) -> bool {
        if self.slots.len() < self.capacity {
            return true;
        }
        match self.queue.first() {
            Some(&(rank, _, position)) if rank < Rank::Refused => {
                self.remove(position, table);
                true
            }
            _ => false,
        }
    }

    pub(super) fn sweep(&mut self, at_most: usize, now: Millis, table: &LocalTable) {
        let mut left = at_most;
        for rank in Rank::ALL {
            while left > 0
                && let Some(&(_, end, position)) = self.queue.range((rank, 0, 0)..).next()
                && self.slots[position].rank == rank
                && end <= now
            {
                self.remove(position, table);
                left -= 1;
            }
        }
    }

    fn remove(&mut self, position: usize, table: &LocalTable) {
        let slot = self.slots.remove(position);
        self.queue.remove(&(slot.rank, slot.end, position));
        if let Ok(entry) = self.index.find_entry(slot.hash, |&other| other == position) {
            entry.remove();
        }
        table.entries.fetch_sub(1, Ordering::Relaxed);
    }
}
