//! What the operator sees.
//!
//! Everything that happens is told to [`Observer`]s, synchronously and never
//! across an await: logs are one of them (always there, silent without a
//! `tracing` subscriber), metrics another (installed with
//! [`observer`](crate::RateLimiterBuilder::observer)), one's own hooks are
//! more. None gets an identity in readable form unless it asks for it.

#[cfg(feature = "metrics")]
mod metrics;
mod problems;
mod trace;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "metrics")]
pub use self::metrics::Metrics;
pub use self::problems::Problem;
pub(crate) use self::problems::Problems;
use crate::decision::{Refusal, Source};
use crate::key::Key;
use crate::store::{StoreErrorKind, StoreEvent};

/// Hooks into what a limiter does. Each does nothing unless it is written.
///
/// They are called on the task of the request (the news of a connection on a
/// background task), so they must be quick and must not block.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use tower_ratelimit::observe::{Checked, Observer};
/// use tower_ratelimit::{Charge, Key, Policy, Rate, RateLimiter};
///
/// #[derive(Clone, Default)]
/// struct Refusals(Arc<AtomicU64>);
///
/// impl Observer for Refusals {
///     fn refused(&self, checked: &Checked<'_>) {
///         // In shadow mode a refusal is told, but the request goes on.
///         if !checked.is_shadow() {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::BuildError> {
/// let refusals = Refusals::default();
/// let limiter = RateLimiter::builder().observer(refusals.clone()).build()?;
/// let once = limiter.policy(Policy::fixed_window("once", Rate::per_minute(1)))?;
/// for _ in 0..3 {
///     let _ = limiter.check([Charge::new(&once, Key::principal("ann"))]).await;
/// }
/// assert_eq!(refusals.0.load(Ordering::Relaxed), 2);
/// # Ok(())
/// # }
/// ```
#[expect(unused_variables, reason = "the names document the arguments")]
pub trait Observer: Send + Sync + 'static {
    /// A policy was part of a check, whatever came of it.
    fn checked(&self, checked: &Checked<'_>) {}

    /// A policy refused, or would have in shadow mode. Also told to
    /// [`checked`](Self::checked).
    fn refused(&self, checked: &Checked<'_>) {}

    /// A refusal started a block. Also told to [`refused`](Self::refused).
    fn blocked(&self, checked: &Checked<'_>) {}

    /// The store was connected, lost, answered or failed.
    fn store(&self, event: &StoreEvent<'_>) {}

    /// The store could not decide; a policy was decided by its fallback. Told
    /// for each policy of each check.
    fn fell_back(&self, policy: &str, reason: StoreErrorKind) {}

    /// Something is set up wrong. Told when it begins and every minute while it
    /// lasts.
    fn misconfigured(&self, problem: &Problem) {}

    /// What [`misconfigured`](Self::misconfigured) told of has not happened for
    /// a minute.
    fn mended(&self, problem: &Problem) {}

    /// Rules have come to apply, in place of others if `replaced` names some; each
    /// by its [digest](crate::rules::RuleSet::digest).
    fn rules(&self, digest: &str, replaced: Option<&str>) {}

    /// Something was odd about a request's address: `no_peer`,
    /// `untrusted_forwarded`, `past_cdn`, `short_chain` or `unreadable`.
    fn odd_address(&self, reason: &'static str) {}
}

/// One policy's part in a check.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    pub(crate) policy: &'a str,
    pub(crate) key: &'a Key,
    pub(crate) verdict: Verdict,
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) source: Source,
    pub(crate) shadow: bool,
    pub(crate) local_entries: usize,
    pub(crate) overflowed: usize,
}

impl<'a> Checked<'a> {
    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &'a str {
        self.policy
    }

    /// Who asked. Its `Debug` is redacted, its text is not.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// What this policy made of it.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The limit in force. During a fallback with a share it can be lower than
    /// the policy's.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How much of it is used, this check included if it was charged.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// After how long the same request would be admitted; on the start of a
    /// block its length. `None` if it was allowed or never can be.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Who decided.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether the policy only counts and reports.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// How many identities this process remembers, some of which have ended.
    #[must_use]
    pub fn local_entries(&self) -> usize {
        self.local_entries
    }

    /// How many checks so far have found this process's table full of refused
    /// identities.
    #[must_use]
    pub fn overflowed(&self) -> usize {
        self.overflowed
    }

    /// Whether at least 80 % of the limit is used and the request was allowed.
    #[must_use]
    pub fn is_near_limit(&self) -> bool {
        self.verdict == Verdict::Allowed && self.limit > 0 && self.used >= self.limit - self.limit / 5
    }
}

/// What one policy made of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Charged.
    Allowed,
    /// It would have allowed, but another policy refused: nothing was charged.
    Spared,
    /// It refused.
    Refused(Refusal),
    /// It refused, and started a block.
    BlockStarted,
}

impl Verdict {
    /// `allowed`, `spared`, or the refusal's name: what metrics call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Spared => "spared",
            Self::Refused(refusal) => refusal.as_str(),
            Self::BlockStarted => Refusal::Blocked.as_str(),
        }
    }
}

/// The observers of one limiter.
#[derive(Clone)]
pub(crate) struct Observers(Arc<[Box<dyn Observer>]>);

impl Observers {
    pub(crate) fn new(own: Vec<Box<dyn Observer>>) -> Self {
        let trace: Box<dyn Observer> = Box::new(trace::Trace);
        Self(std::iter::once(trace).chain(own).collect())
    }

    pub(crate) fn checked(&self, checked: &Checked<'_>) {
        for observer in &*self.0 {
            observer.checked(checked);
            if matches!(checked.verdict, Verdict::Refused(_) | Verdict::BlockStarted) {
                observer.refused(checked);
            }
            if checked.verdict == Verdict::BlockStarted {
                observer.blocked(checked);
            }
        }
    }

    pub(crate) fn tell(&self, news: impl Fn(&dyn Observer)) {
        for observer in &*self.0 {
            news(&**observer);
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observers({})", self.0.len())
    }
}
