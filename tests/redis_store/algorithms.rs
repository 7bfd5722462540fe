//! What each algorithm promises, on real time.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tower_ratelimit::test_util::ManualClock;
use tower_ratelimit::{Charge, Decision, Policy, PolicyHandle, Rate, RateLimiter, Refusal};

use crate::setup::{Dice, Redis, bucket, fixed, hit, hit_for, is_of_redis, ms, sliding, who};

type Of = fn(&str, u64, u64) -> Policy;

const ALL: [(&str, Of); 3] = [("fixed", fixed), ("sliding", sliding), ("bucket", bucket)];

/// Waits for the start of a sub-window of this length, on the clock of this
/// machine, which Redis shares.
async fn start_of_sub_window(window_ms: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let into =
        Duration::from_nanos(u64::try_from(now.as_nanos() % (u128::from(window_ms) * 1_000_000)).unwrap());
    sleep(ms(window_ms) - into + ms(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_con_1_parallel_requests_pass_no_algorithm_and_no_pair() {
    let redis = Redis::start();
    for (name, of) in ALL {
        let replicas = [(); 3].map(|()| {
            let limiter = redis.limiter();
            let policy = limiter.policy(of(name, 5, 3_600_000)).unwrap();
            (limiter, [policy.clone(), policy])
        });
        for round in 0..50 {
            let client = format!("client-{round}");
            let decisions = in_parallel(&replicas, &client, 1).await;
            assert_eq!(admitted(&decisions), 5, "{name}, round {round}");
            let (limiter, [policy, _]) = &replicas[0];
            assert_eq!(limiter.peek(policy, &who(&client)).await.used(), 5);
        }
    }
    let replicas = [(); 3].map(|()| {
        let limiter = redis.limiter();
        let pair =
            limiter.policies(&[bucket("narrow", 5, 3_600_000), sliding("wide", 100, 3_600_000)]).unwrap();
        (limiter, pair)
    });
    for round in 0..50 {
        let client = format!("client-{round}");
        let decisions = in_parallel(&replicas, &client, 2).await;
        assert_eq!(admitted(&decisions), 5, "a pair, round {round}");
        let (limiter, pair) = &replicas[0];
        for policy in pair {
            let used = limiter.peek(policy, &who(&client)).await.used();
            assert_eq!(used, 5, "a refused check leaves {policy:?} untouched");
        }
    }
}

/// 200 requests at once over three limiters with connections of their own.
async fn in_parallel(
    replicas: &[(RateLimiter, [PolicyHandle; 2]); 3],
    client: &str,
    policies: usize,
) -> Vec<Decision> {
    let start = Arc::new(Barrier::new(200));
    let mut requests = JoinSet::new();
    for i in 0..200 {
        let ((limiter, [one, other]), start) = (replicas[i % 3].clone(), start.clone());
        let charge = |policy| Charge::new(policy, who(client));
        let (one, other) = (charge(&one), charge(&other));
        requests.spawn(async move {
            start.wait().await;
            if policies == 1 { limiter.check([one]).await } else { limiter.check([one, other]).await }
        });
    }
    let decisions = requests.join_all().await;
    let odd = decisions.iter().find(|decision| !is_of_redis(decision));
    assert!(odd.is_none(), "{odd:?}");
    decisions
}

fn admitted(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| decision.is_allowed()).count()
}

#[tokio::test]
async fn o_win_3_refused_hits_counted_in_a_sliding_window() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let calls = limiter.policy(sliding("calls", 2, 1_000)).unwrap();
    let (started, mut admitted) = (Instant::now(), 0);
    for i in 0..50 {
        sleep_until(started + ms(100 * i)).await;
        let decision = hit(&limiter, &calls, "ann").await;
        admitted += u64::from(decision.is_allowed());
        assert!(decision.used() <= 2);
    }
    assert!((9..=12).contains(&admitted), "{admitted} in 5 s");
}

#[tokio::test]
async fn o_win_4_several_hits_in_one_tick_counted_once() {
    let redis = Redis::start();
    let replicas: Vec<_> = (0..4).map(|_| redis.limiter()).collect();
    for (name, of) in ALL {
        for round in 0..20 {
            let client = format!("client-{round}");
            let mut requests = JoinSet::new();
            for i in 0..50 {
                let (limiter, client) = (replicas[i % 4].clone(), client.clone());
                let calls = limiter.policy(of(name, 5, 3_600_000)).unwrap();
                requests.spawn(async move { hit(&limiter, &calls, &client).await });
            }
            let decisions = requests.join_all().await;
            assert_eq!(admitted(&decisions), 5, "{name}, round {round}");
        }
    }
}

#[tokio::test]
async fn o_win_5_twice_the_limit_across_a_window_edge() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let calls = limiter.policy(sliding("calls", 5, 1_000)).unwrap();
    let fixed = limiter.policy(fixed("fixed", 5, 1_000)).unwrap();
    start_of_sub_window(1_000).await;
    let started = Instant::now();
    let hits = async |policy, at: u64, n| {
        sleep_until(started + ms(at)).await;
        let mut admitted = 0;
        for _ in 0..n {
            admitted += u64::from(hit(&limiter, policy, "ann").await.is_allowed());
        }
        admitted
    };
    assert_eq!(hits(&calls, 0, 1).await, 1);
    assert_eq!(hits(&fixed, 0, 1).await, 1);
    assert_eq!(hits(&calls, 950, 4).await, 4);
    assert_eq!(hits(&fixed, 950, 4).await, 4);
    assert_eq!(hits(&calls, 1_050, 5).await, 1, "the previous count still weighs 4 of 5");
    assert_eq!(hits(&fixed, 1_050, 5).await, 5, "another window, of its own five");
}

