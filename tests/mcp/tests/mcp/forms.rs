//! The form of each refusal, and the headers of every answer, read by parsers.

use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use sfv::{BareItem, List, ListEntry, Parser};
use tower_ratelimit::identity::{All, ClientIp, Header};
use tower_ratelimit::mcp::{Answer as Mode, McpLayer};
use tower_ratelimit::middleware::Missing;
use tower_ratelimit::{BuildError, OnStoreFailure, Policy, Rate, RateLimiter};

use crate::harness::{Answer, START, Server, call, calls, client, clocked, get, limits, post, told};

/// Name, `q` and `w` or `r` and `t`.
fn items(answer: &Answer, field: &str, keys: [&str; 2]) -> Vec<(String, i64, i64)> {
    let list: List = Parser::new(answer.header(field).unwrap_or_default()).parse().unwrap();
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an item: {entry:?}") };
        let BareItem::String(name) = &item.bare_item else { panic!("a string: {item:?}") };
        let number = |key: &str| i64::from(item.params.get(key).unwrap().as_integer().unwrap());
        (name.as_str().to_owned(), number(keys[0]), number(keys[1]))
    };
    list.iter().map(item).collect()
}

fn numbers(answer: &Answer) -> [Option<u64>; 4] {
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"]
        .map(|name| answer.number(name))
}

#[tokio::test]
async fn every_answer_says_what_is_left_a_refused_result_too() {
    let (limiter, clock) = clocked();
    let server = Server::behind(limits(limiter).configure(|layer| layer.standard_fields()));
    let one = |name: &str, first, second| vec![(name.to_owned(), first, second)];

    let answer = server.post(call(1, "execute_code")).await;
    assert_eq!(numbers(&answer), [Some(10), Some(9), Some(START + 60), None]);
    assert_eq!(items(&answer, "ratelimit-policy", ["q", "w"]), one("codemode", 10, 60));
    assert_eq!(items(&answer, "ratelimit", ["r", "t"]), one("codemode", 9, 60));

    let answer = server.post(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).await;
    assert_eq!(numbers(&answer), [Some(5), Some(4), Some(START + 60), None]);
    assert_eq!(items(&answer, "ratelimit", ["r", "t"]), one("http", 4, 60));

    server.post(calls(9, "execute_code")).await;
    clock.advance(Duration::from_millis(23_100));
    let refused = server.post(call("a", "execute_code")).await;
    assert_eq!(refused.status, StatusCode::OK);
    assert_eq!(numbers(&refused), [Some(10), Some(0), Some(START + 60), Some(37)]);
    assert_eq!(items(&refused, "ratelimit-policy", ["q", "w"]), one("codemode", 10, 60));
    assert_eq!(items(&refused, "ratelimit", ["r", "t"]), one("codemode", 0, 37));
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert_eq!(told(&refused.json()), (&json!("a"), "limit of 10 per minute reached, retry in 37 s"));

    server.post(calls(4, "echo")).await;
    let refused = server.post(call(2, "echo")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(numbers(&refused), [Some(5), Some(0), Some(START + 60), Some(37)]);
    assert_eq!(items(&refused, "ratelimit", ["r", "t"]), one("http", 0, 37));

    // A handler's own status makes no difference.
    let server = Server::answering(StatusCode::NOT_FOUND, limits(clocked().0));
    let answer = server.post(call(1, "execute_code")).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert_eq!(numbers(&answer), [Some(10), Some(9), Some(START + 60), None]);
}

#[tokio::test]
async fn a_result_comes_as_json_or_as_the_one_event_that_the_client_reads() {
    let none = Policy::fixed_window("codemode", Rate::per_minute(0));
    let server = Server::behind(McpLayer::builder(RateLimiter::memory(), client).tool("execute_code", none));
    for (accept, is_stream) in [
        ("application/json, text/event-stream", false),
        ("text/event-stream, application/json;q=0.1", false),
        ("*/*", false),
        ("application/*", false),
        ("text/event-stream", true),
        ("TEXT/Event-Stream", true),
        ("text/*", true),
        ("text/event-stream, application/json;q=0", true),
    ] {
        let mut request = post(&[]).body(Body::from(call(7, "execute_code").to_string())).unwrap();
        request.headers_mut().insert("accept", accept.parse().unwrap());
        let refused = server.send(request).await;
        assert_eq!(refused.status, StatusCode::OK);
        let result = if is_stream {
            assert_eq!(refused.header("content-type"), Some("text/event-stream"), "{accept}");
            let text = std::str::from_utf8(&refused.body).unwrap();
            let data = text.strip_prefix("event: message\ndata: ").and_then(|rest| rest.strip_suffix("\n\n"));
            serde_json::from_str(data.unwrap()).unwrap()
        } else {
            refused.json()
        };
        assert_eq!(told(&result), (&json!(7), "limit of 0 per minute reached, retry in 60 s"), "{accept}");
        assert_eq!(result["result"].as_object().unwrap().len(), 2, "{accept}");
    }
}

#[tokio::test]
async fn a_result_of_the_new_protocol_has_a_type() {
    let none = Policy::fixed_window("codemode", Rate::per_minute(0));
    let server = Server::behind(McpLayer::builder(RateLimiter::memory(), client).tool("execute_code", none));
    let new =
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "execute_code")];
    let refused =
        server.send(post(&new).body(Body::from(call(7, "execute_code").to_string())).unwrap()).await;
    let result = refused.json();
    assert_eq!(told(&result).0, &json!(7));
    assert_eq!(result["result"]["resultType"], "complete");
}

