//! Around a service with tonic's bodies and peer address, as tonic's server has
//! it. What a refusal looks like to gRPC is not decided here.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tonic::transport::server::TcpConnectInfo;
use tower::{Layer as _, Service, ServiceExt as _};
use tower_ratelimit::{Rate, RateLimitLayer};

/// What tonic generates for a service, by hand.
#[derive(Clone)]
struct Greeter;

impl Service<Request<Body>> for Greeter {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

#[tokio::test]
async fn it_limits_a_tonic_service_by_the_address_that_tonic_tells() {
    let app = RateLimitLayer::per_ip(Rate::per_minute(2)).layer(Greeter);
    for (peer, remaining) in [("203.0.113.9", "1"), ("203.0.113.10", "1"), ("203.0.113.9", "0")] {
        let remote_addr = Some(std::net::SocketAddr::new(peer.parse().unwrap(), 1));
        let peer = TcpConnectInfo { local_addr: None, remote_addr };
        let request = Request::post("/hello.Greeter/Hello").extension(peer).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["x-ratelimit-remaining"], remaining);
    }
}
