//! The engine: policies, a store, and what happens when the store fails. It
//! knows no HTTP; a layer, a queue and a socket loop call it alike.

#[cfg(feature = "redis")]
mod apart;
mod builder;
mod charge;
mod decide;
mod error;
#[cfg(feature = "redis")]
mod fallback;
#[cfg(feature = "redis")]
mod reconcile;
mod registry;
mod settle;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arrayvec::ArrayVec;

pub use self::builder::RateLimiterBuilder;
pub use self::charge::Charge;
use self::charge::distinct;
pub(crate) use self::charge::{Charges, Listing};
use self::decide::decision;
pub use self::error::BuildError;
pub use self::registry::PolicyHandle;
use self::registry::{Registration, Registry};
pub use self::settle::Reserved;
pub(crate) use self::settle::Settling;

use crate::clock::Clock;
use crate::decision::{Decision, Source};
use crate::key::Key;
use crate::observe::{Observers, Problem, Problems};
use crate::policy::{MAX_POLICIES, Policy};
use crate::store::StoreError;
#[cfg(feature = "redis")]
use crate::store::memory::Charged;
use crate::store::memory::{LocalTable, Share};
#[cfg(feature = "redis")]
use crate::store::redis::RedisStore;
#[cfg(feature = "redis")]
use crate::store::{Health, HealthRecord};

/// Counts identities against policies, here or in Redis. Cheap to clone; clones
/// share everything.
///
/// ```
/// use tower_ratelimit::{Charge, Key, Policy, Rate, RateLimiter};
///
/// # tokio_test(async {
/// let limiter = RateLimiter::memory();
/// let jobs = limiter.policy(Policy::fixed_window("jobs", Rate::per_minute(2)))?;
/// for expected in [true, true, false] {
///     let decision = limiter.check([Charge::new(&jobs, Key::principal("ann"))]).await;
///     assert_eq!(decision.is_allowed(), expected);
/// }
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// # });
/// # fn tokio_test<T>(future: impl Future<Output = Result<T, tower_ratelimit::BuildError>>) {
/// #     tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future).unwrap();
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimiter(Arc<Inner>);

struct Inner {
    backend: Backend,
    registry: Arc<Registry>,
    local: LocalTable,
    share: Share,
    clock: Clock,
    observers: Observers,
    problems: Problems,
    /// Reservations that Redis may have made without anybody knowing.
    #[cfg(feature = "redis")]
    unknown: reconcile::Unknown,
}

/// Who decides while all is well.
enum Backend {
    Memory,
    #[cfg(feature = "redis")]
    Redis {
        store: Arc<RedisStore>,
        health: Arc<HealthRecord>,
        /// Set by `shutdown`.
        closing: Arc<AtomicBool>,
    },
    #[cfg(feature = "test-util")]
    Scripted(crate::test_util::Script),
}

/// A check under way: decided already, or waiting for the store.
pub(crate) enum Check {
    Ready(Decision),
    #[cfg(feature = "redis")]
    Waiting(Pin<Box<dyn Future<Output = Decision> + Send>>),
}

impl Future for Check {
    type Output = Decision;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Decision> {
        match self.get_mut() {
            Self::Ready(decision) => Poll::Ready(decision.clone()),
            #[cfg(feature = "redis")]
            Self::Waiting(decision) => decision.as_mut().poll(_cx),
        }
    }
}

impl RateLimiter {
    /// Counts in this process, with the defaults of [`RateLimiterBuilder`].
    #[must_use]
    pub fn memory() -> Self {
        #[expect(clippy::expect_used, reason = "no default is refused")]
        Self::builder().build().expect("the defaults are legal")
    }

    /// Counts in Redis, with the defaults of [`RateLimiterBuilder`]. Builds at
    /// once, even if Redis is down.
    ///
    /// # Errors
    ///
    /// [`BuildError::RedisUrl`]; [`BuildError::RedisTls`] for a `rediss://` URL
    /// without the feature `tls`.
    #[cfg(feature = "redis")]
    pub fn redis(url: impl Into<String>) -> Result<Self, BuildError> {
        Self::builder().redis(url).build()
    }

