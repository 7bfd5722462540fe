//! What is refused when a limiter or a layer is built.

use std::time::Duration;

use crate::policy::PolicyError;
#[cfg(feature = "redis")]
use crate::store::redis::TargetError;

/// Why a limiter or a layer was not built. Each names the field and, unless it
/// may be secret, the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A policy is not legal.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The URL is not one of Redis, or asks for what this build lacks.
    #[error(
        "redis: the URL is not allowed, it takes redis:// or rediss://[user[:password]@]host[:port][/db]"
    )]
    RedisUrl,
    /// The URL asks for TLS, which is a feature that this build lacks.
    #[error("redis: a rediss:// URL needs the feature \"tls\" of tower-ratelimit")]
    RedisTls,
    /// The CA's PEM holds no certificate, or one that cannot be read.
    #[error("redis_ca: it takes one or more CA certificates in PEM, this is none")]
    RedisCa,
    /// A cluster without a node to start from.
    #[error("redis_cluster: it takes the URL of one node or more")]
    ClusterNodes,
    /// A cluster has one database.
    #[error("redis_cluster: database {db} is not allowed, a cluster has no databases")]
    ClusterDatabase {
        /// The database given.
        db: i64,
    },
    /// The nodes of a cluster have one login, and TLS or not.
    #[error("redis_cluster: the URLs differ in user, password or scheme, it takes the same for all nodes")]
    ClusterMixed,
    /// The identities of one layer cannot be checked together on a cluster.
    #[error(
        "identity: the policies {policy:?} ({first}) and {other:?} ({other_first}) have no first part in \
         common, on a cluster they cannot be checked together"
    )]
    ClusterIdentities {
        /// A policy.
        policy: String,
        /// What the first part of its identity is.
        first: String,
        /// Another one.
        other: String,
        /// What the first part of that one's identity is.
        other_first: String,
    },
    /// A setting that means nothing without TLS.
    #[error("{field}: has no effect without a rediss:// URL")]
    NeedsTls {
        /// The setting.
        field: &'static str,
    },
    /// The namespace has characters that keys must not have, or is too long.
    #[error("namespace: {namespace:?} is not allowed, it takes 1 to 64 of letters, digits, _ - . and :")]
    Namespace {
        /// The namespace given.
        namespace: String,
    },
    /// The deadline is out of range.
    #[error("deadline: {deadline:?} is not allowed, it takes 1 ms to 60 s")]
    Deadline {
        /// The deadline given.
        deadline: Duration,
    },
    /// The share is not above 0 and at most 1.
    #[error("fallback_share: {numerator}/{denominator} is not allowed, it takes more than 0 and at most 1")]
    FallbackShare {
        /// The numerator given.
        numerator: u32,
        /// The denominator given.
        denominator: u32,
    },
    /// No identity could be remembered.
    #[error("local_capacity: 0 is not allowed, it takes 1 or more")]
    LocalCapacity,
    /// A setting that means nothing in memory.
    #[error("{field}: has no effect without Redis")]
    NeedsRedis {
        /// The setting.
        field: &'static str,
    },
    /// A layer without a policy limits nothing.
    #[error("policy: a layer takes at least one")]
    NoPolicy,
    /// More policies than one check takes.
    #[error("policy: {count} are not allowed together, it takes at most 8")]
    TooManyPolicies {
        /// How many were given.
        count: usize,
    },
    /// Two policies of a layer have one name.
    #[error("policy: the name {name:?} stands twice in one layer")]
    DuplicatePolicy {
        /// The name.
        name: String,
    },
    /// A tool of an MCP server has two limits.
    #[error("tool: {tool:?} has two limits")]
    DuplicateTool {
        /// The tool.
        tool: String,
    },
    /// Tool calls would be counted by session.
    #[error("identity: mcp-session-id alone is no client, for connecting again gives a new one")]
    SessionIdentity,
    /// Two rules use one policy's name for different rules of counting.
    #[error("policy: the name {name:?} stands for two different policies")]
    PolicyDiffers {
        /// The name.
        name: String,
    },
    /// A plan has two limits.
    #[error("plan: {plan:?} stands twice in policy {policy}")]
    DuplicatePlan {
        /// The policy.
        policy: String,
        /// The plan.
        plan: String,
    },
    /// A factor is out of range.
    #[error("factor: {numerator}/{denominator} of {name:?} is not allowed, each takes 1 to 1000000")]
    Factor {
        /// Its name.
        name: String,
        /// The numerator given.
        numerator: u32,
        /// The denominator given.
        denominator: u32,
    },
    /// A text is no pattern of routes.
    #[error(
        "route: {pattern:?} is not allowed, it takes a path such as /auth/login, /api/{{id}}/x or /auth/{{*rest}}"
    )]
    Route {
        /// The text given.
        pattern: String,
    },
    /// A plan of reloading was made for rules that apply no more.
    #[error("rules: others have come to apply since the plan was made")]
    Outdated,
    /// A status that a setting does not take.
    #[error("{field}: the status {status} is not allowed here")]
    Status {
        /// The setting.
        field: &'static str,
        /// The status given.
        status: http::StatusCode,
    },
    /// Two settings of a layer exclude each other.
    #[error("{field}: cannot be set together with {other}")]
    Conflict {
        /// The one setting.
        field: &'static str,
        /// The other.
        other: &'static str,
    },
    /// An address range that cannot be read.
    #[error(transparent)]
    ClientIp(#[from] crate::identity::ClientIpError),
}

#[cfg(all(test, feature = "redis", not(feature = "tls")))]
mod tests {
    use crate::{BuildError, Rate, RateLimitLayer, RateLimiter};

    #[test]
    fn tls_without_its_feature_is_refused_by_its_name() {
        let url = "rediss://u:s3cr3t@127.0.0.1:6380";
        for error in [
            RateLimiter::builder().redis(url).build().unwrap_err(),
            RateLimiter::redis(url).unwrap_err(),
            RateLimitLayer::per_ip(Rate::per_second(1)).redis(url).unwrap_err(),
        ] {
            assert_eq!(error, BuildError::RedisTls);
            let told = "redis: a rediss:// URL needs the feature \"tls\" of tower-ratelimit";
            assert_eq!(error.to_string(), told);
        }
    }
}

#[cfg(feature = "redis")]
impl From<TargetError> for BuildError {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Url => Self::RedisUrl,
            TargetError::NoTls => Self::RedisTls,
            TargetError::UselessCa => Self::NeedsTls { field: "redis_ca" },
            TargetError::Ca => Self::RedisCa,
            TargetError::NoNodes => Self::ClusterNodes,
            TargetError::Database(db) => Self::ClusterDatabase { db },
            TargetError::Mixed => Self::ClusterMixed,
        }
    }
}
