//! Every algorithm goes on where it was when Redis fails, and tells it when it is
//! back.

use tower_ratelimit::{Policy, PolicyHandle, RateLimiter, Refusal, Source};

use crate::setup::{Dice, Redis, bucket, builder, connect, eventually, fixed, hit, ms, sliding, who};
use crate::support::{Mode, Proxy};

type Of = fn(&str, u64, u64) -> Policy;

/// No token comes back within a test, and no sub-window ends.
const MONTH: u64 = 30 * 86_400_000;

const ALL: [Of; 3] = [fixed, sliding, bucket];

/// Asks until refused, and answers how many were admitted.
async fn drain(limiter: &RateLimiter, policy: &PolicyHandle, name: &str) -> u64 {
    let mut admitted = 0;
    while hit(limiter, policy, name).await.is_allowed() {
        admitted += 1;
        assert!(admitted < 1_000);
    }
    admitted
}

async fn back_on_redis(limiter: &RateLimiter) {
    eventually("the limiter is back on Redis", || limiter.is_connected()).await;
}

/// What a limiter that has seen nothing reads in Redis.
async fn in_redis(redis: &Redis, policy: Policy, name: &str) -> u64 {
    let limiter = redis.builder().build().unwrap();
    let policy = limiter.policy(policy).unwrap();
    let seen = limiter.peek(&policy, &who(name)).await;
    assert_eq!(seen.source(), Source::Redis);
    seen.used()
}

#[tokio::test]
async fn after_80_of_100_and_a_sigkill_20_more_are_admitted_and_an_empty_redis_is_told() {
    for of in ALL {
        let mut redis = Redis::start();
        let limiter = redis.builder().build().unwrap();
        let http = limiter.policy(of("http", 100, MONTH)).unwrap();
        let login = limiter.policy(of("login", 1, MONTH).block_for(ms(600_000))).unwrap();
        for _ in 0..80 {
            assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
        }
        for _ in 0..30 {
            assert!(hit(&limiter, &http, "bob").await.is_allowed());
        }
        for _ in 0..2 {
            let _ = hit(&limiter, &login, "ann").await;
        }
        redis.server.kill();
        assert_eq!(drain(&limiter, &http, "ann").await, 20);
        assert_eq!(hit(&limiter, &login, "ann").await.refusal(), Some(Refusal::Blocked));
        redis.server.restart();
        back_on_redis(&limiter).await;
        let next = hit(&limiter, &http, "ann").await;
        assert_eq!((next.refusal(), next.source(), next.used()), (Some(Refusal::Limit), Source::Redis, 100));
        let bob = http.store_key(&who("bob"));
        eventually("who asks no more is paid for as well", || redis.server.get(&bob).is_some()).await;
        assert_eq!(in_redis(&redis, of("http", 100, MONTH), "bob").await, 30);
        assert_eq!(in_redis(&redis, of("http", 100, MONTH), "ann").await, 100);
        let keys = redis.keys();
        assert!(keys.iter().all(|key| redis.server.pttl(key) > 0), "{keys:?}");
    }
}

#[tokio::test]
async fn o_fb_4_a_stopped_redis_that_goes_on_has_counted_what_was_admitted() {
    for of in ALL {
        for (limit, used) in [(6, 5), (10, 5), (40, 5)] {
            let redis = Redis::start();
            let limiter = redis.builder().deadline(ms(50)).build().unwrap();
            connect(&limiter).await;
            let http = limiter.policy(of("http", limit, MONTH)).unwrap();
            for _ in 0..used {
                assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
            }
            redis.server.stop_signal();
            let mut admitted = used;
            for _ in 0..8 {
                let decision = hit(&limiter, &http, "ann").await;
                assert_eq!(decision.source(), Source::Local);
                admitted += u64::from(decision.is_allowed());
            }
            redis.server.cont();
            back_on_redis(&limiter).await;
            admitted += drain(&limiter, &http, "ann").await;
            assert_eq!(admitted, limit, "in total exactly the limit");
            assert_eq!(in_redis(&redis, of("http", limit, MONTH), "ann").await, limit);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_that_is_cut_and_sent_again_counts_once() {
    let all = [(fixed as Of, 7), (sliding, 11), (bucket, 13)].map(|(of, seed)| tokio::spawn(cut(of, seed)));
    for one in all {
        one.await.unwrap();
    }
}

/// The payment rides in front of checks whose answers do not come, or come in
/// part.
async fn cut(of: Of, seed: u64) {
    let mut dice = Dice::new(seed);
    for round in 0..20 {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.server.addr()).await;
        let limiter = builder(proxy.url()).namespace(&redis.namespace).deadline(ms(100)).build().unwrap();
        connect(&limiter).await;
        let http = limiter.policy(of("http", 100, MONTH)).unwrap();
        let mut admitted = 0;
        for _ in 0..5 {
            admitted += u64::from(hit(&limiter, &http, "ann").await.is_allowed());
        }
        proxy.set_mode(Mode::RefuseNew);
        proxy.drop_connections();
        eventually("the connection is lost", || !limiter.is_connected()).await;
        for _ in 0..7 {
            admitted += u64::from(hit(&limiter, &http, "ann").await.is_allowed());
        }
        proxy.set_mode(Mode::Forward);
        back_on_redis(&limiter).await;
        proxy.set_mode(Mode::CutReplyAfter(usize::try_from(dice.roll(12)).unwrap()));
        for _ in 0..3 {
            admitted += u64::from(hit(&limiter, &http, "ann").await.is_allowed());
            tokio::time::sleep(ms(dice.roll(40))).await;
        }
        proxy.set_mode(Mode::Forward);
        back_on_redis(&limiter).await;
        let last = loop {
            let decision = hit(&limiter, &http, "ann").await;
            admitted += 1;
            if decision.source() == Source::Redis {
                break decision;
            }
            tokio::time::sleep(ms(20)).await;
        };
        assert_eq!(last.used(), admitted, "round {round}: counted once and not twice");
        assert_eq!(in_redis(&redis, of("http", 100, MONTH), "ann").await, admitted);
    }
}

#[tokio::test]
async fn o_fb_1_four_replicas_with_a_quarter_each_admit_the_limit() {
    for of in ALL {
        let mut redis = Redis::start();
        let replicas: Vec<_> =
            (0..4).map(|_| redis.builder().fallback_share(1, 4).build().unwrap()).collect();
        let policies: Vec<_> =
            replicas.iter().map(|replica| replica.policy(of("http", 100, MONTH)).unwrap()).collect();
        for i in 0..80 {
            let decision = hit(&replicas[i % 4], &policies[i % 4], "ann").await;
            assert_eq!(decision.source(), Source::Redis);
        }
        redis.server.kill();
        let (mut more, mut fresh) = (0, 0);
        for (replica, policy) in replicas.iter().zip(&policies) {
            more += drain(replica, policy, "ann").await;
            fresh += drain(replica, policy, "newcomer").await;
        }
        assert!((20..=24).contains(&more), "{more} more after 80 of 100");
        assert_eq!(fresh, 100, "what starts meanwhile");
    }
}
