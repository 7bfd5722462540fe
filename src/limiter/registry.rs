//! The policies of a store, by name: a name stands for one rule.
//!
//! Replicas share counters by the policy's name, so within one process two
//! rules must not meet under one name. The second one that comes while the
//! first is alive counts under a key of its own, and says so.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use crate::algorithm::{Kind, Rule};
use crate::clock::Millis;
use crate::key::Key;
use crate::observe::Problem;
use crate::policy::{Policy, PolicyError};
use crate::store::memory::PolicyId;
#[cfg(feature = "redis")]
use crate::store::memory::{Debt, Marker};
#[cfg(feature = "redis")]
use crate::store::redis::{Owed, Tag};

/// A policy that a limiter knows, from [`RateLimiter::policy`]; cheap to clone.
///
/// [`RateLimiter::policy`]: crate::RateLimiter::policy
#[derive(Clone)]
pub struct PolicyHandle(Arc<Registered>);

struct Registered {
    policy: Policy,
    rule: Rule,
    /// Its number in the local tables of this process: of its keys, so that it
    /// outlives whoever has the policy. Were it counted, a policy that nobody
    /// holds for a moment would give every client a new budget.
    id: PolicyId,
    namespace: String,
    /// `<namespace><name>:rl:`
    prefix: String,
    /// What stands behind the identity, by the algorithm. No identity has a part
    /// that starts with `=`.
    suffix: &'static str,
    /// Whether it is checked together with others somewhere: its keys then
    /// carry a hash tag, everywhere.
    paired: AtomicBool,
    /// Whether a key without a hash tag was made.
    asked_bare: AtomicBool,
    /// In how many layers it is.
    layers: AtomicU32,
    /// See [`Rule::pardon`]; on the limiter's clock.
    pardon: AtomicU64,
}

impl PolicyHandle {
    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The key in Redis under which an identity is counted.
    ///
    /// `<policy>:rl:<identity>`, with the namespace in front; where the policy
    /// is checked together with others or reserves, the first part of the
    /// identity stands in braces. A sliding window adds `:=sliding`, a bucket
    /// `:=bucket`. It may hold an address or an account name: do not log it.
    ///
    /// ```
    /// use tower_ratelimit::{Key, Policy, Rate, RateLimiter};
    ///
    /// let limiter = RateLimiter::builder().namespace("shop").build()?;
    /// let http = limiter.policy(Policy::fixed_window("http", Rate::per_minute(100)))?;
    /// assert_eq!(http.store_key(&Key::principal("ann")), "shop:http:rl:ann");
    /// # Ok::<(), tower_ratelimit::BuildError>(())
    /// ```
    #[must_use]
    pub fn store_key(&self, key: &Key) -> String {
        let (first, rest) = key.split_first();
        self.store_key_of(first, rest)
    }

    pub(crate) fn store_key_of(&self, first: &str, rest: &str) -> String {
        let Registered { prefix, suffix, .. } = &*self.0;
        if self.is_braced() {
            return format!("{prefix}{{{first}}}{rest}{suffix}");
        }
        self.0.asked_bare.store(true, Ordering::Relaxed);
        format!("{prefix}{first}{rest}{suffix}")
    }

    /// The key of the open reservations of a counter.
    #[cfg(feature = "redis")]
    pub(crate) fn reservations_key(store_key: &str) -> String {
        format!("{store_key}:=open")
    }

    /// What decides the slot of a key in a cluster.
    #[cfg(feature = "redis")]
    pub(crate) fn tag<'a>(&'a self, key: &'a Key) -> Tag<'a> {
        let ((first, rest), Registered { prefix, suffix, .. }) = (key.split_first(), &*self.0);
        if self.is_braced() { Tag([first, "", "", ""]) } else { Tag([prefix, first, rest, suffix]) }
    }

    /// A debt as Redis is told of it.
    #[cfg(feature = "redis")]
    pub(crate) fn owed(&self, store_key: &str, debt: &Debt) -> Owed {
        let Debt { marker, floor, delta, left, blocked } = *debt;
        let marker = marker.map(|marker| self.marker_key(store_key, marker));
        Owed { marker, floor, delta, left, blocked }
    }

