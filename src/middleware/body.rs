//! The response body: the inner service's, or a refusal's.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

use super::settlement::Held;

pin_project! {
    /// The body of a [`RateLimit`](super::RateLimit) response: the inner body,
    /// untouched (frames, trailers, size hint), or the small one of a refusal.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B, held: Option<Box<Held>> },
        Refusal { text: Bytes },
    }
}

impl<B> Body<B> {
    pub(crate) fn inner(body: B) -> Self {
        Self { kind: Kind::Inner { body, held: None } }
    }

    /// A body whose end, or whose trailers, settle what the request holds.
    pub(super) fn holding(body: B, held: Option<Box<Held>>) -> Self {
        Self { kind: Kind::Inner { body, held } }
    }

    pub(crate) fn refusal(text: Bytes) -> Self {
        Self { kind: Kind::Refusal { text } }
    }
}

/// An empty inner body: tower-http's CORS layer answers preflights with one.
impl<B: Default> Default for Body<B> {
    fn default() -> Self {
        Self::inner(B::default())
    }
}

impl<B> http_body::Body for Body<B>
where
    B: http_body::Body<Data = Bytes>,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner { body, held } => {
                let frame = ready!(body.poll_frame(cx));
                match (&frame, held.as_mut()) {
                    (Some(Ok(frame)), Some(held)) => {
                        if let Some(trailers) = frame.trailers_ref() {
                            held.settle_by_trailers(trailers);
                        }
                    }
                    // Settled as it is dropped.
                    (None | Some(Err(_)), Some(_)) => *held = None,
                    (_, None) => {}
                }
                Poll::Ready(frame)
            }
            KindProjection::Refusal { text } if text.has_remaining() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(text)))))
            }
            KindProjection::Refusal { .. } => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Refusal { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Refusal { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}
