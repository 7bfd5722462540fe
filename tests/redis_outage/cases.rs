//! Cases by their id, where the other test binaries do not have them.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tower_ratelimit::observe::Observer;
use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{RateLimiter, RateLimiterBuilder, Source, test_util};

use crate::answers::{set, snapshot};
use crate::run::{DEADLINE, established};
use crate::setup::{eventually, fixed, hit, ms, who};
use crate::support::{Logs, Mode, Proxy, RedisServer, Reply, free_port};

fn builder(url: String) -> RateLimiterBuilder {
    RateLimiter::builder().redis(url).deadline(DEADLINE).namespace(test_util::namespace())
}

/// Asks until Redis has decided once.
async fn until_redis_decides(limiter: &RateLimiter) {
    let probe = limiter.policy(fixed("probe", 1_000_000)).unwrap();
    let started = Instant::now();
    while hit(limiter, &probe, "nobody").await.source() != Source::Redis {
        assert!(started.elapsed() < Duration::from_secs(15), "Redis never decides");
        tokio::time::sleep(ms(5)).await;
    }
}

/// Why checks have fallen back.
#[derive(Clone, Default)]
struct Reasons(Arc<Mutex<Vec<StoreErrorKind>>>);

impl Observer for Reasons {
    fn fell_back(&self, _: &str, reason: StoreErrorKind) {
        self.0.lock().unwrap().push(reason);
    }
}

#[tokio::test]
async fn o_rds_4_every_request_pays_the_timeout_during_an_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let limiter = builder(proxy.url()).build().unwrap();
    let http = limiter.policy(fixed("http", 1000)).unwrap();
    until_redis_decides(&limiter).await;
    let before = server.commandstat("evalsha");
    server.stop_signal();

    let (started, mut took) = (Instant::now(), Vec::new());
    for _ in 0..200 {
        let asked = Instant::now();
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
        took.push(asked.elapsed());
        tokio::time::sleep(ms(10)).await;
    }
    let outage = started.elapsed();
    let waited = took.iter().filter(|took| **took >= DEADLINE / 2).count();
    assert!(waited <= 3, "{waited} requests have waited");
    took.sort_unstable();
    assert!(took[100] < ms(2), "{:?} in the middle", took[100]);
    // Each attempt waits a second for a stopped server to greet it, the pauses
    // between them grow from 25 to 50 ms.
    let dials = proxy.accepted() - 1;
    let most = 1 + usize::try_from(outage.as_millis() / 1025).unwrap();
    assert!((1..=most).contains(&dials), "{dials} attempts in {outage:?}");

    server.cont();
    until_redis_decides(&limiter).await;
    let late = server.commandstat("evalsha") - before;
    // Three charges, two of the probe, and what has just been asked.
    assert!(late <= 3 + 2 + 2, "{late} charges were sent");
}

#[tokio::test]
async fn o_rds_4_a_refused_connection_is_tried_again_ever_more_rarely() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let limiter = builder(proxy.url()).build().unwrap();
    let http = limiter.policy(fixed("http", 1000)).unwrap();
    until_redis_decides(&limiter).await;
    proxy.set_mode(Mode::Reset);
    eventually("the loss is noticed", || !limiter.is_connected()).await;
    let started = Instant::now();
    while started.elapsed() < ms(2500) {
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
        tokio::time::sleep(ms(10)).await;
    }
    // At 0, then after 50, 100, 200, 400, 800, 1000 ms, or half of that.
    let dials = proxy.accepted() - 1;
    assert!((5..=8).contains(&dials), "{dials} attempts in 2.5 s");
}

#[tokio::test]
async fn o_rds_6_pooled_connection_still_talks_to_the_demoted_master() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::start(old.addr()).await;
    let limiter = builder(proxy.url()).build().unwrap();
    let http = limiter.policy(fixed("http", 100)).unwrap();
    for _ in 0..3 {
        let _ = hit(&limiter, &http, "ann").await;
    }
    let answer = old.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    assert_eq!(answer, Reply::Simple("OK".to_owned()));
    proxy.switch_target(new.addr());

    let mut sources = Vec::new();
    for _ in 0..10 {
        let decision = hit(&limiter, &http, "ann").await;
        assert!(decision.is_allowed());
        sources.push(decision.source());
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(sources[0], Source::Local, "the old master has said no");
    assert!(sources[2..].iter().all(|source| *source == Source::Redis), "{sources:?}");
    // It was empty: the 3 that the old one had counted are paid as well.
    let key = http.store_key(&who("ann"));
    eventually("the new master counts all", || new.get(&key).as_deref() == Some("13")).await;
}

