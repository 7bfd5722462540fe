//! What changes with other rules: shown first, done later.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::live::Compiled;
use super::{Limit, LiveRules, Rule, RuleSet};
use crate::limiter::BuildError;

/// The steps from the rules that apply to others, made by [`LiveRules::plan`].
/// Its `Display` has one line for each step:
///
/// ```text
/// http: limit 100 -> 200, counts kept
/// search: algorithm FixedWindow -> TokenBucket, counts start anew
/// export: added
/// rule /api/export POST: added (export)
/// ```
///
/// Counts are kept where the policy's name, algorithm and identity stay. A limit
/// that is raised helps at once, also whom it has refused before; where it is
/// looser than it was, blocks that it has started are lifted, at their next check
/// by a replica that has these rules; so reload all replicas at about the same
/// time. Which block a rule has started is told by its end: every one on this
/// policy that ends before one could that starts now. Requests under way finish by
/// the rules that they came by.
#[must_use = "nothing changes before the plan is applied"]
pub struct ReloadPlan {
    live: LiveRules,
    before: Arc<Compiled>,
    set: RuleSet,
    steps: Vec<String>,
}

impl ReloadPlan {
    pub(super) fn new(live: LiveRules, before: Arc<Compiled>, set: RuleSet) -> Self {
        let steps = steps(&before.set, &set);
        Self { live, before, set, steps }
    }

    /// The steps, one line each. None: the rules say the same.
    pub fn steps(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(String::as_str)
    }

    /// Takes all steps at once: a request goes by the rules of before, or by
    /// these.
    ///
    /// # Errors
    ///
    /// [`BuildError::Outdated`] if other rules have come to apply since the plan
    /// was made. The rules that apply then stay.
    pub fn apply(self) -> Result<(), BuildError> {
        self.live.replace(&self.before, self.set)
    }
}

impl fmt::Display for ReloadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.is_empty() {
            return f.write_str("no change\n");
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Debug for ReloadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadPlan").field("steps", &self.steps).finish_non_exhaustive()
    }
}

fn steps(before: &RuleSet, after: &RuleSet) -> Vec<String> {
    let mut steps = policy_steps(before, after);
    steps.extend(rule_steps(before, after));
    let (then, now) = (before.default_rule().policies(), after.default_rule().policies());
    if then != now {
        steps.push(format!("otherwise: {then} -> {now}"));
    }
    let (then, now) = (before.skip_lines(), after.skip_lines());
    steps.extend(now.iter().filter(|skip| !then.contains(skip)).map(|skip| format!("skip {skip}: added")));
    steps.extend(then.iter().filter(|skip| !now.contains(skip)).map(|skip| format!("skip {skip}: removed")));
    if steps.is_empty() && before.to_string() != after.to_string() {
        steps.push("rules: changed in their order or repetition".to_owned());
    }
    steps
}

/// One use of a policy.
struct Use<'a> {
    limit: &'a Limit,
    paired: bool,
}

/// The uses of all policies, by name, in the order of the names.
fn uses(set: &RuleSet) -> BTreeMap<&str, Vec<Use<'_>>> {
    let mut uses = BTreeMap::<_, Vec<_>>::new();
    let lists = set.rules.iter().map(|rule| &rule.limits).chain([&set.default]);
    for limits in lists {
        for limit in limits {
            let used = Use { limit, paired: limits.len() > 1 };
            uses.entry(limit.policy.name()).or_default().push(used);
        }
    }
    uses
}

fn policy_steps(before: &RuleSet, after: &RuleSet) -> Vec<String> {
    let (before, after) = (uses(before), uses(after));
    let mut steps = Vec::new();
    for (name, now) in &after {
        match before.get(name) {
            None => steps.push(format!("{name}: added")),
            Some(then) => steps.extend(changes(name, then, now)),
        }
    }
    steps.extend(
        before.keys().filter(|name| !after.contains_key(*name)).map(|name| format!("{name}: removed")),
    );
    steps
}

fn changes(name: &str, then: &[Use<'_>], now: &[Use<'_>]) -> Option<String> {
    let mut changed = Vec::new();
    let mut anew = false;
    // Uses in several rules differ in what is around the policy at most.
    for (then, now) in then.iter().zip(now) {
        for ((setting, was), (_, is)) in then.limit.settings().into_iter().zip(now.limit.settings()) {
            let change = format!("{setting} {was} -> {is}");
            if was != is && !changed.contains(&change) {
                anew |= matches!(setting, "algorithm" | "identity");
                changed.push(change);
            }
        }
    }
    let any_paired = |uses: &[Use<'_>]| uses.iter().any(|used| used.paired);
    let reserves = |uses: &[Use<'_>]| uses.iter().any(|used| used.limit.policy.reservation().is_some());
    if any_paired(now) && !any_paired(then) {
        changed.push("checked together with others".to_owned());
        anew |= !reserves(then);
    }
    // A policy that reserves has a hash tag in its keys; one that was paired keeps
    // it, one that has reserved does not.
    anew |= !any_paired(then) && !any_paired(now) && reserves(then) != reserves(now);
    let counts = if anew { "counts start anew" } else { "counts kept" };
    (!changed.is_empty()).then(|| format!("{name}: {}, {counts}", changed.join(", ")))
}

fn rule_steps(before: &RuleSet, after: &RuleSet) -> Vec<String> {
    let find = |rules: &[Rule], title: &str| rules.iter().position(|rule| rule.title() == title);
    let mut steps = Vec::new();
    let mut last = None;
    let mut reordered = false;
    for rule in &after.rules {
        let (title, policies) = (rule.title(), rule.policies());
        match find(&before.rules, &title) {
            None => steps.push(format!("rule {title}: added ({policies})")),
            Some(place) => {
                let then = before.rules[place].policies();
                if then != policies {
                    steps.push(format!("rule {title}: {then} -> {policies}"));
                }
                reordered |= last > Some(place);
                last = Some(place);
            }
        }
    }
    let gone = before.rules.iter().map(Rule::title).filter(|title| find(&after.rules, title).is_none());
    steps.extend(gone.map(|title| format!("rule {title}: removed")));
    if reordered {
        let order: Vec<_> = after.rules.iter().map(Rule::title).collect();
        steps.push(format!("rules: order is now {}", order.join("; ")));
    }
    steps
}
