//! Settings from the environment: where Redis is, and how much is allowed.
//!
//! | variable | value | default |
//! |---|---|---|
//! | `REDIS_CLUSTER_NODES` | `host:port,host:port`, port 6379 when left out | none |
//! | `REDIS_URL` | `redis://` or `rediss://`, not read when the above is set | none |
//! | `REDIS_HOST` | a host, not read when one of the above is set | none |
//! | `REDIS_PORT` | port of `REDIS_HOST` | 6379 |
//! | `REDIS_PASSWORD` | password for `REDIS_HOST` or `REDIS_CLUSTER_NODES` | none |
//! | `REDIS_DB` | database at `REDIS_HOST`; refused beside a cluster | 0 |
//! | `MCP_RATE_LIMIT_MAX` | requests per window, 0 to 2^53-1 | 100 |
//! | `CODEMODE_RATE_LIMIT_MAX` | tool calls per window, 0 to 2^53-1 | 60 |
//! | `RATE_LIMIT_WINDOW_MS` | milliseconds, 1 to 31622400000 (366 days) | 60000 |
//! | `RATE_LIMIT_DEADLINE_MS` | milliseconds, 1 to 60000 | the limiter's |
//! | `RATE_LIMIT_FALLBACK_SHARE` | above 0, up to 1: `1/4`, `0.25` | the limiter's |
//! | `RATE_LIMIT_IPV6_PREFIX` | bits, 32 to 128 | the identity's |
//! | `TRUSTED_PROXIES` | addresses and CIDR ranges, comma-separated | none |
//! | `AUDIT_LOG_PATH` | a file | none |
//!
//! `rediss://` needs the feature `tls`. This version writes no audit log:
//! `AUDIT_LOG_PATH` is read, but not used yet.
//!
//! A blank value is an unset one. Without any of the first three, counts stay
//! in the memory of this process. A wrong value is an error that names its
//! variable; neither errors nor `Debug` ever show a password.
//!
//! ```
//! use tower_ratelimit::settings::Settings;
//!
//! let settings = Settings::from_lookup(|name| match name {
//!     "REDIS_URL" => Some("redis://:s3cret@10.0.0.7/2".to_owned()),
//!     "MCP_RATE_LIMIT_MAX" => Some("500".to_owned()),
//!     _ => None,
//! })?;
//! assert_eq!(settings.mcp_rate_limit_max(), 500);
//! let redis = settings.redis().map(ToString::to_string);
//! assert_eq!(redis.as_deref(), Some("redis://10.0.0.7:6379/2"));
//! # Ok::<(), tower_ratelimit::settings::SettingsError>(())
//! ```
//!
//! From settings to a layer. A deadline without Redis is refused, so it is set
//! together with it:
//!
//! ```
//! use tower_ratelimit::identity::ClientIp;
//! use tower_ratelimit::settings::{RedisTarget, Settings};
//! use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
//!
//! let settings = Settings::from_env()?;
//! let mut limiter = RateLimiter::builder();
//! # #[cfg(feature = "redis")]
//! if let Some(target) = settings.redis() {
//!     limiter = match target {
//!         RedisTarget::Url(url) => limiter.redis(url),
//!         nodes => limiter.redis_cluster(nodes.urls()),
//!     };
//!     if let Some(deadline) = settings.deadline() {
//!         limiter = limiter.deadline(deadline);
//!     }
//! }
//! let rate = Rate::new(settings.mcp_rate_limit_max(), settings.rate_limit_window())?;
//! let layer = RateLimitLayer::builder(limiter.build()?)
//!     .policy(Policy::fixed_window("http", rate))
//!     .client_ip(ClientIp::behind(settings.trusted_proxies())?)
//!     .build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod environment;
mod error;
mod redis_target;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::error::SettingsError;
pub use self::redis_target::RedisTarget;

use self::environment::Environment;
use crate::identity::IPV6_PREFIXES;
use crate::policy::{MAX_LIMIT, MAX_WINDOW, MIN_WINDOW};

const DEFAULT_MCP_MAX: u64 = 100;
const DEFAULT_CODEMODE_MAX: u64 = 60;
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);
const MAX_DEADLINE: Duration = Duration::from_secs(60);

/// What the environment says. Read once, at start: it does not follow later
/// changes.
#[derive(Clone, Debug)]
pub struct Settings {
    redis: Option<RedisTarget>,
    mcp_rate_limit_max: u64,
    codemode_rate_limit_max: u64,
    rate_limit_window: Duration,
    deadline: Option<Duration>,
    fallback_share: Option<(u32, u32)>,
    ipv6_prefix: Option<u8>,
    trusted_proxies: Vec<String>,
    audit_log_path: Option<PathBuf>,
    warnings: Vec<String>,
}

