//! `RateLimit-Policy` and `RateLimit`, as in
//! `draft-ietf-httpapi-ratelimit-headers-11` (sections 3 and 4): lists of
//! structured fields (RFC 9651), one item for each policy.

use std::fmt::Write as _;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName};

use super::headers::{seconds_up, text};
use crate::decision::Decision;

pub(super) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field. A client that is told less than
/// there is does no harm.
const MAX: u64 = 999_999_999_999_999;

/// Adds the numbers of an allowance to what the inner service may have said: a
/// list may stand in several lines.
pub(super) fn describe(headers: &mut HeaderMap, decision: &Decision) {
    // Whoever wrote `retry-after` has refused. It must not point to a time before
    // the end of a window that is listed.
    let is_refusal = headers.contains_key(RETRY_AFTER);
    append(headers, POLICY, decision.each_policy().iter(), write_policy);
    if !is_refusal {
        append(headers, LIMIT, decision.each_policy().iter(), write_limit);
    }
}

/// Tells of a refusal: all policies, but the numbers of those only that refuse,
/// for `retry-after` is the longest wait of theirs.
pub(super) fn refuse(headers: &mut HeaderMap, decision: &Decision) {
    if !headers.contains_key(POLICY) {
        append(headers, POLICY, decision.each_policy().iter(), write_policy);
    }
    if !headers.contains_key(LIMIT) {
        append(headers, LIMIT, decision.violated(), write_limit);
    }
}

fn append<'a>(
    headers: &mut HeaderMap,
    name: HeaderName,
    parts: impl Iterator<Item = &'a Decision>,
    write: fn(&mut String, &Decision),
) {
    // Two policies, as a rule.
    let mut list = String::with_capacity(80);
    for part in parts.filter(|part| part.is_counted() && !part.is_shadow()) {
        if !list.is_empty() {
            list.push_str(", ");
        }
        write(&mut list, part);
    }
    if !list.is_empty() {
        headers.append(name, text(&list));
    }
}

/// `"http";q=100;w=60`. Whole seconds, up: who keeps to that keeps to the window.
fn write_policy(list: &mut String, part: &Decision) {
    item(list, part, &[("q", part.limit()), ("w", seconds_up(part.window()))]);
}

/// `"http";r=99;t=42`. The time within which no more than `r` may be used: until
/// the window ends, the bucket is full, or a refused request may come again.
fn write_limit(list: &mut String, part: &Decision) {
    let seconds = seconds_up(part.reset_after());
    let parameters = [("r", part.remaining()), ("t", seconds)];
    // Nothing runs: there is no time to tell.
    item(list, part, if seconds == 0 { &parameters[..1] } else { &parameters });
}

/// The name of a policy needs no escape in a string.
fn item(list: &mut String, part: &Decision, parameters: &[(&str, u64)]) {
    // Writing to a string does not fail.
    let _ = write!(list, "\"{}\"", part.policy());
    for (name, value) in parameters {
        let _ = write!(list, ";{name}={}", value.min(&MAX));
    }
}
