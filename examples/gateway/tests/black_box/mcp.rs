//! The MCP server: its two limits, and what the SDKs of other languages make of
//! them.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::http::Answer;
use crate::support::RedisServer;

fn ask(gateway: &Gateway, caller: Option<&str>, message: &Value) -> Answer {
    let token = caller.map(|caller| format!("Bearer {caller}"));
    let mut headers = vec![("accept", "application/json, text/event-stream")];
    headers.extend(token.as_deref().map(|token| ("authorization", token)));
    gateway.connect().post("/mcp", &headers, &message.to_string())
}

/// The server has no session for it, and says so; it is counted before.
fn call(tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool, "arguments": {"code": "1"}}})
}

fn text(result: &Value) -> &str {
    assert_eq!((&result["id"], &result["result"]["isError"]), (&json!(7), &json!(true)), "{result}");
    result["result"]["content"][0]["text"].as_str().unwrap()
}

#[test]
fn the_expensive_tool_counts_by_caller_and_everything_else_as_other_pages() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[
        ("REDIS_URL", &redis.url()),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
        ("MCP_RATE_LIMIT_MAX", "5"),
        ("CODEMODE_RATE_LIMIT_MAX", "2"),
    ]);
    let run = call("execute_code");
    for left in [1, 0] {
        assert_eq!(ask(&gateway, Some("acme.ann.pro"), &run).number("x-ratelimit-remaining"), left);
    }
    let refused = ask(&gateway, Some("acme.ann.free"), &run);
    assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (200, 0));
    let words = format!("limit of 2 per minute reached, retry in {} s", refused.number("retry-after"));
    assert_eq!(text(&refused.json()), words);
    assert_eq!(refused.header("ratelimit-policy"), Some(r#""codemode";q=2;w=60"#));
    // A namesake elsewhere is somebody else; so is who does not say.
    assert_eq!(ask(&gateway, Some("other.ann.pro"), &run).number("x-ratelimit-remaining"), 1);
    assert_eq!(ask(&gateway, None, &run).number("x-ratelimit-remaining"), 1);
    assert_eq!(redis.get("codemode:rl:acme.ann").as_deref(), Some("2"));
    assert_eq!(redis.get("codemode:rl:127.0.0.1").as_deref(), Some("1"));

    // Of an array with both kinds each counts its own, in one step or not at all.
    let both = json!([call("echo"), run]);
    assert_eq!(ask(&gateway, Some("acme.eve.pro"), &both).number("x-ratelimit-remaining"), 1);
    let refused = ask(&gateway, Some("acme.ann.pro"), &both);
    assert_eq!((refused.status, text(&refused.json()[1])), (200, &*words));
    assert_eq!(refused.json()[0]["result"]["isError"], true);
    assert_eq!(redis.get("codemode:rl:acme.eve").as_deref(), Some("1"));
    assert_eq!(redis.get("http:rl:127.0.0.1").as_deref(), Some("1"));

    // Other tools count as the page does.
    assert_eq!(ask(&gateway, Some("acme.ann.pro"), &call("echo")).number("x-ratelimit-remaining"), 3);
    assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 2);
    assert_eq!(redis.get("http:rl:127.0.0.1").as_deref(), Some("3"));
    for _ in 0..2 {
        gateway.get("/");
    }
    let refused = ask(&gateway, Some("acme.ann.pro"), &call("echo"));
    assert_eq!((refused.status, &refused.json()["id"]), (429, &json!(7)));
    assert_eq!(refused.json()["error"]["data"]["retryAfterSeconds"], refused.number("retry-after"));
    assert_eq!(ask(&gateway, Some("acme.bob.pro"), &run).number("x-ratelimit-remaining"), 1);
}

#[test]
fn o_mcp_3_a_batch_that_does_not_fit_is_answered_by_as_many_results() {
    let batch = Value::from(vec![call("execute_code"); 20]);
    for (mode, status) in [("result", 200), ("429", 429)] {
        let gateway = Gateway::start(&[("CODEMODE_RATE_LIMIT_MAX", "10"), ("MCP_TOOL_REPLY", mode)]);
        let refused = ask(&gateway, Some("acme.ann.pro"), &batch);
        assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (status, 10));
        assert_eq!(refused.header("retry-after"), None);
        let answers = refused.json();
        assert_eq!(answers.as_array().unwrap().len(), 20);
        for answer in answers.as_array().unwrap() {
            match mode {
                "429" => assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(429))),
                _ => assert!(text(answer).starts_with("more calls at once than the limit of 10 per minute")),
            }
        }
    }
}

