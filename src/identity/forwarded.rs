//! The entries of a forwarding header, last one first.
//!
//! A proxy appends on the right, so the list is taken apart from the right:
//! what a client wrote further left, an unbalanced quote for one, can end the
//! reading there but never reach into an entry that a proxy appended.

use std::iter::Rev;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{FORWARDED, HeaderMap, HeaderName, HeaderValue, ValueIter};

use super::RequestHead;

/// No chain of real proxies is this long.
pub(super) const MAX_ENTRIES: usize = 32;

/// Bytes of one header that are looked at, counted from the right.
const MAX_BYTES: usize = 8 * 1024;

/// The longest entry that can be an address, with room for an obfuscated port.
const MAX_NODE_LEN: usize = 64;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What proxies usually write, to notice one that nobody declared.
static WELL_KNOWN: [HeaderName; 5] = [
    X_FORWARDED_FOR,
    FORWARDED,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("true-client-ip"),
];

/// Whether the request carries a header by which proxies usually tell who the
/// client is. Costs a few look-ups: call it when something is odd already.
pub(crate) fn has_forwarding_header(head: &RequestHead<'_>) -> bool {
    WELL_KNOWN.iter().any(|name| head.headers().contains_key(name))
}

/// One header and how it is written.
#[derive(Clone, Debug)]
pub(super) struct ForwardingHeader {
    name: HeaderName,
    syntax: Syntax,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    /// `X-Forwarded-For`: a list of nodes.
    Nodes,
    /// `Forwarded`: a list of elements (RFC 7239, section 4).
    Elements,
    /// One node.
    Single,
    /// `CloudFront-Viewer-Address`: one `ip:port`, an IPv6 address unbracketed.
    ViewerAddress,
}

impl ForwardingHeader {
    pub(super) fn x_forwarded_for() -> Self {
        Self::new(X_FORWARDED_FOR)
    }

    pub(super) fn new(name: HeaderName) -> Self {
        let syntax = match name.as_str() {
            "x-forwarded-for" => Syntax::Nodes,
            "forwarded" => Syntax::Elements,
            "cloudfront-viewer-address" => Syntax::ViewerAddress,
            _ => Syntax::Single,
        };
        Self { name, syntax }
    }

    pub(super) fn name(&self) -> &HeaderName {
        &self.name
    }

    /// Whether it holds a chain, rather than one address.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.syntax, Syntax::Nodes | Syntax::Elements)
    }

    /// All entries of all lines, from the right. A header of one value that
    /// has several lines is one unreadable entry: who wrote which is unknown.
    pub(super) fn entries<'a>(&self, headers: &'a HeaderMap) -> Entries<'a> {
        Entries {
            lines: headers.get_all(&self.name).iter().rev(),
            rest: None,
            syntax: self.syntax,
            entries_left: MAX_ENTRIES,
            bytes_left: MAX_BYTES,
        }
    }
}

/// One entry of a forwarding header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// An address, IPv4-mapped ones as IPv4, and the text that said so.
    Address(IpAddr, &'a [u8]),
    /// Empty, `unknown`, obfuscated, or no address at all.
    Unreadable(&'a [u8]),
    /// More entries or bytes than are looked at. Nothing follows.
    OutOfBounds,
}

pub(super) struct Entries<'a> {
    lines: Rev<ValueIter<'a, HeaderValue>>,
    /// What is left of the current line.
    rest: Option<&'a [u8]>,
    syntax: Syntax,
    entries_left: usize,
    bytes_left: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let line = match self.rest.take() {
            Some(rest) => rest,
            None => self.lines.next()?.as_bytes(),
        };
        match self.syntax {
            Syntax::Single | Syntax::ViewerAddress => Some(self.only(line)),
            Syntax::Nodes | Syntax::Elements => Some(self.last_of(line)),
        }
    }
}

impl<'a> Entries<'a> {
    fn only(&mut self, line: &'a [u8]) -> Entry<'a> {
        match self.lines.by_ref().last() {
            Some(_) => Entry::Unreadable(line),
            None => self.syntax.read(line),
        }
    }

    fn last_of(&mut self, line: &'a [u8]) -> Entry<'a> {
        if self.entries_left == 0 {
            return self.out_of_bounds();
        }
        self.entries_left -= 1;
        match split_last(line, self.bytes_left) {
            Split::Entry { entry, rest } => {
                self.rest = rest;
                self.bytes_left -= entry.len();
                self.syntax.read(entry)
            }
            Split::Unbalanced => {
                self.bytes_left = self.bytes_left.saturating_sub(line.len());
                Entry::Unreadable(line)
            }
            Split::OutOfBounds => self.out_of_bounds(),
        }
    }

    fn out_of_bounds(&mut self) -> Entry<'a> {
        self.rest = None;
        // Bounded by what the HTTP server lets in, and only once a request.
        let _ = self.lines.by_ref().last();
        Entry::OutOfBounds
    }
}

enum Split<'a> {
    Entry {
        entry: &'a [u8],
        rest: Option<&'a [u8]>,
    },
    /// A quote that nothing opens.
    Unbalanced,
    OutOfBounds,
}

