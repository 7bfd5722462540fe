//! Where Redis is, by three sources of which the first one counts.

use std::fmt;
use std::net::Ipv6Addr;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::SettingsError;
use super::environment::{Environment, items, parse_digits};

const CLUSTER_NODES: &str = "REDIS_CLUSTER_NODES";
const URL: &str = "REDIS_URL";
const HOST: &str = "REDIS_HOST";
const PORT: &str = "REDIS_PORT";
const PASSWORD: &str = "REDIS_PASSWORD";
const DB: &str = "REDIS_DB";

const DEFAULT_PORT: u16 = 6379;
/// Redis keeps the number of databases in an `int`.
const MAX_DB: u32 = i32::MAX.unsigned_abs();
const SCHEMES: [&str; 2] = ["redis", "rediss"];

/// Where the shared counts are.
///
/// `Debug` and `Display` show hosts, ports and the database; never a user
/// name, a password or a query. The fields hold the password: do not log them.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedisTarget {
    /// One server: a `redis://` or `rediss://` URL with its credentials.
    Url(String),
    /// A cluster.
    #[non_exhaustive]
    Cluster {
        /// `host:port` of the nodes to start from, IPv6 in brackets.
        nodes: Vec<String>,
        /// The password of every node.
        password: Option<String>,
    },
}

impl RedisTarget {
    /// The URL of the server, or of each node of the cluster, with
    /// credentials: what a Redis client takes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        match self {
            Self::Url(url) => vec![url.clone()],
            Self::Cluster { nodes, password } => {
                nodes.iter().map(|node| node_url(node, password.as_deref())).collect()
            }
        }
    }
}

impl fmt::Display for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => match Location::of_url(url) {
                Some(location) => location.fmt(f),
                // Not one of ours. Which part is the secret, nobody knows.
                None => f.write_str("redis"),
            },
            Self::Cluster { nodes, .. } => write!(f, "redis cluster {}", nodes.join(",")),
        }
    }
}

impl fmt::Debug for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisTarget({self})")
    }
}

/// The target, and a warning when something that is set goes unused.
pub(super) fn read(env: &Environment<'_>) -> Result<(Option<RedisTarget>, Option<String>), SettingsError> {
    let (target, used, rivals): (_, _, &[_]) = if env.is_set(CLUSTER_NODES)? {
        (Some(read_cluster(env)?), Some(CLUSTER_NODES), &[URL, HOST])
    } else if env.is_set(URL)? {
        (Some(read_url(env)?), Some(URL), &[HOST, PASSWORD, DB])
    } else if env.is_set(HOST)? {
        (Some(read_host(env)?), Some(HOST), &[])
    } else {
        // Not the port, here and above: Kubernetes sets `REDIS_PORT` by itself
        // beside a service of the name `redis`.
        (None, None, &[PASSWORD, DB])
    };

    let mut unused = Vec::new();
    for rival in rivals {
        if env.is_set(rival)? {
            unused.push(*rival);
        }
    }
    let warning = (!unused.is_empty()).then(|| {
        let unused = unused.join(", ");
        match used {
            Some(used) => format!("{used} is used, {unused} ignored"),
            None => {
                format!("{unused} ignored: without {CLUSTER_NODES}, {URL} or {HOST} counts stay in memory")
            }
        }
    });
    Ok((target, warning))
}

fn read_cluster(env: &Environment<'_>) -> Result<RedisTarget, SettingsError> {
    if let Some(db) = env.trimmed(DB)? {
        let accepts = format!("must be unset beside {CLUSTER_NODES}, a cluster has no databases");
        return Err(SettingsError::new(DB, accepts).with_value(&db));
    }
    let text = env.trimmed(CLUSTER_NODES)?.unwrap_or_default();
    let nodes: Option<Vec<_>> = items(&text).map(parse_node).collect();
    let nodes = nodes
        .filter(|nodes| !nodes.is_empty())
        .ok_or_else(|| SettingsError::new(CLUSTER_NODES, "host:port between commas, IPv6 in brackets"))?;
    let password = env.verbatim(PASSWORD)?;
    Ok(RedisTarget::Cluster { nodes, password })
}

