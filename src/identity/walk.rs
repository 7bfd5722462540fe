//! Walks a chain of proxies back to the client.
//!
//! There is one walk. [`ClientIp::identify`](super::ClientIp) runs it with
//! [`Silent`], which compiles to nothing; `ClientIp::explain` runs it with a
//! trace that takes notes. So what is explained is what is enforced. It does
//! not allocate.

use std::net::IpAddr;

use http::HeaderName;

use super::forwarded::{Entry, ForwardingHeader, has_forwarding_header};
use super::ranges::Ranges;
use super::{HopVerdict, Notes, RequestHead};

/// Whose word is taken for what.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub(super) trust: Trust,
    pub(super) header: ForwardingHeader,
    pub(super) cdn: Option<Cdn>,
    /// Whether a connection without a peer address comes from a proxy.
    pub(super) trust_unix_socket: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Trust {
    /// Hops in these ranges. None by default.
    Ranges(Ranges),
    /// This many hops, whatever their address. At least one.
    Hops(usize),
}

/// A CDN in front of the operator's own proxies.
#[derive(Clone, Debug)]
pub(super) struct Cdn {
    pub(super) ranges: Ranges,
    pub(super) header: ForwardingHeader,
}

/// Where a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// `None`: there is no address at all.
    pub(super) client: Option<IpAddr>,
    pub(super) notes: Notes,
}

impl Found {
    fn new(client: Option<IpAddr>, notes: Notes) -> Self {
        match client {
            Some(_) => Self { client, notes },
            None => Self { client, notes: notes.with(Notes::NO_PEER) },
        }
    }
}

/// Sees each step of a walk.
pub(super) trait Trace {
    /// The connection itself was judged.
    fn peer(&mut self, _peer: Option<IpAddr>, _verdict: HopVerdict) {}
    /// The entries that follow are those of `header`.
    fn read(&mut self, _header: &HeaderName) {}
    /// An entry was judged.
    fn entry(&mut self, _text: &[u8], _verdict: HopVerdict) {}
    /// The walk ended with these entries unread.
    fn unread<'a>(&mut self, _entries: impl Iterator<Item = Entry<'a>>) {}
}

/// The trace of a walk that nobody watches.
pub(super) struct Silent;

impl Trace for Silent {}

impl Walk {
    pub(super) fn run(&self, head: &RequestHead<'_>, trace: &mut impl Trace) -> Found {
        let peer = head.peer();
        if peer.is_none() && !self.trust_unix_socket {
            trace.peer(None, HopVerdict::NoAddress);
            return Found::new(None, Notes::default());
        }
        match &self.trust {
            Trust::Ranges(trusted) => self.past_ranges(trusted, peer, head, trace),
            Trust::Hops(hops) => self.past_hops(*hops, peer, head, trace),
        }
    }

    /// Past hops in trusted ranges; the first other address is the client.
    fn past_ranges(
        &self,
        trusted: &Ranges,
        peer: Option<IpAddr>,
        head: &RequestHead<'_>,
        trace: &mut impl Trace,
    ) -> Found {
        let verdict = peer.map_or(HopVerdict::TrustedProxy, |ip| self.judge(trusted, ip));
        trace.peer(peer, verdict);
        match verdict {
            HopVerdict::TrustedProxy => {}
            HopVerdict::Cdn => return self.behind_cdn(peer, head, trace),
            _ => return self.untrusted_peer(peer, head),
        }
        trace.read(self.header.name());
        let mut last = peer;
        let mut entries = self.header.entries(head.headers());
        while let Some(entry) = entries.next() {
            let Some((ip, text)) = address(entry, trace) else {
                trace.unread(entries);
                return Found::new(last, Notes::UNREADABLE);
            };
            last = Some(ip);
            let verdict = self.judge(trusted, ip);
            trace.entry(text, verdict);
            if verdict != HopVerdict::TrustedProxy {
                let found = match verdict {
                    HopVerdict::Cdn => self.behind_cdn(last, head, trace),
                    _ => Found::new(last, self.past_cdn()),
                };
                trace.unread(entries);
                return found;
            }
        }
        // Nobody but proxies: the leftmost of them asks on its own account.
        Found::new(last, Notes::default())
    }

