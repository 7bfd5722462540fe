//! After the response: which requests count, and for how much.
//!
//! A request of a policy that reserves holds its place from its admission on.
//! What is known with the head of the response, or with the trailers of a gRPC
//! one, settles it then; what a handler or a streaming body tells settles it
//! when the body has ended. A client that leaves before anything is known has
//! used its place: guesses must not become free by hanging up.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use arrayvec::ArrayVec;
use http::HeaderMap;

use crate::decision::{Decision, Source};
use crate::limiter::{Charge, Charges, RateLimiter, Settling};
use crate::policy::MAX_POLICIES;
use crate::rules::{CountIf, ResponseHead};

/// Tells what a request really costs, once that is known: the tokens of an
/// answer. In the extensions of requests under a policy that
/// [reserves](crate::Policy::reserve_for), unless it
/// [counts by the response](crate::rules::Limit::count_if). Clones are one
/// handle. In nested layers it settles what each of them holds.
///
/// It is settled once: by [`settle`](Self::settle), or for the sum of what was
/// [reported](Self::report) when the response body has ended or was dropped. If
/// neither is ever called, the reservation lapses by itself and nothing is
/// counted.
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use tower_ratelimit::middleware::Settlement;
///
/// async fn complete(Extension(tokens): Extension<Settlement>) -> &'static str {
///     tokens.report(12);
///     "twelve tokens"
/// }
/// let app: Router = Router::new().route("/complete", post(complete));
/// ```
#[derive(Clone)]
pub struct Settlement(Arc<Usage>);

struct Usage {
    limiter: RateLimiter,
    /// Who has admitted it, and so holds the place.
    admitted: Source,
    open: Mutex<Open>,
    /// That of a layer further out, in the place of which a handler finds this one.
    outer: Option<Settlement>,
}

struct Open {
    /// Empty once it is settled.
    held: Charges,
    reported: Option<u64>,
}

impl Settlement {
    fn new(limiter: RateLimiter, admitted: Source, held: Charges, outer: Option<Self>) -> Self {
        Self(Arc::new(Usage { limiter, admitted, open: Mutex::new(Open { held, reported: None }), outer }))
    }

    /// Adds to what the request costs. Charged when the response body has ended
    /// or was dropped, together with what was reported before. Does nothing once
    /// it is settled.
    pub fn report(&self, amount: u64) {
        let mut open = self.open();
        open.reported = Some(open.reported.unwrap_or(0).saturating_add(amount));
        drop(open);
        if let Some(outer) = &self.0.outer {
            outer.report(amount);
        }
    }

    /// Charges `actual` now, in place of the reservation and of all that was
    /// reported. Answers whether it was not settled before. It does not wait for
    /// Redis.
    #[expect(clippy::must_use_candidate, reason = "most callers settle once, and know it")]
    pub fn settle(&self, actual: u64) -> bool {
        if let Some(outer) = &self.0.outer {
            outer.settle(actual);
        }
        self.settle_here(actual)
    }

    fn settle_here(&self, actual: u64) -> bool {
        let held = std::mem::take(&mut self.open().held);
        // Nobody waits for it: it goes on by itself.
        drop(self.0.limiter.settle(&held, self.0.admitted, |_| actual));
        !held.is_empty()
    }

    /// The stream has ended: what was reported is what it has cost.
    fn end(&self) {
        let reported = self.open().reported;
        if let Some(reported) = reported {
            // A layer further out hears of the end by itself.
            self.settle_here(reported);
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open();
        f.debug_struct("Settlement")
            .field("open", &!open.held.is_empty())
            .field("reported", &open.reported)
            .finish_non_exhaustive()
    }
}

/// What one request holds open. Boxed where it is kept: most hold nothing.
pub(super) struct Held {
    counted: Counted,
    usage: Option<UntilTheEnd>,
}

impl Held {
    /// What an admitted request holds, `None` for nothing.
    pub(super) fn of(
        limiter: &RateLimiter,
        charges: &Charges,
        counts: &[Option<CountIf>],
        decision: &Decision,
        outer: Option<&Settlement>,
    ) -> Option<Box<Self>> {
        let mut counted = ArrayVec::new();
        let mut used = Charges::new();
        let held = |charge: &Charge| charge.is_reserved() && !decision.refused(charge.policy());
        for (charge, count_if) in charges.iter().zip(counts).filter(|(charge, _)| held(charge)) {
            match count_if {
                Some(count_if) => counted.push((charge.clone(), count_if.clone())),
                None => used.push(charge.clone()),
            }
        }
        if counted.is_empty() && used.is_empty() {
            return None;
        }
        let admitted = decision.source();
        let usage = (!used.is_empty())
            .then(|| UntilTheEnd(Settlement::new(limiter.clone(), admitted, used, outer.cloned())));
        let counted = Counted { limiter: limiter.clone(), admitted, lines: counted };
        Some(Box::new(Self { counted, usage }))
    }

    /// For the handler.
    pub(super) fn settlement(&self) -> Option<&Settlement> {
        self.usage.as_ref().map(|UntilTheEnd(settlement)| settlement)
    }

    /// Settles what the head of a response decides.
    pub(super) fn settle_by(&mut self, head: &ResponseHead<'_>) -> Settling {
        self.counted.settle(|count_if| count_if.counts(head))
    }

    /// Whether something is left to settle with the trailers, or at the end.
    pub(super) fn is_open(&self) -> bool {
        !self.counted.lines.is_empty() || self.usage.is_some()
    }

    /// Settles what the trailers of a response decide.
    pub(super) fn settle_by_trailers(&mut self, trailers: &HeaderMap) {
        let extensions = http::Extensions::new();
        let head = ResponseHead::of_trailers(trailers, &extensions);
        drop(self.counted.settle(|count_if| count_if.counts(&head)));
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("usage", &self.usage).finish_non_exhaustive()
    }
}

/// Places that count by the response. Dropped without one, they count: the
/// client has left, or the handler has failed, and nobody knows what it would
/// have been.
struct Counted {
    limiter: RateLimiter,
    admitted: Source,
    lines: ArrayVec<(Charge, CountIf), MAX_POLICIES>,
}

impl Counted {
    fn settle(&mut self, counts: impl Fn(&CountIf) -> bool) -> Settling {
        let lines = std::mem::take(&mut self.lines);
        let held: Charges = lines.iter().map(|(charge, _)| charge.clone()).collect();
        self.limiter.settle(
            &held,
            self.admitted,
            |i| if counts(&lines[i].1) { held[i].reserved() } else { 0 },
        )
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        drop(self.settle(|_| true));
    }
}

/// Settles what was reported when the response has ended, however it ends.
#[derive(Debug)]
struct UntilTheEnd(Settlement);

impl Drop for UntilTheEnd {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The numbers of an admitted request after what it holds was settled with the
/// head of its response.
pub(super) struct SettledHead {
    settling: Settling,
    admitted: Decision,
}

impl SettledHead {
    pub(super) fn new(settling: Settling, admitted: Decision) -> Self {
        Self { settling, admitted }
    }
}

impl Future for SettledHead {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        Pin::new(&mut self.settling).poll(cx).map(|settled| {
            let admitted = self.admitted.clone();
            match settled {
                Some(after) => admitted.updated_by(after),
                None => admitted,
            }
        })
    }
}
