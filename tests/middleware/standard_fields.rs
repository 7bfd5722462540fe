//! `RateLimit-Policy` and `RateLimit`, read by a parser of structured fields
//! that is not ours.

use std::time::Duration;

use http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parser};
use tower::Layer as _;
use tower_ratelimit::response::Refused;
use tower_ratelimit::{MAX_LIMIT, Policy, Rate, RateLimitLayer};

use crate::harness::{Answer, Handler, Limited, ask, fixed, from, limiter, millis, named, secs};

/// The items of a list in all of its lines: names, and parameters in order.
fn list(headers: &HeaderMap, field: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let lines: Vec<_> = headers.get_all(field).iter().map(|line| line.to_str().unwrap()).collect();
    if lines.is_empty() {
        return Vec::new();
    }
    let list: List = Parser::new(&lines.join(", ")).parse().unwrap();
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an item: {entry:?}") };
        let BareItem::String(name) = &item.bare_item else { panic!("a string: {item:?}") };
        let number = |value: &BareItem| i64::from(value.as_integer().expect("an integer"));
        let params =
            item.params.iter().map(|(key, value)| (key.as_str().to_owned(), number(value))).collect();
        (name.as_str().to_owned(), params)
    };
    list.iter().map(item).collect()
}

/// As `list`, with each item in one line.
fn items(headers: &HeaderMap, field: &str) -> Vec<String> {
    let one = |(name, params): (String, Vec<(String, i64)>)| {
        params.iter().fold(name, |line, (key, value)| format!("{line} {key}={value}"))
    };
    list(headers, field).into_iter().map(one).collect()
}

fn policies(answer: &Answer) -> Vec<String> {
    items(&answer.headers, "ratelimit-policy")
}

fn left(answer: &Answer) -> Vec<String> {
    items(&answer.headers, "ratelimit")
}

fn limited(policies: impl IntoIterator<Item = Policy>) -> Limited {
    Limited::new(|layer| {
        policies.into_iter().fold(layer.standard_fields(), |layer, policy| layer.policy(policy))
    })
}

#[tokio::test]
async fn one_policy_is_a_list_of_one() {
    let limited = limited([fixed(2, secs(60))]);
    for (status, expected) in [(200, "http r=1 t=60"), (200, "http r=0 t=58"), (429, "http r=0 t=56")] {
        let answer = limited.ask(from("203.0.113.9")).await;
        assert_eq!(answer.status, status);
        assert_eq!(policies(&answer), ["http q=2 w=60"], "the same each time");
        assert_eq!(left(&answer), [expected]);
        limited.advance(2_000);
    }
}

#[tokio::test]
async fn o_hdr_6_every_policy_is_listed_and_the_refusing_ones_on_a_refusal() {
    let limited = limited([named("burst", 2, secs(10)), named("daily", 3, secs(86_400))]);
    let ask = || limited.ask(from("203.0.113.9"));
    let both = ["burst q=2 w=10", "daily q=3 w=86400"];

    let first = ask().await;
    assert_eq!(
        (policies(&first), left(&first)),
        (both.map(String::from).into(), vec!["burst r=1 t=10".to_owned(), "daily r=2 t=86400".to_owned()])
    );
    assert_eq!((first.limit(), first.remaining()), (Some(2), Some(1)), "the tightest");
    ask().await;

    let refused = ask().await;
    assert_eq!((refused.status, refused.retry_after()), (429, Some(10)));
    assert_eq!(policies(&refused), both);
    assert_eq!(left(&refused), ["burst r=0 t=10"], "retry-after is never before the end of a listed window");

    limited.advance(10_000);
    ask().await;
    ask().await;
    let refused = ask().await;
    assert_eq!(left(&refused), ["daily r=0 t=86390"], "the burst had one left");
    assert_eq!(refused.retry_after(), Some(86_390));
}

#[tokio::test]
async fn when_several_refuse_retry_after_is_the_longest_wait() {
    let limited = limited([named("burst", 1, secs(10)), named("daily", 1, secs(86_400))]);
    limited.ask(from("203.0.113.9")).await;
    let refused = limited.ask(from("203.0.113.9")).await;
    assert_eq!(left(&refused), ["burst r=0 t=10", "daily r=0 t=86400"]);
    assert_eq!((refused.retry_after(), refused.limit()), (Some(86_400), Some(1)));
}

#[tokio::test]
async fn windows_are_in_whole_seconds_rounded_up_and_a_block_is_a_wait() {
    let limited = limited([fixed(1, millis(1_500)).block_for(secs(600))]);
    let answer = limited.ask(from("203.0.113.9")).await;
    assert_eq!(
        (policies(&answer), left(&answer)),
        (vec!["http q=1 w=2".to_owned()], vec!["http r=0 t=2".to_owned()])
    );
    let refused = limited.ask(from("203.0.113.9")).await;
    assert_eq!((refused.status, left(&refused)), (429, vec!["http r=0 t=600".to_owned()]));
}

