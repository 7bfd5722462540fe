//! From the sections of a file to rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Method, StatusCode};

use super::table::{Table, Value};
use super::{RulesFile, RulesFileError};
use crate::identity::{self, All, Header, Identify, Scoped};
use crate::policy::{Algorithm, MAX_LIMIT, MAX_POLICIES, OnStoreFailure, Policy, Rate};
use crate::rules::pattern::Pattern;
use crate::rules::{Factor, Limit, Rule, RuleSet};

type Result<T> = std::result::Result<T, RulesFileError>;

const POLICY: [&str; 13] = [
    "limit",
    "window",
    "algorithm",
    "burst",
    "block",
    "identity",
    "cost",
    "count",
    "reserve",
    "plans",
    "factors",
    "on_store_failure",
    "mode",
];

const NAME: &str = "a name that is not empty";

pub(super) fn rule_set(file: &RulesFile, root: &Table<'_>) -> Result<RuleSet> {
    let factors = factors(root)?;
    let policies = policies(file, root, &factors)?;
    let mut used = Vec::new();
    let mut rules = RuleSet::new().facts(file.facts.clone());
    if let Some(skip) = root.get("skip") {
        rules = skips(file, skip, rules)?;
    }
    if let Some(list) = root.get("rules") {
        for value in list.items()? {
            let table = value.table(
                "a rule".to_owned(),
                Some(&["policies", "route", "routes", "methods", "plans", "tenants"]),
            )?;
            let limits = limits(table.required("policies")?, &policies, &mut used)?;
            let rule = conditions(&table)?;
            rules = rules.rule(limits.into_iter().fold(rule, Rule::limit));
        }
    }
    if let Some(default) = root.get("otherwise") {
        let table = default.table("otherwise".to_owned(), Some(&["policies"]))?;
        let limits = limits(table.required("policies")?, &policies, &mut used)?;
        rules = limits.into_iter().fold(rules, RuleSet::otherwise);
    }
    if let Some((name, (line, _))) = policies.iter().find(|(name, _)| !used.contains(*name)) {
        return Err(RulesFileError::new(*line, name.clone(), "no rule names this policy"));
    }
    // What could still be wrong has been looked at field by field.
    rules.check().map_err(|error| RulesFileError::new(1, "file", error.to_string()))?;
    Ok(rules)
}

/// By name, with the line.
type Named<T> = BTreeMap<String, (usize, T)>;

fn factors(root: &Table<'_>) -> Result<Named<Factor>> {
    let mut factors = Named::new();
    let Some(section) = root.get("factors") else { return Ok(factors) };
    for value in section.table("factors".to_owned(), None)?.fields() {
        let name = value.field.clone();
        let table = value.table(format!("factor {name}"), Some(&["times", "users", "tenants", "plans"]))?;
        let (numerator, denominator) = ratio(table.required("times")?)?;
        let factor = Factor::ratio(&*name, numerator, denominator)
            .users(names(&table, "users")?)
            .tenants(names(&table, "tenants")?)
            .plans(names(&table, "plans")?);
        if factor.is_for_nobody() {
            return Err(RulesFileError::new(
                value.line,
                name,
                "is for nobody, it takes users, tenants or plans",
            ));
        }
        factors.insert(name, (value.line, factor));
    }
    Ok(factors)
}

fn ratio(value: &Value<'_>) -> Result<(u32, u32)> {
    let part = |text: &str| text.trim().parse().ok().filter(|part| (1..=1_000_000).contains(part));
    let found = match value.as_str() {
        Some(text) => text.split_once('/').and_then(|(over, under)| Some((part(over)?, part(under)?))),
        None => value.as_integer().and_then(|times| Some((part(&times.to_string())?, 1))),
    };
    found.ok_or_else(|| value.error("a whole number or a ratio such as \"3/2\", each part from 1 to 1000000"))
}

fn names(table: &Table<'_>, field: &str) -> Result<Vec<Arc<str>>> {
    table.texts(field)?.iter().map(|name| name.text(NAME).map(Into::into)).collect()
}

