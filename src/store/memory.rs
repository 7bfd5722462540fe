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
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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

/// How many slots are looked at for debts under one lock.
const STRETCH: usize = 256;

/// Tells the counters of policies apart, whoever has the policy.
pub(crate) type PolicyId = u64;

/// One policy's part in a check on the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The policy's number, the same for ever.
    pub(crate) policy: PolicyId,
    pub(crate) key: &'a str,
    /// The length of the key's first part.
    pub(crate) first_len: u8,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
}

/// What becomes of a charge that this process admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charged {
    /// It is counted here and nowhere else.
    Here,
    /// It is counted in Redis, which has surely not been told.
    Unsent,
    /// It is counted in Redis, which may have been told.
    Unknown,
}

/// An answer of the table: the numbers and the limit that was in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) limit: u64,
    pub(crate) outcome: Outcome,
}

impl Answer {
    /// A cost that fits the policy's limit but not this replica's share of it is
    /// refused for now, not for ever: Redis would admit it.
    fn new(asked: &Asked<'_>, limit: u64, mut outcome: Outcome) -> Self {
        if outcome.refusal == Some(Refusal::TooLarge) && asked.cost <= asked.rule.limit {
            let wait = if outcome.reset_after_ms > 0 { outcome.reset_after_ms } else { asked.rule.window };
            outcome.refusal = Some(Refusal::Limit);
            outcome.retry_after_ms = Some(wait);
        }
        Self { limit, outcome }
    }
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
    /// What this process calls itself in its markers.
    replica: u64,
    markers: AtomicU64,
    new_debts: AtomicBool,
    /// How often an identity was reset: an answer that was asked for before
    /// must not bring back what was forgotten since.
    resets: AtomicU64,
}

impl LocalTable {
    pub(crate) fn new(capacity: usize) -> Self {
        let shards = (capacity / MIN_SHARD).clamp(1, MAX_SHARDS);
        let shard = |index| {
            // The shards' capacities add up to the table's.
            let capacity = capacity / shards + usize::from(index < capacity % shards);
            Mutex::new(Shard { capacity, ..Shard::default() })
        };
        let hasher = RandomState::new();
        Self {
            shards: (0..shards).map(shard).collect(),
            // As random as the hasher's own keys.
            replica: hasher.hash_one("replica"),
            hasher,
            entries: AtomicUsize::new(0),
            overflowed: AtomicUsize::new(0),
            markers: AtomicU64::new(0),
            new_debts: AtomicBool::new(false),
            resets: AtomicU64::new(0),
        }
    }