    /// Past a number of hops. Their addresses prove nothing, so whenever the
    /// count does not work out only the peer is certain.
    fn past_hops(
        &self,
        hops: usize,
        peer: Option<IpAddr>,
        head: &RequestHead<'_>,
        trace: &mut impl Trace,
    ) -> Found {
        trace.peer(peer, HopVerdict::TrustedProxy);
        trace.read(self.header.name());
        let mut entries = self.header.entries(head.headers());
        let mut passed = 1;
        while let Some(entry) = entries.next() {
            let Some((ip, text)) = address(entry, trace) else {
                trace.unread(entries);
                return Found::new(peer, Notes::UNREADABLE);
            };
            if passed == hops {
                trace.entry(text, HopVerdict::Client);
                trace.unread(entries);
                return Found::new(Some(ip), Notes::default());
            }
            trace.entry(text, HopVerdict::TrustedProxy);
            passed += 1;
        }
        Found::new(peer, Notes::SHORT_CHAIN)
    }

    /// The CDN is asked first: where its ranges overlap with one's own, a hop
    /// in both is the CDN's.
    fn judge(&self, trusted: &Ranges, ip: IpAddr) -> HopVerdict {
        if self.cdn.as_ref().is_some_and(|cdn| cdn.ranges.contains(ip)) {
            HopVerdict::Cdn
        } else if trusted.contains(ip) {
            HopVerdict::TrustedProxy
        } else {
            HopVerdict::Client
        }
    }

    /// Behind a hop that is the CDN's, its own header says who the client is.
    fn behind_cdn(&self, hop: Option<IpAddr>, head: &RequestHead<'_>, trace: &mut impl Trace) -> Found {
        let Some(cdn) = &self.cdn else {
            return Found::new(hop, Notes::default());
        };
        trace.read(cdn.header.name());
        let entry = cdn.header.entries(head.headers()).next();
        match entry.and_then(|entry| address(entry, trace)) {
            Some((ip, text)) => {
                trace.entry(text, HopVerdict::Client);
                Found::new(Some(ip), Notes::default())
            }
            // A CDN always sets it, so a header that is not there is as odd as
            // one that says nothing.
            None => Found::new(hop, Notes::UNREADABLE),
        }
    }

    fn untrusted_peer(&self, peer: Option<IpAddr>, head: &RequestHead<'_>) -> Found {
        let notes = self.past_cdn().with(Notes::UNTRUSTED_PEER);
        // A private peer with such a header is most likely a proxy that nobody
        // declared, and all its clients share a bucket.
        if peer.is_some_and(is_private) && self.has_forwarding_header(head) {
            return Found::new(peer, notes.with(Notes::UNTRUSTED_FORWARDED));
        }
        Found::new(peer, notes)
    }

    pub(super) fn has_forwarding_header(&self, head: &RequestHead<'_>) -> bool {
        head.headers().contains_key(self.header.name()) || has_forwarding_header(head)
    }

    fn past_cdn(&self) -> Notes {
        match self.cdn {
            Some(_) => Notes::PAST_CDN,
            None => Notes::default(),
        }
    }
}

/// The address in an entry; one that has none is traced at once.
fn address<'a>(entry: Entry<'a>, trace: &mut impl Trace) -> Option<(IpAddr, &'a [u8])> {
    match entry {
        Entry::Address(ip, text) => Some((ip, text)),
        Entry::Unreadable(text) => {
            trace.entry(text, HopVerdict::Unreadable);
            None
        }
        Entry::OutOfBounds => {
            trace.entry(b"...", HopVerdict::NotReached);
            None
        }
    }
}

/// Whether an address is of the kind that proxies inside a network have.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            // RFC 6598: carriers, and the pods of some clusters.
            let is_shared = a == 100 && b & 0xC0 == 64;
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared
        }
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}