#[tokio::test]
async fn each_answer_and_the_code_can_be_set() {
    let layer = || {
        McpLayer::builder(RateLimiter::memory(), client)
            .transport(Policy::fixed_window("http", Rate::per_minute(0)))
            .tool("execute_code", Policy::fixed_window("codemode", Rate::per_minute(0)))
            .code(-32_023)
    };
    let list = json!({"jsonrpc": "2.0", "id": "x", "method": "tools/list"});
    let error = |id: Value| {
        let message = "limit of 0 per minute reached, retry in 60 s";
        let error = json!({"code": -32_023, "message": message, "data": {"retryAfterSeconds": 60}});
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    };

    let server = Server::behind(layer().tool_answer(Mode::Status).transport_answer(Mode::Result));
    let refused = server.post(call(7, "execute_code")).await;
    assert_eq!((refused.status, refused.json()), (StatusCode::TOO_MANY_REQUESTS, error(json!(7))));
    let refused = server.post(&list).await;
    assert_eq!((refused.status, refused.json()), (StatusCode::OK, error(json!("x"))));
    let refused = server.post(call(7, "echo")).await;
    assert_eq!((refused.status, told(&refused.json()).0), (StatusCode::OK, &json!(7)));
    // Nothing to answer by.
    for body in [json!({"jsonrpc": "2.0", "method": "notifications/initialized"}), json!([{"method": "a"}])] {
        let refused = server.post(body).await;
        assert_eq!((refused.status, refused.json()), (StatusCode::TOO_MANY_REQUESTS, error(Value::Null)));
    }
    let refused = server.send(get()).await;
    assert_eq!((refused.status, &refused.json()["id"]), (StatusCode::TOO_MANY_REQUESTS, &Value::Null));

    let server = Server::behind(layer());
    let refused = server.post(&list).await;
    assert_eq!((refused.status, refused.json()), (StatusCode::TOO_MANY_REQUESTS, error(json!("x"))));
    assert_eq!(server.post(call(7, "execute_code")).await.status, StatusCode::OK);
    assert_eq!(server.reached(), 0);
}

