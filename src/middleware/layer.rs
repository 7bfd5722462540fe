//! The layer: what an application names.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tower_layer::Layer;

use super::builder::RateLimitLayerBuilder;
use super::service::RateLimit;
use super::shared::Shared;
#[cfg(feature = "redis")]
use crate::limiter::BuildError;
use crate::limiter::RateLimiter;
use crate::policy::{Policy, Rate};

/// Limits the requests of the services it wraps.
///
/// All services of one layer, and of its clones, share their counters. A
/// request is charged once for each policy, however many of them it passes.
/// What becomes of a request, and what when Redis fails, is told on the
/// [crate's page](crate).
///
/// It has no type parameter, so it can be a field of a struct. It works with any
/// service of HTTP requests that is [`Clone`], whatever its bodies; that of its
/// responses is in [`Bytes`](bytes::Bytes).
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{Rate, RateLimitLayer};
///
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(RateLimitLayer::per_ip(Rate::per_minute(100)));
/// ```
///
/// Serve it with `app.into_make_service_with_connect_info::<SocketAddr>()`:
/// without that there is no peer address, and all clients share one bucket.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    shared: Arc<Shared>,
    /// The rate of a layer that [`per_ip`](Self::per_ip) has made.
    per_ip: Option<Rate>,
}

impl RateLimitLayer {
    /// Limits each peer address by the policy `http`, a
    /// [fixed window](crate::Algorithm::FixedWindow), in this process. IPv6
    /// addresses are grouped by /64.
    ///
    /// Behind a proxy every peer is the proxy: use [`builder`](Self::builder)
    /// with [`ClientIp::behind`](crate::identity::ClientIp::behind).
    #[must_use]
    pub fn per_ip(rate: Rate) -> Self {
        Self::per_ip_by(RateLimiter::memory(), rate)
    }

    /// The same layer, counting in Redis and so shared by all replicas:
    /// `redis://[user[:password]@]host[:port][/db]`, or `rediss://` with the
    /// feature `tls`. Succeeds at once, even if Redis is down.
    ///
    /// # Errors
    ///
    /// [`BuildError::RedisUrl`] if the URL is not one of Redis;
    /// [`BuildError::RedisTls`] if it needs the feature `tls`;
    /// [`BuildError::Conflict`] for a layer that was not made by
    /// [`per_ip`](Self::per_ip): it has a limiter of its own, which takes the
    /// URL.
    #[cfg(feature = "redis")]
    pub fn redis(self, url: impl Into<String>) -> Result<Self, BuildError> {
        let rate =
            self.per_ip.ok_or(BuildError::Conflict { field: "redis", other: "a limiter of one's own" })?;
        Ok(Self::per_ip_by(RateLimiter::redis(url)?, rate))
    }

    fn per_ip_by(limiter: RateLimiter, rate: Rate) -> Self {
        #[expect(clippy::expect_used, reason = "the policy has a legal name and a legal rate")]
        let layer = Self::builder(limiter)
            .policy(Policy::fixed_window("http", rate))
            .build()
            .expect("no default is refused");
        Self { per_ip: Some(rate), ..layer }
    }

    /// All settings, on a limiter of one's own. Layers that share a limiter, or
    /// a clone of it, share its memory and its connection.
    pub fn builder(limiter: RateLimiter) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder::new(limiter)
    }

    /// The limiter, for checks outside of HTTP.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        &self.shared.limiter
    }

    pub(super) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared), per_ip: None }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        // axum calls this once for each route: nothing is counted in a service.
        self.shared.services.fetch_add(1, Ordering::Relaxed);
        RateLimit::new(inner, self.shared.clone())
    }
}
