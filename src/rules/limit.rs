//! One entry of a layer or a rule: a policy, and everything around it that
//! depends on the request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::count_if::{CountIf, ResponseHead};
use super::{Factor, Facts};
use crate::identity::{Described, Identify, RequestHead};
use crate::limiter::BuildError;
use crate::policy::{MAX_LIMIT, OnStoreFailure, Policy, PolicyError};

/// How long a place is held for a response, unless the policy says.
const RESERVED_FOR: Duration = Duration::from_secs(60);

type ReadNumber<T> = Arc<dyn Fn(&RequestHead<'_>) -> T + Send + Sync>;

/// A policy as it applies to requests: who is counted, what a request costs,
/// whose limit is another one.
///
/// ```
/// use tower_ratelimit::identity::{ClientIp, Principal};
/// use tower_ratelimit::rules::{Factor, Limit};
/// use tower_ratelimit::{Policy, Rate};
///
/// let vip = Factor::times("vip", 2).users(["ann"]);
/// let writes = Limit::new(Policy::fixed_window("writes", Rate::per_minute(20)))
///     .by((Principal::by_workspace(), ClientIp::peer(), Principal::by_user()))
///     .plan("pro", 100)
///     .plan("enterprise", 1_000)
///     .factor(vip);
/// ```
///
/// Whatever its limit, an identity has one count under one policy: who changes
/// the plan keeps what is used.
#[derive(Clone)]
#[must_use = "a limit does nothing until a layer or a rule has it"]
pub struct Limit {
    pub(super) policy: Policy,
    pub(super) identity: Option<Arc<dyn Identify>>,
    cost: Cost,
    pub(super) count_if: Option<CountIf>,
    limit_by: Option<ReadNumber<Option<u64>>>,
    plans: Vec<(Arc<str>, u64)>,
    pub(super) factors: Vec<Factor>,
}

#[derive(Clone)]
enum Cost {
    Fixed(u64),
    Read(ReadNumber<u64>),
}

impl From<Policy> for Limit {
    fn from(policy: Policy) -> Self {
        Self::new(policy)
    }
}

impl Limit {
    /// The policy alone: for the layer's identity, at a cost of 1.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            identity: None,
            cost: Cost::Fixed(1),
            count_if: None,
            limit_by: None,
            plans: Vec::new(),
            factors: Vec::new(),
        }
    }

    /// Who is counted. Default: the layer's
    /// [identity](crate::middleware::RateLimitLayerBuilder::identity).
    pub fn by(mut self, identity: impl Identify) -> Self {
        self.identity = Some(Arc::new(identity));
        self
    }

    /// What a request costs, in the units of the limit: 0 charges nothing and is
    /// refused exactly when 1 would be. Default: 1.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = Cost::Fixed(cost);
        self
    }

    /// The same, read from the request.
    pub fn cost_by(mut self, cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Cost::Read(Arc::new(cost));
        self
    }

    /// Counts only requests that are answered so: failed logins. Default: all
    /// that are admitted.
    ///
    /// A request holds its place from its admission on, so that those which run at
    /// the same time cannot pass together, and gives it back if it does not count.
    /// Of gRPC responses the predicate is asked with the trailers. What nobody
    /// will know, because the client has left or the handler has failed without a
    /// response, counts. A policy without [`reserve_for`](Policy::reserve_for)
    /// gets one of a minute: give those whose handlers take longer their own.
    pub fn count_if(mut self, counts: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.count_if = Some(CountIf::Predicate(Arc::new(counts)));
        self.reserving()
    }

    /// Counts only requests that are answered with one of these statuses.
    pub fn count_if_status(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        let mut statuses: Vec<_> = statuses.into_iter().collect();
        statuses.sort_unstable();
        statuses.dedup();
        self.count_if = Some(CountIf::Statuses(statuses.into()));
        self.reserving()
    }

    fn reserving(mut self) -> Self {
        if self.policy.reservation().is_none() {
            self.policy = self.policy.reserve_for(RESERVED_FOR);
        }
        self
    }

    /// Another limit for this plan, 0 to [`MAX_LIMIT`]. Plans that are not named
    /// have the policy's own. Default: all have that.
    pub fn plan(mut self, name: impl Into<Arc<str>>, limit: u64) -> Self {
        self.plans.push((name.into(), limit));
        self
    }

    /// Another limit for a request, 0 to [`MAX_LIMIT`], cut to that; `None`
    /// leaves it to the plans. Default: the plans decide.
    pub fn limit_by(
        mut self,
        limit: impl Fn(&RequestHead<'_>) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        self.limit_by = Some(Arc::new(limit));
        self
    }

    /// Multiplies the limit for whom the factor is for. Default: no factor
    /// loosens this limit.
    pub fn factor(mut self, factor: Factor) -> Self {
        self.factors.push(factor);
        self
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(crate) fn identity(&self) -> Option<&Arc<dyn Identify>> {
        self.identity.as_ref()
    }

    pub(super) fn check(&self) -> Result<(), BuildError> {
        for (i, (name, limit)) in self.plans.iter().enumerate() {
            if *limit > MAX_LIMIT {
                return Err(PolicyError::Limit { limit: *limit }.into());
            }
            if self.plans[..i].iter().any(|(other, _)| other == name) {
                return Err(BuildError::DuplicatePlan {
                    policy: self.policy.name().to_owned(),
                    plan: name.as_ref().to_owned(),
                });
            }
        }
        self.factors.iter().try_for_each(Factor::check)
    }

    pub(super) fn cost_of(&self, head: &RequestHead<'_>) -> u64 {
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::Read(cost) => cost(head),
        }
    }

    /// The limit of a request, where it is not simply the policy's.
    pub(super) fn limit_of(&self, head: &RequestHead<'_>, facts: &Facts) -> Option<u64> {
        let read = self.limit_by.as_ref().and_then(|limit_by| limit_by(head));
        let limit = read.or_else(|| {
            let plan = if self.plans.is_empty() { None } else { facts.plan(head) }?;
            self.plans.iter().find(|(name, _)| **name == *plan).map(|(_, limit)| *limit)
        });
        match self.factors.iter().find(|factor| factor.applies(head, facts)) {
            Some(factor) => Some(factor.of(limit.unwrap_or(self.policy.rate().limit()))),
            None => limit,
        }
    }

    /// All limits that are known beforehand.
    pub(super) fn limits(&self) -> impl Iterator<Item = u64> {
        let own = std::iter::once(self.policy.rate().limit());
        let plain = own.chain(self.plans.iter().map(|(_, limit)| *limit));
        let times = |limit| self.factors.iter().map(move |factor| factor.of(limit));
        plain.flat_map(move |limit| std::iter::once(limit).chain(times(limit)))
    }

    /// Its settings one by one, for those who compare two.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let policy = &self.policy;
        let mut settings = vec![
            ("algorithm", format!("{:?}", policy.algorithm())),
            ("limit", policy.rate().limit().to_string()),
            ("window", duration(policy.rate().window())),
            ("burst", policy.max_burst().map_or_else(|| NONE.to_owned(), |burst| burst.to_string())),
            ("reserve", policy.reservation().map_or_else(|| NONE.to_owned(), duration)),
            ("block", policy.block().map_or_else(|| NONE.to_owned(), duration)),
            ("on_store_failure", format!("{:?}", policy.store_failure()).to_lowercase()),
            ("mode", if policy.is_shadow() { "shadow" } else { "enforce" }.to_owned()),
            (
                "identity",
                self.identity
                    .as_ref()
                    .map_or_else(|| "the layer's".to_owned(), |who| Described(who).to_string()),
            ),
            ("cost", self.cost.to_string()),
            ("count", self.count_if.as_ref().map_or_else(|| "all".to_owned(), ToString::to_string)),
        ];
        settings.extend([("plans", self.listed_plans()), ("factors", self.listed_factors())]);
        settings
    }

    fn of_plan(&self, name: &str) -> u64 {
        let known = self.plans.iter().find(|(plan, _)| **plan == *name);
        known.map_or(self.policy.rate().limit(), |(_, limit)| *limit)
    }

    fn listed_plans(&self) -> String {
        let read = self.limit_by.iter().map(|_| "what a closure says".to_owned());
        let plans = self.plans.iter().map(|(name, limit)| format!("{name} {limit}"));
        join(read.chain(plans))
    }

    fn listed_factors(&self) -> String {
        join(self.factors.iter().map(ToString::to_string))
    }

    /// Whether it allows more than another one did, to anybody; a changed factor
    /// may. What closures say is not known.
    pub(super) fn is_looser_than(&self, before: &Self) -> bool {
        let (now, then) = (self.policy.rate(), before.policy.rate());
        let longest = |limit: &Self| limit.policy.block().unwrap_or_default();
        now.limit() > then.limit()
            || now.window() < then.window()
            || self.policy.max_burst() > before.policy.max_burst()
            || longest(self) < longest(before)
            || (self.policy.is_shadow() && !before.policy.is_shadow())
            || self
                .plans
                .iter()
                .chain(&before.plans)
                .any(|(plan, _)| self.of_plan(plan) > before.of_plan(plan))
            || self.listed_factors() != before.listed_factors()
    }
}

