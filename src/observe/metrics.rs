//! Metrics, through the `metrics` facade.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::{Checked, Observer, Problem, Verdict};
use crate::decision::{Refusal, Source};
use crate::store::{Nodes, StoreError, StoreErrorKind, StoreEvent};

/// Reports what a limiter does through the [`metrics`](https://docs.rs/metrics)
/// facade, to whatever recorder the application has installed by the first
/// check, or before it makes [`LiveRules`](crate::rules::LiveRules).
///
/// | metric | kind, labels | counts |
/// |---|---|---|
/// | `ratelimit_requests_total` | counter; policy, outcome, source | each policy in each check |
/// | `ratelimit_refusals_total` | counter; policy, reason | refusals, shadow ones too |
/// | `ratelimit_near_limit_total` | counter; policy | allowed with at least 80 % used |
/// | `ratelimit_fallbacks_total` | counter; policy, reason | decisions without the store |
/// | `ratelimit_deny_cache_hits_total` | counter; policy | refusals repeated without asking Redis |
/// | `ratelimit_store_errors_total` | counter; reason | checks that the store could not decide, and connections that were lost or not made |
/// | `ratelimit_store_connected` | gauge | 1 or 0; of a cluster the part of its masters |
/// | `ratelimit_store_duration_seconds` | histogram | from asking the store to its answer |
/// | `ratelimit_local_entries` | gauge | identities in the local table |
/// | `ratelimit_local_overflow` | gauge | checks that found the local table full of refused identities |
/// | `ratelimit_untrusted_forwarded_total` | counter | forwarding headers from untrusted peers |
/// | `ratelimit_odd_addresses_total` | counter; reason | requests whose address was odd: no peer, past the CDN, unreadable, ... |
/// | `ratelimit_misconfigured` | gauge; problem | 1 while it lasts; `store` for what Redis refuses until somebody mends it |
/// | `ratelimit_rules_info` | gauge; digest | 1 for the [rules](crate::rules) that apply, 0 for those before |
///
/// No label holds an identity, so the number of series does not grow with the
/// number of clients.
///
/// ```
/// use tower_ratelimit::{RateLimiter, observe::Metrics};
///
/// let limiter = RateLimiter::builder().observer(Metrics::new()).build()?;
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
#[derive(Default)]
pub struct Metrics {
    store: OnceLock<StoreMetrics>,
    process: OnceLock<ProcessMetrics>,
    /// Handles are looked up by name once and kept: registering on each
    /// request would allocate.
    policies: RwLock<HashMap<Box<str>, Arc<PolicyMetrics>>>,
}

impl Metrics {
    /// Reports to the recorder that is installed when the first check is made.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registered by the first event of a store: a limiter in memory must not
    /// report that it is not connected.
    fn store_metrics(&self) -> &StoreMetrics {
        self.store.get_or_init(StoreMetrics::register)
    }

    fn process_metrics(&self) -> &ProcessMetrics {
        self.process.get_or_init(ProcessMetrics::register)
    }

    fn policy_metrics(&self, policy: &str) -> Arc<PolicyMetrics> {
        let known = self.policies.read().unwrap_or_else(PoisonError::into_inner).get(policy).cloned();
        known.unwrap_or_else(|| {
            let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
            let metrics = || Arc::new(PolicyMetrics::register(policy));
            policies.entry(policy.into()).or_insert_with(metrics).clone()
        })
    }
}

impl Observer for Metrics {
    fn checked(&self, checked: &Checked<'_>) {
        let metrics = self.policy_metrics(checked.policy);
        metrics.requests[outcome(checked.verdict)][source(checked.source)].increment(1);
        if let Verdict::Refused(_) | Verdict::BlockStarted = checked.verdict {
            metrics.refusals[outcome(checked.verdict)].increment(1);
        }
        if checked.is_near_limit() {
            metrics.near_limit.increment(1);
        }
        if checked.source == Source::DenyCache {
            metrics.deny_cache_hits.increment(1);
        }
        let process = self.process_metrics();
        process.local_entries.set(as_f64(checked.local_entries));
        process.local_overflow.set(as_f64(checked.overflowed));
    }

