//! Masters that are gone, and come back.

use std::time::{Duration, Instant};

use tower_ratelimit::store::StoreState;
use tower_ratelimit::{PolicyHandle, RateLimiter, Refusal, Source};

use crate::setup::{Redis, connect, eventually, fixed, hit, ms, who};
use crate::support::{Logs, RedisServer};

/// Names of clients, so many in the slots of each node.
fn clients(redis: &Redis, policy: &PolicyHandle, of_each: usize) -> Vec<(String, usize)> {
    let mut clients = Vec::new();
    for i in 0.. {
        let name = format!("client{i}");
        let owner = redis.cluster.owner(&policy.store_key(&who(&name)));
        if clients.iter().filter(|(_, node)| *node == owner).count() < of_each {
            clients.push((name, owner));
        }
        if clients.len() == 3 * of_each {
            break;
        }
    }
    clients
}

#[tokio::test]
async fn a_master_that_is_killed_makes_only_its_slots_fall_back_and_they_return_with_it() {
    let (logs, _guard) = Logs::capture();
    let mut redis = Redis::start();
    let limiter = redis.builder().deadline(ms(200)).build().unwrap();
    connect(&limiter).await;
    assert_eq!(logs.matching("rate limit store connected").len(), 3);
    let http = limiter.policy(fixed("http", 10, 60_000)).unwrap();
    let clients = clients(&redis, &http, 8);
    for (name, _) in &clients {
        for _ in 0..4 {
            assert_eq!(hit(&limiter, &http, name).await.source(), Source::Redis);
        }
    }
    redis.cluster.nodes[1].kill();
    eventually("the loss is known", || limiter.health().unwrap().state() == StoreState::Partial).await;
    assert!(!limiter.is_connected());
    let mut slowest = Duration::ZERO;
    // For longer than the nodes take to find out.
    let started = Instant::now();
    let mut used = 4;
    while used < 7 {
        for (name, node) in &clients {
            let asked = Instant::now();
            let decision = hit(&limiter, &http, name).await;
            slowest = slowest.max(asked.elapsed());
            let source = if *node == 1 { Source::Local } else { Source::Redis };
            assert_eq!((decision.source(), decision.used()), (source, used + 1), "{name} of {node}");
        }
        used += 1;
        tokio::time::sleep(ms(800)).await;
    }
    println!("slowest check with a master gone: {slowest:?}, for {:?}", started.elapsed());
    assert!(slowest < ms(200), "nobody waits: {slowest:?}");
    let lost = logs.matching("rate limit store lost");
    assert_eq!(lost.len(), 1, "{lost:?}");

    redis.cluster.nodes[1].restart();
    eventually("it is back", || limiter.is_connected()).await;
    assert_eq!(limiter.health().unwrap().state(), StoreState::Connected);
    for (name, _) in &clients {
        let decision = hit(&limiter, &http, name).await;
        assert_eq!(
            (decision.source(), decision.used()),
            (Source::Redis, 8),
            "{name}, whose counts were lost"
        );
        let key = http.store_key(&who(name));
        assert_eq!(redis.cluster.get(&key).as_deref(), Some("8"));
    }
    assert_eq!(logs.matching("rate limit store connected").len(), 4);
}

#[tokio::test]
async fn a_master_that_hangs_costs_its_own_slots_three_deadlines_and_the_others_nothing() {
    let redis = Redis::start();
    let limiter = redis.builder().deadline(ms(100)).build().unwrap();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    let clients = clients(&redis, &http, 1);
    redis.cluster.nodes[2].stop_signal();
    let (mut slow, mut others) = (0, Vec::new());
    for _ in 0..8 {
        for (name, node) in &clients {
            let asked = Instant::now();
            let decision = hit(&limiter, &http, name).await;
            let took = asked.elapsed();
            assert_eq!(decision.source() == Source::Local, *node == 2, "{name} of {node}");
            if *node == 2 {
                slow += usize::from(took >= ms(90));
            } else {
                others.push(took);
            }
        }
    }
    assert!((1..=4).contains(&slow), "{slow} checks waited");
    // Half of them, for a busy machine delays one or another.
    others.sort_unstable();
    let median = others[others.len() / 2];
    assert!(median < ms(20), "{median:?} in the middle of those whose master answers");
    redis.cluster.nodes[2].cont();
    eventually("it is back", || limiter.is_connected()).await;
}

#[tokio::test]
async fn a_cluster_that_is_down_at_start_is_told_of_once_and_found_later() {
    let (logs, _guard) = Logs::capture();
    let mut redis = Redis::start();
    for node in &mut redis.cluster.nodes {
        node.kill();
    }
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    let started = Instant::now();
    for expected in [true, true, true, false] {
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!((decision.is_allowed(), decision.source()), (expected, Source::Local));
    }
    assert!(started.elapsed() < ms(1000), "a refused connection is known at once");
    tokio::time::sleep(ms(300)).await;
    let lines = logs.matching("rate limit store");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(limiter.health().unwrap().state(), StoreState::Lost);
    for node in &mut redis.cluster.nodes {
        node.restart();
    }
    eventually("it is found", || limiter.is_connected()).await;
    assert_eq!(limiter.health().unwrap().state(), StoreState::Connected);
    let decision = hit(&limiter, &http, "ann").await;
    assert_eq!((decision.refusal(), decision.source()), (Some(Refusal::Limit), Source::Redis));
}

