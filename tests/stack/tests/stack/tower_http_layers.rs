//! Layers of tower-http, inside and outside of ours.

use std::io::Read as _;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get as route, post};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use http::{Request, StatusCode};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::setup::{Limit, ask, get, number, remaining, request};
use crate::support::Logs;

fn hello() -> Router {
    Router::new().route("/", route(|| async { "hello ".repeat(100) }))
}

#[tokio::test]
async fn trace_outside_sees_refusals_too() {
    let (logs, _guard) = Logs::capture();
    let limit = Limit::per_minute(1);
    let app = hello().layer(limit.layer.clone()).layer(TraceLayer::new_for_http());
    assert_eq!(get(&app).await.status(), 200);
    assert_eq!(get(&app).await.status(), 429);
    let finished = logs.matching("finished processing request");
    assert_eq!(finished.len(), 2, "{finished:?}");
    assert!(finished[1].contains("status=429"), "{finished:?}");
}

#[tokio::test]
async fn request_ids_are_on_refusals_when_they_are_outside() {
    let limit = Limit::per_minute(1);
    let app = hello()
        .layer(limit.layer.clone())
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid));
    for status in [200, 429] {
        let response = get(&app).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-request-id"].len(), 36);
    }
}

#[tokio::test]
async fn compression_outside_packs_refusals_and_inside_only_what_is_admitted() {
    for outside in [true, false] {
        let limit = Limit::per_minute(1).layer;
        let pack = CompressionLayer::new();
        let app = if outside { hello().layer(limit).layer(pack) } else { hello().layer(pack).layer(limit) };
        let asking = || request().header(ACCEPT_ENCODING, "gzip").body(Body::empty()).unwrap();

        let admitted = ask(&app, asking()).await;
        assert_eq!(
            (admitted.status(), &admitted.headers()[CONTENT_ENCODING]),
            (StatusCode::OK, &"gzip".parse().unwrap())
        );
        assert_eq!(remaining(&admitted), Some(0));
        assert_eq!(unpack(admitted.body()), "hello ".repeat(100));

        let refused = ask(&app, asking()).await;
        assert_eq!(refused.status(), 429);
        let body = if outside {
            unpack(refused.body())
        } else {
            assert_eq!(refused.headers()[CONTENT_LENGTH], refused.body().len().to_string());
            String::from_utf8(refused.body().to_vec()).unwrap()
        };
        assert!(body.starts_with("{\"success\":false"), "{body}");
        assert!(number(&refused, "retry-after").is_some());
    }
}

/// As a client does; what compresses is not asked.
fn unpack(packed: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    text
}

#[tokio::test(start_paused = true)]
async fn a_timeout_inside_is_a_limited_response_and_outside_it_has_no_numbers() {
    let slow = || Router::new().route("/", route(|| tokio::time::sleep(Duration::from_secs(60))));
    let timeout = || TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(1));
    for outside in [true, false] {
        let limit = Limit::per_minute(1);
        let layer = limit.layer.clone();
        let app =
            if outside { slow().layer(layer).layer(timeout()) } else { slow().layer(timeout()).layer(layer) };
        let late = get(&app).await;
        assert_eq!(late.status(), 504);
        assert_eq!(remaining(&late), (!outside).then_some(0));
        assert_eq!(limit.used().await, 1, "dropped after the verdict: once");
        assert_eq!(get(&app).await.status(), 429);
    }
}

#[tokio::test]
async fn a_panic_is_charged_once_and_caught_inside_it_is_a_limited_response() {
    let broken = || {
        Router::new().route(
            "/",
            route(|| async {
                if true {
                    panic!("broken")
                }
            }),
        )
    };
    for outside in [true, false] {
        let limit = Limit::per_minute(2);
        let (layer, catch) = (limit.layer.clone(), CatchPanicLayer::new());
        let app =
            if outside { broken().layer(layer).layer(catch) } else { broken().layer(catch).layer(layer) };
        let caught = get(&app).await;
        assert_eq!(
            (caught.status(), remaining(&caught)),
            (StatusCode::INTERNAL_SERVER_ERROR, (!outside).then_some(1))
        );
        assert_eq!(limit.used().await, 1);
        assert_eq!(get(&app).await.status(), 500);
        assert_eq!(get(&app).await.status(), 429);
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_charged_if_its_limit_is_inside() {
    let echo = || Router::new().route("/", post(|body: String| async move { body }));
    let large = || {
        Request::from_parts(
            request().method("POST").body(()).unwrap().into_parts().0,
            Body::from("x".repeat(99)),
        )
    };
    let with_length = || {
        let mut request = large();
        request.headers_mut().insert(CONTENT_LENGTH, 99.into());
        request
    };
    for outside in [true, false] {
        let limit = Limit::per_minute(9);
        let (layer, most) = (limit.layer.clone(), RequestBodyLimitLayer::new(9));
        let app = if outside { echo().layer(layer).layer(most) } else { echo().layer(most).layer(layer) };
        assert_eq!(ask(&app, with_length()).await.status(), 413);
        assert_eq!(
            limit.used().await,
            u64::from(!outside),
            "its length is told, so it is turned away at once"
        );
        assert_eq!(ask(&app, large()).await.status(), 413);
        assert_eq!(limit.used().await, 1 + u64::from(!outside), "found out while it was read");
    }
}