#[tokio::test]
async fn o_win_8_bucket_key_expires_before_the_bucket_is_full() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let slow = Policy::token_bucket("slow", Rate::new(1, ms(1_000)).unwrap()).burst(1);
    let slow = limiter.policy(slow).unwrap();
    assert!(hit(&limiter, &slow, "ann").await.is_allowed());
    let started = Instant::now();
    for (at, wait) in [(200, 800), (900, 100)] {
        sleep_until(started + ms(at)).await;
        let refused = hit(&limiter, &slow, "ann").await;
        let told = refused.retry_after().expect("a wait");
        assert!(told <= ms(wait) && told > ms(wait.saturating_sub(90)), "{told:?} at {at} ms");
    }
    sleep_until(started + ms(1_020)).await;
    assert!(hit(&limiter, &slow, "ann").await.is_allowed());

    let drained = Policy::token_bucket("drained", Rate::new(1, ms(5_000)).unwrap()).burst(3);
    let drained = limiter.policy(drained).unwrap();
    let decision = hit_for(&limiter, &drained, "ann", 3).await;
    assert!(decision.is_allowed());
    let ttl = redis.server.pttl(&drained.store_key(&who("ann")));
    assert!((14_000..=15_000).contains(&ttl), "{ttl} ms until it is full");
    assert!(decision.reset_after() > ms(14_000));
}

#[tokio::test]
async fn o_win_9_clocks_of_several_app_servers_and_late_commands() {
    let redis = Redis::start();
    for (name, of) in ALL {
        let skewed = ManualClock::at(SystemTime::now() - Duration::from_secs(10));
        let replicas = [redis.limiter(), redis.builder().clock(skewed).build().unwrap()];
        let mut admitted = 0;
        for i in 0..20 {
            let limiter = &replicas[i % 2];
            let calls = limiter.policy(of(name, 4, 3_600_000)).unwrap();
            admitted += u64::from(hit(limiter, &calls, "ann").await.is_allowed());
        }
        assert_eq!(admitted, 4, "{name}: the time is that of Redis");
    }
}

#[tokio::test]
async fn o_win_10_a_limit_of_0_refuses_everything_everywhere() {
    let redis = Redis::start();
    let down = RateLimiter::builder().redis("redis://127.0.0.1:9").deadline(ms(50)).build().unwrap();
    for limiter in [redis.limiter(), down, RateLimiter::memory()] {
        let no_burst = Policy::token_bucket("no-burst", Rate::per_minute(5)).burst(0);
        let no_refill = Policy::token_bucket("no-refill", Rate::per_minute(0)).burst(5);
        let none = ALL.map(|(name, of)| of(name, 0, 60_000)).into_iter().chain([no_burst, no_refill]);
        for policy in none {
            let policy = limiter.policy(policy).unwrap();
            let refused = hit(&limiter, &policy, "ann").await;
            assert_eq!(refused.refusal(), Some(Refusal::Limit), "{policy:?}");
            assert_eq!((refused.limit(), refused.remaining()), (0, 0), "{policy:?}");
            assert_eq!(refused.retry_after(), Some(ms(60_000)), "{policy:?}");
        }
    }
}

