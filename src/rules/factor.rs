//! Whose limits are a multiple of everybody's.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::{Facts, Predicate};
use crate::identity::RequestHead;
use crate::limiter::BuildError;
use crate::policy::MAX_LIMIT;

/// The largest number in a factor.
const MAX_PART: u32 = 1_000_000;

/// A multiple of a limit for some: "VIP users doubled".
///
/// It applies only to limits that [name it](super::Limit::factor), so a limit
/// that must not be loosened, such as that of a login, is not loosened by
/// forgetting something. Of a limit's factors the first that fits applies.
///
/// ```
/// use tower_ratelimit::rules::Factor;
///
/// let vip = Factor::times("vip", 2).users(["ann", "bob"]);
/// ```
#[derive(Clone)]
#[must_use = "a factor does nothing until a limit has it"]
pub struct Factor(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    name: Arc<str>,
    numerator: u32,
    denominator: u32,
    users: BTreeSet<Arc<str>>,
    tenants: BTreeSet<Arc<str>>,
    plans: BTreeSet<Arc<str>>,
    when: Option<Predicate>,
}

impl Factor {
    /// `times` as much, 1 to 1,000,000, for nobody yet. The name is for those who
    /// read the rules.
    pub fn times(name: impl Into<Arc<str>>, times: u32) -> Self {
        Self::ratio(name, times, 1)
    }

    /// `numerator / denominator` as much, rounded down but at least 1. Both 1 to
    /// 1,000,000.
    pub fn ratio(name: impl Into<Arc<str>>, numerator: u32, denominator: u32) -> Self {
        Self(Arc::new(Inner {
            name: name.into(),
            numerator,
            denominator,
            users: BTreeSet::new(),
            tenants: BTreeSet::new(),
            plans: BTreeSet::new(),
            when: None,
        }))
    }

    /// For these users too, whatever their tenant.
    pub fn users(self, names: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        self.change(|inner| inner.users.extend(names.into_iter().map(Into::into)))
    }

    /// For these tenants too.
    pub fn tenants(self, ids: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        self.change(|inner| inner.tenants.extend(ids.into_iter().map(Into::into)))
    }

    /// For these plans too.
    pub fn plans(self, names: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        self.change(|inner| inner.plans.extend(names.into_iter().map(Into::into)))
    }

    /// For requests too that the predicate picks.
    pub fn when(self, when: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.change(|inner| inner.when = Some(Arc::new(when)))
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    #[cfg(feature = "rules-file")]
    pub(super) fn is_for_nobody(&self) -> bool {
        let Inner { users, tenants, plans, when, .. } = &*self.0;
        users.is_empty() && tenants.is_empty() && plans.is_empty() && when.is_none()
    }

    pub(super) fn check(&self) -> Result<(), BuildError> {
        let Inner { numerator, denominator, .. } = *self.0;
        let legal = 1..=MAX_PART;
        if legal.contains(&numerator) && legal.contains(&denominator) {
            return Ok(());
        }
        Err(BuildError::Factor { name: self.name().to_owned(), numerator, denominator })
    }

    pub(super) fn applies(&self, head: &RequestHead<'_>, facts: &Facts) -> bool {
        let holds =
            |names: &BTreeSet<Arc<str>>, name: Option<&str>| name.is_some_and(|name| names.contains(name));
        let Inner { users, tenants, plans, when, .. } = &*self.0;
        (!users.is_empty() && holds(users, facts.user(head)))
            || (!tenants.is_empty() && holds(tenants, facts.tenant(head)))
            || (!plans.is_empty() && holds(plans, facts.plan(head)))
            || when.as_ref().is_some_and(|when| when(head))
    }

    /// Nothing stays nothing.
    pub(super) fn of(&self, limit: u64) -> u64 {
        let part = u128::from(limit) * u128::from(self.0.numerator) / u128::from(self.0.denominator.max(1));
        u64::try_from(part).unwrap_or(MAX_LIMIT).clamp(limit.min(1), MAX_LIMIT)
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { name, numerator, denominator, users, tenants, plans, when } = &*self.0;
        write!(f, "{name} x {numerator}")?;
        if *denominator != 1 {
            write!(f, "/{denominator}")?;
        }
        for (what, names) in [("users", users), ("tenants", tenants), ("plans", plans)] {
            if !names.is_empty() {
                write!(f, ", {what} {names:?}")?;
            }
        }
        if when.is_some() {
            f.write_str(", whom a predicate picks")?;
        }
        Ok(())
    }
}

/// How many, not who.
impl fmt::Debug for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Factor({} x {}/{})", self.0.name, self.0.numerator, self.0.denominator)
    }
}
