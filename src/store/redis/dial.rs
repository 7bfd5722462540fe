//! How connections are made, and what a server is called.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{Manager, Pool, Runtime};
use redis::aio::SendError;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError,
};
use tokio::sync::Notify;

/// An attempt to connect takes no longer than this.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How connections are made.
pub(super) struct Dial {
    pub(super) target: ConnectionInfo,
    /// Told by the client when a connection is closed: without that, a dead one
    /// that nobody uses would count as connected until the next check.
    pub(super) closed: Arc<Notify>,
}

impl Dial {
    pub(super) fn pool(&self, protocol: ProtocolVersion) -> Result<Pool, RedisError> {
        // A server that is full or refuses this client says so once and closes.
        // The client would ask for two more answers, which are about its own
        // name, and report the end of the connection in place of the reason.
        let settings = self.target.redis_settings().clone().set_protocol(protocol).set_skip_set_lib_name();
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // Each check has the store's own deadline.
            .set_response_timeout(None);
        // The older protocol has no place for such news.
        if protocol == ProtocolVersion::RESP3 {
            let closed = self.closed.clone();
            config = config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    closed.notify_one();
                }
                Ok::<_, SendError>(())
            });
        }
        let manager = Manager::new_with_config(self.target.clone().set_redis_settings(settings), config)?;
        Pool::builder(manager)
            .max_size(1)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .recycle_timeout(Some(CONNECT_TIMEOUT))
            .build()
            .map_err(|_| RedisError::from((redis::ErrorKind::InvalidClientConfig, "the pool has no runtime")))
    }
}

pub(super) fn address(target: &ConnectionAddr) -> String {
    match target {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        _ => String::from("redis"),
    }
}
