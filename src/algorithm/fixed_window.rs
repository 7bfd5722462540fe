//! Fixed window with an optional block.
//!
//! A window starts with the first charge and is forgotten at its end. With a
//! block, the first refusal replaces the window by a block whose end is then
//! fixed. Every state given here is one that has not ended.

use super::{Rule, State};
use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};

/// Whether a cost would be refused, and why.
pub(super) fn judge(rule: &Rule, state: State, cost: u64) -> Option<Refusal> {
    if rule.limit == 0 {
        return Some(Refusal::Limit);
    }
    if cost > rule.limit {
        return Some(Refusal::TooLarge);
    }
    match state {
        State::Blocked { .. } => Some(Refusal::Blocked),
        _ => (cost.max(1) > rule.limit.saturating_sub(state.count())).then_some(Refusal::Limit),
    }
}

/// The state after an admitted cost.
pub(super) fn charge(rule: &Rule, state: State, cost: u64, now: Millis) -> State {
    match state {
        State::Idle if cost > 0 => State::Counting { count: cost, end: now.saturating_add(rule.window) },
        // Admitted, so the sum is at most the limit.
        State::Counting { count, end } => State::Counting { count: count + cost, end },
        State::Idle | State::Blocked { .. } => state,
    }
}

/// The state after a refusal at the limit.
pub(super) fn start_block(rule: &Rule, state: State, cost: u64, now: Millis) -> State {
    if rule.block == 0 || rule.limit == 0 || cost == 0 {
        return state;
    }
    State::Blocked { until: now.saturating_add(rule.block) }
}

/// What to tell the client of a state after a check.
pub(super) fn report(rule: &Rule, state: State, refusal: Option<Refusal>, now: Millis) -> Outcome {
    let blocked = matches!(state, State::Blocked { .. });
    let used = if blocked { rule.limit } else { state.count() };
    let reset_after_ms = state.end().map_or(0, |end| end.saturating_sub(now));
    let refusal = match refusal {
        // This very refusal started the block.
        Some(Refusal::Limit) if blocked => Some(Refusal::Blocked),
        other => other,
    };
    let retry_after_ms = match refusal {
        None | Some(Refusal::TooLarge) => None,
        // Without a window there is nothing to wait for; the window is what is promised.
        Some(Refusal::Limit) if rule.limit == 0 => Some(rule.window),
        Some(_) => Some(reset_after_ms),
    };
    Outcome {
        refusal,
        used,
        remaining: rule.limit.saturating_sub(used),
        reset_after_ms,
        retry_after_ms,
        blocked,
        block_started: false,
    }
}
