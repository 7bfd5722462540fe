//! An MCP server with one expensive tool, limited to 3 calls a minute for each
//! client, over HTTP and on stdio.
//!
//! ```text
//! cargo run -p mcp-server
//! CALL='{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"1+1"}}}'
//! for i in 1 2 3 4; do curl -i http://127.0.0.1:3000/mcp -H 'x-client: ann' -H 'content-type: application/json' \
//!   -H 'accept: application/json, text/event-stream' -d "$CALL"; done
//! ```
//!
//! Expect an error of the server three times, as nobody has shaken hands, each
//! counted in `x-ratelimit-remaining`; and then, with a 200, what a model reads:
//! `limit of 3 per minute reached, retry in 59 s`. An MCP client that connects to
//! `http://127.0.0.1:3000/mcp` is told the same at its fourth call.
//!
//! ```text
//! REDIS_URL=redis://127.0.0.1:6379 MCP_CLIENT=ann cargo run -p mcp-server -- --stdio
//! ```
//!
//! serves one client on stdin and stdout; its logs are on stderr. With the same
//! Redis it shares the count with the server over HTTP, at `codemode:rl:ann`, and
//! with any other program that runs `INCR` there.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use axum::Router;
use mcp_server::{EXECUTE_CODE, Tools, http_service};
use rmcp::ServiceExt;
use tokio::net::TcpListener;
use tower::Layer;
use tower_ratelimit::identity::RequestHead;
use tower_ratelimit::mcp::McpLayer;
use tower_ratelimit::{Policy, Rate, RateLimiter};

#[tokio::main]
async fn main() -> ExitCode {
    // Stdout is the transport.
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    let arguments: Vec<_> = env::args().skip(1).collect();
    let done = match arguments.as_slice() {
        [] => over_http().await,
        [stdio] if stdio == "--stdio" => on_stdio().await,
        _ => Err("takes no arguments, or --stdio".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when this fails.
            let _ = writeln!(io::stderr(), "mcp-server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn over_http() -> Result<(), Box<dyn Error>> {
    let layer = McpLayer::builder(limiter()?, client)
        .transport(Policy::fixed_window("http", Rate::per_minute(100)))
        .tool(EXECUTE_CODE, codemode())
        .build()?;
    let app = Router::new().route_service("/mcp", layer.layer(http_service()));

    let listener = TcpListener::bind(env::var("LISTEN").unwrap_or("127.0.0.1:3000".to_owned())).await?;
    writeln!(io::stdout(), "listening on http://{}", listener.local_addr()?)?;
    // Without `connect_info` there is no peer address to limit by.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn on_stdio() -> Result<(), Box<dyn Error>> {
    let limiter = limiter()?;
    let codemode = limiter.policy(codemode())?;
    let client = env::var("MCP_CLIENT").unwrap_or("local".to_owned());
    let tools = Tools::limited(limiter, codemode, &client);
    tools.serve(rmcp::transport::stdio()).await?.waiting().await?;
    Ok(())
}

fn codemode() -> Policy {
    Policy::fixed_window("codemode", Rate::per_minute(3))
}

fn limiter() -> Result<RateLimiter, Box<dyn Error>> {
    Ok(match env::var("REDIS_URL") {
        Ok(url) => RateLimiter::redis(url)?,
        Err(_) => RateLimiter::memory(),
    })
}

/// Who calls, as an authentication layer would have verified it: a demonstration,
/// which believes a header.
fn client(head: &RequestHead<'_>) -> Option<String> {
    Some(head.headers().get("x-client")?.to_str().ok()?.to_owned())
}
