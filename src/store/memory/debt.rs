//! What the local table knows of one identity, and what it owes Redis.

use compact_str::CompactString;

use super::shard::Rank;
use super::{Asked, Charged, PolicyId, Share};
use crate::algorithm::{Act, Amount, Kind, Rule, State};
use crate::clock::Millis;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) policy: PolicyId,
    pub(super) key: CompactString,
    pub(super) hash: u64,
    pub(super) first_len: u8,
    pub(super) state: State,
    /// The window for which the amounts stand.
    pub(super) window: Millis,
    pub(super) ledger: Ledger,
    /// What this process holds open, here or in Redis.
    #[expect(clippy::box_collection, reason = "few slots hold anything open, and each pays for the place")]
    pub(super) open: Option<Box<Vec<Open>>>,
    /// Whether Redis has refused in this state.
    pub(super) denied: bool,
    pub(super) rank: Rank,
    /// The end under which the slot stands in `Shard::queue`.
    pub(super) end: Millis,
}

/// A place that is held open until it is settled or lapses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) id: Marker,
    pub(super) amount: u64,
    pub(super) lapses: Millis,
}

/// What Redis has told and must be told of the window that is open. The amounts
/// age with the slot's state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledger {
    /// What was counted as of the last answer of Redis.
    pub(super) told: Option<Amount>,
    /// The connection on which it was told, 0 for none. Redis may have lost
    /// what it told on another one.
    pub(super) told_by: u64,
    /// At least so much is counted: what was told, and charges of unknown
    /// outcome. Telling Redis twice does no harm.
    pub(super) floor: Amount,
    /// Charges that surely never reached Redis. They come on top of the floor,
    /// and must be added once.
    pub(super) delta: Amount,
    /// Names the delta once it has been sent. Nothing is added to it from then
    /// on until Redis has acknowledged it.
    pub(super) sent_as: Option<Marker>,
}

impl Ledger {
    /// Whether Redis has been told of every charge.
    fn is_even(&self) -> bool {
        self.delta.is_zero() && self.floor.is_within(self.told.unwrap_or_default())
    }

    fn charge(&mut self, added: u64, charged: Charged) {
        let added = Amount::of(added);
        match charged {
            Charged::Here => {}
            Charged::Unsent if self.sent_as.is_none() => self.delta = self.delta.plus(added),
            Charged::Unsent | Charged::Unknown => self.floor = self.floor.plus(added),
        }
    }

    /// What was charged here was given back before Redis was told of it. What
    /// has been sent is not taken back.
    fn give_back(&mut self, less: u64) {
        if self.sent_as.is_none() {
            self.delta.current = self.delta.current.saturating_sub(less);
        }
    }

    fn age(&mut self, rule: &Rule, mark: Millis, now: Millis) {
        self.told = self.told.map(|told| rule.age(told, Amount::default(), mark, now).0);
        (self.floor, self.delta) = rule.age(self.floor, self.delta, mark, now);
    }

    fn rescale(&mut self, rule: &Rule, window: Millis) {
        self.told = self.told.map(|told| rule.rescaled(told, window));
        (self.floor, self.delta) = (rule.rescaled(self.floor, window), rule.rescaled(self.delta, window));
    }
}

impl Slot {
    /// Brings the slot to `now`, under a rule that may have changed since.
    /// Answers with the rule that is in force for this replica's share.
    pub(super) fn bring_to(&mut self, rule: &Rule, share: Share, now: Millis) -> Rule {
        self.adopt_window(rule, now);
        let in_force;
        (in_force, self.state) = aged(self.state, &mut self.ledger, rule, share, now);
        if self.state == State::Idle {
            self.forget_window();
        }
        in_force
    }

    /// How long after `now`, to which the slot was brought, a cost is admitted that
    /// is refused now. The limit in force falls with what Redis has told of, so
    /// that it is looked for. `None` for one that this replica never admits.
    pub(super) fn wait(&self, rule: &Rule, share: Share, cost: u64, now: Millis) -> Option<Millis> {
        let admits = |wait: Millis| {
            let then = now.saturating_add(wait);
            let (in_force, state) = aged(self.state, &mut self.ledger.clone(), rule, share, then);
            in_force.used(state, then).saturating_add(cost.max(1)) <= in_force.limit
        };
        let longest = share.of_rule(rule, 0).end(self.state)?.saturating_sub(now);
        let (mut refused, mut admitted) = (0, longest.saturating_add(rule.window));
        if !admits(admitted) {
            return None;
        }
        while admitted - refused > 1 {
            let middle = refused + (admitted - refused) / 2;
            if admits(middle) { admitted = middle } else { refused = middle }
        }
        Some(admitted)
    }