#[tokio::test]
async fn a_mixed_array_is_charged_to_each_policy_or_to_none() {
    let server = Server::behind(limits(RateLimiter::memory()));
    let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
    let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
    let mixed = json!([call(1, "execute_code"), ping, call(2, "echo"), note]);
    assert_eq!(server.post(&mixed).await.status, StatusCode::OK);
    assert_eq!(server.post(call(1, "execute_code")).await.number("x-ratelimit-remaining"), Some(8));
    assert_eq!(server.post(&ping).await.number("x-ratelimit-remaining"), Some(1));

    // 3 of the transport do not fit: nothing is charged, and each request is answered.
    let refused = server.post(&mixed).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    let ids: Vec<_> = refused.json().as_array().unwrap().iter().map(|error| error["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!("p"), json!(2)]);
    assert_eq!(server.post(call(1, "execute_code")).await.number("x-ratelimit-remaining"), Some(7));

    // The tool's policy refuses: its calls get results, a ping an error.
    server.post(calls(7, "execute_code")).await;
    let refused = server.post(json!([call(1, "execute_code"), ping])).await;
    assert_eq!(refused.status, StatusCode::OK);
    assert_eq!(told(&refused.json()[0]).0, &json!(1));
    assert_eq!(refused.json()[1]["error"]["code"], 429);
    assert_eq!(server.post(&ping).await.number("x-ratelimit-remaining"), Some(0));
}

#[tokio::test]
async fn who_is_counted_is_the_client_or_else_the_address() {
    let once = Policy::fixed_window("codemode", Rate::per_minute(1));
    let layer = McpLayer::builder(RateLimiter::memory(), client).tools(["execute_code", "run"], once);
    let server = Server::behind(layer);
    let ask = async |headers: &[(&str, &str)], tool: &str| {
        let mut request = post(&[]).body(Body::from(call(1, tool).to_string())).unwrap();
        request.headers_mut().remove("x-client");
        for (name, value) in headers {
            request
                .headers_mut()
                .insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        server.send(request).await.number("retry-after").is_none()
    };
    assert!(ask(&[("x-client", "ann"), ("mcp-session-id", "1")], "execute_code").await);
    // Another session, another tool of the same limit.
    assert!(!ask(&[("x-client", "ann"), ("mcp-session-id", "2")], "run").await);
    assert!(ask(&[("x-client", "bob")], "run").await);
    // Nobody: by address, which is not the client of that name.
    assert!(ask(&[("mcp-session-id", "1")], "run").await);
    assert!(!ask(&[("mcp-session-id", "2")], "run").await);
    assert!(ask(&[("x-client", "203.0.113.9")], "run").await);

    let layer = limits(RateLimiter::memory()).missing(Missing::Reject(StatusCode::UNAUTHORIZED));
    let server = Server::behind(layer);
    let mut request = post(&[]).body(Body::from(call(1, "execute_code").to_string())).unwrap();
    request.headers_mut().remove("x-client");
    assert_eq!(server.send(request).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn the_cost_of_a_call_is_charged_for_each() {
    let dear =
        tower_ratelimit::rules::Limit::new(Policy::fixed_window("codemode", Rate::per_minute(10))).cost(3);
    let server = Server::behind(McpLayer::builder(RateLimiter::memory(), client).tool("execute_code", dear));
    assert_eq!(server.post(calls(2, "execute_code")).await.number("x-ratelimit-remaining"), Some(4));
    assert_eq!(server.post(calls(2, "execute_code")).await.number("x-ratelimit-remaining"), Some(4));
    assert_eq!(server.post(call(1, "execute_code")).await.number("x-ratelimit-remaining"), Some(1));
}

#[test]
fn what_is_no_client_or_ambiguous_is_not_built() {
    let build = |layer: tower_ratelimit::mcp::McpLayerBuilder| layer.build().map(|_| ()).unwrap_err();
    let codemode = || Policy::fixed_window("codemode", Rate::per_minute(1));
    let by = |name: &str| McpLayer::builder(RateLimiter::memory(), Header::new(name).unwrap());
    assert_eq!(build(by("Mcp-Session-Id")), BuildError::SessionIdentity);
    let secret = Header::secret("mcp-session-id").unwrap();
    assert_eq!(build(McpLayer::builder(RateLimiter::memory(), secret)), BuildError::SessionIdentity);
    // As a part it only narrows.
    let narrower = All::new().part(ClientIp::peer()).part(Header::new("mcp-session-id").unwrap());
    assert!(McpLayer::builder(RateLimiter::memory(), narrower).tool("a", codemode()).build().is_ok());

    let twice = by("x-client")
        .tool("run", codemode())
        .tools(["a", "run"], Policy::fixed_window("b", Rate::per_minute(1)));
    let error = build(twice);
    assert_eq!(error, BuildError::DuplicateTool { tool: "run".to_owned() });
    assert_eq!(error.to_string(), r#"tool: "run" has two limits"#);
    let same = by("x-client").tool("a", codemode()).tool("b", codemode());
    assert_eq!(build(same), BuildError::DuplicatePolicy { name: "codemode".to_owned() });
    let seven = (0..7).fold(by("x-client"), |layer, i| {
        layer.tool(format!("t{i}"), Policy::fixed_window(format!("t{i}"), Rate::per_minute(1)))
    });
    assert_eq!(build(seven), BuildError::TooManyPolicies { count: 9 });
}

#[tokio::test]
async fn deletes_and_preflights_have_their_place() {
    let server = Server::behind(limits(RateLimiter::memory()));
    let request = |method: Method| {
        let request = Request::builder().method(method).uri("/mcp");
        request.extension(std::net::SocketAddr::from(([203, 0, 113, 9], 1)))
    };
    let answer = server.send(request(Method::DELETE).body(Body::empty()).unwrap()).await;
    assert_eq!(answer.number("x-ratelimit-remaining"), Some(4));
    let preflight = request(Method::OPTIONS).header("access-control-request-method", "POST");
    assert_eq!(server.send(preflight.body(Body::empty()).unwrap()).await.number("x-ratelimit-limit"), None);
}

/// Without its store, a policy that must never run unlimited.
#[tokio::test]
async fn a_policy_without_its_store_says_so_in_the_same_form() {
    let limiter = || RateLimiter::redis("redis://127.0.0.1:1").unwrap();
    let deny =
        |name: &str| Policy::fixed_window(name, Rate::per_minute(9)).on_store_failure(OnStoreFailure::Deny);
    let layer =
        McpLayer::builder(limiter(), client).transport(deny("http")).tool("execute_code", deny("codemode"));
    let server = Server::behind(layer);
    let refused = server.post(call(7, "execute_code")).await;
    assert_eq!((refused.status, numbers(&refused)), (StatusCode::OK, [None, None, None, Some(1)]));
    let words = "the limit cannot be checked at the moment, retry in 1 s";
    assert_eq!(told(&refused.json()), (&json!(7), words));
    let refused = server.post(call(7, "echo")).await;
    assert_eq!(
        (refused.status, numbers(&refused)),
        (StatusCode::SERVICE_UNAVAILABLE, [None, None, None, Some(1)])
    );
    assert_eq!(refused.json()["error"]["data"]["retryAfterSeconds"], 1);
}
