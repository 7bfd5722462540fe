//! The arithmetic of a check: pure, with time as an argument.
//!
//! [`step`] plays one check on what a store remembers. The memory store calls
//! it under its locks. Redis runs the same rules in Lua and answers with the
//! state *before* the check; `step` then computes what to tell the client, so
//! there is one definition of the answer.

mod fixed_window;

use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};

/// A policy as the arithmetic sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rule {
    pub(crate) limit: u64,
    /// At least 1.
    pub(crate) window: Millis,
    /// 0: no block.
    pub(crate) block: Millis,
    /// Whether a refusal refuses the request.
    pub(crate) enforced: bool,
}

/// What a store remembers of one identity under one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing, or what has ended.
    #[default]
    Idle,
    /// A window that is open until `end`.
    Counting { count: u64, end: Millis },
    /// Refused until then, whatever the count was.
    Blocked { until: Millis },
}

impl State {
    /// What is left of it at `now`.
    pub(crate) fn at(self, now: Millis) -> Self {
        match self.end() {
            Some(end) if now < end => self,
            _ => Self::Idle,
        }
    }

    /// The count of an open window, 0 otherwise.
    pub(crate) fn count(self) -> u64 {
        match self {
            Self::Counting { count, .. } => count,
            Self::Idle | Self::Blocked { .. } => 0,
        }
    }

    /// When it is forgotten, `None` for nothing.
    pub(crate) fn end(self) -> Option<Millis> {
        match self {
            Self::Idle => None,
            Self::Counting { end, .. } => Some(end),
            Self::Blocked { until } => Some(until),
        }
    }
}

/// One policy's part in a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) rule: Rule,
    /// 0 charges nothing and is refused exactly when 1 would be.
    pub(crate) cost: u64,
    /// Before [`step`] the state before, after it the state after.
    pub(crate) state: State,
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
        line.state = line.state.at(now);
        if line.rule.enforced {
            let refusal = fixed_window::judge(&line.rule, line.state, line.cost);
            admitted &= refusal.is_none();
            frozen |= refusal == Some(Refusal::TooLarge);
        }
    }
    for line in lines {
        let refusal = fixed_window::judge(&line.rule, line.state, line.cost);
        let before = line.state;
        match refusal {
            None if admitted => line.state = fixed_window::charge(&line.rule, line.state, line.cost, now),
            Some(Refusal::Limit) if !frozen => {
                line.state = fixed_window::start_block(&line.rule, line.state, line.cost, now);
            }
            _ => {}
        }
        let block_started = before != line.state && matches!(line.state, State::Blocked { .. });
        each(Outcome { block_started, ..fixed_window::report(&line.rule, line.state, refusal, now) });
    }
}

/// The numbers of one policy, without a check.
pub(crate) fn peek(rule: &Rule, state: State, now: Millis) -> Outcome {
    fixed_window::report(rule, state.at(now), None, now)
}

#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
pub(crate) mod vectors;
