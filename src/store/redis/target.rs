//! Which server a URL names, and how it is to be trusted.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

#[cfg(feature = "tls")]
use super::tls::trusting;

/// An idle connection is probed by the kernel after this.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Servers that need not be there yet.
pub(crate) enum Target {
    One(Box<ConnectionInfo>),
    /// Some nodes of a cluster, one or more.
    Cluster(Vec<ConnectionInfo>),
}

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
    /// A cluster without a node to start from.
    NoNodes,
    /// A cluster has no databases.
    Database(i64),
    /// The nodes of a cluster differ in user, password or scheme.
    Mixed,
}

impl Target {
    /// The nodes of a cluster from which the others are found.
    pub(crate) fn cluster(urls: &[String], ca: Option<&[u8]>) -> Result<Self, TargetError> {
        let nodes = urls.iter().map(|url| server(url, ca)).collect::<Result<Vec<_>, _>>()?;
        let first = nodes.first().ok_or(TargetError::NoNodes)?;
        let login = |node: &ConnectionInfo| {
            let settings = node.redis_settings();
            let is_tls = matches!(node.addr(), ConnectionAddr::TcpTls { .. });
            (settings.username().map(str::to_owned), settings.password().map(str::to_owned), is_tls)
        };
        for node in &nodes {
            match node.redis_settings().db() {
                0 => {}
                db => return Err(TargetError::Database(db)),
            }
            if matches!(node.addr(), ConnectionAddr::Unix(_)) {
                return Err(TargetError::Url);
            }
            if login(node) != login(first) {
                return Err(TargetError::Mixed);
            }
        }
        Ok(Self::Cluster(nodes))
    }

    /// The server of a URL, with TLS trusted by the CA in `ca` in place of the
    /// public ones.
    pub(crate) fn new(url: &str, ca: Option<&[u8]>) -> Result<Self, TargetError> {
        Ok(Self::One(Box::new(server(url, ca)?)))
    }
}

fn server(url: &str, ca: Option<&[u8]>) -> Result<ConnectionInfo, TargetError> {
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
        None => Ok(target),
        Some(_) if !tls => Err(TargetError::UselessCa),
        Some(pem) => trusting(target, pem).ok_or(TargetError::Ca),
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
    fn the_nodes_of_a_cluster_have_one_login_and_no_database() {
        let refused = |urls: &[&str]| {
            let urls: Vec<_> = urls.iter().map(|&url| url.to_owned()).collect();
            Target::cluster(&urls, None).err()
        };
        assert_eq!(refused(&["redis://u:p@a:1", "redis://u:p@b:2/0"]), None);
        assert_eq!(refused(&[]), Some(TargetError::NoNodes));
        assert_eq!(refused(&["redis://a", "redis://b/3"]), Some(TargetError::Database(3)));
        assert_eq!(refused(&["redis://:p@a", "redis://b"]), Some(TargetError::Mixed));
        assert_eq!(refused(&["redis://a", "whatever"]), Some(TargetError::Url));
        assert_eq!(refused(&["redis+unix:///tmp/x"]), Some(TargetError::Url));
    }

    #[test]
    fn a_ca_without_tls_is_useless() {
        assert_eq!(refused("redis://h", Some("whatever")), Some(TargetError::UselessCa));
    }
}
