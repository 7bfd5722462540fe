//! rmcp's own client against rmcp's own server, with nothing in between but the
//! layer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use rmcp::model::{CallToolRequestParams, CallToolResult, ProtocolVersion};
use rmcp::service::{ClientInitializeError, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientLifecycleMode, ClientServiceExt, RoleClient, ServiceExt};
use serde_json::Map;
use tower_ratelimit::mcp::Answer as Mode;
use tower_ratelimit::{Key, Policy, Rate, RateLimiter};

use crate::harness::{limits, serve};

/// How a client connects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lifecycle {
    /// `initialize`, `notifications/initialized` and a session.
    Handshake,
    /// `server/discover`, from the protocol of 2026-07-28 on.
    Discover,
}

type Client = RunningService<RoleClient, ()>;

pub(crate) async fn connect(
    addr: SocketAddr,
    client: &str,
    lifecycle: Lifecycle,
) -> Result<Client, ClientInitializeError> {
    let headers =
        HashMap::from([(HeaderName::from_static("x-client"), HeaderValue::from_str(client).unwrap())]);
    let config =
        StreamableHttpClientTransportConfig::with_uri(format!("http://{addr}/mcp")).custom_headers(headers);
    let mode = match lifecycle {
        Lifecycle::Handshake => ClientLifecycleMode::Initialize,
        Lifecycle::Discover => {
            ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
        }
    };
    ().serve_with_lifecycle(StreamableHttpClientTransport::from_config(config), mode).await
}

async fn call(client: &Client, tool: &'static str) -> Result<CallToolResult, ServiceError> {
    client.call_tool(CallToolRequestParams::new(tool).with_arguments(Map::new())).await
}

/// Whether it is an error, and the text.
fn read(result: &CallToolResult) -> (bool, &str) {
    (result.is_error == Some(true), &result.content[0].as_text().unwrap().text)
}

/// Three calls in three seconds.
fn three(limiter: RateLimiter) -> tower_ratelimit::mcp::McpLayerBuilder {
    tower_ratelimit::mcp::McpLayer::builder(limiter, crate::harness::client)
        .tool("execute_code", Policy::fixed_window("codemode", Rate::new(3, Duration::from_secs(3)).unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_is_a_result_that_the_model_reads_and_the_session_goes_on() {
    for lifecycle in [Lifecycle::Handshake, Lifecycle::Discover] {
        let addr = serve(three(RateLimiter::memory())).await;
        let client = connect(addr, "ann", lifecycle).await.unwrap();
        assert_eq!(client.list_all_tools().await.unwrap().len(), 2);
        for _ in 0..3 {
            assert_eq!(read(&call(&client, "execute_code").await.unwrap()), (false, "ran 0 bytes"));
        }
        let refused = call(&client, "execute_code").await.unwrap();
        let (is_error, text) = read(&refused);
        let wait = text
            .strip_prefix("limit of 3 per 3s reached, retry in ")
            .and_then(|rest| rest.strip_suffix(" s"));
        let wait: u64 = wait.unwrap_or_else(|| panic!("{lifecycle:?}: {text}")).parse().unwrap();
        assert!(is_error && (1..=3).contains(&wait), "{lifecycle:?}: {text}");
        // Other tools are not limited with it.
        assert!(!read(&call(&client, "echo").await.unwrap()).0);

        // A second session of the same principal has no second budget, and connects.
        let second = connect(addr, "ann", lifecycle).await.unwrap();
        assert_eq!(second.list_all_tools().await.unwrap().len(), 2);
        assert!(read(&call(&second, "execute_code").await.unwrap()).0, "{lifecycle:?}");
        let other = connect(addr, "bob", lifecycle).await.unwrap();
        assert!(!read(&call(&other, "execute_code").await.unwrap()).0, "{lifecycle:?}");

        tokio::time::sleep(Duration::from_secs(wait)).await;
        assert!(!read(&call(&client, "execute_code").await.unwrap()).0, "{lifecycle:?}");
        assert!(!read(&call(&second, "execute_code").await.unwrap()).0, "{lifecycle:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn o_mcp_4_in_the_mode_of_statuses_the_client_reports_a_429_and_the_session_goes_on() {
    for lifecycle in [Lifecycle::Handshake, Lifecycle::Discover] {
        let addr = serve(three(RateLimiter::memory()).tool_answer(Mode::Status)).await;
        let client = connect(addr, "ann", lifecycle).await.unwrap();
        for _ in 0..3 {
            assert!(!read(&call(&client, "execute_code").await.unwrap()).0);
        }
        let refused =
            tokio::time::timeout(Duration::from_secs(5), call(&client, "execute_code")).await.unwrap();
        let error = refused.unwrap_err();
        assert!(matches!(error, ServiceError::TransportSend(_)), "{lifecycle:?}: {error:?}");
        assert!(format!("{error:?}").contains("429"), "{lifecycle:?}: {error:?}");
        assert_eq!(client.list_all_tools().await.unwrap().len(), 2, "{lifecycle:?}");
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!read(&call(&client, "execute_code").await.unwrap()).0, "{lifecycle:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_come_and_go_connect_while_the_transport_has_room() {
    let addr =
        serve(limits(RateLimiter::memory()).transport(Policy::fixed_window("http", Rate::per_minute(100))))
            .await;
    for i in 0..20 {
        let client = connect(addr, "ann", Lifecycle::Handshake).await.unwrap();
        assert_eq!(client.list_all_tools().await.unwrap().len(), 2);
        let refused = read(&call(&client, "execute_code").await.unwrap()).0;
        assert_eq!(refused, i >= 10, "session {i}");
        client.cancel().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_without_http_charges_the_same_count() {
    let limiter = RateLimiter::memory();
    let policy = Policy::fixed_window("codemode", Rate::per_minute(10));
    let generous = Policy::fixed_window("http", Rate::per_minute(100));
    let addr = serve(limits(limiter.clone()).transport(generous)).await;
    let codemode = limiter.policy(policy).unwrap();
    let (ours, theirs) = tokio::io::duplex(4096);
    let tools = mcp_server::Tools::limited(limiter.clone(), codemode.clone(), "ann");
    tokio::spawn(async move { tools.serve(theirs).await.unwrap().waiting().await });
    let piped = ().serve(ours).await.unwrap();
    let over_http = connect(addr, "ann", Lifecycle::Handshake).await.unwrap();

    for _ in 0..5 {
        assert!(!read(&call(&piped, "execute_code").await.unwrap()).0);
        assert!(!read(&call(&piped, "echo").await.unwrap()).0);
        assert!(!read(&call(&over_http, "execute_code").await.unwrap()).0);
        assert!(!read(&call(&over_http, "echo").await.unwrap()).0);
    }
    for client in [&piped, &over_http] {
        let refused = call(client, "execute_code").await.unwrap();
        assert!(read(&refused).1.starts_with("limit of 10 per minute reached, retry in "), "{refused:?}");
    }
    let used = limiter.peek(&codemode, &Key::principal("ann")).await;
    assert_eq!(used.used(), 10);
}