    /// The key that is set when a debt to `store_key` is paid. In the slot of
    /// that key, and nobody's else: no identity has a part that starts with `=`,
    /// and no policy key starts so.
    #[cfg(feature = "redis")]
    fn marker_key(&self, store_key: &str, marker: Marker) -> String {
        if self.is_braced() {
            return format!("{store_key}:={marker}");
        }
        format!("{}reconciled:{{{store_key}}}:{marker}", self.0.namespace)
    }

    /// Whether the first part of an identity stands in braces, so that all keys
    /// of a check are in one slot of a cluster.
    pub(super) fn is_braced(&self) -> bool {
        self.0.policy.reservation().is_some() || self.0.paired.load(Ordering::Relaxed)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn rule(&self) -> Rule {
        Rule { pardon: self.pardon(), ..self.0.rule }
    }

    pub(crate) fn rule_for(&self, key: &Key) -> Rule {
        let block = if key.is_blockable() { self.0.rule.block } else { 0 };
        Rule { block, pardon: self.pardon(), ..self.0.rule }
    }

    /// What a client is told of another limit than the policy's: of a bucket its
    /// burst, in proportion.
    pub(crate) fn limit_in_force(&self, limit: u64) -> u64 {
        self.0.rule.with_limit(limit).limit
    }

    fn pardon(&self) -> Millis {
        self.0.pardon.load(Ordering::Relaxed)
    }

    /// Lifts the blocks that were started before `now`, by a rule that may have
    /// had another block: all that end before one could that starts next.
    pub(crate) fn pardon_before(&self, now: Millis, replaced: &Self) {
        let block = if self.0.rule.block > 0 { self.0.rule.block } else { replaced.0.rule.block };
        self.0.pardon.store(now.saturating_add(block).saturating_add(1), Ordering::Relaxed);
    }

    /// Keeps lifted what was lifted before. Not where blocks are shorter now: those
    /// that start next would end as early.
    pub(crate) fn pardon_as(&self, replaced: &Self) {
        let (now, then) = (self.0.rule.block, replaced.0.rule.block);
        if now == 0 || now >= then {
            self.0.pardon.fetch_max(replaced.pardon(), Ordering::Relaxed);
        }
    }

    pub(crate) fn id(&self) -> PolicyId {
        self.0.id
    }

    /// Whether both are one policy of one store: the same name and rule in
    /// another store is counted there.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn count_layer(&self) {
        self.0.layers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn layers(&self) -> u32 {
        self.0.layers.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for PolicyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicyHandle({})", self.0.policy)
    }
}

/// The policies that share one set of counters.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    namespace: String,
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// Weak: a policy that nobody has any more frees its name.
    policies: HashMap<Arc<str>, Vec<Weak<Registered>>>,
    /// The names that were ever checked together with others: their keys carry
    /// a hash tag from then on, whoever has the policy.
    paired: HashSet<Arc<str>>,
}

/// A policy that was registered, and what is wrong with that.
pub(crate) struct Registration {
    pub(crate) handle: PolicyHandle,
    pub(crate) problem: Option<Problem>,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.policy, f)
    }
}

static IDS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The registries of shared stores, by address and namespace. Two limiters on
/// one Redis share its counters, so they share the names as well.
static SHARED: LazyLock<Mutex<HashMap<String, Weak<Registry>>>> = LazyLock::new(Mutex::default);

impl Registry {
    /// For counters that only one limiter has.
    pub(crate) fn own(namespace: String) -> Arc<Self> {
        Arc::new(Self { namespace, names: Mutex::default() })
    }

