//! Limiters and runtimes do not live equally long.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Runtime;
use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{RateLimiter, Source};

use crate::setup::{PATIENT, Redis, connect, fixed, hit, ms, who};

fn current_thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_limiter_built_before_any_runtime_is_shared_by_several_in_sequence() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    for used in 1..=6 {
        let runtime = if used % 2 == 0 { current_thread() } else { multi_thread() };
        // The first check of each runtime is one of Redis: it is waited for.
        let decision = runtime.block_on(hit(&limiter, &http, "ann"));
        assert_eq!((decision.source(), decision.used()), (Source::Redis, used));
    }
    assert!(!limiter.is_connected(), "the connection has ended with its runtime");
}

#[test]
fn a_runtime_that_ends_while_redis_is_down_leaves_a_limiter_that_still_works() {
    let mut redis = Redis::start();
    redis.server.kill();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    for _ in 0..2 {
        let decision = current_thread().block_on(hit(&limiter, &http, "ann"));
        assert_eq!(decision.source(), Source::Local);
    }
    redis.server.restart();
    let decision = current_thread().block_on(hit(&limiter, &http, "bob"));
    assert_eq!(decision.source(), Source::Redis);
}

#[test]
fn a_runtime_that_ends_during_a_check_leaves_a_limiter_that_still_works() {
    let redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    for millis in 0..4 {
        let runtime = multi_thread();
        let (limiter, http) = (limiter.clone(), http.clone());
        runtime.spawn(async move { hit(&limiter, &http, "ann").await });
        runtime.block_on(async { tokio::time::sleep(ms(millis)).await });
        // Waits for its threads, so that nothing of it is left to break under the next check.
        drop(runtime);
    }
    let decision = current_thread().block_on(hit(&limiter, &http, "bob"));
    assert_eq!(decision.source(), Source::Redis);
}

#[test]
fn two_runtimes_at_once_share_one_limiter() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 1000, 60_000)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                multi_thread().block_on(async {
                    for _ in 0..50 {
                        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
                    }
                    // Until the other one is done as well: the connection lives in one of the two.
                    while limiter.peek(&http, &who("ann")).await.used() < 100 {
                        tokio::time::sleep(ms(1)).await;
                    }
                });
            });
        }
    });
    assert_eq!(redis.server.get(&http.store_key(&who("ann"))).as_deref(), Some("100"));
}

/// One poll outside of any runtime: there is nothing to wait for.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn without_a_runtime_it_falls_back_and_does_not_panic() {
    let redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    let without_runtime = |limiter: &RateLimiter, name| {
        for allowed in [true, true, true, false] {
            let decision = at_once(hit(limiter, &http, name));
            assert_eq!((decision.is_allowed(), decision.source()), (allowed, Source::Local));
        }
        assert_eq!(at_once(limiter.peek(&http, &who(name))).used(), 3);
        let error = at_once(limiter.reset(&http, &who(name))).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Disconnected);
        assert_eq!(at_once(limiter.peek(&http, &who(name))).used(), 0);
    };
    without_runtime(&limiter, "before any");
    let runtime = multi_thread();
    runtime.block_on(connect(&limiter));
    // The runtime runs and is connected, but this thread is not in it.
    without_runtime(&limiter, "beside one");
    runtime.block_on(async { assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis) });
    drop(runtime);
    without_runtime(&limiter, "after one");
    let decision = current_thread().block_on(hit(&limiter, &http, "ann"));
    assert_eq!((decision.source(), decision.used()), (Source::Redis, 2));
}

#[test]
fn a_dropped_limiter_takes_its_connection_along() {
    let redis = Redis::start();
    let runtime = current_thread();
    let clients = || redis.server.info("clients", "connected_clients").unwrap();
    let before = clients();
    runtime.block_on(async {
        let limiter = redis.limiter();
        connect(&limiter).await;
        assert_ne!(clients(), before);
        drop(limiter);
        crate::setup::eventually("the connection is closed", || clients() == before).await;
    });
}

#[tokio::test]
async fn a_task_that_only_checks_does_not_keep_the_limiter_from_connecting_again() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 1_000_000_000, 60_000)).unwrap();
    redis.server.kill();
    redis.server.restart();
    // On a runtime of one thread, without a pause: each check is ready at once.
    let started = std::time::Instant::now();
    while hit(&limiter, &http, "ann").await.source() != Source::Redis {
        assert!(started.elapsed() < PATIENT * 2, "it never came back");
    }
}
