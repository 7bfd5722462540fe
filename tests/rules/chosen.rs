//! Which policies a request meets, and with which limit.

use http::{Method, StatusCode};
use tower_ratelimit::identity::{ClientIp, Principal, Route};
use tower_ratelimit::rules::{Factor, Facts, Limit, Rule, RuleSet};

use crate::harness::{Ruled, ask, minute, secs};

#[tokio::test]
async fn the_first_rule_that_holds_applies_and_otherwise_the_default() {
    let rules = RuleSet::new()
        .rule(Rule::route("/api/{id}").method(Method::POST).plan("pro").limit(minute("pro-post", 4)))
        .rule(Rule::route("/api/{id}").method(Method::POST).limit(minute("post", 3)))
        .rule(Rule::route("/api/{*rest}").or_route("/v2/{*rest}").limit(minute("api", 2)))
        .rule(Rule::any().tenant("acme").limit(minute("acme", 9)))
        .rule(Rule::any().when(|head| head.headers().contains_key("x-batch")).limit(minute("batch", 8)))
        .rule(Rule::route("/free"))
        .otherwise(minute("http", 1));
    let ruled = Ruled::by(rules);
    for (request, limit) in [
        (ask("POST", "/api/7").who("w.ann.pro"), Some(4)),
        (ask("POST", "/api/7").who("w.ann.free"), Some(3)),
        (ask("POST", "/api/7"), Some(3)),
        (ask("POST", "/api/7/x"), Some(2)),
        (ask("BREW", "/v2/coffee"), Some(2)),
        (ask("GET", "/").who("acme.ann.free"), Some(9)),
        (ask("GET", "/free"), None),
        (ask("GET", "/free/"), Some(1)),
        (ask("GET", "/elsewhere"), Some(1)),
    ] {
        assert_eq!(ruled.ask(request).await.limit, limit);
    }
}

#[tokio::test]
async fn without_a_default_what_no_rule_is_for_is_not_limited() {
    let ruled = Ruled::by(RuleSet::new().rule(Rule::route("/api").limit(minute("api", 0))));
    assert_eq!(ruled.ask(ask("GET", "/")).await.limit, None);
    assert_eq!(ruled.ask(ask("GET", "/api")).await.status, 429);
    assert_eq!(ruled.seen.keys(), ["api 203.0.113.9"]);
}

#[tokio::test]
async fn skips_cost_nothing_and_touch_no_store() {
    let rules = RuleSet::new()
        .skip_path("/healthz")
        .skip_method(Method::TRACE)
        .skip_ips(ClientIp::peer(), ["10.0.0.0/8"])
        .skip(|head| head.path().starts_with("/static/"))
        .otherwise(minute("http", 0));
    let ruled = Ruled::by(rules);
    for request in [
        ask("GET", "/healthz?x=1"),
        ask("TRACE", "/"),
        ask("GET", "/").from("10.1.2.3"),
        ask("GET", "/static/logo.svg"),
    ] {
        let answer = ruled.ask(request).await;
        assert_eq!((answer.status, answer.limit), (StatusCode::OK, None));
    }
    assert!(ruled.seen.keys().is_empty());
    assert_eq!(ruled.limiter.local_entries(), 0);
    // A skip is for one spelling, or a client could choose one that is free.
    for path in ["/healthz/", "//healthz", "/%68ealthz"] {
        assert_eq!(ruled.ask(ask("GET", path)).await.status, 429, "{path}");
    }
}

#[tokio::test]
async fn a_plan_is_another_limit_on_the_same_count() {
    let limit = Limit::new(minute("api", 3)).by(Principal::by_user()).plan("pro", 5);
    let ruled = Ruled::by(RuleSet::new().otherwise(limit));
    let with = |plan: &str| ask("GET", "/").who(&format!("w.ann.{plan}"));
    assert_eq!(ruled.admits(|| with("unheard-of")).await, 3);
    // The plan is changed, what was used stays used.
    assert_eq!(ruled.ask(with("pro")).await.remaining, Some(1));
    assert_eq!(ruled.admits(|| with("pro")).await, 1);
    assert_eq!(ruled.ask(with("free")).await.limit, Some(3));
    assert_eq!(ruled.ask(ask("GET", "/")).await.limit, Some(3), "nobody has no plan");
}

