//! What is sent to Redis, and on which way.

use std::sync::{Arc, OnceLock};

use redis::{Cmd, RedisError, RedisResult};
use tokio::time::Instant;

use super::cluster::{self, Guide};
use super::node::Hop;
use super::script::Asking;
use super::{Asked, error, fill};
use crate::store::StoreError;

/// What is sent in one piece. All its keys are in one slot.
pub(super) enum Request {
    Charge(Vec<Asked>),
    Forget(Vec<String>),
}

impl Request {
    async fn on(&self, hop: &Hop, asking: Asking) -> RedisResult<Vec<i64>> {
        let mut connection = hop.live.connection.clone();
        match self {
            Self::Charge(asked) => {
                let fill = |command: &mut Cmd| fill(command, asked, hop.live.server_now());
                hop.scripts.of(asked).run(&mut connection, asking, fill).await
            }
            Self::Forget(keys) => {
                let mut command = redis::cmd("DEL");
                command.arg(keys);
                asking.query(&mut connection, command).await.map(|gone| vec![gone])
            }
        }
    }
}

/// Where a request goes.
pub(super) struct Way {
    pub(super) hop: Hop,
    /// Set when a redirect leads elsewhere.
    pub(super) landed: Arc<OnceLock<Hop>>,
    /// Who follows redirects, in a cluster.
    pub(super) guide: Option<Guide>,
    /// Nothing is sent again after that.
    pub(super) until: Instant,
}

impl Way {
    /// Sends, and follows one redirect. That is certain not to charge twice: who
    /// redirects has done nothing.
    pub(super) async fn send(self, request: Request) -> Result<Vec<i64>, StoreError> {
        let error = match request.on(&self.hop, Asking::No).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let Some(guide) = &self.guide else { return Err(error::classify(&error)) };
        let is_late = Instant::now() >= self.until;
        match cluster::asking(&error).filter(|_| !is_late) {
            // Boxed, for it is rare and would double what each check holds.
            Some(asking) => Box::pin(self.follow(guide, &error, asking, &request)).await,
            None => Err(guide.classify(&error)),
        }
    }

    async fn follow(
        &self,
        guide: &Guide,
        redirect: &RedisError,
        asking: Asking,
        request: &Request,
    ) -> Result<Vec<i64>, StoreError> {
        // The node is there; who it names may not be.
        if let Some(node) = self.hop.node() {
            node.link.answered();
        }
        let hop = guide.follow(redirect, &self.hop, self.until).await?;
        let hop = self.landed.get_or_init(|| hop);
        request.on(hop, asking).await.map_err(|error| guide.classify(&error))
    }
}
