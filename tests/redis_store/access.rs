//! Users that Redis allows little, or nothing.

use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{Charge, Policy, Rate, RateLimiter, Refusal, Source};

use crate::setup::{NoFallback, Redis, bucket, builder, connect, fixed, hit, hit_for, ms, sliding, who};
use crate::support::{Logs, RedisServer, Reply, RespClient};

/// The least that a user needs. With a database in the URL, `+select` too.
const COMMANDS: [&str; 13] = [
    "+evalsha",
    "+eval",
    "+get",
    "+set",
    "+incrby",
    "+pttl",
    "+pexpire",
    "+del",
    "+time",
    "+zadd",
    "+zrem",
    "+zrangebyscore",
    "+zremrangebyscore",
];

fn set_user(server: &RedisServer, keys: &str, commands: &[&str]) {
    let mut args = vec!["ACL", "SETUSER", "lim", "reset", "on", ">s3cr3t", keys];
    args.extend(commands);
    assert_eq!(server.command(&args), Reply::Simple("OK".to_owned()), "{args:?}");
}

fn url_of_user(server: &RedisServer) -> String {
    format!("redis://lim:s3cr3t@{}", server.addr())
}

/// What was denied. `CLIENT SETINFO` is sent on connecting, and its failure
/// means nothing to the client. Redis 6.2 names no subcommand.
fn denials(server: &RedisServer) -> Vec<String> {
    let log = server.command(&["ACL", "LOG"]).array();
    let denials = log.iter().map(|entry| format!("{entry:?}"));
    let setinfo = ["client|setinfo", r#"Bulk("object"), Bulk("client")"#];
    denials.filter(|entry| !setinfo.iter().any(|known| entry.contains(known))).collect()
}

/// All that a limiter does.
async fn use_everything(limiter: &RateLimiter, server: &RedisServer) {
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    for allowed in [true, true, true, false] {
        assert_eq!(hit(limiter, &http, "ann").await.is_allowed(), allowed);
    }
    let _ = hit_for(limiter, &http, "ann", u64::MAX).await;
    let _ = limiter.peek(&http, &who("ann")).await;
    limiter.reset(&http, &who("ann")).await.unwrap();
    assert!(hit(limiter, &http, "ann").await.is_allowed());

    let login = limiter.policy(fixed("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    for allowed in [true, false] {
        assert_eq!(hit(limiter, &login, "ann").await.is_allowed(), allowed);
    }
    let pair = limiter.policies(&[fixed("a", 2, 60_000), fixed("b", 2, 60_000)]).unwrap();
    for allowed in [true, true, false] {
        let decision = limiter.check(pair.each_ref().map(|policy| Charge::new(policy, who("ann")))).await;
        assert_eq!(decision.is_allowed(), allowed);
    }
    let tokens = Policy::token_bucket("tokens", Rate::per_minute(9)).reserve_for(ms(5_000));
    let tokens = limiter.policy(tokens).unwrap();
    let reserved = limiter.reserve([Charge::new(&tokens, who("ann")).cost(4)]).await;
    assert_eq!(reserved.settle(3).await.unwrap().remaining(), 6);
    let calls = limiter.policy(Policy::sliding_window("calls", Rate::per_minute(9))).unwrap();
    let charge = Charge::new(&calls, who("ann"));
    let decision = limiter.check([charge.clone()]).await;
    assert!(limiter.refund(&charge, &decision).await.unwrap());
    for planted in [&["SET", "KEY", "7"], &["SET", "KEY", "abc"], &["RPUSH", "KEY", "5"]] {
        let key = http.store_key(&who(&planted.join("-")));
        server.command(&planted.map(|arg| if arg == "KEY" { key.as_str() } else { arg }));
        let _ = hit(limiter, &http, &planted.join("-")).await;
        assert!(server.pttl(&key) > 0, "{planted:?}");
    }
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(hit(limiter, &http, "bob").await.source(), Source::Redis);
}

#[tokio::test]
async fn o_rds_13_prefix_ignored_or_applied_twice() {
    let server = RedisServer::start();
    set_user(&server, "~myapp:rl:*", &["+@all"]);
    for namespace in ["myapp:rl:", "myapp:rl"] {
        let limiter =
            builder(url_of_user(&server)).namespace(namespace).observer(NoFallback).build().unwrap();
        use_everything(&limiter, &server).await;
        assert_eq!(denials(&server), [""; 0]);
        let keys = server.keys_matching("*");
        assert!(keys.len() >= 7, "{keys:?}");
        for key in keys {
            assert!(key.starts_with("myapp:rl:") && key.matches("myapp:rl:").count() == 1, "{key}");
            server.command(&["DEL", &key]);
        }
    }
}

#[tokio::test]
async fn the_least_privileged_user_is_enough() {
    let server = RedisServer::start();
    for (keys, namespace) in [("~myapp:*", "myapp"), ("~*:rl:*", "")] {
        set_user(&server, keys, &COMMANDS);
        let limiter =
            builder(url_of_user(&server)).namespace(namespace).observer(NoFallback).build().unwrap();
        use_everything(&limiter, &server).await;
        assert_eq!(denials(&server), [""; 0], "{keys}");
    }
    set_user(&server, "~myapp:*", &[&COMMANDS[..], &["+select"]].concat());
    let url = format!("{}/2", url_of_user(&server));
    let limiter = builder(url).namespace("myapp").observer(NoFallback).build().unwrap();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
}

#[test]
fn the_documented_user_is_the_tested_one() {
    let documented = include_str!("../../src/store/mod.rs");
    let line = format!("~myapp:* {}\n", COMMANDS.join(" "));
    assert!(documented.contains(&line), "{line}");
}

/// The least that an operator needs.
const OPERATOR: &str = "~myapp:* +scan +get +pttl +zrange +set +del";

#[tokio::test]
async fn the_documented_operator_can_look_forget_and_block_under_every_algorithm() {
    let server = RedisServer::start();
    assert!(include_str!("../../src/store/mod.rs").contains(&format!(" {OPERATOR}\n")));
    let line = format!("ACL SETUSER operator reset on >s3cr3t {OPERATOR}");
    server.command(&line.split(' ').collect::<Vec<_>>());
    set_user(&server, "~myapp:*", &COMMANDS);
    let limiter = || builder(url_of_user(&server)).namespace("myapp").observer(NoFallback).build().unwrap();
    let mut operator = RespClient::connect(server.addr()).unwrap();
    operator.command(&["AUTH", "operator", "s3cr3t"]).unwrap();
    for policy in [fixed("f", 5, 60_000), sliding("s", 5, 60_000), bucket("b", 5, 60_000)] {
        let (serving, policy) = (limiter(), policy.reserve_for(ms(60_000)));
        let handle = serving.policy(policy.clone()).unwrap();
        let _held = serving.reserve([Charge::new(&handle, who("ann"))]).await;
        assert!(hit(&serving, &handle, "ann").await.is_allowed());
        let key = handle.store_key(&who("ann"));
        let seen = operator.command(&["SCAN", "0", "MATCH", "myapp:*:rl:*", "COUNT", "1000"]).unwrap();
        assert!(format!("{seen:?}").contains(&key), "{seen:?}");
        assert!(operator.command(&["GET", &key]).unwrap().text().is_some());
        let open = operator.command(&["ZRANGE", &format!("{key}:=open"), "0", "-1"]).unwrap();
        assert_eq!(open.array().len(), 1);
        operator.command(&["SET", &key, "9100000000000000000", "PX", "3600000"]).unwrap();
        let refused = hit(&serving, &handle, "ann").await;
        assert_eq!(refused.refusal(), Some(Refusal::Blocked), "{policy}: a block that the policy has not");
        assert!(operator.command(&["PTTL", &key]).unwrap().int() > 3_500_000);
        operator.command(&["DEL", &key]).unwrap();
        let elsewhere = limiter();
        let there = elsewhere.policy(policy.clone()).unwrap();
        assert!(hit(&elsewhere, &there, "ann").await.is_allowed(), "{policy}: forgotten");
    }
    assert_eq!(denials(&server), [""; 0]);
}

/// Nothing of it can be left out, and whoever does is told so when the limiter
/// connects, not when somebody's second request needs it.
#[tokio::test]
async fn o_rds_9_a_user_that_lacks_one_right_is_told_once_and_never_decides() {
    let server = RedisServer::start();
    let (logs, _guard) = Logs::capture();
    for missing in COMMANDS {
        let rest: Vec<_> = COMMANDS.into_iter().filter(|command| *command != missing).collect();
        set_user(&server, "~myapp:*", &rest);
        server.command(&["SCRIPT", "FLUSH"]);
        logs.clear();
        let limiter = builder(url_of_user(&server)).namespace("myapp").build().unwrap();
        let http = limiter.policy(fixed("http", 2, 60_000)).unwrap();
        for allowed in [true, true, false, false] {
            let decision = hit(&limiter, &http, missing).await;
            assert_eq!((decision.is_allowed(), decision.source()), (allowed, Source::Local), "{missing}");
        }
        // Long enough for some more attempts.
        tokio::time::sleep(ms(250)).await;
        assert!(!limiter.is_connected(), "{missing}");
        assert_one_error(&logs, missing);
        assert_eq!(limiter.health().unwrap().last_error(), Some(StoreErrorKind::Forbidden), "{missing}");
    }
}

fn assert_one_error(logs: &Logs, of: &str) {
    let lines = logs.matching("rate limit store");
    assert_eq!(lines.len(), 1, "{of}: {lines:?}");
    assert!(lines[0].starts_with("ERROR "), "{lines:?}");
    assert!(lines[0].contains(r#"reason="auth"#) && lines[0].contains("misconfigured=true"), "{lines:?}");
}

#[tokio::test]
async fn o_rds_9_wrong_password_looks_like_an_outage() {
    let server = RedisServer::start_with(&["--requirepass", "pa55word"]);
    let (logs, _guard) = Logs::capture();
    for (credentials, secret) in [("", "pa55word"), (":wr0ng@", "wr0ng"), ("nobody:wr0ng@", "wr0ng")] {
        logs.clear();
        let before = connections(&server);
        let limiter = builder(format!("redis://{credentials}{}", server.addr())).build().unwrap();
        let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
        for i in 0..10 {
            let decision = hit(&limiter, &http, "ann").await;
            assert_eq!((decision.is_allowed(), decision.source()), (i < 3, Source::Local));
        }
        tokio::time::sleep(ms(400)).await;
        assert_one_error(&logs, credentials);
        let health = limiter.health().unwrap();
        assert_eq!(health.last_error(), Some(StoreErrorKind::Auth));
        assert!(health.last_error().unwrap().is_misconfiguration());
        assert!(!logs.contains(secret), "{:?}", logs.matching(secret));
        // 25 to 50 ms, then 50 to 100, 100 to 200, ...
        let attempts = connections(&server) - before;
        assert!((2..=6).contains(&attempts), "{attempts} attempts");
    }
}

fn connections(server: &RedisServer) -> u64 {
    server.info("stats", "total_connections_received").unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_right_taken_away_is_told_once_and_costs_no_connection() {
    let server = RedisServer::start();
    let (logs, _guard) = Logs::capture();
    set_user(&server, "~myapp:*", &COMMANDS);
    let limiter = builder(url_of_user(&server)).namespace("myapp").build().unwrap();
    let http = limiter.policy(fixed("http", 9, 60_000)).unwrap();
    assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);

    // The connection lives on: the user is the same.
    server.command(&["ACL", "SETUSER", "lim", "-evalsha", "-eval"]);
    logs.clear();
    for _ in 0..5 {
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Local);
        tokio::time::sleep(ms(50)).await;
    }
    assert_one_error(&logs, "taken away");

    server.command(&["ACL", "SETUSER", "lim", "+evalsha", "+eval"]);
    assert!(limiter.is_connected(), "the connection was never the problem");
    assert_eq!(hit(&limiter, &http, "bob").await.source(), Source::Redis);
    assert_eq!(logs.matching("rate limit store").len(), 1, "{:?}", logs.matching("rate limit store"));
}

#[tokio::test]
async fn a_reset_that_redis_could_not_be_told_is_an_error() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 1, 60_000)).unwrap();
    connect(&limiter).await;
    redis.server.kill();
    for allowed in [true, false] {
        assert_eq!(hit(&limiter, &http, "ann").await.is_allowed(), allowed);
    }
    let error = limiter.reset(&http, &who("ann")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Disconnected);
    assert!(hit(&limiter, &http, "ann").await.is_allowed(), "this process has forgotten");
}
