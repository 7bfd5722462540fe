//! Redis comes and goes; requests are answered all the same.

use crate::gateway::{Gateway, eventually};
use crate::support::{RedisCluster, RedisServer, free_port};

const LOST: &str = "rate limit store lost";
const CONNECTED: &str = "rate limit store connected";

#[test]
fn without_redis_from_the_start_it_limits_by_itself() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let gateway = Gateway::start(&[("MCP_RATE_LIMIT_MAX", "3"), ("REDIS_URL", &url)]);
    let mut client = gateway.connect();
    let statuses: Vec<_> = (0..5).map(|_| client.request("GET", "/", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    eventually("one line about it", || gateway.logged(LOST) == 1);
    assert_eq!(gateway.logged(CONNECTED), 0);
}

#[test]
fn each_change_of_state_is_one_line_and_no_answer_is_an_error() {
    let mut redis = RedisServer::start();
    let gateway = Gateway::start(&[
        ("MCP_RATE_LIMIT_MAX", "1000000"),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
        ("REDIS_URL", &redis.url()),
    ]);
    let mut client = gateway.connect();
    let mut source = || {
        let answer = client.request("GET", "/decision", &[]);
        assert_eq!(answer.status, 200);
        answer.json()["source"].as_str().unwrap().to_owned()
    };
    assert_eq!(source(), "redis");
    redis.kill();
    eventually("a local decision", || source() == "local");
    for _ in 0..20 {
        assert_eq!(source(), "local");
    }
    redis.restart();
    eventually("Redis decides again", || source() == "redis");
    eventually("two lines", || gateway.logged(CONNECTED) == 2);
    assert_eq!(gateway.logged(LOST), 1, "{}", gateway.logs());
}

#[test]
fn a_cluster_counts_and_a_second_kind_of_address_is_one_warning() {
    let cluster = RedisCluster::start();
    let nodes: Vec<_> = cluster.nodes.iter().map(|node| node.addr().to_string()).collect();
    let gateway = Gateway::start(&[
        ("MCP_RATE_LIMIT_MAX", "3"),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
        ("REDIS_CLUSTER_NODES", &nodes.join(",")),
        ("REDIS_URL", "redis://127.0.0.1:1"),
    ]);
    let mut client = gateway.connect();
    let statuses: Vec<_> = (0..5).map(|_| client.request("GET", "/", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(cluster.get("http:rl:127.0.0.1").as_deref(), Some("3"));
    eventually("one line for each master", || gateway.logged(CONNECTED) == 3);
    assert_eq!(gateway.logged("REDIS_CLUSTER_NODES is used, REDIS_URL ignored"), 1);
    assert_eq!(gateway.logged("WARN"), 1, "{}", gateway.logs());
}
