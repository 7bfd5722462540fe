//! Going over to other rules: shown first, effective at once, counts kept.

use tower_ratelimit::identity::{ClientIp, Principal};
use tower_ratelimit::rules::{Limit, Rule, RuleSet};
use tower_ratelimit::{BuildError, Policy, Rate, RateLimitLayer};

use crate::harness::{Ruled, ask, minute, secs};

fn http(limit: u32) -> RuleSet {
    RuleSet::new().otherwise(minute("http", limit))
}

fn window(limit: u64, seconds: u64) -> RuleSet {
    RuleSet::new().otherwise(Policy::fixed_window("http", Rate::new(limit, secs(seconds)).unwrap()))
}

#[tokio::test]
async fn a_plan_shows_its_steps_and_changes_nothing_by_itself() {
    let before = http(100)
        .skip_path("/healthz")
        .rule(Rule::route("/a").limit(minute("api", 5)))
        .rule(Rule::route("/b").limit(minute("old", 5)));
    let api = Policy::fixed_window("api", Rate::new(5, secs(10)).unwrap()).block_for(secs(60)).shadow();
    let after = http(200)
        .skip_path("/metrics")
        .rule(Rule::route("/c").limit(minute("new", 5)))
        .rule(Rule::route("/a").limit(Limit::new(api).plan("pro", 9)));
    let ruled = Ruled::by(before);
    let plan = ruled.live.plan(after).unwrap();
    assert_eq!(
        plan.steps().collect::<Vec<_>>(),
        [
            "api: window 1m -> 10s, block none -> 1m, mode enforce -> shadow, plans none -> pro 9, counts kept",
            "http: limit 100 -> 200, counts kept",
            "new: added",
            "old: removed",
            "rule /c: added (new)",
            "rule /b: removed",
            "skip path /metrics: added",
            "skip path /healthz: removed",
        ]
    );
    assert_eq!(ruled.ask(ask("GET", "/")).await.limit, Some(100));
    plan.apply().unwrap();
    assert_eq!(ruled.ask(ask("GET", "/")).await.limit, Some(200));
    assert_eq!(ruled.live.plan(ruled.live.current()).unwrap().to_string(), "no change\n");
}

#[test]
fn a_plan_says_which_counts_start_anew_and_how_rules_have_moved() {
    let rules = |first: &str, second: &str, policy: Policy| {
        RuleSet::new()
            .rule(Rule::route(first).limit(minute("a", 1)))
            .rule(Rule::route(second).limit(minute("a", 1)))
            .otherwise(Limit::new(policy).by(ClientIp::peer()))
    };
    let ruled = Ruled::by(rules("/a", "/b", minute("http", 1)));
    let plan = ruled.live.plan(rules("/b", "/a", Policy::token_bucket("http", Rate::per_minute(1)))).unwrap();
    assert_eq!(
        plan.to_string(),
        "http: algorithm FixedWindow -> TokenBucket, burst none -> 1, counts start anew\n\
         rules: order is now /b; /a\n"
    );
    let limit = Limit::new(minute("http", 1)).by(Principal::by_user());
    let plan = ruled.live.plan(RuleSet::new().otherwise(limit).otherwise(minute("ip", 1))).unwrap();
    let http = plan.steps().find(|step| step.starts_with("http")).unwrap().to_owned();
    assert_eq!(http, "http: identity ip -> user, checked together with others, counts start anew");
    assert!(plan.steps().any(|step| step == "otherwise: http -> http, ip"), "{plan}");
}

#[tokio::test]
async fn a_raised_limit_helps_a_client_that_was_refused_at_once_and_keeps_the_count() {
    let ruled = Ruled::by(http(20));
    assert_eq!(ruled.admits(|| ask("POST", "/")).await, 20);
    ruled.live.plan(http(40)).unwrap().apply().unwrap();
    assert_eq!(ruled.ask(ask("POST", "/")).await.remaining, Some(19));
    assert_eq!(ruled.admits(|| ask("POST", "/")).await, 19);
    // Lowered, it refuses at once what is above.
    ruled.live.plan(http(30)).unwrap().apply().unwrap();
    assert_eq!(ruled.ask(ask("POST", "/")).await.status, 429);
    assert!(!ruled.seen.told().iter().any(|told| told == "policy_conflict"));
}

#[tokio::test]
async fn a_raised_limit_lifts_the_block_that_the_lower_one_has_started() {
    let rules = |limit| RuleSet::new().otherwise(minute("http", limit).block_for(secs(300)));
    let ruled = Ruled::by(rules(2));
    assert_eq!(ruled.admits(|| ask("POST", "/")).await, 2);
    ruled.advance(secs(100));
    assert_eq!(ruled.ask(ask("POST", "/")).await.retry_after, Some(200));
    ruled.live.plan(rules(3)).unwrap().apply().unwrap();
    ruled.advance(secs(1));
    assert_eq!(ruled.admits(|| ask("POST", "/")).await, 3);
    // The new rule's own block is not lifted by that.
    ruled.advance(secs(299));
    assert_eq!(ruled.ask(ask("POST", "/")).await.retry_after, Some(1));
    // Nor is any by a change that allows no more than before.
    ruled.live.plan(rules(3).skip_path("/healthz")).unwrap().apply().unwrap();
    assert_eq!(ruled.ask(ask("POST", "/")).await.status, 429);
    ruled.live.plan(rules(1)).unwrap().apply().unwrap();
    assert_eq!(ruled.ask(ask("POST", "/")).await.status, 429);
}

