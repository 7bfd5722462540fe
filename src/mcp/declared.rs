//! What the headers of a request declare, where its protocol guarantees that the
//! server compares them with the body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};

use super::message::{Item, TOOLS_CALL};

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The first protocol whose servers refuse headers that differ from the body.
const FIRST: &str = "2026-07-28";

/// Method and, of a call, the tool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Declared {
    pub(super) method: Box<str>,
    pub(super) tool: Option<Box<str>>,
}

impl Declared {
    /// Nothing where the protocol is older or unknown, or where a header is
    /// missing, stands twice or cannot be decoded: the body is looked at then.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        if !is_modern(headers) {
            return None;
        }
        let method = decoded(only(headers, &METHOD)?)?;
        let tool = match &*method {
            TOOLS_CALL => Some(decoded(only(headers, &NAME)?)?),
            _ => None,
        };
        Some(Self { method, tool })
    }

    pub(super) fn is_call(&self) -> bool {
        self.tool.is_some()
    }

    /// Whether the body says the same.
    pub(super) fn agrees_with(&self, item: &Item) -> bool {
        item.method.as_ref() == Some(&self.method) && item.tool == self.tool
    }
}

/// Whether the protocol is the one of 2026-07-28 or later: versions are dates,
/// and anything else is not known to compare.
pub(super) fn is_modern(headers: &HeaderMap) -> bool {
    let is_date = |version: &str| {
        version.len() == FIRST.len()
            && version.bytes().enumerate().all(|(i, byte)| match i {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            })
    };
    only(headers, &VERSION).is_some_and(|version| is_date(version) && version >= FIRST)
}

/// The value of a header that stands once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?;
    if lines.next().is_some() { None } else { line.to_str().ok() }
}

/// Text, or `=?base64?<base64 of UTF-8>?=`.
fn decoded(value: &str) -> Option<Box<str>> {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => {
            let text = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
            Some(text.into())
        }
        None => Some(value.into()),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn declared(lines: &[(&'static str, &str)]) -> Option<(String, Option<String>)> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        Declared::of(&headers).map(|found| (found.method.into(), found.tool.map(Into::into)))
    }

    const NEW: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
    const CALL: (&str, &str) = ("mcp-method", "tools/call");

    #[test]
    fn a_protocol_that_compares_is_believed() {
        let call = |name: &str| Some(("tools/call".to_owned(), Some(name.to_owned())));
        assert_eq!(declared(&[NEW, CALL, ("mcp-name", "echo")]), call("echo"));
        assert_eq!(declared(&[NEW, CALL, ("mcp-name", "=?base64?w6ljaG8=?=")]), call("\u{e9}cho"));
        // Another spelling of the mark is a name like any other.
        assert_eq!(declared(&[NEW, CALL, ("mcp-name", "=?BASE64?ZQ==?=")]), call("=?BASE64?ZQ==?="));
        let later = ("mcp-protocol-version", "2027-01-15");
        assert_eq!(declared(&[later, ("mcp-method", "ping")]), Some(("ping".to_owned(), None)));
    }

    #[test]
    fn what_may_not_be_compared_is_not_believed() {
        for version in ["2025-11-25", "2026-07-27", "draft", "2026-07-28x", "zzzz-zz-zz", "2026/07/28", ""] {
            let version = ("mcp-protocol-version", version);
            assert_eq!(declared(&[version, CALL, ("mcp-name", "echo")]), None, "{version:?}");
        }
        for lines in [
            &[CALL, ("mcp-name", "echo")][..],
            &[NEW, ("mcp-name", "echo")],
            &[NEW, CALL],
            &[NEW, NEW, CALL, ("mcp-name", "echo")],
            &[NEW, CALL, CALL, ("mcp-name", "echo")],
            &[NEW, CALL, ("mcp-name", "echo"), ("mcp-name", "execute_code")],
            &[NEW, CALL, ("mcp-name", "=?base64?w6ljaG8?=")],
            &[NEW, CALL, ("mcp-name", "=?base64?/w==?=")],
        ] {
            assert_eq!(declared(lines), None, "{lines:?}");
        }
    }
}
