//! Redis gone and back: the local table takes over where Redis stopped.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_ratelimit::observe::Observer;
use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{RateLimitLayer, Refusal, Source};

use crate::setup::{Redis, builder, connect, eventually, fixed, hit, hit_for, ms, request_from, who};
use crate::support::{Logs, Mode, Proxy, RedisServer};

/// Why checks have fallen back.
#[derive(Clone, Default)]
struct Reasons(Arc<Mutex<Vec<StoreErrorKind>>>);

impl Observer for Reasons {
    fn fell_back(&self, _: &str, reason: StoreErrorKind) {
        self.0.lock().unwrap().push(reason);
    }
}

#[tokio::test]
async fn after_80_of_100_and_a_sigkill_exactly_20_more_are_admitted() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    for _ in 0..80 {
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
    }
    redis.server.kill();
    let started = Instant::now();
    for left in (0..20).rev() {
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
        assert_eq!((decision.limit(), decision.remaining()), (100, left));
    }
    let refused = hit(&limiter, &http, "ann").await;
    assert_eq!((refused.refusal(), refused.source()), (Some(Refusal::Limit), Source::Local));
    assert!(refused.retry_after().unwrap() <= ms(60_000));
    assert!(started.elapsed() < ms(1000), "nobody waits for a connection that was reset");
    assert!(!limiter.is_connected());
}

#[tokio::test]
async fn who_is_blocked_when_redis_dies_stays_blocked() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let login = limiter.policy(fixed("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    for allowed in [true, false] {
        assert_eq!(hit(&limiter, &login, "ann").await.is_allowed(), allowed);
    }
    assert!(hit(&limiter, &login, "bob").await.is_allowed());
    redis.server.kill();
    let pair = limiter.policies(&[fixed("login", 1, 60_000).block_for(ms(90_000)), fixed("x", 9, 60_000)]);
    let [login_of_pair, _] = pair.unwrap();
    for policy in [&login, &login_of_pair] {
        let refused = hit(&limiter, policy, "ann").await;
        assert_eq!(refused.refusal(), Some(Refusal::Blocked));
        assert!(refused.blocked_for().unwrap() > ms(60_000));
    }
    // A peek asks the table that falls back, not the deny cache.
    let seen = limiter.peek(&login, &who("ann")).await;
    assert_eq!(seen.source(), Source::Local);
    assert!(seen.blocked_for().is_some());
    let started = hit(&limiter, &login, "bob").await;
    assert_eq!((started.refusal(), started.source()), (Some(Refusal::Blocked), Source::Local));
}

#[tokio::test]
async fn a_share_is_of_what_was_left_and_at_least_1_unless_nothing_was() {
    let mut redis = Redis::start();
    let limiter = redis.builder().fallback_share(1, 4).build().unwrap();
    // Limit, used when Redis dies, admitted by this process alone.
    let table = [
        (100, 80, 5),
        (100, 0, 25),
        (100, 99, 1),
        (100, 100, 0),
        (10, 3, 1),
        (3, 0, 1),
        (3, 2, 1),
        (0, 0, 0),
    ];
    let policies = table
        .each_ref()
        .map(|(limit, used, _)| limiter.policy(fixed(&format!("p{limit}-{used}"), *limit, 60_000)).unwrap());
    for ((_, used, _), policy) in table.iter().zip(&policies) {
        let decision = hit_for(&limiter, policy, "ann", *used).await;
        assert_eq!(decision.source(), Source::Redis);
    }
    redis.server.kill();
    for ((limit, used, more), policy) in table.iter().zip(&policies) {
        let mut admitted = 0;
        for _ in 0..30 {
            let decision = hit(&limiter, policy, "ann").await;
            admitted += u64::from(decision.is_allowed());
            assert_eq!(decision.remaining(), more - admitted, "{limit}, {used} used");
            if decision.source() == Source::Local {
                assert_eq!(decision.limit(), used + more, "the limit in force");
            }
        }
        assert_eq!(admitted, *more, "{limit}, {used} used");
    }
}

