//! How long a server that is gone is left in peace.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(50);
pub(super) const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// Losses within this time make the next return slower.
const FLAPPING: Duration = Duration::from_secs(60);
const FIRST_HOLD: Duration = Duration::from_millis(500);
const LAST_HOLD: Duration = Duration::from_secs(10);

/// The losses of the last minute.
#[derive(Default)]
pub(super) struct Losses(VecDeque<Instant>);

impl Losses {
    /// Counts one more, and answers how long to leave the server in peace.
    pub(super) fn hold(&mut self) -> Duration {
        let now = Instant::now();
        self.0.retain(|&loss| now.duration_since(loss) < FLAPPING);
        let before = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.push_back(now);
        match before {
            0 => Duration::ZERO,
            n => FIRST_HOLD.saturating_mul(1 << (n - 1).min(8)).min(LAST_HOLD),
        }
    }
}

/// Between half and all of it, so that replicas do not return in step.
pub(super) fn jittered(backoff: Duration) -> Duration {
    backoff.mul_f64(0.5 + fastrand::f64() / 2.0)
}
