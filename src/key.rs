//! The text under which an identity is counted.
//!
//! A [`Key`] is bounded, so a client cannot make the limiter store or send
//! much; escaped, so it cannot move a Redis hash tag or run one part into
//! another; and injective: two identities that differ have two keys. It knows
//! nothing of HTTP.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayString;
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use sha2::{Digest, Sha256};

/// The longest key text in bytes. What would be longer is hashed.
pub const MAX_KEY_LEN: usize = 128;

/// A first part up to this length stays readable in front of the hash of the
/// rest: keys that are checked together share their first part, and with it
/// their Redis Cluster slot.
const MAX_READABLE_FIRST: usize = MAX_KEY_LEN - 1 - "sha256=".len() - HEX_DIGEST_LEN;

/// 128 bits of a digest, in hexadecimal.
const HEX_DIGEST_LEN: usize = 32;

/// Escaped in every value. `:` separates parts, `=` ends a kind, braces mark a
/// hash tag, `%` is the escape itself.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b':').add(b'=').add(b'{').add(b'}');

/// A bare principal behind the first part also loses its `/`, which is how an
/// IPv6 network in front of it is told from a principal.
const ESCAPED_LATER: &AsciiSet = &ESCAPED.add(b'/');

/// Who is limited, as the text that is counted.
///
/// Built from parts with [`Key::builder`], or from one with [`Key::ip`] and
/// [`Key::principal`]. Its text is at most [`MAX_KEY_LEN`] bytes of printable
/// ASCII. `Debug` shows a short hash, never the text.
///
/// ```
/// use tower_ratelimit::Key;
///
/// let key = Key::builder().ip("203.0.113.9".parse()?).principal("ann").finish();
/// assert_eq!(key.as_str(), "203.0.113.9:ann");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    text: ArrayString<MAX_KEY_LEN>,
    first_len: u8,
    blockable: bool,
}

impl Key {
    /// The key of one address, in its canonical text. An IPv4-mapped IPv6
    /// address is its IPv4 address; an IPv6 address is grouped by /64.
    #[must_use]
    pub fn ip(ip: IpAddr) -> Self {
        Self::builder().ip(ip).finish()
    }

    /// The key of a verified principal: a user, a client id, an account.
    #[must_use]
    pub fn principal(name: impl AsRef<[u8]>) -> Self {
        Self::builder().principal(name).finish()
    }

    /// Starts a key of several parts.
    pub fn builder() -> KeyBuilder {
        KeyBuilder::default()
    }

    /// The text. It may hold an address or an account name: do not log it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_blockable(&self) -> bool {
        self.blockable
    }

    pub(crate) fn first_len(&self) -> u8 {
        self.first_len
    }

    /// The first part and the rest, for the hash tag of keys that are checked
    /// together.
    pub(crate) fn split_first(&self) -> (&str, &str) {
        self.text.split_at(usize::from(self.first_len))
    }

    /// A short hash of the text, for logs: enough to tell two clients apart,
    /// the same on every replica.
    #[must_use]
    pub fn redacted(&self) -> impl fmt::Display + use<> {
        Fingerprint(Sha256::digest(self.text.as_bytes())[..4].try_into().unwrap_or([0; 4]))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.redacted())
    }
}

struct Fingerprint([u8; 4]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:08x}", u32::from_be_bytes(self.0))
    }
}

/// A secret of the deployment, the same on every replica, with which secret
/// values are hashed into keys. `Debug` does not show it.
#[derive(Clone)]
pub struct KeySecret(Hmac<Sha256>);

impl KeySecret {
    /// From any bytes; 32 random ones are a good choice.
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
        Self(Hmac::new_from_slice(secret.as_ref()).expect("a key of any length"))
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

/// Builds a [`Key`] part by part.
///
/// | part | text |
/// |---|---|
/// | [`ip`](Self::ip) | `203.0.113.9`, `2001:db8:1:2::/64`; behind another part `ip=...` |
/// | [`principal`](Self::principal) | the name; if it parses as an address its first byte is escaped |
/// | [`named`](Self::named) | `<kind>=<value>` |
/// | [`secret`](Self::secret) | `sha256.<kind>=<hex>`, with a deployment secret `hmac.<kind>=<hex>` |
/// | [`missing`](Self::missing), or an empty value | `none=`, which no value equals |
///
/// Parts are joined by `:`. In every part but an address, braces, `:`, `=`,
/// `%`, space, control and non-ASCII bytes become `%XX`; so does the first byte
/// of a kind that is one of the above. A first part over [`MAX_KEY_LEN`] bytes
/// becomes `sha256=<hex>`, a longer text its first part and `sha256=<hex>`.
#[derive(Clone, Default)]
#[must_use = "a key is built by `finish`"]
pub struct KeyBuilder {
    text: ArrayString<MAX_KEY_LEN>,
    /// The length of the first part, once it is written.
    first_len: Option<usize>,
    /// Set once the text was too long: the digest of all that was written.
    /// Boxed: it is rare, and a builder is moved from part to part.
    overflow: Option<Box<Sha256>>,
    never_block: bool,
}

impl KeyBuilder {
    /// An address: IPv4 whole, IPv6 grouped by /64.
    pub fn ip(self, ip: IpAddr) -> Self {
        self.network(ip, 32, 64)
    }

