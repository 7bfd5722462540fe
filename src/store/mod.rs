//! Where counts live.
//!
//! The memory store applies the pure step under its locks. Redis runs the same
//! rules as a script, atomically, and answers with the state before the check.
//! Neither knows HTTP, or what to do when it fails: it says so with a
//! [`StoreError`], and the limiter decides.
//!
//! # Redis servers
//!
//! One server, or the master of a replicated pair behind one address; or a
//! [cluster](#clusters).
//!
//! **Versions.** The tests run on Redis 7.0 and 6.2; those of TLS on 7.0. Needed
//! are `EVALSHA` and the commands below; RESP3 is used where there is, else RESP2.
//! Redis 6.2 does not look at `min-replicas-to-write` when a script writes, so
//! there it does not hold up a charge.
//!
//! **User.** The least that limiting needs, with the
//! [namespace](crate::RateLimiterBuilder::namespace) `myapp`; without one the keys
//! are `~*:rl:*`. Whatever is missing is told when the limiter connects.
//!
//! ```text
//! ACL SETUSER limiter reset on >PASSWORD ~myapp:* +evalsha +eval +get +set +incrby +pttl +pexpire +del +time +zadd +zrem +zrangebyscore +zremrangebyscore
//! ```
//!
//! Who runs the service needs another one: to look at counts, to forget an
//! identity, and to block one by hand.
//!
//! ```text
//! ACL SETUSER operator reset on >PASSWORD ~myapp:* +scan +get +pttl +zrange +set +del
//! SCAN 0 MATCH myapp:*:rl:*
//! SET myapp:http:rl:203.0.113.9 9100000000000000000 PX 3600000
//! DEL myapp:login:rl:{203.0.113.9}:ann
//! ```
//!
//! The `SET` blocks an address for an hour, under any policy and algorithm, whether
//! it has a block of its own or not. Replicas that have repeated a refusal from
//! their memory go on with it until it ends, also after a `DEL`.
//!
//! A database other than 0 needs `+select` as well. The client also sends `CLIENT
//! SETINFO`, and goes on when it is denied; `+client|setinfo`, from 7.2, keeps
//! that out of `ACL LOG`. The user goes into the URL, special characters
//! percent-encoded: `redis://limiter:PASSWORD@redis.internal:6379`.
//!
//! **Database.** `redis://redis.internal:6379/2`. Default: 0. One that the server
//! has not is a misconfiguration.
//!
//! **TLS.** `rediss://`, with the feature `tls`: TLS 1.2 and 1.3. The certificate
//! must be for the host in the URL and issued by a public CA, as in Mozilla's
//! list that is compiled in, or by one of those in
//! [`redis_ca`](crate::RateLimiterBuilder#method.redis_ca). What is not, or a port
//! that answers with something else, is the kind [`Tls`](StoreErrorKind::Tls). A
//! plain Redis answers a TLS handshake with silence: kind
//! [`Timeout`](StoreErrorKind::Timeout). The other way round, `redis://` to a TLS
//! port, is [`Io`](StoreErrorKind::Io). Client certificates are not supported: set
//! `tls-auth-clients no`. A program that has several providers of rustls chooses
//! its own before the first check, or gets ring.
//!
//! **Eviction.** A counter that is evicted is a fresh allowance, so `maxmemory`
//! is best never reached: give the counters a server, or at least memory, of their
//! own. Every key has a TTL.
//!
//! | `maxmemory-policy` | when the memory is full |
//! |---|---|
//! | `noeviction` | Redis refuses, reason `oom`, and checks fall back: no count is lost |
//! | `volatile-ttl` | goes on without what would have ended soonest: the least of an allowance, but short windows first |
//! | `allkeys-*`, the other `volatile-*` | any count may go, at any time |
//!
//! Persistence is not needed: a Redis that restarts empty is told what the
//! replicas still know.
//!
//! # Clusters
//!
//! [`redis_cluster`](crate::RateLimiterBuilder::redis_cluster) takes some nodes and
//! finds the others, with `CLUSTER SLOTS`. The tests run on three masters of Redis
//! 7.0. The user needs `+cluster|slots` and `+asking` as well. With `rediss://` all
//! nodes are asked over TLS: set `tls-cluster yes`, or Redis 7.0 does not tell its
//! ports.
//!
//! **Each master by itself.** There is one connection to each, and each is lost and
//! comes back as a single server does: while it is gone the checks of its slots fall
//! back, those of the others go on. Set `cluster-require-full-coverage no`, or the
//! others refuse as well, reason `clusterdown`. After a failover its slots go to the
//! replica within about a second of the cluster's own decision.
//! [`is_connected`](crate::RateLimiter::is_connected) means every master; while some
//! are gone the [health](crate::RateLimiter#method.health) is `Partial`.
//!
//! **Slots that move.** A check follows one `MOVED` or `ASK`, so resharding goes
//! unnoticed. A check of several keys, of several policies or of one that reserves,
//! is refused by the nodes while some of these have moved and others have not
//! (`TRYAGAIN`): it falls back, for as long as that slot takes.
//!
//! **Policies that are checked together** have the first part of the identity in
//! braces, so that their keys share a slot if they share that part:
//! `(ClientIp::peer(), Header::new("x-account")?)` and `ClientIp::peer()` do. A layer
//! whose identities declare different first parts is refused
//! ([`ClusterIdentities`](crate::BuildError::ClusterIdentities)). Where that shows only
//! in traffic, because closures hide it, it is told as
//! [`SplitCheck`](crate::observe::Problem::SplitCheck), and each policy decides by
//! itself: still in one round trip, but one can charge what another one refuses. So
//! it is for policies that were not [set up together](crate::RateLimiter::policies).
//!
//! **Replicas** are never asked: they may be behind.
//!
//! # Other servers
//!
//! None of these has been tested. What is known of them, and what to
//! set:
//!
//! | server | set | mind |
//! |---|---|---|
//! | Valkey | as Redis | a fork of Redis 7.2 with the same commands |
//! | ElastiCache, cluster mode disabled | `rediss://` with encryption in transit, the **primary** endpoint, user and password of an RBAC user; `maxmemory-policy` in the parameter group | the reader endpoint leads to replicas: reason `readonly` |
//! | ElastiCache Serverless, or cluster mode enabled | [`redis_cluster`](crate::RateLimiterBuilder::redis_cluster) with the configuration endpoint, `rediss://` with encryption in transit, user and password of an RBAC user | |
//! | MemoryDB | `redis_cluster` with the cluster endpoint, `rediss://`, user and password of an ACL | |
//! | Upstash | `rediss://default:PASSWORD@...`, a [deadline](crate::RateLimiterBuilder::deadline) for the distance | scripts wait for each other |
//! | Dragonfly | as Redis; all keys are declared, so the default of its scripts fits | Lua 5.4, where Redis has 5.1 |

mod event;
#[cfg(feature = "redis")]
mod health;
pub(crate) mod memory;
#[cfg(any(feature = "metrics", feature = "redis"))]
mod nodes;
#[cfg(feature = "redis")]
pub(crate) mod redis;

pub use self::event::{StoreError, StoreErrorKind, StoreEvent};
#[cfg(feature = "redis")]
pub(crate) use self::health::HealthRecord;
#[cfg(feature = "redis")]
pub use self::health::{Health, StoreState};
#[cfg(any(feature = "metrics", feature = "redis"))]
pub(crate) use self::nodes::Nodes;
