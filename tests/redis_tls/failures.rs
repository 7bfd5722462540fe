//! What is wrong with the other end is told by its class, once, and costs no
//! request more than the deadline.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tower_ratelimit::{RateLimiter, RateLimiterBuilder, Source};

use crate::certificates::Ca;
use crate::setup::{Redis, fixed, hit, ms};
use crate::support::{Logs, RedisServer};

const DEADLINE: Duration = Duration::from_millis(100);

/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(300);

/// All is decided here, soon, and told in one line with this reason.
async fn assert_told(builder: RateLimiterBuilder, reason: &str) {
    let (logs, _guard) = Logs::capture();
    let limiter = builder.deadline(DEADLINE).build().unwrap();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    for i in 0..10 {
        let started = Instant::now();
        let decision = hit(&limiter, &http, "ann").await;
        let took = started.elapsed();
        assert_eq!((decision.is_allowed(), decision.source()), (i < 3, Source::Local), "{reason}");
        assert!(took < DEADLINE + SLACK, "check {i} took {took:?}");
    }
    // An attempt to connect may take a second.
    tokio::time::sleep(ms(2500)).await;
    assert!(!limiter.is_connected());
    let lines = logs.matching("rate limit store");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let level = if reason == "tls" { "ERROR " } else { "WARN " };
    assert!(lines[0].starts_with(level) && lines[0].contains(&format!("reason={reason:?}")), "{lines:?}");
    assert!(!logs.contains("s3cr3t"), "{:?}", logs.lines());
}

fn at(address: impl std::fmt::Display) -> RateLimiterBuilder {
    RateLimiter::builder().redis(format!("rediss://u:s3cr3t@{address}"))
}

#[tokio::test]
async fn a_ca_of_somebody_else() {
    let redis = Redis::start();
    assert_told(at(redis.address()).redis_ca(Ca::new().certificate()), "tls").await;
}

#[tokio::test]
async fn a_private_ca_that_nobody_was_told_of() {
    let redis = Redis::start();
    assert_told(at(redis.address()), "tls").await;
}

#[tokio::test]
async fn a_certificate_for_another_host() {
    let redis = Redis::start_with("DNS:redis.internal,IP:127.0.0.2", &[]);
    assert_told(at(redis.address()).redis_ca(redis.ca.certificate()), "tls").await;
}

#[tokio::test]
async fn a_server_that_wants_a_client_certificate() {
    let redis = Redis::start_with("IP:127.0.0.1", &["--tls-auth-clients", "yes"]);
    assert_told(at(redis.address()).redis_ca(redis.ca.certificate()), "tls").await;
}

/// It takes the start of the handshake for half a command and waits for more.
#[tokio::test]
async fn tls_to_a_plain_port() {
    let server = RedisServer::start();
    assert_told(at(server.addr()).redis_ca(Ca::new().certificate()), "timeout").await;
}

#[tokio::test]
async fn a_plain_connection_to_a_tls_port() {
    let redis = Redis::start();
    let url = format!("redis://u:s3cr3t@{}", redis.address());
    assert_told(RateLimiter::builder().redis(url), "io").await;
}

/// Listens, and does this with each connection.
async fn listener<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(tokio::net::TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    addr
}

#[tokio::test]
async fn a_listener_that_says_nothing() {
    let addr = listener(async |mut stream| {
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    assert_told(at(addr), "timeout").await;
}

#[tokio::test]
async fn a_listener_that_hangs_up() {
    let addr = listener(async |mut stream| {
        let _ = stream.read(&mut [0; 1024]).await;
    })
    .await;
    assert_told(at(addr), "io").await;
}

#[tokio::test]
async fn a_listener_that_speaks_something_else() {
    let addr = listener(async |mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    assert_told(at(addr), "tls").await;
}
