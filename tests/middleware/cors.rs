//! Browsers: preflights, and what scripts may read.

use std::collections::BTreeSet;

use axum::{Router, routing};
use http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, ORIGIN, RETRY_AFTER,
};
use http::request::Builder;
use http::{HeaderName, Method};
use tower::ServiceExt as _;
use tower_http::cors::CorsLayer;
use tower_ratelimit::response::EXPOSED_HEADERS;
use tower_ratelimit::{Rate, RateLimitLayer, RateLimiter};

use crate::harness::{Limited, ask, fixed, from, secs};

fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(["https://app.example.org".parse().unwrap()])
        .expose_headers(EXPOSED_HEADERS)
}

fn app(cors_is_outside: bool) -> Router {
    let limit = RateLimitLayer::per_ip(Rate::per_minute(2));
    let routes = Router::new().route("/", routing::get(async || "hello"));
    if cors_is_outside { routes.layer(limit).layer(cors()) } else { routes.layer(cors()).layer(limit) }
}

fn cross_origin() -> Builder {
    from("203.0.113.9").header(ORIGIN, "https://app.example.org")
}

fn preflight() -> Builder {
    cross_origin().method(Method::OPTIONS).header(ACCESS_CONTROL_REQUEST_METHOD, "GET")
}

#[tokio::test]
async fn o_hdr_7_preflights_are_free_and_the_refusal_can_be_read() {
    for cors_is_outside in [true, false] {
        let app = app(cors_is_outside);
        for (request, status) in [
            (preflight(), 200),
            (cross_origin(), 200),
            (preflight(), 200),
            (cross_origin(), 200),
            (preflight(), 200),
            (cross_origin(), 429),
            (preflight(), 200),
        ] {
            let is_preflight = request.method_ref() == Some(&Method::OPTIONS);
            let answer = ask(&app, request).await;
            assert_eq!(answer.status, status, "CORS outside: {cors_is_outside}");
            let limits = answer.limit();
            assert_eq!(limits, if is_preflight { None } else { Some(2) });
            if cors_is_outside || status == 200 {
                assert_eq!(
                    answer.header("access-control-allow-origin"),
                    Some("https://app.example.org"),
                    "the order that puts CORS headers on a 429 is CORS outside"
                );
            }
        }
    }
}

#[tokio::test]
async fn o_hdr_7_a_plain_options_request_is_charged_and_preflights_can_be() {
    let options = || from("203.0.113.9").method(Method::OPTIONS);
    let limited = Limited::by(fixed(1, secs(60)));
    assert_eq!(limited.statuses([options(), options(), preflight()]).await, [200, 429, 200]);

    let limited = Limited::new(|layer| layer.policy(fixed(1, secs(60))).charge_preflights());
    assert_eq!(limited.statuses([preflight(), preflight()]).await, [200, 429]);
    // The header alone makes no preflight of a request.
    let limited = Limited::by(fixed(1, secs(60)));
    let get = || from("203.0.113.9").header(ACCESS_CONTROL_REQUEST_METHOD, "GET");
    assert_eq!(limited.statuses([get(), get()]).await, [200, 429]);
}

#[tokio::test]
async fn o_hdr_9_browsers_may_read_every_header_that_occurs() {
    let policy = fixed(2, secs(60));
    let limit =
        RateLimitLayer::builder(RateLimiter::memory()).policy(policy).standard_fields().build().unwrap();
    let app = Router::new().route("/", routing::any(async || "hello")).layer(limit).layer(cors());
    let grpc_web = || cross_origin().method(Method::POST).header(CONTENT_TYPE, "application/grpc-web");
    let mut occurred = BTreeSet::new();
    for (request, status) in
        [(cross_origin(), 200), (cross_origin(), 200), (cross_origin(), 429), (grpc_web(), 200)]
    {
        let answer = ask(&app, request).await;
        assert_eq!(answer.status, status);
        let exposed = answer.header(ACCESS_CONTROL_EXPOSE_HEADERS.as_str()).unwrap();
        let exposed: Vec<HeaderName> = exposed.split(',').map(|name| name.trim().parse().unwrap()).collect();
        let ours = |name: &&HeaderName| {
            let is = |part| name.as_str().contains(part);
            is("ratelimit") || is("grpc") || **name == RETRY_AFTER
        };
        for name in answer.headers.keys().filter(ours) {
            assert!(exposed.contains(name), "{name} on a {status}");
            occurred.insert(name.as_str().to_owned());
        }
    }
    let mut listed: BTreeSet<_> = EXPOSED_HEADERS.iter().map(|name| name.as_str().to_owned()).collect();
    if cfg!(not(feature = "tonic")) {
        listed.remove("grpc-status-details-bin");
    }
    assert_eq!(occurred, listed, "nothing is listed that never occurs");
}

/// The order that puts CORS headers on a 429, in one builder: tower-http wants
/// a default body to answer preflights with.
#[tokio::test]
async fn o_hdr_7_cors_stands_outside_the_limiter_in_one_service_builder() {
    let stack = tower::ServiceBuilder::new()
        .layer(CorsLayer::permissive())
        .layer(RateLimitLayer::per_ip(Rate::per_minute(1)));
    let app: Router = Router::new().route("/", routing::get(async || "hello")).layer(stack);
    for expected in [200, 429] {
        let request =
            from("203.0.113.9").header("origin", "https://a.example").body(axum::body::Body::empty());
        let response = app.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), expected);
        assert!(response.headers().contains_key("access-control-allow-origin"), "{expected}");
    }
}
