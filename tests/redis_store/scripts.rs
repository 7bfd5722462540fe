//! The script on the server: lost and sent again, one text for all.

use tokio::task::JoinSet;
use tower_ratelimit::{Charge, Source};

use crate::setup::{Redis, connect, eventually, fixed, hit, ms, who};

#[tokio::test]
async fn o_rds_5_script_cache_emptied() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 20, 60_000)).unwrap();
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
    redis.server.command(&["SCRIPT", "FLUSH"]);
    let second = hit(&limiter, &http, "ann").await;
    assert_eq!((second.source(), second.used()), (Source::Redis, 2));

    redis.server.command(&["SCRIPT", "FLUSH"]);
    let loads = redis.server.commandstat("eval");
    let mut burst = JoinSet::new();
    for _ in 0..50 {
        let (limiter, http) = (limiter.clone(), http.clone());
        burst.spawn(async move { hit(&limiter, &http, "ann").await });
    }
    let decisions = burst.join_all().await;
    assert!(decisions.iter().all(|decision| decision.source() == Source::Redis));
    assert_eq!(decisions.iter().filter(|decision| decision.is_allowed()).count(), 18);
    assert_eq!(redis.server.get(&http.store_key(&who("ann"))).as_deref(), Some("20"));
    let loads = redis.server.commandstat("eval") - loads;
    assert!((1..=5).contains(&loads), "the script was sent {loads} times");
    assert_eq!(redis.server.commandstat("script|load"), 0);

    // A server that has restarted knows no script either.
    redis.server.restart();
    let _ = hit(&limiter, &http, "kicks the dead connection").await;
    eventually("the limiter is back", || limiter.is_connected()).await;
    let first = hit(&limiter, &http, "bob").await;
    assert_eq!((first.source(), first.used()), (Source::Redis, 1));
    assert!((1..=2).contains(&redis.server.commandstat("eval")));
}

#[tokio::test]
async fn a_script_flushed_again_and_again_does_not_disturb_anybody() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 1000, 60_000)).unwrap();
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let (limiter, http) = (limiter.clone(), http.clone());
        callers.spawn(async move {
            for _ in 0..30 {
                assert!(hit(&limiter, &http, "ann").await.is_allowed());
            }
        });
    }
    while !callers.is_empty() {
        redis.server.command(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(ms(1)).await;
        while let Some(done) = callers.try_join_next() {
            done.unwrap();
        }
    }
    assert_eq!(redis.server.get(&http.store_key(&who("ann"))).as_deref(), Some("300"), "each counted once");
}

#[tokio::test]
async fn o_rds_11_one_cached_script_per_distinct_value() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    connect(&limiter).await;
    let before: u32 = redis.server.info("memory", "number_of_cached_scripts").unwrap().parse().unwrap();
    let policies: Vec<_> = (0..20)
        .map(|i| limiter.policy(fixed(&format!("p{i}"), 10 + i, 60_000 + 1000 * i)).unwrap())
        .collect();
    let mut workers = JoinSet::new();
    for worker in 0..50 {
        let (limiter, policies) = (limiter.clone(), policies.clone());
        workers.spawn(async move {
            for i in 0..100 {
                let n = worker * 100 + i;
                let charge = Charge::new(&policies[n % 20], who(&format!("client-{n}")));
                assert!(limiter.check([charge.cost(1 + n as u64 % 5)]).await.is_allowed());
            }
        });
    }
    workers.join_all().await;
    assert_eq!(redis.keys().len(), 5000);
    let after: u32 = redis.server.info("memory", "number_of_cached_scripts").unwrap().parse().unwrap();
    assert_eq!(before, after);
    assert_eq!(after, 2, "the general one, and one for charges of fixed windows");
}

#[tokio::test]
async fn o_rds_12_scan_or_keys_in_the_request_path() {
    let redis = Redis::start();
    let fill = "for i = 1, 100000 do redis.call('SET', 'foreign:' .. i, i) end return 1";
    assert_eq!(redis.server.command(&["EVAL", fill, "0"]).int(), 1);
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    let login = limiter.policy(fixed("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    for allowed in [true, true, true, false] {
        assert_eq!(hit(&limiter, &http, "ann").await.is_allowed(), allowed);
    }
    for allowed in [true, false] {
        assert_eq!(hit(&limiter, &login, "ann").await.is_allowed(), allowed);
    }
    assert_eq!(redis.server.command(&["DBSIZE"]).int(), 100_002);
    for policy in [&http, &login] {
        limiter.reset(policy, &who("ann")).await.unwrap();
        assert!(hit(&limiter, policy, "ann").await.is_allowed(), "count and block are gone");
        limiter.reset(policy, &who("ann")).await.unwrap();
    }
    assert_eq!(redis.server.command(&["DBSIZE"]).int(), 100_000, "by their exact names, and only those");
    for command in ["scan", "keys", "flushdb", "flushall"] {
        assert_eq!(redis.server.commandstat(command), 0, "{command}");
    }
}