    /// For counters in a store that others in this process may use too.
    pub(crate) fn shared(store: &str, namespace: String) -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|_, registry| registry.strong_count() > 0);
        let place = format!("{store} {namespace}");
        if let Some(registry) = shared.get(&place).and_then(Weak::upgrade) {
            return registry;
        }
        let registry = Self::own(namespace);
        shared.insert(place, Arc::downgrade(&registry));
        registry
    }

    /// The policies that anybody has, by their numbers.
    #[cfg(feature = "redis")]
    pub(crate) fn policies(&self) -> HashMap<PolicyId, PolicyHandle> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.policies.values().flatten().filter_map(Weak::upgrade);
        known.map(|known| (known.id, PolicyHandle(known))).collect()
    }

    /// Finds or adds a policy.
    pub(crate) fn register(&self, policy: &Policy, paired: bool) -> Result<Registration, PolicyError> {
        self.register_in_place_of(None, policy, paired)
    }

    /// The same, when another policy of this name goes: the new one has the name
    /// and its counters from now on. Checks under way may still charge by the old
    /// one; they count on the same keys.
    pub(crate) fn register_in_place_of(
        &self,
        replaced: Option<&PolicyHandle>,
        policy: &Policy,
        paired: bool,
    ) -> Result<Registration, PolicyError> {
        policy.check()?;
        let rule = Rule::of(policy);
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let Names { policies, paired: all_paired } = &mut *names;
        let goes = |known: &Weak<Registered>| {
            replaced.is_some_and(|replaced| std::ptr::eq(known.as_ptr(), Arc::as_ptr(&replaced.0)))
        };
        policies.retain(|_, namesakes| {
            namesakes.retain(|known| known.strong_count() > 0 && !goes(known));
            !namesakes.is_empty()
        });
        if paired {
            all_paired.insert(policy.shared_name().clone());
        }
        let paired = all_paired.contains(policy.name());
        let namesakes = policies.entry(policy.shared_name().clone()).or_default();
        let is_same = |known: &Arc<Registered>| {
            known.rule == rule
                && known.policy.store_failure() == policy.store_failure()
                && known.policy.reservation() == policy.reservation()
        };
        let known = namesakes.iter().filter_map(Weak::upgrade).find(is_same);
        let conflict = !namesakes.is_empty() && known.is_none();
        let registered = known.unwrap_or_else(|| {
            let (prefix, suffix) = self.around(policy.name(), conflict.then_some(&rule), rule.kind);
            let id = IDS.hash_one((&prefix, suffix));
            let registered = Arc::new(Registered {
                policy: policy.clone(),
                rule,
                id,
                namespace: self.namespace.clone(),
                prefix,
                suffix,
                paired: AtomicBool::new(paired),
                asked_bare: AtomicBool::new(false),
                layers: AtomicU32::new(0),
                pardon: AtomicU64::new(0),
            });
            namesakes.push(Arc::downgrade(&registered));
            registered
        });
        let was_paired = registered.paired.fetch_or(paired, Ordering::Relaxed);
        let is_late = paired && !was_paired && registered.asked_bare.load(Ordering::Relaxed);
        let problem =
            if conflict { Some(Problem::PolicyConflict) } else { is_late.then_some(Problem::LatePairing) };
        Ok(Registration { handle: PolicyHandle(registered), problem })
    }
    /// What stands in front of an identity in a key and behind it. Of a policy that
    /// shares its name by mistake the rule is part of it.
    fn around(&self, name: &str, apart: Option<&Rule>, kind: Kind) -> (String, &'static str) {
        let (suffix, algorithm) = match kind {
            Kind::FixedWindow => ("", String::new()),
            Kind::SlidingWindow => (":=sliding", "-sliding".to_owned()),
            Kind::TokenBucket { refill } => (":=bucket", format!("-bucket-{refill}")),
        };
        let namespace = &self.namespace;
        let prefix = match apart {
            // No name has a `~`. The rule, so that all replicas agree.
            Some(Rule { limit, window, block, enforced, .. }) => {
                let mode = if *enforced { "" } else { "-shadow" };
                format!("{namespace}{name}~{limit}-{window}-{block}{algorithm}{mode}:rl:")
            }
            None => format!("{namespace}{name}:rl:"),
        };
        (prefix, suffix)
    }
}
