//! The preset: a look, a layer, and what is right for an MCP server in between.

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::look::{Look, LookLayer};
use super::reply::{Answer, JsonRpc};
use super::rules::{McpRules, Tools};
use crate::identity::{ClientIp, Described, Identify};
use crate::limiter::{BuildError, RateLimiter};
use crate::middleware::{Missing, RateLimit, RateLimitLayer, RateLimitLayerBuilder};
use crate::policy::{Policy, Rate};
use crate::rules::Limit;

/// Limits an MCP server over streamable HTTP: the transport by address, tools by
/// client.
///
/// ```
/// use tower_ratelimit::identity::Principal;
/// use tower_ratelimit::mcp::McpLayer;
/// use tower_ratelimit::{Policy, Rate, RateLimiter};
///
/// let layer = McpLayer::builder(RateLimiter::memory(), Principal::by_user())
///     .tool("execute_code", Policy::fixed_window("codemode", Rate::per_minute(60)))
///     .build()?;
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
///
/// Around the service of the transport, behind the authentication layer. It takes
/// requests with any body and passes them on with a
/// [`RequestBody`](super::RequestBody).
#[derive(Clone, Debug)]
pub struct McpLayer {
    look: LookLayer,
    limit: RateLimitLayer,
}

impl McpLayer {
    /// All settings. `identity` is the client whose tool calls are counted: the
    /// principal that the authentication layer has verified. Without one, see
    /// [`missing`](McpLayerBuilder::missing).
    ///
    /// It is not the session: a client that connects again has a new one.
    pub fn builder(limiter: RateLimiter, identity: impl Identify) -> McpLayerBuilder {
        McpLayerBuilder {
            limiter,
            identity: Arc::new(identity),
            client_ip: ClientIp::default(),
            transport: Policy::fixed_window("http", Rate::per_minute(100)).into(),
            streams: None,
            tools: Vec::new(),
            missing: Missing::default(),
            look: LookLayer::new(),
            reply: JsonRpc::new(),
            configure: Vec::new(),
        }
    }

    /// The limiter, for the same limits outside of HTTP: a tool on stdio.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        self.limit.limiter()
    }
}

impl<S> Layer<S> for McpLayer {
    type Service = Look<RateLimit<S>>;

    fn layer(&self, inner: S) -> Self::Service {
        self.look.layer(self.limit.layer(inner))
    }
}

type Configure = Box<dyn FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder>;

/// Sets up an [`McpLayer`].
#[must_use = "a layer is built by `build`"]
pub struct McpLayerBuilder {
    limiter: RateLimiter,
    identity: Arc<dyn Identify>,
    client_ip: ClientIp,
    transport: Limit,
    streams: Option<Limit>,
    tools: Vec<Tools>,
    missing: Missing,
    look: LookLayer,
    reply: JsonRpc,
    configure: Vec<Configure>,
}

impl McpLayerBuilder {
    /// Counts the calls of a tool by the client, and by nothing else. An array
    /// costs as many as it holds, times the [cost](Limit::cost) of one. Tools that
    /// have no limit of their own count as the transport.
    pub fn tool(self, name: impl Into<Box<str>>, limit: impl Into<Limit>) -> Self {
        self.tools([name], limit)
    }

