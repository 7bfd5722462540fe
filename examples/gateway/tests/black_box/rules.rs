//! The rules that are built in, by requests.

use serde_json::json;

use crate::gateway::Gateway;
use crate::http::{Answer, Client};
use crate::support::RedisServer;

/// Where every client here comes from is believed, so that each can be another one.
const PROXIED: (&str, &str) = ("TRUSTED_PROXIES", "127.0.0.0/8");

fn login(client: &mut Client, user: &str, password: &str) -> Answer {
    client.post("/auth/login", &[], &json!({"user": user, "password": password}).to_string())
}

fn api(client: &mut Client, method: &str, who: &str) -> Answer {
    client.request(method, "/api/projects", &[("authorization", &format!("Bearer {who}"))])
}

/// How many are admitted before the first refusal, and that refusal.
fn admits(mut ask: impl FnMut() -> Answer) -> (u64, Answer) {
    for admitted in 0..10_000 {
        let answer = ask();
        if answer.status == 429 {
            return (admitted, answer);
        }
    }
    panic!("never refused")
}

/// Within ten seconds of it, for a machine that is busy.
fn assert_waits(refused: &Answer, seconds: u64) {
    let wait = refused.number("retry-after");
    assert!((seconds - 10..=seconds).contains(&wait), "{wait}, not {seconds}");
}

#[test]
fn five_wrong_passwords_for_an_account_block_it_for_an_hour() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[PROXIED, ("REDIS_URL", &redis.url()), ("RATE_LIMIT_DEADLINE_MS", "5000")]);
    let mut client = gateway.connect();
    let spellings = ["ann@example.org", "Ann@Example.org", " ann@example.org "];
    for i in 0..5 {
        let answer = login(&mut client, spellings[i % 3], "guess");
        assert_eq!(answer.status, 401);
        assert_eq!(answer.number("x-ratelimit-limit"), 5);
    }
    let refused = login(&mut client, "ann@example.org", "correct");
    assert_eq!(refused.status, 429);
    assert_waits(&refused, 3_600);
    assert_eq!(login(&mut client, "bob", "correct").status, 200, "another account");
    let key = "login:rl:{global=127.0.0.1}:ann@example.org:route=/auth/login";
    assert!(redis.keys_matching("login:*").contains(&key.to_owned()), "{:?}", redis.keys_matching("*"));
    assert!(redis.pttl(key) > 3_590_000);
    assert_eq!(redis.keys_matching("login-ip:*")[0], "login-ip:rl:{global=127.0.0.1}");
}

#[test]
fn an_address_has_50_wrong_passwords_whatever_the_account() {
    let gateway = Gateway::start(&[]);
    let mut client = gateway.connect();
    let mut account = 0;
    let (admitted, refused) = admits(|| {
        account += 1;
        login(&mut client, &format!("user{account}"), "guess")
    });
    assert_eq!(admitted, 50);
    assert_eq!(refused.number("x-ratelimit-limit"), 50);
    assert_waits(&refused, 900);
}

#[test]
fn a_login_is_passed_on_as_it_came_and_one_that_is_too_long_is_none() {
    let gateway = Gateway::start(&[]);
    let mut client = gateway.connect();
    let answer = login(&mut client, "ann", "correct");
    assert_eq!((answer.status, &answer.json()["user"]), (200, &json!("ann")));
    for body in ["", "{", "[]", r#"{"user":"ann"}"#, r#"{"user":5,"password":"correct"}"#] {
        assert_eq!(client.post("/auth/login", &[], body).status, 400, "{body}");
    }
    assert_eq!(gateway.connect().post("/auth/login", &[], &"x".repeat(8 * 1024 + 1)).status, 413);
}

#[test]
fn nobody_has_more_under_auth_not_even_a_vip_on_the_largest_plan() {
    let gateway = Gateway::start(&[PROXIED]);
    let mut client = gateway.connect();
    for (i, who) in ["acme.ann.free", "acme.vip.enterprise"].into_iter().enumerate() {
        let (bearer, address) = (format!("Bearer {who}"), format!("203.0.113.{i}"));
        let headers = [("authorization", &*bearer), ("x-forwarded-for", &*address)];
        let (admitted, refused) = admits(|| client.request("POST", "/auth/register", &headers));
        assert_eq!(admitted, 3, "{who}");
        assert_waits(&refused, 24 * 3_600);
        let (admitted, refused) = admits(|| client.request("GET", "/auth/me", &headers));
        assert_eq!(admitted, 10, "{who}");
        assert_waits(&refused, 1_800);
        // A path that is not there is one of the others, on a count of its own.
        let (admitted, _) = admits(|| client.request("GET", "/auth/no-such-page", &headers));
        assert_eq!(admitted, 10, "{who}");
        let guess = json!({"user": "vip", "password": "guess"}).to_string();
        let (admitted, refused) = admits(|| client.post("/auth/login", &headers, &guess));
        assert_eq!(admitted, 5, "{who}");
        assert_waits(&refused, 3_600);
    }
    // Nor is a token another caller there.
    let stranger = [("authorization", "Bearer new.new.new"), ("x-forwarded-for", "203.0.113.0")];
    assert_eq!(client.request("POST", "/auth/register", &stranger).status, 429);
}

