//! One gateway, one client: what is admitted, and what is said about it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::gateway::Gateway;
use crate::http::Answer;
use crate::support::RedisServer;

const WINDOW: u64 = 60;

#[test]
fn three_are_admitted_and_the_fourth_is_told_when_to_come_back() {
    let gateway = Gateway::start(&[("MCP_RATE_LIMIT_MAX", "3")]);
    assert_eq!(gateway.first_line(), format!("listening on http://{}\n", gateway.addr()));
    four_requests(&gateway);
}

#[test]
fn through_redis_it_is_the_same_and_the_count_is_a_plain_number() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[("MCP_RATE_LIMIT_MAX", "3"), ("REDIS_URL", &redis.url())]);
    four_requests(&gateway);
    assert_eq!(redis.keys_matching("http:*"), ["http:rl:127.0.0.1"]);
    assert_eq!(redis.get("http:rl:127.0.0.1").as_deref(), Some("3"));
    let left = redis.pttl("http:rl:127.0.0.1");
    assert!(left > 0 && left <= 60_000, "{left}");
}

#[test]
fn redis_is_found_by_host_port_password_and_database_too() {
    let redis = RedisServer::start_with(&["--requirepass", "s3cret p@ss"]);
    let gateway = Gateway::start(&[
        ("REDIS_HOST", "127.0.0.1"),
        ("REDIS_PORT", &redis.port().to_string()),
        ("REDIS_PASSWORD", "s3cret p@ss"),
        ("REDIS_DB", "2"),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
    ]);
    assert_eq!(gateway.get("/decision").json()["source"], "redis");
    redis.command(&["SELECT", "2"]);
    assert_eq!(redis.get("http:rl:127.0.0.1").as_deref(), Some("1"));
    assert_eq!(gateway.logged("s3cret"), 0);
}

#[test]
fn the_decision_is_shown_with_the_refusal_too() {
    let redis = RedisServer::start();
    let url = redis.url();
    let in_memory: &[_] = &[("MCP_RATE_LIMIT_MAX", "1")];
    let in_redis: &[_] =
        &[("MCP_RATE_LIMIT_MAX", "1"), ("REDIS_URL", &*url), ("RATE_LIMIT_DEADLINE_MS", "5000")];
    for (variables, sources) in
        [(in_memory, ["local", "local", "local"]), (in_redis, ["redis", "redis", "deny_cache"])]
    {
        let gateway = Gateway::start(variables);
        let allowed = gateway.get("/decision");
        assert_eq!((allowed.status, allowed.header("content-type")), (200, Some("application/json")));
        let decision = allowed.json();
        assert_eq!(decision["allowed"], true);
        assert_eq!(decision["retry_after_ms"], Value::Null);
        assert_numbers(&decision, sources[0]);

        for source in &sources[1..] {
            let refused = gateway.get("/decision");
            assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/json")));
            let decision = refused.json();
            assert_eq!(decision["allowed"], false);
            assert_eq!(decision["retry_after_ms"], decision["reset_ms"]);
            assert_numbers(&decision, source);
            let wait = decision["retry_after_ms"].as_u64().unwrap();
            assert_eq!(refused.number("retry-after"), wait.div_ceil(1000));
            assert_reset_in(&refused, wait.div_ceil(1000));
        }
    }
}

#[test]
fn all_paths_but_the_operators_own_count_together() {
    let gateway = Gateway::start(&[("MCP_RATE_LIMIT_MAX", "6")]);
    let mut client = gateway.connect();
    let mut remaining = |method, path| {
        let answer = client.request(method, path, &[]);
        (answer.status, answer.number("x-ratelimit-remaining"))
    };
    assert_eq!(remaining("GET", "/"), (200, 5));
    assert_eq!(remaining("GET", "/decision?x=/healthz"), (200, 4));
    assert_eq!(remaining("GET", "/whoami"), (200, 3));
    assert_eq!(remaining("GET", "/no/such/page"), (404, 2));
    assert_eq!(remaining("HEAD", "/decision"), (200, 1));
    assert_eq!(remaining("OPTIONS", "/"), (405, 0));
    assert_eq!(remaining("GET", "/whoami"), (429, 0));
    assert_eq!(remaining("HEAD", "/"), (429, 0));
    assert_eq!(remaining("OPTIONS", "/decision"), (429, 0));
    assert_eq!(remaining("GET", "/no/such/page"), (429, 0));
}

#[test]
fn a_limit_of_0_refuses_everything_but_the_operators_own() {
    let gateway = Gateway::start(&[("MCP_RATE_LIMIT_MAX", "0")]);
    assert_eq!(gateway.get("/").status, 429);
    assert_eq!(gateway.get("/healthz").status, 200);
}

fn four_requests(gateway: &Gateway) {
    for remaining in [2, 1, 0] {
        let answer = gateway.get("/");
        assert_eq!((answer.status, &*answer.body), (200, "hello\n"));
        assert_eq!(answer.number("x-ratelimit-limit"), 3);
        assert_eq!(answer.number("x-ratelimit-remaining"), remaining);
        assert_eq!(answer.header("retry-after"), None);
        assert_reset_in(&answer, WINDOW);
    }
    let refused = gateway.get("/");
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/json")));
    assert_eq!(refused.number("x-ratelimit-limit"), 3);
    assert_eq!(refused.number("x-ratelimit-remaining"), 0);
    let wait = refused.number("retry-after");
    assert!((WINDOW - 10..=WINDOW).contains(&wait), "{wait}");
    assert_reset_in(&refused, wait);

    let body = refused.json();
    assert_eq!(body["success"], false);
    assert_eq!(body["message"], "Too many requests. Please try again later.");
    assert_eq!(body["retryAfter"], wait);
    let timestamp = body["timestamp"].as_str().unwrap();
    assert!(timestamp.len() == 20 && timestamp.ends_with('Z'), "{timestamp}");
    assert_eq!(body.as_object().unwrap().len(), 4);
}

/// Within a second of it, and ten for a machine that is busy.
fn assert_reset_in(answer: &Answer, seconds: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let left = answer.number("x-ratelimit-reset") - now;
    let slack = if answer.status == 429 { 1 } else { 10 };
    assert!(left.abs_diff(seconds) <= slack, "reset in {left} s, not {seconds} s");
}

/// Of a limit of 1, used up.
fn assert_numbers(decision: &Value, source: &str) {
    assert_eq!(decision["policy"], "http");
    assert_eq!(decision["limit"], 1);
    assert_eq!(decision["used"], 1);
    assert_eq!(decision["remaining"], 0);
    assert_eq!(decision["source"], source);
    let reset = decision["reset_ms"].as_u64().unwrap();
    assert!((WINDOW - 10) * 1000 < reset && reset <= WINDOW * 1000, "{reset}");
    assert_eq!(decision.as_object().unwrap().len(), 8);
}
