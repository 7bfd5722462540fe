//! Several programs on one Redis.

use std::sync::{Arc, Barrier};
use std::thread;

use crate::gateway::Gateway;
use crate::http::Client;
use crate::support::RedisServer;

const LIMIT: usize = 60;
const CLIENTS: usize = 200;
const ROUNDS: usize = 50;

#[test]
fn two_gateways_share_the_limit_exactly() {
    let redis = RedisServer::start();
    let start = || {
        Gateway::start(&[
            ("MCP_RATE_LIMIT_MAX", &LIMIT.to_string()),
            ("RATE_LIMIT_WINDOW_MS", "600000"),
            ("RATE_LIMIT_DEADLINE_MS", "5000"),
            ("REDIS_URL", &redis.url()),
            ("TRUSTED_PROXIES", "127.0.0.0/8"),
        ])
    };
    let gateways = [start(), start()];
    let together = Arc::new(Barrier::new(CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|i| {
            let mut client = Client::connect(gateways[i % 2].addr());
            let together = together.clone();
            thread::spawn(move || {
                let mut ask = |round: usize| {
                    together.wait();
                    let answer = client.request("GET", "/decision", &[("x-forwarded-for", &address(round))]);
                    let source = answer.json()["source"].as_str().unwrap().to_owned();
                    (answer.status, source)
                };
                (0..ROUNDS).map(&mut ask).collect::<Vec<_>>()
            })
        })
        .collect();
    let answers: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();

    for round in 0..ROUNDS {
        let of_round = || answers.iter().map(|answers| &answers[round]);
        let admitted = of_round().filter(|(status, _)| *status == 200).count();
        assert_eq!(admitted, LIMIT, "round {round}");
        assert!(of_round().all(|(status, _)| matches!(status, 200 | 429)), "round {round}");
        assert!(of_round().all(|(_, source)| matches!(&**source, "redis" | "deny_cache")), "round {round}");
        let key = format!("http:rl:{}", address(round));
        assert_eq!(redis.get(&key), Some(LIMIT.to_string()), "round {round}");
    }
}

#[test]
fn a_node_server_and_the_gateway_see_each_others_hits() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[
        ("MCP_RATE_LIMIT_MAX", "4"),
        ("RATE_LIMIT_WINDOW_MS", "60000"),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
        ("REDIS_URL", &redis.url()),
        ("TRUSTED_PROXIES", "127.0.0.0/8"),
    ]);
    let gateway_hits = |ip| {
        let answer = gateway.get_with("/decision", &[("x-forwarded-for", ip)]);
        let decision = answer.json();
        assert_eq!(decision["source"], "redis");
        (answer.status, decision["used"].as_i64().unwrap())
    };
    let node_hits = |ip| node_hits(&redis, &format!("http:rl:{ip}"), 60_000);

    let ip = "203.0.113.9";
    assert_eq!(node_hits(ip), 1);
    let ends = redis.pttl("http:rl:203.0.113.9");
    assert_eq!(gateway_hits(ip), (200, 2));
    assert_eq!(node_hits(ip), 3);
    assert_eq!(gateway_hits(ip), (200, 4));
    assert_eq!(gateway_hits(ip), (429, 4));
    assert_eq!(node_hits(ip), 5, "a refused request has not counted");
    let left = redis.pttl("http:rl:203.0.113.9");
    assert!(left > 0 && left <= ends, "the window of the first hit: {ends}, then {left}");

    // And with the gateway first.
    let ip = "203.0.113.10";
    assert_eq!(gateway_hits(ip), (200, 1));
    for hits in 2..=5 {
        assert_eq!(node_hits(ip), hits);
    }
    assert_eq!(gateway_hits(ip), (429, 5));
    assert!(redis.pttl("http:rl:203.0.113.10") > 0);
}

/// What the Node.js server runs: `INCR`, and `PEXPIRE` after the first.
fn node_hits(redis: &RedisServer, key: &str, window_ms: u64) -> i64 {
    let hits = redis.command(&["INCR", key]).int();
    if hits == 1 {
        redis.command(&["PEXPIRE", key, &window_ms.to_string()]);
    }
    hits
}

/// A client that no other round has.
fn address(round: usize) -> String {
    format!("198.51.100.{round}")
}
