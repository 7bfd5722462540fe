//! What the client sees: the headers of a limited response, and the response
//! of a refusal.
//!
//! A refusal has the form that the client can read:
//!
//! | the request is | the refusal is |
//! |---|---|
//! | gRPC or gRPC-Web (by its `content-type`) | HTTP 200 and a gRPC status in the headers, see [below](#grpc) |
//! | one that prefers `application/problem+json` (by its `accept`) | [`Problem`], 429 |
//! | any other | [`Json`], 429 |
//!
//! That is [`Negotiated`], the default. MCP requests have a reply of their own, in the
//! module `mcp`. [`Json`] and [`Problem`] decide the body
//! alone, and they too answer a gRPC call as one, for a gRPC client makes
//! `UNAVAILABLE` of an HTTP 429, which is what retry policies retry. A [`Reply`] of one's own
//! gets all requests and can hand over those that it does not care about.
//!
//! # gRPC
//!
//! Every call has a `content-type` of `application/grpc`, so one layer serves a
//! router of axum and tonic. A refusal is *trailers-only*: HTTP 200 without a
//! body, and in its headers, which are the call's metadata:
//!
//! | header | value |
//! |---|---|
//! | `grpc-status` | 8, `RESOURCE_EXHAUSTED`; 14, `UNAVAILABLE`, where the store cannot decide and the policy then [refuses](crate::OnStoreFailure::Deny) |
//! | `grpc-message` | the policy, the limit and the wait, in words |
//! | `grpc-status-details-bin` | `google.rpc.RetryInfo` and `QuotaFailure`, with the feature `tonic`. OTLP clients, for one, call again only if there is a RetryInfo |
//! | `grpc-retry-pushback-ms` | the wait in milliseconds for gRPC's own retries (proposal A6); -1, do not retry, for a cost that never fits |
//! | `retry-after`, `x-ratelimit-*` | as in HTTP |
//!
//! gRPC-Web is answered in the same headers, with the content type of the
//! request. It makes no difference whether tonic-web's layer is inside or outside
//! of this one. A streaming call is one request: it is charged once, not for each
//! message.

mod accept;
mod grpc;
mod headers;
mod json;
mod problem;
mod standard_fields;

use bytes::Bytes;
use http::{Response, StatusCode};

#[cfg(feature = "mcp")]
pub(crate) use self::accept::takes_only_event_stream;
pub use self::headers::{EXPOSED_HEADERS, ResetFormat};
pub(crate) use self::headers::{Fields, number};
pub use self::json::Json;
pub use self::problem::Problem;
use crate::decision::{Decision, Refusal};
use crate::identity::RequestHead;

/// Builds the response of a refusal. Implemented by closures:
///
/// ```
/// use bytes::Bytes;
/// use http::Response;
/// use tower_ratelimit::response::{Negotiated, Refused, Reply};
/// use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
///
/// let layer = RateLimitLayer::builder(RateLimiter::memory())
///     .policy(Policy::fixed_window("http", Rate::per_minute(100)))
///     .reply(|refused: &Refused<'_>| {
///         if !refused.head().path().starts_with("/plain/") {
///             return Negotiated.refuse(refused);
///         }
///         let mut response = Response::new(Bytes::from_static(b"slow down"));
///         *response.status_mut() = refused.status();
///         response
///     })
///     .build()?;
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
///
/// A script's `EventSource` is told neither status nor headers. It gives up at a
/// 429, as at every status but 200. One that should come back can be answered with
/// an empty stream that says when:
///
/// ```
/// use bytes::Bytes;
/// use http::Response;
/// use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
/// use tower_ratelimit::response::{Negotiated, Refused, Reply};
///
/// fn refuse(refused: &Refused<'_>) -> Response<Bytes> {
///     let accepts = refused.head().headers().get(ACCEPT);
///     match refused.decision().retry_after() {
///         Some(wait) if accepts.is_some_and(|accepts| accepts == "text/event-stream") => {
///             let mut response = Response::new(Bytes::from(format!("retry: {}\n\n", wait.as_millis())));
///             let content_type = HeaderValue::from_static("text/event-stream");
///             response.headers_mut().insert(CONTENT_TYPE, content_type);
///             response
///         }
///         _ => Negotiated.refuse(refused),
///     }
/// }
/// # let _: &dyn Reply = &refuse;
/// ```
///
/// What layers further out have left in the request is in the extensions of
/// [`head`](Refused::head).
///
/// The layer adds `retry-after`, the fields of the limit, and `cache-control:
/// no-store` to a 429 (RFC 6585, section 4) where the reply has not set them.
pub trait Reply: Send + Sync + 'static {
    /// The response of one refusal.
    fn refuse(&self, refused: &Refused<'_>) -> Response<Bytes>;
}

