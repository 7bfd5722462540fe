//! Identities made of others.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::{ClientIp, Identified, Identify, Notes, RequestHead};
use crate::key::{Key, KeyBuilder};

/// All of several identities, in order: `203.0.113.9:ann:route=/login`.
///
/// A part that the request does not have is the marker `none=`, which no real
/// value equals. If it has none of them, the whole is missing. Tuples of two
/// to four identities are composites as well.
///
/// Policies that are checked together should share their first part, and with
/// it their slot in a Redis cluster. A part that is itself a composite adds its
/// parts to these; [`Scoped`] makes one part of it.
///
/// ```
/// use tower_ratelimit::identity::{All, ClientIp, Header, Route};
/// use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
///
/// let login = All::new()
///     .part(ClientIp::peer())
///     .part(Header::new("x-account")?)
///     .part(Route::new());
/// // The same as a tuple: (ClientIp::peer(), Header::new("x-account")?, Route::new())
///
/// let layer = RateLimitLayer::builder(RateLimiter::memory())
///     .policy_by(Policy::fixed_window("login", Rate::per_minute(5)), login)
///     .policy_by(Policy::fixed_window("login-ip", Rate::per_minute(50)), ClientIp::peer())
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What a request is counted as:
///
/// ```
/// use http::Request;
/// use tower_ratelimit::identity::{Header, Identified, Identify, Method, RequestHead};
/// use tower_ratelimit::Key;
///
/// let by_method_and_account = (Method::new(), Header::new("x-account")?);
/// let key = |request: &Request<()>| {
///     match by_method_and_account.identify(&RequestHead::new(request), Key::builder()) {
///         Identified::Known(key, _) => key.finish().as_str().to_owned(),
///         _ => String::from("missing"),
///     }
/// };
/// let request = Request::get("/").header("x-account", "ann").body(())?;
/// assert_eq!(key(&request), "method=GET:header.x-account=ann");
/// assert_eq!(key(&Request::get("/").body(())?), "method=GET:none=");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "an identity does nothing until a layer has it"]
pub struct All(Vec<Arc<dyn Identify>>);

impl All {
    /// Without a part yet: missing from every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part behind those that are there.
    pub fn part(mut self, part: impl Identify) -> Self {
        self.0.push(Arc::new(part));
        self
    }
}

impl Identify for All {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        all(self.0.iter().map(|part| &**part), head, key)
    }

    fn client_ip(&self) -> Option<&ClientIp> {
        self.0.iter().find_map(|part| part.client_ip())
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        self.0.first()?.first_part()
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(self.0.iter().map(|part| &**part), ", ", f)
    }
}

impl fmt::Debug for All {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("All").field("parts", &self.0.len()).finish()
    }
}

macro_rules! composite {
    ($($part:ident),+) => {
        /// A composite, as [`All`].
        #[allow(non_snake_case, reason = "a value is named after its type")]
        impl<$($part: Identify),+> Identify for ($($part,)+) {
            fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
                let ($($part,)+) = self;
                let parts: &[&dyn Identify] = &[$($part),+];
                all(parts.iter().copied(), head, key)
            }

            fn client_ip(&self) -> Option<&ClientIp> {
                let ($($part,)+) = self;
                let parts: &[&dyn Identify] = &[$($part),+];
                parts.iter().find_map(|part| part.client_ip())
            }

            fn first_part(&self) -> Option<Cow<'_, str>> {
                self.0.first_part()
            }

            fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let ($($part,)+) = self;
                let parts: &[&dyn Identify] = &[$($part),+];
                list(parts.iter().copied(), ", ", f)
            }
        }
    };
}

composite!(A, B);
composite!(A, B, C);
composite!(A, B, C, D);

fn all<'p>(
    parts: impl Iterator<Item = &'p dyn Identify>,
    head: &RequestHead<'_>,
    mut key: KeyBuilder,
) -> Identified {
    let mut notes = Notes::default();
    let mut is_known = false;
    // The key without the markers, for when no part is found at all.
    let mut given = None;
    for part in parts {
        key = match part.identify(head, key) {
            Identified::Known(key, found) => {
                is_known = true;
                notes = notes.with(found);
                key
            }
            Identified::Missing(key) => {
                if !is_known && given.is_none() {
                    given = Some(key.clone());
                }
                key.missing()
            }
        };
    }
    if is_known { Identified::Known(key, notes) } else { Identified::Missing(given.unwrap_or(key)) }
}

