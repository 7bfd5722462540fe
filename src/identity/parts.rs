//! Identities that are read from one place in the request.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::header::HOST;
use http::{HeaderName, HeaderValue};
use thiserror::Error;

use super::{Identified, Identify, Notes, RequestHead};
use crate::key::{KeyBuilder, KeySecret};

/// Rewrites a value so that spellings of one thing are one identity.
type Normalize = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// Gets a name out of an extension.
type Read<T> = dyn Fn(&T) -> Option<Cow<'_, str>> + Send + Sync;

/// Limits by a request header: `header.<name>=<value>`.
///
/// The client writes it. Behind an authentication layer prefer [`Extension`];
/// before it, have a policy by address as well, or a new made-up value is a new
/// allowance each time.
///
/// White space around the value is dropped. A header that is absent, empty, or
/// has several lines does not say who is asking.
///
/// ```
/// use tower_ratelimit::identity::Header;
///
/// let by_key = Header::secret("x-api-key")?;
/// let by_account = Header::new("x-account")?.normalize(str::to_lowercase);
/// # Ok::<(), tower_ratelimit::identity::InvalidHeaderName>(())
/// ```
#[derive(Clone)]
#[must_use = "an identity does nothing until a layer has it"]
pub struct Header {
    name: HeaderName,
    /// What the key says in front of the value.
    kind: String,
    secrecy: Secrecy,
    normalize: Option<Normalize>,
}

#[derive(Clone, Debug)]
enum Secrecy {
    Readable,
    Hashed(Option<KeySecret>),
}

impl Header {
    /// The value is readable in the store.
    ///
    /// # Errors
    ///
    /// [`InvalidHeaderName`] if `name` cannot be the name of a header.
    pub fn new(name: &str) -> Result<Self, InvalidHeaderName> {
        Self::with_secrecy(name, Secrecy::Readable)
    }

    /// The value is a credential: only 128 bits of its SHA-256 digest reach the
    /// store. See [`hmac`](Self::hmac) for values that can be guessed.
    ///
    /// # Errors
    ///
    /// [`InvalidHeaderName`] if `name` cannot be the name of a header.
    pub fn secret(name: &str) -> Result<Self, InvalidHeaderName> {
        Self::with_secrecy(name, Secrecy::Hashed(None))
    }

    fn with_secrecy(name: &str, secrecy: Secrecy) -> Result<Self, InvalidHeaderName> {
        let name = HeaderName::try_from(name).map_err(|_| InvalidHeaderName(name.to_owned()))?;
        Ok(Self { kind: format!("header.{name}"), name, secrecy, normalize: None })
    }

    /// Hashes the value with a secret of the deployment, which must be the same
    /// on every replica. The value is secret then even if it was not.
    pub fn hmac(mut self, secret: KeySecret) -> Self {
        self.secrecy = Secrecy::Hashed(Some(secret));
        self
    }

    /// Rewrites the value before it is used, for example with
    /// `normalize::account`. Default: it is used byte for byte. A value that is
    /// not UTF-8 is used as it is.
    pub fn normalize(mut self, normalize: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.normalize = Some(Arc::new(normalize));
        self
    }
}

impl Identify for Header {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        let Some(value) = only_value(head, &self.name) else {
            return Identified::Missing(key);
        };
        let text = std::str::from_utf8(value).ok();
        let rewritten = text.zip(self.normalize.as_ref()).map(|(text, normalize)| normalize(text));
        let value = rewritten.as_ref().map_or(value, |text| text.trim().as_bytes());
        if value.is_empty() {
            return Identified::Missing(key);
        }
        let key = match &self.secrecy {
            Secrecy::Readable => key.named(&self.kind, value),
            Secrecy::Hashed(secret) => key.secret(&self.kind, value, secret.as_ref()),
        };
        known(key)
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        Some(self.kind.as_str().into())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrecy = match &self.secrecy {
            Secrecy::Readable => "header",
            Secrecy::Hashed(_) => "secret-header",
        };
        write!(f, "{secrecy}:{}", self.name)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("name", &self.name)
            .field("secrecy", &self.secrecy)
            .field("normalizes", &self.normalize.is_some())
            .finish()
    }
}

/// A text that cannot be the name of a header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not the name of a header")]
pub struct InvalidHeaderName(String);

/// Limits by what an inner authentication layer verified and left in the
/// request's extensions: the bare name.
///
/// No extension, `None`, an empty and a blank name do not say who is asking.
///
/// ```
/// use tower_ratelimit::identity::Extension;
///
/// #[derive(Clone)]
/// struct User {
///     id: String,
/// }
///
/// let by_user = Extension::new(|user: &User| Some(user.id.as_str().into()));
/// ```
#[must_use = "an identity does nothing until a layer has it"]
pub struct Extension<T> {
    read: Arc<Read<T>>,
    normalize: Option<Normalize>,
    label: &'static str,
}

