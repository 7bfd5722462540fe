//! Rules that make no sense are refused when they are built, by field and value.

use http::Method;
use tower_ratelimit::rules::{Factor, Limit, LiveRules, Rule, RuleSet};
use tower_ratelimit::{BuildError, MAX_LIMIT, Policy, Rate, RateLimitLayer, RateLimiter};

use crate::harness::{Ruled, minute};

fn refused(rules: RuleSet) -> String {
    match Ruled::new(rules) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_wrong_is_named_with_its_field_and_value() {
    let set = RuleSet::new;
    for route in ["api", "/{*all}/x", "/a{b}", ""] {
        let told = refused(set().rule(Rule::route(route)));
        assert!(told.starts_with(&format!("route: {route:?} is not allowed")), "{told}");
    }
    let other = Limit::new(minute("http", 2));
    let told = refused(set().rule(Rule::any().method(Method::GET).limit(minute("http", 1))).otherwise(other));
    assert_eq!(told, "policy: the name \"http\" stands for two different policies");
    let told = refused(set().otherwise(minute("http", 1)).otherwise(minute("http", 1)));
    assert_eq!(told, "policy: the name \"http\" stands twice in one layer");
    let told = refused((0..9).fold(set(), |set, i| set.otherwise(minute(&format!("p{i}"), 1))));
    assert_eq!(told, "policy: 9 are not allowed together, it takes at most 8");
    let told = refused(set().otherwise(minute("Http", 1)));
    assert!(told.starts_with("name: \"Http\""), "{told}");
    let told = refused(set().otherwise(Limit::new(minute("http", 1)).plan("pro", MAX_LIMIT + 1)));
    assert!(told.starts_with("limit: 9007199254740992 is not allowed"), "{told}");
    let told = refused(set().otherwise(Limit::new(minute("http", 1)).plan("pro", 1).plan("pro", 2)));
    assert_eq!(told, "plan: \"pro\" stands twice in policy http");
    for (numerator, denominator) in [(0, 1), (1, 0), (1_000_001, 1)] {
        let factor = Factor::ratio("vip", numerator, denominator).users(["a"]);
        let told = refused(set().otherwise(Limit::new(minute("http", 1)).factor(factor)));
        assert!(told.starts_with(&format!("factor: {numerator}/{denominator} of \"vip\"")), "{told}");
    }
    let told = refused(set().skip_ips(tower_ratelimit::identity::ClientIp::peer(), ["10.0.0.0/33"]));
    assert!(told.contains("\"10.0.0.0/33\""), "{told}");
}

#[test]
fn rules_exclude_a_list_of_policies_and_belong_to_one_limiter() {
    let limiter = RateLimiter::memory();
    let live = LiveRules::new(&limiter, RuleSet::new().otherwise(minute("http", 1))).unwrap();
    let layer = || RateLimitLayer::builder(limiter.clone()).rules(live.clone());
    let error = layer().policy(Policy::fixed_window("x", Rate::per_second(1))).build().unwrap_err();
    assert_eq!(error, BuildError::Conflict { field: "rules", other: "policy or limit" });
    let other = RateLimitLayer::builder(RateLimiter::memory()).rules(live.clone()).build().unwrap_err();
    assert_eq!(other, BuildError::Conflict { field: "rules", other: "another limiter than theirs" });
    assert!(layer().build().is_ok());
}
