//! What a check costs whom.

use arrayvec::ArrayVec;

use super::PolicyHandle;
use super::settle::Reservation;
use crate::algorithm::{Act, Rule};
use crate::key::Key;
use crate::policy::MAX_POLICIES;
use crate::store::memory::Asked;

/// A cost for one identity under one policy.
#[derive(Clone, Debug)]
#[must_use = "a charge does nothing until it is checked"]
pub struct Charge {
    pub(super) policy: PolicyHandle,
    pub(super) key: Key,
    pub(super) cost: u64,
    pub(super) listing: Listing,
    /// In place of the policy's.
    pub(super) limit: Option<u64>,
    pub(super) act: Act,
    /// The one that is made or settled.
    pub(super) reservation: Option<Reservation>,
}

/// Whether a decision lists what each policy of the check made of it. A list
/// costs an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    Never,
    OnRefusal,
    Always,
}

impl Charge {
    /// A charge of 1.
    pub fn new(policy: &PolicyHandle, key: Key) -> Self {
        Self {
            policy: policy.clone(),
            key,
            cost: 1,
            limit: None,
            act: Act::Charge,
            reservation: None,
            listing: Listing::Never,
        }
    }

    /// Another limit for this identity, on the same count: a plan, or a customer
    /// who has twice as much. The burst of a bucket changes in proportion.
    /// Anything above [`MAX_LIMIT`](crate::MAX_LIMIT) is that. Default: the
    /// policy's.
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Another cost, in the units of the limit. 0 charges nothing and is
    /// refused exactly when 1 would be; one above the limit is
    /// [`Refusal::TooLarge`](crate::Refusal::TooLarge). Default: 1.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    pub(crate) fn list(&mut self, listing: Listing) {
        self.listing = listing;
    }

    pub(crate) fn policy(&self) -> &PolicyHandle {
        &self.policy
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Whether both charge one identity under one policy.
    pub(crate) fn is_for(&self, other: &Self) -> bool {
        self.policy.id() == other.policy.id() && self.key.as_str() == other.key.as_str()
    }

    pub(super) fn rule(&self) -> Rule {
        let rule = self.policy.rule_for(&self.key);
        self.limit.map_or(rule, |limit| rule.with_limit(limit))
    }

    pub(super) fn asked(&self) -> Asked<'_> {
        Asked {
            policy: self.policy.id(),
            key: self.key.as_str(),
            first_len: self.key.first_len(),
            rule: self.rule(),
            cost: self.cost,
            act: self.act,
            reservation: self.reservation.map(|held| (held.id, self.policy.policy().reserve_ms())),
        }
    }
}

/// The charges of one check.
pub(crate) type Charges = ArrayVec<Charge, MAX_POLICIES>;

/// One charge for each identity and policy.
pub(super) fn distinct<const N: usize>(charges: [Charge; N]) -> Charges {
    let mut distinct = Charges::new();
    for charge in charges {
        match distinct.iter_mut().find(|other| other.is_for(&charge)) {
            Some(other) => other.cost = other.cost.saturating_add(charge.cost),
            None => distinct.push(charge),
        }
    }
    distinct
}
