//! In every place where an axum application can have a layer.

use std::net::SocketAddr;

use axum::body::Body;
use axum::{Router, routing};
use http::Response;
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer as _, ServiceBuilder};
use tower_ratelimit::{Rate, RateLimitLayer};

use crate::harness::{Handler, ask, ask_over, get, statuses};

fn hello() -> routing::MethodRouter {
    routing::get(async || "hello")
}

#[tokio::test]
async fn it_limits_wherever_axum_takes_a_layer() {
    type Place = fn(RateLimitLayer) -> Router;
    let places: [(&str, Place); 6] = [
        ("Router::layer", |layer| Router::new().route("/a/b", hello()).layer(layer)),
        ("Router::route_layer", |layer| Router::new().route("/a/b", hello()).route_layer(layer)),
        ("MethodRouter::layer", |layer| Router::new().route("/a/b", hello().layer(layer))),
        ("MethodRouter::route_layer", |layer| Router::new().route("/a/b", hello().route_layer(layer))),
        ("outside a nested router", |layer| {
            Router::new().nest("/a", Router::new().route("/b", hello())).layer(layer)
        }),
        ("inside a nested router", |layer| {
            Router::new().nest("/a", Router::new().route("/b", hello()).layer(layer))
        }),
    ];
    for (place, build) in places {
        let app = build(RateLimitLayer::per_ip(Rate::per_minute(2)));
        let got = statuses(&app, [0; 3].map(|_| get("203.0.113.9", "/a/b"))).await;
        assert_eq!(got, [200, 200, 429], "{place}");
        assert_eq!(ask(&app, get("203.0.113.10", "/a/b")).await.remaining(), Some(1), "{place}");
    }
}

#[tokio::test]
async fn it_limits_a_whole_router_from_outside() {
    let router = Router::new().route("/", hello());
    let app = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(RateLimitLayer::per_ip(Rate::per_minute(2)))
        .service(router);
    // Routes and what no route matches share the count.
    let paths = ["/", "/nowhere", "/"].map(|path| get("203.0.113.9", path));
    assert_eq!(statuses(&app, paths).await, [200, 404, 429]);
    // It is a service that a router takes as well.
    let outer = Router::new().fallback_service(app);
    assert_eq!(statuses(&outer, [get("203.0.113.9", "/")]).await, [429]);
}

#[tokio::test]
async fn a_route_outside_of_the_layer_is_free() {
    let layer = RateLimitLayer::per_ip(Rate::per_minute(1));
    let app = Router::new().route("/", hello()).layer(layer).route("/healthz", hello());
    let paths = ["/", "/healthz", "/", "/healthz"].map(|path| get("203.0.113.9", path));
    assert_eq!(statuses(&app, paths).await, [200, 200, 429, 200]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_con_2_state_is_the_layers_and_not_the_cloned_services() {
    let handler = Handler::new();
    let app = Router::new()
        .route_service("/", handler.clone())
        .layer(RateLimitLayer::per_ip(Rate::per_minute(5)))
        .into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let clients: Vec<_> = (0..50)
        .map(|_| tokio::spawn(async move { ask_over(TcpStream::connect(address).await.unwrap(), "").await }))
        .collect();
    let mut admitted = 0;
    for client in clients {
        match client.await.unwrap() {
            200 => admitted += 1,
            status => assert_eq!(status, 429),
        }
    }
    server.abort();
    assert_eq!((admitted, handler.hits()), (5, 5));
}

#[tokio::test]
async fn o_con_2_one_layer_applied_twice_has_one_count() {
    let layer = RateLimitLayer::per_ip(Rate::per_minute(2));
    let services = [layer.layer(Handler::new()), layer.clone().layer(Handler::new())];
    let mut got = Vec::new();
    for service in services.iter().cycle().take(4) {
        got.push(ask(service, get("203.0.113.9", "/")).await.status);
    }
    assert_eq!(got, [200, 200, 429, 429]);
}
