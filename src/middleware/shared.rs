//! What all services of one layer share: who is limited by which policy, and
//! what is done with the answer. Everything about a request but its body.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use arrayvec::ArrayVec;
use bytes::Bytes;
use http::header::ACCESS_CONTROL_REQUEST_METHOD;
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::settlement::{Held, SettledHead};
use crate::decision::Decision;
use crate::identity::{Notes, RequestHead};
use crate::key::Key;
use crate::limiter::{Charges, Check, Listing, PolicyHandle, RateLimiter, Settling};
use crate::observe::Problem;
use crate::policy::MAX_POLICIES;
use crate::response::{self, Fields, Refused, Reply};
use crate::rules::{CountIf, ResponseHead, Rules, Selected, Selection, Who};

/// Answers whether a request is not limited at all.
pub(super) type Skip = Arc<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;

pub(super) struct Shared {
    pub(super) limiter: RateLimiter,
    /// Which policies apply: a fixed list is one kind of rules.
    pub(super) rules: Arc<dyn Rules>,
    pub(super) who: Who,
    pub(super) skips: Vec<Skip>,
    pub(super) charge_preflights: bool,
    pub(super) fields: Fields,
    pub(super) reply: Arc<dyn Reply>,
    pub(super) too_large: StatusCode,
    pub(super) decision_in_request: bool,
    pub(super) decision_in_response: bool,
    /// How many services were made: with more than one, a request may pass two.
    pub(super) services: AtomicUsize,
}

/// What is to be done with a request.
pub(super) enum Admission {
    Undecided(Checking),
    Refused(Response<Bytes>),
    /// `None`: it was not limited here.
    Forward(Option<Shown>),
}

/// A check that waits for the store.
pub(super) struct Checking {
    check: Check,
    passed: Passed,
}

/// What is remembered of a request while it is checked.
struct Passed {
    notes: Notes,
    /// What it asks to hold open, where a policy reserves.
    reserves: Option<Box<Reserves>>,
    /// What to leave in the request for a layer further in, where there may be
    /// one that would charge the same again.
    mark: Option<Charged>,
}

/// Charges that are held open if they are admitted, and which responses count.
struct Reserves {
    charges: Charges,
    counts: ArrayVec<Option<CountIf>, MAX_POLICIES>,
}

/// What is still to be told of an admitted request.
pub(super) struct Shown {
    decision: Decision,
    held: Option<Box<Held>>,
    mark: Option<Charged>,
    in_request: bool,
}

/// What outer layers have charged this request, in its extensions.
#[derive(Clone)]
struct Charged(Vec<(PolicyHandle, Key)>);

impl Charged {
    fn holds(&self, policy: &PolicyHandle, key: &Key) -> bool {
        self.0.iter().any(|(other, charged)| other.is(policy) && charged.as_str() == key.as_str())
    }
}

impl Shared {
    /// Identifies a request and starts its check.
    pub(super) fn start<B>(&self, request: &Request<B>) -> Admission {
        let head = RequestHead::new(request);
        if self.is_free(&head) {
            return Admission::Forward(None);
        }
        let before = request.extensions().get::<Charged>();
        let mut selection = Selection::new(&self.who);
        self.rules.select(&head, &mut selection);
        let mut selected = selection.finish();
        self.tell_of(selected.notes);
        if let Some(status) = selected.rejected {
            return Admission::Refused(response::turned_away(&head, status));
        }
        if let Some(charged) = before {
            selected.leave_out(|policy, key| charged.holds(policy, key));
        }
        let Selected { mut charges, counts, notes, .. } = selected;
        if charges.is_empty() {
            return Admission::Forward(None);
        }
        // What is given back after the response may leave another one the tightest.
        let reserves = charges.iter().any(|charge| charge.policy().policy().reservation().is_some());
        let listing = if self.fields.standard || reserves { Listing::Always } else { Listing::OnRefusal };
        charges.iter_mut().for_each(|charge| charge.list(listing));
        let may_nest = self.services.load(Ordering::Relaxed) > 1
            || charges.iter().any(|charge| charge.policy().layers() > 1);
        let mark = may_nest.then(|| {
            let here = charges.iter().map(|charge| (charge.policy().clone(), *charge.key()));
            Charged(before.iter().flat_map(|charged| charged.0.iter().cloned()).chain(here).collect())
        });
        let (charges, reserves) = self.reserve(charges, counts);
        let passed = Passed { notes, reserves, mark };
        match self.limiter.begin(&charges) {
            Check::Ready(decision) => self.conclude(decision, passed, &head),
            #[cfg(feature = "redis")]
            check @ Check::Waiting(_) => Admission::Undecided(Checking { check, passed }),
        }
    }

    /// Goes on with a check that waits for the store.
    pub(super) fn poll<B>(
        &self,
        checking: &mut Checking,
        request: &Request<B>,
        cx: &mut Context<'_>,
    ) -> Poll<Admission> {
        Pin::new(&mut checking.check).poll(cx).map(|decision| {
            let Passed { notes, reserves, mark } = &mut checking.passed;
            let passed = Passed { notes: *notes, reserves: reserves.take(), mark: mark.take() };
            self.conclude(decision, passed, &RequestHead::new(request))
        })
    }

