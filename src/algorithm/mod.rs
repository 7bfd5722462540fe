//! The arithmetic of a check: pure, with time as an argument, in integers.
//!
//! [`step`] plays one check on what a store remembers. The memory store calls
//! it under its locks. Redis runs the same rules in Lua and answers with the
//! state *before* the check; `step` then computes what to tell the client, so
//! there is one definition of the answer.

mod fixed_window;
mod sliding_window;
mod token_bucket;

use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};
use crate::policy::{Algorithm, MAX_LIMIT, Policy};

/// A policy as the arithmetic sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rule {
    pub(crate) kind: Kind,
    /// The most at once: the limit of a window, the burst of a bucket. 0
    /// refuses everything.
    pub(crate) limit: u64,
    /// At least 1.
    pub(crate) window: Millis,
    /// 0: no block.
    pub(crate) block: Millis,
    /// Whether a refusal refuses the request.
    pub(crate) enforced: bool,
    /// Blocks that end before this moment were started by a stricter rule, which
    /// this one has replaced: they are over. 0: none is.
    pub(crate) pardon: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    FixedWindow,
    SlidingWindow,
    /// Tokens that come back in each window, at least 1 unless the limit is 0.
    TokenBucket {
        refill: u64,
    },
}

/// How much is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Of a window its count; of a bucket its level, in 1/window of a token.
    pub(crate) current: u64,
    /// The count of the sub-window before, of a sliding window only.
    pub(crate) previous: u64,
}

impl Amount {
    pub(crate) fn of(current: u64) -> Self {
        Self { current, previous: 0 }
    }

    pub(crate) fn max(self, other: Self) -> Self {
        Self { current: self.current.max(other.current), previous: self.previous.max(other.previous) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            current: self.current.saturating_add(other.current),
            previous: self.previous.saturating_add(other.previous),
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// Whether none of its parts is more.
    pub(crate) fn is_within(self, other: Self) -> bool {
        self.max(other) == other
    }
}

/// What a store remembers of one identity under one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing, or what has ended.
    #[default]
    Idle,
    /// `mark` is the end of a window, for a sliding one of its current
    /// sub-window; for a bucket the moment at which it had this level.
    Counting { amount: Amount, mark: Millis },
    /// Refused until then, whatever the count was.
    Blocked { until: Millis },
}

impl State {
    pub(crate) fn amount(self) -> Amount {
        match self {
            Self::Counting { amount, .. } => amount,
            Self::Idle | Self::Blocked { .. } => Amount::default(),
        }
    }

    /// Whether forgetting it changes nothing.
    pub(crate) fn is_nothing(self, kind: Kind) -> bool {
        match self {
            Self::Idle => true,
            // The end of a window counts, even of an empty one.
            Self::Counting { amount, .. } => kind != Kind::FixedWindow && amount.is_zero(),
            Self::Blocked { .. } => false,
        }
    }
}

impl Rule {
    /// The rule of a policy that has been checked.
    pub(crate) fn of(policy: &Policy) -> Self {
        let limit = policy.rate().limit();
        let (kind, limit) = match policy.algorithm() {
            Algorithm::FixedWindow => (Kind::FixedWindow, limit),
            Algorithm::SlidingWindow => (Kind::SlidingWindow, limit),
            // What never comes back refuses everything, as a limit of 0 does.
            Algorithm::TokenBucket if limit == 0 => (Kind::TokenBucket { refill: 0 }, 0),
            Algorithm::TokenBucket => {
                (Kind::TokenBucket { refill: limit }, policy.max_burst().unwrap_or(limit))
            }
        };
        let window = policy.rate().window_ms();
        Self { kind, limit, window, block: policy.block_ms(), enforced: !policy.is_shadow(), pardon: 0 }
    }

