//! Blocks in Redis: a value of their own, an end that is fixed.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_ratelimit::test_util::ManualClock;
use tower_ratelimit::{BuildError, PolicyError, RateLimiter, Refusal};

use crate::setup::{Redis, fixed, hit, ms, who};

const BLOCK: &str = "9100000000000000000";

#[tokio::test]
async fn o_blk_1_tries_during_a_block_extend_it() {
    let redis = Redis::start();
    let policy = fixed("login", 2, 500).block_for(ms(1000));
    let limiter = redis.limiter();
    let login = limiter.policy(policy.clone()).unwrap();
    for _ in 0..2 {
        assert!(hit(&limiter, &login, "ann").await.is_allowed());
    }
    let started = Instant::now();
    assert!(!hit(&limiter, &login, "ann").await.is_allowed());
    let key = login.store_key(&who("ann"));
    assert_eq!(redis.server.get(&key).as_deref(), Some(BLOCK));
    let mut left = redis.server.pttl(&key);
    assert!((1..=1000).contains(&left), "{left}");
    let mut seconds = Vec::new();
    loop {
        sleep(ms(100)).await;
        // A new replica for each try, so that each reaches Redis.
        let replica = redis.limiter();
        let login = replica.policy(policy.clone()).unwrap();
        let decision = hit(&replica, &login, "ann").await;
        if decision.is_allowed() {
            break;
        }
        seconds.extend(decision.retry_after_seconds());
        let now_left = redis.server.pttl(&key);
        assert!(now_left < left, "{now_left} ms left after {left}");
        left = now_left;
    }
    let over = started.elapsed();
    assert!(over >= ms(1000) && over < ms(1300), "the block ended after {over:?}");
    assert!(seconds.iter().all(|&second| second == 1), "{seconds:?}");
    assert!(seconds.len() >= 5);
}

#[tokio::test]
async fn o_blk_1_tries_during_a_block_extend_it_in_memory() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().clock(clock.clone()).build().unwrap();
    let login = limiter.policy(fixed("login", 2, 1000).block_for(ms(2000))).unwrap();
    for allowed in [true, true, false] {
        assert_eq!(hit(&limiter, &login, "ann").await.is_allowed(), allowed);
    }
    for tries in 1..10 {
        clock.advance(ms(200));
        let refused = hit(&limiter, &login, "ann").await;
        assert_eq!(refused.retry_after(), Some(ms(2000 - 200 * tries)));
    }
    clock.advance(ms(200));
    assert!(hit(&limiter, &login, "ann").await.is_allowed());
}

#[tokio::test]
async fn o_blk_2_after_the_block_one_try_and_blocked_again() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let login = limiter.policy(fixed("login", 3, 10_000).block_for(ms(300))).unwrap();
    let key = login.store_key(&who("ann"));
    for round in 0..2 {
        assert_eq!(redis.server.command(&["EXISTS", &key]).int(), 0, "round {round}");
        for left in [2, 1, 0] {
            let decision = hit(&limiter, &login, "ann").await;
            assert_eq!((decision.is_allowed(), decision.remaining()), (true, left));
        }
        let refused = hit(&limiter, &login, "ann").await;
        assert_eq!((refused.refusal(), refused.remaining()), (Some(Refusal::Blocked), 0));
        sleep(ms(330)).await;
    }
}

#[tokio::test]
async fn o_blk_3_very_long_block_lasts_a_millisecond() {
    let redis = Redis::start();
    let longest = Duration::from_secs(366 * 86_400);
    let shared = redis.limiter();
    let local = RateLimiter::memory();
    let mut blocked = Vec::new();
    for limiter in [&shared, &local] {
        let login = limiter.policy(fixed("login", 1, 1000).block_for(longest)).unwrap();
        assert!(hit(limiter, &login, "ann").await.is_allowed());
        assert!(!hit(limiter, &login, "ann").await.is_allowed());
        blocked.push((limiter, login));
    }
    assert!(redis.server.pttl(&blocked[0].1.store_key(&who("ann"))) > 31_000_000_000);
    // Until long after the window.
    sleep(ms(1100)).await;
    for (limiter, login) in blocked {
        let refused = hit(limiter, &login, "ann").await;
        assert_eq!(refused.refusal(), Some(Refusal::Blocked));
        assert!((31_622_300..=31_622_400).contains(&refused.retry_after_seconds().unwrap()));

        let too_long = Duration::from_secs(1_000_000_000);
        let error = limiter.policy(fixed("login", 1, 1000).block_for(too_long)).unwrap_err();
        assert!(matches!(&error, BuildError::Policy(PolicyError::BlockFor { .. })), "{error:?}");
        assert!(error.to_string().starts_with("block_for: 1000000000s"), "{error}");
    }
}

#[tokio::test]
async fn a_block_found_without_ttl_gets_its_length_or_the_window() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let login = limiter.policy(fixed("login", 1, 1000).block_for(ms(90_000))).unwrap();
    let http = limiter.policy(fixed("http", 1, 1000)).unwrap();
    for (policy, longest) in [(login, 90_000), (http, 1000)] {
        let key = policy.store_key(&who("ann"));
        redis.server.command(&["SET", &key, BLOCK]);
        let refused = hit(&limiter, &policy, "ann").await;
        assert_eq!(refused.refusal(), Some(Refusal::Blocked));
        let left = redis.server.pttl(&key);
        assert!((longest - 900..=longest).contains(&left), "{left} of {longest}");
        assert_eq!(redis.server.get(&key).as_deref(), Some(BLOCK));
    }
}

#[tokio::test]
async fn o_fb_5_a_block_holds_on_every_replica_and_outlives_the_one_that_started_it() {
    let redis = Redis::start();
    let policy = || fixed("login", 3, 60_000).block_for(ms(60_000));
    {
        let first = redis.limiter();
        let login = first.policy(policy()).unwrap();
        for _ in 0..4 {
            let _ = hit(&first, &login, "ann").await;
        }
    }
    let second = redis.limiter();
    let login = second.policy(policy()).unwrap();
    let refused = hit(&second, &login, "ann").await;
    assert_eq!(refused.refusal(), Some(Refusal::Blocked));
    assert!(refused.retry_after().unwrap() > ms(50_000));
}
