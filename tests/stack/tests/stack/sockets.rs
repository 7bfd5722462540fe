//! WebSockets: the upgrade is a request, the frames are not.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::any;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::{Error, Message as Sent};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use tower_ratelimit::{Charge, Policy, PolicyHandle, Rate, RateLimitLayer, RateLimiter};

use crate::setup::peer_key;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A socket that answers each frame; with the handle it charges them as well.
async fn serve(limit: u32, charge_frames: bool) -> (SocketAddr, RateLimiter, PolicyHandle) {
    let limiter = RateLimiter::memory();
    let policy = Policy::fixed_window("http", Rate::per_minute(limit));
    let layer = RateLimitLayer::builder(limiter.clone()).policy(policy.clone()).build().unwrap();
    let handle = limiter.policy(policy).unwrap();
    let (frames, charged) = (limiter.clone(), handle.clone());
    let upgrade = async move |upgrade: WebSocketUpgrade| -> Response {
        upgrade.on_upgrade(async move |mut socket| {
            while let Some(Ok(Message::Text(text))) = socket.recv().await {
                let charge = Charge::new(&charged, peer_key(Ipv4Addr::LOCALHOST.into()));
                let answer = if charge_frames && !frames.check([charge]).await.is_allowed() {
                    Message::Text("refused".into())
                } else {
                    Message::Text(text)
                };
                if socket.send(answer).await.is_err() {
                    return;
                }
            }
        })
    };
    let app: Router = Router::new().route("/", any(upgrade)).layer(layer);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, service).await });
    (addr, limiter, handle)
}

async fn open(addr: SocketAddr) -> Result<Socket, Error> {
    connect_async(format!("ws://{addr}/")).await.map(|(socket, _)| socket)
}

async fn say(socket: &mut Socket, text: &str) -> String {
    socket.send(Sent::text(text)).await.unwrap();
    socket.next().await.unwrap().unwrap().into_text().unwrap().as_str().to_owned()
}

#[tokio::test]
async fn o_str_1_an_upgrade_is_refused_before_any_101_and_frames_are_free() {
    let (addr, limiter, policy) = serve(3, false).await;
    let mut sockets = Vec::new();
    for _ in 0..3 {
        sockets.push(open(addr).await.unwrap());
    }
    let Err(Error::Http(refused)) = open(addr).await else { panic!("the 4th upgrade was not refused") };
    assert_eq!(refused.status(), 429);
    let retry_after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry_after));
    assert!(!refused.headers().contains_key("sec-websocket-accept"));

    for n in 0..100 {
        assert_eq!(say(&mut sockets[0], &n.to_string()).await, n.to_string());
    }
    assert_eq!(limiter.peek(&policy, &peer_key(Ipv4Addr::LOCALHOST.into())).await.used(), 3);
}

#[tokio::test]
async fn o_str_1_frames_can_be_charged_to_the_same_counter() {
    let (addr, ..) = serve(10, true).await;
    let mut socket = open(addr).await.unwrap();
    for n in 1..10 {
        assert_eq!(say(&mut socket, "hello").await, "hello", "frame {n} of the rest of the budget");
    }
    assert_eq!(say(&mut socket, "hello").await, "refused");
    let Err(Error::Http(refused)) = open(addr).await else { panic!("the budget is used up") };
    assert_eq!(refused.status(), 429);
}