#[tokio::test]
async fn a_number_that_the_syntax_has_not_is_the_largest_that_it_has() {
    let limited = limited([fixed(MAX_LIMIT, secs(366 * 86_400)), named("none", 0, millis(1))]);
    let refused = limited.ask(from("203.0.113.9")).await;
    assert_eq!(refused.status, 429);
    assert_eq!(policies(&refused), ["http q=999999999999999 w=31622400", "none q=0 w=1"]);
    assert_eq!(left(&refused), ["none r=0 t=1"]);
}

#[tokio::test]
async fn they_are_opt_in_and_go_without_the_others() {
    let plain = Limited::by(fixed(1, secs(60)));
    for _ in 0..2 {
        let answer = plain.ask(from("203.0.113.9")).await;
        assert!((policies(&answer).is_empty(), left(&answer).is_empty()) == (true, true));
    }
    let only = Limited::new(|layer| layer.policy(fixed(1, secs(60))).without_headers().standard_fields());
    for status in [200, 429] {
        let answer = only.ask(from("203.0.113.9")).await;
        assert_eq!((answer.status, answer.limit(), answer.reset()), (status, None, None));
        assert_eq!((policies(&answer).len(), left(&answer).len()), (1, 1));
    }
}

#[tokio::test]
async fn a_policy_in_shadow_is_not_listed() {
    let limited = limited([named("tried", 1, secs(60)).shadow(), fixed(9, secs(60))]);
    for remaining in [8, 7] {
        let answer = limited.ask(from("203.0.113.9")).await;
        assert_eq!(policies(&answer), ["http q=9 w=60"]);
        assert_eq!(left(&answer), [format!("http r={remaining} t=60")]);
    }
    let alone = self::limited([named("tried", 1, secs(60)).shadow()]);
    assert!(left(&alone.ask(from("203.0.113.9")).await).is_empty());
}

#[tokio::test]
async fn a_skipped_request_has_none() {
    let limited = Limited::new(|layer| layer.policy(fixed(9, secs(60))).standard_fields().skip_path("/"));
    assert!(policies(&limited.ask(from("203.0.113.9")).await).is_empty());
}

#[tokio::test]
async fn the_lines_of_an_inner_service_are_kept() {
    let handler =
        Handler::saying(200, &[("ratelimit-policy", "\"up\";q=5"), ("ratelimit", "\"up\";r=4;t=7")]);
    let limited = Limited::around(handler, |layer| layer.policy(fixed(9, secs(60))).standard_fields());
    let answer = limited.ask(from("203.0.113.9")).await;
    assert_eq!(policies(&answer), ["up q=5", "http q=9 w=60"]);
    assert_eq!(left(&answer), ["up r=4 t=7", "http r=8 t=60"]);
}

#[tokio::test]
async fn o_hdr_6_the_refusal_of_an_inner_layer_keeps_its_own_numbers() {
    let (limiter, ..) = limiter();
    let layer =
        |policy| RateLimitLayer::builder(limiter.clone()).policy(policy).standard_fields().build().unwrap();
    let handler = Handler::new();
    let inner = layer(named("inner", 1, secs(60))).layer(handler);
    let both = layer(named("outer", 100, secs(3_600))).layer(inner);
    let answer = ask(&both, from("203.0.113.9")).await;
    assert_eq!(left(&answer), ["inner r=0 t=60", "outer r=99 t=3600"]);
    let refused = ask(&both, from("203.0.113.9")).await;
    assert_eq!(refused.status, 429);
    assert_eq!(left(&refused), ["inner r=0 t=60"]);
    assert_eq!(policies(&refused), ["inner q=1 w=60", "outer q=100 w=3600"], "nothing is lost");
    assert_eq!((refused.limit(), refused.retry_after()), (Some(1), Some(60)));
}

#[tokio::test]
async fn a_reply_that_sets_its_own_keeps_them() {
    let limited = Limited::new(|layer| {
        layer.policy(fixed(0, secs(60))).standard_fields().reply(|refused: &Refused<'_>| {
            let own =
                http::Response::builder().status(refused.status()).header("ratelimit", "\"mine\";r=0;t=1");
            own.body(bytes::Bytes::new()).unwrap()
        })
    });
    let refused = limited.ask(from("203.0.113.9")).await;
    assert_eq!(
        (policies(&refused), left(&refused)),
        (vec!["http q=0 w=60".into()], vec!["mine r=0 t=1".into()])
    );
}

