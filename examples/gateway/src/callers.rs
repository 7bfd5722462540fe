//! Who calls: what rules need to know of a request, left in its extensions by
//! layers in front of the limiter.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tower_ratelimit::identity::{Account, Principal, normalize};

use crate::routes;

/// No login is longer.
const MAX_LOGIN: usize = 8 * 1024;

/// Takes `Authorization: Bearer <workspace>.<user>.<plan>` at its word: a
/// demonstration. A real one verifies a signature here, and looks the plan up.
///
/// Not under `/auth/`: there nobody is signed in yet, and a token must not be a
/// way to a count of one's own.
pub(crate) async fn authenticate(mut request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/auth/")
        && let Some(principal) = principal(request.headers())
    {
        request.extensions_mut().insert(principal);
    }
    next.run(request).await
}

fn principal(headers: &HeaderMap) -> Option<Principal> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let line = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    let (scheme, token) = line.split_once(' ')?;
    let mut parts = token.trim().split('.').filter(|part| !part.is_empty());
    let (workspace, user, plan) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = scheme.eq_ignore_ascii_case("bearer") && parts.next().is_none();
    is_whole.then(|| Principal::new().workspace(workspace).user(user).plan(plan))
}

/// Reads which account a login is for, and passes the body on as it came. In front
/// of the limiter, so bounded: what is longer is no login.
pub(crate) async fn read_account(request: Request, next: Next) -> Response {
    if request.method() != Method::POST || request.uri().path() != routes::LOGIN {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_LOGIN).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let login: Option<Value> = serde_json::from_slice(&body).ok();
    if let Some(user) = login.as_ref().and_then(|login| login["user"].as_str()) {
        // As the account table compares names, or each spelling has 5 tries.
        parts.extensions.insert(Account::new(normalize::account(user)));
    }
    next.run(Request::from_parts(parts, Body::from(body))).await
}
