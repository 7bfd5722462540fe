//! The complete example, as a file and in Rust.

use tower_ratelimit::identity::ClientIp;
use tower_ratelimit::rules::{RuleSet, RulesFile};

use crate::harness::{Answer, Ask, Ruled, ask, secs};
use crate::saas_in_rust;

const FILE: &str = include_str!("../../examples/saas.toml");

fn from_file() -> RuleSet {
    RulesFile::new().parse(FILE).unwrap()
}

fn in_rust() -> RuleSet {
    saas_in_rust::saas(&ClientIp::peer()).unwrap()
}

#[test]
fn the_file_and_the_rust_are_the_same_rules() {
    assert_eq!(from_file().to_string(), in_rust().to_string());
    assert_eq!(from_file().digest(), in_rust().digest());
    let file = Ruled::by(from_file());
    assert_eq!(file.live.plan(in_rust()).unwrap().to_string(), "no change\n");
}

#[tokio::test]
async fn the_file_and_the_rust_decide_alike_on_a_table_of_requests() {
    let (file, rust) = (Ruled::by(from_file()), Ruled::by(in_rust()));
    let mut requests = 0;
    for round in 0..8 {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "BREW", "OPTIONS"] {
            for path in [
                "/auth/login",
                "/auth/register",
                "/auth/me",
                "/api/projects",
                "/api/exports",
                "/healthz",
                "/",
            ] {
                for who in ["acme.ann.free", "acme.vip.pro", "beta.ann.enterprise", "beta.bob.unheard-of"] {
                    let request = || ask(method, path).who(who).account(&who[5..8]);
                    let (left, right) = (file.ask(request()).await, rust.ask(request()).await);
                    assert_eq!(left, right, "{method} {path} {who}");
                    requests += 1;
                }
            }
        }
        assert_eq!(file.seen.keys(), rust.seen.keys(), "round {round}");
        let pause = secs(7 * (round + 1));
        file.advance(pause);
        rust.advance(pause);
    }
    assert_eq!(requests, 8 * 8 * 7 * 4);
}

fn is_blocked_for(answer: &Answer, seconds: u64) -> bool {
    answer.status == 429 && answer.retry_after == Some(seconds)
}

#[tokio::test]
async fn login_takes_5_for_an_account_then_blocks_for_an_hour_and_50_for_an_address() {
    let ruled = Ruled::by(from_file());
    let login = |account: &str| ask("POST", "/auth/login").account(account);
    assert_eq!(ruled.admits(|| login("ann")).await, 5);
    assert!(is_blocked_for(&ruled.ask(login("ann")).await, 3_600));
    let keys = ruled.seen.keys();
    assert_eq!(keys, ["login global=203.0.113.9:ann:route=/auth/login", "login-ip global=203.0.113.9"]);
    let mut admitted = 5;
    for account in 0..9 {
        admitted += ruled.admits(|| login(&format!("u{account}"))).await;
    }
    assert_eq!(admitted, 50);
    assert_eq!(ruled.ask(login("fresh")).await.limit, Some(50));
    assert_eq!(ruled.ask(login("ann").from("203.0.113.10")).await.status, 401);
}

#[tokio::test]
async fn no_plan_and_no_vip_loosens_what_is_under_auth() {
    for who in ["acme.vip.enterprise", "acme.ann.free"] {
        let ruled = Ruled::by(from_file());
        assert_eq!(ruled.admits(|| ask("POST", "/auth/login").who(who).account("vip")).await, 5);
        assert_eq!(ruled.admits(|| ask("POST", "/auth/register").who(who)).await, 3);
        assert!(is_blocked_for(&ruled.ask(ask("POST", "/auth/register").who(who)).await, 24 * 3_600));
        assert_eq!(ruled.admits(|| ask("GET", "/auth/me").who(who)).await, 10);
        assert!(is_blocked_for(&ruled.ask(ask("GET", "/auth/me").who(who)).await, 1_800));
    }
}

#[tokio::test]
async fn each_plan_has_its_limits_by_method_and_vips_have_twice_as_much() {
    for (plan, write, delete, read) in [
        ("free", 20, 10, 100),
        ("pro", 100, 50, 500),
        ("enterprise", 1_000, 500, 5_000),
        ("golden", 20, 10, 100),
    ] {
        for (user, times) in [("ann", 1), ("vip", 2)] {
            let ruled = Ruled::by(from_file());
            let who = format!("acme.{user}.{plan}");
            let api = |method: &str| ask(method, "/api/projects").who(&who);
            // Three methods, one counter.
            assert_eq!(ruled.ask(api("PUT")).await.remaining, Some(write * times - 1), "{who}");
            assert_eq!(ruled.ask(api("PATCH")).await.remaining, Some(write * times - 2));
            assert_eq!(ruled.admits(|| api("POST")).await, write * times - 2);
            assert!(is_blocked_for(&ruled.ask(api("PUT")).await, 300));
            assert_eq!(ruled.admits(|| api("DELETE")).await, delete * times);
            // A method that nobody knows counts as GET.
            assert_eq!(ruled.ask(api("BREW")).await.remaining, Some(read * times - 1));
            assert_eq!(ruled.ask(api("GET")).await.remaining, Some(read * times - 2));
        }
    }
}

#[tokio::test]
async fn exports_are_5_an_hour_without_a_block() {
    let ruled = Ruled::by(from_file());
    let export = || ask("POST", "/api/exports").who("acme.ann.pro");
    assert_eq!(ruled.admits(export).await, 5);
    assert_eq!(ruled.ask(export()).await.retry_after, Some(3_600));
    ruled.advance(secs(3_600));
    assert_eq!(ruled.ask(export()).await.remaining, Some(4));
}

#[tokio::test]
async fn workspaces_share_nothing() {
    let ruled = Ruled::by(from_file());
    let write = |who: &str| ask("POST", "/api/projects").who(who);
    assert_eq!(ruled.admits(|| write("acme.ann.free")).await, 20);
    assert_eq!(ruled.seen.keys(), ["api-write workspace=acme:ip=203.0.113.9:ann:route=/api/%7B*rest%7D"]);
    for who in ["beta.ann.free", "acme.bob.free"] {
        assert_eq!(ruled.ask(write(who)).await.remaining, Some(19), "{who}");
    }
    let elsewhere: Ask = write("acme.ann.free").from("203.0.113.10");
    assert_eq!(ruled.ask(elsewhere).await.remaining, Some(19));
}
