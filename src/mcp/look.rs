//! The layer and service that find out what a request asks for. The service is
//! generic over bodies: whatever came, the inner one gets a [`RequestBody`].

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{Method, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::body::{RequestBody, Unread};
use super::declared::{self, Declared};
use super::future::LookFuture;
use super::json::{self, Unreadable};
use super::message::{Facts, Item, Message};
use super::reply;
use crate::middleware::Body;

/// The largest body that is looked at, unless it is set: 4 MiB, as rmcp's own
/// limit.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// The most messages in an array that are looked at.
const MAX_MESSAGES: usize = 10_000;

/// Finds out which tool a request calls and leaves the [`Message`] in its
/// extensions, for the rules and the reply of a layer further in.
/// [`McpLayer`](super::McpLayer) has one; by itself it is for rules of one's own.
///
/// How a request is read, and what becomes of one that cannot be, is told
/// [here](super#how-a-call-is-recognised).
///
/// ```
/// use tower::ServiceBuilder;
/// use tower_ratelimit::identity::RequestHead;
/// use tower_ratelimit::mcp::{JsonRpc, LookLayer, Message};
/// use tower_ratelimit::rules::Limit;
/// use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
///
/// let calls = |head: &RequestHead<'_>| Message::of(head).map_or(1, Message::calls);
/// let limit = RateLimitLayer::builder(RateLimiter::memory())
///     .limit(Limit::new(Policy::fixed_window("tools", Rate::per_minute(60))).cost_by(calls))
///     .reply(JsonRpc::new().tool_policy("tools"))
///     .build()?;
/// let stack = ServiceBuilder::new().layer(LookLayer::new()).layer(limit);
/// # Ok::<(), tower_ratelimit::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until a service has it"]
pub struct LookLayer {
    settings: Arc<Settings>,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    max_body: usize,
    max_messages: usize,
    every_body: bool,
}

impl LookLayer {
    /// With the defaults of its settings.
    pub fn new() -> Self {
        let settings = Settings { max_body: MAX_BODY, max_messages: MAX_MESSAGES, every_body: false };
        Self { settings: Arc::new(settings) }
    }

    /// The largest body that is read, in bytes; one that is larger is answered
    /// with 413 and not passed on. Each request under way may hold that much.
    /// Default: 4 MiB, which is also rmcp's limit.
    pub fn max_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_body = bytes)
    }

    /// The most messages that an array may hold; one with more is answered with
    /// 413 and not passed on. Default: 10,000.
    pub fn max_messages(self, messages: usize) -> Self {
        self.with(|settings| settings.max_messages = messages)
    }

    /// Reads the body of every message, whatever its headers declare: for a
    /// server that does not compare the two itself. Default: of protocols that
    /// have it compare them, only bodies of tool calls are read.
    pub fn read_every_body(self) -> Self {
        self.with(|settings| settings.every_body = true)
    }

    fn with(self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Arc::unwrap_or_clone(self.settings);
        set(&mut settings);
        Self { settings: Arc::new(settings) }
    }
}

impl Default for LookLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for LookLayer {
    type Service = Look<S>;

    fn layer(&self, inner: S) -> Look<S> {
        Look { inner, settings: self.settings.clone() }
    }
}

/// Leaves in each request what it asks for. Made by [`LookLayer`].
///
/// The inner service is called after the look, and it is the one that was polled
/// ready. Its error is passed on untouched.
#[derive(Clone, Debug)]
pub struct Look<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Look<S> {
    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for Look<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    B: http_body::Body<Data = Bytes>,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = LookFuture<S, B, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        LookFuture::new(ready, request, self.settings.clone())
    }
}

/// What is to be done with a request before anything of its body is read.
pub(super) enum Plan {
    Decided(Seen),
    Read(Option<Declared>),
}

/// What becomes of a request.
pub(super) enum Seen {
    /// This is known of it.
    Pass(Message),
    Answer(Response<Bytes>),
}

impl Settings {
    pub(super) fn max_body(&self) -> usize {
        self.max_body
    }

    pub(super) fn plan<B: http_body::Body>(&self, request: &Request<B>) -> Plan {
        if request.method() != Method::POST {
            return Plan::Decided(Seen::Pass(Message::none()));
        }
        let declared = match Declared::of(request.headers()) {
            Some(declared) if !declared.is_call() && !self.every_body => {
                let item = Item { method: Some(declared.method), ..Item::default() };
                let message = Message::new(Facts { modern: true, batch: false, items: vec![item] });
                return Plan::Decided(Seen::Pass(message));
            }
            declared => declared,
        };
        let mut encodings = request.headers().get_all(CONTENT_ENCODING).iter();
        if encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            let answer = reply::turned_away(status, INVALID, "the body must not be encoded");
            return Plan::Decided(Seen::Answer(answer));
        }
        if request.body().size_hint().lower() > self.max_body as u64 {
            return Plan::Decided(Seen::Answer(self.not_read(&Unread::TooLarge)));
        }
        Plan::Read(declared)
    }

    /// What a body says that was read to its end: passed on, or answered.
    pub(super) fn understand<B>(&self, head: &Request<B>, body: &Bytes, declared: Option<&Declared>) -> Seen {
        let (batch, items) = match json::look(body, self.max_messages) {
            Ok(found) => found,
            Err(why) => return Seen::Answer(self.not_understood(why)),
        };
        if let Some(declared) = declared
            && (batch || items.iter().any(|item| !declared.agrees_with(item)))
        {
            // Who reads the body must refuse what differs (2026-07-28, transports).
            let id = items.first().and_then(Item::request_id);
            let differs = "the body is not what mcp-method and mcp-name say";
            return Seen::Answer(reply::error(StatusCode::BAD_REQUEST, id, HEADER_MISMATCH, differs));
        }
        let modern = declared::is_modern(head.headers());
        Seen::Pass(Message::new(Facts { modern, batch, items }))
    }

    pub(super) fn not_read(&self, why: &Unread) -> Response<Bytes> {
        match why {
            Unread::TooLarge => {
                let words = format!("the body is larger than {} bytes", self.max_body);
                reply::turned_away(StatusCode::PAYLOAD_TOO_LARGE, INVALID, &words)
            }
            Unread::Failed => reply::turned_away(StatusCode::BAD_REQUEST, INVALID, "the body ended early"),
        }
    }

    fn not_understood(&self, why: Unreadable) -> Response<Bytes> {
        let status = StatusCode::BAD_REQUEST;
        match why {
            Unreadable::Syntax => reply::turned_away(status, PARSE_ERROR, "the body is not JSON"),
            Unreadable::NoMessage => reply::turned_away(status, INVALID, "the body is no JSON-RPC message"),
            Unreadable::DuplicateKey => {
                let words = "method, params, id or the name in params stands twice in a message";
                reply::turned_away(status, INVALID, words)
            }
            Unreadable::TooMany => {
                let words = format!("the array holds more than {} messages", self.max_messages);
                reply::turned_away(StatusCode::PAYLOAD_TOO_LARGE, INVALID, &words)
            }
        }
    }
}

// JSON-RPC 2.0, section 5.1, and MCP 2026-07-28.
const PARSE_ERROR: i32 = -32700;
const INVALID: i32 = -32600;
const HEADER_MISMATCH: i32 = -32020;
