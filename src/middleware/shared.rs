//! What all services of one layer share: who is limited by which policy, and
//! what is done with the answer. Everything about a request but its body.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::ACCESS_CONTROL_REQUEST_METHOD;
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::builder::Missing;
use crate::decision::Decision;
use crate::identity::{ClientIp, Identified, Identify, Notes, RequestHead};
use crate::key::{Key, KeyBuilder};
use crate::limiter::{Charge, Charges, Check, Listing, PolicyHandle, RateLimiter};
use crate::observe::Problem;
use crate::response::{self, Fields, Refused, Reply};

/// Answers whether a request is not limited at all.
pub(super) type Skip = Arc<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;

/// One policy of a layer.
#[derive(Clone)]
pub(super) struct Rule {
    pub(super) policy: PolicyHandle,
    pub(super) identity: Arc<dyn Identify>,
    /// The value of `x-ratelimit-limit`, made once.
    pub(super) limit: HeaderValue,
}

pub(super) struct Shared {
    pub(super) limiter: RateLimiter,
    pub(super) rules: Vec<Rule>,
    pub(super) missing: Missing,
    pub(super) client_ip: ClientIp,
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
    /// What to leave in the request for a layer further in, where there may be
    /// one that would charge the same again.
    mark: Option<Charged>,
}

/// What is still to be told of an admitted request.
pub(super) struct Shown {
    decision: Decision,
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
        let mut charges = Charges::new();
        let mut notes = Notes::default();
        let listing = if self.fields.standard { Listing::Always } else { Listing::OnRefusal };
        let mut last: Option<(&Arc<dyn Identify>, Key)> = None;
        for rule in &self.rules {
            let key = match last {
                Some((identity, key)) if Arc::ptr_eq(identity, &rule.identity) => key,
                _ => match self.key_of(&*rule.identity, &head, &mut notes) {
                    Ok(Some(key)) => key,
                    Ok(None) => continue,
                    Err(status) => return Admission::Refused(response::turned_away(&head, status)),
                },
            };
            last = Some((&rule.identity, key));
            if !before.is_some_and(|charged| charged.holds(&rule.policy, &key)) {
                charges.push(Charge::new(&rule.policy, key).listing(listing));
            }
        }
        self.tell_of(notes);
        if charges.is_empty() {
            return Admission::Forward(None);
        }
        let mark = self.may_nest().then(|| {
            let here = charges.iter().map(|charge| (charge.policy().clone(), *charge.key()));
            Charged(before.iter().flat_map(|charged| charged.0.iter().cloned()).chain(here).collect())
        });
        let passed = Passed { notes, mark };
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
            let passed = Passed { notes: checking.passed.notes, mark: checking.passed.mark.take() };
            self.conclude(decision, passed, &RequestHead::new(request))
        })
    }

    /// Tells the client of an admitted request how much is left.
    pub(super) fn describe<R>(&self, response: &mut Response<R>, shown: Shown) {
        let decision = shown.decision;
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
    }

    fn conclude(&self, decision: Decision, passed: Passed, head: &RequestHead<'_>) -> Admission {
        if decision.is_allowed() {
            let in_request = self.decision_in_request;
            return Admission::Forward(Some(Shown { decision, mark: passed.mark, in_request }));
        }
        let known = passed.notes.contains(Notes::UNTRUSTED_FORWARDED);
        if !known && passed.notes.contains(Notes::UNTRUSTED_PEER) && self.client_ip.is_forwarded(head) {
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

    /// The key of a request under one identity; nothing when it is not limited
    /// by it, a status when it is turned away for want of one.
    fn key_of(
        &self,
        identity: &dyn Identify,
        head: &RequestHead<'_>,
        notes: &mut Notes,
    ) -> Result<Option<Key>, StatusCode> {
        let identified = match identity.identify(head, KeyBuilder::default()) {
            Identified::Missing(key) => match self.missing {
                Missing::ByIp => self.client_ip.identify(head, key),
                Missing::Shared => Identified::Known(key.missing(), Notes::default()),
                Missing::Skip => return Ok(None),
                Missing::Reject(status) => return Err(status),
            },
            known @ Identified::Known(..) => known,
        };
        match identified {
            Identified::Known(key, noted) => {
                *notes = notes.with(noted);
                Ok(Some(key.finish()))
            }
            // An address is never missing.
            Identified::Missing(key) => Ok(Some(key.finish())),
        }
    }

    fn is_free(&self, head: &RequestHead<'_>) -> bool {
        let preflight = !self.charge_preflights
            && head.method() == Method::OPTIONS
            && head.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        preflight || self.skips.iter().any(|skip| skip(head))
    }

    /// Whether another layer further in could charge one of these policies.
    fn may_nest(&self) -> bool {
        self.services.load(Ordering::Relaxed) > 1 || self.rules.iter().any(|rule| rule.policy.layers() > 1)
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
        let own = |rule: &&Rule| rule.policy.policy().name() == decision.policy();
        match self.rules.iter().find(own) {
            Some(rule) if rule.policy.policy().rate().limit() == decision.limit() => rule.limit.clone(),
            _ => response::number(decision.limit()),
        }
    }
}

impl Shown {
    /// Leaves in the request what layers and handlers further in may read.
    pub(super) fn enter<B>(mut self, request: &mut Request<B>) -> Self {
        if let Some(mark) = self.mark.take() {
            request.extensions_mut().insert(mark);
        }
        if self.in_request {
            request.extensions_mut().insert(self.decision.clone());
        }
        self
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<_> = self.rules.iter().map(|rule| &rule.policy).collect();
        f.debug_struct("RateLimitLayer")
            .field("limiter", &self.limiter)
            .field("policies", &policies)
            .field("missing", &self.missing)
            .field("client_ip", &self.client_ip)
            .finish_non_exhaustive()
    }
}
