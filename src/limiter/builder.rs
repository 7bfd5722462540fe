//! How a limiter is set up, and what is refused then.

use std::fmt;
#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::registry::Registry;
use super::{Backend, BuildError, Inner, RateLimiter};
use crate::clock::Clock;
use crate::observe::{Observer, Observers};

use crate::store::memory::{LocalTable, Share};
#[cfg(feature = "redis")]
use crate::store::redis::{RedisStore, Target};
#[cfg(feature = "redis")]
use crate::store::{HealthRecord, StoreErrorKind, StoreEvent};

const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);
const DEFAULT_CAPACITY: usize = 250_000;

/// Sets up a [`RateLimiter`]. Without an address of Redis it counts in this
/// process.
///
/// ```
/// # #[cfg(feature = "redis")]
/// # {
/// use std::time::Duration;
/// use tower_ratelimit::RateLimiter;
///
/// // One of four replicas that share a Redis with other applications.
/// let limiter = RateLimiter::builder()
///     .redis("redis://127.0.0.1:6379")
///     .namespace("shop")
///     .deadline(Duration::from_millis(50))
///     .fallback_share(1, 4)
///     .build()?;
/// # }
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
///
/// A mistake is an error of [`build`](Self::build), which names the setting:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::RateLimiter;
///
/// let error = RateLimiter::builder().deadline(Duration::from_millis(50)).build().unwrap_err();
/// assert_eq!(error.to_string(), "deadline: has no effect without Redis");
/// ```
#[must_use = "a limiter is built by `build`"]
pub struct RateLimiterBuilder {
    origin: Origin,
    /// PEM. Set with the feature `tls` only.
    redis_ca: Option<Vec<u8>>,
    namespace: Option<String>,
    deadline: Option<Duration>,
    share: Option<Share>,
    capacity: usize,
    observers: Vec<Box<dyn Observer>>,
    #[cfg(feature = "test-util")]
    clock: Option<crate::test_util::ManualClock>,
}

/// Where decisions are to come from.
enum Origin {
    Memory,
    /// A URL: it may hold a password.
    #[cfg(feature = "redis")]
    Redis(String),
    /// The same of some nodes.
    #[cfg(feature = "redis")]
    RedisCluster(Vec<String>),
    #[cfg(feature = "test-util")]
    Script(crate::test_util::Script),
}

impl RateLimiterBuilder {
    pub(super) fn new() -> Self {
        Self {
            origin: Origin::Memory,
            redis_ca: None,
            namespace: None,
            deadline: None,
            share: None,
            capacity: DEFAULT_CAPACITY,
            observers: Vec::new(),
            #[cfg(feature = "test-util")]
            clock: None,
        }
    }

    /// Counts in Redis: `redis://[user[:password]@]host[:port][/db]`, or
    /// `rediss://` for TLS, with the feature `tls`.
    ///
    /// Nothing is sent before the first check, so building succeeds with Redis
    /// down. What is wrong with the URL is an error of [`build`](Self::build).
    /// Default: counts stay in this process.
    ///
    /// With TLS the server's certificate must be for the host of the URL, and
    /// be issued by a public CA, as in Mozilla's list, or by that of
    /// `redis_ca`; there is no switch to trust anybody. What to set on the
    /// server is in the [docs of the store](crate::store).
    #[cfg(feature = "redis")]
    pub fn redis(mut self, url: impl Into<String>) -> Self {
        self.origin = Origin::Redis(url.into());
        self
    }

    /// Counts in a Redis Cluster, found from these nodes: URLs as for
    /// [`redis`](Self::redis), with one user, password and scheme for all, and
    /// without a database. One is enough; name several, for one may be down when
    /// the process starts.
    ///
    /// A check goes to the master of its slot, in one round trip, and follows one
    /// redirect. A master that is gone has the checks of its slots fall back, and
    /// no others. Policies that are checked together need identities with one
    /// first part: see [clusters](crate::store#clusters).
    ///
    /// ```
    /// use tower_ratelimit::{BuildError, RateLimiter};
    ///
    /// let nodes = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"];
    /// let limiter = RateLimiter::builder().redis_cluster(nodes).build()?;
    ///
    /// let error = RateLimiter::builder().redis_cluster(["redis://10.0.0.1/3"]).build().unwrap_err();
    /// assert_eq!(error, BuildError::ClusterDatabase { db: 3 });
    /// # Ok::<(), BuildError>(())
    /// ```
    #[cfg(feature = "redis")]
    pub fn redis_cluster(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.origin = Origin::RedisCluster(urls.into_iter().map(Into::into).collect());
        self
    }