    /// An address grouped by prefix length: `ipv4_prefix` up to 32 and
    /// `ipv6_prefix` up to 128. Longer prefixes are cut to those.
    pub fn network(mut self, ip: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> Self {
        let ip = ip.to_canonical();
        let is_first = self.is_empty();
        self.separate();
        if !is_first {
            self.push("ip=");
        }
        match ip {
            IpAddr::V4(ip) if ipv4_prefix >= 32 => self.push_ipv4(ip),
            IpAddr::V4(ip) => {
                let host_bits = u32::MAX.checked_shr(ipv4_prefix.into()).unwrap_or(0);
                let network = Ipv4Addr::from_bits(ip.to_bits() & !host_bits);
                self.push_fmt(format_args!("{network}/{ipv4_prefix}"));
            }
            IpAddr::V6(ip) => {
                let prefix = ipv6_prefix.min(128);
                let host_bits = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
                let network = Ipv6Addr::from_bits(ip.to_bits() & !host_bits);
                self.push_fmt(format_args!("{network}/{prefix}"));
            }
        }
        self.end_part()
    }

    /// A verified principal, bare.
    pub fn principal(mut self, name: impl AsRef<[u8]>) -> Self {
        let name = name.as_ref();
        let [head, tail @ ..] = name else {
            return self.missing();
        };
        let set = if self.is_empty() { ESCAPED } else { ESCAPED_LATER };
        self.separate();
        if parses_as_address(name) {
            self.push_fmt(format_args!("%{head:02X}"));
            self.push_escaped(tail, set);
        } else {
            self.push_escaped(name, set);
        }
        self.end_part()
    }

    /// A value of a kind of its own: `kind=value`. An empty value is
    /// [`missing`](Self::missing).
    pub fn named(mut self, kind: &str, value: impl AsRef<[u8]>) -> Self {
        if value.as_ref().is_empty() {
            return self.missing();
        }
        self.separate();
        self.push_kind(kind);
        self.push("=");
        self.push_escaped(value.as_ref(), ESCAPED);
        self.end_part()
    }

    /// Another key as a value of a kind of its own. An address keeps its text: its
    /// colons cannot be taken for those between parts, as only an address has a
    /// slash behind them.
    pub(crate) fn scoped(mut self, kind: &str, inner: &Key) -> Self {
        if !parses_as_address(inner.text.as_bytes()) {
            return self.named(kind, inner.as_str());
        }
        self.separate();
        self.push_kind(kind);
        self.push("=");
        self.push(&inner.text);
        self.end_part()
    }

    /// A value that must not be readable in the store: its SHA-256 digest, or
    /// its HMAC when the deployment has a secret. 128 bits are kept.
    pub fn secret(mut self, kind: &str, value: impl AsRef<[u8]>, secret: Option<&KeySecret>) -> Self {
        let value = value.as_ref();
        if value.is_empty() {
            return self.missing();
        }
        let (scheme, digest): (_, [u8; 32]) = match secret {
            Some(KeySecret(keyed)) => {
                ("hmac.", keyed.clone().chain_update(value).finalize().into_bytes().into())
            }
            None => ("sha256.", Sha256::digest(value).into()),
        };
        self.separate();
        self.push(scheme);
        self.push_escaped(kind.as_bytes(), ESCAPED);
        self.push("=");
        self.push_digest(&digest);
        self.end_part()
    }

    /// A part that the request does not have.
    pub fn missing(mut self) -> Self {
        self.separate();
        self.push("none=");
        self.end_part()
    }

    /// Makes the key one that is limited but never blocked.
    pub fn never_blocked(mut self) -> Self {
        self.never_block = true;
        self
    }

    /// Whether nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first_len.is_none()
    }

