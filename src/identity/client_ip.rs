//! The client's address: what is configured, and what it is counted as.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use http::HeaderName;
use thiserror::Error;

use super::explain::Explanation;
use super::forwarded::{ForwardingHeader, MAX_ENTRIES};
use super::ranges::Ranges;
use super::walk::{Cdn, Silent, Trust, Walk};
use super::{Identified, Identify, RequestHead};
use crate::key::{Key, KeyBuilder};

/// A shorter one would group the customers of several providers.
pub(crate) const IPV6_PREFIXES: RangeInclusive<u8> = 32..=128;
const IPV4_PREFIXES: RangeInclusive<u8> = 1..=32;

/// Limits by the client's address. Cheap to clone.
///
/// # What is accepted
///
/// 1. By default ([`peer`](Self::peer)) the client is the other end of the
///    connection, and **no header is read**: whoever connects can write any.
/// 2. Behind proxies ([`behind`](Self::behind)) the operator names their ranges.
///    If the peer is in them, exactly one header (`X-Forwarded-For` unless
///    [`header`](Self::header) says otherwise) is read, all its lines
///    joined, from the right to the left. Each proxy appends the address that
///    it saw, so the first entry that is not a trusted proxy is the client.
/// 3. Where proxies have no fixed addresses, their number can be given
///    ([`hops`](Self::hops)).
/// 4. Behind a CDN and one's own balancer ([`cdn`](Self::cdn)) the walk passes
///    one's own hops; if the next is the CDN's, the CDN's header is believed.
///
/// An entry may be `203.0.113.9`, `203.0.113.9:52241`, `2001:db8::9`,
/// `[2001:db8::9]`, `[2001:db8::9]:443`, each of them quoted; in `Forwarded`
/// (RFC 7239) it is the value of `for`. IPv4-mapped IPv6 is IPv4 everywhere: in
/// the peer, in entries and in ranges.
///
/// # What is refused
///
/// * A header from a peer that is not trusted, and any header but the
///   configured one: falling through a list of headers is the classic spoof.
/// * An entry without an address: empty, `unknown`, `_hidden`, garbage. It
///   **ends the walk**, because what stands left of it is vouched for by
///   nobody. The last hop that is certain is the client then, and the request
///   is noted ([`Notes::UNREADABLE`](super::Notes::UNREADABLE)).
/// * Everything behind 32 entries or 8 KiB of header, in the same way.
/// * A second line of a header that has one value (`X-Real-IP`,
///   `CF-Connecting-IP`, ...): who wrote which line cannot be known.
///
/// Nothing here fails: every request has an identity, if only the one that all
/// requests without a peer address share ([`Notes::NO_PEER`](super::Notes::NO_PEER)).
///
/// # Deployment caveats
///
/// * A trusted range is a promise that **nobody but proxies** connects from it
///   and that these append to, or overwrite, the header. A range that holds
///   clients lets them choose their identity; `0.0.0.0/0` lets everyone.
/// * A hop count is weaker: whoever reaches the service past a proxy writes the
///   missing entries. Use it where the network admits only proxies.
/// * A proxy that passes `CF-Connecting-IP` or `X-Real-IP` on from the client
///   makes it worthless. Name such a header only if your proxy overwrites it.
/// * Cloudflare's "Pseudo IPv4: overwrite headers" puts an invented IPv4
///   address of class E into `CF-Connecting-IP`: leave it off.
/// * Addresses are shared by the clients of a carrier or an office. A policy
///   that blocks should count failures, or more than the address;
///   [`never_block`](Self::never_block) exempts addresses that are known.
///
/// # Example
///
/// ```
/// use std::net::IpAddr;
///
/// use http::Request;
/// use tower_ratelimit::identity::{ClientIp, RequestHead};
///
/// let clients = ClientIp::behind(["10.0.0.0/8"])?;
///
/// // The client wrote the first entry itself, the balancer the second.
/// let request = Request::builder()
///     .header("x-forwarded-for", "198.51.100.1, 203.0.113.9")
///     .extension("10.0.0.5".parse::<IpAddr>()?)
///     .body(())?;
/// let why = clients.explain(&RequestHead::new(&request));
/// assert_eq!(why.identity(), "203.0.113.9");
///
/// // Straight from the internet: the header is not even read.
/// let request = Request::builder()
///     .header("x-forwarded-for", "198.51.100.1")
///     .extension("203.0.113.50".parse::<IpAddr>()?)
///     .body(())?;
/// let why = clients.explain(&RequestHead::new(&request));
/// assert_eq!(why.identity(), "203.0.113.50");
/// assert_eq!(why.header(), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an identity does nothing until a layer has it"]
pub struct ClientIp(Arc<Config>);

#[derive(Clone, Debug)]
struct Config {
    walk: Walk,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    never_block: Ranges,
}

impl ClientIp {
    /// The other end of the connection; no header is read. The default.
    pub fn peer() -> Self {
        Self::trusting(Trust::Ranges(Ranges::default()))
    }