    /// The CA that has issued the certificate of a `rediss://` server, in PEM;
    /// several one after another. The public ones then count no more.
    ///
    /// For a private CA, and for that of the system:
    /// `std::fs::read("/etc/ssl/certs/ca-certificates.crt")`. Refused without a
    /// `rediss://` URL, where it would mean nothing. Default: the public CAs.
    ///
    /// ```
    /// use tower_ratelimit::{BuildError, RateLimiter};
    ///
    /// let error = RateLimiter::builder()
    ///     .redis("rediss://redis.internal:6380")
    ///     .redis_ca("not a certificate")
    ///     .build()
    ///     .unwrap_err();
    /// assert_eq!(error, BuildError::RedisCa);
    /// ```
    #[cfg(feature = "tls")]
    pub fn redis_ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.redis_ca = Some(pem.into());
        self
    }

    /// Goes in front of every key in Redis: `myapp` and `myapp:` both give
    /// `myapp:http:rl:...`. 1 to 64 of letters, digits, `_`, `-`, `.` and `:`.
    /// Default: none.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How long a check may take with Redis, connecting included; then it falls
    /// back to this process. 1 ms to 60 s. Refused without Redis, where it would
    /// mean nothing. Default: 100 ms.
    ///
    /// It is also what a hanging Redis can cost: after three missed deadlines in
    /// a row checks no longer wait.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Which part of a limit this process admits by itself while Redis is gone:
    /// `fallback_share(1, 4)` for four replicas. Above 0, at most 1. Refused
    /// without Redis. Default: all of it.
    ///
    /// In a window of which Redis has told, `max(1, share x what was left)`
    /// more are admitted, rounded down, none if nothing was left; in a window
    /// that starts meanwhile `max(1, share x limit)`.
    pub fn fallback_share(mut self, numerator: u32, denominator: u32) -> Self {
        self.share = Some(Share { numerator, denominator });
        self
    }

    /// How many identities this process remembers at most; an identity counts
    /// once for each policy. About 260 bytes each for an address, up to about
    /// 390 for the longest key. 1 or more. Default: 250,000, so 65 to 100 MB
    /// when full; memory is taken as they come.
    ///
    /// When it is full, the soonest-ending of those with something left goes
    /// first, then of those that are used up. Refused and blocked ones stay;
    /// when there are no others, newcomers share one bucket for each policy.
    pub fn local_capacity(mut self, identities: usize) -> Self {
        self.capacity = identities;
        self
    }

    /// Adds hooks, see [`Observer`]; call it again for more. `tracing` events
    /// come in any case. Default: no other hooks.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Box::new(observer));
        self
    }

    /// Takes time from a clock that a test turns. Redis keeps its own time.
    /// Default: the clock of tokio, which tests can pause.
    #[cfg(feature = "test-util")]
    pub fn clock(mut self, clock: crate::test_util::ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn script(mut self, script: crate::test_util::Script) -> Self {
        self.origin = Origin::Script(script);
        self
    }

    /// Builds it, without any I/O.
    ///
    /// # Errors
    ///
    /// Names the field and the value that is not legal, or the setting that has
    /// no effect in this combination: [`BuildError::RedisUrl`],
    /// [`RedisTls`](BuildError::RedisTls), [`RedisCa`](BuildError::RedisCa),
    /// [`NeedsTls`](BuildError::NeedsTls),
    /// [`ClusterNodes`](BuildError::ClusterNodes),
    /// [`ClusterDatabase`](BuildError::ClusterDatabase),
    /// [`ClusterMixed`](BuildError::ClusterMixed),
    /// [`Namespace`](BuildError::Namespace), [`Deadline`](BuildError::Deadline),
    /// [`FallbackShare`](BuildError::FallbackShare),
    /// [`LocalCapacity`](BuildError::LocalCapacity) or
    /// [`NeedsRedis`](BuildError::NeedsRedis).
    pub fn build(self) -> Result<RateLimiter, BuildError> {
        let namespace = checked_namespace(self.namespace.unwrap_or_default())?;
        if self.capacity == 0 {
            return Err(BuildError::LocalCapacity);
        }
        if let Some(Share { numerator, denominator }) = self.share
            && (numerator == 0 || numerator > denominator)
        {
            return Err(BuildError::FallbackShare { numerator, denominator });
        }
        let deadline = self.deadline.unwrap_or(DEFAULT_DEADLINE);
        if deadline < Duration::from_millis(1) || deadline > Duration::from_secs(60) {
            return Err(BuildError::Deadline { deadline });
        }
        let observers = Observers::new(self.observers);
        if matches!(self.origin, Origin::Memory) {
            let useless = [
                ("redis_ca", self.redis_ca.is_some()),
                ("deadline", self.deadline.is_some()),
                ("fallback_share", self.share.is_some()),
            ];
            if let Some((field, _)) = useless.into_iter().find(|(_, set)| *set) {
                return Err(BuildError::NeedsRedis { field });
            }
        }
        let home = Arc::default();
        let (backend, registry) =
            backend(self.origin, self.redis_ca.as_deref(), namespace, deadline, &observers, &home)?;
        #[cfg(feature = "test-util")]
        let clock = self.clock.map_or_else(Clock::system, Clock::Manual);
        #[cfg(not(feature = "test-util"))]
        let clock = Clock::system();
        let local = LocalTable::new(self.capacity);
        let share = self.share.unwrap_or(Share::WHOLE);
        let inner = Arc::new(Inner {
            backend,
            registry,
            local,
            share,
            clock,
            observers,
            problems: crate::observe::Problems::default(),
            #[cfg(feature = "redis")]
            unknown: super::reconcile::Unknown::default(),
        });
        // Set here and nowhere else.
        let _ = home.set(Arc::downgrade(&inner));
        Ok(RateLimiter(inner))
    }
}

