//! The default body of a refusal.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};

use super::{Refused, Reply};
use crate::decision::Refusal;

/// The default reply, `application/json`:
/// `{"success":false,"message":"...","retryAfter":37,"timestamp":"..."}`,
/// without `retryAfter` where no wait helps.
#[derive(Clone, Copy, Debug)]
pub struct Json;

impl Reply for Json {
    fn refuse(&self, refused: &Refused<'_>) -> Response<Bytes> {
        let retry_after = match refused.decision.retry_after_seconds() {
            Some(seconds) => format!(r#""retryAfter":{seconds},"#),
            None => String::new(),
        };
        let message = match refused.decision.refusal() {
            Some(Refusal::Unavailable) => "Service temporarily unavailable. Please try again later.",
            _ => "Too many requests. Please try again later.",
        };
        // Whole seconds of a clock that is never far from now.
        let now = UNIX_EPOCH + Duration::from_secs(refused.since_epoch.as_secs());
        let timestamp = humantime::format_rfc3339_seconds(now);
        let body =
            format!(r#"{{"success":false,"message":"{message}",{retry_after}"timestamp":"{timestamp}"}}"#);
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = refused.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // RFC 6585, section 4: a 429 must not be stored by a cache.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}
