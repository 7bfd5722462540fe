//! Who the gateway takes a client for.

use serde_json::json;

use crate::gateway::Gateway;
use crate::support::RedisServer;

#[test]
fn a_direct_client_is_its_own_address_whatever_it_says() {
    let gateway = Gateway::start(&[]);
    let answer = gateway.get_with("/whoami", &[("x-forwarded-for", "203.0.113.9")]).json();
    assert_eq!(
        answer,
        json!({
            "peer": "127.0.0.1",
            "header": null,
            "lines": ["x-forwarded-for: 203.0.113.9"],
            "hops": [{"text": "127.0.0.1", "verdict": "client"}],
            "client": "127.0.0.1",
            "identity": "127.0.0.1",
            "key": "http:rl:127.0.0.1",
            "notes": ["a forwarding header from a private peer that is not among the trusted proxies"],
        })
    );
}

#[test]
fn behind_trusted_proxies_it_is_the_first_hop_from_the_right_that_is_none() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[
        ("REDIS_URL", &redis.url()),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
        ("TRUSTED_PROXIES", "127.0.0.0/8, 10.0.0.0/8"),
    ]);
    let forwarded = ("x-forwarded-for", "198.51.100.1, 203.0.113.9, 10.0.0.5");
    let answer = gateway.get_with("/whoami", &[forwarded]).json();
    assert_eq!(
        answer,
        json!({
            "peer": "127.0.0.1",
            "header": "x-forwarded-for",
            "lines": ["x-forwarded-for: 198.51.100.1, 203.0.113.9, 10.0.0.5"],
            "hops": [
                {"text": "127.0.0.1", "verdict": "trusted proxy"},
                {"text": "10.0.0.5", "verdict": "trusted proxy"},
                {"text": "203.0.113.9", "verdict": "client"},
                {"text": "198.51.100.1", "verdict": "not reached"},
            ],
            "client": "203.0.113.9",
            "identity": "203.0.113.9",
            "key": "http:rl:203.0.113.9",
            "notes": [],
        })
    );
    assert_eq!(
        redis.keys_matching("http:*"),
        ["http:rl:203.0.113.9"],
        "the key that is shown is the one in use"
    );

    let answer = gateway.get_with("/whoami", &[("x-forwarded-for", "198.51.100.1, unknown")]).json();
    assert_eq!(answer["identity"], "127.0.0.1");
    assert_eq!(answer["notes"].as_array().unwrap().len(), 1);
}

#[test]
fn ipv6_clients_are_grouped_as_the_setting_says() {
    for (prefix, identity) in
        [("", "2001:db8:1:2::/64"), ("48", "2001:db8:1::/48"), ("128", "2001:db8:1:2::9/128")]
    {
        let gateway = Gateway::start(&[("TRUSTED_PROXIES", "127.0.0.1"), ("RATE_LIMIT_IPV6_PREFIX", prefix)]);
        let answer = gateway.get_with("/whoami", &[("x-forwarded-for", "2001:db8:1:2::9")]).json();
        assert_eq!(answer["client"], "2001:db8:1:2::9");
        assert_eq!(answer["identity"], identity);
    }
}

#[test]
fn o_ip_5_ipv4_peers_of_a_dual_stack_listener_are_ipv4() {
    let gateway = Gateway::start(&[("LISTEN", "[::]:0"), ("TRUSTED_PROXIES", "127.0.0.0/8")]);
    assert!(gateway.first_line().starts_with("listening on http://[::]:"));
    for client in ["203.0.113.9", "203.0.113.10"] {
        let answer = gateway.get_with("/whoami", &[("x-forwarded-for", client)]);
        assert_eq!(answer.number("x-ratelimit-remaining"), 99, "a bucket of its own");
        let answer = answer.json();
        assert_eq!(answer["peer"], "127.0.0.1");
        assert_eq!(answer["key"], format!("http:rl:{client}"));
    }
}
