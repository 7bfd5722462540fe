//! The keys, as they are in Redis.

use tower_ratelimit::observe::{Observer, Problem};
use tower_ratelimit::{BuildError, Charge, Key, RateLimiter, Refusal};

use crate::setup::{NoFallback, Redis, builder, client, fixed, hit, ms, who};

#[tokio::test]
async fn a_key_is_namespace_policy_rl_identity() {
    let redis = Redis::start();
    for (namespace, prefix) in
        [(None, ""), (Some("myapp"), "myapp:"), (Some("myapp:"), "myapp:"), (Some("a.b:c"), "a.b:c:")]
    {
        let mut builder = builder(redis.server.url()).observer(NoFallback);
        if let Some(namespace) = namespace {
            builder = builder.namespace(namespace);
        }
        let limiter = builder.build().unwrap();
        let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
        let ip = Key::ip(client(9));
        let _ = limiter.check([Charge::new(&http, ip)]).await;
        let key = format!("{prefix}http:rl:203.0.113.9");
        assert_eq!(http.store_key(&ip), key);
        let count = redis.server.get(&key);
        let expected = if namespace == Some("myapp:") { "2" } else { "1" };
        assert_eq!(count.as_deref(), Some(expected), "{key}; both spellings are one namespace");
    }
    assert_eq!(
        redis.server.keys_matching("*"),
        ["a.b:c:http:rl:203.0.113.9", "http:rl:203.0.113.9", "myapp:http:rl:203.0.113.9"],
        "and nothing else is left behind"
    );
    for namespace in [":", "a b", "{a}", "a::", &"a".repeat(65)] {
        let error = RateLimiter::builder().namespace(namespace).build().unwrap_err();
        assert!(matches!(&error, BuildError::Namespace { .. }), "{namespace:?}: {error:?}");
    }
}

#[tokio::test]
async fn identities_that_differ_have_keys_that_differ() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 1, 60_000)).unwrap();
    let pair = |a: &str, b: &str| Key::builder().principal(a).principal(b).finish();
    let keys = [
        pair("a:b", "c"),
        pair("a", "b:c"),
        pair("", "a:b:c"),
        pair("a%3Ab", "c"),
        pair("{a}", "b"),
        pair("a*", "b"),
        pair("a\nb", "\0"),
        pair("🦀", "b"),
        who("203.0.113.9"),
        Key::ip(client(9)),
        Key::builder().named("header.x", "203.0.113.9").finish(),
    ];
    for key in keys {
        let first = limiter.check([Charge::new(&http, key)]).await;
        assert!(first.is_allowed(), "{}", key.as_str());
    }
    let stored = redis.keys();
    assert_eq!(stored.len(), keys.len());
    for key in stored {
        let identity = key.rsplit_once("http:rl:").unwrap().1;
        assert!(identity.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}".contains(&byte)), "{key}");
    }
}

#[tokio::test]
async fn policies_that_are_checked_together_share_a_hash_tag_everywhere() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let alone = limiter.policy(fixed("alone", 9, 60_000)).unwrap();
    let [login, login_ip] =
        limiter.policies(&[fixed("login", 9, 60_000), fixed("login-ip", 9, 60_000)]).unwrap();
    let account = Key::builder().ip(client(9)).principal("ann").finish();
    let ip = Key::ip(client(9));
    let decision = limiter.check([Charge::new(&login, account), Charge::new(&login_ip, ip)]).await;
    assert!(decision.is_allowed());
    let _ = limiter.check([Charge::new(&alone, ip)]).await;
    let _ = limiter.check([Charge::new(&login, account)]).await;
    // Known by itself now, and still the same policy.
    let same = limiter.policy(fixed("login", 9, 60_000)).unwrap();
    let _ = limiter.check([Charge::new(&same, account)]).await;
    let namespace = &redis.namespace;
    assert_eq!(
        redis.keys(),
        [
            format!("{namespace}:alone:rl:203.0.113.9"),
            format!("{namespace}:login-ip:rl:{{203.0.113.9}}"),
            format!("{namespace}:login:rl:{{203.0.113.9}}:ann"),
        ]
    );
    assert_eq!(redis.server.get(&login.store_key(&account)).as_deref(), Some("3"));
    // Another limiter of this process, which knows it only by itself, counts there too.
    let other = redis.limiter();
    let login = other.policy(fixed("login", 9, 60_000)).unwrap();
    assert_eq!(other.check([Charge::new(&login, account)]).await.used(), 4);
}

#[derive(Clone, Default)]
struct Conflicts(std::sync::Arc<std::sync::Mutex<Vec<Problem>>>);

impl Observer for Conflicts {
    fn misconfigured(&self, problem: &Problem) {
        self.0.lock().unwrap().push(*problem);
    }
}

#[tokio::test]
async fn a_second_rule_of_one_name_is_enforced_under_a_key_of_its_own() {
    let redis = Redis::start();
    let conflicts = Conflicts::default();
    let limiter = redis.builder().observer(conflicts.clone()).build().unwrap();
    let rules = [
        (fixed("http", 2, 60_000), "http"),
        (fixed("http", 3, 60_000), "http~3-60000-0"),
        (fixed("http", 3, 60_000).block_for(ms(90_000)), "http~3-60000-90000"),
        (fixed("http", 2, 60_000).shadow(), "http~2-60000-0-shadow"),
    ];
    let mut handles = Vec::new();
    for (rule, name) in &rules {
        let policy = limiter.policy(rule.clone()).unwrap();
        assert_eq!(policy.store_key(&who("ann")), format!("{}:{name}:rl:ann", redis.namespace));
        assert_eq!(
            limiter.policy(rule.clone()).unwrap().store_key(&who("ann")),
            policy.store_key(&who("ann"))
        );
        handles.push(policy);
    }
    let told = conflicts.0.lock().unwrap().clone();
    assert_eq!(told, [Problem::PolicyConflict; 3], "told once for each that is in the way");
    for allowed in [true, true, false] {
        assert_eq!(hit(&limiter, &handles[0], "ann").await.is_allowed(), allowed);
    }
    for _ in 0..3 {
        assert!(hit(&limiter, &handles[1], "ann").await.is_allowed(), "not by the other's count");
    }
    assert_eq!(hit(&limiter, &handles[1], "ann").await.refusal(), Some(Refusal::Limit));

    // Another limiter of the process meets the same names.
    let other = redis.builder().build().unwrap();
    let policy = other.policy(rules[1].0.clone()).unwrap();
    assert_eq!(policy.store_key(&who("ann")), handles[1].store_key(&who("ann")));
    assert!(!hit(&other, &policy, "ann").await.is_allowed());
}

#[tokio::test]
async fn a_database_of_the_url_is_the_one_that_counts() {
    let redis = Redis::start();
    let limiter = builder(format!("{}/3", redis.server.url())).observer(NoFallback).build().unwrap();
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    assert!(hit(&limiter, &http, "ann").await.is_allowed());
    assert_eq!(redis.server.get("http:rl:ann"), None);
    redis.server.command(&["SELECT", "3"]);
    assert_eq!(redis.server.get("http:rl:ann").as_deref(), Some("1"));
}
