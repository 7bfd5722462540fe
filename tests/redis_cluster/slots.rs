//! Policies that are checked together, in one slot and in several.

use std::convert::Infallible;
use std::net::IpAddr;

use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_ratelimit::identity::{ClientIp, Extension, Header};
use tower_ratelimit::{BuildError, Charge, RateLimitLayer, RateLimiter, Refusal, Source};

use crate::setup::{Redis, fixed, hit, ms, request_from, who};
use crate::support::Logs;

#[tokio::test]
async fn o_rds_7_two_keys_in_one_script_on_a_cluster() {
    let (logs, _guard) = Logs::capture();
    let redis = Redis::start();
    let limiter = redis.limiter();
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy(fixed("burst", 3, 60_000).block_for(ms(90_000)))
        .policy(fixed("daily", 100, 86_400_000))
        .decision_in_response()
        .build()
        .unwrap();
    let service = layer.layer(service_fn(async |_: http::Request<()>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    for n in 1..=9 {
        for (status, remaining) in [(200, "2"), (200, "1"), (200, "0"), (429, "0"), (429, "0")] {
            let response = service.clone().oneshot(request_from(n)).await.unwrap();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()["x-ratelimit-remaining"], remaining);
        }
    }
    let told = logs.matching("misconfigured").len() + logs.matching("split_check").len();
    assert_eq!(told, 0, "{:?}", logs.matching(""));
    let owners: Vec<_> = (1..=9).map(|n| redis.cluster.owner(&format!("{{203.0.113.{n}}}"))).collect();
    assert!((0..3).all(|node| owners.contains(&node)), "on all nodes: {owners:?}");
}

#[tokio::test]
async fn policies_whose_keys_are_in_several_slots_decide_each_by_itself_and_that_is_told_once() {
    let (logs, _guard) = Logs::capture();
    let redis = Redis::start();
    let limiter = redis.limiter();
    let [user, all] = limiter.policies(&[fixed("user", 2, 60_000), fixed("all", 3, 90_000)]).unwrap();
    let check =
        |name: &str| limiter.check([Charge::new(&user, who(name)), Charge::new(&all, who("everybody"))]);
    for (name, policy) in [("ann", "user"), ("ann", "user")] {
        let decision = check(name).await;
        assert_eq!(
            (decision.is_allowed(), decision.policy(), decision.source()),
            (true, policy, Source::Redis)
        );
    }
    let refused = check("ann").await;
    assert_eq!((refused.policy(), refused.refusal()), ("user", Some(Refusal::Limit)));
    assert_eq!(limiter.peek(&all, &who("everybody")).await.used(), 3, "the other one has charged");
    let refused = check("bob").await;
    assert_eq!((refused.policy(), refused.refusal()), ("all", Some(Refusal::Limit)));
    assert_eq!(limiter.peek(&user, &who("bob")).await.used(), 1);
    let lines = logs.matching("split_check");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("ERROR "), "{lines:?}");
    // In one slot it is all or nothing.
    let [user, all] = limiter.policies(&[fixed("u", 2, 60_000), fixed("a", 1, 90_000)]).unwrap();
    let check = || limiter.check([Charge::new(&user, who("ann")), Charge::new(&all, who("ann"))]);
    assert!(check().await.is_allowed());
    assert_eq!(check().await.policy(), "a");
    assert_eq!(hit(&limiter, &user, "ann").await.used(), 2, "spared by the refusal");
}

fn two_policies(limiter: &RateLimiter) -> tower_ratelimit::middleware::RateLimitLayerBuilder {
    let layer = RateLimitLayer::builder(limiter.clone()).policy_by(fixed("ip", 9, 60_000), ClientIp::peer());
    layer.client_ip(ClientIp::peer())
}

#[test]
fn declared_identities_with_no_first_part_in_common_are_refused_at_build() {
    let cluster = || RateLimiter::builder().redis_cluster(["redis://127.0.0.1:1"]).build().unwrap();
    let account = || Header::new("x-account").unwrap();
    let error =
        two_policies(&cluster()).policy_by(fixed("account", 5, 60_000), account()).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "identity: the policies \"ip\" (ip) and \"account\" (header.x-account) have no first part in common, \
         on a cluster they cannot be checked together"
    );
    let error =
        two_policies(&cluster()).policy_by(fixed("x", 5, 60_000), (account(), ClientIp::peer())).build();
    assert!(matches!(error, Err(BuildError::ClusterIdentities { .. })), "the order counts");
    // The same first part, or one that nobody can tell.
    let hidden = Extension::new(|ip: &IpAddr| Some(ip.to_string().into()));
    for layer in [
        two_policies(&cluster()).policy_by(fixed("login", 5, 60_000), (ClientIp::peer(), account())),
        two_policies(&cluster()).policy_by(fixed("login", 5, 60_000), hidden),
        two_policies(&RateLimiter::memory()).policy_by(fixed("account", 5, 60_000), account()),
    ] {
        assert!(layer.build().is_ok());
    }
}
