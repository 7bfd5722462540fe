//! Layers of tower that hold requests back or send them again.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tower::retry::{Policy, RetryLayer};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceBuilder, ServiceExt as _, service_fn};

use crate::setup::{Limit, get, remaining, request};

/// A handler that answers when it is let, and the number of its calls.
#[derive(Clone)]
struct Gated {
    gate: Arc<Semaphore>,
    calls: Arc<AtomicUsize>,
}

impl Gated {
    fn new() -> Self {
        Self { gate: Arc::new(Semaphore::new(0)), calls: Arc::default() }
    }

    fn open(&self) {
        self.gate.add_permits(1);
    }

    fn service(&self) -> BoxCloneSyncService<Request<Body>, Response<Body>, Infallible> {
        let gated = self.clone();
        BoxCloneSyncService::new(service_fn(move |_| {
            let gated = gated.clone();
            async move {
                gated.calls.fetch_add(1, Ordering::SeqCst);
                gated.gate.acquire().await.unwrap().forget();
                Ok(Response::new(Body::empty()))
            }
        }))
    }
}

fn empty() -> Request<Body> {
    request().body(Body::empty()).unwrap()
}

#[tokio::test]
async fn what_load_shed_outside_sheds_is_not_charged() {
    let (outside, inside) = (Limit::per_minute(9), Limit::per_minute(9));
    let gated = [Gated::new(), Gated::new()];
    // In both the layer is ready only when there is a slot.
    let slot_first = ServiceBuilder::new().load_shed().concurrency_limit(1).layer(outside.layer.clone());
    let slot_last = ServiceBuilder::new().load_shed().layer(inside.layer.clone()).concurrency_limit(1);
    let slot_first = slot_first.service(gated[0].service()).map_response(|response| response.status());
    let slot_last = slot_last.service(gated[1].service()).map_response(|response| response.status());
    let stacks = [slot_first.boxed_clone(), slot_last.boxed_clone()];
    for ((stack, limit), gated) in stacks.into_iter().zip([outside, inside]).zip(&gated) {
        let under_way = tokio::spawn(stack.clone().oneshot(empty()));
        while gated.calls.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let shed = stack.clone().oneshot(empty()).await.unwrap_err();
        assert!(shed.is::<tower::load_shed::error::Overloaded>(), "{shed}");
        assert_eq!(limit.used().await, 1, "the one under way");
        gated.open();
        assert_eq!(under_way.await.unwrap().unwrap(), 200);
        assert_eq!(limit.used().await, 1);
    }
}

#[tokio::test]
async fn who_waits_for_a_slot_is_charged_when_there_is_one() {
    let limit = Limit::per_minute(9);
    let gated = Gated::new();
    let stack =
        ServiceBuilder::new().concurrency_limit(1).layer(limit.layer.clone()).service(gated.service());
    let under_way: Vec<_> = (0..3).map(|_| tokio::spawn(stack.clone().oneshot(empty()))).collect();
    for charged in 1..=3 {
        while gated.calls.load(Ordering::SeqCst) < charged {
            tokio::task::yield_now().await;
        }
        assert_eq!(limit.used().await, charged as u64);
        gated.open();
    }
    for request in under_way {
        request.await.unwrap().unwrap();
    }
    // Dropped while it waits, it costs nothing.
    let _held = tokio::spawn(stack.clone().oneshot(empty()));
    while gated.calls.load(Ordering::SeqCst) < 4 {
        tokio::task::yield_now().await;
    }
    let waiting = tokio::spawn(stack.clone().oneshot(empty()));
    tokio::task::yield_now().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(limit.used().await, 4);
}

#[tokio::test]
async fn buffered_outside_or_inside_each_request_is_charged_once() {
    let outside = Limit::per_minute(2);
    let service = service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let buffered = ServiceBuilder::new().buffer(8).layer(outside.layer.clone()).service(service);
    let inside = Limit::per_minute(2);
    let around = ServiceBuilder::new().layer(inside.layer.clone()).buffer(8).service(service);
    for expected in [(200, Some(1)), (200, Some(0)), (429, Some(0))] {
        let answers = [get(&buffered).await, get(&around).await];
        for answer in answers {
            assert_eq!((answer.status().as_u16(), remaining(&answer)), expected);
        }
    }
    assert_eq!((outside.used().await, inside.used().await), (2, 2));
}

/// Tries again what was not answered well.
#[derive(Clone)]
struct UntilOk;

impl<B, E> Policy<Request<Body>, Response<B>, E> for UntilOk {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Request<Body>, result: &mut Result<Response<B>, E>) -> Option<Ready<()>> {
        let failed = result.as_ref().is_ok_and(|response| response.status() == StatusCode::BAD_GATEWAY);
        failed.then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let mut clone = Request::new(Body::empty());
        *clone.extensions_mut() = request.extensions().clone();
        Some(clone)
    }
}

/// Answers 502 twice, then 200.
#[derive(Clone, Default)]
struct Flaky(Arc<AtomicUsize>);

impl Service<Request<Body>> for Flaky {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        if self.0.fetch_add(1, Ordering::SeqCst) < 2 {
            *response.status_mut() = StatusCode::BAD_GATEWAY;
        }
        ready(Ok(response))
    }
}

#[tokio::test]
async fn tries_are_charged_once_if_they_are_inside_and_each_if_they_are_outside() {
    let inside = Limit::per_minute(9);
    let stack = ServiceBuilder::new()
        .layer(inside.layer.clone())
        .layer(RetryLayer::new(UntilOk))
        .service(Flaky::default());
    assert_eq!((get(&stack).await.status(), inside.used().await), (StatusCode::OK, 1));

    let outside = Limit::per_minute(9);
    let stack = ServiceBuilder::new()
        .layer(RetryLayer::new(UntilOk))
        .layer(outside.layer.clone())
        .service(Flaky::default());
    assert_eq!((get(&stack).await.status(), outside.used().await), (StatusCode::OK, 3));
}
