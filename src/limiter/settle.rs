//! After the response: what a request has really come to.
//!
//! A reservation counts against the limit while it is open, so what runs at the
//! same time cannot pass by not being counted yet. Settling ends it and adds
//! what it came to, past the limit if need be; one that nobody settles lapses.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use arrayvec::ArrayVec;

use super::{Charge, Charges, Check, Listing, RateLimiter, distinct};
use crate::algorithm::Act;
use crate::decision::{Decision, Source};
use crate::policy::MAX_POLICIES;
#[cfg(feature = "redis")]
use crate::store::memory::Charged;
use crate::store::memory::Marker;
use crate::store::{StoreError, StoreErrorKind};

/// A place that is held open under one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) id: Marker,
    pub(crate) amount: u64,
}

/// A check whose policies hold places open, from [`RateLimiter::reserve`].
///
/// Dropped without [`settle`](Self::settle), its reservations lapse by
/// themselves after [`reserve_for`](crate::Policy::reserve_for), and nothing is
/// counted for them.
#[derive(Debug)]
#[must_use = "a reservation lapses unless it is settled"]
pub struct Reserved {
    limiter: RateLimiter,
    decision: Decision,
    held: Charges,
}

impl Reserved {
    /// Whether the request may go on, and the numbers. Open reservations are
    /// part of what is [used](Decision::used).
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Ends the reservations and charges `actual` in their place: 0 gives all
    /// back, more than was reserved can drive the count past the limit, and then
    /// the next request is refused. Of reservations that have lapsed meanwhile
    /// all of it is charged.
    ///
    /// Answers with the numbers after it, `None` when nothing was held. One
    /// round trip to Redis; what Redis does not take is counted by this process
    /// and told to Redis later. Once polled it goes on, also if it is dropped.
    pub async fn settle(self, actual: u64) -> Option<Decision> {
        self.limiter.settle(&self.held, self.decision.source(), |_| actual).await
    }
}

impl Charge {
    /// The same, held open by a policy that reserves.
    pub(crate) fn reserve(mut self, limiter: &RateLimiter) -> Self {
        if self.policy.policy().reservation().is_some() && self.cost > 0 {
            self.act = Act::Reserve;
            self.reservation = Some(Reservation { id: limiter.0.local.marker(), amount: self.cost });
        }
        self
    }
}

impl RateLimiter {
    /// Like [`check`](Self::check), but policies that
    /// [reserve](crate::Policy::reserve_for) hold their cost open until it is
    /// settled. The others charge at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Charge, Key, Policy, Rate, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::memory();
    /// let tokens = limiter.policy(
    ///     Policy::fixed_window("tokens", Rate::per_minute(100)).reserve_for(Duration::from_secs(60)),
    /// )?;
    /// // An answer may come to 40 tokens, this one comes to 10.
    /// let reserved = limiter.reserve([Charge::new(&tokens, Key::principal("ann")).cost(40)]).await;
    /// assert_eq!(reserved.decision().remaining(), 60);
    /// let after = reserved.settle(10).await;
    /// assert_eq!(after.map(|after| after.remaining()), Some(90));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve<const N: usize>(&self, charges: [Charge; N]) -> Reserved {
        const { assert!(N >= 1 && N <= MAX_POLICIES, "a check takes 1 to 8 policies") };
        self.let_others_run().await;
        let mut charges: Charges = distinct(charges).into_iter().map(|charge| charge.reserve(self)).collect();
        charges.iter_mut().for_each(|charge| charge.list(Listing::Always));
        let decision = self.begin(&charges).await;
        let mut held = if decision.is_allowed() { charges } else { ArrayVec::new() };
        held.retain(|charge| !decision.refused(&charge.policy));
        Reserved { limiter: self.clone(), decision, held }
    }

    /// Gives a charge back, in the store and the window that it was charged in:
    /// never below zero, and nothing once that window is over. `decision` is the
    /// answer of the check that charged it, of this policy alone: of another
    /// policy, or a refusal, nothing is given back, and the answer is false.
    ///
    /// One round trip to Redis. To count only some requests, failed logins for
    /// example, [reserve](Self::reserve) instead: a charge that is given back
    /// has refused others meanwhile.
    ///
    /// # Errors
    ///
    /// When Redis has charged it and could not be told.
    pub async fn refund(&self, charge: &Charge, decision: &Decision) -> Result<bool, StoreError> {
        let is_of = decision.policy() == charge.policy.policy().name();
        if !is_of || decision.refusal().is_some() || !decision.is_counted() {
            return Ok(false);
        }
        // Two readings of a clock in milliseconds can be one more apart than the
        // moments were. A later window ends later by far more than that.
        let end = decision.at.saturating_add(decision.outcome.reset_after_ms).saturating_add(1);
        let left = i64::try_from(end).unwrap_or(i64::MAX) - i64::try_from(self.0.clock.now()).unwrap_or(0);
        let charges = Charges::from_iter([Charge { act: Act::Refund { left }, ..charge.clone() }]);
        let was_redis = decision.source() == Source::Redis;
        if !was_redis && !self.can_ask_redis(charge) {
            let _ = self.0.decide_here(&charges);
        } else if self.begin(&charges).await.source() != Source::Redis {
            // What Redis has charged is not given back by this process.
            return Err(StoreError::new(StoreErrorKind::Disconnected));
        }
        Ok(true)
    }
}

