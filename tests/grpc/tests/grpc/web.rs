//! gRPC-Web: tonic-web's layer inside and outside of ours.

use std::net::SocketAddr;

use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic::Code;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tonic_web::{GrpcWebClientLayer, GrpcWebLayer};
use tower::ServiceBuilder;
use tower_ratelimit::{Rate, RateLimitLayer};

use crate::setup::{ask, serve_router, the_server};

async fn both_ways() -> [(&'static str, SocketAddr); 2] {
    let limit = || RateLimitLayer::per_ip(Rate::per_minute(2));
    // The last layer of a router is the outermost.
    let inside = serve_router(|app| app.layer(GrpcWebLayer::new()).layer(limit())).await;
    let outside = serve_router(|app| app.layer(limit()).layer(GrpcWebLayer::new())).await;
    [("tonic-web inside", inside), ("tonic-web outside", outside)]
}

#[tokio::test]
async fn a_grpc_web_client_sees_resource_exhausted_with_the_wait() {
    for (order, addr) in both_ways().await {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let service = ServiceBuilder::new().layer(GrpcWebClientLayer::new()).service(client);
        let mut client = HealthClient::with_origin(service, format!("http://{addr}").parse().unwrap());

        for remaining in ["1", "0"] {
            let admitted = client.check(the_server()).await.unwrap();
            assert_eq!(admitted.metadata().get("x-ratelimit-remaining").unwrap(), remaining, "{order}");
            assert_eq!(admitted.into_inner().status, 1);
        }
        let refused = client.check(the_server()).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{order}");
        assert!(refused.get_error_details().retry_info().is_some(), "{order}: {refused:?}");
        assert!(refused.metadata().contains_key("retry-after"), "{order}");
    }
}

#[tokio::test]
async fn on_the_wire_it_is_200_and_the_status_in_the_headers() {
    for content_type in ["application/grpc-web+proto", "application/grpc-web-text"] {
        for (order, addr) in both_ways().await {
            let check = async || {
                let head = format!(
                    "POST /grpc.health.v1.Health/Check HTTP/1.1\r\ncontent-type: {content_type}\r\naccept: {content_type}\r\n"
                );
                let message: &[u8] = if content_type.ends_with("text") { b"AAAAAAA=" } else { &[0; 5] };
                ask(addr, &head, message).await
            };
            let admitted = check().await;
            assert!(admitted.contains("x-ratelimit-remaining: 1"), "{order}, {content_type}: {admitted}");
            check().await;
            let refused = check().await;
            let (head, _) = refused.split_once("\r\n\r\n").unwrap();
            let lines: Vec<_> = head.split("\r\n").collect();
            assert_eq!(lines[0], "HTTP/1.1 200 OK", "{order}, {content_type}");
            assert!(lines.contains(&"grpc-status: 8"), "{order}, {content_type}: {head}");
            assert!(lines.iter().any(|line| line.starts_with("grpc-status-details-bin: ")), "{head}");
            let kind = if content_type.ends_with("text") { "grpc-web-text" } else { "grpc-web" };
            assert!(head.contains(&format!("content-type: application/{kind}")), "{order}: {head}");
            assert!(lines.contains(&"x-ratelimit-remaining: 0"), "{order}: {head}");
        }
    }
}
