//! What the environment says: the variables of the crate, and of the gateway.
//!
//! | variable | value | default |
//! |---|---|---|
//! | `LISTEN` | address and port, port 0 picks one | `127.0.0.1:3000` |
//! | `CORS_ORIGINS` | origins between commas, or `*` | none |
//! | `MCP_TOOL_REPLY` | `result` or `429`: how a refused tool call is answered | `result` |
//! | `RULES_FILE` | a TOML file of rules, read again on SIGHUP | the rules of `examples/saas.toml` |
//! | `TOKENS_RATE_LIMIT_MAX` | tokens of `/v1/complete` in a window for each principal, else address | `1000` |
//! | `RUST_LOG` | `warn`, `info,tower_ratelimit=debug`, ... | `info` |
//! | the others | see [`tower_ratelimit::settings`] | |
//!
//! A wrong value stops the gateway with the name of the variable and what it
//! accepts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use axum::http::HeaderValue;
use axum::http::uri::Authority;
use tower_http::cors::AllowOrigin;
use tower_ratelimit::MAX_LIMIT;
use tower_ratelimit::identity::ClientIp;
use tower_ratelimit::mcp::Answer;
use tower_ratelimit::settings::{RedisTarget, Settings as LimitSettings, SettingsError};
use tracing::Level;
use tracing_subscriber::filter::Targets;

/// Read once, at start.
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) cors_origins: Option<AllowOrigin>,
    pub(crate) log_levels: Targets,
    pub(crate) clients: ClientIp,
    pub(crate) tool_reply: Answer,
    pub(crate) rules_file: Option<PathBuf>,
    pub(crate) tokens: u64,
    pub(crate) limits: LimitSettings,
}

impl Settings {
    pub(crate) fn from_env() -> Result<Self, SettingsError> {
        let limits = LimitSettings::from_env()?;
        Ok(Self {
            listen: listen()?,
            cors_origins: cors_origins()?,
            log_levels: log_levels()?,
            clients: clients(&limits)?,
            tool_reply: tool_reply()?,
            rules_file: LimitSettings::variable("RULES_FILE")?.map(PathBuf::from),
            tokens: tokens()?,
            limits: with_redis(limits)?,
        })
    }

    /// What is odd but not wrong.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.limits.warnings().to_vec();
        let needs_redis = [
            ("RATE_LIMIT_DEADLINE_MS", self.limits.deadline().is_some()),
            ("RATE_LIMIT_FALLBACK_SHARE", self.limits.fallback_share().is_some()),
        ];
        if self.limits.redis().is_none() {
            let unused = needs_redis.iter().filter(|(_, set)| *set).map(|(name, _)| *name);
            let unused = unused.collect::<Vec<_>>().join(", ");
            if !unused.is_empty() {
                warnings.push(format!("{unused} not applied: without Redis there is nothing to wait for"));
            }
        }
        if self.limits.audit_log_path().is_some() {
            warnings.push("AUDIT_LOG_PATH not applied: this version writes no audit log".to_owned());
        }
        warnings
    }
}

fn listen() -> Result<SocketAddr, SettingsError> {
    let Some(text) = LimitSettings::variable("LISTEN")? else {
        return Ok((Ipv4Addr::LOCALHOST, 3000).into());
    };
    text.parse().map_err(|_| {
        SettingsError::new("LISTEN", "an IP address and a port, such as 127.0.0.1:3000 or [::]:3000")
            .with_value(&text)
    })
}

fn tokens() -> Result<u64, SettingsError> {
    let Some(text) = LimitSettings::variable("TOKENS_RATE_LIMIT_MAX")? else { return Ok(1000) };
    // `parse` alone takes a sign as well.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|tokens| digits && *tokens <= MAX_LIMIT);
    number.ok_or_else(|| {
        SettingsError::new("TOKENS_RATE_LIMIT_MAX", format!("a whole number up to {MAX_LIMIT}"))
            .with_value(&text)
    })
}

fn log_levels() -> Result<Targets, SettingsError> {
    let Some(text) = LimitSettings::variable("RUST_LOG")? else {
        return Ok(Targets::new().with_default(Level::INFO));
    };
    text.parse().map_err(|_| {
        SettingsError::new("RUST_LOG", "levels, such as warn or info,tower_ratelimit=debug").with_value(&text)
    })
}

fn clients(limits: &LimitSettings) -> Result<ClientIp, SettingsError> {
    let clients = ClientIp::behind(limits.trusted_proxies())
        .map_err(|error| SettingsError::new("TRUSTED_PROXIES", error.to_string()))?;
    let Some(bits) = limits.ipv6_prefix() else { return Ok(clients) };
    clients.ipv6_prefix(bits).map_err(|error| SettingsError::new("RATE_LIMIT_IPV6_PREFIX", error.to_string()))
}

fn tool_reply() -> Result<Answer, SettingsError> {
    match LimitSettings::variable("MCP_TOOL_REPLY")?.as_deref() {
        None | Some("result") => Ok(Answer::Result),
        Some("429") => Ok(Answer::Status),
        Some(other) => Err(SettingsError::new("MCP_TOOL_REPLY", "result or 429").with_value(other)),
    }
}

/// What the crate's settings know, but this build cannot do, is refused here:
/// limiting elsewhere than the operator meant would be worse.
fn with_redis(limits: LimitSettings) -> Result<LimitSettings, SettingsError> {
    match limits.redis() {
        Some(RedisTarget::Url(url)) if url.starts_with("rediss:") => {
            Err(SettingsError::new("REDIS_URL", "redis:// only, the gateway is built without TLS"))
        }
        _ => Ok(limits),
    }
}

fn cors_origins() -> Result<Option<AllowOrigin>, SettingsError> {
    let Some(text) = LimitSettings::variable("CORS_ORIGINS")? else { return Ok(None) };
    if text == "*" {
        return Ok(Some(AllowOrigin::any()));
    }
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    match items.map(origin).collect::<Option<Vec<_>>>() {
        Some(origins) if !origins.is_empty() => Ok(Some(AllowOrigin::list(origins))),
        _ => {
            let accepts = "* alone, or origins between commas, such as https://app.example";
            Err(SettingsError::new("CORS_ORIGINS", accepts).with_value(&text))
        }
    }
}

/// An origin as browsers send it: scheme, host, perhaps a port, in lower case,
/// nothing behind. Any other spelling would never match.
fn origin(text: &str) -> Option<HeaderValue> {
    let text = text.to_ascii_lowercase();
    let (scheme, host) = text.split_once("://")?;
    let host: Authority = host.parse().ok()?;
    let legal = !scheme.is_empty() && !host.host().is_empty() && !host.as_str().contains('@');
    HeaderValue::try_from(&text).ok().filter(|_| legal)
}
