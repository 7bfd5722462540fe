//! What a check costs: one round trip, or none.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_ratelimit::{Charge, RateLimitLayer};

use crate::setup::{
    NoFallback, Redis, bucket, builder, connect, fixed, hit, hit_for, ms, request_from, sliding, who,
};
use crate::support::Proxy;

#[tokio::test]
async fn a_check_is_one_round_trip_and_two_when_the_script_is_lost() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).observer(NoFallback).build().unwrap();
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    let login = limiter.policy(fixed("login", 2, 60_000).block_for(ms(90_000))).unwrap();
    let pair = limiter.policies(&[fixed("a", 100, 60_000), fixed("b", 100, 60_000)]).unwrap();
    connect(&limiter).await;

    let before = proxy.round_trips();
    for n in 1..=10 {
        let _ = hit(&limiter, &http, "ann").await;
        assert_eq!(proxy.round_trips(), before + n);
    }
    // Whatever the state, the cost and the number of policies.
    redis.server.command(&["SET", &http.store_key(&who("bob")), "abc"]);
    let _ = hit(&limiter, &http, "bob").await;
    let _ = hit_for(&limiter, &http, "carl", 0).await;
    let _ = limiter.check(pair.each_ref().map(|policy| Charge::new(policy, who("ann")))).await;
    let _ = limiter.peek(&http, &who("ann")).await;
    limiter.reset(&http, &who("ann")).await.unwrap();
    assert_eq!(proxy.round_trips(), before + 15);
    for _ in 0..3 {
        let _ = hit(&limiter, &login, "ann").await;
    }
    assert_eq!(proxy.round_trips(), before + 18, "the refusal that starts a block too");

    redis.server.command(&["SCRIPT", "FLUSH"]);
    let _ = hit(&limiter, &http, "ann").await;
    assert_eq!(proxy.round_trips(), before + 20);
    let _ = hit(&limiter, &http, "ann").await;
    assert_eq!(proxy.round_trips(), before + 21);
    assert_eq!(proxy.accepted(), 1, "all on one connection");
}

#[tokio::test]
async fn every_kind_of_check_is_one_round_trip() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).observer(NoFallback).build().unwrap();
    let [first, second, third] = limiter
        .policies(&[fixed("f", 100, 60_000), sliding("s", 100, 60_000), bucket("b", 100, 60_000)])
        .unwrap();
    let tokens = limiter.policy(bucket("tokens", 100, 60_000).reserve_for(ms(60_000))).unwrap();
    connect(&limiter).await;

    let before = proxy.round_trips();
    let charge = |policy| Charge::new(policy, who("ann"));
    for policy in [&first, &second, &third, &tokens] {
        let _ = limiter.check([charge(policy)]).await;
        let _ = limiter.check([charge(policy).limit(7).cost(3)]).await;
        let _ = limiter.peek(policy, &who("ann")).await;
    }
    assert_eq!(proxy.round_trips(), before + 12);
    let decision = limiter.check([charge(&first), charge(&second), charge(&third)]).await;
    assert!(decision.is_allowed());
    assert_eq!(proxy.round_trips(), before + 13, "three algorithms in one check");
    let reserved = limiter.reserve([charge(&tokens).cost(40)]).await;
    assert_eq!(proxy.round_trips(), before + 14);
    reserved.settle(10).await;
    assert_eq!(proxy.round_trips(), before + 15);
    let decision = limiter.check([charge(&third)]).await;
    assert!(limiter.refund(&charge(&third), &decision).await.unwrap());
    assert_eq!(proxy.round_trips(), before + 17);
}

#[tokio::test]
async fn o_misc_1_health_probes_counted_until_the_pod_is_killed() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy(fixed("http", 3, 60_000))
        .skip_path("/healthz")
        .skip_ips(["10.9.0.0/16"])
        .build()
        .unwrap();
    let service = layer.layer(service_fn(async |_: http::Request<()>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    let ask = async |request| service.clone().oneshot(request).await.unwrap();
    connect(&limiter).await;
    let sent = || redis.server.commandstat("evalsha") + redis.server.commandstat("eval");
    let before = sent();
    for _ in 0..100 {
        let mut probe = request_from(9);
        *probe.uri_mut() = "/healthz?verbose".parse().unwrap();
        let response = ask(probe).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
        let mut allowed = request_from(9);
        allowed.extensions_mut().insert(ConnectInfo(SocketAddr::from(([10, 9, 8, 7], 1))));
        assert_eq!(ask(allowed).await.status(), 200);
    }
    assert_eq!(sent(), before, "no Redis call");
    for status in [200, 200, 200, 429] {
        assert_eq!(ask(request_from(9)).await.status(), status, "another path from the same address");
    }
    assert_eq!(sent(), before + 4);
}
