//! A refused call on the wire: what a client of HTTP/2 that knows no gRPC reads.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower_ratelimit::{Rate, RateLimitLayer};

use crate::setup::{serve_router, serve_tonic};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;

#[tokio::test]
async fn o_grpc_1_a_refusal_is_200_and_trailers_only_in_one_headers_frame() {
    let layer = || RateLimitLayer::per_ip(Rate::per_minute(1));
    for addr in [serve_tonic(layer()).await.0, serve_router(|app| app.layer(layer())).await] {
        let (admitted, trailers, frames) = call(addr).await;
        assert_eq!(admitted.status(), 200);
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
        let kinds: Vec<_> = frames.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [HEADERS, DATA, HEADERS], "what is no refusal has a message and trailers");

        let (refused, trailers, frames) = call(addr).await;
        assert_eq!(refused.status(), 200);
        assert_eq!(refused.headers()["content-type"], "application/grpc");
        assert_eq!(refused.headers()["grpc-status"], "8");
        let message = refused.headers()["grpc-message"].to_str().unwrap();
        assert!(message.bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{message}");
        let details = refused.headers()["grpc-status-details-bin"].to_str().unwrap();
        assert!(!details.is_empty() && !details.contains('='), "unpadded: {details}");
        assert_eq!(trailers, None);
        assert_eq!(frames.len(), 1, "{frames:?}");
        let (kind, flags) = frames[0];
        assert_eq!((kind, flags & END_STREAM), (HEADERS, END_STREAM));
    }
}

/// One health check on a connection of its own: the response, its trailers, and
/// kind and flags of the frames it came in.
async fn call(addr: SocketAddr) -> (Response<()>, Option<HeaderMap>, Vec<(u8, u8)>) {
    let read = Arc::new(Mutex::new(Vec::new()));
    let stream = Recorded { stream: TcpStream::connect(addr).await.unwrap(), read: read.clone() };
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://{addr}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut body) = client.ready().await.unwrap().send_request(request, false).unwrap();
    // An empty message: not compressed, of length 0.
    body.send_data(vec![0; 5].into(), true).unwrap();
    let (head, mut answer) = response.await.unwrap().into_parts();
    while answer.data().await.transpose().unwrap().is_some() {}
    let trailers = answer.trailers().await.unwrap();
    let frames = frames_of_stream_1(&read.lock().unwrap());
    (Response::from_parts(head, ()), trailers, frames)
}

/// RFC 9113, section 4.1: length (3 bytes), kind, flags, stream (4 bytes).
fn frames_of_stream_1(mut read: &[u8]) -> Vec<(u8, u8)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = read.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        // Whether there is room for more of the request does not concern the answer.
        if head[5..] == [0, 0, 0, 1] && matches!(head[3], DATA | HEADERS) {
            frames.push((head[3], head[4]));
        }
        read = rest.get(length..).unwrap_or_default();
    }
    frames
}

/// A stream that remembers what was read from it.
struct Recorded {
    stream: TcpStream,
    read: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Recorded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.read.lock().unwrap().extend_from_slice(&buf.filled()[before..]);
        polled
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
