//! Refusals that a layer has no cost or reservation to bring about.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request};

use super::*;
use crate::decision::{Outcome, Source};

fn decision(refusal: Refusal, retry_after_ms: Option<u64>) -> Decision {
    let outcome = Outcome {
        refusal: Some(refusal),
        used: 3,
        remaining: 7,
        reset_after_ms: 20_000,
        retry_after_ms,
        blocked: refusal == Refusal::Blocked,
        block_started: false,
    };
    Decision {
        policy: "tokens".into(),
        limit: 10,
        outcome,
        source: Source::Local,
        shadow: false,
        counted: true,
        window_ms: 60_000,
        each: None,
        at: 0,
    }
}

/// As the layer does it.
fn refuse(
    reply: &dyn Reply,
    decision: &Decision,
    content_type: &'static str,
) -> (StatusCode, http::HeaderMap, String) {
    let request = Request::post("/").header(CONTENT_TYPE, content_type).body(()).unwrap();
    let (head, since_epoch) = (RequestHead::new(&request), Duration::from_secs(1_767_799_823));
    let refused = Refused { decision, head, too_large: StatusCode::PAYLOAD_TOO_LARGE, since_epoch };
    let mut response = reply.refuse(&refused);
    let fields = Fields { enabled: true, standard: true, reset: ResetFormat::DeltaSeconds };
    fields.refuse(&mut response, decision, &HeaderValue::from(10), since_epoch);
    let (head, body) = response.into_parts();
    (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn a_cost_that_never_fits_is_told_no_time_to_come_back() {
    let too_large = decision(Refusal::TooLarge, None);
    let (status, headers, body) = refuse(&Json, &too_large, "text/plain");
    assert_eq!((status, headers.get(RETRY_AFTER)), (StatusCode::PAYLOAD_TOO_LARGE, None));
    assert!(!body.contains("retryAfter"), "{body}");
    assert_eq!(
        (&headers["x-ratelimit-remaining"], &headers[CACHE_CONTROL]),
        (&"7".parse().unwrap(), &"no-store".parse().unwrap())
    );
    assert_eq!(headers["ratelimit"], "\"tokens\";r=7;t=20");

    let (status, _, body) = refuse(&Problem, &too_large, "text/plain");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status.as_u16(), &body["status"]), (413, &413.into()));
    assert_eq!(body["detail"], "the request costs more than the limit of 10 of policy tokens");

    let (status, headers, body) = refuse(&Negotiated, &too_large, "application/grpc");
    assert_eq!((status, body.as_str(), headers.get(RETRY_AFTER)), (StatusCode::OK, "", None));
    assert_eq!(
        (&headers["grpc-status"], &headers["grpc-retry-pushback-ms"]),
        (&"8".parse().unwrap(), &"-1".parse().unwrap())
    );
}

#[cfg(feature = "tonic")]
#[test]
fn details_tell_a_wait_where_there_is_one_and_a_quota_where_one_is_exceeded() {
    use tonic_types::StatusExt as _;

    for (refusal, wait, has_quota) in [
        (Refusal::TooLarge, None, true),
        (Refusal::Reserved, Some(1_000), true),
        (Refusal::Blocked, Some(3_600_001), true),
        (Refusal::Unavailable, Some(1_000), false),
    ] {
        let (_, headers, _) = refuse(&Negotiated, &decision(refusal, wait), "application/grpc");
        let status = tonic::Status::from_header_map(&headers).unwrap();
        let details = status.get_error_details();
        let told = details.retry_info().and_then(|info| info.retry_delay);
        assert_eq!(told, wait.map(Duration::from_millis), "{refusal:?}");
        let violations = details.quota_failure().map(|quota| quota.violations.as_slice()).unwrap_or_default();
        assert_eq!(violations.len(), usize::from(has_quota), "{refusal:?}");
        assert!(violations.iter().all(|violation| violation.description == status.message()));
    }
}

#[test]
fn every_refusal_has_words_of_its_own() {
    let words = |refusal, wait| in_words(&decision(refusal, wait));
    assert_eq!(
        words(Refusal::Limit, Some(36_001)),
        "limit of 10 per 1m of policy tokens reached, retry in 37 s"
    );
    assert_eq!(words(Refusal::Blocked, Some(1)), "blocked by policy tokens, retry in 1 s");
    assert_eq!(
        words(Refusal::Reserved, Some(1_000)),
        "limit of 10 per 1m of policy tokens held by requests under way, retry in 1 s"
    );
    assert_eq!(
        words(Refusal::Unavailable, Some(1_000)),
        "policy tokens cannot be checked at the moment, retry in 1 s"
    );
}