/// Where a store finds the limiter that it is part of.
type Home = Arc<OnceLock<Weak<Inner>>>;

fn backend(
    origin: Origin,
    ca: Option<&[u8]>,
    namespace: String,
    deadline: Duration,
    observers: &Observers,
    home: &Home,
) -> Result<(Backend, Arc<Registry>), BuildError> {
    match origin {
        Origin::Memory => Ok((Backend::Memory, Registry::own(namespace))),
        #[cfg(feature = "redis")]
        Origin::Redis(url) => connected(Target::new(&url, ca)?, namespace, deadline, observers, home),
        #[cfg(feature = "redis")]
        Origin::RedisCluster(urls) => {
            connected(Target::cluster(&urls, ca)?, namespace, deadline, observers, home)
        }
        #[cfg(feature = "test-util")]
        Origin::Script(script) => Ok((Backend::Scripted(script), Registry::own(namespace))),
    }
}

#[cfg(feature = "redis")]
fn connected(
    target: Target,
    namespace: String,
    deadline: Duration,
    observers: &Observers,
    home: &Home,
) -> Result<(Backend, Arc<Registry>), BuildError> {
    let (told, home) = (observers.clone(), home.clone());
    let health = Arc::new(HealthRecord::new());
    let closing = Arc::<AtomicBool>::default();
    let (learning, ends) = (health.clone(), closing.clone());
    let tell = move |event: &StoreEvent<'_>| {
        learning.learn(event);
        // At the end of the process the connection ends with its runtime. That is
        // no loss, and an alarm at each deploy would be a false one.
        let is_end =
            matches!(event, StoreEvent::Lost { error, .. } if error.kind() == StoreErrorKind::Disconnected);
        if is_end && ends.load(Ordering::Relaxed) {
            return;
        }
        told.tell(|observer| observer.store(event));
        if let (StoreEvent::Connected { .. }, Some(inner)) = (event, home.get()) {
            // On the task that has made the connection.
            tokio::spawn(super::reconcile::pay_while_connected(inner.clone()));
        }
    };
    let store = RedisStore::new(target, &namespace, deadline, tell).map_err(|_| BuildError::RedisUrl)?;
    let registry = Registry::shared(&store.place(), namespace);
    Ok((Backend::Redis { store: Arc::new(store), health, closing }, registry))
}

impl fmt::Debug for RateLimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: it may hold a password.
        f.debug_struct("RateLimiterBuilder")
            .field("namespace", &self.namespace)
            .field("deadline", &self.deadline)
            .field("share", &self.share)
            .field("local_capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// A namespace with exactly one `:` behind it, or nothing.
fn checked_namespace(namespace: String) -> Result<String, BuildError> {
    if namespace.is_empty() {
        return Ok(namespace);
    }
    let name = namespace.strip_suffix(':').unwrap_or(&namespace);
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    if name.is_empty() || name.len() > 64 || name.ends_with(':') || !name.chars().all(legal) {
        return Err(BuildError::Namespace { namespace });
    }
    Ok(format!("{name}:"))
}
