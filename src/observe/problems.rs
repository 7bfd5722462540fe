//! Mistakes of the set-up that show only in traffic: told when they begin, once
//! a minute while they last, and when they are over.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Observers;
use crate::clock::Millis;

/// How often a lasting problem is told again, and how long without it means
/// that it is over.
const REPEAT: Millis = 60_000;

/// A mistake of the set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// Requests come without a peer address and share one bucket.
    NoPeerAddress,
    /// A forwarding header comes from a peer that is not a trusted proxy.
    UntrustedForwarding,
    /// Policies are checked together whose keys are in different slots of a
    /// cluster. Each then decides by itself, so one can charge what another one
    /// refuses.
    SplitCheck,
    /// Two policies have one name but different rules. Told once, when the
    /// second one is set up.
    PolicyConflict,
    /// A policy that was in use by itself is now checked together with others.
    /// Told once.
    LatePairing,
}

impl Problem {
    /// Those that show in traffic, in the order of their discriminants.
    const LASTING: [Self; 3] = [Self::NoPeerAddress, Self::UntrustedForwarding, Self::SplitCheck];

    /// `no_peer_address`, ...: what metrics call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoPeerAddress => "no_peer_address",
            Self::UntrustedForwarding => "untrusted_forwarding",
            Self::SplitCheck => "split_check",
            Self::PolicyConflict => "policy_conflict",
            Self::LatePairing => "late_pairing",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NoPeerAddress => {
                "requests have no peer address and share one bucket: serve with \
                 `app.into_make_service_with_connect_info::<SocketAddr>()`"
            }
            Self::UntrustedForwarding => {
                "a forwarding header comes from a peer that is not a trusted proxy and is ignored: \
                 if that peer is your proxy, name its range with `ClientIp::behind`"
            }
            Self::SplitCheck => {
                "policies are checked together whose keys are in different slots of the cluster, so each \
                 decides by itself: set them up together, with identities of one first part"
            }
            Self::PolicyConflict => {
                "two policies share a name but not the rule; both are enforced, under different keys: \
                 rename one"
            }
            Self::LatePairing => {
                "a policy that was in use by itself is now checked together with others, under other keys: \
                 its clients start again; set up layers and policies before the first check"
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.remedy())
    }
}

/// The problems of one limiter.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// Whether any lasts: all that a request without one looks at.
    any: AtomicBool,
    each: [Lasting; Problem::LASTING.len()],
}

#[derive(Debug, Default)]
struct Lasting {
    lasts: AtomicBool,
    seen: AtomicU64,
    told: AtomicU64,
}

impl Problems {
    /// A problem has just shown.
    pub(crate) fn seen(&self, problem: Problem, now: Millis, observers: &Observers) {
        let Some(lasting) = self.each.get(problem as usize) else { return };
        lasting.seen.store(now, Ordering::Relaxed);
        self.any.store(true, Ordering::Relaxed);
        let begins = !lasting.lasts.swap(true, Ordering::Relaxed);
        let told = lasting.told.load(Ordering::Relaxed);
        let due = begins || now.saturating_sub(told) >= REPEAT;
        // One of those who find it due tells it.
        if due && lasting.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            observers.tell(|observer| observer.misconfigured(&problem));
        }
    }

    /// Looks whether a problem is over. Cheap when there is none.
    pub(crate) fn look(&self, now: Millis, observers: &Observers) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut any = false;
        for problem in Problem::LASTING {
            let lasting = &self.each[problem as usize];
            if !lasting.lasts.load(Ordering::Relaxed) {
                continue;
            }
            let over = now.saturating_sub(lasting.seen.load(Ordering::Relaxed)) >= REPEAT;
            if over && lasting.lasts.swap(false, Ordering::Relaxed) {
                observers.tell(|observer| observer.mended(&problem));
            }
            any |= !over;
        }
        self.any.store(any, Ordering::Relaxed);
    }
}