    fn store(&self, event: &StoreEvent<'_>) {
        let metrics = self.store_metrics();
        match event {
            StoreEvent::Connected { .. } | StoreEvent::Lost { .. } | StoreEvent::Left { .. } => {
                let mut nodes = metrics.nodes.lock().unwrap_or_else(PoisonError::into_inner);
                nodes.learn(event);
                let (connected, all) = nodes.connected();
                metrics.connected.set(as_f64(connected) / as_f64(all.max(1)));
                drop(nodes);
                match event {
                    StoreEvent::Lost { error, .. } => {
                        count_error(error);
                        metrics.misconfigured(error.kind().is_misconfiguration());
                    }
                    _ => metrics.misconfigured(false),
                }
            }
            // Counted with the check that failed.
            StoreEvent::Misconfigured { .. } => metrics.misconfigured(true),
            StoreEvent::Answered { latency } => {
                metrics.duration.record(*latency);
                metrics.misconfigured(false);
            }
            StoreEvent::Failed { error, .. } => count_error(error),
        }
    }

    fn fell_back(&self, policy: &str, reason: StoreErrorKind) {
        let policy = policy.to_owned();
        counter!("ratelimit_fallbacks_total", "policy" => policy, "reason" => reason.as_str()).increment(1);
    }

    fn misconfigured(&self, problem: &Problem) {
        gauge!("ratelimit_misconfigured", "problem" => problem.as_str()).set(1.0);
    }

    fn mended(&self, problem: &Problem) {
        gauge!("ratelimit_misconfigured", "problem" => problem.as_str()).set(0.0);
    }

    fn rules(&self, digest: &str, replaced: Option<&str>) {
        describe_gauge!("ratelimit_rules_info", "1 for the digest of the rules that apply.");
        if let Some(replaced) = replaced {
            gauge!("ratelimit_rules_info", "digest" => replaced.to_owned()).set(0.0);
        }
        gauge!("ratelimit_rules_info", "digest" => digest.to_owned()).set(1.0);
    }

