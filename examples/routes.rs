//! One limit for the whole app, one for a group of routes, a stricter one for
//! a single handler, and a handler that is exempt.
//!
//! Run it, then ask the four of them:
//!
//! ```text
//! cargo run --example routes
//! ask() { curl -s -o /dev/null -D - "$@" | grep -iE '^(HTTP|x-ratelimit-(l|rem)|retry)'; }
//! for i in 1 2 3 4; do ask http://127.0.0.1:3000/api/reports; done
//! for i in 1 2 3 4; do ask http://127.0.0.1:3000/api/items; done
//! ask -X POST http://127.0.0.1:3000/login
//! ask http://127.0.0.1:3000/healthz
//! ```
//!
//! Expect of `/api/reports` 200 twice with a limit of 2, then 429. Of
//! `/api/items` 200 once with a limit of 5 and nothing remaining, then 429: the
//! four tries before have passed the layer of the group as well. `/login` has
//! its own limit of 3. `/healthz` is 200 without any of these headers.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One limiter for all layers: one table, or one connection to Redis.
    let limiter = RateLimiter::memory();
    let limit = |policy| RateLimitLayer::builder(limiter.clone()).policy(policy);

    // A predicate sees the path as the client sent it, so this works for nested
    // routes too. A skipped request costs nothing and touches no store.
    let app_limit = limit(Policy::fixed_window("app", Rate::per_minute(20))).skip_path("/healthz").build()?;
    let api_limit = limit(Policy::fixed_window("api", Rate::per_minute(5))).build()?;
    let report_limit = limit(Policy::fixed_window("reports", Rate::per_minute(2))).build()?;
    let five_minutes = Duration::from_secs(5 * 60);
    let login_limit =
        limit(Policy::fixed_window("login", Rate::per_minute(3)).block_for(five_minutes)).build()?;

    let api = Router::new()
        .route("/items", get(|| async { "items\n" }))
        .route("/reports", get(|| async { "reports\n" }).layer(report_limit))
        .layer(api_limit);

    // A request passes the layers from the outside in, and each charges its own
    // policy. What an outer layer has charged stays charged when an inner one
    // refuses; policies that must count together belong into one layer.
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/login", post(|| async { "welcome\n" }).layer(login_limit))
        .nest("/api", api)
        .layer(app_limit);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    // Without `connect_info` there is no peer address to limit by.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
