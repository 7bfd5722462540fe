//! The limits: one limiter, the rules, one layer.

use axum::body::Bytes;
use axum::http::Response;
use mcp_server::EXECUTE_CODE;
use tower_ratelimit::identity::{ClientIp, Extension, Principal};
use tower_ratelimit::mcp::McpLayer;
use tower_ratelimit::observe::Metrics;
use tower_ratelimit::response::{Negotiated, Refused, Reply};
use tower_ratelimit::rules::{Limit, LiveRules, RulesFile};
use tower_ratelimit::settings::{RedisTarget, SettingsError};
use tower_ratelimit::{BuildError, Policy, Rate, RateLimitLayer, RateLimiter};

use crate::routes;
use crate::rules::Source;
use crate::settings::Settings;

/// What limits requests, and what it can be asked about.
pub(crate) struct Limits {
    pub(crate) layer: RateLimitLayer,
    pub(crate) mcp: McpLayer,
    pub(crate) rules: LiveRules,
    pub(crate) clients: ClientIp,
    /// The inner layer of what costs tokens.
    pub(crate) tokens: RateLimitLayer,
}

/// The rules of the environment; what they have no rule for is limited by address.
pub(crate) fn source(settings: &Settings) -> Result<Source, Box<dyn std::error::Error>> {
    let rate = Rate::new(settings.limits.mcp_rate_limit_max(), settings.limits.rate_limit_window())?;
    let clients = settings.clients.clone();
    let http = Limit::new(Policy::fixed_window("http", rate)).by(clients.clone());
    let format = RulesFile::new().client_ip(clients);
    Ok(Source::new(settings.rules_file.clone(), format, http))
}

pub(crate) fn build(settings: &Settings, source: &Source) -> Result<Limits, Box<dyn std::error::Error>> {
    let limiter = limiter(settings)?;
    let clients = settings.clients.clone();
    let rules = LiveRules::new(&limiter, source.read()?)?;
    let mcp = mcp(&limiter, settings)?;
    let tokens = tokens(&limiter, settings)?;
    let layer = RateLimitLayer::builder(limiter)
        .rules(rules.clone())
        .client_ip(clients.clone())
        // Whatever the rules: a probe that is refused gets a healthy process killed.
        .skip_path(routes::HEALTHZ)
        .skip_path(routes::METRICS)
        .standard_fields()
        .decision_in_request()
        .reply(refuse)
        .build()?;
    tracing::info!(
        store = settings.limits.redis().map_or_else(|| "memory".to_owned(), ToString::to_string),
        limit = settings.limits.mcp_rate_limit_max(),
        window = ?settings.limits.rate_limit_window(),
        "limiting by rules, and what they leave by client address"
    );
    Ok(Limits { layer, mcp, rules, clients, tokens })
}

/// Who calls: the principal that the layer in front has verified. A call without
/// one counts by its address.
fn caller() -> Extension<Principal> {
    let caller = Extension::new(|caller: &Principal| {
        // Neither has a dot: see `callers.rs`.
        Some(format!("{}.{}", caller.workspace_id()?, caller.user_name()?).into())
    });
    caller.called("caller")
}

/// Tokens are settled when an answer has ended.
fn tokens(limiter: &RateLimiter, settings: &Settings) -> Result<RateLimitLayer, Box<dyn std::error::Error>> {
    let rate = Rate::new(settings.tokens, settings.limits.rate_limit_window())?;
    let policy = Policy::fixed_window("tokens", rate).reserve_for(llm_tokens::LONGEST_ANSWER);
    let limit = Limit::new(policy).by(caller()).cost(llm_tokens::ESTIMATE);
    let layer = RateLimitLayer::builder(limiter.clone()).limit(limit).client_ip(settings.clients.clone());
    Ok(layer.standard_fields().build()?)
}

/// The MCP server has limits of its own: everything but the expensive tool counts
/// on `http`, as other pages do, and a client that has used up the tool still
/// connects.
fn mcp(limiter: &RateLimiter, settings: &Settings) -> Result<McpLayer, Box<dyn std::error::Error>> {
    let (limits, window) = (&settings.limits, settings.limits.rate_limit_window());
    let codemode = Policy::fixed_window("codemode", Rate::new(limits.codemode_rate_limit_max(), window)?);
    let layer = McpLayer::builder(limiter.clone(), caller())
        .transport(Policy::fixed_window("http", Rate::new(limits.mcp_rate_limit_max(), window)?))
        .tool(EXECUTE_CODE, codemode)
        .tool_answer(settings.tool_reply)
        .client_ip(settings.clients.clone())
        .configure(|layer| layer.standard_fields());
    Ok(layer.build()?)
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

/// The crate's own refusal, but `/decision` shows its decision there too.
fn refuse(refused: &Refused<'_>) -> Response<Bytes> {
    let mut response = Negotiated.refuse(refused);
    if refused.head().path() == routes::DECISION && !refused.is_grpc() {
        *response.body_mut() = routes::decision_json(refused.decision()).to_string().into();
    }
    response
}