    /// All settings.
    pub fn builder() -> RateLimiterBuilder {
        RateLimiterBuilder::new()
    }

    /// Makes a policy known to this limiter. The same rule under the same name
    /// is the same policy, whoever asks.
    ///
    /// Another rule under a name that is in use is enforced too, under keys of
    /// its own, and told as
    /// [`Problem::PolicyConflict`](crate::observe::Problem::PolicyConflict): two
    /// layers that share a name by mistake do not share a count.
    ///
    /// # Errors
    ///
    /// [`BuildError::Policy`] with what is not legal about it.
    pub fn policy(&self, policy: Policy) -> Result<PolicyHandle, BuildError> {
        let [handle] = self.policies(&[policy])?;
        Ok(handle)
    }

    /// Makes policies known that are checked together: their keys in Redis
    /// have the first part of the identity in braces, so that they share a slot
    /// of a cluster. From then on that is so wherever these policies are used.
    ///
    /// ```
    /// use tower_ratelimit::{Charge, Key, Policy, Rate, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::memory();
    /// let [user, all] = limiter.policies(&[
    ///     Policy::fixed_window("export-user", Rate::per_hour(2)),
    ///     Policy::fixed_window("export-all", Rate::per_hour(3)),
    /// ])?;
    /// let export = |name: &str| {
    ///     limiter.check([
    ///         Charge::new(&user, Key::principal(name)),
    ///         Charge::new(&all, Key::principal("everybody")),
    ///     ])
    /// };
    /// assert!(export("ann").await.is_allowed());
    /// assert!(export("ann").await.is_allowed());
    /// // Refused by one policy, counted by none: there is one left for Bob.
    /// assert_eq!(export("ann").await.policy(), "export-user");
    /// assert!(export("bob").await.is_allowed());
    /// assert_eq!(export("bob").await.policy(), "export-all");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BuildError::Policy`] with what is not legal about one of them,
    /// [`BuildError::DuplicatePolicy`] if two have one name.
    pub fn policies<const N: usize>(&self, policies: &[Policy; N]) -> Result<[PolicyHandle; N], BuildError> {
        const { assert!(N >= 1 && N <= MAX_POLICIES, "a check takes 1 to 8 policies") };
        let handles = self.register(policies)?;
        handles.into_inner().map_err(|_| BuildError::TooManyPolicies { count: N })
    }

    pub(crate) fn register<const N: usize>(
        &self,
        policies: &[Policy],
    ) -> Result<ArrayVec<PolicyHandle, N>, BuildError> {
        // All are looked at before the first is known to anybody.
        for (i, policy) in policies.iter().enumerate() {
            policy.check()?;
            if policies[..i].iter().any(|other| other.name() == policy.name()) {
                return Err(BuildError::DuplicatePolicy { name: policy.name().to_owned() });
            }
        }
        let paired = policies.len() > 1;
        let mut handles = ArrayVec::new();
        for policy in policies {
            let handle = self.told(policy, self.0.registry.register(policy, paired)?);
            if handles.try_push(handle).is_err() {
                return Err(BuildError::TooManyPolicies { count: policies.len() });
            }
        }
        Ok(handles)
    }

    /// Makes a policy known in place of another one of its name, which counts
    /// `layers` layers of the same rules and no others.
    pub(crate) fn renew(
        &self,
        policy: &Policy,
        paired: bool,
        replaced: Option<&PolicyHandle>,
        layers: u32,
        is_looser: bool,
    ) -> Result<PolicyHandle, BuildError> {
        // Shared with a layer that keeps the old rule, the name is not free.
        let goes = replaced.filter(|known| known.policy() != policy && known.layers() <= layers);
        let registration = self.0.registry.register_in_place_of(goes, policy, paired)?;
        if let Some(replaced) = replaced {
            registration.handle.pardon_as(replaced);
            if is_looser {
                registration.handle.pardon_before(self.0.clock.now(), replaced);
            }
        }
        Ok(self.told(policy, registration))
    }

