//! Fixed window: starts with the first charge and is forgotten at its end.

use super::{Amount, State};
use crate::clock::Millis;

/// What is left at `now` of a window that ends at `mark`.
pub(super) fn at(amount: Amount, mark: Millis, now: Millis) -> State {
    if now < mark { State::Counting { amount, mark } } else { State::Idle }
}

/// Whether the window is the one that had `left` milliseconds to go: a later one
/// has more.
pub(super) fn is_charged(mark: Millis, left: i64, now: Millis) -> bool {
    i64::try_from(mark.saturating_sub(now)).is_ok_and(|running| running <= left)
}