    /// The charges as they are made, and what is remembered of those that are
    /// held open.
    fn reserve(
        &self,
        charges: Charges,
        counts: ArrayVec<Option<CountIf>, MAX_POLICIES>,
    ) -> (Charges, Option<Box<Reserves>>) {
        if charges.iter().all(|charge| charge.policy().policy().reservation().is_none()) {
            return (charges, None);
        }
        let charges: Charges = charges.into_iter().map(|charge| charge.reserve(&self.limiter)).collect();
        (charges.clone(), Some(Box::new(Reserves { charges, counts })))
    }

    /// Tells the client of an admitted request how much is left. Answers with
    /// what the end of the response settles.
    pub(super) fn describe<R>(
        &self,
        response: &mut Response<R>,
        shown: Shown,
        decision: Decision,
    ) -> Option<Box<Held>> {
        if self.fields.is_any() && decision.is_counted() && !decision.is_shadow() {
            let since_epoch = self.limiter.clock().since_epoch();
            let limit = self.limit_value(&decision);
            self.fields.describe(response.headers_mut(), &decision, &limit, since_epoch);
        }
        // As with the headers, an inner layer that has less left keeps its word.
        let inner = response.extensions().get::<Decision>();
        if self.decision_in_response && !inner.is_some_and(|inner| inner.is_tighter_than(&decision)) {
            response.extensions_mut().insert(decision);
        }
        shown.held.filter(|held| held.is_open())
    }

    fn conclude(&self, decision: Decision, passed: Passed, head: &RequestHead<'_>) -> Admission {
        if decision.is_allowed() {
            let in_request = self.decision_in_request;
            let held = passed.reserves.filter(|_| decision.is_counted());
            let outer = head.extensions().get();
            let held =
                held.and_then(|held| Held::of(&self.limiter, &held.charges, &held.counts, &decision, outer));
            return Admission::Forward(Some(Shown { decision, held, mark: passed.mark, in_request }));
        }
        let known = passed.notes.contains(Notes::UNTRUSTED_FORWARDED);
        if !known && passed.notes.contains(Notes::UNTRUSTED_PEER) && self.who.client_ip.is_forwarded(head) {
            // Perhaps a proxy that nobody has named, and all of its users.
            self.tell_of(Notes::UNTRUSTED_FORWARDED);
        }
        let since_epoch = self.limiter.clock().since_epoch();
        let refused = Refused { decision: &decision, head: *head, too_large: self.too_large, since_epoch };
        let mut response = self.reply.refuse(&refused);
        let limit = self.limit_value(&decision);
        self.fields.refuse(&mut response, &decision, &limit, since_epoch);
        if self.decision_in_response {
            response.extensions_mut().insert(decision);
        }
        Admission::Refused(response)
    }

    fn is_free(&self, head: &RequestHead<'_>) -> bool {
        let preflight = !self.charge_preflights
            && head.method() == Method::OPTIONS
            && head.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        preflight || self.skips.iter().any(|skip| skip(head))
    }

    fn tell_of(&self, notes: Notes) {
        if notes.is_empty() {
            return;
        }
        let observers = self.limiter.observers();
        for (note, reason) in Notes::ODD {
            if notes.contains(note) {
                observers.tell(|observer| observer.odd_address(reason));
            }
        }
        if notes.contains(Notes::NO_PEER) {
            self.limiter.noticed(Problem::NoPeerAddress);
        }
        if notes.contains(Notes::UNTRUSTED_FORWARDED) {
            self.limiter.noticed(Problem::UntrustedForwarding);
        }
    }

    /// The value of `x-ratelimit-limit`, ready-made unless a fallback has its own.
    fn limit_value(&self, decision: &Decision) -> HeaderValue {
        self.rules.limit_value(decision.limit()).unwrap_or_else(|| response::number(decision.limit()))
    }
}

impl Shown {
    /// Settles what the head of a response decides. Of a gRPC response that is
    /// not known before its trailers.
    pub(super) fn settle_by<R>(&mut self, response: &Response<R>) -> SettledHead {
        let head = ResponseHead::new(response);
        let settling = match &mut self.held {
            Some(held) if !head.is_in_trailers() => held.settle_by(&head),
            _ => Settling::Done(None),
        };
        SettledHead::new(settling, self.decision.clone())
    }

    /// Leaves in the request what layers and handlers further in may read.
    pub(super) fn enter<B>(mut self, request: &mut Request<B>) -> Self {
        if let Some(mark) = self.mark.take() {
            request.extensions_mut().insert(mark);
        }
        if let Some(settlement) = self.held.as_ref().and_then(|held| held.settlement()) {
            request.extensions_mut().insert(settlement.clone());
        }
        if self.in_request {
            request.extensions_mut().insert(self.decision.clone());
        }
        self
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.limiter)
            .field("missing", &self.who.missing)
            .field("client_ip", &self.who.client_ip)
            .finish_non_exhaustive()
    }
}