    /// The same rule with another limit; the burst of a bucket changes with it.
    pub(crate) fn with_limit(self, limit: u64) -> Self {
        let limit = limit.min(MAX_LIMIT);
        match self.kind {
            Kind::FixedWindow | Kind::SlidingWindow => Self { limit, ..self },
            Kind::TokenBucket { refill } => {
                // Of nothing there is no proportion: a bucket as large as its limit then,
                // as without a burst.
                let (burst, refilled) = if refill == 0 { (1, 1) } else { (self.limit, refill) };
                let burst = u128::from(burst) * u128::from(limit) / u128::from(refilled);
                let largest = MAX_LIMIT / self.window;
                let burst = u64::try_from(burst).unwrap_or(largest).clamp(limit.min(1), largest);
                Self { kind: Kind::TokenBucket { refill: limit }, limit: burst, ..self }
            }
        }
    }

    /// What is left of an amount at `now`, and of one on top of it: a bucket
    /// leaks them one after the other.
    pub(crate) fn age(&self, below: Amount, above: Amount, mark: Millis, now: Millis) -> (Amount, Amount) {
        let at = |amount| self.at(State::Counting { amount, mark }, now).amount();
        match self.kind {
            Kind::FixedWindow | Kind::SlidingWindow => (at(below), at(above)),
            Kind::TokenBucket { refill } => {
                let leak = now.saturating_sub(mark).saturating_mul(refill);
                let rest = leak.saturating_sub(below.current);
                (at(below), Amount::of(above.current.saturating_sub(rest)))
            }
        }
    }

    /// An amount that was counted when the window was another one.
    pub(crate) fn rescaled(&self, amount: Amount, window: Millis) -> Amount {
        match self.kind {
            Kind::FixedWindow | Kind::SlidingWindow => amount,
            Kind::TokenBucket { .. } => {
                let level = u128::from(amount.current) * u128::from(self.window);
                let level = level.div_ceil(u128::from(window.max(1)));
                Amount::of(u64::try_from(level).unwrap_or(MAX_LIMIT).min(MAX_LIMIT))
            }
        }
    }

    /// What is left of a state at `now`.
    pub(crate) fn at(&self, state: State, now: Millis) -> State {
        match state {
            State::Counting { amount, mark } => match self.kind {
                Kind::FixedWindow => fixed_window::at(amount, mark, now),
                Kind::SlidingWindow => sliding_window::at(self, amount, mark, now),
                Kind::TokenBucket { refill } => token_bucket::at(refill, amount, mark, now),
            },
            State::Blocked { until } if now < until && until >= self.pardon => state,
            State::Idle | State::Blocked { .. } => State::Idle,
        }
    }

    /// When a state is forgotten, `None` for nothing.
    pub(crate) fn end(&self, state: State) -> Option<Millis> {
        match state {
            State::Idle => None,
            State::Blocked { until } => Some(until),
            State::Counting { amount, mark } => Some(match self.kind {
                Kind::FixedWindow => mark,
                Kind::SlidingWindow => sliding_window::end(self, amount, mark),
                Kind::TokenBucket { refill } => {
                    mark.saturating_add(token_bucket::time(refill, amount.current))
                }
            }),
        }
    }

    /// How much of the limit a state uses, which can be more than all of it. The
    /// state is one of `now`.
    pub(crate) fn used(&self, state: State, now: Millis) -> u64 {
        match state {
            State::Idle => 0,
            State::Blocked { .. } => self.limit,
            State::Counting { amount, mark } => match self.kind {
                Kind::FixedWindow => amount.current,
                Kind::SlidingWindow => sliding_window::estimate(self, amount, mark.saturating_sub(now)),
                Kind::TokenBucket { .. } => amount.current.div_ceil(self.window),
            },
        }
    }

    /// A cost in the unit of an amount.
    pub(crate) fn weight(&self, cost: u64) -> u64 {
        match self.kind {
            Kind::FixedWindow | Kind::SlidingWindow => cost,
            Kind::TokenBucket { .. } => cost.saturating_mul(self.window),
        }
    }

