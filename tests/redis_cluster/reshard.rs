//! Slots that move while clients ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;
use tower_ratelimit::Source;

use crate::setup::{Redis, connect, fixed, hit, ms, who};
use crate::support::own_slots;

/// Reached while slots move: some are refused, some are not yet.
const LIMIT: u64 = 20;
const CLIENTS: usize = 120;
const TASKS: usize = 8;
const SLOTS: u16 = 1000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resharding_1000_slots_under_load_admits_nothing_twice_and_loses_nothing() {
    let redis = Redis::start();
    let namespace = tower_ratelimit::test_util::namespace();
    let replicas: Vec<_> = (0..2).map(|_| redis.builder().namespace(&namespace).build().unwrap()).collect();
    let mut policies = Vec::new();
    for replica in &replicas {
        connect(replica).await;
        policies.push(replica.policy(fixed("http", LIMIT, 120_000)).unwrap());
    }
    // Two thirds of them in the slots that move: the first ones of their node.
    let (start, _) = own_slots(&redis.cluster.nodes[0])[0];
    let moves = |name: &str| {
        let slot = redis.cluster.slot(&policies[0].store_key(&who(name)));
        (start..start + i64::from(SLOTS)).contains(&slot)
    };
    let mut names = Vec::new();
    for i in 0.. {
        let name = format!("client{i}");
        let wanted = if moves(&name) { CLIENTS * 2 / 3 } else { CLIENTS - CLIENTS * 2 / 3 };
        if names.iter().filter(|(_, moving)| *moving == moves(&name)).count() < wanted {
            names.push((name.clone(), moves(&name)));
        }
        if names.len() == CLIENTS {
            break;
        }
    }
    let names: Arc<Vec<String>> = Arc::new(names.into_iter().map(|(name, _)| name).collect());

    let (done, checks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = JoinSet::new();
    for task in 0..TASKS {
        let (replica, policy) = (replicas[task % 2].clone(), policies[task % 2].clone());
        let (names, done, checks) = (names.clone(), done.clone(), checks.clone());
        load.spawn(async move {
            let mut admitted: HashMap<String, u64> = HashMap::new();
            let mut local = 0_u64;
            let mut next = task * 7;
            while !done.load(Ordering::Relaxed) {
                next = (next + 1) % names.len();
                let decision = hit(&replica, &policy, &names[next]).await;
                local += u64::from(decision.source() == Source::Local);
                *admitted.entry(names[next].clone()).or_default() += u64::from(decision.is_allowed());
                checks.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(ms(4)).await;
            }
            (admitted, local)
        });
    }
    tokio::time::sleep(ms(300)).await;
    let before = checks.load(Ordering::Relaxed);
    let started = Instant::now();
    let mut reshard = redis.cluster.reshard(0, 1, SLOTS);
    let status = loop {
        match reshard.try_wait().unwrap() {
            Some(status) => break status,
            None => tokio::time::sleep(ms(10)).await,
        }
    };
    let (took, during) = (started.elapsed(), checks.load(Ordering::Relaxed) - before);
    assert!(status.success());
    tokio::time::sleep(ms(300)).await;
    done.store(true, Ordering::Relaxed);

    let (mut admitted, mut local) = (HashMap::<String, u64>::new(), 0);
    while let Some(done) = load.join_next().await {
        let (own, fell_back) = done.unwrap();
        local += fell_back;
        for (name, count) in own {
            *admitted.entry(name).or_default() += count;
        }
    }
    assert!(during > 100, "there was load while slots moved: {during}");
    // What fell back is paid, in front of the next check or by itself.
    tokio::time::sleep(ms(1500)).await;
    let counted = |name: &str| -> u64 {
        redis.cluster.get(&policies[0].store_key(&who(name))).map_or(0, |count| count.parse().unwrap())
    };
    let lost: u64 = names.iter().map(|name| admitted[name].saturating_sub(counted(name))).sum();
    let extra: u64 = names.iter().map(|name| counted(name).saturating_sub(admitted[name])).sum();
    for (i, name) in names.iter().enumerate() {
        loop {
            let decision = hit(&replicas[i % 2], &policies[i % 2], name).await;
            if !decision.is_allowed() {
                break;
            }
            *admitted.entry(name.clone()).or_default() += 1;
        }
    }
    let over: u64 = names.iter().map(|name| admitted[name].saturating_sub(LIMIT)).sum();
    println!(
        "resharding {SLOTS} slots took {took:?} with {during} checks meanwhile: {over} admitted above the \
         limit, {lost} charges lost, {extra} counted twice, {local} checks fell back"
    );
    assert_eq!(over, 0);
    assert!(lost <= TASKS as u64, "no more than were in flight");
    assert!(extra <= TASKS as u64);
    let moved = own_slots(&redis.cluster.nodes[1]);
    assert!(
        moved.iter().any(|&(first, last)| first <= start && start + i64::from(SLOTS) - 1 <= last),
        "{moved:?}"
    );
}
