//! MCP servers (feature `mcp`): limits for the transport and for single tools.
//!
//! [`McpLayer`] goes around the service of the transport, such as rmcp's
//! `StreamableHttpService`, behind the layer that authenticates:
//!
//! ```
//! use axum::{Router, routing::any};
//! use tower::ServiceBuilder;
//! use tower_ratelimit::identity::Principal;
//! use tower_ratelimit::mcp::McpLayer;
//! use tower_ratelimit::{Policy, Rate, RateLimiter};
//!
//! # let mcp_service = any(|| async { "an MCP server" });
//! let limit = McpLayer::builder(RateLimiter::memory(), Principal::by_user())
//!     .transport(Policy::fixed_window("http", Rate::per_minute(100)))
//!     .tool("execute_code", Policy::fixed_window("codemode", Rate::per_minute(60)))
//!     .build()?;
//! let mcp = ServiceBuilder::new().layer(limit).service(mcp_service);
//! let app: Router = Router::new().route_service("/mcp", mcp);
//! # Ok::<(), tower_ratelimit::BuildError>(())
//! ```
//!
//! | a request | counts by | refused with |
//! |---|---|---|
//! | calls a tool that has a limit | that policy, by client: `codemode:rl:ann` | HTTP 200, a tool result that the model reads |
//! | anything else in a POST or DELETE | the transport's policy, by address: `http:rl:203.0.113.9` | 429, a JSON-RPC error with the request's id |
//! | GET | a policy of its own, by address | 429, a JSON-RPC error |
//!
//! Each is one check of one policy. So a client that has used up a tool still
//! connects and lists tools, and one that tries in vain to open a stream still
//! calls them. Both answers are [settable](Answer); either has the headers of the
//! limit and, where a wait helps, `retry-after`.
//!
//! **Who is counted** is an argument without a default: the principal that an
//! authentication layer has left in the request's extensions. A session is nobody:
//! a client gets a new one by asking, and since the protocol of 2026-07-28 there is
//! none.
//!
//! # How a call is recognised
//!
//! * A POST that declares the protocol of 2026-07-28 or later is taken at the word
//!   of `mcp-method` and `mcp-name` (plain, or as `=?base64?...?=`), for servers of
//!   these protocols refuse a message that differs. Only the body of a tool call
//!   is read, for its id. If it differs it is answered with 400 and the error
//!   -32020.
//! * Of any other POST the body is looked at: older protocols, versions that are no
//!   date, and where one of these headers is missing, stands twice or cannot be
//!   decoded. The server then gets it byte for byte.
//! * An array costs as many as the calls that it holds, all or nothing: one that
//!   does not fit executes nothing and costs nothing, and is answered by an array.
//!   One that holds calls of several kinds is charged to each policy; on a Redis
//!   Cluster, where their keys lie apart, each of them decides by itself.
//!
//! A body is read before the limiter is asked, as the request may cost many calls.
//! How long a client may take for it is the server's to bound.
//!
//! What is not understood reaches neither the limiter nor the server, for what one
//! parser refuses another may take. It is answered with a JSON-RPC error:
//!
//! | body | answer |
//! |---|---|
//! | not JSON, ended early, no message, an empty array | 400, -32700 or -32600 |
//! | `method`, `params`, `id` or the `name` in `params` stands twice in a message | 400, -32600 |
//! | above 4 MiB ([settable](LookLayer::max_body)), or an array of more than 10,000 messages ([settable](LookLayer::max_messages)) | 413, -32600 |
//! | with a `content-encoding` | 415, -32600 |
//!
//! # On stdio
//!
//! There is no HTTP to wrap. The tool's handler asks the same limiter, by the same
//! policy, for a client that the process was started for:
//!
//! ```
//! use tower_ratelimit::{Charge, Key, Policy, PolicyHandle, Rate, RateLimiter, mcp};
//!
//! async fn execute_code(limiter: &RateLimiter, codemode: &PolicyHandle, client: &str) -> Result<(), String> {
//!     let decision = limiter.check([Charge::new(codemode, Key::principal(client))]).await;
//!     // As the text of a result with `isError`.
//!     if decision.is_allowed() { Ok(()) } else { Err(mcp::words(&decision)) }
//! }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let limiter = RateLimiter::memory();
//! let codemode = limiter.policy(Policy::fixed_window("codemode", Rate::per_minute(1)))?;
//! assert_eq!(execute_code(&limiter, &codemode, "ann").await, Ok(()));
//! let refused = execute_code(&limiter, &codemode, "ann").await.unwrap_err();
//! assert_eq!(refused, "limit of 1 per minute reached, retry in 60 s");
//! # Ok::<(), tower_ratelimit::BuildError>(())
//! # }).unwrap();
//! ```
//!
//! Its logs go to stderr, as stdout is the transport. With one Redis the count is
//! the same over HTTP, on stdio, and of a server in another language that runs
//! `INCR` on `codemode:rl:ann`.

mod body;
mod declared;
mod future;
mod json;
mod layer;
mod look;
mod message;
mod reply;
mod rules;

pub use self::body::RequestBody;
pub use self::future::LookFuture;
pub use self::layer::{McpLayer, McpLayerBuilder};
pub use self::look::{Look, LookLayer};
pub use self::message::Message;
pub use self::reply::{Answer, JsonRpc, words};
