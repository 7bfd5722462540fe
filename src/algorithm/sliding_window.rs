//! Sliding window by two counters: the previous sub-window weighs as much as
//! is left of the current one.
//!
//! Sub-windows are as long as the window and counted from the epoch of the
//! store's clock. The estimate is `floor(previous x left / window) + current`.

use super::{Amount, Rule, State};
use crate::clock::Millis;

/// What is left of the two counts at `now`, for a sub-window that ends at
/// `mark`.
pub(super) fn at(rule: &Rule, amount: Amount, mark: Millis, now: Millis) -> State {
    if now < mark {
        return State::Counting { amount, mark };
    }
    let next = mark.saturating_add(rule.window);
    if now < next && amount.current > 0 {
        return State::Counting { amount: Amount { current: 0, previous: amount.current }, mark: next };
    }
    State::Idle
}

/// When neither count weighs any more.
pub(super) fn end(rule: &Rule, amount: Amount, mark: Millis) -> Millis {
    if amount.current > 0 { mark.saturating_add(rule.window) } else { mark }
}

/// The end of the sub-window that runs at `now`.
pub(super) fn mark(rule: &Rule, now: Millis) -> Millis {
    now.saturating_sub(now % rule.window).saturating_add(rule.window)
}

/// The estimate with `left` milliseconds to go in the current sub-window.
pub(super) fn estimate(rule: &Rule, amount: Amount, left: Millis) -> u64 {
    let left = left.min(rule.window);
    let weighed = u128::from(amount.previous) * u128::from(left) / u128::from(rule.window);
    // At most `previous`, as `left` is at most the window.
    u64::try_from(weighed).unwrap_or(amount.previous).saturating_add(amount.current)
}

/// The smallest wait after which a cost that fits the limit is admitted alone.
pub(super) fn wait(rule: &Rule, amount: Amount, mark: Millis, cost: u64, now: Millis) -> Millis {
    let left = mark.saturating_sub(now);
    // The estimate may be as much as this.
    let room = rule.limit.saturating_sub(cost);
    if amount.current <= room {
        return left.saturating_sub(longest(rule, amount.previous, room - amount.current));
    }
    // Not in this sub-window. In the next one the current count is the previous.
    left.saturating_add(rule.window).saturating_sub(longest(rule, amount.current, room))
}

/// With how many milliseconds to go, at most, a previous count weighs no more
/// than this: the largest `left` with `floor(previous x left / window) <= weight`.
fn longest(rule: &Rule, previous: u64, weight: u64) -> Millis {
    if previous == 0 {
        return rule.window;
    }
    let longest = ((u128::from(weight) + 1) * u128::from(rule.window) - 1) / u128::from(previous);
    u64::try_from(longest).unwrap_or(rule.window).min(rule.window)
}

/// Gives back to the sub-window that had `left` milliseconds to go: the current
/// one, or the previous one, whose end is a window earlier.
pub(super) fn give_back(
    rule: &Rule,
    amount: Amount,
    mark: Millis,
    cost: u64,
    left: i64,
    now: Millis,
) -> Amount {
    // The two ends are a window apart, and each is known to a few milliseconds.
    let behind = i64::try_from(mark.saturating_sub(now)).unwrap_or(i64::MAX).saturating_sub(left);
    let half = i64::try_from(rule.window / 2).unwrap_or(i64::MAX);
    if behind <= half {
        Amount { current: amount.current.saturating_sub(cost), ..amount }
    } else if behind.saturating_sub(half) <= i64::try_from(rule.window).unwrap_or(i64::MAX) {
        Amount { previous: amount.previous.saturating_sub(cost), ..amount }
    } else {
        amount
    }
}
