//! A server that goes and comes back.

use std::convert::Infallible;

use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_ratelimit::{RateLimitLayer, Source};

use crate::setup::{NoFallback, Redis, connect, eventually, fixed, hit, ms, request_from};

#[tokio::test]
async fn a_restarted_server_is_found_again() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 10, 60_000)).unwrap();
    for used in 1..=4 {
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!((decision.used(), decision.source()), (used, Source::Redis));
    }
    for round in 0..2 {
        redis.server.kill();
        eventually("the loss is noticed", || !limiter.is_connected()).await;
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!((decision.used(), decision.source()), (5 + 2 * round, Source::Local));
        redis.server.restart();
        eventually("the server is found again", || limiter.is_connected()).await;
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!((decision.used(), decision.source()), (6 + 2 * round, Source::Redis), "nothing is lost");
    }
}

#[tokio::test]
async fn a_stopped_server_costs_no_more_than_the_deadline() {
    let redis = Redis::start();
    let limiter = redis.builder().deadline(ms(100)).build().unwrap();
    let http = limiter.policy(fixed("http", 10, 60_000)).unwrap();
    connect(&limiter).await;
    redis.server.stop_signal();
    for _ in 0..5 {
        let started = tokio::time::Instant::now();
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
        assert!(started.elapsed() < ms(400), "{:?}", started.elapsed());
    }
    redis.server.cont();
    eventually("it is used again", || limiter.is_connected()).await;
}

#[tokio::test]
async fn both_versions_of_tls_are_spoken_and_the_user_and_the_database_count() {
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let redis = Redis::start_with("DNS:localhost,IP:127.0.0.1", &["--tls-protocols", protocol]);
        redis.server.command(&["ACL", "SETUSER", "lim", "reset", "on", ">p@ss", "~*:rl:*", "+@all"]);
        let url = format!("rediss://lim:p%40ss@localhost:{}/3", redis.server.arg("--tls-port").unwrap());
        let limiter = redis.builder().redis(url).observer(NoFallback).build().unwrap();
        let http = limiter.policy(fixed("http", 2, 60_000)).unwrap();
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis, "{protocol}");
        let keyspace = redis.server.info("keyspace", "db3").unwrap();
        assert!(keyspace.starts_with("keys=1,"), "{keyspace}");
    }
}

#[tokio::test]
async fn requests_are_limited_and_counted_over_tls() {
    let redis = Redis::start();
    let layer = RateLimitLayer::builder(redis.limiter()).policy(fixed("http", 2, 60_000)).build().unwrap();
    let inner =
        service_fn(async |_: http::Request<()>| Ok::<_, Infallible>(http::Response::new(String::new())));
    for status in [200, 200, 429] {
        let response = layer.layer(inner).oneshot(request_from(9)).await.unwrap();
        assert_eq!(response.status(), status);
    }
    let key = format!("{}:http:rl:203.0.113.9", redis.namespace);
    assert_eq!(redis.server.get(&key).as_deref(), Some("2"));
}