impl Settings {
    /// Reads the environment of this process.
    ///
    /// # Errors
    ///
    /// The first variable whose value is not accepted or not UTF-8.
    pub fn from_env() -> Result<Self, SettingsError> {
        Self::read(&Environment::new(&environment::of_process))
    }

    /// Reads from `lookup` in place of the environment: for tests, and for
    /// settings kept elsewhere under the same names.
    ///
    /// # Errors
    ///
    /// The first variable whose value is not accepted.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        Self::read(&Environment::new(&|variable| Ok(lookup(variable))))
    }

    /// One variable more from the environment of this process, by the same
    /// rules: `None` when it is unset or blank, else without the white space
    /// around it.
    ///
    /// # Errors
    ///
    /// When the value is not UTF-8.
    pub fn variable(name: &str) -> Result<Option<String>, SettingsError> {
        Environment::new(&environment::of_process).trimmed(name)
    }

    /// Where the shared counts are; `None` for the memory of this process.
    #[must_use]
    pub fn redis(&self) -> Option<&RedisTarget> {
        self.redis.as_ref()
    }

    /// `MCP_RATE_LIMIT_MAX`: requests per window and client. Default 100.
    #[must_use]
    pub fn mcp_rate_limit_max(&self) -> u64 {
        self.mcp_rate_limit_max
    }

    /// `CODEMODE_RATE_LIMIT_MAX`: tool calls per window and client. Default 60.
    #[must_use]
    pub fn codemode_rate_limit_max(&self) -> u64 {
        self.codemode_rate_limit_max
    }

    /// `RATE_LIMIT_WINDOW_MS`: the window of both limits. Default one minute.
    #[must_use]
    pub fn rate_limit_window(&self) -> Duration {
        self.rate_limit_window
    }

    /// `RATE_LIMIT_DEADLINE_MS`: how long a check waits for the store. `None`
    /// for the default of
    /// [`deadline`](crate::RateLimiterBuilder::deadline), 100 ms.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// `RATE_LIMIT_FALLBACK_SHARE`: the part of a limit that this replica
    /// admits without Redis, as numerator and denominator in lowest terms. `None`
    /// for the default of
    /// [`fallback_share`](crate::RateLimiterBuilder::fallback_share), all of it.
    #[must_use]
    pub fn fallback_share(&self) -> Option<(u32, u32)> {
        self.fallback_share
    }

    /// `RATE_LIMIT_IPV6_PREFIX`: how many bits of an IPv6 address are one
    /// client. `None` for the default of
    /// [`ipv6_prefix`](crate::identity::ClientIp::ipv6_prefix), 64.
    #[must_use]
    pub fn ipv6_prefix(&self) -> Option<u8> {
        self.ipv6_prefix
    }

    /// `TRUSTED_PROXIES`: the addresses and CIDR ranges whose forwarding
    /// header is believed.
    #[must_use]
    pub fn trusted_proxies(&self) -> &[String] {
        &self.trusted_proxies
    }

    /// `AUDIT_LOG_PATH`: the file that refusals are to be written to. Nothing in
    /// this version writes it.
    #[must_use]
    pub fn audit_log_path(&self) -> Option<&Path> {
        self.audit_log_path.as_deref()
    }

    /// What is odd but not wrong, one sentence each, without values: log it.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn read(env: &Environment<'_>) -> Result<Self, SettingsError> {
        let (redis, warning) = redis_target::read(env)?;
        Ok(Self {
            redis,
            mcp_rate_limit_max: env.whole("MCP_RATE_LIMIT_MAX", 0..=MAX_LIMIT)?.unwrap_or(DEFAULT_MCP_MAX),
            codemode_rate_limit_max: env
                .whole("CODEMODE_RATE_LIMIT_MAX", 0..=MAX_LIMIT)?
                .unwrap_or(DEFAULT_CODEMODE_MAX),
            rate_limit_window: env
                .millis("RATE_LIMIT_WINDOW_MS", MIN_WINDOW..=MAX_WINDOW)?
                .unwrap_or(DEFAULT_WINDOW),
            deadline: env.millis("RATE_LIMIT_DEADLINE_MS", Duration::from_millis(1)..=MAX_DEADLINE)?,
            fallback_share: env.share("RATE_LIMIT_FALLBACK_SHARE")?,
            ipv6_prefix: env.whole("RATE_LIMIT_IPV6_PREFIX", IPV6_PREFIXES)?,
            trusted_proxies: env.ranges("TRUSTED_PROXIES")?,
            audit_log_path: env.verbatim("AUDIT_LOG_PATH")?.map(PathBuf::from),
            warnings: warning.into_iter().collect(),
        })
    }
}