#[tokio::test]
async fn o_win_11_the_largest_numbers_are_exact_in_every_algorithm() {
    const MAX: u64 = tower_ratelimit::MAX_LIMIT;
    let redis = Redis::start();
    let year = 31_622_400_000;
    for limiter in [redis.limiter(), RateLimiter::memory()] {
        let largest = limiter.policy(sliding("largest", MAX, year)).unwrap();
        assert_eq!(hit_for(&limiter, &largest, "ann", MAX - 1).await.remaining(), 1);
        assert_eq!(hit(&limiter, &largest, "ann").await.used(), MAX);
        assert_eq!(hit(&limiter, &largest, "ann").await.refusal(), Some(Refusal::Limit));
        assert_eq!(hit_for(&limiter, &largest, "ann", u64::MAX).await.refusal(), Some(Refusal::TooLarge));
        // No token comes back within the test.
        let burst = MAX / year;
        let full = Policy::token_bucket("full", Rate::new(1, ms(year)).unwrap()).burst(burst);
        let full = limiter.policy(full).unwrap();
        assert_eq!(hit_for(&limiter, &full, "ann", burst - 1).await.remaining(), 1);
        assert_eq!(hit(&limiter, &full, "ann").await.used(), burst);
        assert_eq!(hit(&limiter, &full, "ann").await.refusal(), Some(Refusal::Limit));
    }
}

#[tokio::test]
async fn o_win_12_keys_last_as_long_as_they_mean_anything() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let bounds = [(fixed as Of, 2_000), (sliding, 4_000), (bucket, 2_000)];
    let mut keys = Vec::new();
    for ((name, _), (of, most)) in ALL.into_iter().zip(bounds) {
        let policy = limiter.policy(of(name, 3, 2_000)).unwrap();
        for _ in 0..4 {
            let _ = hit(&limiter, &policy, "ann").await;
            let ttl = redis.server.pttl(&policy.store_key(&who("ann")));
            assert!((1..=most).contains(&ttl), "{name}: {ttl} ms");
        }
        keys.push(policy.store_key(&who("ann")));
    }
    sleep(ms(4_200)).await;
    for key in keys {
        assert_eq!(redis.server.get(&key), None, "{key}");
    }
}

#[tokio::test]
async fn o_win_13_request_refused_by_one_rule_still_spends_the_others() {
    let redis = Redis::start();
    for (name, of) in ALL {
        let limiter = redis.limiter();
        let [user, global] = limiter
            .policies(&[
                of(&format!("{name}-user"), 1, 3_600_000),
                of(&format!("{name}-global"), 10, 3_600_000),
            ])
            .unwrap();
        let ask = |who_asks: &str| {
            let charges = [Charge::new(&user, who(who_asks)), Charge::new(&global, who("all"))];
            let limiter = limiter.clone();
            async move { limiter.check(charges).await }
        };
        let mut requests = JoinSet::new();
        for _ in 0..20 {
            requests.spawn(ask("a"));
        }
        assert_eq!(admitted(&requests.join_all().await), 1, "{name}: A");
        assert!(ask("b").await.is_allowed(), "{name}: B");
        assert_eq!(limiter.peek(&global, &who("all")).await.used(), 2, "{name}");
    }
}

/// A limit that changes takes effect at once on what is counted already.
#[tokio::test]
async fn o_win_6_configuration_changed_while_keys_live() {
    let redis = Redis::start();
    for (name, of) in ALL {
        let old = redis.limiter();
        let before = old.policy(of(name, 5, 3_600_000)).unwrap();
        for _ in 0..5 {
            assert!(hit(&old, &before, "ann").await.is_allowed());
        }
        drop((old, before));
        let raised = redis.limiter();
        let policy = raised.policy(of(name, 10, 3_600_000)).unwrap();
        assert_eq!(hit(&raised, &policy, "ann").await.remaining(), 4, "{name}: five more at once");
        drop((raised, policy));
        let shortened = redis.limiter();
        let policy = shortened.policy(of(name, 5, 500)).unwrap();
        assert!(!hit(&shortened, &policy, "ann").await.is_allowed(), "{name}");
        sleep(ms(1_000)).await;
        assert!(hit(&shortened, &policy, "ann").await.is_allowed(), "{name}: within a new window");
    }
}

#[tokio::test]
async fn o_rds_14_foreign_values_are_replaced_under_every_algorithm() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    for (name, of) in ALL {
        let policy = limiter.policy(of(name, 3, 60_000)).unwrap();
        let planted: [&[&str]; 9] = [
            &["SET", "KEY", "abc"],
            &["SET", "KEY", "1:2"],
            &["SET", "KEY", "0:1:1:1"],
            &["SET", "KEY", "60000:-1:9"],
            &["SET", "KEY", "60000:1e3:9"],
            &["SET", "KEY", "99999999999999999999:1:1"],
            &["HSET", "KEY", "a", "1"],
            &["ZADD", "KEY", "1", "a"],
            &["RPUSH", "KEY", "a"],
        ];
        for (i, command) in planted.into_iter().enumerate() {
            for expires in [false, true] {
                let client = format!("client-{i}-{expires}");
                let key = policy.store_key(&who(&client));
                let command: Vec<_> =
                    command.iter().map(|arg| if *arg == "KEY" { key.as_str() } else { arg }).collect();
                redis.server.command(&command);
                if expires {
                    redis.server.command(&["PEXPIRE", &key, "9000"]);
                }
                for allowed in [true, true, true, false] {
                    let decision = hit(&limiter, &policy, &client).await;
                    assert_eq!(decision.is_allowed(), allowed, "{name} after {command:?}");
                }
                assert!(redis.server.pttl(&key) > 0);
            }
        }
    }
}

