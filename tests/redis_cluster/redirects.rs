//! Slots that are not where the limiter believes, and nodes that have lost the
//! script.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::task::JoinSet;
use tower_ratelimit::observe::Observer;
use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{RateLimiter, Source};

use crate::setup::{Redis, connect, eventually, fixed, hit, ms, who};
use crate::support::Reply;

/// Why checks have fallen back.
#[derive(Clone, Default)]
pub(crate) struct Reasons(pub(crate) Arc<Mutex<Vec<StoreErrorKind>>>);

impl Observer for Reasons {
    fn fell_back(&self, _: &str, reason: StoreErrorKind) {
        self.0.lock().unwrap().push(reason);
    }
}

impl Redis {
    async fn connected(&self) -> (RateLimiter, Reasons) {
        let reasons = Reasons::default();
        let limiter = self.builder().observer(reasons.clone()).build().unwrap();
        connect(&limiter).await;
        (limiter, reasons)
    }

    /// Tells a node what to believe of a slot.
    fn set_slot(&self, node: usize, slot: i64, what: &str, other: usize) {
        let id = self.cluster.id(other);
        let told = self.cluster.nodes[node].command(&["CLUSTER", "SETSLOT", &slot.to_string(), what, &id]);
        assert_eq!(told, Reply::Simple(String::from("OK")));
    }

    fn evalshas(&self) -> Vec<u64> {
        self.cluster.nodes.iter().map(|node| node.commandstat("evalsha")).collect()
    }
}

#[tokio::test]
async fn a_check_asks_the_master_of_its_slot_and_nobody_else() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    connect(&limiter).await;
    for i in 0..30 {
        let name = format!("client{i}");
        let owner = redis.cluster.owner(&http.store_key(&who(&name)));
        let mut expected = redis.evalshas();
        assert_eq!(hit(&limiter, &http, &name).await.source(), Source::Redis);
        expected[owner] += 1;
        assert_eq!(redis.evalshas(), expected, "one round trip, to node {owner}");
    }
}

#[tokio::test]
async fn moved_is_followed_once_and_no_further() {
    let redis = Redis::start();
    let (limiter, reasons) = redis.connected().await;
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    let key = http.store_key(&who("ann"));
    let (slot, old) = (redis.cluster.slot(&key), redis.cluster.owner(&key));
    let (new, third) = ((old + 1) % 3, (old + 2) % 3);
    redis.set_slot(new, slot, "NODE", new);
    redis.set_slot(old, slot, "NODE", new);
    let before = redis.evalshas();
    let followed = hit(&limiter, &http, "ann").await;
    assert_eq!((followed.source(), followed.used()), (Source::Redis, 1));
    let after = redis.evalshas();
    assert_eq!((after[new] - before[new], after[third] - before[third]), (1, 0));
    assert_eq!(redis.cluster.nodes[new].get(&key).as_deref(), Some("1"), "charged once");
    assert_eq!(*reasons.0.lock().unwrap(), []);

    // Another limiter, on a cluster that does not agree: each node sends on to the next.
    let (limiter, reasons) = redis.connected().await;
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    let key = http.store_key(&who("bob"));
    let (slot, old) = (redis.cluster.slot(&key), redis.cluster.owner(&key));
    let (next, last) = ((old + 1) % 3, (old + 2) % 3);
    redis.set_slot(old, slot, "NODE", next);
    redis.set_slot(next, slot, "NODE", last);
    let before = redis.evalshas();
    let lost = hit(&limiter, &http, "bob").await;
    assert_eq!((lost.source(), lost.remaining()), (Source::Local, 4));
    assert_eq!(*reasons.0.lock().unwrap(), [StoreErrorKind::ClusterDown], "an outage and no mistake");
    assert_eq!(redis.evalshas()[last], before[last], "the second redirect was not followed");
    assert!(redis.cluster.nodes.iter().all(|node| node.keys_matching(&key).is_empty()));
}

