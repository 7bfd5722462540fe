//! Small things.

use std::time::{Duration, Instant};

use tower_ratelimit::{Charge, Decision, Key, Policy, PolicyHandle, Rate, RateLimiter};

/// What does not happen by then never will.
const HOPELESS: Duration = Duration::from_secs(15);

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn fixed(name: &str, limit: u32) -> Policy {
    Policy::fixed_window(name, Rate::per_minute(limit))
}

pub(crate) fn who(name: &str) -> Key {
    Key::principal(name)
}

/// One check at a cost of 1.
pub(crate) async fn hit(limiter: &RateLimiter, policy: &PolicyHandle, name: &str) -> Decision {
    limiter.check([Charge::new(policy, who(name))]).await
}

/// Waits until it is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < HOPELESS, "it never came true that {what}");
        tokio::time::sleep(ms(5)).await;
    }
}
