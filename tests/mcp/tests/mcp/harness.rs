//! A server that says what has reached it, and an rmcp server on a socket.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt};
use tower_ratelimit::identity::RequestHead;
use tower_ratelimit::mcp::{McpLayer, McpLayerBuilder, Message};
use tower_ratelimit::test_util::ManualClock;
use tower_ratelimit::{Policy, Rate, RateLimiter};

pub(crate) const START: u64 = 1_767_799_823;
pub(crate) const BOTH: &str = "application/json, text/event-stream";

/// Whom the header `x-client` says, as an authentication layer would.
pub(crate) fn client(head: &RequestHead<'_>) -> Option<String> {
    Some(head.headers().get("x-client")?.to_str().ok()?.to_owned())
}

/// 10 calls of `execute_code`, 5 of everything else, a minute each.
pub(crate) fn limits(limiter: RateLimiter) -> McpLayerBuilder {
    McpLayer::builder(limiter, client)
        .transport(Policy::fixed_window("http", Rate::per_minute(5)))
        .tool("execute_code", Policy::fixed_window("codemode", Rate::per_minute(10)))
}

/// A limiter whose clock stands at [`START`].
pub(crate) fn clocked() -> (RateLimiter, ManualClock) {
    let clock = ManualClock::at(UNIX_EPOCH + Duration::from_secs(START));
    (RateLimiter::builder().clock(clock.clone()).build().unwrap(), clock)
}

/// A layer around a server that answers with the body that it was sent.
#[derive(Clone)]
pub(crate) struct Server {
    app: Router,
    reached: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) fn behind(layer: McpLayerBuilder) -> Self {
        Self::answering(StatusCode::OK, layer)
    }

    pub(crate) fn answering(status: StatusCode, layer: McpLayerBuilder) -> Self {
        let reached = Arc::new(AtomicUsize::new(0));
        let handler = move |State(reached): State<Arc<AtomicUsize>>, request: Request<Body>| async move {
            reached.fetch_add(1, Ordering::SeqCst);
            assert!(request.extensions().get::<Message>().is_some());
            (status, to_bytes(request.into_body(), usize::MAX).await.unwrap())
        };
        let app = Router::new().route("/mcp", any(handler)).with_state(reached.clone());
        Self { app: app.layer(layer.build().unwrap()), reached }
    }

    /// How many requests have reached the server.
    pub(crate) fn reached(&self) -> usize {
        self.reached.load(Ordering::SeqCst)
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let (head, body) = self.app.clone().oneshot(request).await.unwrap().into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn post(&self, body: impl ToString) -> Answer {
        self.send(post(&[]).body(Body::from(body.to_string())).unwrap()).await
    }
}

/// A POST of ann's.
pub(crate) fn post(headers: &[(&str, &str)]) -> http::request::Builder {
    let peer = SocketAddr::from(([203, 0, 113, 9], 51_512));
    let request = Request::post("/mcp").extension(peer).header("x-client", "ann").header("accept", BOTH);
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}

pub(crate) fn get() -> Request<Body> {
    let peer = SocketAddr::from(([203, 0, 113, 9], 51_512));
    Request::get("/mcp").extension(peer).header("accept", "text/event-stream").body(Body::empty()).unwrap()
}

pub(crate) fn call(id: impl Into<Value>, tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": {"name": tool, "arguments": {}}})
}

pub(crate) fn calls(count: usize, tool: &str) -> Value {
    (1..=count).map(|id| call(id, tool)).collect()
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The only line of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.get_all(name).iter();
        let line = lines.next().map(|line| line.to_str().unwrap());
        assert_eq!(lines.next(), None, "{name} stands twice");
        line
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.header(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name}: {value}")))
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The text of a tool's error, as a model reads it.
pub(crate) fn told(result: &Value) -> (&Value, &str) {
    assert_eq!(result["jsonrpc"], "2.0");
    assert_eq!(result["result"]["isError"], true, "{result}");
    assert_eq!(result["result"]["content"].as_array().unwrap().len(), 1);
    assert_eq!(result["result"]["content"][0]["type"], "text");
    (&result["id"], result["result"]["content"][0]["text"].as_str().unwrap())
}

/// The rmcp server of the example behind a layer, on a socket.
pub(crate) async fn serve(layer: McpLayerBuilder) -> SocketAddr {
    let app = Router::new().route_service("/mcp", layer.build().unwrap().layer(mcp_server::http_service()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, service).await });
    addr
}
