//! A borrowed view of a request's head, for any body type.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderMap, Method, Request, Uri};

/// A request without its body, borrowed: taking a request apart and putting it
/// together again would cost more than the check.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
    /// The pattern of the rule that applies.
    pattern: Option<&'a str>,
}

impl<'a> RequestHead<'a> {
    /// The head of a request.
    #[must_use]
    pub fn new<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
            pattern: None,
        }
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// The target as the client sent it: what axum strips when routers are
    /// nested is still there (with the feature `axum`).
    #[must_use]
    pub fn uri(&self) -> &'a Uri {
        #[cfg(feature = "axum")]
        if let Some(original) = self.extensions.get::<axum::extract::OriginalUri>() {
            return &original.0;
        }
        self.uri
    }

    /// The path of [`uri`](Self::uri), without the query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.uri().path()
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// The extensions.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }

    /// The route pattern that matched, as in `/users/{id}`: the router's (axum,
    /// with the feature `axum`), or else that of the [rule](crate::rules) which
    /// applies. `None` where neither is known.
    #[must_use]
    pub fn route(&self) -> Option<&'a str> {
        self.matched_path().or(self.pattern)
    }

    /// What a router has matched.
    pub(crate) fn matched_path(&self) -> Option<&'a str> {
        #[cfg(feature = "axum")]
        return self.extensions.get::<axum::extract::MatchedPath>().map(axum::extract::MatchedPath::as_str);
        #[cfg(not(feature = "axum"))]
        None
    }

    /// The same request, to which the rule with this pattern applies.
    pub(crate) fn under(self, pattern: Option<&'a str>) -> Self {
        Self { pattern, ..self }
    }

    /// The address of the other end of the connection: axum's `ConnectInfo`,
    /// tonic's `TcpConnectInfo`, or a bare [`SocketAddr`] or [`IpAddr`] in the
    /// extensions. IPv4-mapped IPv6 comes back as IPv4.
    #[must_use]
    pub fn peer(&self) -> Option<IpAddr> {
        self.raw_peer().map(|ip| ip.to_canonical())
    }

    fn raw_peer(&self) -> Option<IpAddr> {
        #[cfg(feature = "axum")]
        {
            use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
            if let Some(ConnectInfo(peer)) = self.extensions.get::<ConnectInfo<SocketAddr>>() {
                return Some(peer.ip());
            }
            if let Some(MockConnectInfo(peer)) = self.extensions.get::<MockConnectInfo<SocketAddr>>() {
                return Some(peer.ip());
            }
        }
        #[cfg(feature = "tonic")]
        {
            // Over TLS tonic inserts the plain form as well.
            use tonic::transport::server::TcpConnectInfo;
            if let Some(peer) = self.extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr)
            {
                return Some(peer.ip());
            }
        }
        if let Some(peer) = self.extensions.get::<SocketAddr>() {
            return Some(peer.ip());
        }
        self.extensions.get::<IpAddr>().copied()
    }
}

/// The query, the header values and the extensions may hold secrets, the path
/// a code: none of them is shown.
impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", self.method)
            .field("route", &self.route())
            .finish_non_exhaustive()
    }
}
