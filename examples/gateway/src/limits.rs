//! The limit: one limiter, one policy, one layer.

use axum::body::Bytes;
use axum::http::Response;
use tower_ratelimit::identity::ClientIp;
use tower_ratelimit::observe::Metrics;
use tower_ratelimit::response::{Json, Refused, Reply};
use tower_ratelimit::settings::{RedisTarget, SettingsError};
use tower_ratelimit::{BuildError, Policy, PolicyHandle, Rate, RateLimitLayer, RateLimiter};

use crate::routes;
use crate::settings::Settings;

/// What limits requests, and what it can be asked about.
pub(crate) struct Limits {
    pub(crate) layer: RateLimitLayer,
    pub(crate) policy: PolicyHandle,
    pub(crate) clients: ClientIp,
}

pub(crate) fn build(settings: &Settings) -> Result<Limits, Box<dyn std::error::Error>> {
    let rate = Rate::new(settings.limits.mcp_rate_limit_max(), settings.limits.rate_limit_window())?;
    let http = Policy::fixed_window("http", rate);
    let limiter = limiter(settings)?;
    let clients = settings.clients.clone();
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy(http.clone())
        .client_ip(clients.clone())
        // A probe that is refused gets a healthy process killed.
        .skip_path(routes::HEALTHZ)
        .skip_path(routes::METRICS)
        .decision_in_request()
        .reply(refuse)
        .build()?;
    tracing::info!(
        store = settings.limits.redis().map_or_else(|| "memory".to_owned(), ToString::to_string),
        limit = rate.limit(),
        window = ?rate.window(),
        "limiting by client address"
    );
    // The same rule under the same name: this is the layer's own policy.
    Ok(Limits { layer, policy: limiter.policy(http)?, clients })
}

fn limiter(settings: &Settings) -> Result<RateLimiter, Box<dyn std::error::Error>> {
    let mut builder = RateLimiter::builder().observer(Metrics::new());
    // Without Redis the other two are refused, as they would have no effect.
    if let Some(target) = settings.limits.redis() {
        builder = match target {
            RedisTarget::Url(url) => builder.redis(url),
            nodes => builder.redis_cluster(nodes.urls()),
        };
        if let Some(deadline) = settings.limits.deadline() {
            builder = builder.deadline(deadline);
        }
        if let Some((numerator, denominator)) = settings.limits.fallback_share() {
            builder = builder.fallback_share(numerator, denominator);
        }
    }
    let is_url = matches!(settings.limits.redis(), Some(RedisTarget::Url(_)));
    builder.build().map_err(|error| match error {
        BuildError::RedisUrl if is_url => {
            SettingsError::new("REDIS_URL", "redis://[[user]:password@]host[:port][/database]").into()
        }
        error => error.into(),
    })
}

/// The crate's own 429, but `/decision` shows its decision there too.
fn refuse(refused: &Refused<'_>) -> Response<Bytes> {
    let mut response = Json.refuse(refused);
    if refused.head().path() == routes::DECISION {
        *response.body_mut() = routes::decision_json(refused.decision()).to_string().into();
    }
    response
}