    /// The same for several tools that share one count.
    pub fn tools(
        mut self,
        names: impl IntoIterator<Item = impl Into<Box<str>>>,
        limit: impl Into<Limit>,
    ) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        self.tools.push(Tools { names, limit: limit.into() });
        self
    }

    /// Counts everything else: the handshake, lists, notifications, calls of other
    /// tools. By address, unless the limit has an identity of its own. It should be
    /// generous, for hosted agents share a few addresses, and many clients give a
    /// server up that refuses one of these. Default: the policy `http`, a fixed
    /// window of 100 a minute.
    pub fn transport(mut self, limit: impl Into<Limit>) -> Self {
        self.transport = limit.into();
        self
    }

    /// Counts GET, which opens a stream: apart, because clients of a server
    /// without one try it again and again. By address, unless the limit has an
    /// identity of its own. Default: the policy `mcp-get`, a fixed window with the
    /// transport's rate.
    pub fn streams(mut self, limit: impl Into<Limit>) -> Self {
        self.streams = Some(limit.into());
        self
    }

    /// How the client address is found. Default: the peer's address, and no header
    /// is believed.
    pub fn client_ip(mut self, client_ip: ClientIp) -> Self {
        self.client_ip = client_ip;
        self
    }

    /// What happens to a tool call without the identity. Default:
    /// [`Missing::ByIp`].
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// How refused calls of limited tools are answered. Default:
    /// [`Answer::Result`], because no SDK tries a 429 again, and some hosts give
    /// the server up.
    pub fn tool_answer(mut self, answer: Answer) -> Self {
        self.reply = self.reply.tool_answer(answer);
        self
    }

    /// How all other refusals are answered. Default: [`Answer::Status`].
    pub fn transport_answer(mut self, answer: Answer) -> Self {
        self.reply = self.reply.transport_answer(answer);
        self
    }

    /// The code of JSON-RPC errors, see [`JsonRpc::code`]. Default: 429.
    pub fn code(mut self, code: i32) -> Self {
        self.reply = self.reply.code(code);
        self
    }

    /// How requests are looked at. Default: [`LookLayer::new`].
    pub fn look(mut self, look: LookLayer) -> Self {
        self.look = look;
        self
    }

    /// Other settings of the layer, such as
    /// [`standard_fields`](RateLimitLayerBuilder::standard_fields) and
    /// [`skip`](RateLimitLayerBuilder::skip).
    pub fn configure(
        mut self,
        configure: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder + 'static,
    ) -> Self {
        self.configure.push(Box::new(configure));
        self
    }

    /// Builds the layer, without any I/O.
    ///
    /// # Errors
    ///
    /// [`BuildError::SessionIdentity`] if the identity is, or falls back to, the
    /// header `mcp-session-id` alone; [`BuildError::DuplicateTool`] if a tool has two
    /// limits; what [`RateLimitLayerBuilder::build`] refuses, 6 limits of tools at
    /// the most among it.
    pub fn build(self) -> Result<McpLayer, BuildError> {
        if is_session(&self.identity) {
            return Err(BuildError::SessionIdentity);
        }
        let rate = self.transport.policy().rate();
        let streams = self.streams.unwrap_or_else(|| Policy::fixed_window("mcp-get", rate).into());
        let by_address = |limit: Limit| match limit.identity() {
            Some(_) => limit,
            None => limit.by(self.client_ip.clone()),
        };
        let reply =
            self.tools.iter().fold(self.reply, |reply, tools| reply.tool_policy(tools.limit.policy().name()));
        let rules =
            McpRules::new(&self.limiter, by_address(self.transport), by_address(streams), self.tools)?;
        let layer = RateLimitLayer::builder(self.limiter)
            .rules(rules)
            .identity(self.identity)
            .client_ip(self.client_ip.clone())
            .missing(self.missing)
            .reply(reply);
        let layer = self.configure.into_iter().fold(layer, |layer, configure| configure(layer));
        Ok(McpLayer { look: self.look, limit: layer.build()? })
    }
}

/// Whether an identity is, or falls back to, the header of the session. As one
/// part of several it only narrows. What a closure reads nobody can tell.
fn is_session(identity: &Arc<dyn Identify>) -> bool {
    let name = Described(identity).to_string();
    name.rsplit(':').next() == Some("mcp-session-id") && !name.contains(',')
}

impl fmt::Debug for McpLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpLayerBuilder")
            .field("transport", &self.transport)
            .field("reply", &self.reply)
            .finish_non_exhaustive()
    }
}
