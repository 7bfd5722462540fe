//! Who may what on a cluster, and what is none.

use tower_ratelimit::store::StoreState;
use tower_ratelimit::{RateLimiter, Source};

use crate::setup::{PATIENT, Redis, connect, eventually, fixed, hit, who};
use crate::support::{Logs, RedisServer, Reply};

#[tokio::test]
async fn the_documented_user_is_enough() {
    let redis = Redis::start();
    let rights = "on >secret ~myapp:* +evalsha +eval +get +set +incrby +pttl +pexpire +del +time +zadd \
                  +zrem +zrangebyscore +zremrangebyscore +cluster|slots \
                  +asking";
    for node in &redis.cluster.nodes {
        let mut command = vec!["ACL", "SETUSER", "limiter", "reset"];
        command.extend(rights.split_whitespace());
        assert_eq!(node.command(&command), Reply::Simple(String::from("OK")));
    }
    let urls = redis.cluster.urls();
    let urls = urls.iter().map(|url| url.replace("redis://", "redis://limiter:secret@"));
    let limiter =
        RateLimiter::builder().redis_cluster(urls).namespace("myapp").deadline(PATIENT).build().unwrap();
    let (logs, _guard) = Logs::capture();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    for i in 0..30 {
        assert_eq!(hit(&limiter, &http, &format!("client{i}")).await.source(), Source::Redis);
    }
    let key = http.store_key(&who("ann"));
    let (slot, old) = (redis.cluster.slot(&key).to_string(), redis.cluster.owner(&key));
    let new = (old + 1) % 3;
    let [old_id, new_id] = [old, new].map(|node| redis.cluster.id(node));
    redis.cluster.nodes[new].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &old_id]);
    redis.cluster.nodes[old].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new_id]);
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis, "ASK is followed");
    for node in &redis.cluster.nodes {
        let denied = node.command(&["ACL", "LOG"]).array();
        assert!(denied.is_empty() || denied.iter().all(|entry| format!("{entry:?}").contains("setinfo")));
    }
    assert_eq!(logs.matching("misconfigured").len(), 0);
}

#[tokio::test]
async fn a_server_that_is_no_cluster_and_a_wrong_password_are_misconfigurations() {
    let single = RedisServer::start();
    let (logs, _guard) = Logs::capture();
    for url in [single.url(), single.url().replace("redis://", "redis://:wrong-secret@")] {
        let limiter = RateLimiter::builder().redis_cluster([url]).deadline(PATIENT).build().unwrap();
        let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
        eventually("it is known", || limiter.health().unwrap().state() == StoreState::Lost).await;
    }
    let lines = logs.matching("misconfigured");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("unknown_command") && lines[1].contains("auth"), "{lines:?}");
    assert!(logs.matching("wrong-secret").is_empty());
}