fn policies(file: &RulesFile, root: &Table<'_>, factors: &Named<Factor>) -> Result<Named<Limit>> {
    let mut policies = Named::new();
    let mut loose: Vec<_> = factors.keys().collect();
    let section =
        root.get("policies").map(|section| section.table("policies".to_owned(), None)).transpose()?;
    for value in section.iter().flat_map(Table::fields) {
        let table = value.table(format!("policy {}", value.field), Some(&POLICY))?;
        let mut limit = limit(file, &table, policy(&value.field, &table)?)?;
        for name in table.texts("factors")? {
            let text = name.text(NAME)?;
            let (_, factor) = factors.get(text).ok_or_else(|| name.error(known(factors, "factor")))?;
            loose.retain(|factor| *factor != text);
            limit = limit.factor(factor.clone());
        }
        policies.insert(value.field.clone(), (value.line, limit));
    }
    if let Some(name) = loose.first() {
        let line = factors.get(*name).map_or(1, |(line, _)| *line);
        return Err(RulesFileError::new(line, (*name).clone(), "no policy names this factor"));
    }
    Ok(policies)
}

fn policy(name: &str, table: &Table<'_>) -> Result<Policy> {
    let window = table.required("window")?.duration()?;
    let limit = table.required("limit")?;
    let rate = Rate::new(limit.number(0..=MAX_LIMIT)?, window).map_err(|error| limit.error(error))?;
    let algorithms = [
        ("fixed_window", Algorithm::FixedWindow),
        ("sliding_window", Algorithm::SlidingWindow),
        ("token_bucket", Algorithm::TokenBucket),
    ];
    let algorithm = table.get("algorithm").map(|value| value.one_of(&algorithms)).transpose()?;
    let mut policy = match algorithm.unwrap_or(Algorithm::FixedWindow) {
        Algorithm::FixedWindow => Policy::fixed_window(name, rate),
        Algorithm::SlidingWindow => Policy::sliding_window(name, rate),
        Algorithm::TokenBucket => Policy::token_bucket(name, rate),
    };
    if let Some(value) = table.get("burst") {
        policy = policy.burst(value.number(0..=MAX_LIMIT)?);
    }
    if let Some(value) = table.get("block") {
        policy = policy.block_for(value.duration()?);
    }
    if let Some(value) = table.get("reserve") {
        policy = policy.reserve_for(value.duration()?);
    }
    if let Some(value) = table.get("on_store_failure") {
        let choices = [
            ("local", OnStoreFailure::Local),
            ("deny", OnStoreFailure::Deny),
            ("allow", OnStoreFailure::Allow),
        ];
        policy = policy.on_store_failure(value.one_of(&choices)?);
    }
    if let Some(value) = table.get("mode")
        && value.one_of(&[("enforce", false), ("shadow", true)])?
    {
        policy = policy.shadow();
    }
    policy.check().map_err(|error| {
        // It begins with the field.
        let text = error.to_string();
        let (field, reason) = text.split_once(": ").unwrap_or(("policy", &text));
        let line = table.get(field).map_or(table.line, |value| value.line);
        RulesFileError::new(line, field, reason)
    })?;
    Ok(policy)
}

fn limit(file: &RulesFile, table: &Table<'_>, policy: Policy) -> Result<Limit> {
    let mut limit = Limit::new(policy);
    if let Some(value) = table.get("identity") {
        let words = value.items()?;
        let mut parts: Vec<_> = words.iter().map(|word| part(file, word)).collect::<Result<_>>()?;
        limit = match (parts.len(), parts.pop()) {
            (1, Some(only)) => limit.by(only),
            (2.., Some(last)) => limit.by(parts.into_iter().fold(All::new(), All::part).part(last)),
            _ => return Err(value.error("at least one word")),
        };
    } else if let Some(ip) = file.words.get("ip") {
        limit = limit.by(ip.clone());
    }
    if let Some(value) = table.get("cost") {
        limit = limit.cost(value.number(0..=MAX_LIMIT)?);
    }
    if let Some(value) = table.get("count") {
        let statuses = value.items()?;
        if statuses.is_empty() {
            return Err(value.error("at least one status"));
        }
        let status = |value: &Value<'_>| {
            let code = value.number(100..=599)?;
            let status = u16::try_from(code).ok().and_then(|code| StatusCode::from_u16(code).ok());
            status.ok_or_else(|| value.error("a status"))
        };
        limit = limit.count_if_status(statuses.iter().map(status).collect::<Result<Vec<_>>>()?);
    }
    if let Some(value) = table.get("plans") {
        for plan in value.table("plans".to_owned(), None)?.fields() {
            limit = limit.plan(&*plan.field, plan.number(0..=MAX_LIMIT)?);
        }
    }
    Ok(limit)
}