const NONE: &str = "none";

fn join(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    if items.is_empty() { NONE.to_owned() } else { items.join(", ") }
}

fn duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(cost) => write!(f, "{cost}"),
            Self::Read(_) => f.write_str("what a closure says"),
        }
    }
}

/// One line with all that is not the default.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, cost, count_if, .. } = self;
        let rate = policy.rate();
        write!(
            f,
            "{}: {:?} {} in {}",
            policy.name(),
            policy.algorithm(),
            rate.limit(),
            duration(rate.window())
        )?;
        if let Some(burst) = policy.max_burst() {
            write!(f, ", burst {burst}")?;
        }
        if let Some(block) = policy.block() {
            write!(f, ", then blocked for {}", duration(block))?;
        }
        if let Some(held) = policy.reservation() {
            write!(f, ", held for {}", duration(held))?;
        }
        if policy.is_shadow() {
            f.write_str(", shadow")?;
        }
        if policy.store_failure() != OnStoreFailure::Local {
            write!(f, "; without the store {:?}", policy.store_failure())?;
        }
        if let Some(who) = &self.identity {
            write!(f, "; by {}", Described(who))?;
        }
        if !matches!(cost, Cost::Fixed(1)) {
            write!(f, "; cost {cost}")?;
        }
        if let Some(count_if) = count_if {
            write!(f, "; counts {count_if}")?;
        }
        if !self.plans.is_empty() || self.limit_by.is_some() {
            write!(f, "; plans {}", self.listed_plans())?;
        }
        if !self.factors.is_empty() {
            write!(f, "; factors {}", self.listed_factors())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit").field("policy", &self.policy).finish_non_exhaustive()
    }
}
