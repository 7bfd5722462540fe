//! What the client sees: the headers of a limited response, and the response
//! of a refusal.

mod headers;
mod json;

use bytes::Bytes;
use http::{Response, StatusCode};

pub use self::headers::{EXPOSED_HEADERS, ResetFormat};
pub(crate) use self::headers::{Fields, number};
pub use self::json::Json;
use crate::decision::{Decision, Refusal};
use crate::identity::RequestHead;

/// Builds the response of a refusal. Implemented by closures:
///
/// ```
/// use bytes::Bytes;
/// use http::Response;
/// use tower_ratelimit::{Rate, RateLimitLayer, RateLimiter, Policy, response::Refused};
///
/// let layer = RateLimitLayer::builder(RateLimiter::memory())
///     .policy(Policy::fixed_window("http", Rate::per_minute(100)))
///     .reply(|refused: &Refused<'_>| {
///         let mut response = Response::new(Bytes::from_static(b"slow down"));
///         *response.status_mut() = refused.status();
///         response
///     })
///     .build()?;
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
///
/// For all but some requests it may answer as [`Json`] does.
///
/// The layer adds `retry-after` and the `x-ratelimit-*` headers where the reply
/// has not set them. Everything else is the reply's: RFC 6585 (section 4) forbids
/// caches to store a 429, which the default says with `cache-control: no-store`.
///
/// Without a reply of one's own the answer is JSON, where `retryAfter` is in whole
/// seconds and left out for a cost that never fits:
///
/// ```json
/// {"success":false,"message":"Too many requests. Please try again later.","retryAfter":37,"timestamp":"2026-01-07T15:30:23Z"}
/// ```
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
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.decision.refusal() {
            Some(Refusal::TooLarge) => self.too_large,
            Some(Refusal::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }
}
