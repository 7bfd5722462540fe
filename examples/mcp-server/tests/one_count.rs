//! One count for a client, whatever the transport and the language: over HTTP, on
//! stdio, and by a program that runs `INCR`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::RedisServer;

const KEY: &str = "codemode:rl:ann";

/// The process, ended when dropped.
struct Server(Child);

impl Server {
    fn start(redis: &RedisServer, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-server"));
        command
            .env_clear()
            .env("REDIS_URL", redis.url())
            .env("LISTEN", "127.0.0.1:0")
            .env("MCP_CLIENT", "ann");
        let (stdin, stdout, stderr) = (Stdio::piped(), Stdio::piped(), Stdio::piped());
        Self(command.args(arguments).stdin(stdin).stdout(stdout).stderr(stderr).spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn call(tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool, "arguments": {}}})
}

/// The answer to a call over HTTP, without a session: the server refuses it, once
/// it is counted. What is left of the limit.
fn over_http(addr: &str, tool: &str) -> String {
    let body = call(tool).to_string();
    let mut stream = TcpStream::connect(addr).unwrap();
    let head = "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nx-client: ann\r\n\
                content-type: application/json\r\naccept: application/json, text/event-stream\r\n";
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Says a line and reads one.
fn on_stdio(server: &mut Server, stdout: &mut impl BufRead, message: &Value) -> Value {
    writeln!(server.0.stdin.as_mut().unwrap(), "{message}").unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    // Nothing but the protocol is on stdout.
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn http_stdio_and_a_node_server_share_one_count() {
    let redis = RedisServer::start();
    let mut http = Server::start(&redis, &[]);
    let mut first_line = String::new();
    BufReader::new(http.0.stdout.take().unwrap()).read_line(&mut first_line).unwrap();
    let addr = first_line.trim_end().strip_prefix("listening on http://").unwrap();

    let mut stdio = Server::start(&redis, &["--stdio"]);
    let mut stdout = BufReader::new(stdio.0.stdout.take().unwrap());
    let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    assert_eq!(on_stdio(&mut stdio, &mut stdout, &initialize)["id"], 0);
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    writeln!(stdio.0.stdin.as_mut().unwrap(), "{initialized}").unwrap();

    // One each, and one that is not limited.
    assert!(over_http(addr, "execute_code").contains("x-ratelimit-remaining: 2\r\n"));
    assert!(over_http(addr, "echo").contains("x-ratelimit-limit: 100\r\n"));
    assert_eq!(redis.get(KEY).as_deref(), Some("1"));
    assert_eq!(on_stdio(&mut stdio, &mut stdout, &call("execute_code"))["result"]["isError"], false);
    assert_eq!(on_stdio(&mut stdio, &mut stdout, &call("echo"))["result"]["isError"], false);
    assert_eq!(redis.get(KEY).as_deref(), Some("2"));
    assert!((1..=60_000).contains(&redis.pttl(KEY)));
    assert_eq!(redis.command(&["INCR", KEY]).int(), 3);

    // All three know that it is used up.
    let refused = on_stdio(&mut stdio, &mut stdout, &call("execute_code"));
    assert_eq!(refused["result"]["isError"], true);
    let text = refused["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("limit of 3 per minute reached, retry in "), "{text}");
    let refused = over_http(addr, "execute_code");
    assert!(refused.starts_with("HTTP/1.1 200 OK\r\n") && refused.contains(r#""isError":true"#), "{refused}");
    assert_eq!(redis.get(KEY).as_deref(), Some("3"));
    let mut keys = redis.keys_matching("*");
    keys.sort();
    assert_eq!(keys, [KEY, "http:rl:127.0.0.1"]);

    // What is to be logged is on stderr. The end of stdin ends the process.
    drop(stdio.0.stdin.take());
    assert!(stdio.0.wait().unwrap().success());
    let mut logs = String::new();
    stdio.0.stderr.take().unwrap().read_to_string(&mut logs).unwrap();
    assert!(logs.contains("a tool call is refused"), "{logs}");
    assert_eq!(stdout.read_line(&mut String::new()).unwrap(), 0);
}
