//! What others have left under the limiter's keys.

use tower_ratelimit::{Charge, Refusal, Source};

use crate::setup::{Redis, fixed, hit, hit_for, ms, who};

/// How to plant one, with KEY in place of the key.
const PLANTED: &[(&str, &[&str])] = &[
    ("text", &["SET", "KEY", "a session of somebody"]),
    ("letters", &["SET", "KEY", "abc"]),
    ("nothing", &["SET", "KEY", ""]),
    ("negative", &["SET", "KEY", "-5"]),
    ("minus zero", &["SET", "KEY", "-0"]),
    ("plus", &["SET", "KEY", "+5"]),
    ("leading zero", &["SET", "KEY", "007"]),
    ("exponent", &["SET", "KEY", "1e3"]),
    ("twenty digits", &["SET", "KEY", "12345678901234567890"]),
    ("float", &["SET", "KEY", "1.5"]),
    ("hexadecimal", &["SET", "KEY", "0x10"]),
    ("blank in front", &["SET", "KEY", " 5"]),
    ("line end behind", &["SET", "KEY", "5\n"]),
    ("infinity", &["SET", "KEY", "inf"]),
    ("not a number", &["SET", "KEY", "nan"]),
    ("a zero byte", &["SET", "KEY", "5\0"]),
    ("hash", &["HSET", "KEY", "count", "5"]),
    ("sorted set", &["ZADD", "KEY", "1", "one"]),
    ("list", &["RPUSH", "KEY", "5"]),
    ("set", &["SADD", "KEY", "5"]),
    ("stream", &["XADD", "KEY", "*", "count", "5"]),
];

#[tokio::test]
async fn o_rds_14_old_data_type_under_the_same_key() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    let login = limiter.policy(fixed("login", 3, 60_000).block_for(ms(90_000))).unwrap();
    for (policy, refusal) in [(&http, Refusal::Limit), (&login, Refusal::Blocked)] {
        for (kind, command) in PLANTED {
            for with_ttl in [false, true] {
                let name = format!("{kind} {with_ttl}");
                let key = policy.store_key(&who(&name));
                let command: Vec<&str> =
                    command.iter().map(|arg| if *arg == "KEY" { key.as_str() } else { arg }).collect();
                redis.server.command(&command);
                assert_eq!(redis.server.command(&["EXISTS", &key]).int(), 1, "{name} is planted");
                if with_ttl {
                    redis.server.command(&["PEXPIRE", &key, "86400000"]);
                }
                for left in [2, 1, 0] {
                    let decision = hit(&limiter, policy, &name).await;
                    assert_eq!(
                        (decision.is_allowed(), decision.remaining(), decision.source()),
                        (true, left, Source::Redis),
                        "{name}"
                    );
                }
                assert_eq!(hit(&limiter, policy, &name).await.refusal(), Some(refusal), "{name}");
                assert!((1..=90_000).contains(&redis.server.pttl(&key)), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn a_peek_and_a_refusal_do_not_trust_a_foreign_value_either() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
    let key = http.store_key(&who("ann"));
    redis.server.command(&["SET", &key, "abc"]);
    let seen = limiter.peek(&http, &who("ann")).await;
    assert_eq!((seen.used(), seen.source()), (0, Source::Redis));
    redis.server.command(&["HSET", &key, "count", "5"]);
    let refused = hit_for(&limiter, &http, "ann", 4).await;
    assert_eq!((refused.refusal(), refused.used()), (Some(Refusal::TooLarge), 0));
    assert_eq!(redis.server.command(&["EXISTS", &key]).int(), 0, "it is not left behind without expiry");
}

#[tokio::test]
async fn a_foreign_value_in_one_policy_does_not_disturb_its_partner() {
    let redis = Redis::start();
    let limiter = redis.limiter();
    let pair = limiter.policies(&[fixed("login", 2, 60_000), fixed("login-ip", 3, 60_000)]).unwrap();
    redis.server.command(&["RPUSH", &pair[0].store_key(&who("ann")), "5"]);
    redis.server.command(&["SET", &pair[1].store_key(&who("ann")), "1", "PX", "30000"]);
    let check = || limiter.check(pair.each_ref().map(|policy| Charge::new(policy, who("ann"))));
    assert_eq!(check().await.remaining(), 1);
    let second = check().await;
    assert_eq!((second.is_allowed(), second.remaining()), (true, 0));
    let refused = check().await;
    assert!(!refused.is_allowed());
    assert_eq!(redis.server.get(&pair[0].store_key(&who("ann"))).as_deref(), Some("2"));
    assert_eq!(redis.server.get(&pair[1].store_key(&who("ann"))).as_deref(), Some("3"));
}
