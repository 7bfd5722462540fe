//! One layer for a gRPC service and a web page on one port: 3 requests a minute,
//! whatever they are.
//!
//! ```text
//! cargo run -p grpc                    # serves on 127.0.0.1:50051
//! cargo run -p grpc -- call            # calls until it is refused
//! curl -i http://127.0.0.1:50051/      # counts too
//! ```
//!
//! Expect three greetings with what remains, then
//!
//! ```text
//! ResourceExhausted: limit of 3 per 1m of policy http reached, retry in 60 s
//! again in 59.99s
//! ```
//!
//! and of curl a 429 with JSON.

use std::error::Error;
use std::io::{Write, stdout};
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use grpc::{Greeter, GreeterClient, GreeterServer, HelloRequest};
use tonic_types::StatusExt;
use tonic_web::GrpcWebLayer;
use tower::Layer;
use tower_http::cors::CorsLayer;
use tower_ratelimit::response::EXPOSED_HEADERS;
use tower_ratelimit::{Rate, RateLimitLayer};

const ADDRESS: &str = "127.0.0.1:50051";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("call") => call().await,
        _ => serve().await,
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let app: Router = Router::new()
        // For browsers, and around this service only: it answers everything but
        // gRPC over HTTP/1.1 with 400.
        .route_service("/hello.Greeter/{*method}", GrpcWebLayer::new().layer(GreeterServer::new(Greeter)))
        .route("/", get(|| async { "hello\n" }))
        .layer(RateLimitLayer::per_ip(Rate::per_minute(3)))
        // Outermost, or browsers hide refusals from their pages.
        .layer(CorsLayer::permissive().expose_headers(EXPOSED_HEADERS));
    let listener = tokio::net::TcpListener::bind(ADDRESS).await?;
    writeln!(stdout(), "listening on http://{}", listener.local_addr()?)?;
    // The peer address, which is what is limited. tonic's own server passes it on
    // by itself.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn call() -> Result<(), Box<dyn Error>> {
    let mut client = GreeterClient::connect(format!("http://{ADDRESS}")).await?;
    loop {
        match client.say_hello(HelloRequest { name: "Ann".to_owned() }).await {
            Ok(reply) => {
                let remaining = reply.metadata().get("x-ratelimit-remaining").cloned();
                writeln!(stdout(), "{}, {remaining:?} remaining", reply.into_inner().message)?;
            }
            Err(status) => {
                writeln!(stdout(), "{:?}: {}", status.code(), status.message())?;
                let details = status.get_error_details();
                if let Some(wait) = details.retry_info().and_then(|info| info.retry_delay) {
                    writeln!(stdout(), "again in {wait:?}")?;
                }
                return Ok(());
            }
        }
    }
}
