//! Which server a URL names, and how it is to be trusted.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

#[cfg(feature = "tls")]
use super::tls::trusting;

/// An idle connection is probed by the kernel after this.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A server that need not be there yet.
pub(crate) struct Target(ConnectionInfo);

/// Why a target is refused. None of it shows the URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TargetError {
    /// It is not a URL of Redis.
    Url,
    /// It asks for TLS, which this build lacks.
    NoTls,
    /// A CA is given for a connection without TLS.
    UselessCa,
    /// The CA's PEM holds nothing that could be trusted.
    Ca,
}

impl Target {
    /// The server of a URL, with TLS trusted by the CA in `ca` in place of the
    /// public ones.
    pub(crate) fn new(url: &str, ca: Option<&[u8]>) -> Result<Self, TargetError> {
        // By the scheme and not by what the client makes of it: another crate
        // of the program may have turned on the client's TLS.
        let tls = has_tls_scheme(url);
        if tls && !cfg!(feature = "tls") {
            return Err(TargetError::NoTls);
        }
        let keepalive =
            TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(KEEPALIVE));
        let target = url.into_connection_info().map_err(|_| TargetError::Url)?.set_tcp_settings(keepalive);
        // `#insecure`: TLS with anybody would look like security.
        if matches!(target.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
            return Err(TargetError::Url);
        }
        match ca {
            None => Ok(Self(target)),
            Some(_) if !tls => Err(TargetError::UselessCa),
            Some(pem) => trusting(target, pem).map(Self).ok_or(TargetError::Ca),
        }
    }

    pub(super) fn into_inner(self) -> ConnectionInfo {
        self.0
    }
}

/// No URL gets so far.
#[cfg(not(feature = "tls"))]
fn trusting(_: ConnectionInfo, _: &[u8]) -> Option<ConnectionInfo> {
    None
}

fn has_tls_scheme(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.trim_start());
    scheme.is_some_and(|scheme| ["rediss", "valkeys"].iter().any(|tls| scheme.eq_ignore_ascii_case(tls)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, ca: Option<&str>) -> Option<TargetError> {
        Target::new(url, ca.map(str::as_bytes)).err()
    }

    #[test]
    fn tls_is_there_with_its_feature_only() {
        let without = (!cfg!(feature = "tls")).then_some(TargetError::NoTls);
        for url in ["rediss://h", "rediss://u:p@h:6380/2", "REDISS://h", "valkeys://h", " rediss://h"] {
            assert_eq!(refused(url, None), without, "{url}");
        }
        for url in ["redis://h", "valkey://h"] {
            assert_eq!(refused(url, None), None, "{url}");
        }
    }

    #[test]
    fn tls_that_checks_nothing_is_refused() {
        assert!(refused("rediss://h/#insecure", None).is_some());
        assert!(refused("rediss://h/#whatever", None).is_some());
    }

    #[test]
    fn a_ca_without_tls_is_useless() {
        assert_eq!(refused("redis://h", Some("whatever")), Some(TargetError::UselessCa));
    }
}
