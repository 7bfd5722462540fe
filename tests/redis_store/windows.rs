//! Windows and counters over real time.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tower_ratelimit::test_util::ManualClock;
use tower_ratelimit::{Charge, MAX_LIMIT, PolicyError, Rate, RateLimiter, Refusal, Source};

use crate::setup::{Dice, Redis, builder, fixed, hit, hit_for, ms, who};
use crate::support::free_port;

const DAY_MS: &str = "86400000";

#[tokio::test]
async fn o_win_1_key_without_ttl_locks_a_client_out_for_good() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 3, 600)).unwrap();
    assert!(hit(&limiter, &http, "ann").await.is_allowed());

    let key = http.store_key(&who("ann"));
    redis.server.command(&["SET", &key, "7"]);
    assert_eq!(redis.server.pttl(&key), -1);
    let refused = hit(&limiter, &http, "ann").await;
    assert_eq!((refused.refusal(), refused.source()), (Some(Refusal::Limit), Source::Redis));
    assert_eq!(refused.used(), 7, "the count is kept");
    let left = redis.server.pttl(&key);
    assert!((1..=600).contains(&left), "{left}");

    sleep(ms(650)).await;
    let admitted = hit(&limiter, &http, "ann").await;
    assert!(admitted.is_allowed());
    assert_eq!(admitted.remaining(), 2);
}

#[tokio::test]
async fn o_win_1_a_count_below_the_limit_is_kept_when_its_key_is_healed() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    let key = http.store_key(&who("ann"));
    redis.server.command(&["SET", &key, "2"]);
    let third = hit(&limiter, &http, "ann").await;
    assert_eq!((third.is_allowed(), third.used()), (true, 3));
    assert_eq!(redis.server.get(&key).as_deref(), Some("3"));
    assert!((1..=60_000).contains(&redis.server.pttl(&key)));

    let key = http.store_key(&who("bob"));
    redis.server.command(&["SET", &key, "1"]);
    assert_eq!(limiter.peek(&http, &who("bob")).await.used(), 1);
    assert!((1..=60_000).contains(&redis.server.pttl(&key)), "a look heals it too");
}

#[tokio::test]
async fn o_win_1_no_key_is_without_ttl_after_ten_thousand_mixed_requests() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    let burst = limiter.policy(fixed("burst", 3, 20)).unwrap();
    let [login, login_ip] = limiter
        .policies(&[fixed("login", 2, 60_000).block_for(ms(90_000)), fixed("login-ip", 30, 60_000)])
        .unwrap();
    let mut tasks = JoinSet::new();
    for worker in 0..50 {
        let (limiter, http, burst) = (limiter.clone(), http.clone(), burst.clone());
        let (login, login_ip) = (login.clone(), login_ip.clone());
        tasks.spawn(async move {
            let mut dice = Dice::new(worker);
            for _ in 0..200 {
                let name = who(&format!("client-{}", dice.roll(150)));
                let cost = dice.roll(4);
                let _ = match dice.roll(5) {
                    0 | 1 => limiter.check([Charge::new(&http, name).cost(cost)]).await,
                    2 => limiter.check([Charge::new(&burst, name).cost(cost)]).await,
                    3 => limiter.peek(&login, &name).await,
                    _ => limiter.check([Charge::new(&login, name), Charge::new(&login_ip, name)]).await,
                };
            }
        });
    }
    tasks.join_all().await;
    let keys = redis.keys();
    assert!(keys.len() > 300, "{}", keys.len());
    for key in keys {
        // -2: ended since.
        assert_ne!(redis.server.pttl(&key), -1, "{key}");
    }
}

#[tokio::test]
async fn o_win_2_each_hit_renews_the_expiry() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 2, 600)).unwrap();
    let key = http.store_key(&who("ann"));
    let mut ticks = tokio::time::interval(ms(250));
    let (mut admitted, mut refused_in_a_row, mut last_left) = (0, 0, 0);
    for _ in 0..12 {
        ticks.tick().await;
        let decision = hit(&limiter, &http, "ann").await;
        let left = redis.server.pttl(&key);
        if decision.is_allowed() && decision.used() == 1 {
            last_left = i64::MAX;
        }
        assert!(left < last_left, "{left} ms left after {last_left}");
        last_left = left;
        admitted += u32::from(decision.is_allowed());
        refused_in_a_row = if decision.is_allowed() { 0 } else { refused_in_a_row + 1 };
        assert!(refused_in_a_row < 4);
    }
    assert!(admitted >= 8, "{admitted} of 12");
}

