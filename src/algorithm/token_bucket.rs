//! Token bucket, in the form of the generic cell rate algorithm (ITU-T I.371).
//!
//! What is kept is the level of what was taken, in 1/window of a token: a token
//! is `window` units, and `refill` units leak each millisecond.

use super::{Amount, Rule, State};
use crate::clock::Millis;

/// What is left of a level at `now`. A clock that went back leaks nothing, and
/// the moment does not go back with it.
pub(super) fn at(refill: u64, amount: Amount, mark: Millis, now: Millis) -> State {
    let amount = leaked(refill, amount, now.saturating_sub(mark));
    if amount.is_zero() { State::Idle } else { State::Counting { amount, mark: mark.max(now) } }
}

/// A level after so many milliseconds.
pub(super) fn leaked(refill: u64, amount: Amount, elapsed: Millis) -> Amount {
    Amount::of(amount.current.saturating_sub(elapsed.saturating_mul(refill)))
}

/// How long a level takes to leak.
pub(super) fn time(refill: u64, level: u64) -> Millis {
    level.div_ceil(refill.max(1))
}

/// How long until a cost that fits the burst is admitted.
pub(super) fn wait(rule: &Rule, refill: u64, amount: Amount, cost: u64) -> Millis {
    let room = u128::from(rule.limit.saturating_sub(cost)) * u128::from(rule.window);
    let surplus = u128::from(amount.current).saturating_sub(room);
    time(refill, u64::try_from(surplus).unwrap_or(u64::MAX))
}