    /// As in Redis, a window that was longer before is cut to the present one,
    /// and the level of a bucket stands for as many tokens as before.
    fn adopt_window(&mut self, rule: &Rule, now: Millis) {
        if self.window == rule.window {
            return;
        }
        if let State::Counting { amount, mark } = &mut self.state {
            *amount = rule.rescaled(*amount, self.window);
            if !matches!(rule.kind, Kind::TokenBucket { .. }) {
                *mark = (*mark).min(now.saturating_add(rule.window));
            }
        }
        self.ledger.rescale(rule, self.window);
        self.window = rule.window;
    }

    /// What an end of the window or a block makes meaningless.
    pub(super) fn forget_window(&mut self) {
        self.ledger = Ledger::default();
        self.denied = false;
    }

    /// What open reservations hold at `now`.
    pub(super) fn open_at(&mut self, now: Millis) -> u64 {
        let Some(open) = &mut self.open else { return 0 };
        open.retain(|open| now < open.lapses);
        let sum = open.iter().fold(0, |sum: u64, open| sum.saturating_add(open.amount));
        if open.is_empty() {
            self.open = None;
        }
        sum
    }

    pub(super) fn reserve(&mut self, open: Open, now: Millis) {
        let held = self.open.get_or_insert_default();
        // Here, for while Redis answers nothing else looks at them.
        held.retain(|held| now < held.lapses);
        held.push(open);
    }

    /// Redis has given back what it had told of.
    pub(super) fn refunded(&mut self, asked: &Asked<'_>) {
        if let Act::Refund { .. } = asked.act {
            let weight = asked.rule.weight(asked.cost);
            let less = |amount: Amount| Amount { current: amount.current.saturating_sub(weight), ..amount };
            self.ledger.told = self.ledger.told.map(less);
            self.ledger.floor = less(self.ledger.floor);
        }
    }

    /// Ends the reservation that is settled.
    pub(super) fn settled(&mut self, asked: &Asked<'_>) {
        if let (Act::Settle, Some((id, _)), Some(open)) = (asked.act, asked.reservation, &mut self.open) {
            open.retain(|open| open.id != id);
        }
    }

    /// When the last reservation lapses.
    pub(super) fn lapses(&self) -> Option<Millis> {
        self.open.as_ref()?.iter().map(|open| open.lapses).max()
    }

    /// What is known after [`bring_to`](Self::bring_to).
    pub(super) fn known(&self) -> Known {
        match self.state {
            State::Idle => Known::default(),
            state => Known { state, ledger: self.ledger },
        }
    }

    /// Remembers for Redis what was charged here, or given back.
    pub(super) fn charged(&mut self, before: Amount, charged: Charged) {
        let after = self.state.amount();
        if after.current < before.current {
            self.ledger.give_back(before.current - after.current);
        } else {
            self.ledger.charge(after.current - before.current, charged);
        }
    }

    /// Whether Redis has not acknowledged a charge or a block of this process.
    pub(super) fn owes(&self, now: Millis) -> bool {
        now < self.end
            && match self.state {
                State::Idle => false,
                State::Counting { .. } => !self.ledger.is_even(),
                State::Blocked { .. } => self.ledger.told_by == 0,
            }
    }

    /// What Redis must be told on a connection, after
    /// [`bring_to`](Self::bring_to).
    pub(super) fn debt(
        &mut self,
        generation: u64,
        now: Millis,
        marker: impl FnOnce() -> Marker,
    ) -> Option<Debt> {
        let ledger = &mut self.ledger;
        let (end, blocked) = match self.state {
            State::Idle => return None,
            State::Counting { mark, .. } => (mark, false),
            State::Blocked { until } => (until, true),
        };
        if ledger.is_even() && ledger.told_by == generation {
            return None;
        }
        if !ledger.delta.is_zero() && ledger.sent_as.is_none() {
            ledger.sent_as = Some(marker());
        }
        let (marker, left) = (ledger.sent_as, end.saturating_sub(now));
        Some(Debt { marker, floor: ledger.floor, delta: ledger.delta, left, blocked })
    }

    pub(super) fn paid(&mut self, marker: Option<Marker>, generation: u64) {
        let ledger = &mut self.ledger;
        if marker.is_some() && ledger.sent_as == marker {
            // From now on it is part of what Redis has counted.
            ledger.floor = ledger.floor.plus(std::mem::take(&mut ledger.delta));
            ledger.sent_as = None;
        }
        ledger.told_by = generation;
    }
}

