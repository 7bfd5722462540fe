//! The answer of a check.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Millis;
use crate::limiter::PolicyHandle;

/// The answer of one check: allowed or refused, by which policy, and the
/// numbers of that policy.
///
/// With several policies it speaks of the one that matters to the client: the
/// tightest (least remaining) when allowed, the refusing one with the longest
/// wait when refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a refusal is data, not an error: look at `is_allowed`"]
pub struct Decision {
    pub(crate) policy: Arc<str>,
    pub(crate) limit: u64,
    pub(crate) outcome: Outcome,
    pub(crate) source: Source,
    pub(crate) shadow: bool,
    /// Whether the numbers were counted, or mean nothing.
    pub(crate) counted: bool,
    pub(crate) window_ms: u64,
    /// What each policy made of the check, where somebody has asked for that:
    /// shared, so that a decision stays small.
    pub(crate) each: Option<Arc<[Self]>>,
    /// When it was made, on the limiter's clock.
    pub(crate) at: Millis,
}

impl Decision {
    /// Whether the request may go on. A policy in shadow mode always lets it.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.shadow || self.outcome.refusal.is_none()
    }

    /// Why it was refused, or would have been if the policy were not in shadow
    /// mode. `None` when nothing speaks against it.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        self.outcome.refusal
    }

    /// The policy that decided.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The limit in force. During a fallback with a share it can be lower than
    /// the policy's.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// In how long the limit is allowed: the policy's window; of a bucket, whose
    /// limit is its burst, the time in which it fills.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// How much of the limit is used. Can exceed it when another program
    /// counts on the same key.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.outcome.used
    }

    /// What is left, 0 whenever a request of cost 1 would be refused now.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.outcome.remaining
    }

    /// On a refusal the retry time, otherwise the time until the window ends, for
    /// a sliding one its current sub-window, or the bucket is full. Zero when
    /// nothing is counted.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_millis(self.outcome.retry_after_ms.unwrap_or(self.outcome.reset_after_ms))
    }

    /// After how long the same request, alone, is admitted; one millisecond
    /// earlier it is not. `None` when nothing speaks against it now, and when no
    /// wait helps ([`Refusal::TooLarge`]).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.outcome.retry_after_ms.map(Duration::from_millis)
    }

    /// How much longer the identity is blocked, `None` when it is not.
    #[must_use]
    pub fn blocked_for(&self) -> Option<Duration> {
        self.outcome.blocked.then(|| Duration::from_millis(self.outcome.reset_after_ms))
    }

    /// Who decided.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether its numbers were counted. They are not where the store could not
    /// decide and the policy does not count by itself then: a client is told
    /// none of them.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.counted
    }

    /// Whether it speaks of a policy in shadow mode, which never refuses.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// What each policy of the check made of it, in order, this one among them.
    ///
    /// All of them where a layer has refused, where one of them
    /// [reserves](crate::Policy::reserve_for), and where it writes the
    /// [standard fields](crate::middleware::RateLimitLayerBuilder::standard_fields);
    /// otherwise this one alone, as a list would have to be allocated.
    pub fn each_policy(&self) -> &[Self] {
        self.each.as_deref().unwrap_or(std::slice::from_ref(self))
    }

    /// Whether this policy, in shadow mode, would have refused: it holds nothing
    /// then, and what the request comes to is not for it to count.
    pub(crate) fn refused(&self, policy: &PolicyHandle) -> bool {
        let name = policy.policy().name();
        let mut parts = self.each_policy().iter().filter(|part| &*part.policy == name).peekable();
        parts.peek().is_some() && parts.all(|part| part.outcome.refusal.is_some())
    }

    /// The policies that refuse a request, each with its own wait.
    pub(crate) fn violated(&self) -> impl Iterator<Item = &Self> {
        self.each_policy().iter().filter(|part| !part.shadow && part.outcome.refusal.is_some())
    }

    /// The numbers after some of its policies were settled: given back, there is
    /// more left than was told at admission, unless another policy has less.
    pub(crate) fn updated_by(self, after: Self) -> Self {
        let newest = |part: &Self| {
            after.each_policy().iter().find(|new| new.policy == part.policy).unwrap_or(part).clone()
        };
        let each: Option<Arc<[Self]>> = self.each.as_ref().map(|each| each.iter().map(newest).collect());
        if let Some(each) = each {
            let rank = |part: &&Self| (!part.shadow, part.outcome.tightness());
            let tightest = each.iter().max_by_key(rank).unwrap_or(&after).clone();
            return Self { each: Some(each), ..tightest };
        }
        let decides = after.policy == self.policy || after.is_tighter_than(&self);
        if decides { after } else { self }
    }

    /// Whether a client that was told this has nothing to gain from an
    /// allowance of another layer.
    pub(crate) fn is_tighter_than(&self, allowance: &Self) -> bool {
        let has_less = !self.is_allowed() || self.remaining() <= allowance.remaining();
        !self.shadow && (allowance.shadow || has_less)
    }
}

/// Why a check was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The limit is reached.
    Limit,
    /// The identity is blocked.
    Blocked,
    /// The cost is above the limit: no wait makes it fit.
    TooLarge,
    /// There is room, but open reservations hold it
    /// ([`reserve_for`](crate::Policy::reserve_for)): those who try again soon
    /// may find some given back. It starts no block.
    Reserved,
    /// The store cannot decide, and the policy is one that then refuses
    /// ([`OnStoreFailure::Deny`](crate::OnStoreFailure::Deny)).
    Unavailable,
}

impl Refusal {
    /// `limit`, `blocked`, `too_large`, `reserved` or `unavailable`: what metrics and logs call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Blocked => "blocked",
            Self::TooLarge => "too_large",
            Self::Reserved => "reserved",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Redis.
    Redis,
    /// This process: the memory store, or the fallback while Redis is gone.
    Local,
    /// This process, repeating a refusal that Redis gave until it ends.
    DenyCache,
}

impl Source {
    /// `redis`, `local` or `deny_cache`: what metrics and logs call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Local => "local",
            Self::DenyCache => "deny_cache",
        }
    }
}

/// The numbers of one policy after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) refusal: Option<Refusal>,
    pub(crate) used: u64,
    pub(crate) remaining: u64,
    /// Until the window or the block ends or the bucket is full, 0 when nothing
    /// runs.
    pub(crate) reset_after_ms: u64,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) blocked: bool,
    /// Whether this check started the block.
    pub(crate) block_started: bool,
}

impl Outcome {
    /// Orders refusals: the longest wait decides, and a cost that never fits
    /// outlasts any wait.
    pub(crate) fn wait(&self) -> (u64, u64) {
        (self.retry_after_ms.unwrap_or(u64::MAX), 0)
    }

    /// Orders allowances: the least remaining decides, then the later reset.
    pub(crate) fn tightness(&self) -> (u64, u64) {
        (u64::MAX - self.remaining, self.reset_after_ms)
    }
}
