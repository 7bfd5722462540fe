//! The future of one look: read what must be read, pass it on or turn it away.
//! Dropped while the body comes in, nothing has been charged.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::{Collected, RequestBody};
use super::declared::Declared;
use super::look::{Plan, Seen, Settings};
use crate::middleware::Body;

pin_project! {
    /// The future of a [`Look`](super::Look) call.
    #[must_use = "futures do nothing unless polled"]
    pub struct LookFuture<S, B, F> {
        #[pin]
        stage: Stage<S, B, F>,
        settings: Arc<Settings>,
    }
}

pin_project! {
    #[project = StageProjection]
    #[project_replace = StageOwned]
    enum Stage<S, B, F> {
        Start { service: S, request: Request<B> },
        Reading {
            // Without its body.
            head: Option<(S, Request<()>)>,
            #[pin]
            body: B,
            collected: Collected,
            declared: Option<Declared>,
        },
        Inner { #[pin] future: F },
        Answer { response: Response<Bytes> },
        Done,
    }
}

impl<S, B, F> LookFuture<S, B, F> {
    pub(super) fn new(service: S, request: Request<B>, settings: Arc<Settings>) -> Self {
        Self { stage: Stage::Start { service, request }, settings }
    }
}

impl<S, B, R> Future for LookFuture<S, B, S::Future>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    B: http_body::Body<Data = Bytes>,
{
    type Output = Result<Response<Body<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.stage.as_mut().project() {
                StageProjection::Start { .. } => {
                    let stage = this.stage.as_mut().project_replace(Stage::Done);
                    let StageOwned::Start { service, request } = stage else { return Poll::Pending };
                    start(this.settings, service, request)
                }
                StageProjection::Reading { head, body, collected, declared } => {
                    let read = ready!(collected.poll(body, this.settings.max_body(), cx));
                    let Some((service, head)) = head.take() else { return Poll::Pending };
                    let (data, trailers) = std::mem::take(collected).finish();
                    let seen = match read {
                        Ok(()) => this.settings.understand(&head, &data, declared.as_ref()),
                        Err(why) => Seen::Answer(this.settings.not_read(&why)),
                    };
                    go_on(seen, service, head.map(|()| RequestBody::read(data, trailers)))
                }
                StageProjection::Inner { future } => {
                    let response = ready!(future.poll(cx))?;
                    this.stage.set(Stage::Done);
                    return Poll::Ready(Ok(response.map(Body::inner)));
                }
                StageProjection::Answer { response } => {
                    let response = std::mem::take(response);
                    this.stage.set(Stage::Done);
                    return Poll::Ready(Ok(response.map(Body::refusal)));
                }
                // As every future, this one is not polled after it is ready.
                StageProjection::Done => return Poll::Pending,
            };
            this.stage.set(next);
        }
    }
}

fn start<S, B>(settings: &Settings, service: S, request: Request<B>) -> Stage<S, B, S::Future>
where
    S: Service<Request<RequestBody<B>>>,
    B: http_body::Body<Data = Bytes>,
{
    match settings.plan(&request) {
        Plan::Decided(seen) => go_on(seen, service, request.map(RequestBody::unread)),
        Plan::Read(declared) => {
            let (head, body) = request.into_parts();
            let head = Some((service, Request::from_parts(head, ())));
            Stage::Reading { head, body, collected: Collected::default(), declared }
        }
    }
}

fn go_on<S, B>(seen: Seen, mut service: S, mut request: Request<RequestBody<B>>) -> Stage<S, B, S::Future>
where
    S: Service<Request<RequestBody<B>>>,
{
    match seen {
        Seen::Answer(response) => Stage::Answer { response },
        Seen::Pass(message) => {
            request.extensions_mut().insert(message);
            Stage::Inner { future: service.call(request) }
        }
    }
}

impl<S, B, F> std::fmt::Debug for LookFuture<S, B, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LookFuture")
    }
}
