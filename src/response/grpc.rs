//! Refusals of gRPC and gRPC-Web calls: HTTP 200, no body, the status in the
//! headers ("trailers-only" in the gRPC protocol).

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::headers::{number, text};
use super::{Refused, in_words};
use crate::decision::{Decision, Refusal};
use crate::identity::RequestHead;

pub(super) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(super) const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(super) const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// What `grpc-message` percent-encodes: everything but printable ASCII, and `%`.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Code {
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// A gRPC or gRPC-Web call.
pub(super) struct Call {
    /// Of the answer.
    content_type: HeaderValue,
}

impl Call {
    /// The request as a call, if it is one.
    pub(super) fn of(head: &RequestHead<'_>) -> Option<Self> {
        const GRPC: &str = "application/grpc";
        let asked = head.headers().get(CONTENT_TYPE)?;
        let (start, rest) = asked.to_str().ok()?.split_at_checked(GRPC.len())?;
        if !start.eq_ignore_ascii_case(GRPC) {
            return None;
        }
        // `+proto`, `; charset=utf-8`.
        let ends = |rest: &str| matches!(rest.bytes().next(), None | Some(b'+' | b';' | b' '));
        let rest = rest.to_ascii_lowercase();
        match rest.strip_prefix("-web") {
            Some(rest) if ends(rest.strip_prefix("-text").unwrap_or(rest)) => {
                Some(Self { content_type: asked.clone() })
            }
            None if ends(&rest) => Some(Self { content_type: HeaderValue::from_static(GRPC) }),
            _ => None,
        }
    }

    /// The answer to a call that is refused.
    pub(super) fn refuse(self, refused: &Refused<'_>) -> Response<Bytes> {
        let decision = refused.decision;
        let code = match decision.refusal() {
            Some(Refusal::Unavailable) => Code::Unavailable,
            _ => Code::ResourceExhausted,
        };
        let message = in_words(decision);
        let mut response = self.status(code, &message);
        let pushback = match decision.retry_after() {
            Some(wait) => number(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            // Below 0: do not retry.
            None => HeaderValue::from_static("-1"),
        };
        response.headers_mut().insert(PUSHBACK, pushback);
        if let Some(details) = details(decision, code, &message) {
            response.headers_mut().insert(DETAILS, details);
        }
        response
    }

    /// The answer to a call without an identity, for a client error of HTTP.
    pub(super) fn turned_away(self, status: StatusCode) -> Response<Bytes> {
        match status {
            StatusCode::UNAUTHORIZED => self.status(Code::Unauthenticated, "who is calling is not known"),
            StatusCode::FORBIDDEN => self.status(Code::PermissionDenied, "who is calling is not known"),
            _ => self.status(Code::InvalidArgument, "who is calling is not known"),
        }
    }

    fn status(self, code: Code, message: &str) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, self.content_type);
        headers.insert(STATUS, number(u64::from(code as u8)));
        headers.insert(MESSAGE, text(&utf8_percent_encode(message, ENCODED).to_string()));
        response
    }
}

/// `google.rpc.Status` with RetryInfo and, for a quota, QuotaFailure.
#[cfg(feature = "tonic")]
fn details(decision: &Decision, code: Code, message: &str) -> Option<HeaderValue> {
    use tonic::metadata::{Binary, MetadataValue};
    use tonic_types::{ErrorDetails, StatusExt as _};

    let mut details = ErrorDetails::new();
    if let Some(wait) = decision.retry_after() {
        details.set_retry_info(Some(wait));
    }
    if code == Code::ResourceExhausted {
        for violated in decision.violated() {
            details.add_quota_failure_violation(format!("policy:{}", violated.policy()), in_words(violated));
        }
    }
    let status = tonic::Status::with_error_details(i32::from(code as u8).into(), message, details);
    // tonic's base64, which is unpadded: its client does not survive anything else.
    let encoded = MetadataValue::<Binary>::from_bytes(status.details());
    HeaderValue::from_bytes(encoded.as_encoded_bytes()).ok()
}

#[cfg(not(feature = "tonic"))]
fn details(_: &Decision, _: Code, _: &str) -> Option<HeaderValue> {
    None
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn answered_as(content_type: &str) -> Option<String> {
        let request = Request::post("/").header(CONTENT_TYPE, content_type).body(()).unwrap();
        let call = Call::of(&RequestHead::new(&request))?;
        Some(call.content_type.to_str().unwrap().to_owned())
    }

    #[test]
    fn calls_are_known_by_their_content_type() {
        for (asked, answered) in [
            ("application/grpc", "application/grpc"),
            ("application/grpc+proto", "application/grpc"),
            ("Application/GRPC+json", "application/grpc"),
            ("application/grpc;charset=utf-8", "application/grpc"),
            ("application/grpc-web", "application/grpc-web"),
            ("application/grpc-web+proto", "application/grpc-web+proto"),
            ("application/grpc-web-text", "application/grpc-web-text"),
            ("application/grpc-web-text+proto", "application/grpc-web-text+proto"),
        ] {
            assert_eq!(answered_as(asked).as_deref(), Some(answered), "{asked}");
        }
        for asked in
            ["application/json", "application/grpcs", "application/grpc-websocket", "application/grp", ""]
        {
            assert_eq!(answered_as(asked), None, "{asked}");
        }
        assert!(Call::of(&RequestHead::new(&Request::new(()))).is_none());
    }

    #[test]
    fn a_message_is_printable_ascii() {
        let call = Call { content_type: HeaderValue::from_static("application/grpc") };
        let response = call.status(Code::Unavailable, "50 % \u{e9}\n~");
        assert_eq!(response.headers()[MESSAGE], "50 %25 %C3%A9%0A~");
        assert_eq!(
            (response.status(), &response.headers()[STATUS]),
            (StatusCode::OK, &HeaderValue::from(14))
        );
    }
}
