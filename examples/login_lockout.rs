//! A login page: 5 failures in 15 minutes for an address and an account, then
//! blocked for an hour, and 50 for the address. Good logins cost nothing.
//!
//! ```text
//! cargo run --example login_lockout
//! try() { curl -s -o /dev/null -D - http://127.0.0.1:3000/login -d "{\"user\":\"$1\",\"password\":\"$2\"}" | grep -iE '^(HTTP|x-ratelimit-rem|retry)'; }
//! for i in 1 2 3; do try ann correct; done
//! for i in 1 2 3 4 5 6; do try ann wrong; done
//! try ann correct; try bob correct
//! ```
//!
//! Expect 200 three times with 5 remaining; 401 five times with 4 to 0
//! remaining; then 429 with a wait of an hour, for the right password as well,
//! or it would be found out by trying. Bob gets in.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::Value;
use tower_ratelimit::identity::{ClientIp, Extension};
use tower_ratelimit::rules::Limit;
use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};

/// No login is longer.
const MAX_LOGIN: usize = 8 * 1024;

/// The account that a login is for.
#[derive(Clone)]
struct Account(String);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quarter = |limit| Rate::new(limit, Duration::from_secs(15 * 60));
    let hour = Duration::from_secs(60 * 60);
    let account = Extension::new(|account: &Account| Some(Cow::Borrowed(&*account.0)));
    let wrong = [StatusCode::UNAUTHORIZED];

    // Both are asked in one check, and a request that one of them refuses is
    // counted by neither.
    let layer = RateLimitLayer::builder(RateLimiter::memory())
        .limit(
            Limit::new(Policy::fixed_window("login", quarter(5)?).block_for(hour))
                .by((ClientIp::peer(), account))
                .count_if_status(wrong),
        )
        .limit(
            Limit::new(Policy::fixed_window("login-ip", quarter(50)?))
                .by(ClientIp::peer())
                .count_if_status(wrong),
        )
        .build()?;

    // The layer that is added last is the outermost: the account is known by the
    // time it is limited.
    let app = Router::new().route("/login", post(login)).layer(layer).layer(from_fn(read_account));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// One password opens every account.
async fn login(body: Bytes) -> StatusCode {
    let login: Value = serde_json::from_slice(&body).unwrap_or_default();
    if login["password"] == "correct" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

/// Reads which account a login is for, and passes the body on as it came. It runs
/// before the limiter, so it is bounded.
async fn read_account(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_LOGIN).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let login: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(user) = login["user"].as_str() {
        // As the account table compares names, or each spelling has 5 tries.
        parts.extensions.insert(Account(user.trim().to_lowercase()));
    }
    next.run(Request::from_parts(parts, Body::from(body))).await
}