fn read_url(env: &Environment<'_>) -> Result<RedisTarget, SettingsError> {
    let url = env.trimmed(URL)?.unwrap_or_default();
    if Location::of_url(&url).is_none() {
        let accepts = "redis://[[user]:password@]host[:port][/database], or rediss:// for TLS, \
                       with special characters of the password percent-encoded";
        return Err(SettingsError::new(URL, accepts));
    }
    Ok(RedisTarget::Url(url))
}

fn read_host(env: &Environment<'_>) -> Result<RedisTarget, SettingsError> {
    let text = env.trimmed(HOST)?.unwrap_or_default();
    // Its value is not shown: a whole URL is easily pasted here.
    let host = parse_bare_host(&text)
        .ok_or_else(|| SettingsError::new(HOST, "a host name or an address, without a port"))?;
    let port = read_port(env)?;
    let db = env.whole(DB, 0..=MAX_DB)?.unwrap_or(0);
    let password = env.verbatim(PASSWORD)?;
    let url = node_url(&format!("{host}:{port}"), password.as_deref());
    Ok(RedisTarget::Url(format!("{url}/{db}")))
}

/// A number; or `tcp://10.0.0.1:6379`, which Kubernetes sets by itself beside a
/// service of the name `redis`.
fn read_port(env: &Environment<'_>) -> Result<u16, SettingsError> {
    let set = env.trimmed(PORT)?.unwrap_or_default();
    let linked = set.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':')?.1.parse().ok());
    match linked {
        Some(port @ 1..) => Ok(port),
        _ => Ok(env.whole(PORT, 1..=u16::MAX)?.unwrap_or(DEFAULT_PORT)),
    }
}

fn node_url(node: &str, password: Option<&str>) -> String {
    match password {
        Some(password) => {
            let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
            format!("redis://:{password}@{node}")
        }
        None => format!("redis://{node}"),
    }
}

/// The part of a URL that may be shown.
struct Location<'a> {
    scheme: &'a str,
    node: String,
    db: Option<&'a str>,
}

impl<'a> Location<'a> {
    /// `None` when it is not a URL that a Redis client would take.
    fn of_url(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        // The last one: a password may hold an `@`.
        let (login, node) = authority.rsplit_once('@').unwrap_or(("", authority));
        percent_decode_str(login).decode_utf8().ok()?;
        let path = path.split(['?', '#']).next()?;
        let db = path.strip_prefix('/').filter(|db| !db.is_empty());
        let legal = |db| parse_digits(db).is_some_and(|db| db <= u64::from(MAX_DB));
        (SCHEMES.contains(&scheme) && db.is_none_or(legal)).then_some(())?;
        Some(Self { scheme, node: parse_node(node)?, db })
    }
}

impl fmt::Display for Location<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.node)?;
        self.db.map_or(Ok(()), |db| write!(f, "/{db}"))
    }
}

/// `host`, `host:port` or `[v6]:port`, with the port filled in.
fn parse_node(text: &str) -> Option<String> {
    let end = if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':').unwrap_or(text.len()) };
    let (host, port) = text.split_at(end);
    let port = match port.strip_prefix(':') {
        Some(port) => u16::try_from(parse_digits(port)?).ok().filter(|port| *port != 0)?,
        None => port.is_empty().then_some(DEFAULT_PORT)?,
    };
    parse_host(host).map(|host| format!("{host}:{port}"))
}

/// As [`parse_host`]; without a port IPv6 needs no brackets.
fn parse_bare_host(text: &str) -> Option<String> {
    match text.parse::<Ipv6Addr>() {
        Ok(address) => Some(format!("[{address}]")),
        Err(_) => parse_host(text),
    }
}

fn parse_host(text: &str) -> Option<String> {
    if let Some(address) = text.strip_prefix('[') {
        let address: Ipv6Addr = address.strip_suffix(']')?.parse().ok()?;
        return Some(format!("[{address}]"));
    }
    // What a host name or an IPv4 address is made of, and no more: the host is
    // shown, so no credentials may hide in it.
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (!text.is_empty() && text.bytes().all(legal)).then(|| text.to_owned())
}
