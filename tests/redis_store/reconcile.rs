//! What was counted here while Redis could not be asked is paid when it is
//! back, once, so that nobody gets a second budget.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tower_ratelimit::{RateLimiter, Refusal, Source};

use crate::setup::{Dice, Redis, builder, connect, eventually, fixed, hit, ms, who};
use crate::support::{Mode, Proxy, RedisServer};

async fn back_on_redis(limiter: &RateLimiter) {
    eventually("the limiter is back on Redis", || limiter.is_connected()).await;
}

#[tokio::test]
async fn o_fb_5_a_block_that_started_here_is_written_to_redis() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let login = limiter.policy(fixed("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    let idle = login.store_key(&who("bob"));
    for name in ["ann", "bob"] {
        assert!(hit(&limiter, &login, name).await.is_allowed());
    }
    redis.server.kill();
    for name in ["ann", "bob"] {
        assert_eq!(hit(&limiter, &login, name).await.refusal(), Some(Refusal::Blocked));
    }
    redis.server.restart();
    back_on_redis(&limiter).await;
    let elsewhere = redis.builder().build().unwrap();
    let there = elsewhere.policy(fixed("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    eventually("the block is in Redis", || redis.server.get(&idle).is_some()).await;
    for name in ["ann", "bob"] {
        let decision = hit(&elsewhere, &there, name).await;
        assert_eq!((decision.refusal(), decision.source()), (Some(Refusal::Blocked), Source::Redis));
        assert!(decision.blocked_for().unwrap() > Duration::from_secs(80));
    }
}

#[tokio::test]
async fn one_late_answer_drops_nothing_and_loses_nothing() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).deadline(ms(100)).build().unwrap();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 10, 60_000)).unwrap();
    let key = http.store_key(&who("ann"));
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
    proxy.set_mode(Mode::Delay(ms(150)));
    let late = hit(&limiter, &http, "ann").await;
    assert_eq!((late.source(), late.remaining()), (Source::Local, 8));
    proxy.set_mode(Mode::Forward);
    tokio::time::sleep(ms(200)).await;
    assert!(limiter.is_connected());
    assert_eq!(redis.server.get(&key).as_deref(), Some("2"));
    let next = hit(&limiter, &http, "ann").await;
    assert_eq!((next.source(), next.remaining()), (Source::Redis, 7));
    assert_eq!(redis.server.get(&key).as_deref(), Some("3"), "the late answer has settled the charge");
    assert_eq!(proxy.accepted(), 1);
    let marked = redis.server.keys_matching(&format!("{}:reconciled:*", redis.namespace));
    assert!(marked.is_empty(), "nothing was owed any more: {marked:?}");
}

/// Who asks no more is paid for in batches, which may be cut as well: their
/// answers in part, or the connection at any time around the healthy second.
#[tokio::test]
async fn batches_that_are_cut_and_sent_again_count_once() {
    const IDLE: [&str; 5] = ["a", "b", "c", "d", "e"];
    let server = Arc::new(RedisServer::start());
    let mut rounds = JoinSet::new();
    for round in 0..20 {
        let server = server.clone();
        rounds.spawn(async move {
            let mut dice = Dice::new(round + 1);
            let proxy = Proxy::start(server.addr()).await;
            let limiter =
                builder(proxy.url()).namespace(format!("round-{round}")).deadline(ms(500)).build().unwrap();
            connect(&limiter).await;
            let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
            let keys = IDLE.map(|name| http.store_key(&who(name)));
            for name in IDLE.iter().cycle().take(10) {
                assert_eq!(hit(&limiter, &http, name).await.source(), Source::Redis);
            }
            proxy.set_mode(Mode::Reset);
            eventually("the connection is lost", || !limiter.is_connected()).await;
            for name in IDLE.iter().cycle().take(15) {
                assert_eq!(hit(&limiter, &http, name).await.source(), Source::Local);
            }
            proxy.set_mode(Mode::Forward);
            back_on_redis(&limiter).await;
            if round % 2 == 0 {
                proxy.set_mode(Mode::CutReplyAfter(usize::try_from(dice.roll(60)).unwrap()));
                eventually("the batch is cut", || !limiter.is_connected()).await;
                proxy.set_mode(Mode::Forward);
            } else {
                tokio::time::sleep(Duration::from_micros(990_000 + dice.roll(20_000))).await;
                proxy.drop_connections();
            }
            let paid = || keys.iter().all(|key| server.get(key).as_deref() == Some("5"));
            eventually("all is paid", paid).await;
            // Another round of batches has nothing to add.
            tokio::time::sleep(ms(1500)).await;
            assert!(paid(), "round {round}: nothing was added twice");
        });
    }
    rounds.join_all().await;
}
