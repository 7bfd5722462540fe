//! A tower layer that enforces one shared rate limit.

// Without a shared store nothing uses the mirror, the deny cache and the fallback; with it, everything is
// checked as usual.
#![cfg_attr(
    not(feature = "redis"),
    allow(dead_code, unreachable_patterns, unused_variables, clippy::needless_pass_by_value)
)]

mod algorithm;
mod clock;
mod decision;
pub mod identity;
mod key;
mod limiter;
pub mod middleware;
pub mod observe;
mod policy;
pub mod response;
pub mod settings;
pub mod store;
#[cfg(feature = "test-util")]
pub mod test_util;

pub use crate::decision::{Decision, Refusal, Source};
pub use crate::key::{Key, KeyBuilder, KeySecret, MAX_KEY_LEN};
pub use crate::limiter::{BuildError, Charge, PolicyHandle, RateLimiter, RateLimiterBuilder};
pub use crate::middleware::RateLimitLayer;
pub use crate::policy::{
    Algorithm, MAX_LIMIT, MAX_POLICIES, MAX_WINDOW, MIN_WINDOW, Policy, PolicyError, Rate,
};
