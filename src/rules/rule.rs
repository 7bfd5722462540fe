//! Which requests a set of limits is for.

use std::fmt;
use std::sync::Arc;

use http::Method;

use super::pattern::Pattern;
use super::{Facts, Limit, Predicate};
use crate::identity::RequestHead;
use crate::limiter::BuildError;
use crate::policy::MAX_POLICIES;

/// Requests by route, method, plan and tenant, and the limits for them.
///
/// Each condition that is set must hold; of several values of one condition, one.
/// All limits of a rule are checked together, all or nothing. A rule without a
/// limit leaves its requests alone.
///
/// ```
/// use http::Method;
/// use tower_ratelimit::identity::{Account, ClientIp};
/// use tower_ratelimit::rules::{Limit, Rule};
/// use tower_ratelimit::{Policy, Rate};
///
/// let login = Rule::route("/auth/login")
///     .method(Method::POST)
///     .limit(
///         Limit::new(Policy::fixed_window("login", Rate::per_hour(5)))
///             .by((ClientIp::peer(), Account::identity())),
///     )
///     .limit(Limit::new(Policy::fixed_window("login-ip", Rate::per_hour(50))).by(ClientIp::peer()));
/// ```
#[derive(Clone, Default)]
#[must_use = "a rule does nothing until it is in a rule set"]
pub struct Rule {
    routes: Vec<Arc<str>>,
    methods: Vec<Method>,
    plans: Vec<Arc<str>>,
    tenants: Vec<Arc<str>>,
    when: Vec<Predicate>,
    pub(super) limits: Vec<Limit>,
}

impl Rule {
    /// For every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// For requests to this route: `/auth/login`, `/api/{id}/x`,
    /// `/auth/{*rest}`. Compared with the pattern that axum's router has matched,
    /// and with the path; where no router has matched, with the path in whatever
    /// spelling, unless the rule limits nothing. What is no pattern is an error of
    /// [`LiveRules::new`](super::LiveRules::new).
    pub fn route(pattern: impl Into<Arc<str>>) -> Self {
        Self::any().or_route(pattern)
    }

    /// And to this route.
    pub fn or_route(mut self, pattern: impl Into<Arc<str>>) -> Self {
        self.routes.push(pattern.into());
        self
    }

    /// For this method; call it again for more. Default: all methods, unknown
    /// ones too.
    pub fn method(mut self, method: Method) -> Self {
        self.methods.push(method);
        self
    }

    /// For this plan; call it again for more. Default: all plans.
    pub fn plan(mut self, name: impl Into<Arc<str>>) -> Self {
        self.plans.push(name.into());
        self
    }

    /// For this tenant (workspace); call it again for more. Default: all.
    pub fn tenant(mut self, id: impl Into<Arc<str>>) -> Self {
        self.tenants.push(id.into());
        self
    }

    /// For requests that the predicate picks; each that is given must hold.
    pub fn when(mut self, when: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.when.push(Arc::new(when));
        self
    }

    /// Adds a limit. A rule takes up to 8 with different names.
    pub fn limit(mut self, limit: impl Into<Limit>) -> Self {
        self.limits.push(limit.into());
        self
    }

    pub(crate) fn check(&self) -> Result<(), BuildError> {
        self.conditions()?;
        if self.limits.len() > MAX_POLICIES {
            return Err(BuildError::TooManyPolicies { count: self.limits.len() });
        }
        for (i, limit) in self.limits.iter().enumerate() {
            limit.check()?;
            let name = limit.policy.name();
            if self.limits[..i].iter().any(|other| other.policy.name() == name) {
                return Err(BuildError::DuplicatePolicy { name: name.to_owned() });
            }
        }
        Ok(())
    }

    pub(super) fn conditions(&self) -> Result<Conditions, BuildError> {
        let parse = |text: &Arc<str>| {
            Pattern::parse(text).ok_or_else(|| BuildError::Route { pattern: text.as_ref().to_owned() })
        };
        Ok(Conditions {
            routes: self.routes.iter().map(parse).collect::<Result<_, _>>()?,
            methods: self.methods.clone().into(),
            plans: self.plans.clone().into(),
            tenants: self.tenants.clone().into(),
            when: self.when.clone().into(),
            any_spelling: !self.limits.is_empty(),
        })
    }

    /// What it is for, without its limits.
    pub(super) fn title(&self) -> String {
        let mut title =
            vec![if self.routes.is_empty() { "any route".to_owned() } else { self.routes.join(" ") }];
        title.extend(self.methods.iter().map(ToString::to_string));
        for (what, names) in [("plan", &self.plans), ("tenant", &self.tenants)] {
            if !names.is_empty() {
                title.push(format!("{what} {}", names.join(" ")));
            }
        }
        title.extend(self.when.iter().map(|_| "picked by a predicate".to_owned()));
        title.join(" ")
    }

    pub(super) fn policies(&self) -> String {
        if self.limits.is_empty() {
            return "no limit".to_owned();
        }
        self.limits.iter().map(|limit| limit.policy.name()).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title(), self.policies())
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({self})")
    }
}

/// The conditions of a rule, ready to be asked.
pub(super) struct Conditions {
    routes: Box<[Pattern]>,
    methods: Box<[Method]>,
    plans: Box<[Arc<str>]>,
    tenants: Box<[Arc<str>]>,
    when: Box<[Predicate]>,
    /// Whether a path is known in every spelling, as far as no router has matched.
    any_spelling: bool,
}

impl Conditions {
    /// The same head with the pattern that matched, if all conditions hold.
    pub(super) fn hold<'a>(&'a self, head: &RequestHead<'a>, facts: &Facts) -> Option<RequestHead<'a>> {
        if !self.methods.is_empty() && !self.methods.contains(head.method()) {
            return None;
        }
        let pattern = match self.routes.iter().find(|route| route.matches(head, self.any_spelling)) {
            None if !self.routes.is_empty() => return None,
            found => found.map(Pattern::as_str),
        };
        let among = |names: &[Arc<str>], name: Option<&str>| names.iter().any(|other| Some(&**other) == name);
        let holds = (self.plans.is_empty() || among(&self.plans, facts.plan(head)))
            && (self.tenants.is_empty() || among(&self.tenants, facts.tenant(head)))
            && self.when.iter().all(|when| when(head));
        holds.then(|| head.under(pattern))
    }
}