#[tokio::test]
async fn o_rds_8_redis_cannot_persist() {
    let (logs, _guard) = Logs::capture();
    let server = RedisServer::start();
    let reasons = Reasons::default();
    let limiter = builder(server.url()).observer(reasons.clone()).build().unwrap();
    let http = limiter.policy(fixed("http", 3)).unwrap();
    until_redis_decides(&limiter).await;
    set(&server, "save", "3600 1");
    // Its log stays open.
    fs::remove_dir_all(server.dir()).unwrap();
    snapshot(&server, "err");
    for allowed in [true, true, true, false] {
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!((decision.is_allowed(), decision.source()), (allowed, Source::Local));
    }
    assert_eq!(*reasons.0.lock().unwrap(), [StoreErrorKind::PersistenceFailed; 4]);
    assert_eq!(StoreErrorKind::PersistenceFailed.as_str(), "misconf");

    // One that finds it so cannot connect, and says why.
    logs.clear();
    let other = builder(server.url()).build().unwrap();
    let http = other.policy(fixed("http", 3)).unwrap();
    for allowed in [true, true, true, false] {
        assert_eq!(hit(&other, &http, "ann").await.is_allowed(), allowed);
    }
    let lines = logs.matching("rate limit store");
    assert!(lines.len() == 1 && lines[0].contains(r#"reason="misconf""#), "{lines:?}");
}

#[tokio::test]
async fn o_rds_10_pool_limit_that_does_not_limit() {
    let server = RedisServer::start();
    let limiter = builder(server.url()).build().unwrap();
    let http = limiter.policy(fixed("http", 1000)).unwrap();
    until_redis_decides(&limiter).await;
    server.stop_signal();
    let mut waiting = JoinSet::new();
    for _ in 0..500 {
        let (limiter, http) = (limiter.clone(), http.clone());
        waiting.spawn(async move { hit(&limiter, &http, "ann").await.source() });
    }
    let mut most = 0;
    let started = Instant::now();
    while started.elapsed() < ms(1500) {
        most = established(server.port()).max(most);
        let _ = hit(&limiter, &http, "bob").await;
        tokio::time::sleep(ms(10)).await;
    }
    let sources = waiting.join_all().await;
    assert!(sources.iter().all(|source| *source == Source::Local));
    // That of the test, the stopped one, and the next one on its way.
    assert!(most <= 3, "{most} sockets");
    server.cont();
    until_redis_decides(&limiter).await;
    eventually("the old one is closed", || established(server.port()) <= 2).await;
}

#[tokio::test]
async fn o_rds_10_a_server_without_room_is_not_asked_by_everybody() {
    let server = RedisServer::start();
    // The one that there may be is that of the test.
    set(&server, "maxclients", "1");
    let before = rejected(&server);
    let limiter = builder(server.url()).build().unwrap();
    let http = limiter.policy(fixed("http", 1000)).unwrap();
    let mut burst = JoinSet::new();
    for _ in 0..500 {
        let (limiter, http) = (limiter.clone(), http.clone());
        burst.spawn(async move { hit(&limiter, &http, "ann").await });
    }
    let mut most = 0;
    let started = Instant::now();
    while started.elapsed() < ms(500) {
        most = established(server.port()).max(most);
        tokio::time::sleep(ms(2)).await;
    }
    for decision in burst.join_all().await {
        assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
    }
    assert!(most <= 2, "{most} sockets");
    // At 0, then after 50, 100, 200, 400 ms, or half of that.
    let dials = rejected(&server) - before;
    assert!((2..=6).contains(&dials), "{dials} attempts in half a second");
    set(&server, "maxclients", "100");
    until_redis_decides(&limiter).await;
}

/// Connections that were sent away so far.
fn rejected(server: &RedisServer) -> u64 {
    server.info("stats", "rejected_connections").unwrap().parse().unwrap()
}

/// Whoever waits for answers that will never come must not keep the sockets
/// open on which they do not come, nor the places of those who come later.
#[tokio::test]
async fn o_rds_10_connections_that_fall_silent_one_after_the_other_are_closed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr()).await;
    let limiter = builder(proxy.url()).build().unwrap();
    let http = limiter.policy(fixed("http", 1000)).unwrap();
    for round in 1..=4 {
        until_redis_decides(&limiter).await;
        proxy.strand_connections();
        let mut waiting = JoinSet::new();
        for _ in 0..5000 {
            let (limiter, http) = (limiter.clone(), http.clone());
            waiting.spawn(async move { hit(&limiter, &http, "bob").await });
        }
        waiting.join_all().await;
        let started = Instant::now();
        while limiter.is_connected() {
            assert!(started.elapsed() < Duration::from_secs(5), "round {round}");
            let _ = hit(&limiter, &http, "ann").await;
        }
    }
    until_redis_decides(&limiter).await;
    eventually("one connection is left", || proxy.open() == 1).await;
    let http_key = http.store_key(&who("ann"));
    let last = hit(&limiter, &http, "ann").await;
    assert_eq!(last.source(), Source::Redis);
    assert_eq!(server.get(&http_key), Some(last.used().to_string()));
}

#[tokio::test]
async fn o_fb_3_stuck_on_the_wrong_side_after_recovery() {
    let mut server = RedisServer::start();
    server.kill();
    let limiter = builder(server.url()).build().unwrap();
    let http = limiter.policy(fixed("http", 1000)).unwrap();
    let key = http.store_key(&who("ann"));
    // Down at the start.
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
    for _ in 0..2 {
        server.restart();
        let returned = Instant::now();
        until_redis_decides(&limiter).await;
        assert!(returned.elapsed() < Duration::from_secs(2), "{:?}", returned.elapsed());
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!(decision.source(), Source::Redis);
        assert_eq!(server.get(&key), Some(decision.used().to_string()), "the counter moves");
        server.kill();
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
    }
    let flapping = Instant::now();
    while flapping.elapsed() < Duration::from_secs(5) {
        server.restart();
        tokio::time::sleep(ms(300)).await;
        let _ = hit(&limiter, &http, "ann").await;
        server.kill();
        tokio::time::sleep(ms(300)).await;
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
    }
    server.restart();
    let returned = Instant::now();
    until_redis_decides(&limiter).await;
    assert!(returned.elapsed() < Duration::from_secs(12), "{:?}", returned.elapsed());
    let decision = hit(&limiter, &http, "ann").await;
    assert_eq!(server.get(&key), Some(decision.used().to_string()));
}
