//! What tower asks of a service: readiness, errors, bodies, when it acts.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, Pending, Ready, pending, ready};
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::Full;
use tower::{Layer, Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_ratelimit::middleware::{Body, RateLimit, RateLimitLayerBuilder, ResponseFuture};
use tower_ratelimit::{Rate, RateLimitLayer, RateLimiter};

use crate::harness::{Handler, Limited, fixed, from, secs};

fn one_a_minute() -> RateLimitLayer {
    RateLimitLayer::per_ip(Rate::per_minute(1))
}

fn request<B>(body: B) -> Request<B> {
    from("203.0.113.9").body(body).unwrap()
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Must be polled ready before each call, and its clones are not ready.
#[derive(Default)]
struct Strict {
    polls_left: usize,
    is_ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, ..*self }
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<()>;
    type Error = &'static str;
    type Future = Ready<Result<Response<()>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if self.polls_left > 0 {
            self.polls_left -= 1;
            return Poll::Pending;
        }
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being polled ready");
        ready(Ok(Response::new(())))
    }
}

#[tokio::test]
async fn the_service_that_was_polled_ready_is_the_one_that_is_called() {
    let mut service = RateLimitLayer::per_ip(Rate::per_minute(3)).layer(Strict::default());
    for _ in 0..3 {
        let response = service.ready().await.unwrap().call(request(())).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    let refused = service.ready().await.unwrap().call(request(())).await.unwrap();
    assert_eq!(refused.status(), 429);
}

#[test]
fn readiness_is_the_inner_services() {
    let mut cx = Context::from_waker(Waker::noop());
    let mut service = one_a_minute().layer(Strict { polls_left: 1, is_ready: false });
    assert_eq!(service.poll_ready(&mut cx), Poll::Pending);
    assert_eq!(service.poll_ready(&mut cx), Poll::Ready(Ok(())));

    #[derive(Clone)]
    struct Broken;
    impl Service<Request<()>> for Broken {
        type Response = Response<()>;
        type Error = &'static str;
        type Future = Pending<Result<Response<()>, &'static str>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
            Poll::Ready(Err("broken"))
        }
        fn call(&mut self, _: Request<()>) -> Self::Future {
            pending()
        }
    }
    assert_eq!(one_a_minute().layer(Broken).poll_ready(&mut cx), Poll::Ready(Err("broken")));
}

#[tokio::test]
async fn the_inner_service_is_called_after_the_verdict_and_never_on_a_refusal() {
    let limited = Limited::by(fixed(1, secs(60)));
    let mut service = limited.service.clone();
    let admitted = service.call(request(()));
    assert_eq!(limited.handler.hits(), 0, "not in `call`");
    assert_eq!(admitted.await.unwrap().status(), 200);
    assert_eq!(limited.handler.hits(), 1);
    assert_eq!(service.call(request(())).await.unwrap().status(), 429);
    assert_eq!(limited.handler.hits(), 1);
}

#[tokio::test]
async fn a_future_that_is_never_polled_costs_nothing() {
    let limited = Limited::by(fixed(1, secs(60)));
    let mut service = limited.service.clone();
    for _ in 0..5 {
        drop(service.call(request(())));
    }
    assert_eq!(limited.ask(from("203.0.113.9")).await.status, 200);
}

#[tokio::test]
async fn a_request_dropped_in_the_inner_service_has_counted_once() {
    let layer = RateLimitLayer::per_ip(Rate::per_minute(2));
    let never = service_fn(|_: Request<()>| pending::<Result<Response<()>, Infallible>>());
    let mut service = layer.layer(never);
    {
        let mut future = pin!(service.call(request(())));
        assert!(poll_once(future.as_mut()).is_pending());
        assert!(poll_once(future.as_mut()).is_pending());
    }
    let next = layer.layer(Handler::new()).oneshot(request(())).await.unwrap();
    assert_eq!(next.headers()["x-ratelimit-remaining"], "0");
}

/// Neither `Clone` nor `Send` nor `'static`, and it can be shown to nobody.
struct Broken<'a>(&'a Cell<u32>);

#[derive(Clone)]
struct Failing<'a>(&'a Cell<u32>);

impl<'a> Service<Request<Rc<str>>> for Failing<'a> {
    type Response = Response<Rc<str>>;
    type Error = Broken<'a>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Rc<str>>, Broken<'a>>> + 'a>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken<'a>>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Rc<str>>) -> Self::Future {
        let told = self.0;
        Box::pin(async move {
            told.set(told.get() + u32::try_from(request.body().len()).unwrap());
            Err(Broken(told))
        })
    }
}