    fn odd_address(&self, reason: &'static str) {
        counter!("ratelimit_odd_addresses_total", "reason" => reason).increment(1);
        if reason == "untrusted_forwarded" {
            self.process_metrics().untrusted_forwarded.increment(1);
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

const OUTCOMES: [Verdict; 7] = [
    Verdict::Allowed,
    Verdict::Spared,
    Verdict::Refused(Refusal::Limit),
    Verdict::Refused(Refusal::Blocked),
    Verdict::Refused(Refusal::TooLarge),
    Verdict::Refused(Refusal::Unavailable),
    Verdict::Refused(Refusal::Reserved),
];

const SOURCES: [Source; 3] = [Source::Redis, Source::Local, Source::DenyCache];

fn outcome(verdict: Verdict) -> usize {
    match verdict {
        Verdict::Allowed => 0,
        Verdict::Spared => 1,
        Verdict::Refused(Refusal::Limit) => 2,
        Verdict::Refused(Refusal::Blocked) | Verdict::BlockStarted => 3,
        Verdict::Refused(Refusal::TooLarge) => 4,
        Verdict::Refused(Refusal::Unavailable) => 5,
        Verdict::Refused(Refusal::Reserved) => 6,
    }
}

/// Whether a source ever decides so: a series that stays 0 only costs.
fn occurs(outcome: Verdict, source: Source) -> bool {
    match source {
        Source::Redis => outcome != Verdict::Refused(Refusal::Unavailable),
        Source::Local => true,
        Source::DenyCache => matches!(outcome, Verdict::Refused(Refusal::Limit | Refusal::Blocked)),
    }
}

fn source(source: Source) -> usize {
    match source {
        Source::Redis => 0,
        Source::Local => 1,
        Source::DenyCache => 2,
    }
}

struct PolicyMetrics {
    /// By outcome and source.
    requests: [[Counter; SOURCES.len()]; OUTCOMES.len()],
    /// By outcome.
    refusals: [Counter; OUTCOMES.len()],
    near_limit: Counter,
    deny_cache_hits: Counter,
}

impl PolicyMetrics {
    fn register(policy: &str) -> Self {
        let name = || policy.to_owned();
        Self {
            requests: OUTCOMES.map(|outcome| {
                SOURCES.map(|source| {
                    if !occurs(outcome, source) {
                        return Counter::noop();
                    }
                    counter!(
                        "ratelimit_requests_total",
                        "policy" => name(), "outcome" => outcome.as_str(), "source" => source.as_str()
                    )
                })
            }),
            refusals: OUTCOMES.map(|outcome| match outcome {
                Verdict::Refused(refusal) => {
                    counter!("ratelimit_refusals_total", "policy" => name(), "reason" => refusal.as_str())
                }
                _ => Counter::noop(),
            }),
            near_limit: counter!("ratelimit_near_limit_total", "policy" => name()),
            deny_cache_hits: counter!("ratelimit_deny_cache_hits_total", "policy" => name()),
        }
    }
}

fn count_error(error: &StoreError) {
    counter!("ratelimit_store_errors_total", "reason" => error.kind().as_str()).increment(1);
}

struct StoreMetrics {
    nodes: Mutex<Nodes>,
    connected: Gauge,
    duration: Histogram,
    wrong: AtomicBool,
}

impl StoreMetrics {
    /// Somebody must mend something at the store, or has. Told when it changes: a
    /// limiter that was never wrong has no such series.
    fn misconfigured(&self, is_wrong: bool) {
        if self.wrong.swap(is_wrong, Ordering::Relaxed) != is_wrong {
            let gauge = gauge!("ratelimit_misconfigured", "problem" => "store");
            gauge.set(if is_wrong { 1.0 } else { 0.0 });
        }
    }

    fn register() -> Self {
        describe_counter!(
            "ratelimit_store_errors_total",
            "Checks that the store could not decide, and losses."
        );
        describe_gauge!("ratelimit_store_connected", "Whether the store is connected.");
        describe_histogram!(
            "ratelimit_store_duration_seconds",
            metrics::Unit::Seconds,
            "From asking the store to its answer."
        );
        Self {
            nodes: Mutex::default(),
            connected: gauge!("ratelimit_store_connected"),
            duration: histogram!("ratelimit_store_duration_seconds"),
            wrong: AtomicBool::new(false),
        }
    }
}

/// What any limiter has, and the descriptions of what belongs to its policies.
struct ProcessMetrics {
    local_entries: Gauge,
    local_overflow: Gauge,
    untrusted_forwarded: Counter,
}

impl ProcessMetrics {
    fn register() -> Self {
        describe_counter!("ratelimit_requests_total", "Each policy in each check, by outcome and source.");
        describe_counter!("ratelimit_refusals_total", "Refusals, those of shadow policies too.");
        describe_counter!("ratelimit_near_limit_total", "Allowed with at least 80 % of the limit used.");
        describe_counter!("ratelimit_fallbacks_total", "Decisions without the store.");
        describe_counter!("ratelimit_deny_cache_hits_total", "Refusals repeated without asking the store.");
        describe_gauge!("ratelimit_local_entries", "Identities in the local table.");
        describe_gauge!(
            "ratelimit_local_overflow",
            "Checks that found the local table full of refused identities."
        );
        describe_counter!("ratelimit_untrusted_forwarded_total", "Forwarding headers from untrusted peers.");
        describe_counter!("ratelimit_odd_addresses_total", "Requests whose address was odd, by reason.");
        describe_gauge!("ratelimit_misconfigured", "1 while the problem lasts.");
        Self {
            local_entries: gauge!("ratelimit_local_entries"),
            local_overflow: gauge!("ratelimit_local_overflow"),
            untrusted_forwarded: counter!("ratelimit_untrusted_forwarded_total"),
        }
    }
}

/// Exact far beyond any table.
#[expect(clippy::cast_precision_loss, reason = "a table holds fewer than 2^53 entries")]
fn as_f64(count: usize) -> f64 {
    count as f64
}
