//! Which policies apply to a request.
//!
//! A layer has a fixed list of limits, or rules that choose among many by route,
//! method, plan and tenant:
//!
//! * a [`Limit`] is a policy with all that depends on the request: who is
//!   counted, what it costs, which plan has another limit, which responses count;
//! * a [`Rule`] says which requests a few limits are for;
//! * a [`RuleSet`] is all of them in order: the first rule that holds applies;
//! * [`LiveRules`] are a rule set that a limiter knows and a layer asks, to be
//!   replaced while the service runs.
//!
//! With the feature `rules-file` a [`RuleSet`] is read from a TOML file, see
//! `RulesFile`.
//!
//! A policy's name stands for one rule and one count. So plans and VIPs are other
//! limits of one policy, not policies of their own, and keep what they have used
//! when they change.
//!
//! Rules are synchronous and touch no store: a plan that must be looked up is
//! looked up by the authentication layer, which leaves it in the request's
//! extensions, see [`Facts`].

mod count_if;
mod factor;
mod facts;
#[cfg(feature = "rules-file")]
mod file;
mod fixed;
mod limit;
mod live;
mod pattern;
mod reload;
mod rule;
mod selection;
mod set;

use std::sync::Arc;

use http::HeaderValue;

pub(crate) use self::count_if::CountIf;
pub use self::count_if::ResponseHead;
pub use self::factor::Factor;
pub use self::facts::Facts;
#[cfg(feature = "rules-file")]
pub use self::file::{RulesFile, RulesFileError};
pub(crate) use self::fixed::FixedRules;
pub use self::limit::Limit;
pub use self::live::LiveRules;
pub use self::reload::ReloadPlan;
pub use self::rule::Rule;
pub use self::selection::Selection;
#[cfg(feature = "mcp")]
pub(crate) use self::selection::{Bound, LimitValues};
pub(crate) use self::selection::{Selected, Who};
pub use self::set::RuleSet;
use crate::identity::{ClientIp, RequestHead};
use crate::limiter::{BuildError, RateLimiter};

/// Picks requests.
type Predicate = Arc<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;

/// Chooses what a request is charged. [`LiveRules`] do it by rules; write your
/// own where those do not fit.
///
/// ```
/// use tower_ratelimit::identity::RequestHead;
/// use tower_ratelimit::rules::{Rules, Selection};
/// use tower_ratelimit::{Charge, Key, Policy, PolicyHandle, Rate, RateLimitLayer, RateLimiter};
///
/// struct Nightly(PolicyHandle);
///
/// impl Rules for Nightly {
///     fn select(&self, head: &RequestHead<'_>, out: &mut Selection<'_>) {
///         if head.path().starts_with("/reports/") {
///             out.charge(Charge::new(&self.0, Key::principal("everybody")).cost(5));
///         }
///     }
/// }
///
/// let limiter = RateLimiter::memory();
/// let reports = limiter.policy(Policy::fixed_window("reports", Rate::per_hour(500)))?;
/// let layer = RateLimitLayer::builder(limiter).rules(Nightly(reports)).build()?;
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
pub trait Rules: Send + Sync + 'static {
    /// Adds the charges of a request to `out`; without any it is not limited.
    /// Called once for each request, so it must be quick and must not block.
    fn select(&self, head: &RequestHead<'_>, out: &mut Selection<'_>);

    /// The value of `x-ratelimit-limit` for a limit, if it is ready-made: this
    /// saves an allocation. Default: none is.
    fn limit_value(&self, limit: u64) -> Option<HeaderValue> {
        let _ = limit;
        None
    }

    /// How these rules find client addresses, if they have to do with them. A
    /// layer that is not told otherwise finds them in the same way. Default: they
    /// have not.
    fn client_ip(&self) -> Option<ClientIp> {
        None
    }

    /// A layer of this limiter takes these rules. Default: whatever it is.
    ///
    /// # Errors
    ///
    /// If the rules are not of that limiter.
    fn join(&self, limiter: &RateLimiter) -> Result<(), BuildError> {
        let _ = limiter;
        Ok(())
    }
}