    /// The state with a cost added, whatever the limit. Counts stay within what
    /// every store keeps exactly.
    fn add(&self, state: State, cost: u64, now: Millis) -> State {
        let weight = self.weight(cost);
        match state {
            State::Idle if cost > 0 => {
                let mark = match self.kind {
                    Kind::FixedWindow => now.saturating_add(self.window),
                    Kind::SlidingWindow => sliding_window::mark(self, now),
                    Kind::TokenBucket { .. } => now,
                };
                State::Counting { amount: Amount::of(weight.min(MAX_LIMIT)), mark }
            }
            State::Counting { amount, mark } => {
                let current = amount.current.saturating_add(weight).min(MAX_LIMIT);
                State::Counting { amount: Amount { current, ..amount }, mark }
            }
            State::Idle | State::Blocked { .. } => state,
        }
    }

    /// The state with a cost given back that was charged in the window that had
    /// `left` milliseconds to go. Nothing, once that window is over.
    fn give_back(&self, state: State, cost: u64, left: i64, now: Millis) -> State {
        let State::Counting { amount, mark } = state else { return state };
        let weight = self.weight(cost);
        let less = Amount { current: amount.current.saturating_sub(weight), ..amount };
        let amount = match self.kind {
            Kind::FixedWindow if fixed_window::is_charged(mark, left, now) => less,
            Kind::SlidingWindow => sliding_window::give_back(self, amount, mark, weight, left, now),
            // A charge is gone when the bucket was full.
            Kind::TokenBucket { .. } if left > 0 => less,
            Kind::FixedWindow | Kind::TokenBucket { .. } => amount,
        };
        State::Counting { amount, mark }
    }

    /// Whether a cost would be refused, and why.
    fn judge(&self, line: &Line, now: Millis) -> Option<Refusal> {
        if self.limit == 0 {
            return Some(Refusal::Limit);
        }
        if line.cost > self.limit {
            return Some(Refusal::TooLarge);
        }
        if matches!(line.state, State::Blocked { .. }) {
            return Some(Refusal::Blocked);
        }
        let (asked, free) = (line.cost.max(1), self.limit.saturating_sub(self.used(line.state, now)));
        if asked > free {
            return Some(Refusal::Limit);
        }
        (asked > free.saturating_sub(line.open)).then_some(Refusal::Reserved)
    }

    /// How long after `now` the same cost, alone, is admitted.
    fn wait(&self, state: State, cost: u64, now: Millis) -> Millis {
        match state {
            // Without a window there is nothing to wait for; the window is what
            // is promised.
            _ if self.limit == 0 => self.window,
            State::Idle => 0,
            State::Blocked { until } => until.saturating_sub(now),
            State::Counting { amount, mark } => match self.kind {
                Kind::FixedWindow => mark.saturating_sub(now),
                Kind::SlidingWindow => sliding_window::wait(self, amount, mark, cost.max(1), now),
                Kind::TokenBucket { refill } => token_bucket::wait(self, refill, amount, cost.max(1)),
            },
        }
    }

    /// How long until a window ends or a bucket is full, 0 when nothing runs.
    fn reset_after(&self, state: State, now: Millis) -> Millis {
        match state {
            _ if state.is_nothing(self.kind) => 0,
            State::Idle => 0,
            State::Blocked { until } => until.saturating_sub(now),
            State::Counting { amount, mark } => match self.kind {
                Kind::FixedWindow | Kind::SlidingWindow => mark.saturating_sub(now),
                Kind::TokenBucket { refill } => token_bucket::time(refill, amount.current),
            },
        }
    }

