//! A wrong setting stops the gateway with its name and what it accepts, and
//! never with a password.

use std::net::TcpListener;

use crate::gateway::{Gateway, eventually};

#[test]
fn a_wrong_setting_stops_it_with_its_name_and_what_it_accepts() {
    let wrong: &[(&[(&str, &str)], &str)] = &[
        (&[("LISTEN", "3000")], "LISTEN: \"3000\" is not accepted: an IP address and a port"),
        (&[("LISTEN", "localhost:3000")], "LISTEN: \"localhost:3000\" is not accepted: an IP address"),
        (&[("LISTEN", "192.0.2.1:0")], "LISTEN: cannot listen on 192.0.2.1:0"),
        (&[("RUST_LOG", "info,h2=loud")], "RUST_LOG: \"info,h2=loud\" is not accepted: levels, such as warn"),
        (
            &[("MCP_RATE_LIMIT_MAX", "-1")],
            "MCP_RATE_LIMIT_MAX: \"-1\" is not accepted: a whole number from 0",
        ),
        (
            &[("RATE_LIMIT_WINDOW_MS", "1m")],
            "RATE_LIMIT_WINDOW_MS: \"1m\" is not accepted: a whole number of",
        ),
        (
            &[("TOKENS_RATE_LIMIT_MAX", "+5")],
            "TOKENS_RATE_LIMIT_MAX: \"+5\" is not accepted: a whole number up to",
        ),
        (&[("RATE_LIMIT_DEADLINE_MS", "0")], "RATE_LIMIT_DEADLINE_MS: \"0\" is not accepted: a whole number"),
        (&[("RATE_LIMIT_FALLBACK_SHARE", "2")], "RATE_LIMIT_FALLBACK_SHARE: \"2\" is not accepted: a share"),
        (
            &[("RATE_LIMIT_IPV6_PREFIX", "16")],
            "RATE_LIMIT_IPV6_PREFIX: \"16\" is not accepted: a whole number from 32 to 128",
        ),
        (&[("TRUSTED_PROXIES", "10.0.0.0/8,lb")], "TRUSTED_PROXIES: \"10.0.0.0/8,lb\" is not accepted: addr"),
        (&[("CORS_ORIGINS", "app.example")], "CORS_ORIGINS: \"app.example\" is not accepted: * alone, or"),
        (&[("CORS_ORIGINS", "https://a.example/")], "CORS_ORIGINS: "),
        (&[("CORS_ORIGINS", "https://me@a.example")], "CORS_ORIGINS: "),
        (&[("CORS_ORIGINS", "https://a.example,*")], "CORS_ORIGINS: "),
        (&[("REDIS_URL", "http://:s3cret@127.0.0.1")], "REDIS_URL: the value is not accepted: redis://"),
        (&[("REDIS_URL", "redis://:s3cret@127.0.0.1/0?protocol=resp9")], "REDIS_URL: the value is not acc"),
        (
            &[("REDIS_URL", "rediss://:s3cret@127.0.0.1")],
            "REDIS_URL: the value is not accepted: redis:// only",
        ),
        (
            &[("REDIS_HOST", "redis://:s3cret@127.0.0.1")],
            "REDIS_HOST: the value is not accepted: a host name",
        ),
        (&[("REDIS_HOST", "127.0.0.1"), ("REDIS_PORT", "0")], "REDIS_PORT: \"0\" is not accepted: a whole"),
        (
            &[("REDIS_CLUSTER_NODES", "redis://:s3cret@127.0.0.1:7000")],
            "REDIS_CLUSTER_NODES: the value is not accepted: host:port between commas",
        ),
        (
            &[("REDIS_CLUSTER_NODES", "127.0.0.1:7000"), ("REDIS_PASSWORD", "s3cret"), ("REDIS_DB", "1")],
            "REDIS_DB: \"1\" is not accepted: must be unset beside REDIS_CLUSTER_NODES",
        ),
    ];
    for (variables, text) in wrong {
        let said = Gateway::start_in_vain(variables);
        assert!(said.contains(text), "{variables:?}: {said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

#[test]
fn a_port_that_is_taken_is_a_wrong_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let said = Gateway::start_in_vain(&[("LISTEN", &addr)]);
    assert!(said.contains(&format!("LISTEN: cannot listen on {addr}: ")), "{said}");
}

#[test]
fn blank_settings_are_unset_ones() {
    let gateway = Gateway::start(&[
        ("REDIS_URL", ""),
        ("REDIS_CLUSTER_NODES", " "),
        ("CORS_ORIGINS", ""),
        ("TRUSTED_PROXIES", " "),
        ("RUST_LOG", ""),
        ("RATE_LIMIT_IPV6_PREFIX", ""),
    ]);
    let decision = gateway.get("/decision").json();
    assert_eq!((decision["source"].as_str(), decision["limit"].as_u64()), (Some("local"), Some(100)));
    assert_eq!(gateway.logged("WARN"), 0, "{}", gateway.logs());
}

#[test]
fn what_needs_redis_is_named_in_one_line_when_there_is_none() {
    let gateway = Gateway::start(&[
        ("RATE_LIMIT_DEADLINE_MS", "50"),
        ("RATE_LIMIT_FALLBACK_SHARE", "1/4"),
        ("MCP_RATE_LIMIT_MAX", "8"),
    ]);
    assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 7, "all of the limit");
    eventually("a line about them", || {
        gateway.logged("RATE_LIMIT_DEADLINE_MS, RATE_LIMIT_FALLBACK_SHARE not applied") == 1
    });
    assert_eq!(gateway.logged("WARN"), 1, "{}", gateway.logs());
}

#[test]
fn what_is_set_but_not_used_is_a_warning() {
    let gateway = Gateway::start(&[("REDIS_PASSWORD", "s3cret")]);
    eventually("a line about it", || gateway.logged("REDIS_PASSWORD ignored") == 1);
    assert_eq!(gateway.logged("s3cret"), 0);
}