    fn told(&self, policy: &Policy, registration: Registration) -> PolicyHandle {
        let Registration { handle, problem } = registration;
        if let Some(problem) = problem {
            // Not one of `problems`: it lasts as long as the layers do.
            self.0.observers.tell(|observer| observer.misconfigured(&problem));
        }
        if let Some(block) = policy.block().filter(|block| *block < policy.rate().window()) {
            let window = policy.rate().window();
            tracing::warn!(
                policy = policy.name(),
                ?block,
                ?window,
                "block_for is shorter than the window and ends it early"
            );
        }
        handle
    }

    /// Whether both are one limiter.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Charges 1 to 8 identities, all or none of them, and answers whether they
    /// may go on. One round trip to Redis; none in memory.
    ///
    /// Two charges of one identity under one policy are one of their sum. A
    /// policy that reserves charges at once; see [`reserve`](Self::reserve).
    ///
    /// Nothing happens before the future is polled. Dropped while Redis is
    /// asked, the check has counted once or not at all. It never fails: what
    /// Redis cannot decide is decided by this process.
    pub async fn check<const N: usize>(&self, charges: [Charge; N]) -> Decision {
        const { assert!(N >= 1 && N <= MAX_POLICIES, "a check takes 1 to 8 policies") };
        self.let_others_run().await;
        self.begin(&distinct(charges)).await
    }

    /// What is decided here is ready at once, and a task that only checks, as
    /// fast as it can, would never yield: on a runtime of one thread nobody could
    /// connect again meanwhile.
    #[cfg_attr(not(feature = "redis"), expect(clippy::unused_async, reason = "nothing has to run meanwhile"))]
    async fn let_others_run(&self) {
        #[cfg(feature = "redis")]
        if let Backend::Redis { .. } = &self.0.backend {
            tokio::task::coop::consume_budget().await;
        }
    }

    /// The numbers of one identity, without a charge and never refused. One
    /// round trip to Redis; what Redis does not answer within the deadline is
    /// answered by this process, see [`Decision::source`].
    pub async fn peek(&self, policy: &PolicyHandle, key: &Key) -> Decision {
        let charge = Charge::new(policy, *key).cost(0);
        #[cfg(feature = "redis")]
        if let Some(decision) = self.0.peek_at_redis(&charge).await {
            return decision;
        }
        let now = self.0.clock.now();
        let answer = self.0.local.peek(&charge.asked(), self.0.fallback_share(), now);
        decision(&charge, answer, Source::Local, now)
    }

    /// Forgets one identity under one policy, its block too. Other processes
    /// forget what they remember of it with the end of its window or block:
    /// until then they may repeat a refusal.
    ///
    /// # Errors
    ///
    /// When Redis could not be told. What this process remembers is forgotten
    /// in any case.
    pub async fn reset(&self, policy: &PolicyHandle, key: &Key) -> Result<(), StoreError> {
        let charge = Charge::new(policy, *key);
        self.0.local.reset(&charge.asked());
        #[cfg(feature = "redis")]
        if let Backend::Redis { store, .. } = &self.0.backend {
            let store_key = policy.store_key(key);
            // In the slot of the counter only for a policy that reserves.
            let reserves = policy.policy().reservation().is_some();
            let reservations = reserves.then(|| PolicyHandle::reservations_key(&store_key));
            store.reset(std::iter::once(store_key).chain(reservations).collect()).await?;
            // Again: an answer from before may have been mirrored meanwhile.
            self.0.local.reset(&charge.asked());
        }
        Ok(())
    }

    /// How many identities this process remembers, after sweeping those whose
    /// time is up.
    #[must_use]
    pub fn local_entries(&self) -> usize {
        self.0.local.sweep(self.0.clock.now());
        self.0.local.entries()
    }

