//! Rules that a limiter knows and layers ask.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use http::HeaderValue;

use super::reload::ReloadPlan;
use super::rule::Conditions;
use super::selection::{Bound, LimitValues};
use super::{Limit, Predicate, Rule, RuleSet, Rules, Selection};
use crate::identity::{ClientIp, RequestHead};
use crate::limiter::{BuildError, PolicyHandle, RateLimiter};

/// A [`RuleSet`] at work, which can be replaced while requests come. Cheap to
/// clone; clones and the layers that have them share everything.
///
/// Give one and its clones to all layers that have these rules. A policy that is
/// changed here takes over its name and its counts; where another layer still
/// has the old one, both count under keys of their own, and that is told as
/// [`Problem::PolicyConflict`](crate::observe::Problem::PolicyConflict).
///
/// ```
/// use tower_ratelimit::rules::{LiveRules, RuleSet};
/// use tower_ratelimit::{Policy, Rate, RateLimiter};
///
/// let http = |limit| RuleSet::new().otherwise(Policy::fixed_window("http", Rate::per_minute(limit)));
/// let live = LiveRules::new(&RateLimiter::memory(), http(100))?;
///
/// let plan = live.plan(http(200))?;
/// assert_eq!(plan.to_string(), "http: limit 100 -> 200, counts kept\n");
/// plan.apply()?;
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
#[derive(Clone)]
pub struct LiveRules(Arc<Inner>);

struct Inner {
    limiter: RateLimiter,
    /// Read for each request, for as long as it takes to clone the pointer: a
    /// predicate of the rules may itself reload them. A lock, as the clone and
    /// the policies' own counters cost as much as it does.
    current: RwLock<Arc<Compiled>>,
    /// How many layers have these rules. Locked while either changes.
    layers: AtomicU32,
    changing: Mutex<()>,
}

/// A rule set with the policies of a limiter.
pub(super) struct Compiled {
    pub(super) set: RuleSet,
    skips: Vec<Predicate>,
    rules: Vec<(Conditions, Vec<Bound>)>,
    values: LimitValues,
    handles: HashMap<String, PolicyHandle>,
}

impl LiveRules {
    /// Makes the policies of a rule set known to a limiter.
    ///
    /// # Errors
    ///
    /// What is not legal: [`BuildError::Route`], [`BuildError::TooManyPolicies`] or
    /// [`BuildError::DuplicatePolicy`] in one rule, [`BuildError::PolicyDiffers`]
    /// between rules, [`BuildError::DuplicatePlan`], [`BuildError::Factor`],
    /// [`BuildError::Policy`], [`BuildError::ClientIp`].
    pub fn new(limiter: &RateLimiter, set: RuleSet) -> Result<Self, BuildError> {
        set.check()?;
        let compiled = Compiled::new(limiter, set, None, 0)?;
        limiter.observers().tell(|observer| observer.rules(&compiled.set.digest(), None));
        Ok(Self(Arc::new(Inner {
            limiter: limiter.clone(),
            current: RwLock::new(Arc::new(compiled)),
            layers: AtomicU32::new(0),
            changing: Mutex::default(),
        })))
    }

    /// The rules that apply now.
    pub fn current(&self) -> RuleSet {
        self.compiled().set.clone()
    }

    /// The policy of this name, if the rules that apply now have it: for a look at
    /// its counts.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<PolicyHandle> {
        self.compiled().handles.get(name).cloned()
    }

    /// What it would mean to go over to other rules. Nothing changes before
    /// [`apply`](ReloadPlan::apply).
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn plan(&self, set: RuleSet) -> Result<ReloadPlan, BuildError> {
        set.check()?;
        Ok(ReloadPlan::new(self.clone(), self.compiled(), set))
    }

    pub(super) fn replace(&self, before: &Arc<Compiled>, set: RuleSet) -> Result<(), BuildError> {
        let _changing = self.0.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.compiled();
        if !Arc::ptr_eq(&current, before) {
            return Err(BuildError::Outdated);
        }
        let limiter = &self.0.limiter;
        let compiled = Compiled::new(limiter, set, Some(before), self.0.layers.load(Ordering::Relaxed))?;
        let (digest, replaced) = (compiled.set.digest(), before.set.digest());
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(compiled);
        limiter.observers().tell(|observer| observer.rules(&digest, Some(&replaced)));
        Ok(())
    }

    fn compiled(&self) -> Arc<Compiled> {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Rules for LiveRules {
    fn select(&self, head: &RequestHead<'_>, out: &mut Selection<'_>) {
        self.compiled().select(head, out);
    }

    fn limit_value(&self, limit: u64) -> Option<HeaderValue> {
        self.compiled().values.get(limit)
    }

    fn client_ip(&self) -> Option<ClientIp> {
        let compiled = self.compiled();
        compiled.set.limits().find_map(|limit| limit.identity()?.client_ip().cloned())
    }

    fn join(&self, limiter: &RateLimiter) -> Result<(), BuildError> {
        if !self.0.limiter.is(limiter) {
            return Err(BuildError::Conflict { field: "rules", other: "another limiter than theirs" });
        }
        let _changing = self.0.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.layers.fetch_add(1, Ordering::Relaxed);
        self.compiled().handles.values().for_each(PolicyHandle::count_layer);
        Ok(())
    }
}

impl Compiled {
    fn new(
        limiter: &RateLimiter,
        set: RuleSet,
        before: Option<&Self>,
        layers: u32,
    ) -> Result<Self, BuildError> {
        let mut rules: Vec<Rule> = set.rules.clone();
        rules.push(set.default_rule());
        let paired = |name: &str| {
            let has = |rule: &&Rule| rule.limits.iter().any(|limit| limit.policy.name() == name);
            rules.iter().filter(has).any(|rule| rule.limits.len() > 1)
        };
        let mut handles: HashMap<String, PolicyHandle> = HashMap::new();
        for limit in set.limits() {
            let name = limit.policy.name();
            if handles.contains_key(name) {
                continue;
            }
            let replaced = before.and_then(|before| before.handles.get(name));
            let is_looser = before.is_some_and(|before| {
                let known = before.set.limits().find(|known| known.policy.name() == name);
                known.is_some_and(|known| limit.is_looser_than(known))
            });
            let handle = limiter.renew(&limit.policy, paired(name), replaced, layers, is_looser)?;
            if replaced.is_none_or(|replaced| !replaced.is(&handle)) {
                (0..layers).for_each(|_| handle.count_layer());
            }
            handles.insert(name.to_owned(), handle);
        }
        let bind = |rule: &Rule| -> Result<_, BuildError> {
            let known = |limit: &Limit| handles.get(limit.policy.name()).cloned();
            let handles: Vec<_> = rule.limits.iter().filter_map(known).collect();
            Ok((rule.conditions()?, Bound::all(&rule.limits, handles, &set.facts)))
        };
        let rules: Vec<(Conditions, Vec<Bound>)> = rules.iter().map(bind).collect::<Result<_, _>>()?;
        let values = LimitValues::of(rules.iter().flat_map(|(_, bound)| bound));
        let skips = set.skips()?;
        Ok(Self { set, skips, rules, values, handles })
    }

    fn select(&self, head: &RequestHead<'_>, out: &mut Selection<'_>) {
        if self.skips.iter().any(|skip| skip(head)) {
            return;
        }
        for (conditions, limits) in &self.rules {
            if let Some(head) = conditions.hold(head, &self.set.facts) {
                limits.iter().for_each(|limit| out.add(limit, &head, 1));
                return;
            }
        }
    }
}

impl fmt::Debug for LiveRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LiveRules").field(&self.compiled().set).finish()
    }
}