/// What is left at `now` of a state and of what is known of it, and the rule that
/// is in force then for this replica's share.
fn aged(state: State, ledger: &mut Ledger, rule: &Rule, share: Share, now: Millis) -> (Rule, State) {
    let State::Counting { amount: before, mark } = state else {
        return (share.of_rule(rule, 0), rule.at(state, now));
    };
    let told_before = ledger.told.unwrap_or_default();
    ledger.age(rule, mark, now);
    // What Redis said of a window that is over does not count.
    let told = match (ledger.told, rule.at(state, now)) {
        (Some(amount), State::Counting { mark, .. }) => rule.used(State::Counting { amount, mark }, now),
        _ => 0,
    };
    let in_force = share.of_rule(rule, told);
    if in_force.kind == rule.kind {
        return (in_force, in_force.at(state, now));
    }
    // What Redis has told of leaks as fast as there, and first; what this replica
    // has added leaks with its share.
    let gone = rule.end(State::Counting { amount: told_before, mark }).unwrap_or(mark).min(now);
    let own = Amount::of(before.current.saturating_sub(told_before.current));
    let own = in_force.at(State::Counting { amount: own, mark: gone }, now).amount();
    let amount = ledger.told.unwrap_or_default().plus(own);
    (in_force, rule.at(State::Counting { amount, mark: mark.max(now) }, now))
}

/// What is known of an identity when Redis answers, or then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) state: State,
    pub(super) ledger: Ledger,
}

impl Known {
    /// What is known after Redis has answered, `said` and `self` being of
    /// `now`. Two answers may be mirrored in the other order than Redis gave
    /// them, so within one window the larger count is the later one, and a
    /// running block stands.
    pub(super) fn merge(self, said: &Said, rule: &Rule, now: Millis) -> Self {
        let blocked = |until| Self { state: State::Blocked { until }, ledger: Ledger::default() };
        match (self.state, rule.at(said.state, now)) {
            (State::Counting { mark, .. }, State::Counting { amount, mark: said_mark }) => {
                self.merge_amounts(said, rule, mark, amount, said_mark)
            }
            (State::Blocked { until }, State::Blocked { until: said }) => blocked(until.max(said)),
            (State::Blocked { until }, _) | (_, State::Blocked { until }) => blocked(until),
            (_, state @ State::Counting { amount, .. }) => {
                Self { state, ledger: Ledger { told: Some(amount), floor: amount, ..Ledger::default() } }
            }
            // Asked before this process had charged what Redis is still to be told.
            (State::Counting { .. }, State::Idle) if !self.ledger.is_even() => self,
            (_, State::Idle) => Self::default(),
        }
    }

    fn merge_amounts(
        mut self,
        said: &Said,
        rule: &Rule,
        mut mark: Millis,
        mut amount: Amount,
        mut said_mark: Millis,
    ) -> Self {
        let half = rule.window / 2;
        let ledger = &mut self.ledger;
        match rule.kind {
            // Another window ends about a whole window later.
            Kind::FixedWindow if said_mark >= mark.saturating_add(half) => {
                let state = State::Counting { amount: amount.plus(ledger.delta), mark: said_mark };
                return Self { state, ledger: Ledger { told: Some(amount), floor: amount, ..*ledger } };
            }
            // Near the edge of two sub-windows one side may still be in the first.
            Kind::SlidingWindow if said_mark >= mark.saturating_add(half) => {
                ledger.age(rule, mark, mark);
                mark = said_mark;
            }
            Kind::SlidingWindow if mark >= said_mark.saturating_add(half) => {
                amount = rule.age(amount, Amount::default(), said_mark, said_mark).0;
                said_mark = mark;
            }
            // An older answer that was longer under way leaks later here. What is
            // less than a token is no charge.
            Kind::TokenBucket { .. }
                if said.refused
                    && ledger.is_even()
                    && ledger.floor.current.saturating_sub(amount.current) < rule.window =>
            {
                let state = State::Counting { amount, mark: said_mark };
                return Self { state, ledger: Ledger { told: Some(amount), floor: amount, ..*ledger } };
            }
            _ => {}
        }
        // What Redis has counted now comes on top of a floor that it has not
        // reached. Each end is counted from when an answer came: none is early, so
        // the earliest is nearest to the truth.
        let told = ledger.told.unwrap_or_default();
        let charged = if ledger.floor.current > told.current { said.charged } else { 0 };
        let told = told.max(amount);
        let floor = ledger.floor.plus(Amount::of(charged)).max(amount);
        let mark = match rule.kind {
            Kind::TokenBucket { .. } => mark.max(said_mark),
            Kind::FixedWindow | Kind::SlidingWindow => mark.min(said_mark),
        };
        let state = State::Counting { amount: floor.max(told).plus(ledger.delta), mark };
        Self { state, ledger: Ledger { told: Some(told), floor, ..*ledger } }
    }
}

/// Names one debt or one reservation of one process, for ever.
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
    pub(crate) floor: Amount,
    /// And so much comes on top.
    pub(crate) delta: Amount,
    /// Until the window, the current sub-window or the block ends.
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
    /// Whether a place is now held open.
    pub(crate) reserved: bool,
    /// The connection that it came by.
    pub(crate) generation: u64,
    /// [`LocalTable::resets`](super::LocalTable::resets) when it was asked for.
    pub(crate) resets: u64,
}
