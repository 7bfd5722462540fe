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

mod debt;
mod shard;
mod share;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;

pub(crate) use self::debt::{Debt, Debtor, Marker, Said};
use self::debt::{Known, Ledger, Open, Slot};
use self::shard::{Change, Rank, Shard, Stored};
pub(crate) use self::share::Share;
use crate::algorithm::{self, Act, Kind, Line, Rule, State};
use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};
use crate::policy::MAX_POLICIES;

/// An entry is about 260 bytes with an address as its key, its places in the index
/// and the queue included; a shard of this size is small enough.
const MIN_SHARD: usize = 1024;
const MAX_SHARDS: usize = 64;

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
    pub(crate) act: Act,
    /// The reservation that is made or ended, and for how long it is held.
    pub(crate) reservation: Option<(Marker, Millis)>,
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

/// The table.
#[derive(Debug)]
pub(crate) struct LocalTable {
    shards: Box<[Mutex<Shard>]>,
    /// What newcomers share, by policy, while their shard has only refused
    /// identities. Locked after a shard.
    overflow: Mutex<HashMap<PolicyId, Shared>>,
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
            Mutex::new(Shard::new(capacity))
        };
        let hasher = RandomState::new();
        Self {
            shards: (0..shards).map(shard).collect(),
            overflow: Mutex::default(),
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
        let mut overflow = None;
        for (asked, place) in asked.iter().zip(&locked.places) {
            let shard = &mut locked.guards[place.guard];
            let position = shard.position(place.hash, asked);
            let shared = self.shared(&mut overflow, shard, position, asked.policy, now);
            lines.push(shard.line(position, shared, asked, share, now));
        }
        let before = lines.clone();
        let mut outcomes = ArrayVec::<Outcome, MAX_POLICIES>::new();
        algorithm::step(&mut lines, now, |outcome| outcomes.push(outcome));
        let mut answers = Answers::new();
        for (i, asked) in asked.iter().enumerate() {
            let Place { guard, hash } = locked.places[i];
            let shard = &mut locked.guards[guard];
            // Looked up again: making room for the one before may have moved it.
            let position = shard.position(hash, asked);
            let outcome = shard.with_wait(position, asked, share, outcomes[i], now);
            answers.push(Answer::new(asked, lines[i].rule.limit, outcome));
            let played = Played { before: &before[i], after: &lines[i], outcome: &outcomes[i], now };
            self.write(&mut overflow, shard, (position, hash), asked, &played, charged);
        }
        answers
    }

    /// The same for one key, which is found once.
    fn check_one(&self, asked: &Asked<'_>, share: Share, charged: Charged, now: Millis) -> Answer {
        let (hash, mut shard) = self.lock(asked);
        let position = shard.position(hash, asked);
        let mut overflow = None;
        let shared = self.shared(&mut overflow, &shard, position, asked.policy, now);
        let before = shard.line(position, shared, asked, share, now);
        let mut lines = [before];
        // Replaced by the one outcome of the one line.
        let mut outcome = algorithm::peek(&asked.rule, State::Idle, 0, now);
        algorithm::step(&mut lines, now, |only| outcome = only);
        let outcome = shard.with_wait(position, asked, share, outcome, now);
        let played = Played { before: &before, after: &lines[0], outcome: &outcome, now };
        self.write(&mut overflow, &mut shard, (position, hash), asked, &played, charged);
        Answer::new(asked, lines[0].rule.limit, outcome)
    }

    /// Stores what a check has made of one identity; what there is no room for
    /// goes to the newcomers' bucket.
    fn write<'a>(
        &'a self,
        overflow: &mut Option<Overflow<'a>>,
        shard: &mut Shard,
        place: (Option<usize>, u64),
        asked: &Asked<'_>,
        played: &Played<'_>,
        charged: Charged,
    ) {
        let &Played { before, after, outcome, now } = played;
        let mut change = Change::new(before.state, after, outcome, now);
        if let (Act::Reserve, Some((id, time))) = (after.act, asked.reservation)
            && after.open > before.open
        {
            change.open = Some(Open { id, amount: asked.cost, lapses: now.saturating_add(time) });
        }
        if !shard.keep(place, asked, change, charged, self) {
            self.share_out(overflow, asked.policy, change);
        }
    }

    /// What a newcomer shares with others, if there is no room for it. Keeps the
    /// lock, for it is written after the check.
    fn shared<'a>(
        &'a self,
        overflow: &mut Option<Overflow<'a>>,
        shard: &Shard,
        position: Option<usize>,
        policy: PolicyId,
        now: Millis,
    ) -> Option<State> {
        if position.is_some() || !shard.must_overflow(now) {
            return None;
        }
        let overflow = overflow.get_or_insert_with(|| self.lock_overflow());
        Some(overflow.get(&policy).map_or(State::Idle, |shared| shared.state))
    }

    fn share_out<'a>(&'a self, overflow: &mut Option<Overflow<'a>>, policy: PolicyId, change: Change) {
        let overflow = overflow.get_or_insert_with(|| self.lock_overflow());
        overflow.retain(|_, shared| change.now < shared.end);
        if let Some(end) = change.end {
            overflow.insert(policy, Shared { state: change.state, end });
        }
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    fn lock_overflow(&self) -> Overflow<'_> {
        self.overflow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of one identity, without a check.
    pub(crate) fn peek(&self, asked: &Asked<'_>, share: Share, now: Millis) -> Answer {
        let (hash, mut shard) = self.lock(asked);
        let position = shard.position(hash, asked);
        let shared = self.shared(&mut None, &shard, position, asked.policy, now);
        let Line { rule, state, open, .. } = shard.line(position, shared, asked, share, now);
        Answer { limit: rule.limit, outcome: algorithm::peek(&rule, state, open, now) }
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
    pub(crate) fn mirror(&self, asked: &Asked<'_>, said: &Said, now: Millis) {
        let (hash, mut shard) = self.lock(asked);
        if self.resets() != said.resets {
            return;
        }
        let rule = &asked.rule;
        let position = shard.position(hash, asked);
        let known = position.map_or_else(Known::default, |position| {
            let slot = &mut shard.slots[position];
            slot.bring_to(rule, Share::WHOLE, now);
            slot.settled(asked);
            slot.refunded(asked);
            slot.known()
        });
        let merged = known.merge(said, rule, now);
        let (state, end) = (merged.state, rule.end(merged.state));
        // A client was told the wait of what Redis counts. Where more is known here,
        // the wait is longer, unless it is for the end of a window.
        let is_told =
            rule.kind == Kind::FixedWindow || state.amount().is_within(rule.at(said.state, now).amount());
        let rank =
            if said.refused { Rank::Refused } else { Rank::after(&algorithm::peek(rule, state, 0, now)) };
        // Held here too: it counts where this process is left alone with it.
        let open = asked.reservation.filter(|_| said.reserved);
        let open = open.map(|(id, time)| Open { id, amount: asked.cost, lapses: now.saturating_add(time) });
        let change = Change { before: state.amount(), state, rank, now, end, open };
        let Stored::In(slot) = shard.store((position, hash), asked, change, self) else {
            return;
        };
        slot.ledger = Ledger { told_by: said.generation, ..merged.ledger };
        if let Some(open) = open {
            slot.reserve(open, now);
        }
        // A policy that blocks must see each refusal that may start its block.
        slot.denied = said.refused && is_told && (rule.block == 0 || matches!(state, State::Blocked { .. }));
    }

    /// What must be sent in front of an identity's next check on a connection,
    /// or in a batch: it stays the same until [`paid`](Self::paid) tells that
    /// it has arrived, so sending it again adds nothing.
    pub(crate) fn owed(&self, asked: &Asked<'_>, generation: u64, now: Millis) -> Option<Debt> {
        let (hash, mut shard) = self.lock(asked);
        let position = shard.position(hash, asked)?;
        let slot = &mut shard.slots[position];
        slot.bring_to(&asked.rule, Share::WHOLE, now);
        slot.debt(generation, now, || self.marker())
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
        rule: impl Fn(PolicyId) -> Option<Rule>,
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
                // Nothing for a policy that nobody has any more.
                let Some(rule) = rule(slot.policy) else { continue };
                slot.bring_to(&rule, Share::WHOLE, now);
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

    /// A name that no other debt or reservation of any process has.
    pub(crate) fn marker(&self) -> Marker {
        Marker(self.replica, self.markers.fetch_add(1, Ordering::Relaxed))
    }

    /// The refusal that Redis gave this identity, while it lasts and if it
    /// refuses this cost as well.
    pub(crate) fn denial(&self, asked: &Asked<'_>, now: Millis) -> Option<Outcome> {
        let (hash, mut shard) = self.lock(asked);
        let position = shard.position(hash, asked)?;
        let slot = &shard.slots[position];
        // What was refused under another window, Redis may now admit sooner.
        if !slot.denied || !asked.act.asks() || slot.window != asked.rule.window {
            return None;
        }
        let line = shard.line(Some(position), None, asked, Share::WHOLE, now);
        drop(shard);
        let mut denial = None;
        // On a copy: what is admitted here is not charged here.
        algorithm::step(&mut [line], now, |outcome| denial = Some(outcome));
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

type Overflow<'a> = MutexGuard<'a, HashMap<PolicyId, Shared>>;

/// One line of a check that was played.
struct Played<'a> {
    before: &'a Line,
    after: &'a Line,
    outcome: &'a Outcome,
    now: Millis,
}

/// What newcomers share, and when it is forgotten.
#[derive(Debug)]
struct Shared {
    state: State,
    end: Millis,
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

#[cfg(test)]
mod tests;