#[tokio::test]
async fn a_decision_tells_of_each_policy_where_it_is_asked_to() {
    let set = |is_standard: bool| {
        Limited::new(|layer| {
            let layer = layer.policy(named("a", 2, secs(10))).policy(named("b", 1, secs(60)));
            let layer = layer.decision_in_response();
            if is_standard { layer.standard_fields() } else { layer }
        })
    };
    for (is_standard, on_success) in [(true, vec!["a", "b"]), (false, vec!["b"])] {
        let limited = set(is_standard);
        let decision = limited.ask(from("203.0.113.9")).await.decision.unwrap();
        let told: Vec<_> = decision.each_policy().iter().map(tower_ratelimit::Decision::policy).collect();
        assert_eq!(told, on_success);
        let decision = limited.ask(from("203.0.113.9")).await.decision.unwrap();
        let told: Vec<_> =
            decision.each_policy().iter().map(|each| (each.policy(), each.retry_after())).collect();
        assert_eq!(told, [("a", None), ("b", Some(Duration::from_secs(60)))], "a refusal tells of all");
        assert_eq!(decision.window(), Duration::from_secs(60));
    }
}

/// Or these tests would show nothing.
#[test]
fn the_parser_is_strict() {
    for wrong in ["\"a\";r=1000000000000000", "\"a\";R=1", "\"é\";r=1", "\"a\" ;;r=1", "\"a"] {
        assert!(Parser::new(wrong).parse::<List>().is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_sliding_window_tells_what_its_estimate_leaves() {
    let limited = limited([Policy::sliding_window("http", Rate::new(4, secs(60)).unwrap())]);
    // A clock at 23 s of a sub-window: `ManualClock` starts at 15:30:23.
    for left_over in ["http r=3 t=37", "http r=2 t=37", "http r=1 t=37", "http r=0 t=37"] {
        let answer = limited.ask(from("203.0.113.9")).await;
        assert_eq!(
            (policies(&answer), left(&answer)),
            (vec!["http q=4 w=60".into()], vec![left_over.into()])
        );
    }
    // At the start of the next one the four weigh all that they did; a millisecond later,
    // rounded down, one fits.
    let refused = limited.ask(from("203.0.113.9")).await;
    assert_eq!((refused.status, left(&refused)), (429, vec!["http r=0 t=38".into()]));
    assert_eq!(refused.retry_after(), Some(38), "37.001 s, up");
    limited.advance(37_001);
    let answer = limited.ask(from("203.0.113.9")).await;
    assert_eq!((answer.status, left(&answer)), (200, vec!["http r=0 t=60".into()]));
}

#[tokio::test]
async fn a_bucket_tells_its_burst_and_the_time_in_which_it_fills() {
    // 2 tokens a second, 10 at most: full in 5 s.
    let limited = limited([Policy::token_bucket("http", Rate::per_second(2)).burst(10)]);
    let answer = limited.ask(from("203.0.113.9")).await;
    assert_eq!(
        (policies(&answer), left(&answer)),
        (vec!["http q=10 w=5".into()], vec!["http r=9 t=1".into()])
    );
    assert_eq!((answer.limit(), answer.remaining()), (Some(10), Some(9)));
    for _ in 0..8 {
        limited.ask(from("203.0.113.9")).await;
    }
    let last = limited.ask(from("203.0.113.9")).await;
    assert_eq!(
        left(&last),
        ["http r=0 t=5"],
        "the time until it is full, never a large rest and a short time"
    );
    let refused = limited.ask(from("203.0.113.9")).await;
    assert_eq!(
        (refused.status, left(&refused), refused.retry_after()),
        (429, vec!["http r=0 t=1".into()], Some(1))
    );
}

#[tokio::test]
async fn o_hdr_4_no_number_of_any_algorithm_has_a_fraction() {
    let rate = |limit, ms| Rate::new(limit, millis(ms)).unwrap();
    for policy in [
        Policy::fixed_window("http", rate(1, 1_507)),
        Policy::sliding_window("http", rate(1, 1_507)),
        Policy::token_bucket("http", rate(2, 1_000)).burst(1),
        Policy::token_bucket("http", rate(3, 1_000)).burst(7),
    ] {
        let limited = limited([policy]);
        let mut refused = limited.ask(from("203.0.113.9")).await;
        while refused.status == 200 {
            limited.advance(13);
            refused = limited.ask(from("203.0.113.9")).await;
        }
        // Each asserts that there is nothing but digits, the parser that it is an integer.
        let retry_after = refused.retry_after().unwrap();
        assert!(refused.limit().is_some() && refused.reset().is_some());
        assert_eq!(left(&refused), [format!("http r=0 t={retry_after}")]);
        limited.advance(retry_after * 1000);
        assert_eq!(
            limited.ask(from("203.0.113.9")).await.status,
            200,
            "o_hdr_1: who waits as told is admitted"
        );
    }
}