/// The first of several identities that the request has: a user if it is
/// signed in, otherwise its address.
///
/// A client may be able to choose by leaving something out: put the identity
/// that buys the most last, and limit by address as well.
///
/// ```
/// use tower_ratelimit::identity::{ClientIp, Extension, FirstOf};
///
/// #[derive(Clone)]
/// struct User(String);
///
/// let by_user_or_address = FirstOf::new()
///     .or(Extension::new(|user: &User| Some(user.0.as_str().into())))
///     .or(ClientIp::peer());
/// ```
#[derive(Clone, Default)]
#[must_use = "an identity does nothing until a layer has it"]
pub struct FirstOf(Vec<Arc<dyn Identify>>);

impl FirstOf {
    /// Without a choice yet: missing from every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds what is tried when none of those before is there.
    pub fn or(mut self, other: impl Identify) -> Self {
        self.0.push(Arc::new(other));
        self
    }
}

impl Identify for FirstOf {
    fn identify(&self, head: &RequestHead<'_>, mut key: KeyBuilder) -> Identified {
        for choice in &self.0 {
            key = match choice.identify(head, key) {
                Identified::Missing(key) => key,
                known @ Identified::Known(..) => return known,
            };
        }
        Identified::Missing(key)
    }

    fn client_ip(&self) -> Option<&ClientIp> {
        self.0.iter().find_map(|choice| choice.client_ip())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(self.0.iter().map(|choice| &**choice), " | ", f)
    }
}

impl fmt::Debug for FirstOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstOf").field("choices", &self.0.len()).finish()
    }
}

/// An identity folded into one part of a kind of its own:
/// `global=203.0.113.9`, `workspace=42`.
///
/// Two scopes of an address have separate counts, and policies whose first part
/// is the same scope share a slot in a Redis cluster. The identity's text is
/// escaped as any value is, so an IPv6 network reads
/// `global=2001%3Adb8%3A1%3A2%3A%3A/64`.
///
/// ```
/// use std::net::IpAddr;
///
/// use http::Request;
/// use tower_ratelimit::Key;
/// use tower_ratelimit::identity::{ClientIp, Identified, Identify, RequestHead, Scoped};
///
/// let by_address = Scoped::new("global", ClientIp::peer());
///
/// let peer: IpAddr = "203.0.113.9".parse()?;
/// let request = Request::builder().extension(peer).body(())?;
/// let Identified::Known(key, _) = by_address.identify(&RequestHead::new(&request), Key::builder())
/// else {
///     panic!("an address is never missing");
/// };
/// assert_eq!(key.finish().as_str(), "global=203.0.113.9");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "an identity does nothing until a layer has it"]
pub struct Scoped<I> {
    kind: String,
    inner: I,
}

impl<I: Identify> Scoped<I> {
    /// Choose a `kind` that no other identity has: see
    /// [`Constant`](super::Constant::new).
    pub fn new(kind: impl Into<String>, inner: I) -> Self {
        Self { kind: kind.into(), inner }
    }
}

impl<I: Identify> Identify for Scoped<I> {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        match self.inner.identify(head, Key::builder()) {
            Identified::Known(inner, notes) => {
                let inner = inner.finish();
                let key = key.scoped(&self.kind, &inner);
                let key = if inner.is_blockable() { key } else { key.never_blocked() };
                Identified::Known(key, notes)
            }
            Identified::Missing(_) => Identified::Missing(key),
        }
    }

    fn client_ip(&self) -> Option<&ClientIp> {
        self.inner.client_ip()
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        self.inner.first_part().map(|part| format!("{}={part}", self.kind).into())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.kind)?;
        self.inner.describe(f)
    }
}

fn list<'p>(
    parts: impl Iterator<Item = &'p dyn Identify>,
    between: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    for (i, part) in parts.enumerate() {
        if i > 0 {
            f.write_str(between)?;
        }
        part.describe(f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
