//! Which responses count.

use std::fmt;
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode};

/// The head of a response, borrowed, for predicates on it.
#[derive(Clone, Copy)]
pub struct ResponseHead<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> ResponseHead<'a> {
    /// The head of a response.
    #[must_use]
    pub fn new<B>(response: &'a Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers(), extensions: response.extensions() }
    }

    /// What the trailers of a gRPC response tell, which has status 200.
    pub(crate) fn of_trailers(trailers: &'a HeaderMap, extensions: &'a Extensions) -> Self {
        Self { status: StatusCode::OK, headers: trailers, extensions }
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The code of a gRPC response, 0 to 16, once it is known: its predicate is
    /// asked with the trailers, unless the code stands in the headers already.
    #[must_use]
    pub fn grpc_status(&self) -> Option<u8> {
        self.headers.get("grpc-status")?.to_str().ok()?.parse().ok()
    }

    /// Whether it is the head of a gRPC response whose code comes with the
    /// trailers.
    pub(crate) fn is_in_trailers(&self) -> bool {
        let content_type = self.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
            && self.grpc_status().is_none()
    }

    /// The headers; of a gRPC response its trailers.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// The extensions.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}

/// The header values and extensions may hold secrets.
impl fmt::Debug for ResponseHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseHead").field("status", &self.status).finish_non_exhaustive()
    }
}

/// Which responses a limit counts; the others give their place back.
#[derive(Clone)]
pub(crate) enum CountIf {
    Statuses(Arc<[StatusCode]>),
    Predicate(Arc<dyn Fn(&ResponseHead<'_>) -> bool + Send + Sync>),
}

impl CountIf {
    pub(crate) fn counts(&self, response: &ResponseHead<'_>) -> bool {
        match self {
            Self::Statuses(statuses) => statuses.contains(&response.status),
            Self::Predicate(counts) => counts(response),
        }
    }
}

impl fmt::Display for CountIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Statuses(statuses) => {
                let statuses: Vec<_> = statuses.iter().map(StatusCode::as_str).collect();
                f.write_str(&statuses.join(", "))
            }
            Self::Predicate(_) => f.write_str("what a predicate picks"),
        }
    }
}

impl fmt::Debug for CountIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_predicates_pick_responses() {
        let response = Response::builder().status(401).body(()).unwrap();
        let head = ResponseHead::new(&response);
        assert!(CountIf::Statuses([StatusCode::UNAUTHORIZED].into()).counts(&head));
        assert!(!CountIf::Statuses([StatusCode::OK].into()).counts(&head));
        assert!(CountIf::Predicate(Arc::new(|head| head.status().is_client_error())).counts(&head));
    }
}
