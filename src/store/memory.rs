//! The local table: counts of this process, bounded, with three uses.
//!
//! It is the memory store; it is the fallback while Redis is gone, warm because
//! the answers of Redis are mirrored into it; and it is the deny cache, which
//! repeats a refusal of Redis until it ends.
//!
//! Bounded and hard to abuse: when a shard is full, the entry that goes is the
//! soonest-ending of those with something left, then of those that are used up.
//! One that was refused or is blocked never goes before its time, or a client
//! could buy a new budget by inventing identities; when there is nothing else,
//! newcomers share one overflow bucket. What has ended is swept by later
//! insertions, a few at a time, so there is no timer and no long pause.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;
use compact_str::CompactString;
use hashbrown::HashTable;
use slab::Slab;

use crate::algorithm::{self, Line, Rule, State};
use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};
use crate::policy::MAX_POLICIES;

/// An entry is about 160 bytes with an address as its key, its places in the index
/// and the queue included; a shard of this size is small enough.
const MIN_SHARD: usize = 1024;
const MAX_SHARDS: usize = 64;

/// How many ended entries an insertion sweeps: more than it adds.
const SWEPT_PER_INSERT: usize = 4;

/// One policy's part in a check on the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The policy's number in its limiter.
    pub(crate) policy: u32,
    pub(crate) key: &'a str,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
}

/// An answer of the table: the numbers and the limit that was in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) limit: u64,
    pub(crate) outcome: Outcome,
}

pub(crate) type Answers = ArrayVec<Answer, MAX_POLICIES>;

/// Which part of a shared limit one replica enforces while it is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) numerator: u32,
    pub(crate) denominator: u32,
}

impl Share {
    pub(crate) const WHOLE: Self = Self { numerator: 1, denominator: 1 };

    /// At least 1 of something, nothing of nothing.
    fn of(self, amount: u64) -> u64 {
        let part = u128::from(amount) * u128::from(self.numerator) / u128::from(self.denominator.max(1));
        // A share is at most 1, so the part is at most the amount.
        u64::try_from(part).unwrap_or(amount).clamp(amount.min(1), amount)
    }