#[tokio::test]
async fn o_rds_1_redis_down_at_start() {
    let (logs, _guard) = Logs::capture();
    let mut redis = Redis::start();
    redis.server.kill();
    let started = Instant::now();
    let limiter = redis.builder().build().unwrap();
    assert!(started.elapsed() < ms(100), "building waits for nobody");
    let layer = RateLimitLayer::builder(limiter.clone()).policy(fixed("http", 3, 60_000)).build().unwrap();
    let service = layer.layer(service_fn(async |_: http::Request<()>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    for status in [200, 200, 200, 429] {
        let response = service.clone().oneshot(request_from(9)).await.unwrap();
        assert_eq!(response.status(), status);
    }
    assert!(started.elapsed() < ms(1000), "a refused connection is known at once");
    tokio::time::sleep(ms(200)).await;
    let lines = logs.matching("rate limit store");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN "), "{lines:?}");

    redis.server.restart();
    let started = Instant::now();
    eventually("decisions move to Redis", || limiter.is_connected()).await;
    assert!(started.elapsed() < ms(5000));
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    assert_eq!(hit(&limiter, &http, "bob").await.source(), Source::Redis);
    assert_eq!(redis.server.get(&http.store_key(&who("bob"))).as_deref(), Some("1"));
    assert_eq!(logs.matching("rate limit store connected").len(), 1);
}

#[tokio::test]
async fn o_rds_2_redis_dies_mid_run() {
    let (logs, _guard) = Logs::capture();
    let mut redis = Redis::start();
    let reasons = Reasons::default();
    let limiter = redis.builder().observer(reasons.clone()).build().unwrap();
    let layer = RateLimitLayer::builder(limiter).policy(fixed("http", 5, 60_000)).build().unwrap();
    let service = layer.layer(service_fn(async |_: http::Request<()>| {
        Ok::<_, Infallible>(http::Response::new(String::new()))
    }));
    let ask = async || service.clone().oneshot(request_from(9)).await.unwrap().status().as_u16();
    assert_eq!([ask().await, ask().await], [200; 2]);
    redis.server.kill();
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(ask().await);
        tokio::time::sleep(ms(20)).await;
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429, 429, 429, 429]);
    assert_eq!(reasons.0.lock().unwrap().len(), 10, "each is counted by reason");
    let lines = logs.matching("rate limit store lost");
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[tokio::test]
async fn each_change_of_state_is_one_line() {
    let (logs, _guard) = Logs::capture();
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 1000, 60_000)).unwrap();
    let lines = || -> Vec<String> {
        let short = |line: String| line.split(" address=").next().unwrap().to_owned();
        logs.matching("rate limit store").into_iter().map(short).collect()
    };
    let connected = "INFO tower_ratelimit::observe::trace: rate limit store connected";
    let lost = "WARN tower_ratelimit::observe::trace: rate limit store lost; limiting in this process until \
                it is back";
    connect(&limiter).await;
    let mut expected = vec![connected];
    assert_eq!(lines(), expected);
    for _ in 0..2 {
        redis.server.kill();
        let mut requests = JoinSet::new();
        for _ in 0..50 {
            let (limiter, http) = (limiter.clone(), http.clone());
            requests.spawn(async move { hit(&limiter, &http, "ann").await });
        }
        for decision in requests.join_all().await {
            assert_eq!(decision.source(), Source::Local);
        }
        tokio::time::sleep(ms(150)).await;
        expected.push(lost);
        assert_eq!(lines(), expected);
        redis.server.restart();
        eventually("the limiter is back", || limiter.is_connected()).await;
        assert_eq!(hit(&limiter, &http, "bob").await.source(), Source::Redis);
        expected.push(connected);
        assert_eq!(lines(), expected);
    }
}

/// 20 at once, and how long the slowest took.
async fn slowest_of_20(
    limiter: &tower_ratelimit::RateLimiter,
    http: &tower_ratelimit::PolicyHandle,
) -> Duration {
    let mut requests = JoinSet::new();
    for i in 0..20 {
        let (limiter, http) = (limiter.clone(), http.clone());
        requests.spawn(async move {
            let started = Instant::now();
            let decision = hit(&limiter, &http, &format!("client-{i}")).await;
            assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
            started.elapsed()
        });
    }
    requests.join_all().await.into_iter().max().unwrap()
}

#[tokio::test]
async fn o_rds_3_redis_accepts_but_never_answers() {
    const DEADLINE: Duration = Duration::from_millis(200);
    for connect_first in [true, false] {
        let redis = Redis::start();
        let limiter = redis.builder().deadline(DEADLINE).build().unwrap();
        let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
        if connect_first {
            connect(&limiter).await;
        }
        redis.server.stop_signal();
        for _ in 0..3 {
            let slowest = slowest_of_20(&limiter, &http).await;
            assert!(slowest < DEADLINE * 5 / 2, "{slowest:?}, connected before: {connect_first}");
        }
        // After three deadlines without an answer nobody waits.
        let started = Instant::now();
        for _ in 0..50 {
            assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
        }
        assert!(started.elapsed() < DEADLINE, "connected before: {connect_first}");

        redis.server.cont();
        eventually("the limiter is back", || limiter.is_connected()).await;
        let back = hit(&limiter, &http, "bob").await;
        assert_eq!((back.source(), back.used()), (Source::Redis, 1));
    }
}

