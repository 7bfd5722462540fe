//! What must work on a new connection before checks use it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};
use tokio::time::timeout;

use super::cluster::{self, Home};
use super::connection::Probe;
use super::script::Asking;
use super::{Asked, REPLIED, Reservations, Scripts, fill, unexpected_reply};
use crate::algorithm::{Act, Kind, Rule};

/// Two checks like any other, on a key that is nobody's: what passes them can
/// decide. A ping would also be answered by a replica, by a server that
/// is out of memory, and to a user that may not do what the script does.
pub(super) struct WriteProbe {
    pub(super) scripts: Arc<Scripts>,
    pub(super) namespace: String,
    pub(super) deadline: Duration,
    /// In a cluster.
    pub(super) home: Option<Home>,
}

impl Probe for WriteProbe {
    async fn probe(&self, mut connection: MultiplexedConnection) -> Result<Duration, RedisError> {
        // No policy name has a dot. In braces, for the reservations are in the
        // same slot.
        let stem = format!("{}.probe:rl:", self.namespace);
        let key = match &self.home {
            None => Some(format!("{stem}{{{:08x}}}", fastrand::u32(..))),
            // A node without slots has no key to try it on.
            Some(home) => home.key(&stem),
        };
        if let Some(key) = key {
            match self.try_out(&mut connection, key).await {
                // It would tell a check as well who has that slot by now.
                Err(error) if self.home.is_some() && cluster::asking(&error).is_some() => {}
                tried => tried?,
            }
        }
        // The last one alone, for the first may have had to send the script. A
        // server that is too far away answers a probe, and then no check in time.
        let asked = redis::cmd("TIME");
        let answer = timeout(self.deadline, asked.query_async(&mut connection)).await;
        let (seconds, micros): (u64, u32) =
            answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(Duration::from_secs(seconds) + Duration::from_micros(micros.into()))
    }
}

impl WriteProbe {
    async fn try_out(&self, connection: &mut MultiplexedConnection, key: String) -> Result<(), RedisError> {
        let open = format!("{key}:=open");
        let asked = |window, act| {
            let rule =
                Rule { kind: Kind::FixedWindow, limit: 5, window, block: 0, enforced: true, pardon: 0 };
            let reservations = Reservations { key: open.clone(), member: "probe=1".to_owned(), held_for: 1 };
            let reservations = (act != Act::Charge).then_some(reservations);
            Asked { key: key.clone(), rule, cost: 1, act, pardon: 0, reservations, owed: None }
        };
        // The two checks take one script each. What settles finds the count of the first, what reserves a longer window
        // than its own: with the deletion every command of the script is run.
        let first = [asked(1000, Act::Charge)];
        let second = [asked(1000, Act::Settle), asked(1, Act::Reserve)];
        for asked in [&first[..], &second] {
            let fill = |command: &mut Cmd| fill(command, asked, Duration::ZERO);
            if self.scripts.of(asked).run(connection, Asking::No, fill).await?.len() != REPLIED * asked.len()
            {
                return Err(unexpected_reply());
            }
        }
        redis::cmd("DEL").arg(&[key, open]).query_async(connection).await
    }
}
