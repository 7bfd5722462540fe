//! Admitted calls: counted by the address that tonic tells, and otherwise as
//! without the layer.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tower_ratelimit::{Key, Policy, Rate, RateLimitLayer, RateLimiter};

use crate::setup::{connect, get_root, serve_router, serve_tonic, the_server};

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
    let addr = serve_router(|app| app.layer(RateLimitLayer::per_ip(Rate::per_minute(3)))).await;
    let mut client = connect(addr).await;

    assert!(get_root(addr).await.starts_with("HTTP/1.1 200"));
    client.check(the_server()).await.unwrap();
    let third = get_root(addr).await;
    assert!(third.contains("x-ratelimit-remaining: 0"), "{third}");
    assert!(client.check(the_server()).await.is_err());
    assert!(get_root(addr).await.starts_with("HTTP/1.1 429"));
}