#[tokio::test]
async fn a_server_out_of_memory_is_a_fallback_by_that_name() {
    let redis = Redis::start();
    let reasons = Reasons::default();
    let limiter = redis.builder().observer(reasons.clone()).build().unwrap();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
    redis.server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for allowed in [true, true, false] {
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!((decision.is_allowed(), decision.source()), (allowed, Source::Local));
    }
    assert_eq!(*reasons.0.lock().unwrap(), [StoreErrorKind::OutOfMemory; 3]);
    redis.server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(hit(&limiter, &http, "bob").await.source(), Source::Redis, "on the same connection");
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_known_to_be_lost_and_comes_back() {
    let (logs, _guard) = Logs::capture();
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    connect(&limiter).await;
    redis.server.kill();
    eventually("the loss is noticed without a check", || !limiter.is_connected()).await;
    assert_eq!(logs.matching("store lost").len(), 1);
    redis.server.restart();
    eventually("the return is noticed without a check", || limiter.is_connected()).await;
    let http = limiter.policy(fixed("http", 1, 60_000)).unwrap();
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis, "the first check is not lost");
    assert_eq!(logs.matching("rate limit store").len(), 3, "{:?}", logs.lines());
}

#[tokio::test]
async fn a_server_without_the_newer_protocol_is_spoken_to_in_the_older_one() {
    let redis = Redis::on(RedisServer::start_with(&["--rename-command", "HELLO", ""]));
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 2, 60_000)).unwrap();
    for allowed in [true, true, false] {
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!((decision.is_allowed(), decision.source()), (allowed, Source::Redis));
    }
}

/// Clients that leave before the deadline must not hide that nobody answers.
#[tokio::test]
async fn a_redis_that_hangs_is_dropped_even_if_nobody_waits_for_the_deadline() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).deadline(ms(150)).build().unwrap();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 1_000, 60_000)).unwrap();
    proxy.set_mode(Mode::Hold);
    let started = Instant::now();
    while limiter.is_connected() {
        let _ = tokio::time::timeout(ms(50), hit(&limiter, &http, "ann")).await;
        assert!(started.elapsed() < ms(3_000), "it is never given up");
    }
    assert!(started.elapsed() >= ms(3 * 150), "three deadlines have passed");
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
}

/// An observer that asks the limiter something does not lock it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_may_ask_back() {
    #[derive(Clone, Default)]
    struct AsksBack(Arc<std::sync::OnceLock<(tower_ratelimit::RateLimiter, tower_ratelimit::PolicyHandle)>>);

    impl Observer for AsksBack {
        fn store(&self, event: &tower_ratelimit::store::StoreEvent<'_>) {
            let (tower_ratelimit::store::StoreEvent::Connected { .. }, Some((limiter, http))) =
                (event, self.0.get())
            else {
                return;
            };
            tokio::task::block_in_place(|| {
                let _ = tokio::runtime::Handle::current().block_on(hit(limiter, http, "observer"));
            });
        }
    }

    let mut redis = Redis::start();
    let observer = AsksBack::default();
    let limiter = redis.builder().deadline(ms(100)).observer(observer.clone()).build().unwrap();
    let http = limiter.policy(fixed("http", 1_000, 60_000)).unwrap();
    observer.0.set((limiter.clone(), http.clone())).ok().unwrap();
    for _ in 0..3 {
        connect(&limiter).await;
        redis.server.kill();
        eventually("the loss is noticed", || !limiter.is_connected()).await;
        redis.server.restart();
    }
    eventually("it is back", || limiter.is_connected()).await;
    assert!(hit(&limiter, &http, "ann").await.is_allowed());
}

#[tokio::test]
async fn an_answer_from_before_a_reset_does_not_bring_the_block_back() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).build().unwrap();
    connect(&limiter).await;
    let login = limiter.policy(fixed("login", 1, 60_000).block_for(ms(3_600_000))).unwrap();
    let elsewhere = redis.limiter();
    let there = elsewhere.policy(fixed("login", 1, 60_000).block_for(ms(3_600_000))).unwrap();
    for allowed in [true, false] {
        assert_eq!(hit(&elsewhere, &there, "ann").await.is_allowed(), allowed);
    }
    proxy.set_mode(Mode::Hold);
    let asked = {
        let (limiter, login) = (limiter.clone(), login.clone());
        tokio::spawn(async move { hit(&limiter, &login, "ann").await })
    };
    tokio::time::sleep(ms(50)).await;
    let ann = who("ann");
    let forget = limiter.reset(&login, &ann);
    let release = async {
        tokio::time::sleep(ms(50)).await;
        proxy.set_mode(Mode::Forward);
    };
    tokio::join!(forget, release).0.unwrap();
    assert!(!asked.await.unwrap().is_allowed(), "it was blocked when it asked");
    assert!(hit(&limiter, &login, "ann").await.is_allowed(), "and is not any more");
}
