//! What is served: nothing here knows that it is limited, but for the two
//! paths that speak about it.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use axum::{Extension, Json, Router};
use grpc::{Greeter, GreeterServer};
use mcp_server::CancellationToken;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tower::Layer;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};
use tower_ratelimit::identity::{ClientIp, Hop, Principal, RequestHead};
use tower_ratelimit::response::EXPOSED_HEADERS;
use tower_ratelimit::rules::LiveRules;
use tower_ratelimit::{Decision, RateLimiter};

use crate::limits::Limits;
use crate::{callers, metrics};

pub(crate) const DECISION: &str = "/decision";
pub(crate) const LOGIN: &str = "/auth/login";
const MCP: &str = "/mcp";
const GREETER: &str = "/hello.Greeter/{*method}";
pub(crate) const HEALTHZ: &str = "/healthz";
pub(crate) const METRICS: &str = "/metrics";

#[derive(Clone)]
struct Shared {
    limiter: RateLimiter,
    rules: LiveRules,
    clients: ClientIp,
    exporter: PrometheusHandle,
}

pub(crate) fn app(
    limits: Limits,
    exporter: PrometheusHandle,
    cors_origins: Option<AllowOrigin>,
    mcp_ended: CancellationToken,
) -> Router {
    let Limits { layer, mcp, rules, clients, tokens } = limits;
    let shared = Shared { limiter: layer.limiter().clone(), rules, clients, exporter };
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route(DECISION, get(decision))
        .route("/whoami", get(whoami))
        .route(HEALTHZ, get(|| async { "ok\n" }))
        .route(METRICS, get(render_metrics))
        .route(LOGIN, post(login))
        .route("/auth/register", post(register))
        .route("/auth/me", get(|| async { "nobody is signed in here\n" }))
        .route("/api/projects", any(api))
        .route("/api/exports", any(api))
        .with_state(shared)
        .route_service(GREETER, GreeterServer::new(Greeter))
        .merge(llm_tokens::routes(tokens))
        .layer(layer)
        // Behind that layer no more: it has its own.
        .route_service(MCP, mcp.layer(mcp_server::http_service_for_any_host(mcp_ended)))
        // Outside the limiter: its rules ask who calls.
        .layer(from_fn(callers::authenticate))
        .layer(from_fn(callers::read_account));
    match cors_origins {
        // Outside the limiter, for a browser hides from its script a 429
        // without CORS headers.
        Some(origins) => app.layer(
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods([
                    Method::GET,
                    Method::HEAD,
                    Method::POST,
                    Method::PUT,
                    Method::PATCH,
                    Method::DELETE,
                ])
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
        "key": shared.rules.policy("http").map(|http| http.store_key(why.key())),
        "notes": why.notes().advice().collect::<Vec<_>>(),
    }))
}

/// One password opens every account.
async fn login(body: Bytes) -> (StatusCode, Json<Value>) {
    let login: Value = serde_json::from_slice(&body).unwrap_or_default();
    match (login["user"].as_str(), login["password"].as_str()) {
        (Some(user), Some("correct")) => (StatusCode::OK, Json(json!({"success": true, "user": user}))),
        (Some(_), Some(_)) => {
            (StatusCode::UNAUTHORIZED, Json(json!({"success": false, "message": "wrong user or password"})))
        }
        _ => {
            let takes = r#"it takes {"user":"..","password":".."}"#;
            (StatusCode::BAD_REQUEST, Json(json!({"success": false, "message": takes})))
        }
    }
}

async fn register() -> (StatusCode, Json<Value>) {
    (StatusCode::CREATED, Json(json!({"success": true})))
}

/// Anything of the API: who asked for what.
async fn api(caller: Option<Extension<Principal>>, request: Request) -> Json<Value> {
    let caller = caller.map(|Extension(caller)| caller).unwrap_or_default();
    Json(json!({
        "method": request.method().as_str(),
        "path": request.uri().path(),
        "workspace": caller.workspace_id(),
        "user": caller.user_name(),
        "plan": caller.plan_name(),
    }))
}

async fn render_metrics(State(shared): State<Shared>) -> impl IntoResponse {
    metrics::refresh(&shared.limiter);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], shared.exporter.render())
}