#[tokio::test]
async fn the_inner_error_is_passed_untouched_whatever_its_type() {
    let told = Cell::new(0);
    let mut service = one_a_minute().layer(Failing(&told));
    let Err(Broken(same)) = service.call(request(Rc::from("seven"))).await else {
        panic!("the inner service fails");
    };
    assert!(std::ptr::eq(same, &told));
    assert_eq!(told.get(), 5, "it got the body");
    // Charged all the same: it was admitted.
    assert_eq!(service.call(request(Rc::from("seven"))).await.ok().unwrap().status(), 429);
}

/// A body of frames that has neither a default nor anything it could be made
/// from.
struct Frames {
    frames: VecDeque<Result<Frame<Bytes>, &'static str>>,
    _neither_send_nor_sync: PhantomData<Rc<()>>,
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(self.frames.pop_front())
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(7);
        hint.set_upper(11);
        hint
    }
}

#[tokio::test]
async fn frames_trailers_errors_and_hints_of_the_inner_body_are_forwarded() {
    let inner = service_fn(|_: Request<Frames>| {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        let frames = [Ok(Frame::data("abc".into())), Ok(Frame::trailers(trailers)), Err("torn")].into();
        ready(Ok::<_, Infallible>(Response::new(Frames { frames, _neither_send_nor_sync: PhantomData })))
    });
    let upload = Frames { frames: VecDeque::new(), _neither_send_nor_sync: PhantomData };
    let mut body = pin!(one_a_minute().layer(inner).oneshot(request(upload)).await.unwrap().into_body());
    let mut cx = Context::from_waker(Waker::noop());

    let hint = body.size_hint();
    assert_eq!((hint.lower(), hint.upper()), (7, Some(11)));
    let mut next = || match body.as_mut().poll_frame(&mut cx) {
        Poll::Ready(frame) => (frame, body.is_end_stream()),
        Poll::Pending => panic!("never pending"),
    };
    let (Some(Ok(data)), false) = next() else { panic!("data") };
    assert_eq!(data.into_data().unwrap(), "abc");
    let (Some(Ok(trailers)), false) = next() else { panic!("trailers") };
    assert_eq!(trailers.into_trailers().unwrap()["etag"], "x");
    assert!(matches!(next(), (Some(Err("torn")), true)));
    assert!(matches!(next(), (None, true)));
}

#[tokio::test]
async fn the_body_of_a_refusal_is_one_frame_of_known_size() {
    let layer = one_a_minute();
    let mut service = layer.layer(Handler::new());
    assert!(service.call(request(())).await.unwrap().into_body().is_end_stream(), "an empty inner body");
    let mut body = pin!(service.call(request(())).await.unwrap().into_body());
    let mut cx = Context::from_waker(Waker::noop());

    let size = body.size_hint().exact().unwrap();
    assert!(!body.is_end_stream());
    let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut cx) else { panic!("a frame") };
    assert_eq!(frame.into_data().unwrap().len() as u64, size);
    assert!(body.is_end_stream());
    assert!(matches!(body.as_mut().poll_frame(&mut cx), Poll::Ready(None)));
}

#[test]
fn layer_and_service_are_clone_send_and_sync_and_the_future_is_send() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    shared::<RateLimitLayer>();
    shared::<RateLimiter>();
    shared::<RateLimit<Handler>>();
    sent::<RateLimitLayerBuilder>();
    sent::<ResponseFuture<Handler, Full<Bytes>, Ready<Result<Response<Full<Bytes>>, Infallible>>, Full<Bytes>>>(
    );
    sent::<Body<Full<Bytes>>>();
}

#[tokio::test]
async fn the_layer_can_be_named_in_a_field_and_wraps_any_tower_service() {
    struct App {
        limit: RateLimitLayer,
        service: RateLimit<Handler>,
    }
    let limit = one_a_minute();
    let app = App { service: limit.layer(Handler::new()), limit };
    assert_eq!(app.service.oneshot(request(())).await.unwrap().status(), 200);

    let stack = ServiceBuilder::new()
        .map_response(|response: Response<Body<&'static str>>| response.map(|_| ()))
        .layer(&app.limit)
        .service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("not even a body")));
    assert_eq!(stack.oneshot(request(())).await.unwrap().status(), 429, "one layer, one count");
}
