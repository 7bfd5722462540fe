//! The same limits for every request.

use http::HeaderValue;

use super::selection::{Bound, LimitValues};
use super::{Facts, Limit, Rule, Rules, Selection};
use crate::identity::RequestHead;
use crate::limiter::{BuildError, RateLimiter};
use crate::policy::MAX_POLICIES;

/// The list of limits that a layer is built with.
pub(crate) struct FixedRules {
    bound: Vec<Bound>,
    values: LimitValues,
}

impl FixedRules {
    /// Makes the policies known to the limiter.
    ///
    /// # Errors
    ///
    /// What is not legal about the limits.
    pub(crate) fn new(limiter: &RateLimiter, limits: Vec<Limit>) -> Result<Self, BuildError> {
        if limits.is_empty() {
            return Err(BuildError::NoPolicy);
        }
        let rule = limits.into_iter().fold(Rule::any(), Rule::limit);
        rule.check()?;
        let policies: Vec<_> = rule.limits.iter().map(|limit| limit.policy.clone()).collect();
        let handles = limiter.register::<MAX_POLICIES>(&policies)?;
        handles.iter().for_each(|handle| handle.count_layer());
        let bound = Bound::all(&rule.limits, handles, &Facts::new());
        let values = LimitValues::of(&bound);
        Ok(Self { bound, values })
    }
}

impl Rules for FixedRules {
    fn select(&self, head: &RequestHead<'_>, out: &mut Selection<'_>) {
        self.bound.iter().for_each(|limit| out.add(limit, head, 1));
    }

    fn limit_value(&self, limit: u64) -> Option<HeaderValue> {
        self.values.get(limit)
    }
}
