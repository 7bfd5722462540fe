//! Refusals that an MCP client can read.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};

use super::message::{Item, Message};
use crate::decision::{Decision, Refusal};
use crate::response::{Negotiated, Refused, Reply, takes_only_event_stream};

/// Outside of -32768 to -32000, which belong to JSON-RPC and MCP.
const CODE: i32 = 429;

/// How a refused request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// HTTP 200, where the store cannot decide too. A tool call gets a result with
    /// `isError` and a text that the model can read, another request a JSON-RPC
    /// error. What has no id to be
    /// answered by, such as GET and a notification, gets a status all the same.
    Result,
    /// 429, or what [`status`](Refused::status) is, with a JSON-RPC error.
    Status,
}

/// Refusals of MCP requests: of the policies of tools, and of all others, which
/// limit the transport. [`McpLayer`](super::McpLayer) has one.
///
/// A tool's, as an [`Answer::Result`]:
///
/// ```json
/// {"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"limit of 60 per minute reached, retry in 37 s"}],"isError":true}}
/// ```
///
/// The transport's, as an [`Answer::Status`]:
///
/// ```json
/// {"jsonrpc":"2.0","id":7,"error":{"code":429,"message":"limit of 100 per minute reached, retry in 37 s","data":{"retryAfterSeconds":37}}}
/// ```
///
/// The id is `null` where the body was not read, and for what has none. An array
/// is answered by an array, one entry for each request in it. A result is JSON, or
/// one event of a stream for a client that accepts nothing else; an answer with a
/// status is always JSON. A request that has not passed a
/// [`Look`](super::Look) is answered as by [`Negotiated`].
#[derive(Clone, Debug)]
#[must_use = "a reply does nothing until a layer has it"]
pub struct JsonRpc {
    tool_policies: Vec<Box<str>>,
    tool: Answer,
    transport: Answer,
    code: i32,
}

impl JsonRpc {
    /// Without a tool's policy yet.
    pub fn new() -> Self {
        Self { tool_policies: Vec::new(), tool: Answer::Result, transport: Answer::Status, code: CODE }
    }

    /// This policy limits tools.
    pub fn tool_policy(mut self, name: impl Into<Box<str>>) -> Self {
        self.tool_policies.push(name.into());
        self
    }

    /// How refusals by the policies of tools are answered. Default:
    /// [`Answer::Result`].
    pub fn tool_answer(mut self, answer: Answer) -> Self {
        self.tool = answer;
        self
    }

    /// How refusals by other policies are answered. Default: [`Answer::Status`].
    pub fn transport_answer(mut self, answer: Answer) -> Self {
        self.transport = answer;
        self
    }

