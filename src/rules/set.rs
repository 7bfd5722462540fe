//! All rules of a service, in order.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use http::Method;
use sha2::{Digest, Sha256};

use super::{Facts, Limit, Predicate, Rule};
use crate::identity::{self, ClientIp, RequestHead};
use crate::limiter::BuildError;

/// The rules of a service: what is skipped, then the first rule that holds, and
/// otherwise a default.
///
/// Plain data until [`LiveRules`](super::LiveRules) make it known to a limiter.
/// Its `Display` shows all of it, one line for each rule and each limit.
///
/// ```
/// use http::Method;
/// use tower_ratelimit::rules::{LiveRules, Rule, RuleSet};
/// use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
///
/// let rules = RuleSet::new()
///     .skip_path("/healthz")
///     .rule(Rule::route("/api/{*rest}").method(Method::POST).limit(Policy::fixed_window("writes", Rate::per_minute(20))))
///     .rule(Rule::route("/api/{*rest}").limit(Policy::fixed_window("reads", Rate::per_minute(100))))
///     .otherwise(Policy::fixed_window("http", Rate::per_minute(60)));
///
/// let limiter = RateLimiter::memory();
/// let live = LiveRules::new(&limiter, rules)?;
/// let layer = RateLimitLayer::builder(limiter).rules(live.clone()).build()?;
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "rules do nothing until they are live"]
pub struct RuleSet {
    skips: Vec<Skip>,
    pub(super) rules: Vec<Rule>,
    pub(super) default: Vec<Limit>,
    pub(super) facts: Facts,
}

#[derive(Clone)]
enum Skip {
    Path(Arc<str>),
    Method(Method),
    Ips(ClientIp, Vec<String>),
    Predicate(Predicate),
}

impl RuleSet {
    /// Without a rule yet: nothing is limited.
    pub fn new() -> Self {
        Self::default()
    }

    /// Does not limit this exact path, whatever the query.
    pub fn skip_path(mut self, path: impl Into<Arc<str>>) -> Self {
        self.skips.push(Skip::Path(path.into()));
        self
    }

    /// Does not limit this method.
    pub fn skip_method(mut self, method: Method) -> Self {
        self.skips.push(Skip::Method(method));
        self
    }

    /// Does not limit clients in these ranges, CIDR texts or single addresses,
    /// by the address that `client_ip` finds.
    pub fn skip_ips(
        mut self,
        client_ip: ClientIp,
        ranges: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.skips.push(Skip::Ips(client_ip, ranges.into_iter().map(Into::into).collect()));
        self
    }

    /// Does not limit requests that the predicate picks.
    pub fn skip(mut self, skip: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.skips.push(Skip::Predicate(Arc::new(skip)));
        self
    }

    /// Adds a rule behind those before: the first that holds applies.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Adds a limit for requests for which no rule holds. Default: they are not
    /// limited.
    pub fn otherwise(mut self, limit: impl Into<Limit>) -> Self {
        self.default.push(limit.into());
        self
    }

    /// Where the user, tenant and plan of a request are found. Default: in its
    /// [`Principal`](crate::identity::Principal).
    pub fn facts(mut self, facts: Facts) -> Self {
        self.facts = facts;
        self
    }

    /// Whether requests for which no rule holds are limited.
    #[must_use]
    pub fn has_default(&self) -> bool {
        !self.default.is_empty()
    }

    /// A short name of what these rules say: the same for the same rules,
    /// wherever they are written. What a closure does is not part of it.
    #[must_use]
    pub fn digest(&self) -> String {
        let digest = Sha256::digest(self.to_string().as_bytes());
        digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Everything that can be wrong with rules, before anybody knows them.
    pub(super) fn check(&self) -> Result<(), BuildError> {
        self.skips()?;
        self.rules.iter().chain([&self.default_rule()]).try_for_each(Rule::check)?;
        let mut known = BTreeMap::new();
        for limit in self.limits() {
            limit.policy.check()?;
            let name = limit.policy.name();
            if *known.entry(name).or_insert(&limit.policy) != &limit.policy {
                return Err(BuildError::PolicyDiffers { name: name.to_owned() });
            }
        }
        Ok(())
    }

    /// The default as a rule behind all others.
    pub(super) fn default_rule(&self) -> Rule {
        self.default.iter().fold(Rule::any(), |rule, limit| rule.limit(limit.clone()))
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules.iter().flat_map(|rule| &rule.limits).chain(&self.default)
    }

    pub(super) fn skips(&self) -> Result<Vec<Predicate>, BuildError> {
        self.skips.iter().map(Skip::predicate).collect()
    }

    /// The skips as they are shown.
    pub(super) fn skip_lines(&self) -> Vec<String> {
        self.skips.iter().map(ToString::to_string).collect()
    }
}

impl Skip {
    fn predicate(&self) -> Result<Predicate, BuildError> {
        Ok(match self.clone() {
            Self::Path(path) => Arc::new(move |head| head.path() == &*path),
            Self::Method(method) => Arc::new(move |head| *head.method() == method),
            Self::Ips(client_ip, ranges) => Arc::new(identity::from_ranges(client_ip, &ranges)?),
            Self::Predicate(skip) => skip,
        })
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "path {path}"),
            Self::Method(method) => write!(f, "method {method}"),
            Self::Ips(_, ranges) => write!(f, "clients in {}", ranges.join(" ")),
            Self::Predicate(_) => f.write_str("what a predicate picks"),
        }
    }
}

impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for skip in &self.skips {
            writeln!(f, "skip {skip}")?;
        }
        for rule in &self.rules {
            writeln!(f, "{}{}", rule.title(), if rule.limits.is_empty() { ": no limit" } else { "" })?;
            rule.limits.iter().try_for_each(|limit| writeln!(f, "  {limit}"))?;
        }
        if self.default.is_empty() {
            return writeln!(f, "otherwise: no limit");
        }
        writeln!(f, "otherwise")?;
        self.default.iter().try_for_each(|limit| writeln!(f, "  {limit}"))
    }
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.rules).finish()
    }
}
