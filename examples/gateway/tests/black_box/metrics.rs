//! What operators read, and how often they may.

use std::time::Duration;

use crate::gateway::{Gateway, eventually};
use crate::support::RedisServer;

#[test]
fn o_misc_1_probes_are_free_and_touch_no_store() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[
        ("MCP_RATE_LIMIT_MAX", "3"),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
        ("REDIS_URL", &redis.url()),
    ]);
    let mut client = gateway.connect();
    let mut statuses =
        |path, times| -> Vec<u16> { (0..times).map(|_| client.request("GET", path, &[]).status).collect() };
    assert_eq!(statuses("/", 2), [200, 200]);

    let before = commands(&redis);
    assert_eq!(statuses("/healthz", 100), [200; 100]);
    assert_eq!(statuses("/healthz?from=kubelet", 10), [200; 10]);
    assert_eq!(statuses("/metrics", 100), [200; 100]);
    assert_eq!(commands(&redis), before);

    assert_eq!(statuses("/", 2), [200, 429], "probes have cost nothing, others are limited");
    assert_eq!(statuses("/healthz", 1), [200]);
    assert_eq!(gateway.get("/healthz").header("x-ratelimit-limit"), None);
}

#[test]
fn the_documented_metrics_are_there_and_hold_no_address() {
    let mut redis = RedisServer::start();
    let gateway = Gateway::start(&[
        ("MCP_RATE_LIMIT_MAX", "1"),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
        ("REDIS_URL", &redis.url()),
        ("TRUSTED_PROXIES", "127.0.0.0/8"),
        ("RUST_LOG", "debug"),
    ]);
    let ask = |client| gateway.get_with("/", &[("x-forwarded-for", client)]).status;
    let statuses: Vec<_> = (0..3).map(|_| ask("203.0.113.9")).collect();
    assert_eq!(statuses, [200, 429, 429]);
    ask("198.51.100.1, unknown");
    redis.kill();
    eventually("a fallback", || {
        ask("203.0.113.10");
        gateway.get("/metrics").body.contains("ratelimit_fallbacks_total{")
    });

    let answer = gateway.get("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.body;
    for series in [
        r#"ratelimit_requests_total{policy="http",outcome="allowed",source="redis"} 2"#,
        r#"ratelimit_requests_total{policy="http",outcome="limit",source="redis"} 1"#,
        r#"ratelimit_requests_total{policy="http",outcome="limit",source="deny_cache"} 1"#,
        r#"ratelimit_near_limit_total{policy="http"}"#,
        r#"ratelimit_refusals_total{policy="http",reason="limit"}"#,
        r#"ratelimit_deny_cache_hits_total{policy="http"} 1"#,
        r#"ratelimit_fallbacks_total{policy="http",reason=""#,
        "ratelimit_store_connected 0",
        r#"ratelimit_store_duration_seconds_bucket{le="0.0001"}"#,
        "ratelimit_store_duration_seconds_count 3",
        "ratelimit_local_entries ",
        "ratelimit_local_overflow 0",
        r#"ratelimit_odd_addresses_total{reason="unreadable"} 1"#,
    ] {
        assert!(text.lines().any(|line| line.starts_with(series)), "no {series} in\n{text}");
    }
    for metric in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        assert!(metric.starts_with("ratelimit_"), "{metric}");
    }
    for address in ["203.0.113", "198.51.100", "127.0.0"] {
        assert!(!text.contains(address), "{address} in\n{text}");
    }
    // Nor do the logs, at any level: Redis is 127.0.0.1, but no client is.
    for address in ["203.0.113", "198.51.100"] {
        assert_eq!(gateway.logged(address), 0, "{}", gateway.logs());
    }
}

#[test]
fn the_local_entries_are_those_of_now() {
    let gateway = Gateway::start(&[("RATE_LIMIT_WINDOW_MS", "1000"), ("TRUSTED_PROXIES", "127.0.0.1")]);
    let shown =
        |entries| gateway.get("/metrics").body.contains(&format!("ratelimit_local_entries {entries}\n"));
    assert!(shown(0));
    gateway.get_with("/", &[("x-forwarded-for", "203.0.113.9")]);
    gateway.get_with("/", &[("x-forwarded-for", "203.0.113.10")]);
    eventually("two, though no request shows it", || shown(2) || shown(0));
    std::thread::sleep(Duration::from_millis(1000));
    eventually("none, though no request sweeps", || shown(0));
}

/// Every command that Redis has run, but those of this question.
fn commands(redis: &RedisServer) -> Vec<String> {
    let stats = redis.command(&["INFO", "commandstats"]).text().unwrap();
    stats.lines().filter(|line| !line.starts_with("cmdstat_info")).map(str::to_owned).collect()
}