impl<T: Send + Sync + 'static> Extension<T> {
    /// `read` gets the name out of the extension, as a `&str` or a `String`
    /// turned `into()` a [`Cow`].
    pub fn new(read: impl Fn(&T) -> Option<Cow<'_, str>> + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), normalize: None, label: std::any::type_name::<T>() }
    }

    /// Rewrites the name before it is used, for example with
    /// `normalize::account`. Default: it is used byte for byte.
    pub fn normalize(mut self, normalize: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.normalize = Some(Arc::new(normalize));
        self
    }

    /// What it is called where rules are shown. Default: the type's name.
    pub fn called(mut self, label: &'static str) -> Self {
        self.label = label;
        self
    }
}

impl<T: Send + Sync + 'static> Identify for Extension<T> {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        let Some(mut name) = head.extensions().get::<T>().and_then(|value| (self.read)(value)) else {
            return Identified::Missing(key);
        };
        if let Some(normalize) = &self.normalize {
            name = Cow::Owned(normalize(&name));
        }
        if name.trim().is_empty() {
            return Identified::Missing(key);
        }
        known(key.principal(name.as_bytes()))
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label)
    }
}

// Derived, these would ask the same of `T`.
impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self { read: Arc::clone(&self.read), normalize: self.normalize.clone(), label: self.label }
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension")
            .field("type", &std::any::type_name::<T>())
            .field("normalizes", &self.normalize.is_some())
            .finish_non_exhaustive()
    }
}

/// Limits by the route pattern that matched: `route=/users/{id}`.
///
/// The pattern and not the path: a client chooses among the spellings of a path
/// and the values in it, and each would be a new allowance. Without a router's
/// pattern (no route matched, the layer is outside the router, or the feature
/// `axum` is off) it is that of the [rule](crate::rules) which applies; without
/// that too, all requests are `route=none`, which no pattern equals, as
/// those start with a slash. So this is never missing.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Route;

impl Route {
    /// The matched route pattern.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Identify for Route {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        known(key.named("route", head.route().unwrap_or("none")))
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        Some("route".into())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("route")
    }
}

/// Limits by the request's method: `method=GET`.
///
/// The methods of RFC 9110 and `PATCH`; all others are `method=other`, or a
/// client could invent a new one for each request. Never missing.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Method;

impl Method {
    /// The request's method.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Identify for Method {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        let method = match head.method().as_str() {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE"
            | "PATCH") => known,
            _ => "other",
        };
        known(key.named("method", method))
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        Some("method".into())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("method")
    }
}

/// Limits by the host that the request is for: `host=api.example.org`.
///
/// From the target's authority (HTTP/2, or the absolute form, RFC 9112 section
/// 3.2.2), otherwise from the `Host` header. In lower case, without the port
/// and without a dot at the end. Missing if there is neither, or two `Host`
/// lines. The client writes it: use it where the edge or the router admits
/// known hosts only.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Host;

impl Host {
    /// The host that the request is for.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Identify for Host {
    fn identify(&self, head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        let host = match head.uri().host() {
            Some(host) => Some(host),
            None => {
                only_value(head, &HOST).and_then(|value| std::str::from_utf8(value).ok()).map(without_port)
            }
        };
        let host = host.map(|host| host.strip_suffix('.').unwrap_or(host));
        match host {
            Some(host) if !host.is_empty() => known(key.named("host", host.to_ascii_lowercase())),
            _ => Identified::Missing(key),
        }
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        Some("host".into())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("host")
    }
}

/// A fixed part, the same for all requests: `<kind>=<value>`. Alone it is one
/// shared bucket; in a composite it keeps two uses of an identity apart.
#[derive(Clone, Debug)]
#[must_use = "an identity does nothing until a layer has it"]
pub struct Constant {
    kind: String,
    value: String,
}

impl Constant {
    /// Choose a `kind` that no other identity has; those of this module are
    /// `header.<name>`, `route`, `method`, `host` and `peer`. An empty `value`
    /// is a missing identity.
    pub fn new(kind: impl Into<String>, value: impl Into<String>) -> Self {
        Self { kind: kind.into(), value: value.into() }
    }
}

impl Identify for Constant {
    fn identify(&self, _head: &RequestHead<'_>, key: KeyBuilder) -> Identified {
        if self.value.is_empty() {
            return Identified::Missing(key);
        }
        known(key.named(&self.kind, &self.value))
    }

    fn first_part(&self) -> Option<Cow<'_, str>> {
        Some(format!("{}={}", self.kind, self.value).into())
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "constant:{}={}", self.kind, self.value)
    }
}

fn known(key: KeyBuilder) -> Identified {
    Identified::Known(key, Notes::default())
}

/// The value of a header that has exactly one line, without the white space
/// around it. Of several lines, nobody knows which one the handler believes.
fn only_value<'a>(head: &RequestHead<'a>, name: &HeaderName) -> Option<&'a [u8]> {
    let mut lines = head.headers().get_all(name).iter();
    let value = lines.next().map(HeaderValue::as_bytes)?.trim_ascii();
    (lines.next().is_none() && !value.is_empty()).then_some(value)
}

/// `host:port` without the port. An IPv6 address is in brackets there.
fn without_port(authority: &str) -> &str {
    let end = match authority.find(']') {
        Some(bracket) => bracket + 1,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    &authority[..end]
}

#[cfg(test)]
mod tests;
