//! Servers behind a layer, and clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::transport::server::{Server, TcpIncoming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::health_reporter;
use tower::util::MapRequestLayer;
use tower_ratelimit::RateLimitLayer;

/// A tonic server behind `layer`, and how many calls have reached it.
pub(crate) async fn serve_tonic(layer: RateLimitLayer) -> (SocketAddr, Arc<AtomicUsize>) {
    let reached = Arc::new(AtomicUsize::new(0));
    let counter = reached.clone();
    let count = MapRequestLayer::new(move |request: http::Request<tonic::body::Body>| {
        counter.fetch_add(1, Ordering::Relaxed);
        request
    });
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let addr = incoming.local_addr().unwrap();
    let (reporter, health) = health_reporter();
    let server = Server::builder().layer(layer).layer(count).add_service(health);
    tokio::spawn(async move {
        // Its end would be the end of all watches.
        let _reporter = reporter;
        server.serve_with_incoming(incoming).await
    });
    (addr, reached)
}

pub(crate) async fn connect(addr: SocketAddr) -> HealthClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{addr}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

/// The health of the server as a whole, which is there from the start.
pub(crate) fn the_server() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

/// One router of axum and tonic, with the layers that `wrap` puts around it.
pub(crate) async fn serve_router(wrap: impl FnOnce(Router) -> Router) -> SocketAddr {
    let (_reporter, health) = health_reporter();
    let app = Routes::new(health).into_axum_router().route("/", get(|| async { "hello" }));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let service = wrap(app).into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, service).await });
    addr
}

pub(crate) async fn get_root(addr: SocketAddr) -> String {
    ask(addr, "GET / HTTP/1.1\r\n", b"").await
}

/// One request of HTTP/1.1; the answer as it came.
pub(crate) async fn ask(addr: SocketAddr, head: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let length = body.len();
    let head = format!("{head}host: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    // The body of a call is not text.
    String::from_utf8_lossy(&answer).into_owned()
}
