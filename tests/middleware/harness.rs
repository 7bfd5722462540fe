//! A limited service in memory, and how the tests ask it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::request::Builder;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tower::{Layer as _, Service, ServiceExt as _};
use tower_ratelimit::middleware::{RateLimit, RateLimitLayerBuilder};
use tower_ratelimit::observe::{Checked, Observer, Problem};
use tower_ratelimit::test_util::ManualClock;
use tower_ratelimit::{Decision, Policy, Rate, RateLimitLayer, RateLimiter};

/// The lines of a response that are its inner service's own.
pub type Lines = &'static [(&'static str, &'static str)];

/// The inner service: counts its hits and answers 200, or as told.
#[derive(Clone)]
pub struct Handler {
    hits: Arc<AtomicUsize>,
    status: u16,
    lines: Lines,
}

impl Handler {
    pub fn new() -> Self {
        Self::saying(200, &[])
    }

    pub fn saying(status: u16, lines: Lines) -> Self {
        Self { hits: Arc::default(), status, lines }
    }

    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }
}

impl<B> Service<Request<B>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        self.hits.fetch_add(1, Ordering::SeqCst);
        let response = Response::builder().status(self.status);
        let response =
            self.lines.iter().fold(response, |response, (name, value)| response.header(*name, *value));
        ready(Ok(response.body(Full::default()).unwrap()))
    }
}

/// A [`Handler`] behind one layer, on a clock of its own.
#[derive(Clone)]
pub struct Limited {
    pub service: RateLimit<Handler>,
    pub handler: Handler,
    pub clock: ManualClock,
    pub seen: Seen,
}

impl Limited {
    /// With this one policy, by the peer's address.
    pub fn by(policy: Policy) -> Self {
        Self::new(|layer| layer.policy(policy))
    }

    pub fn new(set: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder) -> Self {
        Self::around(Handler::new(), set)
    }

    pub fn around(
        handler: Handler,
        set: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder,
    ) -> Self {
        let (limiter, clock, seen) = limiter();
        let service = set(RateLimitLayer::builder(limiter)).build().unwrap().layer(handler.clone());
        Self { service, handler, clock, seen }
    }

    pub async fn ask(&self, request: Builder) -> Answer {
        let before = self.handler.hits();
        let answer = ask(&self.service, request).await;
        // What holds for every case: a refusal never reaches the inner service.
        assert_eq!(self.handler.hits() - before, usize::from(answer.status != 429), "inner hits");
        answer
    }

    pub async fn statuses(&self, requests: impl IntoIterator<Item = Builder>) -> Vec<u16> {
        let mut statuses = Vec::new();
        for request in requests {
            statuses.push(self.ask(request).await.status);
        }
        statuses
    }

    pub fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

/// A limiter in memory with its clock and what it tells observers.
pub fn limiter() -> (RateLimiter, ManualClock, Seen) {
    let (clock, seen) = (ManualClock::new(), Seen::default());
    let limiter = RateLimiter::builder().clock(clock.clone()).observer(seen.clone()).build().unwrap();
    (limiter, clock, seen)
}

/// The policy `http`: a fixed window.
pub fn fixed(limit: u64, window: Duration) -> Policy {
    named("http", limit, window)
}

pub fn named(name: &str, limit: u64, window: Duration) -> Policy {
    Policy::fixed_window(name, Rate::new(limit, window).unwrap())
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// `GET /` from this address.
pub fn from(peer: &str) -> Builder {
    get(peer, "/")
}

pub fn get(peer: &str, path: &str) -> Builder {
    let peer: IpAddr = peer.parse().unwrap();
    Request::get(path).extension(ConnectInfo(SocketAddr::new(peer, 1)))
}

/// What a client saw.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub decision: Option<Decision>,
    pub body: Bytes,
}

impl Answer {
    /// The value of a header that has exactly one line.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.get_all(name).iter();
        let value = lines.next().map(|value| value.to_str().unwrap());
        assert_eq!(lines.next(), None, "{name} has one line");
        value
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        let digits = |text: &str| {
            assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "{name}: {text}");
            text.parse().unwrap()
        };
        self.header(name).map(digits)
    }

    pub fn limit(&self) -> Option<u64> {
        self.number("x-ratelimit-limit")
    }

    pub fn remaining(&self) -> Option<u64> {
        self.number("x-ratelimit-remaining")
    }

    pub fn reset(&self) -> Option<u64> {
        self.number("x-ratelimit-reset")
    }

    pub fn retry_after(&self) -> Option<u64> {
        self.number("retry-after")
    }
}

/// Sends one request to a clone of the service. What holds for every 429 is
/// asserted here.
pub async fn ask<S, B>(service: &S, request: Builder) -> Answer
where
    S: Service<Request<Body>, Response = Response<B>, Error: std::fmt::Debug> + Clone,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let response = service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let answer = Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        decision: parts.extensions.get().cloned(),
        body: body.collect().await.unwrap().to_bytes(),
    };
    if answer.status == 429 {
        assert!(answer.retry_after() >= Some(1), "{answer:?}");
        assert!(answer.remaining().is_none_or(|remaining| remaining == 0), "{answer:?}");
    }
    answer
}

pub async fn statuses<S, B>(service: &S, requests: impl IntoIterator<Item = Builder>) -> Vec<u16>
where
    S: Service<Request<Body>, Response = Response<B>, Error: std::fmt::Debug> + Clone,
    B: http_body::Body<Data = Bytes, Error: std::fmt::Debug>,
{
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(ask(service, request).await.status);
    }
    statuses
}

/// Asks over a real connection that carries one request; the status.
pub async fn ask_over(mut connection: impl AsyncRead + AsyncWrite + Unpin, header: &str) -> u16 {
    let request = format!("GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

/// What a limiter has told its observers.
#[derive(Clone, Default)]
pub struct Seen {
    told: Arc<Mutex<Vec<String>>>,
    keys: Arc<Mutex<BTreeSet<String>>>,
}

impl Seen {
    /// The problems, odd addresses, refusals and blocks since the last call.
    pub fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    /// How often something was told since the last call.
    pub fn count(&self, news: &str) -> usize {
        self.told().iter().filter(|told| *told == news).count()
    }

    /// The keys that were checked.
    pub fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().iter().cloned().collect()
    }

    fn tell(&self, news: String) {
        self.told.lock().unwrap().push(news);
    }
}

impl Observer for Seen {
    fn checked(&self, checked: &Checked<'_>) {
        self.keys.lock().unwrap().insert(checked.key().as_str().to_owned());
    }

    fn refused(&self, checked: &Checked<'_>) {
        let shadow = if checked.is_shadow() { " in shadow" } else { "" };
        self.tell(format!("{} refused{shadow}", checked.policy()));
    }

    fn blocked(&self, checked: &Checked<'_>) {
        self.tell(format!("{} blocked", checked.policy()));
    }

    fn misconfigured(&self, problem: &Problem) {
        self.tell(format!("misconfigured {}", problem.as_str()));
    }

    fn mended(&self, problem: &Problem) {
        self.tell(format!("mended {}", problem.as_str()));
    }

    fn odd_address(&self, reason: &'static str) {
        self.tell(format!("odd {reason}"));
    }
}
