//! What the crate offers to the tests of applications, and what it tells
//! handlers and outer layers.

use std::collections::BTreeSet;

use axum::{Extension, Router, routing};
use tower_ratelimit::test_util::{Script, namespace};
use tower_ratelimit::{Decision, RateLimitLayer, Source};

use crate::harness::{Limited, ask, fixed, from, secs};

#[tokio::test]
async fn a_scripted_limiter_admits_admits_and_refuses_for_37_s() {
    let limiter = Script::new().admit().admit().refuse_for(secs(37)).limiter();
    let layer = RateLimitLayer::builder(limiter).policy(fixed(100, secs(60))).build().unwrap();
    let app = Router::new().route("/", routing::get(async || "")).layer(layer);
    // Whoever asks, and the last answer is repeated.
    for (peer, expected) in [("203.0.113.1", (200, None)), ("203.0.113.2", (200, None))] {
        let answer = ask(&app, from(peer)).await;
        assert_eq!((answer.status, answer.retry_after()), expected);
    }
    for _ in 0..2 {
        let refused = ask(&app, from("203.0.113.3")).await;
        assert_eq!((refused.status, refused.retry_after()), (429, Some(37)));
        assert_eq!((refused.limit(), refused.remaining()), (Some(100), Some(0)));
    }
}

#[test]
fn no_two_namespaces_are_the_same() {
    let all: BTreeSet<_> = (0..100).map(|_| namespace()).collect();
    assert_eq!(all.len(), 100);
    let limiter = tower_ratelimit::RateLimiter::builder().namespace(namespace()).build();
    assert!(limiter.is_ok());
}

#[tokio::test]
async fn a_handler_reads_the_decision_where_that_is_asked_for() {
    async fn used(decision: Option<Extension<Decision>>) -> String {
        decision.map_or("none".to_owned(), |Extension(decision)| format!("{}", decision.used()))
    }
    let app = |told: bool| {
        let builder = RateLimitLayer::builder(Script::new().limiter()).policy(fixed(9, secs(60)));
        let builder = if told { builder.decision_in_request() } else { builder };
        Router::new().route("/", routing::get(used)).layer(builder.build().unwrap())
    };
    let (told, silent) = (app(true), app(false));
    for expected in ["1", "2"] {
        assert_eq!(ask(&told, from("203.0.113.9")).await.body, expected);
        assert_eq!(ask(&silent, from("203.0.113.9")).await.body, "none");
    }
}

#[tokio::test]
async fn an_outer_layer_reads_the_decision_of_admissions_and_refusals() {
    let limited = Limited::new(|layer| layer.policy(fixed(1, secs(60))).decision_in_response());
    for allowed in [true, false] {
        let answer = limited.ask(from("203.0.113.9")).await;
        let decision = answer.decision.unwrap();
        assert_eq!((decision.is_allowed(), decision.is_shadow()), (allowed, false));
        assert_eq!((decision.policy(), decision.limit(), decision.used()), ("http", 1, 1));
        assert_eq!((decision.remaining(), decision.source()), (0, Source::Local));
        assert_eq!(decision.retry_after(), (!allowed).then_some(secs(60)));
    }
    let silent = Limited::by(fixed(1, secs(60)));
    for _ in 0..2 {
        assert_eq!(silent.ask(from("203.0.113.9")).await.decision, None);
    }
}