#[tokio::test]
async fn a_block_that_is_taken_away_is_over_and_so_are_those_of_a_raised_plan() {
    let rules = |pro, block| {
        let policy = minute("http", 1);
        let policy = if block { policy.block_for(secs(300)) } else { policy };
        RuleSet::new().otherwise(Limit::new(policy).plan("pro", pro))
    };
    let ruled = Ruled::by(rules(2, true));
    let pro = || ask("GET", "/").who("w.ann.pro");
    assert_eq!(ruled.admits(pro).await, 2);
    ruled.live.plan(rules(3, true)).unwrap().apply().unwrap();
    assert_eq!(ruled.admits(pro).await, 3);
    ruled.live.plan(rules(3, false)).unwrap().apply().unwrap();
    assert_eq!(ruled.ask(pro()).await.status, 200);
}

#[tokio::test]
async fn o_win_6_a_shorter_window_admits_within_one_new_window() {
    let ruled = Ruled::by(window(5, 3_600));
    assert_eq!(ruled.admits(|| ask("GET", "/")).await, 5);
    ruled.live.plan(window(5, 1)).unwrap().apply().unwrap();
    assert_eq!(ruled.ask(ask("GET", "/")).await.retry_after, Some(1));
    ruled.advance(secs(1));
    assert_eq!(ruled.ask(ask("GET", "/")).await.status, 200);
    ruled.live.plan(window(10, 3_600)).unwrap().apply().unwrap();
    assert_eq!(ruled.ask(ask("GET", "/")).await.limit, Some(10));
}

#[test]
fn a_plan_for_rules_that_apply_no_more_is_refused() {
    let ruled = Ruled::by(http(1));
    let (first, second) = (ruled.live.plan(http(2)).unwrap(), ruled.live.plan(http(3)).unwrap());
    first.apply().unwrap();
    assert_eq!(second.apply().unwrap_err(), BuildError::Outdated);
    assert_eq!(ruled.live.current().to_string(), http(2).to_string());
    assert!(ruled.live.plan(http(1).rule(Rule::route("x"))).is_err());
}

#[test]
fn observers_are_told_the_digest_of_the_rules() {
    let ruled = Ruled::by(http(1));
    let (one, two) = (http(1).digest(), http(2).digest());
    ruled.live.plan(http(2)).unwrap().apply().unwrap();
    assert_eq!(
        ruled.seen.told(),
        [format!("rules {one} for None"), format!("rules {two} for Some(\"{one}\")")]
    );
    assert_ne!(one, two);
    assert_eq!(one.len(), 12);
}

#[tokio::test]
async fn a_policy_that_another_layer_keeps_does_not_lend_its_count_to_the_new_rule() {
    let ruled = Ruled::by(http(1));
    let other = RateLimitLayer::builder(ruled.limiter.clone()).policy(minute("http", 1)).build().unwrap();
    assert_eq!(ruled.admits(|| ask("GET", "/")).await, 1);
    ruled.seen.told();
    ruled.live.plan(http(2)).unwrap().apply().unwrap();
    assert!(ruled.seen.told().contains(&"policy_conflict".to_owned()));
    assert_eq!(ruled.admits(|| ask("GET", "/")).await, 2, "under keys of its own");
    drop(other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_meet_the_rules_of_before_or_after_and_nothing_else() {
    let ruled = std::sync::Arc::new(Ruled::by(http(1_000_000)));
    let asking = ruled.clone();
    let asks = tokio::spawn(async move {
        let mut limits = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            limits.insert(asking.ask(ask("GET", "/")).await.limit.unwrap());
        }
        limits
    });
    while !asks.is_finished() {
        for limit in [2_000_000, 1_000_000] {
            ruled.live.plan(http(limit)).unwrap().apply().unwrap();
        }
        tokio::task::yield_now().await;
    }
    let limits = asks.await.unwrap();
    assert!(limits.iter().all(|limit| [1_000_000, 2_000_000].contains(limit)), "{limits:?}");
    let left = ruled.ask(ask("GET", "/")).await.remaining.unwrap();
    assert_eq!(left, 1_000_000 - 20_001, "each was counted once");
}

#[tokio::test]
async fn a_block_that_was_lifted_stays_lifted_when_the_rules_change_again() {
    let rules = |limit| RuleSet::new().otherwise(minute("http", limit).block_for(secs(300)));
    let ruled = Ruled::by(rules(2));
    assert_eq!(ruled.admits(|| ask("POST", "/")).await, 2);
    ruled.live.plan(rules(4)).unwrap().apply().unwrap();
    ruled.advance(secs(1));
    // Before the client has come again.
    ruled.live.plan(rules(3)).unwrap().apply().unwrap();
    assert_eq!(ruled.admits(|| ask("POST", "/")).await, 3);
    assert_eq!(ruled.ask(ask("POST", "/")).await.retry_after, Some(300), "by the rule that applies");
}

#[test]
fn a_plan_says_that_counts_start_anew_under_the_key_of_a_policy_that_reserves() {
    let login = || RuleSet::new().otherwise(minute("login", 5));
    let failed = || RuleSet::new().otherwise(Limit::new(minute("login", 5)).count_if_status([]));
    for (before, after) in [(login(), failed()), (failed(), login())] {
        let plan = Ruled::by(before).live.plan(after).unwrap();
        let step = plan.steps().find(|step| step.starts_with("login:")).unwrap().to_owned();
        assert!(step.ends_with(", counts start anew"), "{step}");
    }
}