/// A settlement under way. It goes on if this is dropped.
pub(crate) enum Settling {
    /// `None`: there was nothing to settle, or its runtime has ended.
    Done(Option<Decision>),
    #[cfg(feature = "redis")]
    Waiting(tokio::task::JoinHandle<Decision>),
}

impl Future for Settling {
    type Output = Option<Decision>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Decision>> {
        match self.get_mut() {
            Self::Done(decision) => Poll::Ready(decision.take()),
            #[cfg(feature = "redis")]
            Self::Waiting(decision) => Pin::new(decision).poll(_cx).map(Result::ok),
        }
    }
}

impl RateLimiter {
    /// Settles the reservations among these charges, each for what `actual` says
    /// of its position. It does not depend on being polled: whoever asked for it
    /// may be gone.
    ///
    /// It goes where the place is held: what this process has admitted by itself
    /// it settles by itself, without a wait, and pays with the next check.
    pub(crate) fn settle(&self, held: &Charges, admitted: Source, actual: impl Fn(usize) -> u64) -> Settling {
        let settle = |(i, charge): (usize, &Charge)| {
            let settled = Charge { act: Act::Settle, cost: actual(i), ..charge.clone() };
            charge.is_reserved().then_some(settled)
        };
        let charges: Charges = held.iter().enumerate().filter_map(settle).collect();
        if charges.is_empty() {
            return Settling::Done(None);
        }
        if admitted != Source::Redis {
            return Settling::Done(Some(self.0.decide_here(&charges)));
        }
        match self.begin(&charges) {
            Check::Ready(decision) => Settling::Done(Some(decision)),
            #[cfg(feature = "redis")]
            Check::Waiting(check) => match tokio::runtime::Handle::try_current() {
                Ok(runtime) => Settling::Waiting(runtime.spawn(check)),
                // Dropped outside of any runtime: counted here, and paid later.
                Err(_) => {
                    let error = StoreError::new(StoreErrorKind::Disconnected);
                    Settling::Done(Some(self.0.fall_back(&charges, &error, Charged::Unsent)))
                }
            },
        }
    }
}

impl Charge {
    /// Whether it is held open.
    pub(crate) fn is_reserved(&self) -> bool {
        self.reservation.is_some()
    }

    /// What ends its reservation in Redis and charges nothing for it, where Redis
    /// may hold one that this process has settled, or settles, by itself.
    #[cfg(feature = "redis")]
    pub(super) fn released(&self, charged: Charged) -> Option<Self> {
        let is_held = match self.act {
            Act::Reserve => charged == Charged::Unknown,
            Act::Settle => true,
            Act::Charge | Act::Refund { .. } => false,
        };
        (is_held && self.is_reserved()).then(|| Self { act: Act::Settle, cost: 0, ..self.clone() })
    }

    /// How much of it is held open.
    pub(crate) fn reserved(&self) -> u64 {
        self.reservation.map_or(0, |held| held.amount)
    }
}
