//! Which paths a rule is for.

use std::fmt;
use std::sync::Arc;

use percent_encoding::percent_decode_str;

use crate::identity::RequestHead;

/// A pattern of paths, in axum's notation: `/auth/login`, `/api/{id}/x`,
/// `/auth/{*rest}`.
///
/// Where a router has matched, it is compared with the router's own pattern, which
/// decides who handles the request, and with the path as it is: a router may send
/// all of `/{*rest}` on. Where none has, it is compared with the path, and so that
/// no spelling slips past, empty segments and `.` are passed over and `%XX` is what
/// it stands for. A service that takes fewer paths for one is limited a little more
/// than it must be; a rule that limits nothing is for one spelling only, or a
/// client could choose one that is free.
///
/// A matching tree such as `matchit` finds the most specific of its patterns and
/// takes no two that overlap; here the first in order applies.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    text: Arc<str>,
    segments: Box<[Segment]>,
}

#[derive(Clone, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    /// `{name}`: one segment, whatever it is.
    One,
    /// `{*name}`: one segment or more.
    Rest,
}

impl Pattern {
    /// `None` if it does not start with a slash, or a brace is not the first and
    /// last of its segment, or `{*rest}` is not the last one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut segments = Vec::new();
        for part in text.strip_prefix('/')?.split('/').filter(|part| !part.is_empty()) {
            if matches!(segments.last(), Some(Segment::Rest)) {
                return None;
            }
            let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            let segment = match name {
                Some(name) => match name.strip_prefix('*') {
                    Some(rest) if is_name(rest) => Segment::Rest,
                    None if is_name(name) => Segment::One,
                    _ => return None,
                },
                None if part.contains(['{', '}', '%', '?', '#']) || part == "." => return None,
                None => Segment::Literal(part.into()),
            };
            segments.push(segment);
        }
        Some(Self { text: text.into(), segments: segments.into() })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn matches(&self, head: &RequestHead<'_>, any_spelling: bool) -> bool {
        let exactly = |path| self.matches_text(path, |_| true, |literal, part| literal == part);
        match head.matched_path() {
            Some(route) => exactly(route) || exactly(head.path()),
            None if !any_spelling => exactly(head.path()),
            None => self.matches_text(
                head.path(),
                |part| !matches!(part, "" | "."),
                |literal, part| {
                    literal == part
                        || part.contains('%')
                            && percent_decode_str(part).eq(literal.as_bytes().iter().copied())
                },
            ),
        }
    }

    fn matches_text(
        &self,
        path: &str,
        counts: impl Fn(&str) -> bool,
        is: impl Fn(&str, &str) -> bool,
    ) -> bool {
        let path = path.strip_prefix('/').unwrap_or(path);
        // The root has no segment.
        let mut parts = path.split('/').filter(|part| !path.is_empty() && counts(part));
        for segment in &self.segments {
            match (segment, parts.next()) {
                (Segment::Literal(literal), Some(part)) if is(literal, part) => {}
                (Segment::One, Some(part)) if !part.is_empty() => {}
                (Segment::Rest, Some(part)) => return !part.is_empty() || parts.next().is_some(),
                _ => return false,
            }
        }
        parts.next().is_none()
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(['{', '}', '*'])
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        matches_in(pattern, path, true)
    }

    fn matches_in(pattern: &str, path: &str, any_spelling: bool) -> bool {
        let request = Request::get(path).body(()).unwrap();
        Pattern::parse(pattern).unwrap().matches(&RequestHead::new(&request), any_spelling)
    }

    #[test]
    fn a_pattern_takes_literals_one_segment_and_a_rest() {
        for (pattern, inside, outside) in [
            ("/auth/login", ["/auth/login", "/auth/login?next=/"], ["/auth", "/auth/login/x"]),
            ("/api/{id}/x", ["/api/7/x", "/api/a%2Fb/x"], ["/api/x", "/api/7/y"]),
            ("/auth/{*rest}", ["/auth/me", "/auth/a/b/c"], ["/auth", "/author/me"]),
            ("/", ["/", "/?x"], ["/a", "/a/b"]),
            ("/{*rest}", ["/a", "/a/b"], ["/", "/."]),
        ] {
            for path in inside {
                assert!(matches(pattern, path), "{pattern} {path}");
                assert!(matches_in(pattern, path, false), "{pattern} {path}");
            }
            for path in outside {
                assert!(!matches(pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn o_key_3_no_spelling_of_a_path_slips_past_a_rule() {
        for path in [
            "/auth/login",
            "//auth/login",
            "/auth/login/",
            "/auth/./login",
            "/auth/%6cogin",
            "/%61uth//login",
        ] {
            assert!(matches("/auth/login", path), "{path}");
            assert_eq!(matches_in("/auth/login", path, false), path == "/auth/login", "{path}");
        }
        for path in ["/auth/%6Cogi", "/auth/log%zz", "/auth/login%2F", "/AUTH/login"] {
            assert!(!matches("/auth/login", path), "{path}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "",
            "auth",
            "auth/",
            "/{",
            "/{}",
            "/{*}",
            "/{*rest}/x",
            "/a{b}",
            "/{a}b",
            "/{a}{b}",
            "/a?b",
            "/%61",
            "/./a",
        ] {
            assert_eq!(Pattern::parse(text), None, "{text}");
        }
    }
}