#[tokio::test]
async fn o_win_2_each_hit_renews_the_expiry_in_memory() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().clock(clock.clone()).build().unwrap();
    let http = limiter.policy(fixed("http", 2, 600)).unwrap();
    for i in 0..20 {
        assert_eq!(hit(&limiter, &http, "ann").await.is_allowed(), i % 3 != 2, "request {i}");
        clock.advance(ms(250));
    }
}

#[tokio::test]
async fn o_win_6_configuration_changed_while_keys_live() {
    let redis = Redis::start();
    {
        let a = redis.limiter();
        let http = a.policy(fixed("http", 5, 3_600_000)).unwrap();
        for _ in 0..5 {
            assert!(hit(&a, &http, "ann").await.is_allowed());
            assert!(hit(&a, &http, "bob").await.is_allowed());
        }
    }
    {
        let shorter = redis.limiter();
        let http = shorter.policy(fixed("http", 5, 400)).unwrap();
        assert!(!hit(&shorter, &http, "ann").await.is_allowed());
        let left = redis.server.pttl(&http.store_key(&who("ann")));
        assert!((1..=400).contains(&left), "{left}");
        sleep(ms(450)).await;
        assert!(hit(&shorter, &http, "ann").await.is_allowed());
    }
    let raised = redis.limiter();
    let http = raised.policy(fixed("http", 10, 3_600_000)).unwrap();
    let more = hit(&raised, &http, "bob").await;
    assert_eq!((more.is_allowed(), more.remaining()), (true, 4));
}

#[tokio::test]
async fn a_counter_is_capped_to_the_window_and_a_block_is_not() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    let counter = http.store_key(&who("ann"));
    redis.server.command(&["SET", &counter, "1", "PX", DAY_MS]);
    assert_eq!(hit(&limiter, &http, "ann").await.used(), 2);
    assert!((1..=60_000).contains(&redis.server.pttl(&counter)));

    // One that an operator has set holds on any policy.
    let block = http.store_key(&who("bob"));
    redis.server.command(&["SET", &block, "9100000000000000000", "PX", DAY_MS]);
    let blocked = hit(&limiter, &http, "bob").await;
    assert_eq!(blocked.refusal(), Some(Refusal::Blocked));
    assert!(blocked.blocked_for().unwrap() > Duration::from_secs(86_000));
    assert!(redis.server.pttl(&block) > 86_000_000);
}

#[tokio::test]
async fn a_key_whose_ttl_reads_0_has_ended() {
    const CHECK: &str = concat!(
        include_str!("../../src/store/redis/lua/values.lua"),
        include_str!("../../src/store/redis/lua/fixed_window.lua"),
        include_str!("../../src/store/redis/lua/check.lua"),
    );
    const FIXED_CHARGES: &str = include_str!("../../src/store/redis/lua/fixed_charges.lua");
    let redis = Redis::start();
    for script in [CHECK, FIXED_CHARGES] {
        // Within one script a key can be read past its end.
        let past_its_end = format!(
            "local function body()\n{script}\nend
             redis.call('SET', KEYS[1], ARGV[9], 'PX', 2)
             repeat until redis.call('PTTL', KEYS[1]) == 0
             local stale = redis.call('GET', KEYS[1])
             local before = body()
             return {{ stale, before[1], before[3], redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]) }}"
        );
        for stale in ["3", "9100000000000000000"] {
            let rule = ["1", "0", "fc", "3", "60000", "90000", "1", "1"];
            let args: Vec<&str> =
                ["EVAL", &past_its_end, "1", "http:rl:ann"].into_iter().chain(rule).chain([stale]).collect();
            let reply = redis.server.command(&args).array();
            assert_eq!(reply[0].clone().text().as_deref(), Some(stale), "it could still be read");
            assert_eq!((reply[1].clone().int(), reply[2].clone().int()), (0, 0), "nothing ran before");
            assert_eq!(reply[3].clone().text().as_deref(), Some("1"), "a window of its own has started");
            assert!((59_000..=60_000).contains(&reply[4].clone().int()), "{reply:?}");
        }
    }
}