    /// The code of JSON-RPC errors. Default: 429. MCP wants codes of applications
    /// outside of -32768 to -32000; its proposal SEP-3304, which is not adopted,
    /// has -32023 for this.
    pub fn code(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    fn results(&self, message: &Message, decision: &Decision) -> String {
        let (text, modern) = (words(decision), message.is_modern());
        entries(message, |out, item, id| {
            if item.is_call() {
                write_result(out, id, &text, modern)
            } else {
                self.write_error(out, id, decision)
            }
        })
    }

    fn errors(&self, message: &Message, decision: &Decision) -> String {
        let mut body = entries(message, |out, _, id| self.write_error(out, id, decision));
        if !has_request(message) {
            body.clear();
            self.write_error(&mut body, "null", decision);
        }
        body
    }

    fn write_error(&self, out: &mut String, id: &str, decision: &Decision) {
        write_error(out, id, self.code, &words(decision), decision.retry_after_seconds());
    }
}

impl Default for JsonRpc {
    fn default() -> Self {
        Self::new()
    }
}

impl Reply for JsonRpc {
    fn refuse(&self, refused: &Refused<'_>) -> Response<Bytes> {
        let (head, decision) = (refused.head(), refused.decision());
        let Some(message) = Message::of(&head) else { return Negotiated.refuse(refused) };
        let is_tools = self.tool_policies.iter().any(|name| **name == *decision.policy());
        let answer = if is_tools { self.tool } else { self.transport };
        if answer == Answer::Status || !has_request(message) {
            return json(refused.status(), self.errors(message, decision));
        }
        let results = self.results(message, decision);
        if takes_only_event_stream(head.headers()) {
            let event = format!("event: message\ndata: {results}\n\n");
            return response(StatusCode::OK, HeaderValue::from_static("text/event-stream"), event);
        }
        json(StatusCode::OK, results)
    }
}

/// What a model is told of a refusal: `limit of 60 per minute reached, retry in
/// 37 s`. For a tool's handler that asks
/// [`RateLimiter::check`](crate::RateLimiter::check) itself, as on stdio.
#[must_use]
pub fn words(decision: &Decision) -> String {
    let limit = format!("limit of {} per {}", decision.limit(), window(decision));
    let why = match decision.refusal() {
        Some(Refusal::Blocked) => "blocked for going over the limit".to_owned(),
        Some(Refusal::TooLarge) => format!("more calls at once than the {limit} allows"),
        Some(Refusal::Reserved) => format!("{limit} held by calls under way"),
        Some(Refusal::Unavailable) => "the limit cannot be checked at the moment".to_owned(),
        _ => format!("{limit} reached"),
    };
    match decision.retry_after_seconds() {
        Some(seconds) => format!("{why}, retry in {seconds} s"),
        None => why,
    }
}

fn window(decision: &Decision) -> String {
    match decision.window().as_millis() {
        1_000 => "second".to_owned(),
        60_000 => "minute".to_owned(),
        3_600_000 => "hour".to_owned(),
        86_400_000 => "day".to_owned(),
        _ => humantime::format_duration(decision.window()).to_string(),
    }
}

/// The answer to a request that is not looked at any further, before anything
/// of it is known.
pub(super) fn turned_away(status: StatusCode, code: i32, message: &str) -> Response<Bytes> {
    error(status, None, code, message)
}

/// A JSON-RPC error without data. `message` has nothing to be escaped.
pub(super) fn error(status: StatusCode, id: Option<&str>, code: i32, message: &str) -> Response<Bytes> {
    let mut body = String::new();
    write_error(&mut body, id.unwrap_or("null"), code, message, None);
    json(status, body)
}

/// Whether there is an id to answer by.
fn has_request(message: &Message) -> bool {
    message.items().iter().any(|item| item.request_id().is_some())
}

/// One entry for each request, in an array if the requests were.
fn entries(message: &Message, write: impl Fn(&mut String, &Item, &str)) -> String {
    let mut out = String::new();
    let requests = message.items().iter().filter_map(|item| Some((item, item.request_id()?)));
    for (item, id) in requests {
        if message.is_batch() {
            out.push(if out.is_empty() { '[' } else { ',' });
        }
        write(&mut out, item, id);
    }
    if message.is_batch() {
        out.push(']');
    }
    out
}

// An id is JSON as it came; texts are of letters, digits and numbers only.
// Writing to a string does not fail.

fn write_result(out: &mut String, id: &str, text: &str, modern: bool) {
    let kind = if modern { r#""resultType":"complete","# } else { "" };
    let _ = write!(
        out,
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{{kind}"content":[{{"type":"text","text":"{text}"}}],"isError":true}}}}"#
    );
}

fn write_error(out: &mut String, id: &str, code: i32, message: &str, retry_after: Option<u64>) {
    let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}""#);
    if let Some(seconds) = retry_after {
        let _ = write!(out, r#","data":{{"retryAfterSeconds":{seconds}}}"#);
    }
    out.push_str("}}");
}

fn json(status: StatusCode, body: String) -> Response<Bytes> {
    response(status, HeaderValue::from_static("application/json"), body)
}

fn response(status: StatusCode, content_type: HeaderValue, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    // A refusal ends soon, and its status may be one that a cache would keep.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
