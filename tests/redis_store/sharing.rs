//! Counters shared with a Node.js server that runs `INCR`, and `PEXPIRE` on
//! the first hit.

use std::convert::Infallible;

use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_ratelimit::{Charge, Key, PolicyHandle, Rate, RateLimitLayer, RateLimiter, Refusal, Source};

use crate::setup::{
    NoFallback, Redis, builder, client, connect, eventually, fixed, hit, ms, request_from, who,
};
use crate::support::{Reply, RespClient};

/// What such a server does for one request. Answers whether it lets it pass.
fn node(client: &mut RespClient, key: &str, limit: i64, window_ms: &str) -> bool {
    let count = client.command(&["INCR", key]).unwrap().int();
    if count == 1 {
        assert_eq!(client.command(&["PEXPIRE", key, window_ms]).unwrap(), Reply::Int(1));
    }
    count <= limit
}

struct Shared {
    redis: Redis,
    node: RespClient,
    limiter: RateLimiter,
    http: PolicyHandle,
}

impl Shared {
    /// Without a namespace: these are the exact keys of the other program.
    fn start(limit: u64) -> Self {
        let redis = Redis::start();
        let node = RespClient::connect(redis.server.addr()).unwrap();
        let limiter = builder(redis.server.url()).observer(NoFallback).build().unwrap();
        let http = limiter.policy(fixed("http", limit, 60_000)).unwrap();
        Self { redis, node, limiter, http }
    }
}

#[tokio::test]
async fn the_limiter_sees_the_hits_of_a_node_server() {
    let Shared { redis, mut node, limiter, http } = Shared::start(5);
    let ip = Key::ip(client(9));
    for _ in 0..3 {
        assert!(self::node(&mut node, "http:rl:203.0.113.9", 5, "60000"));
    }
    let started_with = redis.server.pttl("http:rl:203.0.113.9");
    for used in [4, 5] {
        let decision = limiter.check([Charge::new(&http, ip)]).await;
        assert_eq!((decision.is_allowed(), decision.used()), (true, used));
    }
    let refused = limiter.check([Charge::new(&http, ip)]).await;
    assert_eq!((refused.refusal(), refused.used()), (Some(Refusal::Limit), 5));
    assert_eq!(redis.server.get("http:rl:203.0.113.9").as_deref(), Some("5"), "a refusal is not counted");
    assert!(redis.server.pttl("http:rl:203.0.113.9") <= started_with, "the window is theirs");
}

#[tokio::test]
async fn a_node_server_sees_the_hits_of_the_limiter() {
    let Shared { redis, mut node, limiter, .. } = Shared::start(5);
    let layer = RateLimitLayer::builder(limiter).policy(fixed("http", 5, 60_000)).build().unwrap();
    let service = layer.layer(service_fn(async |_: http::Request<()>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    for _ in 0..2 {
        let response = service.clone().oneshot(request_from(9)).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    assert_eq!(redis.server.get("http:rl:203.0.113.9").as_deref(), Some("2"));
    let window = redis.server.pttl("http:rl:203.0.113.9");
    assert!((1..=60_000).contains(&window));
    for pass in [true, true, true, false, false] {
        assert_eq!(self::node(&mut node, "http:rl:203.0.113.9", 5, "60000"), pass);
    }
    assert!(redis.server.pttl("http:rl:203.0.113.9") <= window);
    let response = service.oneshot(request_from(9)).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["x-ratelimit-remaining"], "0");
    // Over the limit there, where refused hits are counted; untouched here.
    assert_eq!(redis.server.get("http:rl:203.0.113.9").as_deref(), Some("7"));
}

#[tokio::test]
async fn the_layer_of_one_line_counts_on_the_same_key() {
    let redis = Redis::start();
    let layer = RateLimitLayer::per_ip(Rate::per_minute(5)).redis(redis.server.url()).unwrap();
    connect(layer.limiter()).await;
    let service = layer.layer(service_fn(async |_: http::Request<()>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    assert_eq!(service.oneshot(request_from(9)).await.unwrap().status(), 200);
    // Its deadline is short: on a busy machine the charge may arrive after the answer.
    let counted = || redis.server.get("http:rl:203.0.113.9").as_deref() == Some("1");
    eventually("the request is counted in Redis", counted).await;
}

#[tokio::test]
async fn a_count_above_the_limit_is_shown_as_it_is_with_nothing_left() {
    let Shared { mut node, limiter, http, redis: _running } = Shared::start(2);
    for _ in 0..4 {
        self::node(&mut node, "http:rl:ann", 2, "60000");
    }
    let refused = hit(&limiter, &http, "ann").await;
    assert_eq!((refused.used(), refused.remaining(), refused.source()), (4, 0, Source::Redis));
}

#[tokio::test]
async fn incr_on_top_of_a_block_leaves_the_block_and_its_end() {
    let Shared { redis, mut node, limiter, .. } = Shared::start(5);
    let policy = || fixed("login", 1, 60_000).block_for(ms(90_000));
    let login = limiter.policy(policy()).unwrap();
    for allowed in [true, false] {
        assert_eq!(hit(&limiter, &login, "ann").await.is_allowed(), allowed);
    }
    let left = redis.server.pttl("login:rl:ann");
    for _ in 0..3 {
        assert!(!self::node(&mut node, "login:rl:ann", 1, "60000"), "over the limit there as well");
    }
    assert_eq!(redis.server.get("login:rl:ann").as_deref(), Some("9100000000000000003"));

    // A replica that has to ask.
    let other = builder(redis.server.url()).observer(NoFallback).build().unwrap();
    let login = other.policy(policy()).unwrap();
    let refused = hit(&other, &login, "ann").await;
    assert_eq!((refused.refusal(), refused.source()), (Some(Refusal::Blocked), Source::Redis));
    let now_left = redis.server.pttl("login:rl:ann");
    assert!(now_left <= left && now_left > 60_000, "{now_left} of {left}");
}

#[tokio::test]
async fn a_node_server_that_lost_its_pexpire_does_not_lock_anybody_out() {
    let Shared { redis, mut node, limiter, .. } = Shared::start(5);
    let tool = limiter.policy(fixed("codemode", 2, 300)).unwrap();
    for _ in 0..9 {
        node.command(&["INCR", "codemode:rl:agent"]).unwrap();
    }
    assert_eq!(redis.server.pttl("codemode:rl:agent"), -1);
    let refused = hit(&limiter, &tool, "agent").await;
    assert!(!refused.is_allowed());
    tokio::time::sleep(refused.retry_after().unwrap()).await;
    assert!(hit(&limiter, &tool, "agent").await.is_allowed());
    assert!(self::node(&mut node, "codemode:rl:agent", 2, "300"), "and the window is shared again");
    assert_eq!(limiter.peek(&tool, &who("agent")).await.used(), 2);
}
