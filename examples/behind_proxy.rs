//! The client address behind a proxy: whose `X-Forwarded-For` is believed, and
//! which of its entries.
//!
//! `127.0.0.1` stands for the proxy, so `curl` can play it. Run it, then ask:
//!
//! ```text
//! cargo run --example behind_proxy
//! curl http://127.0.0.1:3000/ -H 'x-forwarded-for: 203.0.113.9'
//! curl http://127.0.0.1:3000/ -H 'x-forwarded-for: 198.51.100.1, 203.0.113.9'
//! curl http://127.0.0.1:3000/ -H 'x-forwarded-for: 203.0.113.9, unknown'
//! curl http://127.0.0.1:3000/ -H 'x-forwarded-for: 203.0.113.9' --interface 127.0.0.2
//! for i in 1 2 3 4; do curl -i http://127.0.0.1:3000/ -H "x-forwarded-for: 198.51.100.$i, 203.0.113.9"; done
//! ```
//!
//! Expect, from the last line of each answer:
//!
//! 1. `203.0.113.9`: the peer is the trusted proxy, and this is what it saw.
//! 2. `203.0.113.9` again. The proxy appends on the right; what stands left of
//!    its entry was written by the client.
//! 3. `127.0.0.1`: the walk ends at an entry without an address, and the proxy
//!    is the last hop that is certain.
//! 4. `127.0.0.2`: a peer that is not trusted, so its header is not read. (On
//!    macOS add the address first: `sudo ifconfig lo0 alias 127.0.0.2`.)
//! 5. 200 three times, then 429: the limit is 5 a minute, two were spent by 1
//!    and 2, and a new left entry buys nothing.

use std::net::SocketAddr;

use axum::{Router, extract::Request, routing::get};
use tower_ratelimit::identity::{ClientIp, RequestHead};
use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // In production the ranges of your load balancer, such as "10.0.0.0/8".
    // Nobody else may connect from them: whoever does chooses its address.
    let clients = ClientIp::behind(["127.0.0.1"])?;

    let layer = RateLimitLayer::builder(RateLimiter::memory())
        .policy(Policy::fixed_window("http", Rate::per_minute(5)))
        .client_ip(clients.clone())
        .build()?;

    // Shows the addresses of a request to whoever sent it: for a test only.
    let explain = move |request: Request| {
        let why = clients.explain(&RequestHead::new(&request));
        async move { format!("{why}\n") }
    };
    let app = Router::new().route("/", get(explain)).layer(layer);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
