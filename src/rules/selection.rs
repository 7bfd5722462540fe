//! What the rules have chosen for one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use http::{HeaderValue, StatusCode};

use super::count_if::CountIf;
use super::{Facts, Limit};
use crate::identity::missing::Missing;
use crate::identity::{ClientIp, Identify, Notes, RequestHead};
use crate::key::Key;
use crate::limiter::{Charge, Charges, PolicyHandle};
use crate::policy::MAX_POLICIES;

/// How a layer finds out who is asking, unless a limit says so itself.
pub(crate) struct Who {
    pub(crate) identity: Arc<dyn Identify>,
    pub(crate) missing: Missing,
    pub(crate) client_ip: ClientIp,
}

/// What one request is to be charged: filled by [`Rules`](super::Rules). At most
/// 8 charges, of different policies.
pub struct Selection<'a> {
    who: &'a Who,
    charges: Charges,
    counts: ArrayVec<Option<CountIf>, MAX_POLICIES>,
    notes: Notes,
    /// The key under the identity that was asked last, by its number.
    last: Option<(u64, Key)>,
    rejected: Option<StatusCode>,
}

/// What a layer goes on with.
pub(crate) struct Selected {
    pub(crate) charges: Charges,
    /// Which responses count, charge by charge. `None`: all.
    pub(crate) counts: ArrayVec<Option<CountIf>, MAX_POLICIES>,
    pub(crate) notes: Notes,
    /// The request is turned away for want of an identity.
    pub(crate) rejected: Option<StatusCode>,
}

impl Selected {
    /// Takes out what is charged already.
    pub(crate) fn leave_out(&mut self, is_charged: impl Fn(&PolicyHandle, &Key) -> bool) {
        for i in (0..self.charges.len()).rev() {
            if is_charged(self.charges[i].policy(), self.charges[i].key()) {
                drop(self.charges.remove(i));
                self.counts.remove(i);
            }
        }
    }
}

impl<'a> Selection<'a> {
    pub(crate) fn new(who: &'a Who) -> Self {
        Self {
            who,
            charges: Charges::new(),
            counts: ArrayVec::new(),
            notes: Notes::default(),
            last: None,
            rejected: None,
        }
    }

    /// Adds a charge. Answers whether there was room and the policy is not in
    /// it yet; what is not added is not charged.
    pub fn charge(&mut self, charge: Charge) -> bool {
        self.push(charge, None)
    }

    /// Turns the request away with this status and an empty body, whatever was
    /// charged before; nothing is charged then. Only a status of 400 to 499 is
    /// taken; any other is 403.
    pub fn reject(&mut self, status: StatusCode) {
        self.rejected = Some(if status.is_client_error() { status } else { StatusCode::FORBIDDEN });
    }

    fn push(&mut self, charge: Charge, count_if: Option<CountIf>) -> bool {
        let is_new = !self.charges.iter().any(|other| other.policy().id() == charge.policy().id());
        is_new && self.counts.try_push(count_if).is_ok() && self.charges.try_push(charge).is_ok()
    }

    /// Adds what a limit charges this request, which counts as so many.
    pub(crate) fn add(&mut self, bound: &Bound, head: &RequestHead<'_>, times: u64) {
        if self.rejected.is_some() {
            return;
        }
        let limit = &bound.limit;
        let key = match self.last {
            Some((number, key)) if number == bound.identity => key,
            _ => {
                let identity = limit.identity.as_ref().unwrap_or(&self.who.identity);
                let Who { missing, client_ip, .. } = self.who;
                match missing.key_of(&**identity, head, client_ip, &mut self.notes) {
                    Ok(Some(key)) => key,
                    Ok(None) => return,
                    Err(status) => {
                        self.rejected = Some(status);
                        return;
                    }
                }
            }
        };
        self.last = Some((bound.identity, key));
        let mut charge = Charge::new(&bound.policy, key).cost(limit.cost_of(head).saturating_mul(times));
        if let Some(limit) = limit.limit_of(head, &bound.facts) {
            charge = charge.limit(limit);
        }
        self.push(charge, limit.count_if.clone());
    }

    pub(crate) fn finish(self) -> Selected {
        let Self { charges, counts, notes, rejected, .. } = self;
        Selected { charges, counts, notes, rejected }
    }
}

impl std::fmt::Debug for Selection<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Selection")
            .field("charges", &self.charges)
            .field("rejected", &self.rejected)
            .finish_non_exhaustive()
    }
}

/// A limit whose policy a limiter knows.
pub(crate) struct Bound {
    pub(super) policy: PolicyHandle,
    limit: Limit,
    /// The number of its identity: limits with the same one share a key.
    identity: u64,
    facts: Facts,
}

impl Bound {
    /// Of limits that are checked together. They share the number of an identity
    /// that they share, and of none.
    pub(crate) fn all(
        limits: &[Limit],
        handles: impl IntoIterator<Item = PolicyHandle>,
        facts: &Facts,
    ) -> Vec<Self> {
        // 0 is the layer's identity. Numbers are not used twice, so a key is
        // never taken for that of an identity which has replaced its own.
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let mut bound: Vec<Self> = Vec::with_capacity(limits.len());
        for (limit, policy) in limits.iter().zip(handles) {
            let same = |other: &&Self| match (&other.limit.identity, &limit.identity) {
                (Some(other), Some(this)) => Arc::ptr_eq(other, this),
                _ => false,
            };
            let identity = match bound.iter().find(same) {
                _ if limit.identity.is_none() => 0,
                Some(other) => other.identity,
                None => NUMBERS.fetch_add(1, Ordering::Relaxed),
            };
            bound.push(Self { policy, limit: limit.clone(), identity, facts: facts.clone() });
        }
        bound
    }
}

/// The values of `x-ratelimit-limit` that are known beforehand, ready-made.
#[derive(Default)]
pub(crate) struct LimitValues(Box<[(u64, HeaderValue)]>);

impl LimitValues {
    pub(crate) fn of<'b>(bound: impl IntoIterator<Item = &'b Bound>) -> Self {
        let told = |bound: &'b Bound| bound.limit.limits().map(|limit| bound.policy.limit_in_force(limit));
        let mut numbers: Vec<u64> = bound.into_iter().flat_map(told).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Self(numbers.into_iter().map(|number| (number, HeaderValue::from(number))).collect())
    }

    pub(crate) fn get(&self, limit: u64) -> Option<HeaderValue> {
        let found = self.0.binary_search_by_key(&limit, |(number, _)| *number).ok()?;
        self.0.get(found).map(|(_, value)| value.clone())
    }
}
