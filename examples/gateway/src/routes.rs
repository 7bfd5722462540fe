//! What is served: nothing here knows that it is limited, but for the two
//! paths that speak about it.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Json, Router};
use grpc::{Greeter, GreeterServer};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};
use tower_ratelimit::identity::{ClientIp, Hop, RequestHead};
use tower_ratelimit::response::EXPOSED_HEADERS;
use tower_ratelimit::{Decision, PolicyHandle, RateLimiter};

use crate::limits::Limits;
use crate::metrics;

pub(crate) const DECISION: &str = "/decision";
const GREETER: &str = "/hello.Greeter/{*method}";
pub(crate) const HEALTHZ: &str = "/healthz";
pub(crate) const METRICS: &str = "/metrics";

#[derive(Clone)]
struct Shared {
    limiter: RateLimiter,
    policy: PolicyHandle,
    clients: ClientIp,
    exporter: PrometheusHandle,
}

pub(crate) fn app(limits: Limits, exporter: PrometheusHandle, cors_origins: Option<AllowOrigin>) -> Router {
    let Limits { layer, policy, clients } = limits;
    let shared = Shared { limiter: layer.limiter().clone(), policy, clients, exporter };
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route(DECISION, get(decision))
        .route("/whoami", get(whoami))
        .route(HEALTHZ, get(|| async { "ok\n" }))
        .route(METRICS, get(render_metrics))
        .with_state(shared)
        .route_service(GREETER, GreeterServer::new(Greeter))
        .layer(layer);
    match cors_origins {
        // Outside the limiter, for a browser hides from its script a 429
        // without CORS headers.
        Some(origins) => app.layer(
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods([Method::GET, Method::HEAD])
                .allow_headers(Any)
                .expose_headers(EXPOSED_HEADERS),
        ),
        None => app,
    }
}

/// The decision on this request. Refusals do not come here: see `limits.rs`.
async fn decision(Extension(decision): Extension<Decision>) -> Json<Value> {
    Json(decision_json(&decision))
}

pub(crate) fn decision_json(decision: &Decision) -> Value {
    json!({
        "policy": decision.policy(),
        "allowed": decision.is_allowed(),
        "limit": decision.limit(),
        "used": decision.used(),
        "remaining": decision.remaining(),
        "reset_ms": millis(decision.reset_after()),
        "retry_after_ms": decision.retry_after().map(millis),
        "source": decision.source().as_str(),
    })
}

/// No window is longer than 366 days.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Why this request counts as whose: the first thing to ask when clients share
/// a bucket.
async fn whoami(State(shared): State<Shared>, request: Request) -> Json<Value> {
    let why = shared.clients.explain(&RequestHead::new(&request));
    let hop = |hop: &Hop| json!({"text": hop.text(), "verdict": hop.verdict().to_string()});
    Json(json!({
        "peer": why.peer(),
        "header": why.header(),
        "lines": why.lines(),
        "hops": why.hops().iter().map(hop).collect::<Vec<_>>(),
        "client": why.client(),
        "identity": why.identity(),
        "key": shared.policy.store_key(why.key()),
        "notes": why.notes().advice().collect::<Vec<_>>(),
    }))
}

async fn render_metrics(State(shared): State<Shared>) -> impl IntoResponse {
    metrics::refresh(&shared.limiter);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], shared.exporter.render())
}