#[test]
fn a_wrong_reply_stops_the_gateway_with_what_it_accepts() {
    let said = Gateway::start_in_vain(&[("MCP_TOOL_REPLY", "503")]);
    assert!(
        said.contains("MCP_TOOL_REPLY") && said.contains("result or 429") && said.contains("503"),
        "{said}"
    );
}

#[test]
fn open_streams_of_sessions_do_not_hold_up_the_end() {
    let mut gateway = Gateway::start(&[]);
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let session = ask(&gateway, None, &initialize);
    let session = session.header("mcp-session-id").unwrap();
    let mut stream = gateway.connect();
    stream.send("GET", "/mcp", &[("accept", "text/event-stream"), ("mcp-session-id", session)]);
    assert_eq!(stream.head(), 200);
    let started = Instant::now();
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// Two calls in four seconds, and a client of another language: how it was shown
/// its two refusals.
fn play(reply: &str, run: impl FnOnce(&str) -> Command) -> [String; 2] {
    let gateway = Gateway::start(&[
        ("CODEMODE_RATE_LIMIT_MAX", "2"),
        ("RATE_LIMIT_WINDOW_MS", "4000"),
        ("MCP_TOOL_REPLY", reply),
    ]);
    let ran = run(&format!("http://{}/mcp", gateway.addr())).output().unwrap();
    let (said, told) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}\n{told}");
    // For those who run it to see what a client is shown.
    std::io::stdout().write_all(said.as_bytes()).unwrap();
    let mut lines: Vec<_> = said.lines().map(ToOwned::to_owned).collect();
    assert_eq!(lines.len(), 8, "{said}");
    let second = lines.remove(6);
    let first = lines.remove(3);
    let expected = [
        "tools execute_code echo",
        "execute_code ok ran 3 bytes",
        "execute_code ok ran 3 bytes",
        "echo ok hello",
        // A second session connects, and has no second budget.
        "second tools execute_code echo",
        "later execute_code ok ran 3 bytes",
    ];
    assert_eq!(lines, expected);
    let second = second.strip_prefix("second ").map(ToOwned::to_owned);
    [first, second.unwrap()]
}

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mcp").join(name)
}

/// `limit of 2 per 4s reached, retry in 4 s`, up to the seconds.
const WORDS: &str = "limit of 2 per 4s reached, retry in ";

#[test]
#[ignore = "needs a Python with mcp, named in MCP_PYTHON; tests/run installs one"]
fn a_python_client_sees_a_tool_result_or_the_json_rpc_error() {
    let python =
        std::env::var("MCP_PYTHON").expect("set MCP_PYTHON to a Python that has mcp (pip install mcp)");
    let kinds = [("result", "auto"), ("result", "legacy"), ("429", "auto"), ("429", "legacy")];
    let played = kinds.map(|(reply, lifecycle)| {
        let python = python.clone();
        thread::spawn(move || {
            let refused = play(reply, |url| {
                let mut command = Command::new(python);
                command.arg(script("python_client.py")).args([url, "acme.ann.pro", lifecycle, "4"]);
                command
            });
            for refused in refused {
                let shown = refused.strip_prefix("execute_code ").unwrap();
                if reply == "result" {
                    assert!(shown.starts_with(&format!("isError {WORDS}")), "{refused}");
                } else {
                    let rest = shown.strip_prefix("error 429 {'retryAfterSeconds': ").unwrap();
                    assert!(rest[1..].starts_with(&format!("}} {WORDS}")), "{refused}");
                }
            }
        })
    });
    played.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
#[ignore = "needs @modelcontextprotocol/sdk in MCP_NODE_MODULES; tests/run installs it"]
fn a_typescript_client_sees_a_tool_result_or_an_http_429() {
    let modules = std::env::var("MCP_NODE_MODULES")
        .expect("set MCP_NODE_MODULES to a node_modules that has @modelcontextprotocol/sdk (npm install)");
    let played = ["result", "429"].map(|reply| {
        let modules = modules.clone();
        thread::spawn(move || {
            let refused = play(reply, |url| {
                let mut command = Command::new("node");
                command.env("MCP_NODE_MODULES", modules).arg(script("typescript_client.mjs"));
                command.args([url, "acme.ann.pro", "4"]);
                command
            });
            for refused in refused {
                let shown = refused.strip_prefix("execute_code ").unwrap();
                let how =
                    if reply == "result" { format!("isError {WORDS}") } else { "error 429 ".to_owned() };
                assert!(shown.starts_with(&how) && shown.contains(WORDS), "{refused}");
            }
        })
    });
    played.into_iter().for_each(|thread| thread.join().unwrap());
}