#[tokio::test]
async fn a_factor_applies_to_limits_that_name_it_only() {
    let vip = Factor::ratio("vip", 3, 2).users(["ann"]).tenants(["acme"]).plans(["gold"]);
    let vip = vip.when(|head| head.extensions().get::<u8>() == Some(&7));
    let limit = |name, most| Limit::new(minute(name, most)).by(Principal::by_user()).plan("pro", 10);
    let ruled = Ruled::by(
        RuleSet::new()
            .rule(Rule::route("/login").limit(limit("login", 3)))
            .otherwise(limit("api", 3).factor(vip)),
    );
    for (request, most) in [
        (ask("GET", "/").who("w.ann.free"), 4),
        (ask("GET", "/").who("w.ann.pro"), 15),
        (ask("GET", "/").who("acme.bob.free"), 4),
        (ask("GET", "/").who("w.bob.gold"), 4),
        (ask("GET", "/").extension(7u8), 4),
        (ask("GET", "/").who("w.bob.pro"), 10),
        (ask("GET", "/").who("w.bob.free"), 3),
        (ask("GET", "/login").who("acme.ann.gold"), 3),
    ] {
        assert_eq!(ruled.ask(request).await.limit, Some(most));
    }
}

#[tokio::test]
async fn limits_and_costs_are_read_from_the_request() {
    let limit = Limit::new(minute("api", 10))
        .cost_by(|head| if head.method() == Method::POST { 4 } else { 1 })
        .limit_by(|head| head.extensions().get::<u64>().copied())
        .plan("pro", 20);
    let ruled = Ruled::by(RuleSet::new().otherwise(limit));
    assert_eq!(ruled.ask(ask("POST", "/")).await.remaining, Some(6));
    assert_eq!(ruled.ask(ask("GET", "/")).await.remaining, Some(5));
    assert_eq!(ruled.ask(ask("GET", "/").extension(100u64)).await.remaining, Some(94));
    assert_eq!(ruled.ask(ask("GET", "/").who("w.ann.pro")).await.remaining, Some(13), "none was read");
    assert_eq!(ruled.ask(ask("POST", "/").extension(3u64)).await.status, 429, "never fits");
    assert_eq!(ruled.ask(ask("GET", "/").extension(u64::MAX)).await.limit, Some((1 << 53) - 1));
}

#[tokio::test]
async fn facts_may_be_the_applications_own() {
    #[derive(Clone)]
    struct Session(&'static str);
    fn plan<'a>(head: &tower_ratelimit::identity::RequestHead<'a>) -> Option<&'a str> {
        head.extensions().get::<Session>().map(|session| session.0)
    }
    let facts = Facts::new().plan_by(plan).tenant_by(|_| Some("acme")).user_by(|_| Some("ann"));
    let limit = Limit::new(minute("api", 1)).plan("gold", 8).factor(Factor::times("vip", 2).users(["ann"]));
    let ruled = Ruled::by(RuleSet::new().facts(facts).rule(Rule::any().tenant("acme").limit(limit)));
    assert_eq!(ruled.ask(ask("GET", "/").extension(Session("gold"))).await.limit, Some(16));
    assert_eq!(ruled.ask(ask("GET", "/").who("other.bob.gold")).await.limit, Some(2));
}

#[tokio::test]
async fn o_key_2_without_a_router_the_rules_pattern_is_the_route() {
    let limit = |name| Limit::new(minute(name, 3)).by((ClientIp::peer(), Route::new()));
    let rules = RuleSet::new().rule(Rule::route("/verify/{code}").limit(limit("verify")));
    let ruled = Ruled::by(rules.otherwise(limit("http")));
    for code in 1..=3 {
        assert_eq!(ruled.ask(ask("GET", &format!("/verify/{code}"))).await.status, 200);
    }
    assert_eq!(ruled.ask(ask("GET", "/verify/4")).await.status, 429);
    assert_eq!(ruled.seen.keys(), ["verify 203.0.113.9:route=/verify/%7Bcode%7D"]);
    assert_eq!(ruled.ask(ask("GET", "/elsewhere")).await.status, 200);
    assert_eq!(ruled.seen.keys(), ["http 203.0.113.9:route=none"]);
}

