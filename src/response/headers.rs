//! `x-ratelimit-*` and `retry-after`.
//!
//! On success, what the inner service has set is never made more permissive: an
//! inner limiter that has less left keeps its headers.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::{grpc, standard_fields};
use crate::decision::Decision;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The headers that a browser must be allowed to read, for
/// `CorsLayer::expose_headers`: every one that the layer may set, those of the
/// [standard fields](crate::middleware::RateLimitLayerBuilder::standard_fields)
/// and of gRPC-Web among them.
///
/// The CORS layer belongs outside of this one, or a refusal has no CORS headers
/// and a browser hides it from its page. Preflights are free in either order:
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_http::cors::CorsLayer;
/// use tower_ratelimit::{Rate, RateLimitLayer, response::EXPOSED_HEADERS};
///
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(RateLimitLayer::per_ip(Rate::per_minute(100)))
///     // The last one is the outermost.
///     .layer(CorsLayer::permissive().expose_headers(EXPOSED_HEADERS));
/// ```
pub const EXPOSED_HEADERS: [HeaderName; 10] = [
    LIMIT,
    REMAINING,
    RESET,
    RETRY_AFTER,
    standard_fields::POLICY,
    standard_fields::LIMIT,
    grpc::STATUS,
    grpc::MESSAGE,
    grpc::DETAILS,
    grpc::PUSHBACK,
];

/// How `x-ratelimit-reset` is written: on a refusal the time at which to try
/// again, otherwise the end of the window. Rounded up to whole seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetFormat {
    /// Seconds since 1970 by this machine's clock (GitHub's form, and what most
    /// clients read).
    #[default]
    UnixSeconds,
    /// Seconds from now, which needs no clock to agree.
    DeltaSeconds,
    /// `2026-01-07T15:30:23Z`.
    Rfc3339,
}

/// Which fields a layer writes, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    /// `x-ratelimit-*`.
    pub(crate) enabled: bool,
    /// `RateLimit-Policy` and `RateLimit`.
    pub(crate) standard: bool,
    pub(crate) reset: ResetFormat,
}

impl Fields {
    pub(crate) fn is_any(&self) -> bool {
        self.enabled || self.standard
    }

    /// Writes the numbers of an allowance on the inner service's response.
    /// `limit` is the ready-made value of the policy's own limit.
    pub(crate) fn describe(
        &self,
        headers: &mut HeaderMap,
        decision: &Decision,
        limit: &HeaderValue,
        since_epoch: Duration,
    ) {
        if self.standard {
            standard_fields::describe(headers, decision);
        }
        if !self.enabled || is_tighter(headers, decision) {
            return;
        }
        headers.insert(LIMIT, limit.clone());
        headers.insert(REMAINING, number(decision.remaining()));
        headers.insert(RESET, self.reset_value(decision, since_epoch));
    }

    /// Completes the response of a refusal.
    pub(crate) fn refuse<B>(
        &self,
        response: &mut Response<B>,
        decision: &Decision,
        limit: &HeaderValue,
        since_epoch: Duration,
    ) {
        let status = response.status();
        let headers = response.headers_mut();
        if self.standard {
            standard_fields::refuse(headers, decision);
        }
        let mut complete = |name, value| {
            if !headers.contains_key(&name) {
                headers.insert(name, value);
            }
        };
        if self.enabled && decision.is_counted() {
            complete(LIMIT, limit.clone());
            complete(REMAINING, number(decision.remaining()));
            complete(RESET, self.reset_value(decision, since_epoch));
        }
        if let Some(seconds) = decision.retry_after_seconds() {
            complete(RETRY_AFTER, number(seconds));
        }
        // RFC 6585, section 4: a 429 must not be stored by a cache. Nor should the
        // other refusals, which end as soon.
        if matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::SERVICE_UNAVAILABLE
        ) {
            complete(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
    }

    fn reset_value(&self, decision: &Decision, since_epoch: Duration) -> HeaderValue {
        let left = decision.reset_after();
        match self.reset {
            ResetFormat::UnixSeconds => number(seconds_up(since_epoch + left)),
            ResetFormat::DeltaSeconds => number(seconds_up(left)),
            ResetFormat::Rfc3339 => {
                let at = UNIX_EPOCH + Duration::from_secs(seconds_up(since_epoch + left));
                text(&humantime::format_rfc3339_seconds(at).to_string())
            }
        }
    }
}

impl Decision {
    /// Seconds for `Retry-After` (RFC 9110, section 10.2.3): rounded up, at least
    /// 1. `None` where [`retry_after`](Self::retry_after) is.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.outcome.retry_after_ms.map(|ms| ms.div_ceil(1000).max(1))
    }
}

/// Whether what the inner service has said leaves less than this decision, or
/// cannot be compared.
fn is_tighter(headers: &HeaderMap, decision: &Decision) -> bool {
    // A refusal of an inner limiter is what the client must know, whatever it leaves
    // for a smaller cost. All of ours but the one without a wait say so.
    if headers.contains_key(RETRY_AFTER) {
        return true;
    }
    // Of several lines nobody knows which one the client reads: the least counts.
    let said = |name| {
        let number = |value: &HeaderValue| -> Option<u64> { value.to_str().ok()?.trim().parse().ok() };
        headers.get_all(name).iter().map(number).min()
    };
    match (said(&REMAINING), said(&LIMIT)) {
        (None, None) => headers.contains_key(RESET),
        (Some(Some(remaining)), _) => decision.remaining() >= remaining,
        (None, Some(Some(limit))) => decision.limit() >= limit,
        (Some(None), _) | (None, Some(None)) => true,
    }
}

pub(super) fn seconds_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// One allocation: `HeaderValue::from(u64)` takes two.
pub(crate) fn number(number: u64) -> HeaderValue {
    text(itoa::Buffer::new().format(number))
}

pub(super) fn text(text: &str) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::copy_from_slice(text.as_bytes()))
        .unwrap_or_else(|_| HeaderValue::from_static("0"))
}