    /// Behind proxies in these ranges: CIDR texts such as `10.0.0.0/8`, or
    /// single addresses. With no range at all this is [`peer`](Self::peer).
    ///
    /// # Errors
    ///
    /// [`ClientIpError::Range`] for a text that is neither.
    pub fn behind(ranges: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ClientIpError> {
        Ok(Self::trusting(Trust::Ranges(parse_ranges("behind", ranges)?)))
    }

    /// Behind this many proxies, whatever their addresses: 1 if the peer is the
    /// only one. The client is the `hops`-th entry from the right. If there are
    /// fewer, or one on the way cannot be read, the client is the peer.
    ///
    /// # Errors
    ///
    /// [`ClientIpError::Hops`] unless `hops` is 1 to 32.
    pub fn hops(hops: usize) -> Result<Self, ClientIpError> {
        if !(1..=MAX_ENTRIES).contains(&hops) {
            return Err(ClientIpError::Hops(hops));
        }
        Ok(Self::trusting(Trust::Hops(hops)))
    }

    fn trusting(trust: Trust) -> Self {
        Self(Arc::new(Config {
            walk: Walk {
                trust,
                header: ForwardingHeader::x_forwarded_for(),
                cdn: None,
                trust_unix_socket: false,
            },
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            never_block: Ranges::default(),
        }))
    }

    fn change(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The one header that the trusted proxies write. Default:
    /// `x-forwarded-for`, which is a list, as is `forwarded` (RFC 7239). Any
    /// other is taken to hold one address, and is not believed if it has more
    /// than one line. `cloudfront-viewer-address` holds an address and a port.
    ///
    /// # Errors
    ///
    /// * [`ClientIpError::Header`] if this is not a header name.
    /// * [`ClientIpError::NobodyTrusted`] if there is nobody whose header would
    ///   be read: name ranges, hops or the Unix socket first.
    /// * [`ClientIpError::OneEntry`] for a header of one address behind several
    ///   [`hops`](Self::hops).
    pub fn header(self, name: &str) -> Result<Self, ClientIpError> {
        let header = parse_header("header", name)?;
        match &self.0.walk.trust {
            Trust::Ranges(ranges) if ranges.is_empty() && !self.0.walk.trust_unix_socket => {
                Err(ClientIpError::NobodyTrusted { name: name.to_owned() })
            }
            Trust::Hops(2..) if !header.is_list() => Err(ClientIpError::OneEntry { name: name.to_owned() }),
            _ => Ok(self.change(|config| config.walk.header = header)),
        }
    }

    /// Behind a CDN that connects from `ranges` and writes `header`, such as
    /// `cf-connecting-ip`. One's own proxies in front of the service are passed
    /// first; only if the next hop is the CDN's, the header is read, and only
    /// if it has exactly one line. A request that came past the CDN is counted
    /// by that next hop and noted ([`Notes::PAST_CDN`](super::Notes::PAST_CDN)).
    /// Default: no CDN.
    ///
    /// # Errors
    ///
    /// * [`ClientIpError::Range`] for a text that is no range, and
    ///   [`ClientIpError::NoRange`] if there is none.
    /// * [`ClientIpError::Header`] if this is not a header name, or that of a
    ///   list: anyone may have written its other entries.
    /// * [`ClientIpError::HopsAndCdn`] after [`hops`](Self::hops): which hop is
    ///   the CDN's is known by its address only.
    pub fn cdn(
        self,
        ranges: impl IntoIterator<Item = impl AsRef<str>>,
        header: &str,
    ) -> Result<Self, ClientIpError> {
        if matches!(self.0.walk.trust, Trust::Hops(_)) {
            return Err(ClientIpError::HopsAndCdn);
        }
        let ranges = parse_ranges("cdn", ranges)?;
        if ranges.is_empty() {
            return Err(ClientIpError::NoRange { field: "cdn" });
        }
        let parsed = parse_header("cdn", header)?;
        if parsed.is_list() {
            return Err(bad_header("cdn", header));
        }
        Ok(self.change(|config| config.walk.cdn = Some(Cdn { ranges, header: parsed })))
    }

    /// Takes a connection without a peer address to come from a proxy on this
    /// machine, as over a Unix socket. Default: such requests share one bucket.
    ///
    /// Only for a service that listens on nothing else: where a TCP server does
    /// not tell the peer's address, this would believe everyone.
    pub fn trust_unix_socket(self) -> Self {
        self.change(|config| config.walk.trust_unix_socket = true)
    }

    /// Bits of an IPv6 address that count. Default 64, which is what one
    /// customer is given at least; many are given 56 or 48. 128 counts each
    /// address.
    ///
    /// # Errors
    ///
    /// [`ClientIpError::Prefix`] unless it is 32 to 128.
    pub fn ipv6_prefix(self, bits: u8) -> Result<Self, ClientIpError> {
        let bits = check_prefix("ipv6_prefix", bits, IPV6_PREFIXES)?;
        Ok(self.change(|config| config.ipv6_prefix = bits))
    }

    /// Bits of an IPv4 address that count. Default 32, the whole address.
    ///
    /// # Errors
    ///
    /// [`ClientIpError::Prefix`] unless it is 1 to 32.
    pub fn ipv4_prefix(self, bits: u8) -> Result<Self, ClientIpError> {
        let bits = check_prefix("ipv4_prefix", bits, IPV4_PREFIXES)?;
        Ok(self.change(|config| config.ipv4_prefix = bits))
    }

    /// Clients that are limited but never blocked, by range: an office, a CDN's
    /// edge, a carrier's gateway. Default: none.
    ///
    /// # Errors
    ///
    /// [`ClientIpError::Range`] for a text that is no range.
    pub fn never_block(
        self,
        ranges: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ClientIpError> {
        let ranges = parse_ranges("never_block", ranges)?;
        Ok(self.change(|config| config.never_block = ranges))
    }

    /// Why `head` is counted under the identity it is counted under. Runs the
    /// same walk as the limiter does.
    #[must_use]
    pub fn explain(&self, head: &RequestHead<'_>) -> Explanation {
        let walk = &self.0.walk;
        let headers = [Some(&walk.header), walk.cdn.as_ref().map(|cdn| &cdn.header)];
        let names = headers.into_iter().flatten().map(ForwardingHeader::name);
        let mut explanation = Explanation::new(head, names);
        let found = walk.run(head, &mut explanation);
        explanation.conclude(found, self.write(found.client, Key::builder()).finish())
    }

    /// Whether a header is there that a proxy writes.
    pub(crate) fn is_forwarded(&self, head: &RequestHead<'_>) -> bool {
        self.0.walk.has_forwarding_header(head)
    }

    /// The client's address, ungrouped.
    pub(crate) fn address(&self, head: &RequestHead<'_>) -> Option<IpAddr> {
        self.0.walk.run(head, &mut Silent).client
    }

    fn write(&self, client: Option<IpAddr>, key: KeyBuilder) -> KeyBuilder {
        let Some(ip) = client else {
            return key.named("peer", "none");
        };
        let key = key.network(ip, self.0.ipv4_prefix, self.0.ipv6_prefix);
        if self.0.never_block.contains(ip) {
            return key.never_blocked();
        }
        key
    }
}

/// [`ClientIp::peer`].
impl Default for ClientIp {
    fn default() -> Self {
        Self::peer()
    }
}

impl Identify for ClientIp {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        let found = self.0.walk.run(head, &mut Silent);
        Identified::Known(self.write(found.client, key), found.notes)
    }

    fn client_ip(&self) -> Option<&Self> {
        Some(self)
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        Some("ip".into())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ip")
    }
}

/// What is wrong with the configuration of a [`ClientIp`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientIpError {
    /// A text that is neither an address nor a CIDR range.
    #[error("{field}: {text:?} is neither an address nor a CIDR range")]
    Range {
        /// The setter.
        field: &'static str,
        /// The text.
        text: String,
    },
    /// No range at all where one is needed.
    #[error("{field}: no range is given")]
    NoRange {
        /// The setter.
        field: &'static str,
    },
    /// A text that is not the name of a header, or of one that does not fit.
    #[error("{field}: {name:?} is not the name of a header that fits here")]
    Header {
        /// The setter.
        field: &'static str,
        /// The text.
        name: String,
    },
    /// A header is chosen, but nobody is trusted to write it.
    #[error("header: {name:?} would never be read, as no proxy is trusted")]
    NobodyTrusted {
        /// The header.
        name: String,
    },
    /// A header of one address cannot hold a chain of several hops.
    #[error("header: {name:?} holds one address, but several hops are configured")]
    OneEntry {
        /// The header.
        name: String,
    },
    /// A number of hops that is not 1 to 32.
    #[error("hops: {0} is not within 1 to 32")]
    Hops(usize),
    /// A CDN can be told from other hops only by its address.
    #[error("cdn: cannot be combined with a number of hops")]
    HopsAndCdn,
    /// A prefix length out of range.
    #[error("{field}: {bits} is not within {min} to {max}")]
    Prefix {
        /// The setter.
        field: &'static str,
        /// The value.
        bits: u8,
        /// The least legal value.
        min: u8,
        /// The greatest legal value.
        max: u8,
    },
}

pub(super) fn parse_ranges(
    field: &'static str,
    ranges: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Ranges, ClientIpError> {
    Ranges::parse(ranges).map_err(|text| ClientIpError::Range { field, text })
}

fn parse_header(field: &'static str, name: &str) -> Result<ForwardingHeader, ClientIpError> {
    let parsed = HeaderName::try_from(name).map_err(|_| bad_header(field, name))?;
    Ok(ForwardingHeader::new(parsed))
}

fn bad_header(field: &'static str, name: &str) -> ClientIpError {
    ClientIpError::Header { field, name: name.to_owned() }
}

fn check_prefix(field: &'static str, bits: u8, legal: RangeInclusive<u8>) -> Result<u8, ClientIpError> {
    if legal.contains(&bits) {
        return Ok(bits);
    }
    Err(ClientIpError::Prefix { field, bits, min: *legal.start(), max: *legal.end() })
}

#[cfg(test)]
mod tests;
