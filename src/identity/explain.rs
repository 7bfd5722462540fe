//! What a walk saw, for people.

use std::fmt;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName};

use super::forwarded::{Entry, MAX_ENTRIES};
use super::walk::{Found, Trace};
use super::{Notes, RequestHead};
use crate::key::Key;

/// Characters of one header line or entry that are kept.
const MAX_TEXT: usize = 512;

/// Why a request is counted under the identity it is counted under: the answer
/// to "why does this client share a bucket?".
///
/// Made by [`ClientIp::explain`](super::ClientIp::explain). `Display` writes
/// several lines that **hold addresses and header values**: for an operator,
/// not for a log that many can read. `Debug` holds none.
#[derive(Clone)]
pub struct Explanation {
    peer: Option<IpAddr>,
    header: Option<HeaderName>,
    lines: Vec<String>,
    hops: Vec<Hop>,
    client: Option<IpAddr>,
    key: Key,
    notes: Notes,
}

impl Explanation {
    /// Before the walk: the lines of the headers that it may read.
    pub(super) fn new<'h>(head: &RequestHead<'_>, headers: impl Iterator<Item = &'h HeaderName>) -> Self {
        Self {
            peer: None,
            header: None,
            lines: headers.flat_map(|name| seen_lines(head.headers(), name)).take(MAX_ENTRIES).collect(),
            hops: Vec::new(),
            client: None,
            key: Key::builder().finish(),
            notes: Notes::default(),
        }
    }

    /// After the walk: where it ended, and the key that this gives.
    pub(super) fn conclude(self, found: Found, key: Key) -> Self {
        Self { client: found.client, notes: found.notes, key, ..self }
    }

    /// The other end of the connection. `None` if the server does not tell.
    #[must_use]
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// The name of the header that was read, in lower case; behind a CDN the
    /// CDN's. `None` if no header was believed.
    #[must_use]
    pub fn header(&self) -> Option<&str> {
        self.header.as_ref().map(HeaderName::as_str)
    }

    /// The lines of the configured headers as `name: value`, believed or not.
    /// At most 32 of 512 characters; what is not printable is replaced.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The verdict on each hop in the order of the walk, from the peer on.
    #[must_use]
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }

    /// The whole address that is held to be the client's. `None` if there is
    /// no address at all.
    #[must_use]
    pub fn client(&self) -> Option<IpAddr> {
        self.client
    }

    /// The text that is counted: what comes behind `<policy>:rl:` in the store.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.key.as_str()
    }

    /// The same as a key: what
    /// [`PolicyHandle::store_key`](crate::PolicyHandle::store_key) takes.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What was odd.
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.notes
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        match &self.header {
            Some(name) => writeln!(f, "read: {name}")?,
            None => writeln!(f, "read: no header")?,
        }
        for hop in &self.hops {
            writeln!(f, "hop: {} ({})", hop.text, hop.verdict)?;
        }
        match self.client {
            Some(ip) => writeln!(f, "client: {ip}")?,
            None => writeln!(f, "client: unknown")?,
        }
        for line in self.notes.advice() {
            writeln!(f, "note: {line}")?;
        }
        write!(f, "identity: {}", self.identity())
    }
}

impl fmt::Debug for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explanation")
            .field("header", &self.header)
            .field("hops", &self.hops)
            .field("key", &self.key)
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}

impl Trace for Explanation {
    fn peer(&mut self, peer: Option<IpAddr>, verdict: HopVerdict) {
        self.peer = peer;
        let text = peer.map_or_else(|| "no peer address".to_owned(), |ip| ip.to_string());
        self.hops.push(Hop { text, verdict });
    }

    fn read(&mut self, header: &HeaderName) {
        self.header = Some(header.clone());
    }

    fn entry(&mut self, text: &[u8], verdict: HopVerdict) {
        let text = printable(text.trim_ascii());
        self.hops.push(Hop { text, verdict });
    }

    fn unread<'a>(&mut self, entries: impl Iterator<Item = Entry<'a>>) {
        for entry in entries.take(MAX_ENTRIES) {
            match entry {
                Entry::Address(_, text) | Entry::Unreadable(text) => self.entry(text, HopVerdict::NotReached),
                Entry::OutOfBounds => self.entry(b"...", HopVerdict::NotReached),
            }
        }
    }
}

/// One hop of the way that a request came.
#[derive(Clone, PartialEq, Eq)]
pub struct Hop {
    text: String,
    verdict: HopVerdict,
}

impl Hop {
    /// The peer's address, or the entry as the header has it; at most 512
    /// characters, what is not printable replaced.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What became of it.
    #[must_use]
    pub fn verdict(&self) -> HopVerdict {
        self.verdict
    }
}

impl fmt::Debug for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hop({})", self.verdict)
    }
}

/// The verdict on one [`Hop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HopVerdict {
    /// Trusted: what it says about the hop before it is believed.
    TrustedProxy,
    /// The CDN's: its own header is believed.
    Cdn,
    /// Trusted by nobody: the client.
    Client,
    /// No address can be read here, so the walk ended before it.
    Unreadable,
    /// The walk ended before it came here: anyone may have written this.
    NotReached,
    /// The connection has no peer address, and its socket is not trusted.
    NoAddress,
}

impl fmt::Display for HopVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TrustedProxy => "trusted proxy",
            Self::Cdn => "cdn",
            Self::Client => "client",
            Self::Unreadable => "unreadable",
            Self::NotReached => "not reached",
            Self::NoAddress => "no address",
        })
    }
}

impl Notes {
    /// What was odd and what to do about it, one line each, for an operator.
    pub fn advice(self) -> impl Iterator<Item = &'static str> {
        [
            (
                Self::NO_PEER,
                "no peer address: serve with `into_make_service_with_connect_info::<SocketAddr>()`",
            ),
            (
                Self::UNTRUSTED_FORWARDED,
                "a forwarding header from a private peer that is not among the trusted proxies",
            ),
            (Self::PAST_CDN, "the request did not come through the configured CDN"),
            (Self::SHORT_CHAIN, "fewer forwarding entries than configured hops"),
            (
                Self::UNREADABLE,
                "the walk ended where no address could be read: counted by the last address that is certain",
            ),
        ]
        .into_iter()
        .filter(move |(note, _)| self.contains(*note))
        .map(|(_, line)| line)
    }
}

fn seen_lines(headers: &HeaderMap, name: &HeaderName) -> impl Iterator<Item = String> {
    headers.get_all(name).iter().map(move |value| format!("{name}: {}", printable(value.as_bytes())))
}

/// Readable, bounded, and free of control characters: a client wrote this, and
/// a terminal may show it.
fn printable(text: &[u8]) -> String {
    // A character has at most four bytes; the cut may split the last one.
    let text = &text[..text.len().min(4 * MAX_TEXT)];
    String::from_utf8_lossy(text)
        .chars()
        .map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char })
        .take(MAX_TEXT)
        .collect()
}
