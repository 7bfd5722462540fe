//! For the tests of applications that use this crate (feature `test-util`): a
//! limiter that follows a script, a clock to turn by hand, and a namespace that
//! nobody else has.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::algorithm::Rule;
use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};
use crate::limiter::RateLimiter;
use crate::store::memory::Answer;

/// A clock that moves only when told to. Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Charge, Key, Policy, Rate, RateLimiter, test_util::ManualClock};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let clock = ManualClock::new();
/// let limiter = RateLimiter::builder().clock(clock.clone()).build()?;
/// let once = limiter.policy(Policy::fixed_window("once", Rate::per_minute(1)))?;
/// let charge = || [Charge::new(&once, Key::principal("ann"))];
///
/// assert!(limiter.check(charge()).await.is_allowed());
/// clock.advance(Duration::from_millis(59_999));
/// assert!(!limiter.check(charge()).await.is_allowed());
/// clock.advance(Duration::from_millis(1));
/// assert!(limiter.check(charge()).await.is_allowed());
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows 2026-01-07 15:30:23 UTC.
    #[must_use]
    pub fn new() -> Self {
        Self::at(UNIX_EPOCH + Duration::from_secs(1_767_799_823))
    }

    /// A clock that shows this time, to the millisecond; 1970 for what is
    /// earlier.
    #[must_use]
    pub fn at(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Arc::new(AtomicU64::new(millis(since_epoch))))
    }

    /// Moves it on, by whole milliseconds.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(millis(by), Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> Millis {
        self.0.load(Ordering::SeqCst)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({} ms)", self.now())
    }
}

/// What a scripted limiter answers: admit, admit, refuse for 37 s.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Charge, Key, Policy, Rate, test_util::Script};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Script::new().admit().admit().refuse_for(Duration::from_secs(37)).limiter();
/// let http = limiter.policy(Policy::fixed_window("http", Rate::per_minute(100)))?;
/// let check = || limiter.check([Charge::new(&http, Key::principal("ann"))]);
///
/// assert!(check().await.is_allowed());
/// assert!(check().await.is_allowed());
/// assert_eq!(check().await.retry_after(), Some(Duration::from_secs(37)));
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Each policy of a check takes one answer. When the script is over, its last
/// answer is repeated; an empty one admits.
#[derive(Clone, Debug, Default)]
#[must_use = "a script is played by `limiter`"]
pub struct Script(Arc<Mutex<Played>>);

#[derive(Clone, Debug, Default)]
struct Played {
    answers: Vec<Scripted>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
enum Scripted {
    Admit,
    RefuseFor(Duration),
}

impl Script {
    /// An empty script.
    pub fn new() -> Self {
        Self::default()
    }

    /// Then admits one.
    pub fn admit(self) -> Self {
        self.then(Scripted::Admit)
    }

    /// Then refuses one, with this time to wait.
    pub fn refuse_for(self, wait: Duration) -> Self {
        self.then(Scripted::RefuseFor(wait))
    }

    /// The limiter that plays it, whoever asks and whatever the policies.
    #[must_use]
    pub fn limiter(self) -> RateLimiter {
        #[expect(clippy::expect_used, reason = "no default is refused")]
        RateLimiter::builder().script(self).build().expect("the defaults are legal")
    }

    fn then(self, answer: Scripted) -> Self {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).answers.push(answer);
        self
    }

    pub(crate) fn next(&self, rule: &Rule) -> Answer {
        let mut played = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = played.answers.get(played.next).or(played.answers.last()).copied();
        played.next += 1;
        let admitted = u64::try_from(played.next).unwrap_or(u64::MAX).min(rule.limit);
        let outcome = match answer.unwrap_or(Scripted::Admit) {
            Scripted::Admit => Outcome {
                refusal: None,
                used: admitted,
                remaining: rule.limit - admitted,
                reset_after_ms: rule.window,
                retry_after_ms: None,
                blocked: false,
                block_started: false,
            },
            Scripted::RefuseFor(wait) => Outcome {
                refusal: Some(Refusal::Limit),
                used: rule.limit,
                remaining: 0,
                reset_after_ms: millis(wait),
                retry_after_ms: Some(millis(wait)),
                blocked: false,
                block_started: false,
            },
        };
        Answer { limit: rule.limit, outcome }
    }
}

/// A namespace for one test, which no other test and no earlier run has used.
#[must_use]
pub fn namespace() -> String {
    static COUNTED: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let n = COUNTED.fetch_add(1, Ordering::Relaxed);
    format!("test-{nanos:x}-{:x}-{n:x}", std::process::id())
}

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}
