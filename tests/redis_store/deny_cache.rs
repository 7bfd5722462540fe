//! A refusal that Redis gave is repeated here until it ends, at no cost.

use tokio::time::sleep;
use tower_ratelimit::{Charge, Refusal, Source};

use crate::setup::{Redis, fixed, hit, hit_for, ms, who};

fn sent(redis: &Redis) -> u64 {
    redis.server.commandstat("evalsha") + redis.server.commandstat("eval")
}

#[tokio::test]
async fn a_repeated_refusal_makes_no_redis_call_and_ends_when_it_ends() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 1, 500)).unwrap();
    let login = limiter.policy(fixed("login", 1, 60_000).block_for(ms(500))).unwrap();
    for policy in [http, login] {
        assert!(hit(&limiter, &policy, "ann").await.is_allowed());
        let first = hit(&limiter, &policy, "ann").await;
        assert_eq!((first.is_allowed(), first.source()), (false, Source::Redis));
        let before = sent(&redis);
        let mut wait = first.retry_after().unwrap();
        for _ in 0..20 {
            let again = hit(&limiter, &policy, "ann").await;
            assert_eq!((again.refusal(), again.source()), (first.refusal(), Source::DenyCache));
            assert_eq!((again.limit(), again.used(), again.remaining()), (1, 1, 0));
            assert!(again.retry_after().unwrap() <= wait);
            wait = again.retry_after().unwrap();
        }
        assert_eq!(sent(&redis), before);
        sleep(wait).await;
        let after = hit(&limiter, &policy, "ann").await;
        assert_eq!((after.is_allowed(), after.source()), (true, Source::Redis), "{policy:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_not_repeated_for_a_smaller_cost_that_fits() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    assert!(hit_for(&limiter, &http, "ann", 4).await.is_allowed());
    assert_eq!(hit_for(&limiter, &http, "ann", 3).await.source(), Source::Redis);
    let large = hit_for(&limiter, &http, "ann", 2).await;
    assert_eq!((large.refusal(), large.source()), (Some(Refusal::Limit), Source::DenyCache));
    let small = hit_for(&limiter, &http, "ann", 1).await;
    assert_eq!((small.is_allowed(), small.used(), small.source()), (true, 5, Source::Redis));
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis, "a new refusal is Redis's to give");
    assert_eq!(hit_for(&limiter, &http, "ann", 0).await.source(), Source::DenyCache);
}

#[tokio::test]
async fn a_cost_that_is_too_large_is_not_a_refusal_to_repeat() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    assert!(hit(&limiter, &http, "ann").await.is_allowed());
    for _ in 0..2 {
        assert_eq!(hit_for(&limiter, &http, "ann", 6).await.refusal(), Some(Refusal::TooLarge));
    }
    assert_eq!(hit(&limiter, &http, "ann").await.used(), 2);
}

#[tokio::test]
async fn each_refusal_that_may_start_a_block_is_redis_s_to_give() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let login = limiter.policy(fixed("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    assert!(hit(&limiter, &login, "ann").await.is_allowed());
    // Refused without a block: what comes next must start it.
    assert_eq!(hit_for(&limiter, &login, "ann", 0).await.refusal(), Some(Refusal::Limit));
    let blocked = hit(&limiter, &login, "ann").await;
    assert_eq!((blocked.refusal(), blocked.source()), (Some(Refusal::Blocked), Source::Redis));
    assert!(redis.server.pttl(&login.store_key(&who("ann"))) > 60_000);
}

#[tokio::test]
async fn a_reset_through_the_limiter_clears_it() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 1, 60_000)).unwrap();
    let login = limiter.policy(fixed("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    for policy in [http, login] {
        for source in [Source::Redis, Source::Redis, Source::DenyCache] {
            assert_eq!(hit(&limiter, &policy, "ann").await.source(), source);
        }
        limiter.reset(&policy, &who("ann")).await.unwrap();
        assert_eq!(redis.server.command(&["EXISTS", &policy.store_key(&who("ann"))]).int(), 0);
        let after = hit(&limiter, &policy, "ann").await;
        assert_eq!((after.is_allowed(), after.source()), (true, Source::Redis));
    }
}

#[tokio::test]
async fn several_policies_at_once_always_ask_redis() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let pair = limiter.policies(&[fixed("a", 1, 60_000), fixed("b", 5, 60_000)]).unwrap();
    for allowed in [true, false, false] {
        let decision = limiter.check(pair.each_ref().map(|policy| Charge::new(policy, who("ann")))).await;
        assert_eq!((decision.is_allowed(), decision.source()), (allowed, Source::Redis));
    }
}
