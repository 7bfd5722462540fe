//! A refused call, as tonic's client sees it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Code, Status};
use tonic_health::server::health_reporter;
use tonic_types::StatusExt;
use tower::Layer;
use tower_ratelimit::{OnStoreFailure, Policy, Rate, RateLimitLayer, RateLimiter};

use crate::setup::{connect, serve_router, serve_tonic, the_server};

fn fixed(name: &str, limit: u64, seconds: u64) -> Policy {
    Policy::fixed_window(name, Rate::new(limit, Duration::from_secs(seconds)).unwrap())
}

fn layer(policies: impl IntoIterator<Item = Policy>) -> RateLimitLayer {
    let layer = RateLimitLayer::builder(RateLimiter::memory()).standard_fields();
    policies.into_iter().fold(layer, |layer, policy| layer.policy(policy)).build().unwrap()
}

fn text<'a>(status: &'a Status, name: &str) -> Option<&'a str> {
    let mut values = status.metadata().get_all(name).iter();
    let value = values.next().map(|value| value.to_str().unwrap());
    assert!(values.next().is_none(), "{name} has one value");
    value
}

fn number(status: &Status, name: &str) -> u64 {
    text(status, name).unwrap_or_else(|| panic!("no {name} in {status:?}")).parse().unwrap()
}

#[tokio::test]
async fn o_grpc_1_a_tonic_client_sees_resource_exhausted_with_the_wait() {
    let (addr, reached) = serve_tonic(layer([fixed("http", 1, 60)])).await;
    let mut client = connect(addr).await;
    client.check(the_server()).await.unwrap();
    let refused = client.check(the_server()).await.unwrap_err();

    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().starts_with("limit of 1 per 1m of policy http reached"), "{refused:?}");
    let details = refused.get_error_details();
    let delay = details.retry_info().unwrap().retry_delay.unwrap();
    assert!(delay > Duration::from_secs(58) && delay <= Duration::from_secs(60), "{delay:?}");
    let violations = &details.quota_failure().unwrap().violations;
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].subject, "policy:http");
    assert!(violations[0].description.starts_with("limit of 1 per 1m"), "{violations:?}");
    assert_eq!(reached.load(Ordering::Relaxed), 1);

    // A stream is refused alike, before its first message.
    assert_eq!(client.watch(the_server()).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn o_grpc_2_the_metadata_says_when_to_come_back() {
    for addr in [
        serve_tonic(layer([fixed("http", 1, 60)])).await.0,
        serve_router(|app| app.layer(layer([fixed("http", 1, 60)]))).await,
    ] {
        let mut client = connect(addr).await;
        let admitted = client.check(the_server()).await.unwrap();
        assert_eq!(admitted.metadata().get("ratelimit-policy").unwrap(), "\"http\";q=1;w=60");
        let refused = client.check(the_server()).await.unwrap_err();

        let retry_after = number(&refused, "retry-after");
        assert!((1..=60).contains(&retry_after), "{retry_after}");
        assert_eq!(number(&refused, "x-ratelimit-limit"), 1);
        assert_eq!(number(&refused, "x-ratelimit-remaining"), 0);
        assert!(number(&refused, "x-ratelimit-reset") > 1_700_000_000);
        let pushback = number(&refused, "grpc-retry-pushback-ms");
        assert_eq!(pushback.div_ceil(1000), retry_after);
        assert_eq!(text(&refused, "ratelimit"), Some(format!("\"http\";r=0;t={retry_after}").as_str()));
    }
}

#[tokio::test]
async fn every_policy_that_refuses_is_a_violation() {
    let (addr, _) =
        serve_tonic(layer([fixed("burst", 1, 10), fixed("hour", 9, 3_600), fixed("day", 1, 86_400)])).await;
    let mut client = connect(addr).await;
    client.check(the_server()).await.unwrap();
    let refused = client.check(the_server()).await.unwrap_err();
    let details = refused.get_error_details();
    let subjects: Vec<_> =
        details.quota_failure().unwrap().violations.iter().map(|v| v.subject.as_str()).collect();
    assert_eq!(subjects, ["policy:burst", "policy:day"]);
    let delay = details.retry_info().unwrap().retry_delay.unwrap();
    assert!(delay > Duration::from_secs(86_000), "the longest wait: {delay:?}");
}

#[tokio::test]
async fn what_cannot_be_checked_and_must_not_run_unlimited_is_unavailable() {
    // Nobody listens on port 1.
    let limiter = RateLimiter::redis("redis://127.0.0.1:1").unwrap();
    let policy = fixed("http", 9, 60).on_store_failure(OnStoreFailure::Deny);
    let layer = RateLimitLayer::builder(limiter).policy(policy).standard_fields().build().unwrap();
    let (addr, reached) = serve_tonic(layer).await;
    let refused = connect(addr).await.check(the_server()).await.unwrap_err();

    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(number(&refused, "retry-after"), 1);
    assert_eq!(number(&refused, "grpc-retry-pushback-ms"), 1000);
    for none in
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "ratelimit-policy"]
    {
        assert_eq!(text(&refused, none), None, "{none}");
    }
    let details = refused.get_error_details();
    assert_eq!(details.retry_info().unwrap().retry_delay, Some(Duration::from_secs(1)));
    assert!(details.quota_failure().is_none(), "no quota was exceeded");
    assert_eq!(reached.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_service_can_be_added_with_the_layer_around_it() {
    let incoming = TcpIncoming::bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let addr = incoming.local_addr().unwrap();
    let (_reporter, health) = health_reporter();
    // By name, for which `NamedService` is needed.
    let server = Server::builder().add_service(layer([fixed("http", 1, 60)]).layer(health));
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut client = connect(addr).await;
    client.check(the_server()).await.unwrap();
    assert_eq!(client.check(the_server()).await.unwrap_err().code(), Code::ResourceExhausted);
}
