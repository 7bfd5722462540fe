//! Requests that are not limited at all.

use axum::{Router, routing};
use http::Method;
use tower_ratelimit::RateLimitLayer;
use tower_ratelimit::identity::ClientIp;
use tower_ratelimit::middleware::RateLimitLayerBuilder;

use crate::harness::{Limited, ask, fixed, from, get, limiter, secs};

/// 100 requests that cost nothing and touch no store, then 4 of which 3 are
/// admitted.
async fn assert_free(skipping: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder, free: [&str; 3]) {
    let [method, peer, path] = free;
    let limited = Limited::new(|layer| skipping(layer.policy(fixed(3, secs(60)))));
    for _ in 0..100 {
        let answer = limited.ask(get(peer, path).method(method)).await;
        assert_eq!((answer.status, answer.limit()), (200, None), "{free:?}");
    }
    assert_eq!(limited.seen.keys(), [""; 0], "nothing was checked");
    let others = [0; 4].map(|_| get("203.0.113.9", "/"));
    assert_eq!(limited.statuses(others).await, [200, 200, 200, 429], "{free:?}");
}

#[tokio::test]
async fn o_misc_1_health_probes_cost_nothing() {
    assert_free(|layer| layer.skip_path("/healthz"), ["GET", "203.0.113.9", "/healthz?deep=1"]).await;
    assert_free(|layer| layer.skip_method(Method::HEAD), ["HEAD", "203.0.113.9", "/"]).await;
    let probes = ["10.0.0.0/8", "2001:db8::1"];
    assert_free(|layer| layer.skip_ips(probes), ["GET", "10.1.2.3", "/"]).await;
    assert_free(|layer| layer.skip_ips(probes), ["GET", "::ffff:10.1.2.3", "/"]).await;
    assert_free(|layer| layer.skip_ips(probes), ["GET", "2001:db8::1", "/"]).await;
    assert_free(
        |layer| layer.skip(|head| head.uri().path() == "/healthz"),
        ["GET", "203.0.113.9", "/healthz"],
    )
    .await;
}

#[tokio::test]
async fn o_misc_1_nothing_else_from_there_is_free() {
    let limited = Limited::new(|layer| {
        layer
            .policy(fixed(1, secs(60)))
            .skip_path("/healthz")
            .skip_method(Method::HEAD)
            .skip_ips(["10.0.0.1"])
    });
    let near = ["/healthz/", "/Healthz", "/healthz%20", "//healthz", "/a/healthz", "/?/healthz"];
    for (i, path) in near.into_iter().enumerate() {
        let expected = if i == 0 { 200 } else { 429 };
        assert_eq!(limited.ask(get("203.0.113.9", path)).await.status, expected, "{path}");
    }
    assert_eq!(limited.statuses([from("10.0.0.2"), from("10.0.0.2")]).await, [200, 429]);
}

#[tokio::test]
async fn o_misc_1_a_range_is_for_the_client_and_not_for_the_proxy_in_front() {
    let skipping = |ranges: [&'static str; 1]| {
        Limited::new(|layer| {
            layer
                .policy(fixed(1, secs(60)))
                .client_ip(ClientIp::behind(["10.0.0.0/8"]).unwrap())
                .skip_ips(ranges)
        })
    };
    let through_proxy = || from("10.0.0.5").header("x-forwarded-for", "203.0.113.9");
    let limited = skipping(["10.0.0.5"]);
    assert_eq!(limited.statuses([through_proxy(), through_proxy()]).await, [200, 429]);
    let limited = skipping(["203.0.113.0/24"]);
    assert_eq!(limited.statuses([through_proxy(), through_proxy()]).await, [200, 200]);
    // Nor can a stranger write itself into the range.
    let spoofed = || from("198.51.100.1").header("x-forwarded-for", "203.0.113.9");
    assert_eq!(limited.statuses([spoofed(), spoofed()]).await, [200, 429]);
}

#[tokio::test]
async fn o_misc_1_a_skip_sees_the_path_before_nesting_is_stripped() {
    let route = || Router::new().route("/healthz", routing::get(async || "fine"));
    let skipping = |path| {
        let (limiter, ..) = limiter();
        let builder = RateLimitLayer::builder(limiter).policy(fixed(1, secs(60)));
        builder.skip_path(path).build().unwrap()
    };
    for (path, expected) in [("/api/v1/healthz", [200, 200]), ("/healthz", [200, 429])] {
        let nested = Router::new().nest("/v1", route().layer(skipping(path)));
        let app = Router::new().nest("/api", nested);
        for expected in expected {
            assert_eq!(ask(&app, get("203.0.113.9", "/api/v1/healthz")).await.status, expected, "{path}");
        }
    }
}
