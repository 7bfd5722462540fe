//! Event streams: charged once, and nothing is held while they are open.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use http::Request;
use http_body_util::BodyExt as _;
use tokio::sync::broadcast;
use tokio_stream::StreamExt as _;
use tower::ServiceExt as _;
use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter, test_util};

use crate::setup::{Limit, number, peer_key, remaining, request};
use crate::support::RedisServer;

/// Events as they are sent, until the sender is gone.
fn events(sender: &broadcast::Sender<u64>) -> Router {
    let sender = sender.clone();
    let stream = async move || {
        let mut events = sender.subscribe();
        let (forward, received) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move { while events.recv().await.is_ok_and(|n| forward.send(n).is_ok()) {} });
        let received = futures_util::stream::unfold(received, |mut received| async {
            received.recv().await.map(|n| (n, received))
        });
        Sse::new(received.map(|n| Ok::<_, std::convert::Infallible>(Event::default().data(n.to_string()))))
    };
    Router::new().route("/events", get(stream)).route("/", get(|| async { "hello" }))
}

#[tokio::test]
async fn o_str_2_an_open_stream_is_charged_once_and_arrives_as_it_is_sent() {
    let (sender, _) = broadcast::channel(16);
    let limit = Limit::per_minute(2);
    let app = events(&sender).layer(limit.layer.clone());
    let stream = || {
        let request = request().uri("/events").header("accept", "text/event-stream");
        app.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    let mut open = stream().await.unwrap();
    assert_eq!((open.status().as_u16(), remaining(&open)), (200, Some(1)));
    for n in 0..5 {
        while sender.send(n).is_err() {
            tokio::task::yield_now().await;
        }
        let frame = open.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, format!("data: {n}\n\n"), "before the next one is sent");
    }
    assert_eq!(limit.used().await, 1);

    assert_eq!(stream().await.unwrap().status(), 200);
    let refused = stream().await.unwrap();
    assert_eq!(refused.status(), 429);
    assert!(number(&refused, "retry-after") >= Some(1));
}

#[tokio::test]
async fn o_str_2_open_streams_hold_no_connection_to_redis() {
    let redis = RedisServer::start();
    let limiter = RateLimiter::builder()
        .redis(redis.url())
        .namespace(test_util::namespace())
        .deadline(Duration::from_secs(5))
        .build()
        .unwrap();
    let policy = Policy::fixed_window("http", Rate::per_minute(100));
    let layer = RateLimitLayer::builder(limiter.clone()).policy(policy.clone()).build().unwrap();
    let (sender, _) = broadcast::channel::<u64>(16);
    let app = events(&sender).layer(layer);
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let ask = |path: &str| {
        let request = Request::get(path).extension(peer).body(Body::empty()).unwrap();
        app.clone().oneshot(request)
    };

    let mut open = Vec::new();
    for _ in 0..20 {
        let stream = ask("/events").await.unwrap();
        assert_eq!(stream.status(), 200);
        open.push(stream);
    }
    // The limiter's own, and the one that asks.
    let clients: u64 = redis.info("clients", "connected_clients").unwrap().parse().unwrap();
    assert!(clients <= 2, "{clients} connections for 20 streams");
    let started = Instant::now();
    let answer = ask("/").await.unwrap();
    assert_eq!((answer.status().as_u16(), remaining(&answer)), (200, Some(79)));
    assert!(started.elapsed() < Duration::from_millis(50), "{:?}", started.elapsed());
    let http = limiter.policy(policy).unwrap();
    assert_eq!(limiter.peek(&http, &peer_key(peer.ip())).await.used(), 21, "once each");
    drop(open);
}
