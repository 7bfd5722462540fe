//! The Lua scripts and how they are run: by digest, the text sent again only
//! when the server has lost it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisResult, Script as Digest, ServerErrorKind, Value, from_redis_value,
};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// One check of any policies. The twins of the algorithms stand in front of it:
/// a script cannot load another one.
pub(super) const CHECK: &str = concat!(
    include_str!("lua/values.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/token_bucket.lua"),
    include_str!("lua/check.lua"),
);

/// The same for what [`CHECK`] is asked most often: charges of fixed windows,
/// with nothing owed and nothing reserved.
pub(super) const FIXED_CHARGES: &str = include_str!("lua/fixed_charges.lua");

/// How long a check waits for another one to send the script before it sends
/// the script itself: the other may have been dropped or be held unpolled.
const PATIENCE: Duration = Duration::from_millis(20);

/// A script and what is known of its presence on the server.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    sha1: String,
    /// How often the text was sent.
    sent: AtomicU64,
    /// Held by the one that sends the text.
    sending: Mutex<()>,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Self {
        let sha1 = Digest::new(text).get_hash().to_owned();
        Self { text, sha1, sent: AtomicU64::new(0), sending: Mutex::new(()) }
    }

    /// Runs it. One round trip, or two when the server does not know it.
    ///
    /// Not knowing a script is the one error after which sending again is
    /// certain not to charge twice.
    pub(super) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        asking: Asking,
        fill: impl Fn(&mut Cmd),
    ) -> RedisResult<Vec<i64>> {
        let sent = self.sent.load(Ordering::Acquire);
        let reply = self.by_digest(connection, asking, &fill).await;
        if !is_unknown(&reply) {
            return reply;
        }
        // Checks that find it missing together send it once.
        let sending = timeout(PATIENCE, self.sending.lock()).await;
        if sending.is_ok() && self.sent.load(Ordering::Acquire) != sent {
            drop(sending);
            let reply = self.by_digest(connection, asking, &fill).await;
            if !is_unknown(&reply) {
                return reply;
            }
        }
        let mut command = redis::cmd("EVAL");
        fill(command.arg(self.text));
        let reply = asking.query(connection, command).await;
        self.sent.fetch_add(1, Ordering::Release);
        reply
    }

    async fn by_digest(
        &self,
        connection: &mut MultiplexedConnection,
        asking: Asking,
        fill: &impl Fn(&mut Cmd),
    ) -> RedisResult<Vec<i64>> {
        let mut command = redis::cmd("EVALSHA");
        fill(command.arg(&self.sha1));
        asking.query(connection, command).await
    }
}

/// Whether a node of a cluster is asked for a key of a slot that is on its way
/// to it: it says no to anybody who does not announce that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    No,
    Yes,
}

impl Asking {
    /// Sends a command, within one write with what announces it.
    pub(super) async fn query<T: FromRedisValue>(
        self,
        connection: &mut MultiplexedConnection,
        command: Cmd,
    ) -> RedisResult<T> {
        if self == Self::No {
            return command.query_async(connection).await;
        }
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command);
        // As values: an error of a whole pipeline has lost its code.
        let mut replies = connection.req_packed_commands(&pipeline, 0, 2).await?;
        let reply = replies.pop().unwrap_or(Value::Nil).extract_error()?;
        Ok(from_redis_value(reply)?)
    }
}

fn is_unknown<T>(reply: &RedisResult<T>) -> bool {
    reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}