#[tokio::test]
async fn where_a_router_has_matched_its_pattern_decides_and_the_path_as_it_is() {
    use axum::Router;
    use axum::body::Body;
    use axum::routing::any;
    use http::Request;
    use tower::ServiceExt as _;
    use tower_ratelimit::{RateLimitLayer, RateLimiter, rules::LiveRules};

    let rules = RuleSet::new()
        .rule(Rule::route("/api/{id}").limit(minute("api", 4)))
        .rule(Rule::route("/proxied/login").limit(minute("login", 5)))
        .rule(Rule::route("/proxied/free"))
        .otherwise(minute("http", 7));
    let limiter = RateLimiter::memory();
    let live = LiveRules::new(&limiter, rules).unwrap();
    let layer = RateLimitLayer::builder(limiter).rules(live).build().unwrap();
    let app: Router = Router::new()
        .route("/api/{thing}", any(|| async {}))
        .route("/api/{thing}/deep", any(|| async {}))
        .route("/proxied/{*rest}", any(|| async {}))
        .layer(layer);
    let limit = async |path: &str| {
        let response = app.clone().oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let limit = response.headers().get("x-ratelimit-limit");
        limit.map_or_else(String::new, |limit| limit.to_str().unwrap().to_owned())
    };
    assert_eq!(limit("/proxied/login").await, "5");
    assert_eq!(limit("/proxied/free").await, "");
    assert_eq!(limit("/proxied//free").await, "7", "handled elsewhere, so not free");
    assert_eq!(limit("/api/7").await, "4");
    assert_eq!(limit("/api/a%2Fb").await, "4");
    assert_eq!(limit("/api/7/deep").await, "7");
    assert_eq!(limit("//api/7").await, "4", "a 404 in a spelling of a rule's path");
}

#[tokio::test]
async fn several_limits_of_a_rule_are_all_or_nothing() {
    let rule = Rule::any()
        .limit(Limit::new(minute("user", 2)).by((ClientIp::peer(), Principal::by_user())))
        .limit(Limit::new(minute("ip", 3)).by(ClientIp::peer()));
    let ruled = Ruled::by(RuleSet::new().rule(rule));
    assert_eq!(ruled.admits(|| ask("GET", "/").who("w.ann.free")).await, 2);
    assert_eq!(ruled.admits(|| ask("GET", "/").who("w.bob.free")).await, 1);
    ruled.advance(secs(60));
    assert_eq!(ruled.admits(|| ask("GET", "/").who("w.bob.free")).await, 2);
}

#[tokio::test]
async fn a_limit_without_an_identity_is_by_the_address_that_the_rules_find() {
    let behind = ClientIp::behind(["203.0.113.0/24"]).unwrap();
    let rules = RuleSet::new()
        .rule(Rule::route("/own").limit(Limit::new(minute("own", 1)).by(behind)))
        .otherwise(minute("http", 1));
    let ruled = Ruled::by(rules);
    for path in ["/own", "/"] {
        let from = |client: &'static str| ask("GET", path).header("x-forwarded-for", client);
        assert_eq!(ruled.ask(from("198.51.100.1")).await.status, 200);
        assert_eq!(ruled.ask(from("198.51.100.1")).await.status, 429);
        assert_eq!(ruled.ask(from("198.51.100.2")).await.status, 200);
    }
}

#[tokio::test]
async fn a_request_may_be_turned_away_by_rules_of_ones_own() {
    use tower_ratelimit::identity::RequestHead;
    use tower_ratelimit::rules::{Rules, Selection};
    use tower_ratelimit::{Charge, Key, PolicyHandle, RateLimitLayer, RateLimiter};

    struct Own(PolicyHandle);
    impl Rules for Own {
        fn select(&self, head: &RequestHead<'_>, out: &mut Selection<'_>) {
            assert!(out.charge(Charge::new(&self.0, Key::principal("all"))));
            assert!(!out.charge(Charge::new(&self.0, Key::principal("again"))), "one policy, one charge");
            match head.path() {
                "/closed" => out.reject(StatusCode::GONE),
                "/odd" => out.reject(StatusCode::OK),
                _ => {}
            }
        }
    }
    let limiter = RateLimiter::memory();
    let policy = limiter.policy(minute("own", 5)).unwrap();
    let layer = RateLimitLayer::builder(limiter).rules(Own(policy)).build().unwrap();
    for (path, status, remaining) in [("/closed", 410, None), ("/odd", 403, None), ("/", 200, Some(4))] {
        let answer = crate::harness::through(&layer, ask("GET", path)).await;
        assert_eq!((answer.status.as_u16(), answer.remaining), (status, remaining), "{path}");
    }
}

#[tokio::test]
async fn the_burst_of_a_bucket_changes_with_the_limit_of_a_plan() {
    use tower_ratelimit::{Policy, Rate};

    let bucket = Policy::token_bucket("api", Rate::per_minute(10)).burst(5);
    let limit = Limit::new(bucket).by(Principal::by_user()).plan("pro", 20);
    let ruled = Ruled::by(RuleSet::new().otherwise(limit));
    assert_eq!(ruled.ask(ask("GET", "/").who("w.ann.free")).await.limit, Some(5));
    assert_eq!(ruled.ask(ask("GET", "/").who("w.bob.pro")).await.limit, Some(10));
    assert_eq!(ruled.admits(|| ask("GET", "/").who("w.bob.pro")).await, 9);
}