    /// Whether Redis decides at the moment; of a cluster, all of it. False in
    /// memory, during a fallback, and before the first check, which is what
    /// connects.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        match &self.0.backend {
            #[cfg(feature = "redis")]
            Backend::Redis { store, .. } => store.is_up(),
            _ => false,
        }
    }

    /// How Redis is doing, as this process sees it. `None` in memory.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn health(&self) -> Option<Health> {
        match &self.0.backend {
            Backend::Redis { health, .. } => Some(health.now()),
            _ => None,
        }
    }

    /// Sends to Redis what is left to reconcile, for the end of the process. That the
    /// connection then ends is told nobody as a loss.
    /// Answers at once in memory, and when nothing is owed.
    ///
    /// # Errors
    ///
    /// When Redis did not take all of it within the deadline: replicas that go
    /// on then do not know what this one has admitted while Redis was gone.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), StoreError> {
        #[cfg(feature = "redis")]
        if let Backend::Redis { store, closing, .. } = &self.0.backend {
            let paid = tokio::time::timeout(deadline, self.0.pay_what_is_left(store)).await;
            closing.store(true, Ordering::Relaxed);
            return paid.unwrap_or_else(|_| Err(StoreError::new(crate::store::StoreErrorKind::Timeout)));
        }
        Ok(())
    }

    /// Whether Redis, or the master of its slot, can be asked of this now.
    pub(crate) fn can_ask_redis(&self, charge: &Charge) -> bool {
        match &self.0.backend {
            #[cfg(feature = "redis")]
            Backend::Redis { store, .. } => store.unavailable(charge.tag()).is_none(),
            _ => false,
        }
    }

    /// Whether keys of one check must share a slot.
    pub(crate) fn is_on_cluster(&self) -> bool {
        match &self.0.backend {
            #[cfg(feature = "redis")]
            Backend::Redis { store, .. } => store.is_cluster(),
            _ => false,
        }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Something about the set-up is wrong.
    pub(crate) fn noticed(&self, problem: Problem) {
        self.0.problems.seen(problem, self.0.clock.now(), &self.0.observers);
    }

    pub(crate) fn observers(&self) -> &Observers {
        &self.0.observers
    }

    /// Starts a check of distinct charges. Everything that needs no I/O is
    /// decided here, without allocating.
    pub(crate) fn begin(&self, charges: &Charges) -> Check {
        let inner = &self.0;
        let now = inner.clock.now();
        inner.problems.look(now, &inner.observers);
        match &inner.backend {
            Backend::Memory => Check::Ready(inner.decide_here(charges)),
            #[cfg(feature = "redis")]
            Backend::Redis { store, .. } => {
                if store.is_cluster() && !apart::share_a_slot(charges) {
                    return apart::begin(self, charges);
                }
                if let Some(denied) = inner.denied_before(charges, now) {
                    return Check::Ready(denied);
                }
                if let Some(error) = store.unavailable(charges[0].tag()) {
                    return Check::Ready(inner.fall_back(charges, &error, Charged::Unsent));
                }
                Check::Waiting(Box::pin(fallback::decide(inner.clone(), charges.clone())))
            }
            #[cfg(feature = "test-util")]
            Backend::Scripted(script) => {
                let answers: ArrayVec<_, MAX_POLICIES> =
                    charges.iter().map(|charge| script.next(&charge.rule())).collect();
                Check::Ready(inner.conclude(charges, &answers, Source::Local))
            }
        }
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("RateLimiter");
        match &self.0.backend {
            Backend::Memory => debug.field("store", &"memory"),
            #[cfg(feature = "redis")]
            Backend::Redis { store, .. } => debug.field("store", store),
            #[cfg(feature = "test-util")]
            Backend::Scripted(_) => debug.field("store", &"script"),
        };
        debug.field("policies", &self.0.registry).finish_non_exhaustive()
    }
}