/// Splits `line` at its last comma outside a quoted string. At most `limit`
/// bytes of it are looked at.
fn split_last(line: &[u8], limit: usize) -> Split<'_> {
    let start = line.len().saturating_sub(limit);
    let mut at = line.len();
    while at > start {
        at -= 1;
        match line[at] {
            b',' => {
                return Split::Entry { entry: &line[at + 1..], rest: Some(&line[..at]) };
            }
            b'"' => match opening_quote(&line[start..at]) {
                Some(opening) => at = start + opening,
                None => return Split::Unbalanced,
            },
            _ => {}
        }
    }
    if start > 0 {
        return Split::OutOfBounds;
    }
    Split::Entry { entry: line, rest: None }
}

/// Where the quoted string opens whose closing quote follows `before`: at the
/// last quote that no backslash escapes.
fn opening_quote(before: &[u8]) -> Option<usize> {
    let is_escaped = |at: usize| {
        let backslashes = before[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
        backslashes % 2 == 1
    };
    if is_escaped(before.len()) {
        return None;
    }
    (0..before.len()).rev().find(|&at| before[at] == b'"' && !is_escaped(at))
}

impl Syntax {
    fn read(self, text: &[u8]) -> Entry<'_> {
        let trimmed = text.trim_ascii();
        let ip = match self {
            Self::Nodes | Self::Single => node(trimmed),
            Self::Elements => forwarded_for(trimmed).and_then(node),
            Self::ViewerAddress => viewer_address(trimmed),
        };
        match ip {
            Some(ip) => Entry::Address(ip.to_canonical(), text),
            None => Entry::Unreadable(text),
        }
    }
}

/// The value of the one `for` parameter of a `Forwarded` element. Two of them,
/// or none, is nothing to rely on (RFC 7239, section 4: at most once).
fn forwarded_for(element: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    let mut rest = Some(element);
    while let Some(text) = rest {
        let pair;
        (pair, rest) = split_pair(text)?;
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let equals = pair.iter().position(|&byte| byte == b'=')?;
        if pair[..equals].eq_ignore_ascii_case(b"for") && found.replace(&pair[equals + 1..]).is_some() {
            return None;
        }
    }
    found
}

/// Splits `text` at its first semicolon outside a quoted string. `None` when a
/// quoted string does not end.
fn split_pair(text: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let mut quoted = false;
    let mut bytes = text.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                bytes.next();
            }
            b';' if !quoted => return Some((&text[..at], Some(&text[at + 1..]))),
            _ => {}
        }
    }
    (!quoted).then_some((text, None))
}

/// A node (RFC 7239, section 6), quoted or not, and the bare IPv6 address that
/// `X-Forwarded-For` usually has.
fn node(text: &[u8]) -> Option<IpAddr> {
    let mut buffer = [0; MAX_NODE_LEN];
    let text = match text.strip_prefix(b"\"") {
        Some(quoted) => unquote(quoted, &mut buffer)?,
        None => text,
    };
    if text.len() > MAX_NODE_LEN {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    // The whole text first: a bare IPv6 address has colons but no port.
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    if let Some(bracketed) = text.strip_prefix('[') {
        let (ip, port) = bracketed.split_once(']')?;
        let ip: Ipv6Addr = ip.parse().ok()?;
        let plausible = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return plausible.then_some(ip.into());
    }
    let (ip, port) = text.split_once(':')?;
    let ip: Ipv4Addr = ip.parse().ok()?;
    is_port(port).then_some(ip.into())
}

/// The content of a quoted string of which the opening quote is gone.
fn unquote<'b>(text: &[u8], buffer: &'b mut [u8; MAX_NODE_LEN]) -> Option<&'b [u8]> {
    let content = text.strip_suffix(b"\"")?;
    let mut len = 0;
    let mut bytes = content.iter();
    while let Some(&byte) = bytes.next() {
        let byte = match byte {
            b'"' => return None,
            b'\\' => *bytes.next()?,
            _ => byte,
        };
        *buffer.get_mut(len)? = byte;
        len += 1;
    }
    Some(&buffer[..len])
}

/// `node-port` of RFC 7239: up to five digits, or an obfuscated one.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// `ip:port`, where an IPv6 address has no brackets: only the last colon is
/// not its own.
fn viewer_address(text: &[u8]) -> Option<IpAddr> {
    let (ip, port) = std::str::from_utf8(text).ok()?.rsplit_once(':')?;
    let ip = ip.parse().ok()?;
    is_port(port).then_some(ip)
}

#[cfg(test)]
mod tests;
