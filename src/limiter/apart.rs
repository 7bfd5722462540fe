//! A check on a cluster whose keys are not in one slot: no script can hold it
//! together, so each policy decides by itself.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use arrayvec::ArrayVec;

use super::{Charge, Charges, Check, RateLimiter};
use crate::decision::Decision;
use crate::observe::Problem;
use crate::policy::MAX_POLICIES;

type Checks = ArrayVec<Check, MAX_POLICIES>;
type Decided = ArrayVec<Option<Decision>, MAX_POLICIES>;

/// Whether all keys are sure to be in one slot: they have braces, around the
/// same first part.
pub(super) fn share_a_slot(charges: &[Charge]) -> bool {
    let [first, others @ ..] = charges else { return true };
    others.is_empty() || charges.iter().all(|charge| charge.policy.is_braced() && charge.tag() == first.tag())
}

/// Starts a check for each charge.
pub(super) fn begin(limiter: &RateLimiter, charges: &Charges) -> Check {
    limiter.noticed(Problem::SplitCheck);
    let alone = |charge: &Charge| limiter.begin(&Charges::from_iter([charge.clone()]));
    let mut checks: Checks = charges.iter().map(alone).collect();
    let mut decided: Decided = checks.iter().map(|_| None).collect();
    Check::Waiting(Box::pin(poll_fn(move |cx| {
        // All at once: together they take as long as the slowest.
        for (check, decision) in checks.iter_mut().zip(&mut decided) {
            if decision.is_none()
                && let Poll::Ready(ready) = Pin::new(check).poll(cx)
            {
                *decision = Some(ready);
            }
        }
        if decided.iter().any(Option::is_none) {
            return Poll::Pending;
        }
        decided.iter_mut().filter_map(Option::take).max_by_key(rank).map_or(Poll::Pending, Poll::Ready)
    })))
}

/// Which decision speaks for all: as in one check, a refusal before an
/// allowance, then an enforced policy, then the longest wait or the least left.
fn rank(decision: &Decision) -> impl Ord + use<> {
    let is_refused = !decision.is_allowed();
    let outcome = &decision.outcome;
    let weight = if is_refused { outcome.wait() } else { outcome.tightness() };
    (is_refused, decision.is_counted(), !decision.is_shadow(), weight)
}
