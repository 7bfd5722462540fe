//! How it ends.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::gateway::{Gateway, eventually};
use crate::support::RedisServer;

#[test]
fn sigterm_and_ctrl_c_end_it_at_once_when_nothing_is_under_way() {
    for signal in ["TERM", "INT"] {
        let mut gateway = Gateway::start(&[]);
        let mut kept_alive = gateway.connect();
        assert_eq!(kept_alive.request("GET", "/", &[]).status, 200);
        let asked = Instant::now();
        gateway.signal(signal);
        assert!(gateway.wait().success(), "{signal}");
        assert!(asked.elapsed() < Duration::from_secs(5), "{signal}");
    }
}

#[test]
fn sigterm_lets_a_request_under_way_finish() {
    let redis = RedisServer::start();
    let mut gateway = Gateway::start(&[("REDIS_URL", &redis.url()), ("RATE_LIMIT_DEADLINE_MS", "10000")]);
    let mut client = gateway.connect();
    assert_eq!(client.request("GET", "/decision", &[]).json()["source"], "redis");

    redis.stop_signal();
    client.send("GET", "/decision", &[]);
    // There is nothing to see of a request that waits.
    thread::sleep(Duration::from_millis(300));
    gateway.signal("TERM");
    eventually("no new connections", || TcpStream::connect(gateway.addr()).is_err());
    redis.cont();

    let answer = client.receive("GET");
    assert_eq!((answer.status, answer.json()["source"].as_str()), (200, Some("redis")));
    assert!(gateway.wait().success());
}

#[test]
fn the_end_of_a_healthy_gateway_is_no_loss() {
    let redis = RedisServer::start();
    let mut gateway = Gateway::start(&[("REDIS_URL", &redis.url()), ("RATE_LIMIT_DEADLINE_MS", "5000")]);
    assert_eq!(gateway.get("/decision").json()["source"], "redis");
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    // What it has said last is read by a thread.
    thread::sleep(Duration::from_millis(200));
    assert!(!gateway.logs().contains("WARN"), "{}", gateway.logs());
}
