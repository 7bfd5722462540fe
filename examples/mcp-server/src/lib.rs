//! The MCP server itself: two tools, one of them expensive. What is limited, and
//! how, is in `main.rs`.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Map, Value, json};
pub use tokio_util::sync::CancellationToken;
use tower_ratelimit::{Charge, Key, PolicyHandle, RateLimiter, mcp};

/// The tool that is limited.
pub const EXECUTE_CODE: &str = "execute_code";
/// One that is not.
pub const ECHO: &str = "echo";

/// The tools. Over HTTP a layer limits them; on stdio there is none, so they do it
/// themselves.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    limit: Option<Limit>,
}

/// One client's, as the process serves no other.
#[derive(Clone, Debug)]
struct Limit {
    limiter: RateLimiter,
    codemode: PolicyHandle,
    client: Key,
}

impl Tools {
    /// Limited by a layer, if at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limited by themselves, for one client.
    #[must_use]
    pub fn limited(limiter: RateLimiter, codemode: PolicyHandle, client: &str) -> Self {
        Self { limit: Some(Limit { limiter, codemode, client: Key::principal(client) }) }
    }

    /// Whether `execute_code` may run, or what the model is told instead.
    async fn admit(&self) -> Result<(), String> {
        let Some(Limit { limiter, codemode, client }) = &self.limit else { return Ok(()) };
        let decision = limiter.check([Charge::new(codemode, *client)]).await;
        if decision.is_allowed() {
            return Ok(());
        }
        tracing::info!(policy = decision.policy(), "a tool call is refused");
        Err(mcp::words(&decision))
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![
            tool(EXECUTE_CODE, "Runs a program. Limited for each client.", "code"),
            tool(ECHO, "Says what it was told.", "text"),
        ]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|arguments| arguments.get(name));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let result = match &*request.name {
            EXECUTE_CODE => match self.admit().await {
                // A demonstration: nothing is run.
                Ok(()) => text(format!("ran {} bytes", argument("code").len())),
                Err(refused) => CallToolResult::error(vec![ContentBlock::text(refused)]),
            },
            ECHO => text(argument("text")),
            _ => return Err(ErrorData::invalid_params("there is no such tool", None)),
        };
        Ok(result.into())
    }
}

/// The transport over HTTP, without any limit, for clients on this machine: a page
/// in a browser cannot make it its own by giving this machine another name.
#[must_use]
pub fn http_service() -> HttpService {
    service(StreamableHttpServerConfig::default())
}

/// The same under any name, as behind a load balancer. Whoever calls must be known
/// by something that a page in a browser does not have, such as a token. `ended`
/// ends the streams of sessions, which have no end of their own.
#[must_use]
pub fn http_service_for_any_host(ended: CancellationToken) -> HttpService {
    service(StreamableHttpServerConfig::default().disable_allowed_hosts().with_cancellation_token(ended))
}

/// What a layer goes around.
pub type HttpService = StreamableHttpService<Tools, LocalSessionManager>;

fn service(config: StreamableHttpServerConfig) -> HttpService {
    StreamableHttpService::new(|| Ok(Tools::new()), Arc::new(LocalSessionManager::default()), config)
}

fn text(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

/// A tool of one argument, a text.
fn tool(name: &'static str, description: &'static str, argument: &str) -> Tool {
    let schema = json!({
        "type": "object",
        "properties": { argument: { "type": "string" } },
        "required": [argument],
    });
    let schema: Map<String, Value> = schema.as_object().cloned().unwrap_or_default();
    Tool::new(name, description, schema)
}