/// One word of an identity.
fn part(file: &RulesFile, value: &Value<'_>) -> Result<Arc<dyn Identify>> {
    let words: Vec<_> = file.words.keys().map(String::as_str).collect();
    let takes = || {
        value.error(format_args!(
            "{}, header:<name>, secret-header:<name>, or <kind>=<word>",
            words.join(", ")
        ))
    };
    let text = value.as_str().ok_or_else(takes)?;
    let find = |word: &str| -> Option<Arc<dyn Identify>> {
        match word.split_once(':') {
            Some(("header", name)) => Some(Arc::new(Header::new(name).ok()?)),
            Some(("secret-header", name)) => Some(Arc::new(Header::secret(name).ok()?)),
            _ => file.words.get(word).cloned(),
        }
    };
    let is_kind = |kind: &str| {
        !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    let found = match text.split_once('=') {
        Some((kind, word)) if is_kind(kind) => find(word).map(|word| Arc::new(Scoped::new(kind, word)) as _),
        Some(_) => None,
        None => find(text),
    };
    found.ok_or_else(takes)
}

fn conditions(table: &Table<'_>) -> Result<Rule> {
    let mut rule = Rule::any();
    let mut routes = table.texts("routes")?;
    routes.extend(table.get("route").cloned());
    if let (Some(_), Some(both)) = (table.get("route"), table.get("routes")) {
        return Err(both.error("route or routes, not both"));
    }
    for route in routes {
        let takes = "a path such as \"/auth/login\", \"/api/{id}/x\" or \"/auth/{*rest}\"";
        let text = route.as_str().filter(|text| Pattern::parse(text).is_some());
        rule = rule.or_route(text.ok_or_else(|| route.error(takes))?);
    }
    for method in table.texts("methods")? {
        rule = rule.method(self::method(&method)?);
    }
    rule = names(table, "plans")?.into_iter().fold(rule, Rule::plan);
    Ok(names(table, "tenants")?.into_iter().fold(rule, Rule::tenant))
}

/// Methods are told apart by case: `get` would never be asked for.
fn method(value: &Value<'_>) -> Result<Method> {
    let upper = |text: &&str| text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    let method = value.as_str().filter(upper).and_then(|text| Method::from_bytes(text.as_bytes()).ok());
    method.ok_or_else(|| value.error("a method in upper case, such as \"POST\""))
}

/// The limits that a rule names.
fn limits(list: &Value<'_>, policies: &Named<Limit>, used: &mut Vec<String>) -> Result<Vec<Limit>> {
    let items = list.items()?;
    if items.len() > MAX_POLICIES {
        return Err(list.error("at most 8 policies"));
    }
    let mut limits: Vec<Limit> = Vec::new();
    for item in items {
        let name = item.text(NAME)?;
        let (_, limit) = policies.get(name).ok_or_else(|| item.error(known(policies, "policy")))?;
        if limits.iter().any(|other| other.policy().name() == name) {
            return Err(item.error("each policy once"));
        }
        used.push(name.to_owned());
        limits.push(limit.clone());
    }
    Ok(limits)
}

fn known<T>(named: &Named<T>, what: &str) -> String {
    if named.is_empty() {
        return format!("the name of a {what}, and there is none");
    }
    named.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn skips(file: &RulesFile, section: &Value<'_>, mut rules: RuleSet) -> Result<RuleSet> {
    let table = section.table("skip".to_owned(), Some(&["paths", "methods", "ips"]))?;
    for path in table.texts("paths")? {
        let text = path.as_str().filter(|text| text.starts_with('/'));
        rules = rules.skip_path(text.ok_or_else(|| path.error("a path that starts with /"))?);
    }
    for value in table.texts("methods")? {
        rules = rules.skip_method(method(&value)?);
    }
    let mut ranges = Vec::new();
    for value in table.texts("ips")? {
        let takes = || value.error("an address or a CIDR range such as \"10.0.0.0/8\"");
        let text = value.as_str().ok_or_else(takes)?.to_owned();
        drop(
            identity::from_ranges(file.client_ip.clone(), std::slice::from_ref(&text))
                .map_err(|_| takes())?,
        );
        ranges.push(text);
    }
    Ok(if ranges.is_empty() { rules } else { rules.skip_ips(file.client_ip.clone(), ranges) })
}
