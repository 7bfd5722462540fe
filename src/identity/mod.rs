//! Who is limited.
//!
//! An [`Identify`] reads a request's head and writes who is asking into a
//! [`Key`](crate::Key). [`ClientIp`] is the default; others read a header, an
//! extension that the authentication layer left, the route, or several of
//! them. A closure works too.

mod client_ip;
mod composite;
mod explain;
mod forwarded;
mod head;
pub(crate) mod missing;
#[cfg(feature = "unicode")]
pub mod normalize;
mod parts;
mod principal;
mod ranges;
mod skip;
mod walk;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

pub(crate) use self::client_ip::IPV6_PREFIXES;
pub use self::client_ip::{ClientIp, ClientIpError};
pub use self::composite::{All, FirstOf, Scoped};
pub use self::explain::{Explanation, Hop, HopVerdict};
pub use self::head::RequestHead;
pub use self::parts::{Constant, Extension, Header, Host, InvalidHeaderName, Method, Route};
pub use self::principal::{Account, Principal};
pub(crate) use self::skip::from_ranges;

use crate::key::KeyBuilder;

/// Reads from a request who is asking.
///
/// Implemented by the types of this module and by closures that return the
/// name of a verified principal:
///
/// ```
/// use tower_ratelimit::identity::{Identify, RequestHead};
///
/// #[derive(Clone)]
/// struct Tenant(String);
///
/// fn by_tenant(head: &RequestHead<'_>) -> Option<String> {
///     head.extensions().get::<Tenant>().map(|tenant| tenant.0.clone())
/// }
/// fn takes(_: impl Identify) {}
/// takes(by_tenant);
/// ```
pub trait Identify: Send + Sync + 'static {
    /// Appends the identity to `key`, or leaves `key` as it was and answers
    /// that the request does not say who is asking.
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified;

    /// How this identity finds client addresses, if it has to do with them. A
    /// layer that is not told otherwise finds them in the same way wherever it
    /// needs one. Default: it has not.
    fn client_ip(&self) -> Option<&ClientIp> {
        None
    }

    /// What the first part of its keys is, if that is the same for all requests
    /// that have this identity: `ip`, `header.x-account`. Two identities that
    /// name different ones have no first part in common, so that they cannot be
    /// checked together on a Redis Cluster. Default: nobody can tell.
    fn first_part(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Which identity this is, in a word or two: `ip`, `global=ip, account`.
    /// Shown where rules are, and part of their digest; two identities that read
    /// different things should not be called the same. Default: the type's name.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<Self>())
    }
}

/// Shows what an identity calls itself.
pub(crate) struct Described<'a>(pub(crate) &'a dyn Identify);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe(f)
    }
}

/// What [`Identify::identify`] found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Identified {
    /// The key with the identity appended, and what was odd about the request.
    Known(KeyBuilder, Notes),
    /// The request does not say; the key as it was given.
    Missing(KeyBuilder),
}

impl<F> Identify for F
where
    F: Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
{
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        match self(head) {
            Some(name) if !name.trim().is_empty() => Identified::Known(key.principal(name), Notes::default()),
            _ => Identified::Missing(key),
        }
    }
}

impl Identify for Box<dyn Identify> {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        (**self).identify(head, key)
    }

    fn client_ip(&self) -> Option<&ClientIp> {
        (**self).client_ip()
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        (**self).first_part()
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).describe(f)
    }
}

impl<I: Identify + ?Sized> Identify for Arc<I> {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        (**self).identify(head, key)
    }

    fn client_ip(&self) -> Option<&ClientIp> {
        (**self).client_ip()
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        (**self).first_part()
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).describe(f)
    }
}

/// What was odd about a request's address: for the operator, not the client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Notes(u8);

/// By what was odd.
impl PartialEq for Notes {
    fn eq(&self, other: &Self) -> bool {
        self.odd().0 == other.odd().0
    }
}

impl Eq for Notes {}

impl Notes {
    /// No peer address: every such request shares one bucket.
    pub const NO_PEER: Self = Self(1);
    /// A forwarding header came from a private peer that is not trusted.
    pub const UNTRUSTED_FORWARDED: Self = Self(1 << 1);
    /// The request reached the balancer without passing the configured CDN.
    pub const PAST_CDN: Self = Self(1 << 2);
    /// Fewer forwarding entries than configured hops.
    pub const SHORT_CHAIN: Self = Self(1 << 3);
    /// A forwarding entry that could not be read ended the walk.
    pub const UNREADABLE: Self = Self(1 << 4);
    /// The peer is not a trusted proxy, so its address is the client's. Not odd
    /// by itself, but it may be a proxy that nobody has named.
    pub(crate) const UNTRUSTED_PEER: Self = Self(1 << 5);

    /// What is counted, with the names that metrics use.
    pub(crate) const ODD: [(Self, &'static str); 5] = [
        (Self::NO_PEER, "no_peer"),
        (Self::UNTRUSTED_FORWARDED, "untrusted_forwarded"),
        (Self::PAST_CDN, "past_cdn"),
        (Self::SHORT_CHAIN, "short_chain"),
        (Self::UNREADABLE, "unreadable"),
    ];

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in this.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether nothing was odd.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.odd().0 == 0
    }

    /// Only what is odd.
    const fn odd(self) -> Self {
        Self(self.0 & !Self::UNTRUSTED_PEER.0)
    }
}