    /// Plays one check, atomically over all its keys.
    pub(crate) fn check(&self, asked: &[Asked<'_>], share: Share, charged: Charged, now: Millis) -> Answers {
        if let [asked] = asked {
            return Answers::from_iter([self.check_one(asked, share, charged, now)]);
        }
        let mut locked = self.lock_all(asked);
        let mut lines = ArrayVec::<Line, MAX_POLICIES>::new();
        for (asked, place) in asked.iter().zip(&locked.places) {
            let shard = &locked.guards[place.guard];
            lines.push(shard.line(shard.position(place.hash, asked), asked, share, now));
        }
        let before: ArrayVec<State, MAX_POLICIES> = lines.iter().map(|line| line.state).collect();
        let mut outcomes = ArrayVec::<Outcome, MAX_POLICIES>::new();
        algorithm::step(&mut lines, now, |outcome| outcomes.push(outcome));
        let mut answers = Answers::new();
        for (i, asked) in asked.iter().enumerate() {
            let Place { guard, hash } = locked.places[i];
            let change = Change::new(before[i], lines[i].state, &outcomes[i], now);
            answers.push(Answer::new(asked, lines[i].rule.limit, outcomes[i]));
            // Looked up again: making room for the one before may have moved it.
            let position = locked.guards[guard].position(hash, asked);
            locked.guards[guard].keep(position, hash, asked, change, charged, self);
        }
        answers
    }

    /// The same for one key, which is found once.
    fn check_one(&self, asked: &Asked<'_>, share: Share, charged: Charged, now: Millis) -> Answer {
        let (hash, mut shard) = self.lock(asked);
        let position = shard.position(hash, asked);
        let mut lines = [shard.line(position, asked, share, now)];
        let (before, limit) = (lines[0].state, lines[0].rule.limit);
        // Replaced by the one outcome of the one line.
        let mut outcome = algorithm::peek(&asked.rule, State::Idle, now);
        algorithm::step(&mut lines, now, |only| outcome = only);
        let change = Change::new(before, lines[0].state, &outcome, now);
        shard.keep(position, hash, asked, change, charged, self);
        Answer::new(asked, limit, outcome)
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
        self.resets.fetch_add(1, Ordering::Relaxed);
        shard.forget(hash, asked, self);
    }

    /// How often an identity was reset, to be read before Redis is asked.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    /// Takes over what Redis has just answered on its connection of that
    /// number: the state after the check, and whether Redis refused.
    pub(crate) fn mirror(&self, asked: &Asked<'_>, said: Said, now: Millis) {
        let (hash, mut shard) = self.lock(asked);
        if self.resets() != said.resets {
            return;
        }
        let position = shard.position(hash, asked);
        let known = position.map_or_else(Known::default, |position| shard.slots[position].known(now));
        let merged = known.merge(&said, asked.rule.window, now);
        let state = merged.state;
        let rank =
            if said.refused { Rank::Refused } else { Rank::after(&algorithm::peek(&asked.rule, state, now)) };
        let change = Change { state, rank, now, added: 0 };
        let Stored::In(slot) = shard.store(position, hash, asked, change, self) else {
            return;
        };
        (slot.told, slot.floor) = (merged.told, merged.floor);
        slot.told_by = said.generation;
        // A policy that blocks must see each refusal that may start its block.
        slot.denied = said.refused && (asked.rule.block == 0 || matches!(state, State::Blocked { .. }));
    }

    /// What must be sent in front of an identity's next check on a connection,
    /// or in a batch: it stays the same until [`paid`](Self::paid) tells that
    /// it has arrived, so sending it again adds nothing.
    pub(crate) fn owed(&self, asked: &Asked<'_>, generation: u64, now: Millis) -> Option<Debt> {
        let (hash, mut shard) = self.lock(asked);
        let position = shard.position(hash, asked)?;
        shard.slots[position].debt(generation, now, || self.marker())
    }

    /// Redis has acknowledged a debt.
    pub(crate) fn paid(&self, asked: &Asked<'_>, marker: Option<Marker>, generation: u64) {
        let (hash, mut shard) = self.lock(asked);
        if let Some(position) = shard.position(hash, asked) {
            shard.slots[position].paid(marker, generation);
        }
    }

    /// Whether anything was charged here for Redis since this was last asked.
    pub(crate) fn has_new_debts(&self) -> bool {
        self.new_debts.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn remember_debts(&self) {
        self.new_debts.store(true, Ordering::Relaxed);
    }

    /// The next debts from a place in the table on, at most `at_most`, and the
    /// place after them; `None` when the table is through. Holds each lock for
    /// a short stretch only.
    pub(crate) fn debts(
        &self,
        (mut shard_index, mut slot_index): (usize, usize),
        at_most: usize,
        generation: u64,
        now: Millis,
    ) -> (Vec<Debtor>, Option<(usize, usize)>) {
        let mut debtors = Vec::new();
        while let Some(shard) = self.shards.get(shard_index) {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let stretch = slot_index..shard.slots.capacity().min(slot_index + STRETCH);
            for i in stretch {
                if debtors.len() >= at_most {
                    return (debtors, Some((shard_index, i)));
                }
                let Some(slot) = shard.slots.get_mut(i) else { continue };
                if let Some(debt) = slot.debt(generation, now, || self.marker()) {
                    let Slot { policy, ref key, first_len, .. } = *slot;
                    debtors.push(Debtor { policy, key: key.clone(), first_len, debt });
                }
            }
            slot_index += STRETCH;
            if slot_index >= shard.slots.capacity() {
                (shard_index, slot_index) = (shard_index + 1, 0);
            }
        }
        (debtors, None)
    }

    /// Whether anything was charged here that Redis has not acknowledged.
    pub(crate) fn owes(&self, now: Millis) -> bool {
        self.shards.iter().any(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.slots.iter().any(|(_, slot)| slot.owes(now))
        })
    }

    fn marker(&self) -> Marker {
        Marker(self.replica, self.markers.fetch_add(1, Ordering::Relaxed))
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
    /// By how much the count has grown.
    added: u64,
}

impl Change {
    fn new(before: State, state: State, outcome: &Outcome, now: Millis) -> Self {
        let added = match (before, state) {
            (State::Counting { count: before, .. }, State::Counting { count, .. }) => count - before,
            (State::Idle, State::Counting { count, .. }) => count,
            _ => 0,
        };
        Self { state, rank: Rank::after(outcome), now, added }
    }
}

#[derive(Debug)]
struct Slot {
    policy: PolicyId,
    key: CompactString,
    hash: u64,
    state: State,
    first_len: u8,
    /// The count as of the last answer of Redis, in the window that is open.
    told: Option<u64>,
    /// The connection on which it was told, 0 for none. Redis may have lost
    /// what it told on another one.
    told_by: u64,
    /// At least so much is counted in this window: what was told, and charges
    /// of unknown outcome. Telling Redis twice does no harm.
    floor: u64,
    /// Charges that surely never reached Redis. They come on top of the floor,
    /// and must be added once.
    delta: u64,
    /// Names the delta once it has been sent. It is not changed from then on
    /// until Redis has acknowledged it.
    sent_as: Option<Marker>,
    /// Whether Redis has refused in this state.
    denied: bool,
    rank: Rank,
    /// The end under which the slot stands in `Shard::queue`.
    end: Millis,
}

impl Slot {
    /// What an end of the window or a block makes meaningless.
    fn forget_window(&mut self) {
        self.told = None;
        self.told_by = 0;
        (self.floor, self.delta, self.sent_as) = (0, 0, None);
    }

    fn known(&self, now: Millis) -> Known {
        let state = self.state.at(now);
        match state {
            State::Idle => Known::default(),
            _ => Known { state, told: self.told, floor: self.floor, delta: self.delta },
        }
    }

    /// Remembers for Redis what was charged here.
    fn charged(&mut self, added: u64, charged: Charged) {
        match charged {
            Charged::Here => {}
            Charged::Unsent if self.sent_as.is_none() => self.delta += added,
            Charged::Unsent | Charged::Unknown => self.floor += added,
        }
    }

    /// Whether Redis has not acknowledged a charge or a block of this process.
    fn owes(&self, now: Millis) -> bool {
        let is_even = self.delta == 0 && self.floor <= self.told.unwrap_or(0);
        match self.state.at(now) {
            State::Idle => false,
            State::Counting { .. } => !is_even,
            State::Blocked { .. } => self.told_by == 0,
        }
    }

    fn debt(&mut self, generation: u64, now: Millis, marker: impl FnOnce() -> Marker) -> Option<Debt> {
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

    fn paid(&mut self, marker: Option<Marker>, generation: u64) {
        if marker.is_some() && self.sent_as == marker {
            // From now on it is part of what Redis has counted.
            self.floor += std::mem::take(&mut self.delta);
            self.sent_as = None;
        }
        self.told_by = generation;
    }
}

/// Names one debt of one process, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker(u64, u64);

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
    overflow: HashMap<PolicyId, State>,
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
        let (state, told) = match position {
            Some(position) => (self.slots[position].state.at(now), self.slots[position].told),
            None if self.must_overflow(now) => {
                (self.overflow.get(&asked.policy).copied().unwrap_or_default().at(now), None)
            }
            None => (State::Idle, None),
        };
        // As in Redis, a window that a policy had before it was made shorter is cut to the present one.
        let state = match state {
            State::Counting { count, end } => {
                State::Counting { count, end: end.min(now.saturating_add(asked.rule.window)) }
            }
            other => other,
        };
        // What Redis said of a window that is over does not count.
        let told = told.filter(|_| state != State::Idle);
        let rule = Rule { limit: share.limit(asked.rule.limit, told), ..asked.rule };
        Line { rule, cost: asked.cost, state }
    }

    /// Stores a state after a check; with no room, in what newcomers share.
    fn keep(
        &mut self,
        position: Option<usize>,
        hash: u64,
        asked: &Asked<'_>,
        change: Change,
        charged: Charged,
        table: &LocalTable,
    ) {
        match self.store(position, hash, asked, change, table) {
            Stored::In(slot) => {
                slot.charged(change.added, charged);
                if charged != Charged::Here {
                    table.remember_debts();
                }
            }
            Stored::Nothing => {}
            Stored::NoRoom => {
                self.overflow.insert(asked.policy, change.state);
                table.overflowed.fetch_add(1, Ordering::Relaxed);
            }
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
                slot.forget_window();
                slot.denied = false;
            } else if matches!(change.state, State::Blocked { .. }) && slot.state != change.state {
                // Redis is to be told of the block, the counts are over.
                slot.forget_window();
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
            first_len: asked.first_len,
            told: None,
            told_by: 0,
            floor: 0,
            delta: 0,
            sent_as: None,
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

/// What is known of an identity when Redis answers, or then.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    state: State,
    told: Option<u64>,
    floor: u64,
    delta: u64,
}

impl Known {
    /// What is known after Redis has answered. Two answers may be mirrored in
    /// the other order than Redis gave them, so within one window the larger
    /// count is the later one, and a running block stands.
    fn merge(self, said: &Said, window: Millis, now: Millis) -> Self {
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

#[cfg(test)]
mod tests;
