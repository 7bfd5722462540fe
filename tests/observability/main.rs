//! What the operator sees, and what nobody may see: metrics, logs, observers.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

mod logs;
mod metrics_facade;
mod recorder;
#[path = "../support/mod.rs"]
mod support;

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{Rate, RateLimitLayer};

/// Sends one request through a layer around a service that says yes.
async fn send(layer: &RateLimitLayer, request: Request<()>) -> Response<()> {
    let service = layer.layer(service_fn(async |_| Ok::<_, Infallible>(Response::new(()))));
    service.oneshot(request).await.unwrap().map(|_| ())
}

fn from(ip: impl Into<IpAddr>) -> Request<()> {
    Request::builder().extension(ip.into()).body(()).unwrap()
}

fn client(i: u32) -> Ipv4Addr {
    Ipv4Addr::from(0xCB00_7100 + i)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

const ONE: Rate = Rate::per_minute(1);