#[test]
fn each_plan_has_its_limits_by_method_and_a_vip_has_twice_as_much() {
    let gateway = Gateway::start(&[]);
    let mut client = gateway.connect();
    let plans = [
        ("free", [20, 10, 100]),
        ("pro", [100, 50, 500]),
        ("enterprise", [1_000, 500, 5_000]),
        ("unheard-of", [20, 10, 100]),
    ];
    for (plan, [write, delete, read]) in plans {
        for (user, times) in [("ann", 1), ("vip", 2)] {
            let who = format!("{plan}-workspace.{user}.{plan}");
            let mut numbers = |method| {
                let answer = api(&mut client, method, &who);
                assert_eq!(answer.status, 200, "{answer:?}");
                (answer.number("x-ratelimit-limit"), answer.number("x-ratelimit-remaining"))
            };
            for (i, method) in ["POST", "PUT", "PATCH"].into_iter().enumerate() {
                assert_eq!(numbers(method), (write * times, write * times - 1 - i as u64), "{who} {method}");
            }
            assert_eq!(numbers("DELETE"), (delete * times, delete * times - 1), "{who}");
            // A method that nobody knows counts as GET.
            for (i, method) in ["GET", "BREW", "OPTIONS"].into_iter().enumerate() {
                assert_eq!(numbers(method), (read * times, read * times - 1 - i as u64), "{who} {method}");
            }
        }
    }
    for (method, limit) in [("POST", 20), ("DELETE", 10), ("GET", 100)] {
        let (admitted, refused) = admits(|| api(&mut client, method, "fresh.bob.free"));
        assert_eq!(admitted, limit, "{method}");
        assert_waits(&refused, 300);
    }
    let (admitted, _) = admits(|| api(&mut client, "PUT", "fresh.bob.pro"));
    assert_eq!(admitted, 0, "a block is not bought off: the plan is new, the count is not");
    let (admitted, refused) = admits(|| api(&mut client, "PUT", "fresh.carl.pro"));
    assert_eq!(admitted, 100);
    assert_waits(&refused, 300);
}

#[test]
fn workspaces_share_nothing() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[PROXIED, ("REDIS_URL", &redis.url()), ("RATE_LIMIT_DEADLINE_MS", "5000")]);
    let mut client = gateway.connect();
    assert_eq!(admits(|| api(&mut client, "POST", "acme.ann.free")).0, 20);
    for who in ["beta.ann.free", "acme.bob.free"] {
        assert_eq!(api(&mut client, "POST", who).number("x-ratelimit-remaining"), 19, "{who}");
    }
    let mut keys = redis.keys_matching("api-write:*");
    keys.sort();
    assert_eq!(
        keys,
        [
            "api-write:rl:workspace=acme:ip=127.0.0.1:ann:route=/api/projects",
            "api-write:rl:workspace=acme:ip=127.0.0.1:bob:route=/api/projects",
            "api-write:rl:workspace=beta:ip=127.0.0.1:ann:route=/api/projects",
        ]
    );
}

#[test]
fn exports_are_5_an_hour_without_a_block() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[("REDIS_URL", &redis.url()), ("RATE_LIMIT_DEADLINE_MS", "5000")]);
    let mut client = gateway.connect();
    let headers = [("authorization", "Bearer acme.ann.pro")];
    let mut method = ["GET", "POST"].into_iter().cycle();
    let mut export = || client.request(method.next().unwrap(), "/api/exports", &headers);
    let (admitted, refused) = admits(&mut export);
    assert_eq!(admitted, 5);
    assert_waits(&refused, 3_600);
    let keys = redis.keys_matching("export:*");
    assert_eq!(redis.get(&keys[0]).as_deref(), Some("5"), "a count, not a block");
}

#[test]
fn a_token_that_is_none_is_nobody_on_the_free_plan() {
    let gateway = Gateway::start(&[]);
    let mut client = gateway.connect();
    let mut left = 20;
    for value in ["Bearer a.b", "Bearer a.b.pro.x", "Bearer a..pro", "Basic a.b.pro", "a.b.pro", "Bearer"] {
        let answer = client.request("POST", "/api/projects", &[("authorization", value)]);
        left -= 1;
        assert_eq!(answer.number("x-ratelimit-remaining"), left, "{value}");
        assert!(answer.json()["user"].is_null());
    }
    let two = [("authorization", "Bearer a.b.pro"), ("authorization", "Bearer a.c.pro")];
    assert_eq!(client.request("POST", "/api/projects", &two).number("x-ratelimit-remaining"), left - 1);
    let who = client.request("POST", "/api/projects", &[("authorization", "bearer a.b.pro")]).json();
    assert_eq!((&who["workspace"], &who["user"], &who["plan"]), (&json!("a"), &json!("b"), &json!("pro")));
}