/// What each client has used by what Redis says.
fn counts(redis: &Redis, policy: &PolicyHandle, clients: &[(String, usize)]) -> Vec<Option<String>> {
    clients.iter().map(|(name, _)| redis.cluster.get(&policy.store_key(&who(name)))).collect()
}

async fn hit_all(limiter: &RateLimiter, policy: &PolicyHandle, clients: &[(String, usize)]) {
    for (name, _) in clients {
        assert!(hit(limiter, policy, name).await.is_allowed());
    }
}

#[tokio::test]
async fn what_was_counted_here_is_paid_to_each_master_by_batches_or_at_the_end() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 10, 60_000)).unwrap();
    let clients = clients(&redis, &http, 20);
    hit_all(&limiter, &http, &clients).await;
    // Two masters lose their data, and of their clients nobody asks again.
    for node in [0, 1] {
        redis.cluster.nodes[node].kill();
    }
    hit_all(&limiter, &http, &clients).await;
    for node in [0, 1] {
        redis.cluster.nodes[node].restart();
    }
    eventually("they are back", || limiter.is_connected()).await;
    eventually("all is paid", || {
        counts(&redis, &http, &clients).iter().all(|count| count.as_deref() == Some("2"))
    })
    .await;

    redis.cluster.nodes[2].kill();
    hit_all(&limiter, &http, &clients).await;
    let early = limiter.shutdown(ms(100)).await;
    assert!(early.is_err(), "what a missing master is owed cannot be paid");
    redis.cluster.nodes[2].restart();
    limiter.shutdown(Duration::from_secs(10)).await.unwrap();
    assert!(counts(&redis, &http, &clients).iter().all(|count| count.as_deref() == Some("3")));
}

#[tokio::test]
async fn after_a_failover_the_slots_go_to_the_replica_with_what_was_counted_meanwhile() {
    let (logs, _guard) = Logs::capture();
    let mut redis = Redis::start();
    let replica = redis.cluster.add_replica_of(0);
    let limiter = redis.builder().build().unwrap();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 10, 60_000)).unwrap();
    let clients = clients(&redis, &http, 3);
    let lost: Vec<_> = clients.iter().filter(|(_, node)| *node == 0).cloned().collect();
    hit_all(&limiter, &http, &clients).await;
    redis.cluster.nodes[0].kill();
    hit_all(&limiter, &http, &clients).await;
    eventually("the replica has taken over", || {
        replica.info("replication", "role").as_deref() == Some("master")
    })
    .await;
    let started = Instant::now();
    eventually("the limiter uses it", || limiter.is_connected()).await;
    println!("found {:?} after the failover", started.elapsed());
    assert!(started.elapsed() < ms(2500));
    assert_eq!(limiter.health().unwrap().state(), StoreState::Connected);
    for (name, _) in &lost {
        let decision = hit(&limiter, &http, name).await;
        assert_eq!((decision.source(), decision.used()), (Source::Redis, 3), "{name}");
        assert_eq!(replica.get(&http.store_key(&who(name))).as_deref(), Some("3"));
    }
    let lines = logs.matching("rate limit store");
    assert_eq!(lines.iter().filter(|line| line.contains("connected")).count(), 4, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.contains("lost")).count(), 1, "{lines:?}");
}

#[test]
fn a_limiter_goes_on_in_another_runtime_and_leaves_no_connection_behind() {
    let redis = Redis::start();
    let clients = |redis: &Redis| -> Vec<usize> {
        let list = |node: &RedisServer| node.command(&["CLIENT", "LIST"]).text().unwrap();
        let is_limiter = |line: &&str| !line.contains("name=assertions") && line.contains("flags=N");
        redis.cluster.nodes.iter().map(|node| list(node).lines().filter(is_limiter).count()).collect()
    };
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 10, 60_000)).unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for used in 1..=3 {
        runtime().block_on(async {
            connect(&limiter).await;
            let decision = hit(&limiter, &http, "ann").await;
            assert_eq!((decision.source(), decision.used()), (Source::Redis, used));
            assert_eq!(clients(&redis), [1; 3], "one connection to each");
        });
        assert!(!limiter.is_connected());
    }
    runtime().block_on(async {
        connect(&limiter).await;
        redis.cluster.nodes[0].stop_signal();
        // One of them waits on a node that is silent, and then for a late answer.
        let hung = limiter.clone();
        let _ = tokio::time::timeout(ms(10), async move {
            for i in 0..9 {
                let _ = hit(&hung, &http, &format!("client{i}")).await;
            }
        })
        .await;
        drop(limiter);
        redis.cluster.nodes[0].cont();
        eventually("all connections are closed", || clients(&redis) == [0; 3]).await;
    });
}
