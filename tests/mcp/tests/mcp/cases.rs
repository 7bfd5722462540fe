//! The failure cases that concern MCP.

use std::time::Duration;

use axum::body::Body;
use http::StatusCode;
use serde_json::{Value, json};
use tower_ratelimit::mcp::Answer as Mode;
use tower_ratelimit::{Policy, Rate, RateLimiter};

use crate::clients::{Lifecycle, connect};
use crate::harness::{Server, call, calls, clocked, get, limits, post, serve, told};

#[tokio::test(flavor = "multi_thread")]
async fn o_mcp_1_the_handshake_itself_trips_the_limit() {
    for lifecycle in [Lifecycle::Handshake, Lifecycle::Discover] {
        // From a cold bucket of 5.
        let burst = Policy::token_bucket("http", Rate::per_hour(1)).burst(5);
        let addr = serve(limits(RateLimiter::memory()).transport(burst)).await;
        let client = connect(addr, "ann", lifecycle).await.unwrap();
        let tools = client.list_all_tools().await.unwrap();
        let names: Vec<_> = tools.iter().map(|tool| &*tool.name).collect();
        assert_eq!(names, ["execute_code", "echo"], "{lifecycle:?}");
    }
}

#[tokio::test]
async fn o_mcp_2_refused_get_stream_eats_the_post_budget() {
    // The preset: streams count apart.
    let server = Server::answering(StatusCode::METHOD_NOT_ALLOWED, limits(RateLimiter::memory()));
    let streams = |server: Server| async move {
        let mut refused = 0;
        for _ in 0..20 {
            refused += usize::from(server.send(get()).await.status == StatusCode::TOO_MANY_REQUESTS);
        }
        refused
    };
    assert_eq!(streams(server.clone()).await, 15);
    assert_eq!(server.post(call(1, "execute_code")).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(server.post(call(1, "echo")).await.number("x-ratelimit-remaining"), Some(4));

    // One budget for both is the trap.
    let http = || Policy::fixed_window("http", Rate::per_minute(5));
    let trap =
        tower_ratelimit::RateLimitLayer::builder(RateLimiter::memory()).policy(http()).build().unwrap();
    let app = axum::Router::new()
        .route("/mcp", axum::routing::any(|| async { StatusCode::METHOD_NOT_ALLOWED }))
        .layer(trap);
    for _ in 0..20 {
        let _ = tower::ServiceExt::oneshot(app.clone(), get()).await.unwrap();
    }
    let posted = post(&[]).body(Body::from(call(1, "execute_code").to_string())).unwrap();
    let answer = tower::ServiceExt::oneshot(app, posted).await.unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn o_mcp_3_one_http_request_thousands_of_tool_calls() {
    let server = Server::behind(limits(RateLimiter::memory()));
    let refused = server.post(calls(20, "execute_code")).await;
    assert_eq!((refused.status, refused.number("retry-after")), (StatusCode::OK, None));
    assert_eq!(refused.number("x-ratelimit-remaining"), Some(10));
    let results = refused.json();
    let results: Vec<_> = results.as_array().unwrap().iter().map(told).collect();
    let words = "more calls at once than the limit of 10 per minute allows";
    assert_eq!(
        results,
        (1..=20)
            .map(Value::from)
            .map(|id| (id, words))
            .collect::<Vec<_>>()
            .iter()
            .map(|(id, words)| (id, *words))
            .collect::<Vec<_>>()
    );
    assert_eq!(server.reached(), 0);

    let four = calls(4, "execute_code").to_string();
    let answer = server.post(&four).await;
    assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (StatusCode::OK, Some(6)));
    assert_eq!(answer.body, four);

    // 7 would fit alone, and do not fit now.
    let refused = server.post(calls(7, "execute_code")).await;
    assert!(refused.number("retry-after").is_some_and(|seconds| (1..=60).contains(&seconds)));
    assert_eq!(refused.json().as_array().unwrap().len(), 7);
    assert_eq!(server.post(calls(6, "execute_code")).await.number("x-ratelimit-remaining"), Some(0));
    assert_eq!(server.reached(), 2);

    // 10,000 are looked at, and no more.
    let refused = server.post(calls(10_000, "execute_code")).await;
    assert_eq!((refused.status, refused.json().as_array().unwrap().len()), (StatusCode::OK, 10_000));
    let refused = server.post(calls(10_001, "execute_code")).await;
    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(server.reached(), 2);
}

#[tokio::test]
async fn o_mcp_3_in_the_mode_of_statuses_an_array_is_refused_with_429() {
    let server = Server::behind(limits(RateLimiter::memory()).tool_answer(Mode::Status));
    let refused = server.post(calls(20, "execute_code")).await;
    assert_eq!((refused.status, refused.number("retry-after")), (StatusCode::TOO_MANY_REQUESTS, None));
    assert_eq!(refused.number("x-ratelimit-remaining"), Some(10));
    let errors = refused.json();
    for (error, id) in errors.as_array().unwrap().iter().zip(1..) {
        assert_eq!((&error["id"], &error["error"]["code"]), (&json!(id), &json!(429)));
    }
    assert_eq!((errors.as_array().unwrap().len(), server.reached()), (20, 0));
}

#[tokio::test]
async fn o_mcp_4_the_agent_sees_a_useless_error() {
    let (limiter, clock) = clocked();
    let server = Server::behind(limits(limiter).tool_answer(Mode::Status));
    for _ in 0..10 {
        assert_eq!(server.post(call(7, "execute_code")).await.status, StatusCode::OK);
    }
    for _ in 0..5 {
        assert_eq!(server.post(call(7, "echo")).await.status, StatusCode::OK);
    }
    clock.advance(Duration::from_millis(23_100));
    for (tool, limit) in [("execute_code", 10), ("echo", 5)] {
        let refused = server.post(call(7, tool)).await;
        assert_eq!(
            (refused.status, refused.number("retry-after")),
            (StatusCode::TOO_MANY_REQUESTS, Some(37))
        );
        assert_eq!(refused.header("content-type"), Some("application/json"));
        let message = format!("limit of {limit} per minute reached, retry in 37 s");
        let error = json!({"code": 429, "message": message, "data": {"retryAfterSeconds": 37}});
        assert_eq!(refused.json(), json!({"jsonrpc": "2.0", "id": 7, "error": error}));
    }
    // The body of a GET is not read.
    for _ in 0..5 {
        server.send(get()).await;
    }
    let refused = server.send(get()).await;
    assert_eq!((refused.status, &refused.json()["id"]), (StatusCode::TOO_MANY_REQUESTS, &Value::Null));
}
