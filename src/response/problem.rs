//! Problem details (RFC 9457).

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use super::{Refused, Reply, grpc, in_words};
use crate::decision::Refusal;

/// A reply in `application/problem+json` (RFC 9457), whatever the client accepts;
/// a gRPC call is answered [as one](super#grpc).
///
/// Type and `violated-policies` are those of the draft
/// `draft-ietf-httpapi-ratelimit-headers-11` (section 5), which is not an RFC yet:
///
/// ```json
/// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"detail":"limit of 100 per 1m of policy http reached, retry in 37 s","violated-policies":["http"]}
/// ```
///
/// With a status of 503 the type is `#temporary-reduced-capacity`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Problem;

impl Reply for Problem {
    fn refuse(&self, refused: &Refused<'_>) -> Response<Bytes> {
        if let Some(call) = grpc::Call::of(&refused.head) {
            return call.refuse(refused);
        }
        let (name, title) = match refused.decision.refusal() {
            Some(Refusal::Unavailable) => ("temporary-reduced-capacity", "Temporary Reduced Capacity"),
            _ => ("quota-exceeded", "Quota Exceeded"),
        };
        let status = refused.status();
        // The names of policies have no character that JSON escapes.
        let violated: Vec<_> =
            refused.decision.violated().map(|violated| format!(r#""{}""#, violated.policy())).collect();
        let body = format!(
            r#"{{"type":"https://iana.org/assignments/http-problem-types#{name}","title":"{title}","status":{status},"detail":"{detail}","violated-policies":[{violated}]}}"#,
            status = status.as_u16(),
            detail = in_words(refused.decision),
            violated = violated.join(","),
        );
        answer(status, HeaderValue::from_static("application/problem+json"), body)
    }
}

/// An HTTP refusal.
pub(super) fn answer(status: StatusCode, content_type: HeaderValue, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