#[tokio::test]
async fn o_win_7_window_shorter_than_a_second() {
    let redis = Redis::start();
    for limiter in [redis.limiter(), RateLimiter::memory()] {
        let http = limiter.policy(fixed("http", 2, 250)).unwrap();
        for allowed in [true, true, false] {
            assert_eq!(hit(&limiter, &http, "ann").await.is_allowed(), allowed);
        }
        sleep(ms(260)).await;
        assert!(hit(&limiter, &http, "ann").await.is_allowed());

        let shortest = limiter.policy(fixed("shortest", 1, 1)).unwrap();
        for _ in 0..3 {
            assert!(hit(&limiter, &shortest, "ann").await.is_allowed());
            sleep(ms(3)).await;
        }
    }
    for window in [Duration::ZERO, Duration::from_micros(999)] {
        assert_eq!(Rate::new(2, window), Err(PolicyError::Window { window }));
    }
}

#[tokio::test]
async fn o_win_10_limit_0() {
    let redis = Redis::start();
    let down = builder(format!("redis://127.0.0.1:{}", free_port())).build().unwrap();
    for (limiter, source) in
        [(redis.limiter(), Source::Redis), (down, Source::Local), (RateLimiter::memory(), Source::Local)]
    {
        let closed = limiter.policy(fixed("closed", 0, 60_000)).unwrap();
        for _ in 0..3 {
            let refused = hit(&limiter, &closed, "ann").await;
            assert_eq!((refused.refusal(), refused.source()), (Some(Refusal::Limit), source));
            assert_eq!((refused.limit(), refused.remaining()), (0, 0));
            assert_eq!(refused.retry_after_seconds(), Some(60));
        }
    }
    assert!(redis.keys().is_empty());
}

#[tokio::test]
async fn o_win_11_very_large_numbers() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let year = Duration::from_secs(365 * 86_400);
    let rate = Rate::new(MAX_LIMIT, year).unwrap();
    let http = limiter.policy(tower_ratelimit::Policy::fixed_window("http", rate)).unwrap();
    let key = http.store_key(&who("ann"));

    let first = hit(&limiter, &http, "ann").await;
    assert_eq!((first.limit(), first.remaining()), (9_007_199_254_740_991, 9_007_199_254_740_990));
    assert!(first.reset_after() > year - Duration::from_secs(60));
    assert!((31_535_900_000..=31_536_000_000).contains(&redis.server.pttl(&key)));
    assert!(hit_for(&limiter, &http, "ann", 999_999_999_999_999).await.is_allowed());
    assert_eq!(redis.server.get(&key).as_deref(), Some("1000000000000000"));
    assert!(hit_for(&limiter, &http, "ann", MAX_LIMIT - 1_000_000_000_000_000).await.is_allowed());
    assert_eq!(redis.server.get(&key).as_deref(), Some("9007199254740991"), "all digits, no exponent");
    assert_eq!(hit(&limiter, &http, "ann").await.refusal(), Some(Refusal::Limit));
    for cost in [MAX_LIMIT + 1, u64::MAX] {
        assert_eq!(hit_for(&limiter, &http, "bob", cost).await.refusal(), Some(Refusal::TooLarge));
    }

    // What another program has counted beyond that is over the limit, not an error.
    for count in ["9007199254740992", "9223372036854775807", "9099999999999999999"] {
        redis.server.command(&["SET", &http.store_key(&who(count)), count, "PX", DAY_MS]);
        let refused = hit(&limiter, &http, count).await;
        assert_eq!((refused.is_allowed(), refused.source()), (false, Source::Redis), "{count}");
    }
    assert!(Rate::new(1, Duration::MAX).is_err());
}

#[tokio::test]
async fn o_win_12_milliseconds_given_to_expire() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 3, 300)).unwrap();
    let login = limiter.policy(fixed("login", 1, 100).block_for(ms(350))).unwrap();
    let (window, block) = (http.store_key(&who("ann")), login.store_key(&who("ann")));
    let started = Instant::now();
    // After each hit: the next one would cap what the last one got wrong.
    for longest in [100, 350] {
        let _ = hit(&limiter, &http, "ann").await;
        assert!((1..=300).contains(&redis.server.pttl(&window)));
        let _ = hit(&limiter, &login, "ann").await;
        assert!((1..=longest).contains(&redis.server.pttl(&block)));
    }
    sleep(ms(630).saturating_sub(started.elapsed())).await;
    assert_eq!(redis.server.command(&["EXISTS", &window, &block]).int(), 0);
}
