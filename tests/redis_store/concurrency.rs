//! Many at once, through several limiters and through a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_ratelimit::{RateLimitLayer, RateLimiter};

use crate::setup::{Dice, Redis, builder, connect, fixed, hit, is_of_redis, ms, who};
use crate::support::free_port;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_con_1_parallel_requests_pass_the_limit() {
    let redis = Redis::start();
    let replicas = [(); 3].map(|()| {
        let limiter = redis.limiter();
        let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
        (limiter, http)
    });
    for round in 0..50 {
        let name = format!("client-{round}");
        let start = Arc::new(Barrier::new(200));
        let mut requests = JoinSet::new();
        for i in 0..200 {
            let ((limiter, http), name, start) = (replicas[i % 3].clone(), name.clone(), start.clone());
            requests.spawn(async move {
                start.wait().await;
                hit(&limiter, &http, &name).await
            });
        }
        let decisions = requests.join_all().await;
        let odd = decisions.iter().find(|decision| !is_of_redis(decision));
        assert!(odd.is_none(), "{odd:?}");
        let mut left: Vec<_> = decisions
            .iter()
            .filter(|decision| decision.is_allowed())
            .map(tower_ratelimit::Decision::remaining)
            .collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2, 3, 4], "round {round}");
        assert_eq!(redis.server.get(&replicas[0].1.store_key(&who(&name))).as_deref(), Some("5"));
    }
}

/// A server with two limited routes, which share their layer.
async fn serve(limiter: RateLimiter) -> SocketAddr {
    let layer = RateLimitLayer::builder(limiter).policy(fixed("http", 5, 60_000)).build().unwrap();
    let app = Router::new()
        .route("/a", get(|| async { "a" }))
        .route("/b", get(|| async { "b" }))
        .layer(layer)
        .into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    addr
}

/// The whole answer to one request on a connection of its own.
async fn ask(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_con_2_state_lives_in_the_cloned_service() {
    let redis = Redis::start();
    let down = builder(format!("redis://127.0.0.1:{}", free_port())).build().unwrap();
    for limiter in [redis.limiter(), down, RateLimiter::memory()] {
        let addr = serve(limiter).await;
        let mut clients = JoinSet::new();
        for i in 0..50 {
            clients.spawn(async move { ask(addr, if i % 2 == 0 { "/a" } else { "/b" }).await });
        }
        let answers = clients.join_all().await;
        let of = |status: &str| answers.iter().filter(|answer| answer.starts_with(status)).count();
        assert_eq!((of("HTTP/1.1 200"), of("HTTP/1.1 429")), (5, 45));
    }
    assert_eq!(redis.server.get(&format!("{}:http:rl:127.0.0.1", redis.namespace)).as_deref(), Some("5"));
}

#[tokio::test]
async fn o_con_3_two_first_hits_at_once() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    connect(&limiter).await;
    let mut requests = JoinSet::new();
    let mut dice = Dice::new(3);
    for key in 0..100 {
        for _ in 0..20 {
            let (limiter, http) = (limiter.clone(), http.clone());
            let patience = Duration::from_micros(dice.roll(2000));
            requests.spawn(async move {
                let name = format!("client-{key}");
                timeout(patience, hit(&limiter, &http, &name)).await.is_ok()
            });
        }
    }
    let outcomes = requests.join_all().await;
    let answered = outcomes.iter().filter(|&&answered| answered).count();
    assert!(answered < outcomes.len(), "none was aborted");
    // Everything that was sent before this has been carried out.
    assert!(hit(&limiter, &http, "the last one").await.is_allowed());
    let mut counted = 0;
    for key in redis.keys() {
        let ttl = redis.server.pttl(&key);
        assert!(ttl > 0, "{key} has a TTL of {ttl}");
        if key.contains("client-") {
            let count: usize = redis.server.get(&key).unwrap().parse().unwrap();
            assert!(count <= 20, "{key}: {count}");
            counted += count;
        }
    }
    assert!((answered..=outcomes.len()).contains(&counted), "{answered} answered, {counted} counted");
    assert!(ms(0) < limiter.peek(&http, &who("the last one")).await.reset_after());
}
