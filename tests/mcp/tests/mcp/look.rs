//! What a look lets through, byte for byte, and what it turns away.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::mcp::{LookLayer, Message, RequestBody};
use tower_ratelimit::{Policy, Rate, RateLimiter};

use crate::harness::{Server, call, get, limits, post};

const NEW: (&str, &str) = ("mcp-protocol-version", "2026-07-28");

/// What of 10 calls of the tool is left, and of 5 of everything else.
async fn left(server: &Server) -> (u64, u64) {
    let left = async |tool| {
        let answer = server.post(call(0, tool)).await;
        answer.number("x-ratelimit-remaining").unwrap() + 1
    };
    (left("execute_code").await, left("echo").await)
}

async fn send(server: &Server, headers: &[(&str, &str)], body: impl Into<Body>) -> (StatusCode, Bytes) {
    let answer = server.send(post(headers).body(body.into()).unwrap()).await;
    (answer.status, answer.body)
}

#[tokio::test]
async fn the_new_protocol_is_taken_at_its_headers_word() {
    let server = Server::behind(limits(RateLimiter::memory()));
    let name = format!("=?base64?{}?=", base64::engine::general_purpose::STANDARD.encode("execute_code"));
    for name in ["execute_code", &name] {
        let headers = [NEW, ("mcp-method", "tools/call"), ("mcp-name", name)];
        let body = call(7, "execute_code").to_string();
        assert_eq!(send(&server, &headers, body.clone()).await, (StatusCode::OK, body.into()));
    }
    // Of all else the body is not looked at: it need not even be JSON.
    let headers = [NEW, ("mcp-method", "tools/list")];
    assert_eq!(send(&server, &headers, "not JSON").await, (StatusCode::OK, "not JSON".into()));
    assert_eq!(left(&server).await, (8, 4));
}

#[tokio::test]
async fn headers_that_differ_from_the_body_reach_nobody() {
    let server = Server::behind(limits(RateLimiter::memory()));
    let headers = [NEW, ("mcp-method", "tools/call"), ("mcp-name", "echo")];
    for body in [call(7, "execute_code"), json!([call(7, "echo")]), json!({"id": 7, "method": "ping"})] {
        let (status, answer) = send(&server, &headers, body.to_string()).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(-32_020)));
        assert_eq!(answer["id"], 7);
    }
    // Who claims something else relies on the server to compare; or not.
    let headers = [NEW, ("mcp-method", "ping")];
    assert_eq!(send(&server, &headers, call(7, "execute_code").to_string()).await.0, StatusCode::OK);
    assert_eq!((server.reached(), left(&server).await), (1, (10, 4)));
    let server = Server::behind(limits(RateLimiter::memory()).look(LookLayer::new().read_every_body()));
    assert_eq!(send(&server, &headers, call(7, "execute_code").to_string()).await.0, StatusCode::BAD_REQUEST);
    assert_eq!((server.reached(), left(&server).await), (0, (10, 5)));
}

#[tokio::test]
async fn headers_of_an_older_protocol_or_in_doubt_are_not_believed() {
    let (old, call_header) = (("mcp-protocol-version", "2025-11-25"), ("mcp-method", "tools/call"));
    for headers in [
        &[old, call_header, ("mcp-name", "echo")][..],
        &[call_header, ("mcp-name", "echo")],
        &[NEW, call_header, ("mcp-name", "echo"), ("mcp-name", "execute_code")],
        &[NEW, ("mcp-method", "ping"), call_header, ("mcp-name", "echo")],
        &[NEW, ("mcp-protocol-version", "2025-11-25"), ("mcp-method", "ping")],
        &[NEW, call_header, ("mcp-name", "=?base64?%%?=")],
        &[("mcp-protocol-version", "draft"), ("mcp-method", "ping")],
        &[NEW],
    ] {
        let server = Server::behind(limits(RateLimiter::memory()));
        assert_eq!(send(&server, headers, call(7, "execute_code").to_string()).await.0, StatusCode::OK);
        assert_eq!(left(&server).await, (9, 5), "{headers:?}");
    }
}