    /// What to tell the client after a check.
    fn report(&self, line: &Line, refusal: Option<Refusal>, now: Millis) -> Outcome {
        let blocked = matches!(line.state, State::Blocked { .. });
        let refusal = match refusal {
            // This very refusal started the block.
            Some(Refusal::Limit) if blocked => Some(Refusal::Blocked),
            other => other,
        };
        let open = if blocked { 0 } else { line.open };
        let used = self.used(line.state, now).saturating_add(open);
        let retry_after_ms = match refusal {
            None | Some(Refusal::TooLarge) => None,
            // Nobody knows when they are settled.
            Some(Refusal::Reserved) => Some(1000),
            Some(_) => Some(self.wait(line.state, line.cost, now)),
        };
        Outcome {
            refusal,
            used,
            remaining: self.limit.saturating_sub(used),
            reset_after_ms: self.reset_after(line.state, now),
            retry_after_ms,
            blocked,
            block_started: false,
        }
    }
}

/// What a line does if its check is admitted, or whatever becomes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Act {
    /// Charges its cost.
    #[default]
    Charge,
    /// Holds its cost open, to be settled later.
    Reserve,
    /// Charges its cost unconditionally: what a reservation has come to.
    Settle,
    /// Gives its cost back to the window that had `left` milliseconds to go,
    /// less than nothing for a sub-window that is over but still weighs.
    Refund { left: i64 },
}

impl Act {
    /// Whether it asks for admission.
    pub(crate) fn asks(self) -> bool {
        matches!(self, Self::Charge | Self::Reserve)
    }
}

/// One policy's part in a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) rule: Rule,
    /// 0 charges nothing and is refused exactly when 1 would be.
    pub(crate) cost: u64,
    pub(crate) act: Act,
    /// Before [`step`] the state before, after it the state after.
    pub(crate) state: State,
    /// What open reservations hold, before and after alike.
    pub(crate) open: u64,
}

/// Plays one check, all or nothing over its lines, and hands the outcome of
/// each line to `each`, in order.
///
/// A refused check adds to no count; each line that would refuse by itself
/// starts its block, unless a cost that can never fit has already decided.
/// Lines that are not enforced are judged alike but refuse nobody.
pub(crate) fn step(lines: &mut [Line], now: Millis, mut each: impl FnMut(Outcome)) {
    let mut admitted = true;
    let mut frozen = false;
    for line in lines.iter_mut() {
        let rule = line.rule;
        line.state = rule.at(line.state, now);
        if rule.enforced && line.act.asks() {
            let refusal = rule.judge(line, now);
            admitted &= refusal.is_none();
            frozen |= refusal == Some(Refusal::TooLarge);
        }
    }
    for line in lines {
        let (rule, before) = (line.rule, line.state);
        let refusal = if line.act.asks() { rule.judge(line, now) } else { None };
        match (line.act, refusal) {
            (Act::Charge, None) if admitted => line.state = rule.add(before, line.cost, now),
            (Act::Reserve, None) if admitted => line.open = line.open.saturating_add(line.cost),
            (Act::Settle, _) if rule.limit > 0 => line.state = rule.add(before, line.cost, now),
            (Act::Refund { left }, _) => line.state = rule.give_back(before, line.cost, left, now),
            (_, Some(Refusal::Limit)) if !frozen => line.state = start_block(&rule, before, line.cost, now),
            _ => {}
        }
        let block_started = before != line.state && matches!(line.state, State::Blocked { .. });
        each(Outcome { block_started, ..rule.report(line, refusal, now) });
    }
}

/// The state after a refusal at the limit.
fn start_block(rule: &Rule, state: State, cost: u64, now: Millis) -> State {
    if rule.block == 0 || rule.limit == 0 || cost == 0 {
        return state;
    }
    State::Blocked { until: now.saturating_add(rule.block) }
}

/// The numbers of one policy, without a check.
pub(crate) fn peek(rule: &Rule, state: State, open: u64, now: Millis) -> Outcome {
    let state = rule.at(state, now);
    rule.report(&Line { rule: *rule, cost: 0, act: Act::Charge, state, open }, None, now)
}

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) mod vectors;