    /// The limit in force for an entry that Redis last said had used `mirrored`,
    /// or that this process started itself.
    fn limit(self, limit: u64, mirrored: Option<u64>) -> u64 {
        let used = mirrored.unwrap_or(0).min(limit);
        used + self.of(limit - used)
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct LocalTable {
    shards: Box<[Mutex<Shard>]>,
    /// Keyed by the process, so that nobody can aim at one shard.
    hasher: RandomState,
    entries: AtomicUsize,
    overflowed: AtomicUsize,
}

impl LocalTable {
    pub(crate) fn new(capacity: usize) -> Self {
        let shards = (capacity / MIN_SHARD).clamp(1, MAX_SHARDS);
        let shard = |index| {
            // The shards' capacities add up to the table's.
            let capacity = capacity / shards + usize::from(index < capacity % shards);
            Mutex::new(Shard { capacity, ..Shard::default() })
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            hasher: RandomState::new(),
            entries: AtomicUsize::new(0),
            overflowed: AtomicUsize::new(0),
        }
    }

    /// Plays one check, atomically over all its keys.
    pub(crate) fn check(&self, asked: &[Asked<'_>], share: Share, now: Millis) -> Answers {
        if let [asked] = asked {
            return Answers::from_iter([self.check_one(asked, share, now)]);
        }
        let mut locked = self.lock_all(asked);
        let mut lines = ArrayVec::<Line, MAX_POLICIES>::new();
        for (asked, place) in asked.iter().zip(&locked.places) {
            let shard = &locked.guards[place.guard];
            lines.push(shard.line(shard.position(place.hash, asked), asked, share, now));
        }
        let mut answers = Answers::new();
        let mut limits =
            lines.iter().map(|line| line.rule.limit).collect::<ArrayVec<u64, MAX_POLICIES>>().into_iter();
        algorithm::step(&mut lines, now, |outcome| {
            answers.push(Answer { limit: limits.next().unwrap_or(0), outcome });
        });
        for (i, asked) in asked.iter().enumerate() {
            let Place { guard, hash } = locked.places[i];
            let change = Change::new(lines[i].state, &answers[i].outcome, now);
            // Looked up again: making room for the one before may have moved it.
            let position = locked.guards[guard].position(hash, asked);
            locked.guards[guard].keep(position, hash, asked, change, self);
        }
        answers
    }

    /// The same for one key, which is found once.
    fn check_one(&self, asked: &Asked<'_>, share: Share, now: Millis) -> Answer {
        let (hash, mut shard) = self.lock(asked);
        let position = shard.position(hash, asked);
        let mut lines = [shard.line(position, asked, share, now)];
        let limit = lines[0].rule.limit;
        // Replaced by the one outcome of the one line.
        let mut outcome = algorithm::peek(&asked.rule, State::Idle, now);
        algorithm::step(&mut lines, now, |only| outcome = only);
        shard.keep(position, hash, asked, Change::new(lines[0].state, &outcome, now), self);
        Answer { limit, outcome }
    }

    /// The numbers of one identity, without a check.
    pub(crate) fn peek(&self, asked: &Asked<'_>, share: Share, now: Millis) -> Answer {
        let (hash, shard) = self.lock(asked);
        let Line { rule, state, .. } = shard.line(shard.position(hash, asked), asked, share, now);
        Answer { limit: rule.limit, outcome: algorithm::peek(&rule, state, now) }
    }

    /// Forgets one identity under one policy.
    pub(crate) fn reset(&self, asked: &Asked<'_>) {
        let (hash, mut shard) = self.lock(asked);
        shard.forget(hash, asked, self);
    }

    /// Takes over what Redis has just answered: the state after the check, and
    /// whether Redis refused.
    pub(crate) fn mirror(&self, asked: &Asked<'_>, state: State, refused: bool, now: Millis) {
        let (hash, mut shard) = self.lock(asked);
        let position = shard.position(hash, asked);
        let known = position.map_or(State::Idle, |position| shard.slots[position].state.at(now));
        let state = merge(known, state.at(now), asked.rule.window);
        let rank =
            if refused { Rank::Refused } else { Rank::after(&algorithm::peek(&asked.rule, state, now)) };
        let Stored::In(slot) = shard.store(position, hash, asked, Change { state, rank, now }, self) else {
            return;
        };
        slot.mirrored = match state {
            State::Counting { count, .. } => Some(count),
            State::Idle | State::Blocked { .. } => None,
        };
        // A policy that blocks must see each refusal that may start its block.
        slot.denied = refused && (asked.rule.block == 0 || matches!(state, State::Blocked { .. }));
    }

    /// The refusal that Redis gave this identity, while it lasts and if it
    /// refuses this cost as well.
    pub(crate) fn denial(&self, asked: &Asked<'_>, now: Millis) -> Option<Outcome> {
        let (hash, shard) = self.lock(asked);
        let slot = &shard.slots[shard.position(hash, asked)?];
        if !slot.denied {
            return None;
        }
        let state = slot.state.at(now);
        drop(shard);
        let mut lines = [Line { rule: asked.rule, cost: asked.cost, state }];
        let mut denial = None;
        // On a copy: what is admitted here is not charged here.
        algorithm::step(&mut lines, now, |outcome| denial = Some(outcome));
        denial.filter(|outcome| matches!(outcome.refusal, Some(Refusal::Limit | Refusal::Blocked)))
    }

    /// How many identities are held, counting some that have ended.
    pub(crate) fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// How many checks have met a table full of refused identities.
    pub(crate) fn overflowed(&self) -> usize {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Removes all that has ended, shard by shard.
    pub(crate) fn sweep(&self, now: Millis) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).sweep(usize::MAX, now, self);
        }
    }

    fn hash(&self, asked: &Asked<'_>) -> (usize, u64) {
        let hash = self.hasher.hash_one((asked.policy, asked.key));
        // The table inside a shard uses the hash's other end.
        let shard = usize::try_from(hash >> 40).unwrap_or(0) % self.shards.len();
        (shard, hash)
    }

    fn lock(&self, asked: &Asked<'_>) -> (u64, MutexGuard<'_, Shard>) {
        let (shard, hash) = self.hash(asked);
        (hash, self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the shards of a check in their order, each once, so that two
    /// checks cannot wait for each other.
    fn lock_all(&self, asked: &[Asked<'_>]) -> Locked<'_> {
        let hashes: ArrayVec<_, MAX_POLICIES> = asked.iter().map(|asked| self.hash(asked)).collect();
        let mut order: ArrayVec<usize, MAX_POLICIES> = hashes.iter().map(|&(shard, _)| shard).collect();
        order.sort_unstable();
        let mut guards = ArrayVec::new();
        let mut guarded = ArrayVec::<usize, MAX_POLICIES>::new();
        for shard in order {
            if guarded.last() != Some(&shard) {
                guarded.push(shard);
                guards.push(self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
        let guard_of = |shard| guarded.iter().position(|&other| other == shard).unwrap_or(0);
        let places = hashes.iter().map(|&(shard, hash)| Place { guard: guard_of(shard), hash }).collect();
        Locked { guards, places }
    }
}

struct Locked<'a> {
    guards: ArrayVec<MutexGuard<'a, Shard>, MAX_POLICIES>,
    /// One for each policy asked.
    places: ArrayVec<Place, MAX_POLICIES>,
}

#[derive(Clone, Copy)]
struct Place {
    guard: usize,
    hash: u64,
}

/// Who goes first when a shard is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Something is left: losing it gives its client some budget back.
    Open,
    /// Used up: losing it gives a whole budget back.
    UsedUp,
    /// Refused or blocked: stays.
    Refused,
}

impl Rank {
    const ALL: [Self; 3] = [Self::Open, Self::UsedUp, Self::Refused];

    fn after(outcome: &Outcome) -> Self {
        if outcome.blocked || matches!(outcome.refusal, Some(Refusal::Limit | Refusal::Blocked)) {
            Self::Refused
        } else if outcome.remaining == 0 {
            Self::UsedUp
        } else {
            Self::Open
        }
    }
}

#[derive(Clone, Copy)]
struct Change {
    state: State,
    rank: Rank,
    now: Millis,
}

impl Change {
    fn new(state: State, outcome: &Outcome, now: Millis) -> Self {
        Self { state, rank: Rank::after(outcome), now }
    }
}

#[derive(Debug)]
struct Slot {
    policy: u32,
    key: CompactString,
    hash: u64,
    state: State,
    /// The count as of the last answer of Redis, in the window that is open.
    mirrored: Option<u64>,
    /// Whether Redis has refused in this state.
    denied: bool,
    rank: Rank,
    /// The end under which the slot stands in `Shard::queue`.
    end: Millis,
}

enum Stored<'a> {
    In(&'a mut Slot),
    /// An idle state needs no slot.
    Nothing,
    NoRoom,
}

#[derive(Debug, Default)]
struct Shard {
    slots: Slab<Slot>,
    /// Positions in `slots`, found by hash.
    index: HashTable<usize>,
    /// Every slot once, in the order in which slots may go.
    queue: BTreeSet<(Rank, Millis, usize)>,
    /// What newcomers share, by policy, while all slots are refused ones.
    overflow: HashMap<u32, State>,
    capacity: usize,
}

impl Shard {
    fn position(&self, hash: u64, asked: &Asked<'_>) -> Option<usize> {
        let same = |&position: &usize| {
            let slot = &self.slots[position];
            slot.policy == asked.policy && slot.key == asked.key
        };
        self.index.find(hash, same).copied()
    }

    /// One policy's part in a check: what is known, and the limit in force.
    fn line(&self, position: Option<usize>, asked: &Asked<'_>, share: Share, now: Millis) -> Line {
        let (state, mirrored) = match position {
            Some(position) => (self.slots[position].state.at(now), self.slots[position].mirrored),
            None if self.must_overflow(now) => {
                (self.overflow.get(&asked.policy).copied().unwrap_or_default().at(now), None)
            }
            None => (State::Idle, None),
        };
        // What Redis said of a window that is over does not count.
        let mirrored = mirrored.filter(|_| state != State::Idle);
        let rule = Rule { limit: share.limit(asked.rule.limit, mirrored), ..asked.rule };
        Line { rule, cost: asked.cost, state }
    }

    /// Stores a state after a check; with no room, in what newcomers share.
    fn keep(
        &mut self,
        position: Option<usize>,
        hash: u64,
        asked: &Asked<'_>,
        change: Change,
        table: &LocalTable,
    ) {
        if let Stored::NoRoom = self.store(position, hash, asked, change, table) {
            self.overflow.insert(asked.policy, change.state);
            table.overflowed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a state into its slot, or into a new one.
    fn store(
        &mut self,
        position: Option<usize>,
        hash: u64,
        asked: &Asked<'_>,
        change: Change,
        table: &LocalTable,
    ) -> Stored<'_> {
        let end = change.state.end();
        if let Some(position) = position {
            let slot = &mut self.slots[position];
            if slot.state.at(change.now) == State::Idle {
                // Another window: what Redis said of the last one is over.
                slot.mirrored = None;
                slot.denied = false;
            }
            slot.state = change.state;
            // An ended slot keeps its place and is swept from there.
            let end = end.unwrap_or(slot.end);
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
            mirrored: None,
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

    fn forget(&mut self, hash: u64, asked: &Asked<'_>, table: &LocalTable) {
        if let Some(position) = self.position(hash, asked) {
            self.remove(position, table);
        }
    }

    /// Whether a newcomer would find no room.
    fn must_overflow(&self, now: Millis) -> bool {
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

    fn sweep(&mut self, at_most: usize, now: Millis, table: &LocalTable) {
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
        self.overflow.retain(|_, state| state.at(now) != State::Idle);
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

/// What is true after Redis has answered, given what was known. Two answers may
/// be mirrored in the other order than Redis gave them, so within one window
/// the larger count is the later one, and a running block stands.
fn merge(known: State, said: State, window: Millis) -> State {
    match (known, said) {
        (State::Counting { count, end }, State::Counting { count: said_count, end: said_end })
            // Another window would end about a whole window later.
            if said_end < end.saturating_add(window / 2) =>
        {
            State::Counting { count: count.max(said_count), end: said_end.max(end) }
        }
        (State::Blocked { until }, State::Blocked { until: said_until }) => {
            State::Blocked { until: until.max(said_until) }
        }
        (State::Blocked { .. }, _) => known,
        _ => said,
    }
}

#[cfg(test)]
mod tests;