#[tokio::test]
async fn ask_is_followed_once_even_to_a_node_that_has_lost_the_script() {
    let redis = Redis::start();
    let (limiter, reasons) = redis.connected().await;
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    let key = http.store_key(&who("ann"));
    let (slot, old) = (redis.cluster.slot(&key), redis.cluster.owner(&key));
    let new = (old + 1) % 3;
    redis.set_slot(new, slot, "IMPORTING", old);
    redis.set_slot(old, slot, "MIGRATING", new);
    redis.cluster.nodes[new].command(&["SCRIPT", "FLUSH"]);
    for used in [1, 2, 3] {
        let asked = hit(&limiter, &http, "ann").await;
        assert_eq!((asked.source(), asked.used()), (Source::Redis, used));
    }
    assert_eq!(
        redis.cluster.nodes[new].keys_matching(&key),
        std::slice::from_ref(&key),
        "it is where it is going"
    );
    // Twice by digest, the first of them in vain, and once by text.
    assert_eq!(redis.cluster.nodes[new].commandstat("asking"), 4);
    limiter.reset(&http, &who("ann")).await.unwrap();
    assert!(redis.cluster.nodes[new].keys_matching(&key).is_empty(), "a reset is sent on as well");
    assert_eq!(*reasons.0.lock().unwrap(), []);
    // Who is sent to a node that does not know of it is not sent on.
    redis.cluster.nodes[new].command(&["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]);
    let lost = hit(&limiter, &http, "ann").await;
    assert_eq!((lost.source(), lost.used()), (Source::Local, 1));
    assert_eq!(*reasons.0.lock().unwrap(), [StoreErrorKind::ClusterDown]);
}

#[tokio::test]
async fn each_node_that_has_lost_the_script_is_sent_it_again() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    connect(&limiter).await;
    let sent = || -> Vec<u64> { redis.cluster.nodes.iter().map(|node| node.commandstat("eval")).collect() };
    let before = sent();
    for node in &redis.cluster.nodes {
        node.command(&["SCRIPT", "FLUSH"]);
    }
    let mut burst = JoinSet::new();
    for i in 0..60 {
        let (limiter, http) = (limiter.clone(), http.clone());
        burst.spawn(async move { hit(&limiter, &http, &format!("client{i}")).await });
    }
    assert!(burst.join_all().await.iter().all(|decision| decision.source() == Source::Redis));
    for (after, before) in sent().iter().zip(before) {
        assert!((1..=5).contains(&(after - before)), "the script was sent {} times", after - before);
    }
}

#[tokio::test]
async fn a_redirect_to_a_node_that_hangs_costs_the_deadline_and_its_connection_only() {
    let redis = Redis::start();
    let reasons = Reasons::default();
    let limiter = redis.builder().deadline(ms(100)).observer(reasons.clone()).build().unwrap();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 50, 60_000)).unwrap();
    let key = http.store_key(&who("ann"));
    let (slot, old) = (redis.cluster.slot(&key), redis.cluster.owner(&key));
    let new = (old + 1) % 3;
    let here = (0..).map(|i| format!("client{i}")).find(|name| {
        let key = http.store_key(&who(name));
        redis.cluster.owner(&key) == old && redis.cluster.slot(&key) != slot
    });
    redis.set_slot(new, slot, "IMPORTING", old);
    redis.set_slot(old, slot, "MIGRATING", new);
    redis.cluster.nodes[new].stop_signal();
    for used in 1..=6 {
        let started = Instant::now();
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
        assert!(started.elapsed() < ms(1000), "{:?}", started.elapsed());
        let other = hit(&limiter, &http, here.as_ref().unwrap()).await;
        assert_eq!((other.source(), other.used()), (Source::Redis, used), "the node that redirects goes on");
    }
    {
        let reasons = reasons.0.lock().unwrap();
        let (first, then) = reasons.split_at(3);
        assert!(first.iter().all(|reason| *reason == StoreErrorKind::Timeout), "{reasons:?}");
        assert!(then.contains(&StoreErrorKind::Disconnected), "then nobody waits: {reasons:?}");
    }
    redis.cluster.nodes[new].cont();
    eventually("it is back", || limiter.is_connected()).await;
    // A counter and its marker are two keys, for which a slot on its way says no.
    let next = hit(&limiter, &http, "ann").await;
    assert_eq!((next.source(), next.used()), (Source::Local, 7));
    redis.set_slot(new, slot, "NODE", new);
    redis.set_slot(old, slot, "NODE", new);
    let next = hit(&limiter, &http, "ann").await;
    assert_eq!((next.source(), next.used()), (Source::Redis, 8), "each counted once, late answers too");
    assert_eq!(redis.cluster.nodes[new].get(&key).as_deref(), Some("8"));
}
