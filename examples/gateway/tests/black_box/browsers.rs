//! CORS: what a script of another origin may ask and read.

use crate::gateway::Gateway;
use crate::http::Answer;

const ORIGIN: (&str, &str) = ("origin", "https://app.example");
const PREFLIGHT: &[(&str, &str)] =
    &[ORIGIN, ("access-control-request-method", "GET"), ("access-control-request-headers", "authorization")];

#[test]
fn o_hdr_7_preflights_are_free_and_a_429_has_cors_headers() {
    let gateway = Gateway::start(&[
        ("MCP_RATE_LIMIT_MAX", "2"),
        ("CORS_ORIGINS", "https://other.example, https://App.example"),
    ]);
    let mut client = gateway.connect();
    let mut ask = |method| {
        let headers = if method == "OPTIONS" { PREFLIGHT } else { &[ORIGIN] };
        let answer = client.request(method, "/", headers);
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"), "{answer:?}");
        answer.status
    };
    let statuses = ["OPTIONS", "GET", "OPTIONS", "GET", "GET", "OPTIONS"].map(&mut ask);
    assert_eq!(statuses, [200, 200, 200, 200, 429, 200]);
}

#[test]
fn o_hdr_9_a_script_may_read_every_header_of_the_limit() {
    let gateway = Gateway::start(&[("MCP_RATE_LIMIT_MAX", "1"), ("CORS_ORIGINS", "*")]);
    for status in [200, 429] {
        let answer = gateway.get_with("/", &[ORIGIN]);
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
        let exposed = exposed(&answer);
        let limits = |name: &&String| name.contains("ratelimit") || *name == "retry-after";
        let sent: Vec<_> = answer.headers.iter().map(|(name, _)| name).filter(limits).collect();
        assert!(sent.len() >= 5, "{answer:?}");
        assert!(sent.iter().all(|name| exposed.contains(&name.as_str())), "{answer:?}");
    }
}

#[test]
fn other_origins_are_answered_without_cors_headers() {
    let some = Gateway::start(&[("CORS_ORIGINS", "https://other.example")]);
    let none = Gateway::start(&[]);
    for gateway in [some, none] {
        let answer = gateway.get_with("/", &[ORIGIN]);
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None));
        let preflight = gateway.connect().request("OPTIONS", "/", PREFLIGHT);
        assert_eq!(preflight.header("access-control-allow-origin"), None);
        assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 98, "the preflight was free");
    }
}

fn exposed(answer: &Answer) -> Vec<&str> {
    answer.header("access-control-expose-headers").unwrap().split(',').map(str::trim).collect()
}
