//! A tower layer that enforces one shared rate limit across every replica of
//! an HTTP, gRPC or MCP service, and keeps enforcing it when Redis is slow,
//! broken or gone.
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tower::ServiceExt;
//! use tower_ratelimit::{Rate, RateLimitLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_ip(Rate::per_minute(2)));
//!
//! // A test has no connection, so it says itself who the peer is.
//! let peer = SocketAddr::from(([203, 0, 113, 9], 51_512));
//! let request = || Request::get("/").extension(peer).body(Body::empty());
//!
//! let response = app.clone().oneshot(request()?).await?;
//! assert_eq!(response.status(), 200);
//! assert_eq!(response.headers()["x-ratelimit-limit"], "2");
//! assert_eq!(response.headers()["x-ratelimit-remaining"], "1");
//! assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
//!
//! let response = app.oneshot(request()?).await?;
//! assert_eq!(response.status(), 429);
//! assert!(response.headers().contains_key("retry-after"));
//! # Ok(())
//! # }
//! ```
//!
//! On a server the peer address comes from the connection. axum passes it on
//! only if it is served so:
//!
//! ```no_run
//! # use std::net::SocketAddr;
//! # async fn serve(app: axum::Router) -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! # }
//! ```
//!
//! Shared by all replicas through Redis. This builds at once, even if Redis is
//! down:
//!
//! ```
//! # #[cfg(feature = "redis")]
//! # {
//! use tower_ratelimit::{Rate, RateLimitLayer};
//!
//! let layer = RateLimitLayer::per_ip(Rate::per_minute(100)).redis("redis://127.0.0.1:6379")?;
//! # }
//! # Ok::<(), tower_ratelimit::BuildError>(())
//! ```
//!
//! The long form, with all settings, is [`RateLimitLayer::builder`]. Limits
//! outside of HTTP, in a job queue or a WebSocket loop, are
//! [`RateLimiter::check`].
//!
//! # The life of a request
//!
//! 1. **Skip.** A CORS preflight, and a request that a
//!    [`skip`](middleware::RateLimitLayerBuilder::skip) picks, goes on at once. It
//!    costs nothing, touches no store and gets no headers.
//! 2. **Identify.** An [identity] reads from the head of the request
//!    who is asking. The default is the client address. What happens when the
//!    request does not say is [`Missing`](middleware::Missing).
//! 3. **Choose.** The layer's list of [limits](rules::Limit), or [rules] by route,
//!    method, plan and tenant, say which policies apply, and with which limit.
//! 4. **Check.** All of these policies in one step: one round trip to Redis,
//!    none in memory. The request is admitted only if all of them admit it. A
//!    refused request adds to no count; it may start a
//!    [block](Policy::block_for).
//! 5. **Forward or refuse.** The inner service is called after the verdict, never
//!    before. A refusal is 429 (RFC 6585) with JSON or problem details (RFC 9457), as
//!    the client prefers; to a gRPC call it is a [gRPC status](response#grpc); or it is
//!    [your own response](response::Reply).
//! 6. **Headers.** `x-ratelimit-limit`, `-remaining` and `-reset` on every
//!    response that was limited, whatever its status; `retry-after` (RFC 9110,
//!    section 10.2.3) in whole seconds, rounded up and at least 1, on refusals.
//!    `RateLimit` and `RateLimit-Policy`, the IETF's draft,
//!    [on demand](middleware::RateLimitLayerBuilder::standard_fields).
//!    What the inner service has set is never made more permissive. How a client
//!    reads all that, and waits, is on a page for [callers](calling).
//!
//! A request is **charged when its future is first polled**, not when the service
//! is called, and once for each policy, however many layers with that policy it
//! passes. If the client goes away and the future is dropped:
//!
//! | dropped | counted |
//! |---|---|
//! | before the first poll | no |
//! | while Redis is asked | once or not at all, never more |
//! | after the verdict | yes: the request was admitted |
//!
//! The error of the inner service is passed on untouched, and so is its readiness.
//! The layer itself has no errors.
//!
//! # When Redis fails
//!
//! A check with Redis has one deadline for everything: connecting, sending, the
//! answer. It is 100 ms by default
//! ([`deadline`](RateLimiterBuilder::deadline)). What Redis cannot decide in
//! that time is decided by this process.
//!
//! | what happens | what the request sees | what the operator sees |
//! |---|---|---|
//! | Redis is down at start | building succeeds; the first check waits for the first attempt to connect, at most the deadline; then the fallback | one warning, `ratelimit_store_connected` 0 |
//! | connection refused, reset or closed | the fallback, without a wait | one line per change of state, a counter by reason |
//! | it accepts and never answers | checks wait at most the deadline; after three missed deadlines in a row the connection is dropped and nobody waits | the same |
//! | one master of a cluster is gone | the fallback for its slots; the others go on through Redis, without a wait | one line per change of state, `ratelimit_store_connected` below 1 |
//! | slots of a cluster move | nothing: one `MOVED` or `ASK` is followed; the fallback for a check of several keys in the slot that is under way (`TRYAGAIN`) | nothing, or reason `clusterdown` |
//! | it has lost the script (`SCRIPT FLUSH`) | nothing: the script is sent again, once | nothing |
//! | `READONLY` (a demoted master) | the fallback; the connection is dropped | reason `readonly` |
//! | `LOADING`, `BUSY`, `OOM`, `MISCONF`, `MASTERDOWN`, `CLUSTERDOWN`, `NOREPLICAS`, too many clients | the fallback | [reason by name](store::StoreErrorKind) |
//! | `NOAUTH`, `WRONGPASS`, `NOPERM`, unknown command, the redirect of a cluster that was taken for a single server, a certificate that is not trusted | the fallback | an error line with `misconfigured = true`, once for each connection; never the password |
//! | more than 4096 checks wait at once | the fallback | reason `overload` |
//!
//! Each policy chooses what happens then
//! ([`on_store_failure`](Policy::on_store_failure)): `Local`, the default, keeps
//! limiting in this process; `Deny` refuses with 503 and `retry-after: 1`; `Allow`
//! admits uncounted, without headers.
//!
//! **The fallback** is a table in this process. It is *warm*: each answer of Redis
//! is mirrored into it, so a client that had used 80 of 100, as of the last answer
//! that this process saw, has 20 left, and a blocked one stays blocked. By default
//! each replica admits all that is left; with four replicas,
//! [`fallback_share(1, 4)`](RateLimiterBuilder::fallback_share) has each admit a
//! quarter of it. A charge whose outcome is unknown is never sent again: it may
//! count twice against the client, never zero times.
//!
//! **The way back.** A background task connects again, after 50 ms doubling to
//! 1 s, with jitter. It tries a charge on a key of its own before checks use the
//! connection, so no request pays for that. After repeated losses within a minute
//! it stays away longer, up to 10 s.
//!
//! **Nobody gets a second budget.** What this process has counted meanwhile, and
//! what Redis had told before in case it has lost that, is sent in front of the
//! identity's next check, in the same round trip; for identities without traffic
//! in batches, after one healthy second. Sent again after a cut, it counts once. A
//! block that started here is written to Redis; of two blocks the longer stands.
//! What may pass beyond the limit is [below](#what-can-be-admitted-when-redis-fails).
//!
//! [`shutdown`](RateLimiter::shutdown) sends what is left before the process ends.
//! `RateLimiter::health` tells the state of Redis, since when, the last error and
//! the latencies of the last minute.
//!
//! Which servers, what their user may do, TLS, eviction, and managed services:
//! [Redis servers](store#redis-servers).
//!
//! # What can be admitted when Redis fails
//!
//! At the most, in one window of an identity, by *n* replicas and a limit *L* (of a
//! bucket its burst, and what comes back meanwhile for each replica):
//!
//! | situation | admitted at the most | *n* = 4, *L* = 100, all were told of 80: whole share, 1/4 |
//! |---|---|--:|
//! | one replica, whatever becomes of Redis and its data | *L* | 100, 100 |
//! | failover: Redis is gone | *M* + Σ share(*L* - *mᵢ*) | 160, 100 |
//! | a window that starts while Redis is gone | *n* share(*L*) | 400, 100 |
//! | recovery: replica *k* is back on Redis, which kept its data, the others not yet | *L* + Σ share(*L* - *mᵢ*), *i* ≠ *k* | 160, 115 |
//! | lost data: the same, and Redis is empty | *L* + (*M* - *mₖ*) + Σ share(*L* - *mᵢ*), *i* ≠ *k* | 160, 115 |
//! | failover of Redis itself: the same, and the promoted server knows of *v* | *L* + max(0, *M* - max(*v*, *mₖ*)) + Σ share(*L* - *mᵢ*), *i* ≠ *k* | 160, 115 |
//!
//! * *mᵢ* is the count that replica *i* was told last by Redis in this window: 0 if
//!   it does not know the identity. *M* is the highest of them.
//! * share(*x*) is what a replica admits alone of *x* that is left: *x* without
//!   [`fallback_share`](RateLimiterBuilder::fallback_share), else ⌊*s x*⌋, at least 1,
//!   and 0 of 0.
//!
//! So with a share of 1/*n* failover adds at most *n* - 1, by rounding up, where all
//! replicas were told the same; and (*n* - 1) share(*L*) where only one of them was
//! told anything. Without a share the bound is at worst *n L*. What is admitted beyond
//! *L* is known to Redis as soon as all are back: nobody gets it twice.
//!
//! With lost data one replica's charges hide behind the higher count that another
//! one restores: that is *M* - *mₖ*. It is 0 where all traffic of an identity comes
//! by one replica. With a failover of Redis itself it is at most what had not been
//! replicated.
//!
//! Two things come on top. Charges of *unknown* outcome, sent on a connection that
//! broke or fell silent, up to those of three deadlines: if they did not arrive they
//! may hide behind what other replicas have counted, each of them once. And what a
//! process had not paid yet when it ended without
//! [`shutdown`](RateLimiter::shutdown), up to share(*L* - *mᵢ*). All of it is meant
//! for identities that the table of the process has room for, and for one outage.
//! The tests measure each line, and reach it.
//!
//! # Behind a proxy
//!
//! Behind a load balancer every connection comes from the balancer, so without
//! more all clients share one bucket. Name the proxies, and only them:
//!
//! ```
//! use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter, identity::ClientIp};
//!
//! let layer = RateLimitLayer::builder(RateLimiter::memory())
//!     .policy(Policy::fixed_window("http", Rate::per_minute(100)))
//!     .client_ip(ClientIp::behind(["10.0.0.0/8"])?)
//!     .build()?;
//! # Ok::<(), tower_ratelimit::BuildError>(())
//! ```
//!
//! `X-Forwarded-For` is then read from the right to the left, past trusted
//! proxies. From any other peer it is ignored, for anyone can write it. Hop counts,
//! CDNs, `Forwarded` (RFC 7239) and other headers, and the mistakes to avoid, are
//! in the docs of [`ClientIp`](identity::ClientIp). IPv6 clients are grouped by
//! /64. [`ClientIp::explain`](identity::ClientIp::explain) tells why a request is
//! counted as it is.
//!
//! A missing peer address, and a forwarding header from a peer that is not trusted
//! and is private or being refused, are told as an `error` event with the line to add, at once and every
//! minute while it lasts: see [`Problem`](observe::Problem). Requests without any
//! address share one bucket.
//!
//! # Beside other middleware
//!
//! From the outside to the inside, as in one `tower::ServiceBuilder`; with axum's
//! `Router::layer` the last one that is added is the outermost:
//!
//! | layer | why there |
//! |---|---|
//! | request id, trace | they see refusals too |
//! | CORS, with [`EXPOSED_HEADERS`](response::EXPOSED_HEADERS) | a browser hides from its page a refusal without CORS headers. Preflights are free wherever it is |
//! | compression | refusals are packed as well |
//! | load shed, concurrency limit, buffer | what is shed, or goes away while it waits, costs nobody anything |
//! | authentication | where the identity is what it verifies. A limit by address goes outside of it, against guessing |
//! | **`RateLimitLayer`** | |
//! | catch-panic, timeout, body limit | their responses are limited ones and say what is left; who sends too much is charged |
//! | retry | one request is charged once, however often it is tried |
//! | tonic-web, around gRPC routes only | over HTTP/1.1 it answers everything else with 400 |
//!
//! A timeout outside is right as well: a request that it drops after the verdict
//! counts once. A retry outside charges each try.
//!
//! **Streams.** A WebSocket's upgrade and an event stream are one request each. They
//! are refused before anything of them begins, with a plain 429; open, they hold
//! nothing of the limiter, and their frames are not counted. Frames that should be
//! are charged by [`RateLimiter::check`], to the same counter: the same policy, and
//! the [`Key`] that the layer counts by, which is
//! `Key::builder().network(ip, 32, 64).finish()` for the default one.
//!
//! # MCP servers
//!
//! The module `mcp`, with the feature of that name, has a layer for the streamable
//! HTTP transport: `McpLayer::builder(limiter, identity).tool("execute_code", policy)`.
//! It counts the calls of a tool by client and all else by address, and answers a
//! refused call with a result that the model reads, because no SDK tries a 429
//! again. On stdio the tool's handler asks [`RateLimiter::check`], on the same
//! count.
//!
//! # What an algorithm admits
//!
//! | algorithm | in a window | worst span as long as a window |
//! |---|---|---|
//! | [fixed window](Algorithm::FixedWindow), starting at the first request of an identity | the limit | twice the limit: the end of one window and the start of the next |
//! | the same with a [block](Policy::block_for) shorter than the window (warned about at build) | the limit | about limit x window / block, as the block ends the window early |
//! | [sliding window](Algorithm::SlidingWindow), two counters | the limit, estimated | nearly twice the limit: all of it at the end of one sub-window, and as much again until the end of the next |
//! | [token bucket](Algorithm::TokenBucket) | burst + limit | the same: a full bucket, and what comes back meanwhile |
//!
//! If that is too much, halve the limit or the window.
//!
//! All three are computed in integers, exactly in every range that a policy takes,
//! and [`retry_after`](Decision::retry_after) is exact to the millisecond: that much
//! later the same request, alone, is admitted; one millisecond earlier it is not.
//!
//! # After the response
//!
//! Some things are known late. A policy that [reserves](Policy::reserve_for) holds
//! what a request asks for from its admission on, so that requests which run at the
//! same time cannot all pass for not being counted yet; what it really comes to is
//! settled later.
//!
//! | what counts | how | settled |
//! |---|---|---|
//! | only some responses: failed logins | [`Limit::count_if`](rules::Limit::count_if), [`count_if_status`](rules::Limit::count_if_status) | with the head of the response, before the client sees it; of a gRPC call with its trailers |
//! | what the handler says: tokens | [`Settlement`](middleware::Settlement) in the extensions of the request | when it says so, or for what was reported when the body has ended or was dropped |
//! | what any program says | [`RateLimiter::reserve`] | by [`Reserved::settle`] |
//!
//! More than was reserved can be settled, past the limit: then the next request is
//! refused. In a window that debt ends with it, in a bucket it is carried on. What
//! nobody settles lapses after its time, uncounted; only with `count_if` a client that
//! leaves before the response has used its place, or guesses would be free to those
//! who hang up. A refusal for which open reservations alone are the reason says
//! `retry-after: 1` and starts no block.
//!
//! ```
//! use std::time::Duration;
//! use http::StatusCode;
//! use tower_ratelimit::rules::Limit;
//! use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
//!
//! // 5 wrong passwords in 15 minutes, then blocked for an hour.
//! let login = Policy::fixed_window("login", Rate::new(5, Duration::from_secs(15 * 60))?)
//!     .block_for(Duration::from_secs(60 * 60));
//! let layer = RateLimitLayer::builder(RateLimiter::memory())
//!     .limit(Limit::new(login).count_if_status([StatusCode::UNAUTHORIZED]))
//!     .build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A charge that should not have been can be [given back](RateLimiter::refund).
//!
//! # Keys in Redis
//!
//! An identity is counted under `<policy>:rl:<identity>`, with an optional
//! [namespace](RateLimiterBuilder::namespace) in front:
//!
//! ```text
//! http:rl:203.0.113.9                   "3", PTTL 41337
//! myapp:http:rl:2001:db8:1:2::/64       "1", PTTL 59990
//! login:rl:{203.0.113.9}:ann            checked together with another policy
//! search:rl:203.0.113.9:=sliding        "60000:29714640:3:17", PTTL 81337
//! search:rl:203.0.113.9:=bucket         "1000:12500:1782878400123", PTTL 1250
//! tokens:rl:{ann}:=open                 what is held open, a sorted set
//! ```
//!
//! The value of a fixed window is the count, a plain integer; its TTL in milliseconds
//! is what is left of the window. That of a sliding window is the length and the index
//! of the sub-window, its count and the one before; that of a bucket the window, what
//! is taken in 1/window of a token, and when that was. What a policy holds open is a
//! set of amounts by the time of their lapse. A block is the value `9100000000000000000` with the TTL of the
//! block. No key is left without a TTL. One that is found without is given the
//! window's, and a value that is not a count is replaced. Policies that are checked
//! together, and those that reserve, have the first part of the identity in braces, so that their keys share
//! a slot of a cluster. How identities become text is in the docs of [`KeyBuilder`].
//!
//! **Sharing with another program.** One that runs `INCR` on such a key, and
//! `PEXPIRE` with the window if the answer is 1, shares the count with this crate. To
//! it a block is simply over the limit. It usually counts refused requests too, which
//! this crate does not.
//!
//! # Rules
//!
//! One layer in front of a whole service, with other limits for other requests:
//!
//! ```
//! use http::Method;
//! use tower_ratelimit::identity::{ClientIp, Principal};
//! use tower_ratelimit::rules::{Factor, Limit, LiveRules, Rule, RuleSet};
//! use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
//!
//! let writes = Limit::new(Policy::fixed_window("writes", Rate::per_minute(20)))
//!     .by((Principal::by_workspace(), ClientIp::peer(), Principal::by_user()))
//!     .plan("pro", 100)
//!     .factor(Factor::times("vip", 2).users(["ann"]));
//! let rules = RuleSet::new()
//!     .skip_path("/healthz")
//!     .rule(Rule::route("/api/{*rest}").method(Method::POST).limit(writes))
//!     .otherwise(Policy::fixed_window("http", Rate::per_minute(100)));
//!
//! let limiter = RateLimiter::memory();
//! let live = LiveRules::new(&limiter, rules)?;
//! let layer = RateLimitLayer::builder(limiter).rules(live.clone()).build()?;
//! # Ok::<(), tower_ratelimit::BuildError>(())
//! ```
//!
//! They can be replaced while requests come, after a look at the
//! [plan](rules::ReloadPlan), and with the feature `rules-file` they are read from
//! a TOML file. `examples/saas.toml` is a complete one.
//!
//! # Cost
//!
//! * **Memory** is bounded: 250,000 identities by default
//!   ([`local_capacity`](RateLimiterBuilder::local_capacity)), at about 260 bytes
//!   for an address and about 390 for the longest key, so 65 to 100 MB when full.
//!   When it is full, the soonest-ending of those with something left go first; those that were
//!   refused stay, and newcomers share one bucket when there is nobody else. A full table
//!   has at least half the throughput of one with room: about 0.7 of it and more,
//!   as `cargo bench --bench local` prints.
//! * **Allocations.** In memory the check, and the layer around one service without
//!   headers, allocate nothing. The headers take four allocations, two of them in the
//!   header map, the standard fields more. Where a layer wraps several services, as axum's `Router` has it do
//!   for each route, or where a policy stands in several layers, a marker in the
//!   request's extensions takes two more. A refusal allocates its response, a check
//!   with Redis its message and future.
//!
//! # Features
//!
//! Features only add: none changes what another part of the crate does.
//!
//! | feature | default | adds | costs |
//! |---|---|---|---|
//! | `axum` | yes | reads axum's `ConnectInfo`, `MatchedPath` and `OriginalUri` | axum, without its default features |
//! | `redis` | yes | `RateLimiter::redis`, `RateLimitLayer::redis`, [`redis_cluster`](RateLimiterBuilder#method.redis_cluster) | redis, deadpool-redis, crc, fastrand, tokio's runtime |
//! | `tls` | no | `rediss://` URLs, [`redis_ca`](RateLimiterBuilder#method.redis_ca) | `redis`, and rustls with ring (a C compiler) and webpki-roots |
//! | `tonic` | no | reads tonic's `TcpConnectInfo`, keeps `NamedService`, adds RetryInfo and QuotaFailure to refused gRPC calls | tonic, server only, and tonic-types |
//! | `mcp` | no | `mcp`: limits for MCP servers and their tools, refusals that MCP clients read. It knows no SDK | serde_json, base64 |
//! | `metrics` | no | `observe::Metrics`, which reports through the `metrics` facade once it is installed | metrics |
//! | `unicode` | no | `identity::normalize::account`: trim, lower case, NFC | unicode-normalization |
//! | `rules-file` | no | `rules::RulesFile`: rules from a TOML file | toml, its parser only |
//! | `test-util` | no | `test_util`: a scripted limiter, a clock to turn by hand, fresh namespaces | nothing |
//!
//! Without `axum` and `tonic` the peer address is read from a bare `SocketAddr` or
//! `IpAddr` in the request's extensions.
//!
//! # Versions
//!
//! The minimum supported Rust version is 1.88. It may rise in a minor version, never
//! in a patch. The crate follows semantic versioning. These are breaking as well,
//! because clients, dashboards and other replicas depend on them: a changed response
//! header or body, the name or label of a metric, the layout of a key or value in
//! Redis, an environment variable, a default.

// Without a shared store nothing uses the mirror, the deny cache and the fallback; with it, everything is
// checked as usual.
#![cfg_attr(
    not(feature = "redis"),
    allow(dead_code, unreachable_patterns, unused_variables, clippy::needless_pass_by_value)
)]

mod algorithm;
pub mod calling;
mod clock;
mod decision;
pub mod identity;
mod key;
mod limiter;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod middleware;
pub mod observe;
mod policy;
#[cfg(test)]
mod property;
#[cfg(all(doctest, feature = "axum", feature = "mcp", feature = "redis"))]
mod readme;
pub mod response;
pub mod rules;
pub mod settings;
pub mod store;
#[cfg(feature = "test-util")]
pub mod test_util;

pub use crate::decision::{Decision, Refusal, Source};
pub use crate::key::{Key, KeyBuilder, KeySecret, MAX_KEY_LEN};
pub use crate::limiter::{BuildError, Charge, PolicyHandle, RateLimiter, RateLimiterBuilder, Reserved};
pub use crate::middleware::RateLimitLayer;
pub use crate::policy::{
    Algorithm, MAX_LIMIT, MAX_POLICIES, MAX_WINDOW, MIN_WINDOW, OnStoreFailure, Policy, PolicyError, Rate,
};
