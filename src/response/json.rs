//! The default body of a refusal.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Response};

use super::problem::answer;
use super::{Refused, Reply, grpc};
use crate::decision::Refusal;

/// A reply in `application/json`, whatever the client accepts; a gRPC call is
/// answered [as one](super#grpc).
///
/// `retryAfter` is in whole seconds, and left out for a cost that never fits:
///
/// ```json
/// {"success":false,"message":"Too many requests. Please try again later.","retryAfter":37,"timestamp":"2026-01-07T15:30:23Z"}
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl Reply for Json {
    fn refuse(&self, refused: &Refused<'_>) -> Response<Bytes> {
        if let Some(call) = grpc::Call::of(&refused.head) {
            return call.refuse(refused);
        }
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
        answer(refused.status(), HeaderValue::from_static("application/json"), body)
    }
}
