//! `RateLimit-Policy` and `RateLimit`, as in
//! `draft-ietf-httpapi-ratelimit-headers-11` (sections 3 and 4): lists of
//! structured fields (RFC 9651), one item for each policy.

use std::fmt::Write as _;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName};

use super::headers::text;
use crate::decision::Decision;

pub(super) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field. A client that is told less than
/// there is does no harm.
const MAX: u64 = 999_999_999_999_999;

/// Adds the numbers of an allowance to what the inner service may have said: a
/// list may stand in several lines.
pub(super) fn describe(headers: &mut HeaderMap, decision: &Decision) {
    let shown = || decision.each_policy().iter().filter(|part| is_shown(part));
    // Whoever wrote `retry-after` has refused. It must not point to a time before
    // the end of a window that is listed.
    let is_refusal = headers.contains_key(RETRY_AFTER);
    append(headers, POLICY, shown().map(write_policy));
    if !is_refusal {
        append(headers, LIMIT, shown().map(write_limit));
    }
}

/// Tells of a refusal: all policies, but the numbers of those only that refuse,
/// for `retry-after` is the longest wait of theirs.
pub(super) fn refuse(headers: &mut HeaderMap, decision: &Decision) {
    if !headers.contains_key(POLICY) {
        let shown = decision.each_policy().iter().filter(|part| is_shown(part));
        append(headers, POLICY, shown.map(write_policy));
    }
    if !headers.contains_key(LIMIT) {
        append(headers, LIMIT, decision.violated().filter(|part| is_shown(part)).map(write_limit));
    }
}

fn is_shown(part: &Decision) -> bool {
    part.is_counted() && !part.is_shadow()
}

/// `"http";q=100;w=60`. Whole seconds, up: who keeps to that keeps to the window.
fn write_policy(part: &Decision) -> impl FnOnce(&mut String) {
    let window = part.window_ms.div_ceil(1000);
    move |list| item(list, part, &[("q", part.limit()), ("w", window)])
}

/// `"http";r=99;t=42`. The time within which no more than `r` may be used: until
/// the window ends, the bucket is full, or a refused request may come again.
fn write_limit(part: &Decision) -> impl FnOnce(&mut String) {
    move |list| {
        let seconds = super::headers::seconds_up(part.reset_after());
        let parameters = [("r", part.remaining()), ("t", seconds)];
        // Nothing runs: there is no time to tell.
        let told = if seconds == 0 { &parameters[..1] } else { &parameters };
        item(list, part, told);
    }
}

/// The name of a policy needs no escape in a string.
fn item(list: &mut String, part: &Decision, parameters: &[(&str, u64)]) {
    let separator = if list.is_empty() { "" } else { ", " };
    // Writing to a string does not fail.
    let _ = write!(list, "{separator}\"{}\"", part.policy());
    for (name, value) in parameters {
        let _ = write!(list, ";{name}={}", value.min(&MAX));
    }
}

fn append<W: FnOnce(&mut String)>(headers: &mut HeaderMap, name: HeaderName, items: impl Iterator<Item = W>) {
    // Two policies, as a rule.
    let mut list = String::with_capacity(80);
    for write in items {
        write(&mut list);
    }
    if !list.is_empty() {
        headers.append(name, text(&list));
    }
}
