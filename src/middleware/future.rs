//! The future of one request: identify, check, forward or refuse.
//!
//! Nothing is charged before the first poll: a future that is never polled
//! costs nobody anything. The inner service is called after the verdict only.
//! Dropped while the store is asked, the charge has counted once or not at all;
//! dropped later, it stays, for the request was admitted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::Body;
use super::settlement::SettledHead;
use super::shared::{Admission, Checking, Shared, Shown};

pin_project! {
    /// The future of a [`RateLimit`](super::RateLimit) call.
    ///
    /// Nothing is charged before its first poll. Dropped while Redis is asked,
    /// the request has counted once or not at all; dropped later, it counts.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, B, F, R> {
        #[pin]
        stage: Stage<S, B, F, R>,
        shared: Arc<Shared>,
    }
}

pin_project! {
    #[project = StageProjection]
    #[project_replace = StageOwned]
    enum Stage<S, B, F, R> {
        Start { service: S, request: Request<B> },
        Checking { checking: Checking, service: S, request: Request<B> },
        Inner { #[pin] future: F, shown: Option<Shown> },
        Settling { settled: SettledHead, answer: Option<(Response<R>, Shown)> },
        Done,
    }
}

impl<S, B, F, R> ResponseFuture<S, B, F, R> {
    pub(super) fn new(service: S, request: Request<B>, shared: Arc<Shared>) -> Self {
        Self { stage: Stage::Start { service, request }, shared }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, S::Future, R>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<Body<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let admission = match this.stage.as_mut().project() {
                StageProjection::Start { request, .. } => this.shared.start(request),
                StageProjection::Checking { checking, request, .. } => {
                    ready!(this.shared.poll(checking, request, cx))
                }
                StageProjection::Inner { future, shown } => {
                    let response = ready!(future.poll(cx))?;
                    let Some(mut shown) = shown.take() else {
                        this.stage.set(Stage::Done);
                        return Poll::Ready(Ok(response.map(Body::inner)));
                    };
                    let settled = shown.settle_by(&response);
                    this.stage.set(Stage::Settling { settled, answer: Some((response, shown)) });
                    continue;
                }
                StageProjection::Settling { settled, answer } => {
                    let decision = ready!(Pin::new(settled).poll(cx));
                    // As every future, this one is not polled after it is ready.
                    let Some((mut response, shown)) = answer.take() else { return Poll::Pending };
                    let held = this.shared.describe(&mut response, shown, decision);
                    this.stage.set(Stage::Done);
                    return Poll::Ready(Ok(response.map(|body| Body::holding(body, held))));
                }
                StageProjection::Done => {
                    // As every future, this one is not polled after it is ready.
                    return Poll::Pending;
                }
            };
            let (mut service, mut request) = match this.stage.as_mut().project_replace(Stage::Done) {
                StageOwned::Start { service, request } | StageOwned::Checking { service, request, .. } => {
                    (service, request)
                }
                StageOwned::Inner { .. } | StageOwned::Settling { .. } | StageOwned::Done => {
                    return Poll::Pending;
                }
            };
            match admission {
                Admission::Undecided(checking) => {
                    this.stage.set(Stage::Checking { checking, service, request })
                }
                Admission::Refused(response) => return Poll::Ready(Ok(response.map(Body::refusal))),
                Admission::Forward(shown) => {
                    let shown = shown.map(|shown| shown.enter(&mut request));
                    let future = service.call(request);
                    this.stage.set(Stage::Inner { future, shown });
                }
            }
        }
    }
}

impl<S, B, F, R> std::fmt::Debug for ResponseFuture<S, B, F, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseFuture")
    }
}
