//! A limiter in memory, requests from one peer, and what they are counted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tower::{BoxError, Service, ServiceExt as _};
use tower_ratelimit::{Key, Policy, PolicyHandle, Rate, RateLimitLayer, RateLimiter};

/// A layer with one policy, by address.
#[derive(Clone)]
pub struct Limit {
    pub layer: RateLimitLayer,
    policy: PolicyHandle,
}

impl Limit {
    pub fn per_minute(limit: u32) -> Self {
        let limiter = RateLimiter::memory();
        let policy = Policy::fixed_window("http", Rate::per_minute(limit));
        let layer = RateLimitLayer::builder(limiter.clone()).policy(policy.clone()).standard_fields();
        Self { layer: layer.build().unwrap(), policy: limiter.policy(policy).unwrap() }
    }

    /// How many requests of the peer were charged.
    pub async fn used(&self) -> u64 {
        self.layer.limiter().peek(&self.policy, &peer_key(Ipv4Addr::LOCALHOST.into())).await.used()
    }
}

pub fn peer_key(peer: IpAddr) -> Key {
    Key::builder().network(peer, 32, 64).finish()
}

/// `GET /` from this host.
pub fn request() -> http::request::Builder {
    Request::get("/").extension(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)))
}

/// What came of a request, its body read to the end.
pub async fn ask<S, B>(service: &S, request: Request<Body>) -> Response<Bytes>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>> + Clone,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let response = service.clone().oneshot(request).await.map_err(Into::into).unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(Into::into).unwrap().to_bytes();
    Response::from_parts(head, body)
}

pub async fn get<S, B>(service: &S) -> Response<Bytes>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>> + Clone,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    ask(service, request().body(Body::empty()).unwrap()).await
}

pub fn number<B>(response: &Response<B>, name: &str) -> Option<u64> {
    response.headers().get(name).map(|value| value.to_str().unwrap().parse().unwrap())
}

pub fn remaining<B>(response: &Response<B>) -> Option<u64> {
    number(response, "x-ratelimit-remaining")
}
