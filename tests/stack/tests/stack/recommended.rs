//! The stack that the crate's page recommends, whole.

use std::time::Duration;

use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::routing::{get as route, post};
use axum::{BoxError, Router};
use http::StatusCode;
use http::header::{ACCEPT_ENCODING, ORIGIN};
use tower::ServiceBuilder;
use tower_http::ServiceBuilderExt as _;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::MakeRequestUuid;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;
use tower_ratelimit::response::EXPOSED_HEADERS;

use crate::setup::{Limit, ask, remaining, request};

fn app(limit: &Limit) -> Router {
    let overloaded = |_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE };
    let stack = ServiceBuilder::new()
        .set_x_request_id(MakeRequestUuid)
        .layer(TraceLayer::new_for_http())
        .propagate_x_request_id()
        .layer(CorsLayer::permissive().expose_headers(EXPOSED_HEADERS))
        .layer(CompressionLayer::new())
        .layer(HandleErrorLayer::new(overloaded))
        .load_shed()
        .concurrency_limit(100)
        .layer(limit.layer.clone())
        .layer(CatchPanicLayer::new())
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(10)))
        .layer(RequestBodyLimitLayer::new(1024));
    Router::new()
        .route("/", route(|| async { "hello" }))
        .route(
            "/panic",
            route(|| async {
                if true {
                    panic!("broken")
                }
            }),
        )
        .route("/slow", route(|| tokio::time::sleep(Duration::from_secs(60))))
        .route("/echo", post(|body: String| async { body }))
        .layer(stack)
}

#[tokio::test(start_paused = true)]
async fn the_recommended_stack_tells_every_client_what_is_left() {
    let limit = Limit::per_minute(4);
    let app = app(&limit);
    let from_browser = |method: &str, path: &str| {
        request()
            .method(method)
            .uri(path)
            .header(ORIGIN, "https://app.example")
            .header(ACCEPT_ENCODING, "gzip")
    };
    let preflight = from_browser("OPTIONS", "/").header("access-control-request-method", "GET");
    let preflight = ask(&app, preflight.body(Body::empty()).unwrap()).await;
    assert_eq!((preflight.status(), remaining(&preflight)), (StatusCode::OK, None));
    assert_eq!(limit.used().await, 0);

    let large = "x".repeat(2048);
    for (method, path, body, status, left) in [
        ("GET", "/", "", 200, 3),
        ("GET", "/panic", "", 500, 2),
        ("GET", "/slow", "", 504, 1),
        ("POST", "/echo", large.as_str(), 413, 0),
        ("GET", "/", "", 429, 0),
    ] {
        let answer = ask(&app, from_browser(method, path).body(Body::from(body.to_owned())).unwrap()).await;
        assert_eq!((answer.status().as_u16(), remaining(&answer)), (status, Some(left)), "{method} {path}");
        let headers = answer.headers();
        assert_eq!(headers["access-control-allow-origin"], "*", "{method} {path}");
        let exposed = headers["access-control-expose-headers"].to_str().unwrap();
        assert!(
            headers
                .keys()
                .filter(|name| name.as_str().contains("ratelimit"))
                .all(|name| exposed.contains(name.as_str()))
        );
        assert!(headers.contains_key("x-request-id"), "{method} {path}");
        assert_eq!(headers.contains_key("retry-after"), status == 429);
    }
}
