//! For those who **call** a limited API: how to read what is left, and how to wait.
//! There is nothing in this module but this page.
//!
//! # What a response says
//!
//! | header | says |
//! |---|---|
//! | `x-ratelimit-limit` | how many requests there are in a window |
//! | `x-ratelimit-remaining` | how many are left; 0: the next one is refused |
//! | `x-ratelimit-reset` | when that changes, in seconds since 1970 (a service can [choose](crate::response::ResetFormat) seconds from now, or RFC 3339): the end of the window; on a refusal, when to come again |
//! | `retry-after` | on a refusal: in how many seconds, from 1, to come again |
//! | `ratelimit-policy`, `ratelimit` | every limit by name, where a service [writes them](crate::middleware::RateLimitLayerBuilder::standard_fields) |
//!
//! They are on every response that was limited, whatever its status. Of several
//! limits the `x-` headers show the tightest. A page of another origin reads them
//! if the service [exposes](crate::response::EXPOSED_HEADERS) them.
//!
//! # What to do
//!
//! 1. **Slow down before 0.** With *n* left for *s* seconds, a request each *s/n*
//!    seconds is not refused, if nobody else is counted as you.
//! 2. **At a 429 or 503 wait for `retry-after`**, and then a random time more: all
//!    who were refused are told the same second. A request that comes earlier is
//!    refused again; it does not make the wait longer.
//! 3. **Without `retry-after`** do not ask again: no wait makes that request fit.
//! 4. **Give up** after a few tries. `retry-after` can be hours; if that is longer
//!    than your caller waits, tell him at once.
//! 5. A refused request has not been executed: it can be sent again whatever its
//!    method. A 503 of something else behind the limit may have been.
//!
//! # JavaScript
//!
//! In browsers and Node 18 or later. `fetch` takes an `AbortSignal` among its options.
//!
#![doc = "```js"]
#![doc = include_str!("client.mjs")]
#![doc = "```"]
//!
//! `EventSource` is told neither status nor headers and gives up at a 429: read an
//! event stream with `fetch` instead, or ask the service to
//! [answer otherwise](crate::response::Reply).
//!
//! # Python
//!
//! With nothing but its own library. `urllib3` reads `retry-after` and waits by
//! itself; `requests` does with an adapter that has a `Retry(total=3)` of urllib3's.
//!
#![doc = "```python"]
#![doc = include_str!("client.py")]
#![doc = "```"]
//!
//! # Rust
//!
//! A policy for tower's retry layer, around any client that is a tower service, such
//! as hyper-util's:
//!
//! ```
//! use std::time::Duration;
//!
//! use http::{HeaderMap, Request, Response};
//! use tower::retry::Policy;
//!
//! /// Asks again when it is told to wait, this many times at most.
//! #[derive(Clone)]
//! struct Patience(u32);
//!
//! impl<B: Clone, R, E> Policy<Request<B>, Response<R>, E> for Patience {
//!     type Future = tokio::time::Sleep;
//!
//!     fn retry(&mut self, _: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<Self::Future> {
//!         let response = result.as_ref().ok()?;
//!         if !matches!(response.status().as_u16(), 429 | 503) {
//!             return None;
//!         }
//!         let seconds = number(response.headers(), "retry-after")?;
//!         self.0 = self.0.checked_sub(1)?;
//!         // Up to a second later than told, so that not everybody comes at once.
//!         let more = Duration::from_millis(fastrand::u64(..1000));
//!         Some(tokio::time::sleep(Duration::from_secs(seconds) + more))
//!     }
//!
//!     fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
//!         Some(request.clone())
//!     }
//! }
//!
//! /// `number(headers, "x-ratelimit-remaining")` is how many requests are left.
//! fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
//!     headers.get(name)?.to_str().ok()?.parse().ok()
//! }
//!
//! # async fn one_a_minute(_: Request<()>) -> Result<Response<()>, std::convert::Infallible> {
//! #     Ok(Response::new(()))
//! # }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use tower::{Service, ServiceExt};
//! # use tower_ratelimit::{Rate, RateLimitLayer};
//! # let service = tower::ServiceBuilder::new()
//! #     .layer(RateLimitLayer::per_ip(Rate::per_minute(1)))
//! #     .service(tower::service_fn(one_a_minute));
//! let mut client = tower::ServiceBuilder::new().retry(Patience(2)).service(service);
//! # let peer = std::net::IpAddr::from([203, 0, 113, 9]);
//! # let request = || Request::builder().extension(peer).body(());
//! # let started = tokio::time::Instant::now();
//! for _ in 0..2 {
//!     // The second one is refused, and asked again after the minute.
//!     let response = client.ready().await?.call(request()?).await?;
//!     assert_eq!(response.status(), 200);
//!     assert_eq!(number(response.headers(), "x-ratelimit-remaining"), Some(0));
//! }
//! # assert!(started.elapsed() >= Duration::from_secs(60));
//! # Ok(())
//! # }
//! ```
//!
//! # gRPC
//!
//! A refused call has the code `RESOURCE_EXHAUSTED` (8), or `UNAVAILABLE` (14) where the
//! service cannot tell. A message that is too large has the code 8 as well; what tells
//! them apart is the wait, which is in the metadata `retry-after`, in seconds, and in
//! the `RetryInfo` of the [status' details](crate::response#grpc), exactly:
//!
//! ```text
//! use tonic_types::StatusExt;
//!
//! let wait = status.get_error_details().retry_info().and_then(|info| info.retry_delay);
//! ```
//!
//! Clients with a retry policy of gRPC's own wait by themselves, as
//! `grpc-retry-pushback-ms` tells them, if the policy lists the code.