impl<F> Reply for F
where
    F: Fn(&Refused<'_>) -> Response<Bytes> + Send + Sync + 'static,
{
    fn refuse(&self, refused: &Refused<'_>) -> Response<Bytes> {
        self(refused)
    }
}

/// The default reply: [`Problem`] for a request that prefers
/// `application/problem+json`, else [`Json`]; either answers a gRPC call as one.
///
/// `accept` is read as RFC 9110 (section 12.5.1) has it. Problem details are
/// preferred if they have the greater weight, or the same one and a name where
/// JSON has but a wildcard. `*/*`, `application/json`, both by name with one
/// weight, neither, and no `accept` at all are answered with JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct Negotiated;

impl Reply for Negotiated {
    fn refuse(&self, refused: &Refused<'_>) -> Response<Bytes> {
        if accept::prefers_problem(refused.head.headers()) {
            Problem.refuse(refused)
        } else {
            Json.refuse(refused)
        }
    }
}

/// A refusal to answer: the decision and the request, never a key.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    pub(crate) decision: &'a Decision,
    pub(crate) head: RequestHead<'a>,
    pub(crate) too_large: StatusCode,
    pub(crate) since_epoch: std::time::Duration,
}

impl<'a> Refused<'a> {
    /// Why, and for how long.
    /// [`each_policy`](Decision::each_policy) tells it of every policy.
    pub fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The request.
    #[must_use]
    pub fn head(&self) -> RequestHead<'a> {
        self.head
    }

    /// 429 (RFC 6585); 503 where the store cannot decide and the policy then
    /// refuses; or what the layer answers to a cost above the limit, see
    /// [`too_large_status`](crate::middleware::RateLimitLayerBuilder::too_large_status).
    ///
    /// Not of a gRPC call, whose HTTP status is 200.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.decision.refusal() {
            Some(Refusal::TooLarge) => self.too_large,
            Some(Refusal::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Whether the request is a gRPC or gRPC-Web call.
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        grpc::Call::of(&self.head).is_some()
    }
}

/// The answer to a request without an identity.
pub(crate) fn turned_away(head: &RequestHead<'_>, status: StatusCode) -> Response<Bytes> {
    if let Some(call) = grpc::Call::of(head) {
        return call.turned_away(status);
    }
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

/// A refusal by one policy in words: no identity, and nothing to be escaped in
/// JSON.
fn in_words(decision: &Decision) -> String {
    let (policy, limit) = (decision.policy(), decision.limit());
    let window = humantime::format_duration(decision.window());
    let why = match decision.refusal() {
        Some(Refusal::Blocked) => format!("blocked by policy {policy}"),
        Some(Refusal::TooLarge) => {
            format!("the request costs more than the limit of {limit} of policy {policy}")
        }
        Some(Refusal::Reserved) => {
            format!("limit of {limit} per {window} of policy {policy} held by requests under way")
        }
        Some(Refusal::Unavailable) => format!("policy {policy} cannot be checked at the moment"),
        _ => format!("limit of {limit} per {window} of policy {policy} reached"),
    };
    match decision.retry_after_seconds() {
        Some(seconds) => format!("{why}, retry in {seconds} s"),
        None => why,
    }
}

#[cfg(test)]
mod tests;
