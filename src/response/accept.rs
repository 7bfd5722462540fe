//! Which body a client prefers (RFC 9110, section 12.5.1).

use http::HeaderMap;
use http::header::ACCEPT;
use mediatype::{MediaType, MediaTypeList};

/// How much a client wants a media type. The more specific range decides, of two
/// alike the greater weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// 0: not named at all; 1: `*/*`; 2: `application/*`; 3: by name.
    named: u8,
    /// In thousandths.
    weight: u16,
}

impl Wanted {
    fn take(&mut self, named: u8, weight: u16) {
        if (named, weight) > (self.named, self.weight) {
            *self = Self { named, weight };
        }
    }
}

/// Whether problem details are preferred to plain JSON.
pub(super) fn prefers_problem(headers: &HeaderMap) -> bool {
    let (mut problem, mut json) = (Wanted::default(), Wanted::default());
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    // A range that cannot be read says nothing; the others still do.
    for range in lines.flat_map(MediaTypeList::new).filter_map(Result::ok) {
        let Some(weight) = weight(&range) else { continue };
        match subtype(&range) {
            Some(Subtype::Any { named }) => {
                problem.take(named, weight);
                json.take(named, weight);
            }
            Some(Subtype::Problem) => problem.take(3, weight),
            Some(Subtype::Json) => json.take(3, weight),
            None => {}
        }
    }
    problem.weight > 0 && (problem.weight, problem.named) > (json.weight, json.named)
}

/// Whether a client reads an event stream and no JSON.
#[cfg(feature = "mcp")]
pub(crate) fn takes_only_event_stream(headers: &HeaderMap) -> bool {
    let (mut json, mut stream) = (Wanted::default(), Wanted::default());
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    for range in lines.flat_map(MediaTypeList::new).filter_map(Result::ok) {
        let Some(weight) = weight(&range) else { continue };
        match subtype(&range) {
            Some(Subtype::Any { named }) => {
                json.take(named, weight);
                if named == 1 {
                    stream.take(named, weight);
                }
            }
            Some(Subtype::Json) => json.take(3, weight),
            _ if is(range.ty, "text") && is(range.subty, "event-stream") => stream.take(3, weight),
            _ if is(range.ty, "text") && is(range.subty, "*") => stream.take(2, weight),
            _ => {}
        }
    }
    json.weight == 0 && stream.weight > 0
}

enum Subtype {
    Any { named: u8 },
    Problem,
    Json,
}

fn subtype(range: &MediaType<'_>) -> Option<Subtype> {
    if is(range.ty, "*") && is(range.subty, "*") {
        return Some(Subtype::Any { named: 1 });
    }
    if !is(range.ty, "application") {
        return None;
    }
    match range.suffix {
        Some(suffix) if is(suffix, "json") && is(range.subty, "problem") => Some(Subtype::Problem),
        None if is(range.subty, "json") => Some(Subtype::Json),
        None if is(range.subty, "*") => Some(Subtype::Any { named: 2 }),
        _ => None,
    }
}

fn is(name: mediatype::Name<'_>, text: &str) -> bool {
    name.as_str().eq_ignore_ascii_case(text)
}

/// The weight in thousandths, 1000 without one; `None` for what is no weight.
fn weight(range: &MediaType<'_>) -> Option<u16> {
    let named_q = |(name, _): &&(mediatype::Name<'_>, _)| name.as_str().eq_ignore_ascii_case("q");
    match range.params.iter().find(named_q) {
        Some((_, value)) => thousandths(value.as_str()),
        None => Some(1000),
    }
}

/// `0`, `0.25`, `1.000`: at most three decimals, and at most 1.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if !matches!(whole, "0" | "1") || decimals.len() > 3 || !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let weight: u16 = format!("{whole}{decimals:0<3}").parse().ok()?;
    (weight <= 1000).then_some(weight)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn accepting(lines: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT, HeaderValue::from_str(line).unwrap());
        }
        prefers_problem(&headers)
    }

    #[test]
    fn problem_details_are_for_those_who_prefer_them() {
        for line in [
            "application/problem+json",
            "Application/Problem+JSON",
            "application/problem+json, application/json;q=0.9",
            "application/json;q=0.9,application/problem+json",
            "application/problem+json, */*",
            "text/html, application/problem+json;q=0.1",
            "application/json;q=0, */*;q=0.1",
            "application/problem+json; charset=utf-8",
            r#"application/problem+json;profile="a,b;q=0", application/json ; q=0.5"#,
            "application/json;q=0.999, application/problem+json;q=1.000",
            ", ,application/problem+json",
            "nonsense, application/problem+json",
        ] {
            assert!(accepting(&[line]), "{line}");
        }
        assert!(accepting(&["application/json;q=0.2", "application/problem+json;q=0.3"]), "several lines");
    }

    #[test]
    fn all_others_get_plain_json() {
        for line in [
            "",
            "*/*",
            "application/*",
            "application/json",
            "application/json, application/problem+json",
            "application/problem+json, application/json",
            "application/problem+json;q=0.5, application/json",
            "application/problem+json;q=0.5, */*",
            "application/problem+json;q=0, */*",
            "application/problem+json;q=0",
            "application/problem+json;q=2",
            "application/problem+json;q=-1",
            "application/problem+json;q=0.0001",
            "application/problem+json;q=high",
            "application/problem+xml",
            "application/problem",
            "text/problem+json",
            "text/html,*/*;q=0.8",
            "application/json, */*;q=0.5",
            "application/problem+json;profile=\"never closed",
        ] {
            assert!(!accepting(&[line]), "{line}");
        }
        assert!(!accepting(&[]));
    }

    proptest! {
        #[test]
        fn every_legal_weight_is_read_and_no_other(text in "[01]?[.]?[0-9]{0,4}") {
            let legal = text.parse::<f64>().ok().filter(|q| *q <= 1.0).filter(|_| {
                let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
                whole.len() == 1 && decimals.len() <= 3
            });
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
            let expected = legal.map(|q| (q * 1000.0).round() as u16);
            prop_assert_eq!(thousandths(&text), expected);
        }

        #[test]
        fn the_greater_of_two_weights_wins(problem in 0_u16..=1000, json in 0_u16..=1000, swapped: bool) {
            let q = |weight: u16| format!("{}.{:03}", weight / 1000, weight % 1000);
            let mut ranges =
                [format!("application/problem+json;q={}", q(problem)), format!("application/json;Q={}", q(json))];
            if swapped {
                ranges.reverse();
            }
            prop_assert_eq!(accepting(&[&ranges.join(", ")]), problem > json);
            prop_assert_eq!(accepting(&[&ranges[0], &ranges[1]]), problem > json);
        }

        #[test]
        fn nothing_in_an_accept_line_stops_it(line in "[ -~]{0,60}") {
            let _ = accepting(&[&line]);
        }
    }
}
