//! Several replicas without Redis: a share of the limit for each.

use std::convert::Infallible;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{RateLimitLayer, RateLimiter, Source};

use crate::setup::{Redis, builder, fixed, hit, ms, request_from};
use crate::support::free_port;

const REPLICAS: usize = 4;

/// As many requests as that to each of four replicas whose Redis was never there,
/// one after the other: how many were admitted, and the limit that they showed.
async fn without_redis(limit: u64, parts: Option<u32>, each: usize) -> (u64, Vec<String>) {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let services: Vec<_> = (0..REPLICAS)
        .map(|_| {
            let limiter = builder(&url).deadline(ms(100));
            let limiter = parts.into_iter().fold(limiter, |limiter, parts| limiter.fallback_share(1, parts));
            let layer =
                RateLimitLayer::builder(limiter.build().unwrap()).policy(fixed("http", limit, 60_000));
            let inner = async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()));
            layer.build().unwrap().layer(service_fn(inner))
        })
        .collect();
    let (mut admitted, mut shown) = (0, Vec::new());
    for _ in 0..each {
        for service in &services {
            let response = service.clone().oneshot(request_from(1)).await.unwrap();
            assert!([200, 429].contains(&response.status().as_u16()), "{response:?}");
            admitted += u64::from(response.status() == 200);
            shown.push(response.headers()["x-ratelimit-limit"].to_str().unwrap().to_owned());
        }
    }
    shown.sort();
    shown.dedup();
    (admitted, shown)
}

#[tokio::test]
async fn o_fb_1_n_replicas_n_times_the_limit() {
    assert_eq!(without_redis(100, Some(4), 100).await, (100, vec!["25".to_owned()]));
    assert_eq!(without_redis(100, None, 100).await, (400, vec!["100".to_owned()]), "as documented");
    assert_eq!(without_redis(3, Some(4), 10).await, (4, vec!["1".to_owned()]), "never 0 by rounding");
}

/// The 80 are used one at a time, over all four in turn.
#[tokio::test]
async fn o_fb_1_after_80_of_100_four_replicas_with_a_quarter_each_admit_100_to_104_in_all() {
    let mut redis = Redis::start();
    let replica = || redis.builder().fallback_share(1, 4).build().unwrap();
    let replicas: Vec<RateLimiter> = (0..REPLICAS).map(|_| replica()).collect();
    let policies: Vec<_> =
        replicas.iter().map(|replica| replica.policy(fixed("http", 100, 60_000)).unwrap()).collect();
    for i in 0..80 {
        let decision = hit(&replicas[i % REPLICAS], &policies[i % REPLICAS], "ann").await;
        assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Redis));
    }
    redis.server.kill();
    let (mut admitted, mut fresh) = (80, 0);
    for (replica, policy) in replicas.iter().zip(&policies) {
        for _ in 0..100 {
            admitted += u64::from(hit(replica, policy, "ann").await.is_allowed());
            fresh += u64::from(hit(replica, policy, "newcomer").await.is_allowed());
        }
    }
    assert!((100..=104).contains(&admitted), "{admitted} in all");
    assert_eq!(fresh, 100, "a window that starts meanwhile");
}
