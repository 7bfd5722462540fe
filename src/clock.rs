//! The one place that reads time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Milliseconds on a limiter's own clock, which never goes back.
pub(crate) type Millis = u64;

/// Where a limiter takes its time from. tokio's clock, so that tests which
/// pause it pause the limiter too.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    System {
        started: Instant,
        /// The wall clock then. Only so that the windows of several processes
        /// are counted from about the same epoch.
        since_epoch: Millis,
    },
    #[cfg(feature = "test-util")]
    Manual(crate::test_util::ManualClock),
}

impl Clock {
    pub(crate) fn system() -> Self {
        let since_epoch = whole_millis(wall_clock());
        Self::System { started: Instant::now(), since_epoch }
    }

    /// Now, in whole milliseconds since about 1970. Never goes back, whatever
    /// the wall clock does.
    pub(crate) fn now(&self) -> Millis {
        match self {
            // Saturates: under a paused clock another runtime may be "earlier".
            Self::System { started, since_epoch } => {
                since_epoch.saturating_add(whole_millis(started.elapsed()))
            }
            #[cfg(feature = "test-util")]
            Self::Manual(clock) => clock.now(),
        }
    }

    /// The wall clock, for the one header that needs it.
    pub(crate) fn since_epoch(&self) -> Duration {
        match self {
            Self::System { .. } => wall_clock(),
            #[cfg(feature = "test-util")]
            Self::Manual(clock) => Duration::from_millis(clock.now()),
        }
    }
}

/// A clock set before 1970 shows 1970 rather than panics.
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Without the 128-bit arithmetic of `Duration::as_millis`.
fn whole_millis(duration: Duration) -> Millis {
    duration.as_secs().saturating_mul(1000).saturating_add(duration.subsec_millis().into())
}
