//! The standard fields of policies that are counted in Redis, and without it.

use std::time::Duration;

use axum::Router;
use axum::routing::get as route;
use http::Response;
use tower_ratelimit::{OnStoreFailure, Policy, Rate, RateLimitLayer, RateLimiter, test_util};

use crate::setup::get;
use crate::support::RedisServer;

/// Names and the first parameter of each item.
fn items<'a, B>(response: &'a Response<B>, field: &str) -> Vec<&'a str> {
    let Some(line) = response.headers().get(field) else { return Vec::new() };
    line.to_str().unwrap().split(", ").map(|item| item.rsplit_once(';').unwrap().0).collect()
}

#[tokio::test]
async fn every_policy_is_listed_by_redis_and_by_the_fallback_if_it_counts_there() {
    let mut redis = RedisServer::start();
    let limiter = RateLimiter::builder()
        .redis(redis.url())
        .namespace(test_util::namespace())
        .deadline(Duration::from_secs(5))
        .build()
        .unwrap();
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy(Policy::fixed_window("burst", Rate::per_minute(4)))
        .policy(Policy::sliding_window("hour", Rate::per_hour(90)))
        .policy(Policy::token_bucket("news", Rate::per_hour(50)).on_store_failure(OnStoreFailure::Allow))
        .standard_fields()
        .build()
        .unwrap();
    let app = Router::new().route("/", route(|| async { "hello" })).layer(layer);

    let all = ["\"burst\";q=4", "\"hour\";q=90", "\"news\";q=50"];
    for left in [
        ["\"burst\";r=3", "\"hour\";r=89", "\"news\";r=49"],
        ["\"burst\";r=2", "\"hour\";r=88", "\"news\";r=48"],
    ] {
        let answer = get(&app).await;
        assert_eq!(
            (items(&answer, "ratelimit-policy"), items(&answer, "ratelimit")),
            (all.into(), left.into())
        );
    }
    assert!(limiter.is_connected());

    redis.kill();
    let started = std::time::Instant::now();
    while limiter.is_connected() {
        assert!(started.elapsed() < Duration::from_secs(10), "the loss is not noticed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for left in [["\"burst\";r=1", "\"hour\";r=87"], ["\"burst\";r=0", "\"hour\";r=86"]] {
        let answer = get(&app).await;
        assert_eq!(items(&answer, "ratelimit-policy"), all[..2], "what is not counted says nothing");
        assert_eq!(items(&answer, "ratelimit"), left);
    }
    let refused = get(&app).await;
    assert_eq!((refused.status().as_u16(), items(&refused, "ratelimit")), (429, vec!["\"burst\";r=0"]));
}
