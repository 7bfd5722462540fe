//! The local path does not allocate; headers cost what a header map costs.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::{Method, Request, Response, StatusCode};
use tower::{Layer, Service};
use tower_ratelimit::identity::Principal;
use tower_ratelimit::rules::{Factor, Limit, LiveRules, Rule, RuleSet};
use tower_ratelimit::{
    Charge, Key, Policy, Rate, RateLimitLayer, RateLimiter, middleware::RateLimitLayerBuilder,
};

#[derive(Clone)]
struct Bare;

impl Service<Request<()>> for Bare {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the local path does not wait"),
    }
}

fn request() -> Request<()> {
    let peer: IpAddr = "2001:db8:1:2::3".parse().unwrap();
    let who = Principal::new().user("ann").plan("pro");
    Request::builder().extension(peer).extension(who).body(()).unwrap()
}

fn builder() -> RateLimitLayerBuilder {
    RateLimitLayer::builder(RateLimiter::memory())
        .policy(Policy::fixed_window("http", Rate::per_minute(1_000)))
        .policy(Policy::fixed_window("http-hour", Rate::per_hour(10_000)))
}

/// Allocations of one request to a known identity, building the request and
/// dropping the response left out.
fn allocations_of(layer: &RateLimitLayer) -> u64 {
    let mut service = layer.layer(Bare);
    assert_eq!(now(service.call(request())).unwrap().status(), StatusCode::OK);
    let request = request();
    let mut response = None;
    let allocated = allocation_counter::measure(|| response = Some(now(service.call(request))));
    assert_eq!(response.unwrap().unwrap().status(), StatusCode::OK);
    allocated.count_total
}

#[test]
fn a_check_by_hand_does_not_allocate() {
    let limiter = RateLimiter::memory();
    let policy = limiter.policy(Policy::fixed_window("jobs", Rate::per_minute(100))).unwrap();
    let check = || {
        let key = Key::builder().ip("203.0.113.9".parse().unwrap()).principal("a rather long account name");
        now(limiter.check([Charge::new(&policy, key.finish())]))
    };
    assert!(check().is_allowed());
    let allocated = allocation_counter::measure(|| assert!(check().is_allowed()));
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn layer_and_check_do_not_allocate() {
    assert_eq!(allocations_of(&builder().without_headers().build().unwrap()), 0);
}

#[test]
fn rules_by_route_method_and_plan_do_not_allocate() {
    let limit = |name| Limit::new(Policy::fixed_window(name, Rate::per_minute(1_000))).plan("pro", 5_000);
    let rules = RuleSet::new()
        .skip_path("/healthz")
        .rule(Rule::route("/").method(Method::POST).limit(limit("write")))
        .rule(
            Rule::route("/{*rest}")
                .or_route("/")
                .plan("pro")
                .limit(limit("read").factor(vip()))
                .limit(limit("all")),
        );
    let limiter = RateLimiter::memory();
    let live = LiveRules::new(&limiter, rules).unwrap();
    let layer = || RateLimitLayer::builder(limiter.clone()).rules(live.clone());
    assert_eq!(allocations_of(&layer().without_headers().build().unwrap()), 0);
    // A second layer with these policies would need a mark in the request.
    let limiter = RateLimiter::memory();
    let live = LiveRules::new(&limiter, live.current()).unwrap();
    let allocated = allocations_of(&RateLimitLayer::builder(limiter).rules(live).build().unwrap());
    assert!((1..=4).contains(&allocated), "{allocated}");
}

fn vip() -> Factor {
    Factor::times("vip", 2).users(["ann"])
}

#[test]
fn headers_take_at_most_four_allocations() {
    // Two for the header map, one for each number that changes.
    let allocated = allocations_of(&builder().build().unwrap());
    assert!((1..=4).contains(&allocated), "{allocated}");
}

#[test]
fn standard_fields_cost_those_who_ask_for_them() {
    // The list of the policies, and for each field the text and its value.
    let allocated = allocations_of(&builder().without_headers().standard_fields().build().unwrap());
    assert!((1..=8).contains(&allocated), "{allocated}");
}

#[test]
fn a_decision_is_small() {
    let size = size_of::<tower_ratelimit::Decision>();
    assert!(size <= 128, "{size} bytes");
}

#[test]
fn a_future_is_small_enough_to_live_on_the_stack() {
    let mut service = builder().build().unwrap().layer(Bare);
    let size = size_of_val(&service.call(request()));
    assert!(size <= 1024, "{size} bytes");
}
