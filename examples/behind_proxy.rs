//! One line: 5 requests a minute for each client address.
//!
//! Run it, then ask six times:
//!
//! ```text
//! cargo run --example quickstart
//! for i in 1 2 3 4 5 6; do curl -i http://127.0.0.1:3000/; done
//! ```
//!
//! Expect five times 200, with `x-ratelimit-remaining` from 4 down to 0, then
//! 429 with `retry-after`.

use std::net::SocketAddr;

use axum::{Router, routing::get};
use tower_ratelimit::{Rate, RateLimitLayer};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(RateLimitLayer::per_ip(Rate::per_minute(5)));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    // Without `connect_info` there is no peer address to limit by.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}
