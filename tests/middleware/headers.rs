//! What a limited response and a refusal tell the client.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tower_ratelimit::response::{Refused, ResetFormat};
use tower_ratelimit::{Charge, Key, MAX_LIMIT, Policy, Rate, Refusal};

use crate::harness::{Answer, Handler, Limited, Lines, fixed, from, limiter, millis, secs};

/// The second at which a `ManualClock` starts.
const START: u64 = 1_767_799_823;

async fn ask(limited: &Limited) -> Answer {
    limited.ask(from("203.0.113.9")).await
}

#[tokio::test]
async fn o_hdr_1_retry_after_is_rounded_up() {
    let limited = Limited::by(fixed(1, millis(2500)));
    assert_eq!(ask(&limited).await.status, 200);
    limited.advance(100);
    assert_eq!(ask(&limited).await.retry_after(), Some(3));
    limited.advance(3000);
    assert_eq!(ask(&limited).await.status, 200);
}

#[tokio::test]
async fn o_hdr_1_who_waits_as_told_is_admitted() {
    let algorithms: [fn(&'static str, Rate) -> Policy; 3] =
        [Policy::fixed_window, Policy::sliding_window, Policy::token_bucket];
    for (policy, i) in algorithms.into_iter().flat_map(|policy| (1..=50).map(move |i| (policy, i))) {
        // Windows from 1 ms to 5 s, asked until it is refused somewhere inside.
        let window = 1 + i * i * 2 + i % 7;
        let limited = Limited::by(policy("http", Rate::new(1, millis(window)).unwrap()));
        assert_eq!(ask(&limited).await.status, 200);
        limited.advance((window * i / 51).min(window - 1));
        // A sliding window may have begun its next sub-window, in which one more fits.
        let mut refused = ask(&limited).await;
        if refused.status == 200 {
            refused = ask(&limited).await;
        }
        let retry_after = refused.retry_after().unwrap();
        limited.advance(retry_after * 1000);
        assert_eq!(ask(&limited).await.status, 200, "window {window} ms, told {retry_after} s");
    }
}

#[tokio::test]
async fn o_hdr_2_near_the_end_of_the_window_retry_after_is_never_0() {
    let limited = Limited::by(fixed(1, millis(1300)));
    assert_eq!(ask(&limited).await.status, 200);
    for now in 1..1300 {
        limited.advance(1);
        let refused = ask(&limited).await;
        assert_eq!(refused.retry_after(), Some(if now < 300 { 2 } else { 1 }), "at {now} ms");
        let reset = refused.reset().unwrap();
        assert!(reset * 1000 >= START * 1000 + now, "a reset in the past, at {now} ms");
    }
    limited.advance(1);
    assert_eq!(ask(&limited).await.status, 200);
}

#[tokio::test]
async fn o_hdr_3_retry_after_is_in_seconds_and_agrees_with_the_reset() {
    for format in [ResetFormat::UnixSeconds, ResetFormat::DeltaSeconds, ResetFormat::Rfc3339] {
        let limited = Limited::new(|layer| layer.policy(fixed(5, secs(60))).reset_format(format));
        for _ in 0..5 {
            assert_eq!(ask(&limited).await.status, 200);
        }
        limited.advance(2300);
        let refused = ask(&limited).await;
        assert_eq!(refused.retry_after(), Some(58), "57.7 s, up");
        let reset = match format {
            ResetFormat::UnixSeconds => refused.reset().unwrap() - START,
            ResetFormat::DeltaSeconds => refused.reset().unwrap() + 2,
            _ => {
                let reset = refused.header("x-ratelimit-reset").unwrap();
                let at = humantime::parse_rfc3339(reset).unwrap();
                at.duration_since(UNIX_EPOCH).unwrap().as_secs() - START
            }
        };
        assert_eq!(reset, 60, "{format:?}");
    }
}

#[tokio::test]
async fn the_three_formats_of_the_reset() {
    for (format, expected) in [
        (None, "1767799884"),
        (Some(ResetFormat::UnixSeconds), "1767799884"),
        (Some(ResetFormat::DeltaSeconds), "61"),
        (Some(ResetFormat::Rfc3339), "2026-01-07T15:31:24Z"),
    ] {
        let limited = Limited::new(|layer| {
            let layer = layer.policy(fixed(5, millis(60_001)));
            format.into_iter().fold(layer, tower_ratelimit::middleware::RateLimitLayerBuilder::reset_format)
        });
        assert_eq!(ask(&limited).await.header("x-ratelimit-reset"), Some(expected), "{format:?}, rounded up");
    }
}

#[tokio::test]
async fn o_hdr_4_the_numbers_of_a_refusal_have_no_fraction() {
    let limited = Limited::by(fixed(1, millis(507)));
    assert_eq!(ask(&limited).await.status, 200);
    limited.advance(14);
    let refused = ask(&limited).await;
    // Each of these asserts that there is nothing but digits.
    assert_eq!(refused.retry_after(), Some(1));
    assert_eq!((refused.limit(), refused.remaining(), refused.reset()), (Some(1), Some(0), Some(START + 1)));
}

#[tokio::test]
async fn o_hdr_5_remaining_counts_down_to_0_and_stays_there() {
    let limited = Limited::by(fixed(3, secs(60)));
    let mut seen = Vec::new();
    for _ in 0..5 {
        let answer = ask(&limited).await;
        seen.push((answer.status, answer.limit().unwrap(), answer.remaining().unwrap()));
    }
    assert_eq!(seen, [(200, 3, 2), (200, 3, 1), (200, 3, 0), (429, 3, 0), (429, 3, 0)]);
}

#[tokio::test]
async fn o_hdr_8_every_refusal_has_all_headers() {
    let cases: [(&str, Policy, u64); 3] = [
        ("limited", fixed(1, secs(60)), 60),
        ("blocked", fixed(1, secs(60)).block_for(secs(600)), 600),
        ("refuses everything", fixed(0, secs(60)), 60),
    ];
    for (case, policy, wait) in cases {
        let limit = policy.rate().limit();
        let limited = Limited::by(policy);
        if limit > 0 {
            assert_eq!(ask(&limited).await.status, 200, "{case}");
        }
        for _ in 0..2 {
            let refused = ask(&limited).await;
            assert_eq!(refused.status, 429, "{case}");
            assert_eq!((refused.limit(), refused.remaining()), (Some(limit), Some(0)), "{case}");
            assert_eq!(refused.retry_after(), Some(wait), "{case}");
            assert_eq!(refused.reset(), Some(START + wait), "{case}");
        }
    }
}

#[tokio::test]
async fn o_win_10_a_limit_of_0_refuses_everything_from_the_first_request() {
    let limited = Limited::by(fixed(0, secs(60)));
    for _ in 0..3 {
        let refused = ask(&limited).await;
        assert_eq!((refused.status, refused.limit(), refused.remaining()), (429, Some(0), Some(0)));
        limited.advance(60_000);
    }
}

#[tokio::test]
async fn o_win_11_the_largest_limit_shows_all_its_digits() {
    let limited = Limited::by(fixed(MAX_LIMIT, secs(365 * 86_400)));
    let answer = ask(&limited).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("9007199254740991"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("9007199254740990"));
}

#[tokio::test]
async fn o_win_11_a_cost_of_any_size_is_too_large_and_changes_nothing() {
    let (limiter, ..) = limiter();
    let policy = limiter.policy(fixed(MAX_LIMIT, secs(60)).block_for(secs(60))).unwrap();
    let ann = || Charge::new(&policy, Key::principal("ann"));
    for cost in [MAX_LIMIT + 1, u64::MAX] {
        let decision = limiter.check([ann().cost(cost)]).await;
        assert_eq!(decision.refusal(), Some(Refusal::TooLarge));
        assert_eq!((decision.retry_after(), decision.retry_after_seconds()), (None, None));
        assert_eq!(decision.remaining(), MAX_LIMIT);
    }
    let decision = limiter.check([ann().cost(MAX_LIMIT)]).await;
    assert!(decision.is_allowed() && decision.remaining() == 0, "{decision:?}");
}

#[tokio::test]
async fn the_headers_are_there_whatever_the_handler_answers() {
    for status in [200, 204, 304, 404, 500, 503] {
        let limited = Limited::around(Handler::saying(status, &[]), |layer| layer.policy(fixed(3, secs(60))));
        let answer = ask(&limited).await;
        assert_eq!((answer.status, answer.limit(), answer.remaining()), (status, Some(3), Some(2)));
        assert_eq!((answer.reset(), answer.retry_after()), (Some(START + 60), None));
    }
}

#[tokio::test]
async fn what_the_inner_service_set_is_never_made_more_permissive() {
    const LIMIT: &str = "x-ratelimit-limit";
    const REMAINING: &str = "x-ratelimit-remaining";
    const RESET: &str = "x-ratelimit-reset";
    // The layer's own would be 10, 9, and a reset.
    let kept: [Lines; 13] = [
        &[(LIMIT, "5"), (REMAINING, "4"), (RESET, "7")],
        &[(LIMIT, "100"), (REMAINING, "0"), (RESET, "7")],
        &[(LIMIT, "100"), (REMAINING, "9")],
        &[(REMAINING, "0")],
        &[(REMAINING, " 3 ")],
        &[(LIMIT, "5")],
        &[(RESET, "7")],
        &[(LIMIT, "100"), (REMAINING, "few")],
        &[(REMAINING, "-1")],
        &[(REMAINING, "")],
        &[(REMAINING, "50, 1")],
        &[(LIMIT, "many"), (RESET, "later")],
        &[(REMAINING, "50"), (REMAINING, "1")],
    ];
    let replaced: [Lines; 5] = [
        &[(LIMIT, "100"), (REMAINING, "99"), (RESET, "7")],
        &[(REMAINING, "10")],
        &[(LIMIT, "11")],
        &[(LIMIT, "many"), (REMAINING, "99")],
        &[(REMAINING, "50"), (REMAINING, "60")],
    ];
    for (lines, is_kept) in
        kept.map(|lines| (lines, true)).into_iter().chain(replaced.map(|lines| (lines, false)))
    {
        let limited = Limited::around(Handler::saying(200, lines), |layer| layer.policy(fixed(10, secs(60))));
        let answer = ask(&limited).await;
        if is_kept {
            let seen: Vec<_> = answer
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
                .filter(|(name, _)| name.starts_with("x-ratelimit"))
                .collect();
            assert_eq!(seen, lines, "kept");
        } else {
            assert_eq!(
                (answer.limit(), answer.remaining(), answer.reset()),
                (Some(10), Some(9), Some(START + 60)),
                "replaced: {lines:?}"
            );
        }
    }
}

#[tokio::test]
async fn without_headers_a_refusal_still_says_when_to_come_back() {
    let limited = Limited::new(|layer| layer.policy(fixed(1, secs(60))).without_headers());
    for (status, retry_after) in [(200, None), (429, Some(60))] {
        let answer = ask(&limited).await;
        assert_eq!((answer.status, answer.retry_after()), (status, retry_after));
        assert_eq!((answer.limit(), answer.remaining(), answer.reset()), (None, None, None));
    }
}

#[tokio::test]
async fn a_refusal_is_json_that_no_cache_stores() {
    let limited = Limited::by(fixed(1, millis(37_500)));
    assert_eq!(ask(&limited).await.status, 200);
    limited.advance(999);
    let refused = ask(&limited).await;
    assert_eq!(refused.header("content-type"), Some("application/json"));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    let body: Value = serde_json::from_slice(&refused.body).unwrap();
    let expected = json!({
        "success": false,
        "message": "Too many requests. Please try again later.",
        "retryAfter": 37,
        "timestamp": "2026-01-07T15:30:23Z",
    });
    assert_eq!(body, expected);
    assert_eq!(refused.retry_after(), Some(37), "as the body says");
}

#[tokio::test]
async fn a_closure_builds_the_refusal_and_gets_its_headers() {
    let limited = Limited::new(|layer| {
        layer.policy(fixed(1, secs(60))).reply(|refused: &Refused<'_>| {
            let (decision, head) = (refused.decision(), refused.head());
            let text = format!("{} {} {:?}", decision.policy(), head.path(), decision.retry_after());
            Response::builder().status(refused.status()).body(Bytes::from(text)).unwrap()
        })
    });
    assert_eq!(ask(&limited).await.status, 200);
    let refused = ask(&limited).await;
    assert_eq!((refused.status, &refused.body[..]), (429, &b"http / Some(60s)"[..]));
    assert_eq!((refused.limit(), refused.remaining()), (Some(1), Some(0)));
    assert_eq!((refused.reset(), refused.retry_after()), (Some(START + 60), Some(60)));
    assert_eq!(refused.header("content-type"), None);
}

#[tokio::test]
async fn a_reply_that_sets_its_own_headers_keeps_them() {
    let limited = Limited::new(|layer| {
        layer.policy(fixed(1, secs(60))).reply(|_: &Refused<'_>| {
            let own = Response::builder().status(StatusCode::SERVICE_UNAVAILABLE);
            let own = own.header("retry-after", "120").header("x-ratelimit-reset", "soon");
            own.body(Bytes::new()).unwrap()
        })
    });
    let service = &limited.service;
    assert_eq!(crate::harness::ask(service, from("203.0.113.9")).await.status, 200);
    let refused = crate::harness::ask(service, from("203.0.113.9")).await;
    assert_eq!(refused.status, 503);
    // Each asserts that there is one line.
    assert_eq!(refused.header("retry-after"), Some("120"));
    assert_eq!(refused.header("x-ratelimit-reset"), Some("soon"));
    assert_eq!((refused.limit(), refused.remaining()), (Some(1), Some(0)));
    assert_eq!(limited.handler.hits(), 1);
}

#[tokio::test]
async fn the_longest_waits_are_written_whole() {
    let year = Duration::from_secs(366 * 86_400);
    let limited = Limited::by(fixed(1, secs(60)).block_for(year));
    assert_eq!(ask(&limited).await.status, 200);
    assert_eq!(ask(&limited).await.retry_after(), Some(31_622_400));
}
