//! Every field of every outcome, read by parsers: 2xx, the handler's own 4xx, a
//! refusal, one for want of a store, HTTP and gRPC, one policy and several.

use http::request::Builder;
use sfv::{BareItem, List, ListEntry, Parser};
use tower::Layer as _;
use tower_ratelimit::{OnStoreFailure, Policy, RateLimitLayer, RateLimiter};

use crate::harness::{Answer, Handler, Limited, ask, from, named, secs};

const START: u64 = 1_767_799_823;

/// What a client that reads everything knows.
#[derive(Debug, PartialEq)]
struct Told {
    /// `x-ratelimit-limit`, `-remaining`, `-reset`.
    numbers: Option<(u64, u64, u64)>,
    retry_after: Option<u64>,
    /// Name, `q` and `w`.
    policies: Vec<(String, i64, i64)>,
    /// Name, `r` and `t`.
    left: Vec<(String, i64, i64)>,
}

fn told(answer: &Answer) -> Told {
    let numbers = match (answer.limit(), answer.remaining(), answer.reset()) {
        (Some(limit), Some(remaining), Some(reset)) => Some((limit, remaining, reset)),
        (None, None, None) => None,
        some => panic!("all three or none: {some:?}"),
    };
    Told {
        numbers,
        retry_after: answer.retry_after(),
        policies: items(answer, "ratelimit-policy", ["q", "w"]),
        left: items(answer, "ratelimit", ["r", "t"]),
    }
}

fn items(answer: &Answer, field: &str, [first, second]: [&str; 2]) -> Vec<(String, i64, i64)> {
    let Some(line) = answer.header(field) else { return Vec::new() };
    let list: List = Parser::new(line).parse().unwrap();
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an item: {entry:?}") };
        let BareItem::String(name) = &item.bare_item else { panic!("a string: {item:?}") };
        let number = |key: &str| i64::from(item.params.get(key).unwrap().as_integer().unwrap());
        assert_eq!(item.params.len(), 2);
        (name.as_str().to_owned(), number(first), number(second))
    };
    list.iter().map(item).collect()
}

fn call() -> Builder {
    from("203.0.113.9").method("POST").header("content-type", "application/grpc")
}

fn page() -> Builder {
    from("203.0.113.9")
}

/// A handler behind policies, at `START`.
fn limited(status: u16, policies: &[Policy]) -> Limited {
    let handler = Handler::saying(status, &[]);
    Limited::around(handler, |layer| {
        policies.iter().cloned().fold(layer.standard_fields(), |layer, policy| layer.policy(policy))
    })
}

fn list(items: &[(&str, i64, i64)]) -> Vec<(String, i64, i64)> {
    items.iter().map(|(name, a, b)| ((*name).to_owned(), *a, *b)).collect()
}

#[tokio::test]
async fn o_hdr_8_one_policy() {
    for (status, request) in [(200, page as fn() -> Builder), (404, page), (200, call)] {
        let limited = limited(status, &[named("http", 2, secs(60))]);
        for remaining in [1, 0] {
            let answer = ask(&limited.service, request()).await;
            assert_eq!((answer.status, answer.header("grpc-status")), (status, None));
            let expected = Told {
                numbers: Some((2, remaining, START + 60)),
                retry_after: None,
                policies: list(&[("http", 2, 60)]),
                left: list(&[("http", remaining.try_into().unwrap(), 60)]),
            };
            assert_eq!(told(&answer), expected);
        }
        limited.advance(22_500);
        let refused = ask(&limited.service, request()).await;
        let is_call = request().headers_ref().unwrap().contains_key("content-type");
        assert_eq!(refused.status, if is_call { 200 } else { 429 });
        assert_eq!(refused.number("grpc-status"), is_call.then_some(8));
        let expected = Told {
            numbers: Some((2, 0, START + 60)),
            retry_after: Some(38),
            policies: list(&[("http", 2, 60)]),
            left: list(&[("http", 0, 38)]),
        };
        assert_eq!(told(&refused), expected);
    }
}

#[tokio::test]
async fn o_hdr_8_several_policies() {
    for (status, request) in [(200, page as fn() -> Builder), (403, page), (200, call)] {
        let limited = limited(status, &[named("day", 3, secs(86_400)), named("burst", 1, secs(10))]);
        let policies = list(&[("day", 3, 86_400), ("burst", 1, 10)]);
        let answer = ask(&limited.service, request()).await;
        let expected = Told {
            numbers: Some((1, 0, START + 10)),
            retry_after: None,
            policies: policies.clone(),
            left: list(&[("day", 2, 86_400), ("burst", 0, 10)]),
        };
        assert_eq!((answer.status, told(&answer)), (status, expected), "the tightest");

        let refused = ask(&limited.service, request()).await;
        let expected = Told {
            numbers: Some((1, 0, START + 10)),
            retry_after: Some(10),
            policies: policies.clone(),
            left: list(&[("burst", 0, 10)]),
        };
        assert_eq!(told(&refused), expected, "the refusing one");

        for _ in 0..2 {
            limited.advance(10_000);
            ask(&limited.service, request()).await;
        }
        let refused = ask(&limited.service, request()).await;
        let expected = Told {
            numbers: Some((3, 0, START + 86_400)),
            retry_after: Some(86_380),
            policies,
            left: list(&[("day", 0, 86_380), ("burst", 0, 10)]),
        };
        assert_eq!(told(&refused), expected, "the longest wait");
    }
}

#[tokio::test]
async fn o_hdr_8_what_cannot_be_checked_has_retry_after_and_no_invented_numbers() {
    for count in [1, 2] {
        // Nobody listens on port 1.
        let limiter = RateLimiter::redis("redis://127.0.0.1:1").unwrap();
        let layer = RateLimitLayer::builder(limiter).standard_fields();
        let policies =
            [named("a", 9, secs(60)).on_store_failure(OnStoreFailure::Deny), named("b", 9, secs(60))];
        let layer = policies.into_iter().take(count).fold(layer, |layer, policy| layer.policy(policy));
        let service = layer.build().unwrap().layer(Handler::new());
        let nothing = Told { numbers: None, retry_after: Some(1), policies: Vec::new(), left: Vec::new() };

        let refused = ask(&service, page()).await;
        assert_eq!((refused.status, told(&refused)), (503, nothing));
        assert_eq!(refused.header("cache-control"), Some("no-store"));
        let problem = ask(&service, page().header("accept", "application/problem+json")).await;
        let body: serde_json::Value = serde_json::from_slice(&problem.body).unwrap();
        assert!(body["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity"), "{body}");
        assert_eq!((&body["status"], &body["violated-policies"]), (&503.into(), &serde_json::json!(["a"])));

        let refused = ask(&service, call()).await;
        assert_eq!(
            (refused.status, refused.number("grpc-status"), refused.retry_after()),
            (200, Some(14), Some(1))
        );
        assert_eq!((refused.limit(), refused.header("ratelimit")), (None, None));
    }
}