#[tokio::test]
async fn what_is_not_understood_reaches_nobody_and_costs_nothing() {
    let server = Server::behind(limits(RateLimiter::memory()));
    for (body, code) in [
        ("", -32_700),
        ("{", -32_700),
        (r#"{"method":"ping"} x"#, -32_700),
        ("7", -32_600),
        ("[]", -32_600),
        (r#"{"method":"tools/call","params":{"name":"echo","name":"execute_code"}}"#, -32_600),
        (r#"{"method":"ping","method":"tools/call","params":{"name":"execute_code"}}"#, -32_600),
    ] {
        let (status, answer) = send(&server, &[], body).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(code)), "{body}");
        assert_eq!(answer["id"], Value::Null);
    }
    let encoded = send(&server, &[("content-encoding", "gzip")], "x").await.0;
    assert_eq!(encoded, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let body = call(1, "execute_code").to_string();
    assert_eq!(send(&server, &[("content-encoding", "identity")], body).await.0, StatusCode::OK);
    assert_eq!((server.reached(), left(&server).await), (1, (9, 5)));
}

#[tokio::test]
async fn a_body_is_read_up_to_a_bound() {
    let small = LookLayer::new().max_body(200).max_messages(2);
    let server = Server::behind(limits(RateLimiter::memory()).look(small));
    let of = |length: usize| {
        let rest = r#"{"id":1,"method":"ping","x":""}"#.len();
        format!(r#"{{"id":1,"method":"ping","x":"{}"}}"#, "x".repeat(length - rest))
    };
    assert_eq!(send(&server, &[], of(200)).await.0, StatusCode::OK);
    assert_eq!(send(&server, &[], of(201)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    // The same without a length told beforehand, in pieces.
    for (length, status) in [(200, StatusCode::OK), (201, StatusCode::PAYLOAD_TOO_LARGE)] {
        let pieces = of(length).into_bytes();
        let frames = pieces.chunks(7).map(|piece| Frame::data(Bytes::copy_from_slice(piece)));
        assert_eq!(send(&server, &[], Body::new(Frames(frames.collect()))).await.0, status);
    }
    assert_eq!(send(&server, &[], r#"[{"method":"a"},{"method":"b"}]"#).await.0, StatusCode::OK);
    assert_eq!(send(&server, &[], r#"[{},{},{}]"#).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    // What is not read has no bound here.
    let headers = [NEW, ("mcp-method", "tools/list")];
    assert_eq!(send(&server, &headers, of(5000)).await.0, StatusCode::OK);
}

/// A body whose size is not known beforehand.
struct Frames(VecDeque<Frame<Bytes>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// A service that gives back what it got: the bytes, and the trailers.
async fn through(
    body: impl http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
) -> (Bytes, Option<HeaderMap>) {
    let inner = tower::service_fn(|request: Request<RequestBody<_>>| async {
        let (head, body) = request.into_parts();
        let message: &Message = head.extensions.get().unwrap();
        assert_eq!(
            (message.method(), message.tool(), message.id()),
            (Some("tools/call"), Some("run"), Some("\"a\""))
        );
        Ok::<_, Infallible>(http::Response::new(body))
    });
    let request = Request::post("/").body(body).unwrap();
    let response = LookLayer::new().layer(inner).oneshot(request).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    let trailers = collected.trailers().cloned();
    (collected.to_bytes(), trailers)
}

#[tokio::test]
async fn the_server_gets_what_was_sent_byte_for_byte() {
    let text = " {\n\"id\" :\t\"a\", \"params\":{\"name\":\"r\\u0075n\"} ,\"method\":\"tools/call\"}\n";
    for size in [1, 5, text.len()] {
        let pieces: Vec<_> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), "1".parse().unwrap())]);
        let frames = pieces.into_iter().map(Frame::data).chain([Frame::trailers(trailers.clone())]);
        assert_eq!(
            through(Frames(frames.collect())).await,
            (Bytes::from_static(text.as_bytes()), Some(trailers)),
            "in pieces of {size}"
        );
    }
}

/// Whoever sends slowly, or stops, has used nothing and reached nobody.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_it_sends_has_used_nothing() {
    let server = Server::behind(limits(RateLimiter::memory()));
    let never = Body::new(Never);
    let sending = server.send(post(&[]).body(never).unwrap());
    assert!(tokio::time::timeout(std::time::Duration::from_secs(5), sending).await.is_err());
    assert_eq!((server.reached(), left(&server).await), (0, (10, 5)));

    let broken = server.send(post(&[]).body(Body::new(Broken)).unwrap()).await;
    assert_eq!((broken.status, &broken.json()["error"]["code"]), (StatusCode::BAD_REQUEST, &json!(-32_600)));
    assert_eq!(server.send(get()).await.status, StatusCode::OK);
}

struct Never;

impl http_body::Body for Never {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

struct Broken;

impl http_body::Body for Broken {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())))
    }
}

/// The limiter has no say in a request that is malformed, and no 5xx of its own.
#[tokio::test]
async fn no_request_is_answered_with_5xx() {
    let unlimited = Policy::fixed_window("http", Rate::per_minute(100_000));
    let server = Server::behind(limits(RateLimiter::memory()).transport(unlimited));
    let versions = ["2026-07-28", "2025-06-18", "x", ""];
    let names = ["execute_code", "echo", "=?base64?ZQ==?=", "=?base64?", "\u{e9}"];
    let bodies = [
        "",
        "{}",
        "[]",
        "[{}]",
        "null",
        r#"{"id":1e999,"method":"tools/call","params":{"name":"execute_code"}}"#,
    ];
    for version in versions {
        for name in names {
            for method in ["tools/call", "ping", "=?base64?cGluZw==?="] {
                for body in bodies {
                    let headers =
                        [("mcp-protocol-version", version), ("mcp-name", name), ("mcp-method", method)];
                    let (status, _) = send(&server, &headers, body).await;
                    assert!(!status.is_server_error(), "{headers:?} {body}: {status}");
                }
            }
        }
    }
}

/// Ready once it was polled; its clones are not.
struct Polled(bool);

impl Clone for Polled {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl<B> Service<Request<B>> for Polled {
    type Response = http::Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0 = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.0), "called without being ready");
        std::future::ready(Ok(http::Response::new(String::new())))
    }
}

#[tokio::test]
async fn the_service_that_was_polled_ready_is_the_one_that_is_called() {
    let mut look = LookLayer::new().layer(Polled(false));
    let read = |id: u32| Request::post("/").body(Body::from(format!(r#"{{"id":{id},"method":"ping"}}"#)));
    for request in [read(1), read(2), Request::get("/").body(Body::empty())] {
        let ready = ServiceExt::<Request<Body>>::ready(&mut look).await.unwrap();
        assert_eq!(ready.call(request.unwrap()).await.unwrap().status(), StatusCode::OK);
    }
}
