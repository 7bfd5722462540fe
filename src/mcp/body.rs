//! The request body behind a look: as it came.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The request body that a [`Look`](super::Look) passes on: the one that came
    /// or, if it was looked at, what was read of it: the same bytes and trailers.
    #[derive(Debug)]
    pub struct RequestBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Unread { #[pin] body: B },
        Read { data: Bytes, trailers: Option<HeaderMap> },
    }
}

impl<B> RequestBody<B> {
    pub(super) fn unread(body: B) -> Self {
        Self { kind: Kind::Unread { body } }
    }

    pub(super) fn read(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { kind: Kind::Read { data, trailers } }
    }
}

impl<B> http_body::Body for RequestBody<B>
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
            KindProjection::Unread { body } => body.poll_frame(cx),
            KindProjection::Read { data, .. } if data.has_remaining() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(data)))))
            }
            KindProjection::Read { trailers, .. } => {
                Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Unread { body } => body.is_end_stream(),
            Kind::Read { data, trailers } => data.is_empty() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Unread { body } => body.size_hint(),
            Kind::Read { data, .. } => SizeHint::with_exact(data.len() as u64),
        }
    }
}

/// A body as far as it was read. Of one frame, which is the rule, nothing is
/// copied.
#[derive(Default)]
pub(super) struct Collected {
    first: Bytes,
    /// All of it, once there is a second frame.
    whole: BytesMut,
    trailers: Option<HeaderMap>,
}

/// Why a body was not read to its end.
#[derive(Debug)]
pub(super) enum Unread {
    TooLarge,
    /// The client has left, or does not keep to the protocol.
    Failed,
}

impl Collected {
    /// Reads on, to at most `max` bytes.
    pub(super) fn poll<B>(
        &mut self,
        mut body: Pin<&mut B>,
        max: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Unread>>
    where
        B: http_body::Body<Data = Bytes>,
    {
        while let Some(frame) = ready!(body.as_mut().poll_frame(cx)) {
            let Ok(frame) = frame else { return Poll::Ready(Err(Unread::Failed)) };
            match frame.into_data() {
                Ok(data) if data.len() > max.saturating_sub(self.first.len() + self.whole.len()) => {
                    return Poll::Ready(Err(Unread::TooLarge));
                }
                Ok(data) if self.first.is_empty() && self.whole.is_empty() => self.first = data,
                Ok(data) => {
                    self.whole.extend_from_slice(&std::mem::take(&mut self.first));
                    self.whole.extend_from_slice(&data);
                }
                Err(frame) => self.trailers = frame.into_trailers().ok().or(self.trailers.take()),
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn finish(self) -> (Bytes, Option<HeaderMap>) {
        let Self { first, whole, trailers } = self;
        (if whole.is_empty() { first } else { whole.freeze() }, trailers)
    }
}
