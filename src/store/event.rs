//! What a store tells the outside: why it could not decide, and when its
//! connection changes.

use std::fmt;
use std::time::Duration;

/// A store could not decide. Nothing is known of the charge: it may have been
/// counted or not.
///
/// It names the kind and, where Redis gave one, its error code; never a key, a
/// URL or a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    kind: StoreErrorKind,
    code: Option<String>,
}

impl StoreError {
    pub(crate) fn new(kind: StoreErrorKind) -> Self {
        Self { kind, code: None }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_code(kind: StoreErrorKind, code: &str) -> Self {
        Self { kind, code: Some(code.to_owned()) }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store could not decide: {}", self.kind)?;
        match &self.code {
            Some(code) => write!(f, " ({code})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for StoreError {}

/// Why a store could not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// There is no connection.
    Disconnected,
    /// The deadline passed.
    Timeout,
    /// The connection was refused, reset or broke.
    Io,
    /// TLS failed: the server's certificate is not trusted or not for this host,
    /// or what answers does not speak TLS, or wants a client certificate.
    Tls,
    /// More checks wait than the limiter holds.
    Overload,
    /// The server is a replica, or a demoted master.
    ReadOnly,
    /// The server loads its data.
    Loading,
    /// The server runs somebody's long script.
    Busy,
    /// The cluster is down, or nobody has the slot, or it is moving.
    ClusterDown,
    /// The replica has lost its master.
    MasterDown,
    /// The server is out of memory.
    OutOfMemory,
    /// The server cannot persist and refuses writes.
    PersistenceFailed,
    /// Too few replicas are connected.
    NoReplicas,
    /// The server takes no more connections.
    MaxClients,
    /// The password or user is missing or wrong.
    Auth,
    /// The user may not do this, or not with this key.
    Forbidden,
    /// The keys of one check are in different cluster slots, or the server is a
    /// cluster and this client was not told.
    CrossSlot,
    /// The server has no database of that number.
    Database,
    /// The server does not know a command that the limiter needs.
    UnknownCommand,
    /// Something else.
    Other,
}

impl StoreErrorKind {
    /// The name in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::Timeout => "timeout",
            Self::Io => "io",
            Self::Tls => "tls",
            Self::Overload => "overload",
            Self::ReadOnly => "readonly",
            Self::Loading => "loading",
            Self::Busy => "busy",
            Self::ClusterDown => "clusterdown",
            Self::MasterDown => "masterdown",
            Self::OutOfMemory => "oom",
            Self::PersistenceFailed => "misconf",
            Self::NoReplicas => "noreplicas",
            Self::MaxClients => "max_clients",
            Self::Auth => "auth",
            Self::Forbidden => "auth_forbidden",
            Self::CrossSlot => "crossslot",
            Self::Database => "database",
            Self::UnknownCommand => "unknown_command",
            Self::Other => "other",
        }
    }

    /// Whether waiting does not help: somebody must change a setting.
    #[must_use]
    pub fn is_misconfiguration(self) -> bool {
        matches!(
            self,
            Self::Tls
                | Self::Auth
                | Self::Forbidden
                | Self::CrossSlot
                | Self::Database
                | Self::UnknownCommand
        )
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something happened between a limiter and its store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreEvent<'a> {
    /// The store is connected and decides; of a cluster, one master for its
    /// slots.
    Connected {
        /// Host and port.
        address: &'a str,
    },
    /// The connection is lost, or could not be made for the first time.
    Lost {
        /// Host and port.
        address: &'a str,
        /// Why.
        error: &'a StoreError,
    },
    /// A node of a cluster has no slots any more, or was only asked for the way
    /// to the others: it is not missed.
    Left {
        /// Host and port.
        address: &'a str,
    },
    /// The store is connected, but has refused a check for a reason that
    /// somebody must mend. Told once for each connection.
    Misconfigured {
        /// Host and port.
        address: &'a str,
        /// Why.
        error: &'a StoreError,
    },
    /// The store has answered a check within its deadline.
    Answered {
        /// From asking to the answer.
        latency: Duration,
    },
    /// The store could not decide a check.
    Failed {
        /// Why.
        error: &'a StoreError,
        /// From asking to giving up.
        latency: Duration,
    },
}
