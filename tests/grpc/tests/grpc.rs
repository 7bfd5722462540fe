//! The layer on a tonic server, unchanged.
//!
//! A refusal is an HTTP 429 here, of which a gRPC client makes a status of its
//! own; what matters is that the call is refused and the service not reached.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::transport::server::{Server, TcpIncoming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;
use tower::util::MapRequestLayer;
use tower_ratelimit::{Key, Policy, Rate, RateLimitLayer, RateLimiter};

#[tokio::test]
async fn calls_are_limited_by_the_address_that_tonic_tells() {
    let limiter = RateLimiter::memory();
    let policy = Policy::fixed_window("http", Rate::per_minute(3));
    let layer = RateLimitLayer::builder(limiter.clone()).policy(policy.clone()).build().unwrap();
    let (addr, reached) = serve_tonic(layer).await;
    let mut client = connect(addr).await;

    for remaining in ["2", "1", "0"] {
        let response = client.check(the_server()).await.unwrap();
        assert_eq!(response.metadata().get("x-ratelimit-limit").unwrap(), "3");
        assert_eq!(response.metadata().get("x-ratelimit-remaining").unwrap(), remaining);
    }
    let refused = client.check(the_server()).await.unwrap_err();
    assert_eq!(refused.metadata().get("x-ratelimit-remaining").unwrap(), "0");
    assert!(refused.metadata().contains_key("retry-after"));
    assert!(connect(addr).await.check(the_server()).await.is_err(), "a new connection is the same client");
    assert_eq!(reached.load(Ordering::Relaxed), 3);

    let peer = Key::builder().network(IpAddr::V4(Ipv4Addr::LOCALHOST), 32, 64).finish();
    let http = limiter.policy(policy).unwrap();
    assert_eq!(limiter.peek(&http, &peer).await.used(), 3);
}

#[tokio::test]
async fn the_status_of_an_admitted_call_passes_untouched() {
    let (addr, _) = serve_tonic(RateLimitLayer::per_ip(Rate::per_minute(100))).await;
    let mut client = connect(addr).await;

    // In the trailers behind a message.
    let served = client.check(the_server()).await.unwrap();
    assert_eq!(served.metadata().get("grpc-status").unwrap(), "0");
    assert_eq!(served.into_inner().status, 1);

    // In place of one.
    let request = HealthCheckRequest { service: "unknown".to_owned() };
    let failed = client.check(request).await.unwrap_err();
    assert_eq!(failed.code(), Code::NotFound);
    assert_eq!(failed.metadata().get("x-ratelimit-remaining").unwrap(), "98");

    // And a stream arrives as it is sent.
    let mut stream = client.watch(the_server()).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().status, 1);
}

#[tokio::test]
async fn one_layer_covers_axum_and_tonic_on_one_router() {
    let (_reporter, health) = health_reporter();
    let app: Router = Routes::new(health)
        .into_axum_router()
        .route("/", get(|| async { "hello" }))
        .layer(RateLimitLayer::per_ip(Rate::per_minute(3)));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, service).await });
    let mut client = connect(addr).await;

    assert!(get_root(addr).await.starts_with("HTTP/1.1 200"));
    client.check(the_server()).await.unwrap();
    let third = get_root(addr).await;
    assert!(third.contains("x-ratelimit-remaining: 0"), "{third}");
    assert!(client.check(the_server()).await.is_err());
    assert!(get_root(addr).await.starts_with("HTTP/1.1 429"));
}

/// A tonic server behind `layer`, and how many calls have reached it.
async fn serve_tonic(layer: RateLimitLayer) -> (SocketAddr, Arc<AtomicUsize>) {
    let reached = Arc::new(AtomicUsize::new(0));
    let counter = reached.clone();
    let count = MapRequestLayer::new(move |request: http::Request<tonic::body::Body>| {
        counter.fetch_add(1, Ordering::Relaxed);
        request
    });
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let addr = incoming.local_addr().unwrap();
    let (reporter, health) = health_reporter();
    let server = Server::builder().layer(layer).layer(count).add_service(health);
    tokio::spawn(async move {
        // Its end would be the end of all watches.
        let _reporter = reporter;
        server.serve_with_incoming(incoming).await
    });
    (addr, reached)
}

async fn connect(addr: SocketAddr) -> HealthClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{addr}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

/// The health of the server as a whole, which is there from the start.
fn the_server() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

async fn get_root(addr: SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