    /// The key. Without any part it is that of one missing part.
    #[must_use]
    pub fn finish(mut self) -> Key {
        if self.is_empty() {
            self = self.missing();
        }
        if let Some(hasher) = self.overflow.take() {
            self.keep_first();
            self.push(":");
            self.push_hash(*hasher);
        }
        let first_len = self.first_len.unwrap_or(0);
        Key {
            text: self.text,
            first_len: u8::try_from(first_len).unwrap_or(u8::MAX),
            blockable: !self.never_block,
        }
    }

    fn separate(&mut self) {
        if !self.is_empty() {
            self.push(":");
        }
    }

    fn end_part(mut self) -> Self {
        if self.first_len.is_none() {
            // Hashed by itself, so that keys that share it still do.
            if let Some(hasher) = self.overflow.take() {
                self.text.clear();
                self.push_hash(*hasher);
            }
            self.first_len = Some(self.text.len());
        }
        self
    }

    /// Cuts the text to the first part; to its hash, if a hash of the rest does
    /// not fit behind it.
    fn keep_first(&mut self) {
        self.text.truncate(self.first_len.unwrap_or(0));
        if self.text.len() > MAX_READABLE_FIRST {
            let hasher = Sha256::new().chain_update(self.text.as_bytes());
            self.text.clear();
            self.push_hash(hasher);
            self.first_len = Some(self.text.len());
        }
    }

    /// A kind that this builder writes itself loses its first byte to an
    /// escape, so that nobody's `named` value passes for one of those.
    fn push_kind(&mut self, kind: &str) {
        match kind.as_bytes() {
            [head, tail @ ..] if is_reserved(kind) => {
                self.push_fmt(format_args!("%{head:02X}"));
                self.push_escaped(tail, ESCAPED);
            }
            bytes => self.push_escaped(bytes, ESCAPED),
        }
    }

    /// A quarter of the time that `Display` takes, and the most frequent key.
    fn push_ipv4(&mut self, ip: Ipv4Addr) {
        let mut text = ArrayString::<15>::new();
        let mut digits = itoa::Buffer::new();
        for (i, octet) in ip.octets().into_iter().enumerate() {
            if i > 0 {
                text.push('.');
            }
            text.push_str(digits.format(octet));
        }
        self.push(&text);
    }

    fn push_escaped(&mut self, value: &[u8], set: &'static AsciiSet) {
        for chunk in percent_encode(value, set) {
            self.push(chunk);
        }
    }

    fn push_hash(&mut self, hasher: Sha256) {
        self.push("sha256=");
        self.push_digest(&hasher.finalize().into());
    }

    fn push_digest(&mut self, digest: &[u8; 32]) {
        for byte in &digest[..HEX_DIGEST_LEN / 2] {
            self.push_fmt(format_args!("{byte:02x}"));
        }
    }

    fn push_fmt(&mut self, text: fmt::Arguments<'_>) {
        // `Pushed` never fails.
        let _ = fmt::Write::write_fmt(&mut Pushed(self), text);
    }

    fn push(&mut self, text: &str) {
        if let Some(hasher) = &mut self.overflow {
            hasher.update(text);
        } else if self.text.try_push_str(text).is_err() {
            let so_far = Sha256::new().chain_update(self.text.as_bytes());
            self.overflow = Some(Box::new(so_far.chain_update(text)));
        }
    }
}

impl fmt::Debug for KeyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyBuilder(..)")
    }
}

/// Lets `write!` reach [`KeyBuilder::push`].
struct Pushed<'a>(&'a mut KeyBuilder);

impl fmt::Write for Pushed<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push(text);
        Ok(())
    }
}

/// Whether a kind is one of an address, a missing part, a secret or a hash.
fn is_reserved(kind: &str) -> bool {
    matches!(kind, "ip" | "none" | "sha256") || kind.starts_with("sha256.") || kind.starts_with("hmac.")
}

/// Whether a principal could be mistaken for an address or a network.
fn parses_as_address(name: &[u8]) -> bool {
    // The longest text of either is far below this.
    name.len() <= 64
        && std::str::from_utf8(name)
            .is_ok_and(|name| name.parse::<IpAddr>().is_ok() || name.parse::<ipnet::IpNet>().is_ok())
}

#[cfg(test)]
mod tests;