#[tokio::test]
async fn a_key_without_an_expiry_is_healed_under_every_algorithm() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    for (name, of) in ALL {
        let policy = limiter.policy(of(name, 2, 60_000).block_for(ms(90_000))).unwrap();
        let key = policy.store_key(&who("ann"));
        let _ = hit_for(&limiter, &policy, "ann", 2).await;
        redis.server.command(&["PERSIST", &key]);
        let seen = limiter.peek(&policy, &who("ann")).await;
        assert_eq!(seen.used(), 2, "{name}: the count is kept");
        assert!((1..=120_000).contains(&redis.server.pttl(&key)), "{name}");
        assert_eq!(hit(&limiter, &policy, "ann").await.refusal(), Some(Refusal::Blocked));
        redis.server.command(&["PERSIST", &key]);
        let other = redis.limiter();
        let there = other.policy(of(name, 2, 60_000).block_for(ms(90_000))).unwrap();
        assert_eq!(hit(&other, &there, "ann").await.refusal(), Some(Refusal::Blocked));
        assert!((89_000..=90_000).contains(&redis.server.pttl(&key)), "{name}: a block gets its time");
    }
}

/// Numbers in every range that a policy takes: windows that the limit does not
/// divide, and of up to a year.
fn settings(dice: &mut Dice, of: usize) -> Policy {
    const YEAR: u64 = 31_622_400_000;
    const MAX: u64 = tower_ratelimit::MAX_LIMIT;
    let mut below = |most: [u64; 3]| {
        let range = usize::try_from(dice.roll(3)).unwrap();
        1 + dice.roll(most[range])
    };
    let (window, limit) = (below([50, 100_000, YEAR]), below([9, 1_000_000, MAX]));
    let rate = Rate::new(limit, ms(window)).unwrap();
    match of {
        0 => Policy::fixed_window("fixed", rate),
        1 => Policy::sliding_window("sliding", rate),
        _ => Policy::token_bucket("bucket", rate).burst(1 + dice.roll(limit).min(MAX / window - 1)),
    }
}

#[tokio::test]
async fn retry_after_is_the_truth_for_100_settings_of_each_algorithm() {
    let mut dice = Dice::new(42);
    for of in 0..3 {
        let mut refusals = 0;
        while refusals < 100 {
            let clock = ManualClock::new();
            let limiter = RateLimiter::builder().clock(clock.clone()).build().unwrap();
            let policy = settings(&mut dice, of);
            let most = policy.max_burst().unwrap_or(policy.rate().limit());
            let window = u64::try_from(policy.rate().window().as_millis()).unwrap();
            let handle = limiter.policy(policy).unwrap();
            let check = |cost| hit_for(&limiter, &handle, "ann", cost);
            for _ in 0..6 {
                clock.advance(ms(dice.roll(window)));
                let _ = check(1 + dice.roll(most)).await;
            }
            let cost = 1 + dice.roll(most);
            let Some(wait) = check(cost).await.retry_after() else { continue };
            refusals += 1;
            let early = wait - ms(1);
            clock.advance(early);
            if !early.is_zero() {
                let again = check(cost).await;
                assert_eq!(again.retry_after(), Some(ms(1)), "{handle:?} at {cost}: {again:?}");
            }
            clock.advance(ms(1));
            assert!(check(cost).await.is_allowed(), "{handle:?} at {cost} after {wait:?}");
        }
    }
}

#[tokio::test]
async fn a_level_is_exact_when_the_window_of_a_bucket_has_changed() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let policy = limiter.policy(bucket("bucket", 1, 60_000)).unwrap();
    // Six times as much as in a sixth of the window: 246 units, of which one leaks
    // in each millisecond. At a moment to come, so that none does meanwhile.
    let key = policy.store_key(&who("ann"));
    redis.server.command(&["SET", &key, "10000:41:9000000000000", "PX", "60000"]);
    assert_eq!(limiter.peek(&policy, &who("ann")).await.reset_after(), ms(246));
}
