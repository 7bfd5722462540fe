//! Several layers around one request, and several policies in one layer.

use axum::body::Body;
use axum::{Extension, Router, routing};
use http::StatusCode;
use tower::{Layer as _, ServiceExt as _};
use tower_ratelimit::identity::{Constant, Header};
use tower_ratelimit::middleware::{Missing, RateLimitLayerBuilder, Settlement};
use tower_ratelimit::rules::Limit;
use tower_ratelimit::{Key, Policy, Rate, RateLimitLayer, RateLimiter};

use crate::harness::{Answer, Handler, Limited, Seen, ask, fixed, from, get, limiter, named, secs};
use crate::support::Logs;

fn by_key() -> Header {
    Header::new("x-api-key").unwrap()
}

fn layer(limiter: &RateLimiter, policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder(limiter.clone()).policy(policy).build().unwrap()
}

/// `(status, limit, remaining)`, of which nothing is shown where nothing is
/// limited.
fn shown(answer: &Answer) -> (u16, Option<u64>, Option<u64>) {
    (answer.status, answer.limit(), answer.remaining())
}

#[tokio::test]
async fn the_same_layer_on_router_and_route_charges_once() {
    let layer = RateLimitLayer::per_ip(Rate::per_minute(2));
    let route = routing::get(async || "hello").layer(layer.clone());
    let app = Router::new().route("/", route).layer(layer);
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(shown(&ask(&app, from("203.0.113.9")).await));
    }
    assert_eq!(seen, [(200, Some(2), Some(1)), (200, Some(2), Some(0)), (429, Some(2), Some(0))]);
}

#[tokio::test]
async fn two_layers_with_one_policy_on_one_limiter_charge_once() {
    let (limiter, ..) = limiter();
    let (outer, inner) = (layer(&limiter, fixed(2, secs(60))), layer(&limiter, fixed(2, secs(60))));
    let app = outer.layer(inner.layer(inner.layer(Handler::new())));
    assert_eq!(shown(&ask(&app, from("203.0.113.9")).await), (200, Some(2), Some(1)));
    assert_eq!(shown(&ask(&app, from("203.0.113.9")).await), (200, Some(2), Some(0)));
    assert_eq!(ask(&app, from("203.0.113.9")).await.status, 429);
}

#[tokio::test]
async fn an_inner_layer_charges_what_the_outer_one_has_not() {
    let (limiter, ..) = limiter();
    let global = || named("global", 10, secs(60));
    let outer = layer(&limiter, global());
    let inner = RateLimitLayer::builder(limiter.clone())
        .policy(global())
        .policy(named("route", 2, secs(60)))
        .build()
        .unwrap();
    let app = outer.layer(inner.layer(Handler::new()));
    assert_eq!(shown(&ask(&app, from("203.0.113.9")).await), (200, Some(2), Some(1)));
    let [counted] = limiter.policies(&[global()]).unwrap();
    assert_eq!(limiter.peek(&counted, &Key::ip("203.0.113.9".parse().unwrap())).await.used(), 1);
}

#[tokio::test]
async fn one_name_for_two_rules_enforces_both_and_is_an_error_event() {
    let (logs, _guard) = Logs::capture();
    let (limiter, _, seen) = limiter();
    let outer = layer(&limiter, fixed(3, secs(60)));
    assert_eq!(seen.told(), [""; 0]);
    let inner = layer(&limiter, fixed(1, secs(60)));
    assert_eq!(seen.told(), ["misconfigured policy_conflict"]);
    let errors = logs.matching("policy_conflict");
    assert!(errors.len() == 1 && errors[0].starts_with("ERROR"), "{errors:?}");

    let key = Key::ip("203.0.113.9".parse().unwrap());
    let [wide, tight] = [3, 1].map(|limit| limiter.policy(fixed(limit, secs(60))).unwrap());
    assert_eq!(wide.store_key(&key), "http:rl:203.0.113.9");
    assert_eq!(tight.store_key(&key), "http~1-60000-0:rl:203.0.113.9");

    let app = outer.layer(inner.layer(Handler::new()));
    let mut got = Vec::new();
    for _ in 0..4 {
        got.push(shown(&ask(&app, from("203.0.113.9")).await));
    }
    let refused = (429, Some(1), Some(0));
    assert_eq!(got, [(200, Some(1), Some(0)), refused, refused, (429, Some(3), Some(0))]);
    assert_eq!(limiter.peek(&wide, &key).await.used(), 3);
    assert_eq!(limiter.peek(&tight, &key).await.used(), 1);
}

#[tokio::test]
async fn two_layers_that_know_nothing_of_each_other_both_count() {
    let outer = RateLimitLayer::per_ip(Rate::per_minute(5));
    let inner = RateLimitLayer::per_ip(Rate::per_minute(2));
    let app = outer.layer(inner.layer(Handler::new()));
    let mut got = Vec::new();
    for _ in 0..6 {
        got.push(shown(&ask(&app, from("203.0.113.9")).await));
    }
    let refused = (429, Some(2), Some(0));
    let by_outer = (429, Some(5), Some(0));
    assert_eq!(got, [(200, Some(2), Some(1)), (200, Some(2), Some(0)), refused, refused, refused, by_outer]);
}

#[tokio::test]
async fn o_hdr_6_the_tightest_layer_shows_and_then_the_one_that_refuses() {
    let tight = || RateLimitLayer::builder(RateLimiter::memory()).policy(named("key", 1, secs(60)));
    let wide = || RateLimitLayer::builder(RateLimiter::memory()).policy(named("ip", 100, secs(3600)));
    let tight_first = |builder: RateLimitLayerBuilder| builder.identity(by_key()).build().unwrap();
    let ask_keyed = async |app: &_| ask(app, from("203.0.113.9").header("x-api-key", "k")).await;

    let inside = wide().build().unwrap().layer(tight_first(tight()).layer(Handler::new()));
    assert_eq!(shown(&ask_keyed(&inside).await), (200, Some(1), Some(0)));
    let refused = ask_keyed(&inside).await;
    assert_eq!(shown(&refused), (429, Some(1), Some(0)));
    // `retry_after` asserts that there is one line only.
    assert!(refused.retry_after() <= Some(60), "the inner policy's, not the outer one's hour");

    let outside = tight_first(tight()).layer(wide().build().unwrap().layer(Handler::new()));
    assert_eq!(shown(&ask_keyed(&outside).await), (200, Some(1), Some(0)));
    assert_eq!(shown(&ask_keyed(&outside).await), (429, Some(1), Some(0)));
}

#[tokio::test]
async fn with_several_policies_the_tightest_shows_and_of_those_that_refuse_the_longest_wait() {
    let limited =
        Limited::new(|layer| layer.policy(named("minute", 2, secs(60))).policy(named("hour", 3, secs(3600))));
    let ask = || limited.ask(from("203.0.113.9"));
    assert_eq!(shown(&ask().await), (200, Some(2), Some(1)));
    assert_eq!(shown(&ask().await), (200, Some(2), Some(0)));
    limited.advance(1000);
    let refused = ask().await;
    assert_eq!((shown(&refused), refused.retry_after()), ((429, Some(2), Some(0)), Some(59)));
    limited.advance(59_000);
    assert_eq!(shown(&ask().await), (200, Some(3), Some(0)), "the refusal cost the hour nothing");
    let refused = ask().await;
    assert_eq!((shown(&refused), refused.retry_after()), ((429, Some(3), Some(0)), Some(3540)));
}

#[tokio::test]
async fn o_win_13_a_request_refused_by_one_policy_spends_no_other() {
    let (limiter, ..) = limiter();
    let (user, global) = (named("user", 1, secs(60)), named("global", 10, secs(60)));
    let layer = RateLimitLayer::builder(limiter.clone())
        .policy_by(user, by_key())
        .policy_by(global.clone(), Constant::new("all", "all"))
        .build()
        .unwrap();
    let app = layer.layer(Handler::new());
    let ask_as = async |user: &str| ask(&app, from("203.0.113.9").header("x-api-key", user)).await;

    let mut got = Vec::new();
    for _ in 0..20 {
        got.push(ask_as("a").await.status);
    }
    got.push(ask_as("b").await.status);
    let expected: Vec<u16> = [200].into_iter().chain(std::iter::repeat_n(429, 19)).chain([200]).collect();
    assert_eq!(got, expected);
    let global = limiter.policy(global).unwrap();
    let all = Key::builder().named("all", "all").finish();
    assert_eq!(limiter.peek(&global, &all).await.used(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_win_13_in_parallel_as_well() {
    let limited = Limited::new(|layer| {
        layer
            .policy_by(named("user", 1, secs(60)), by_key())
            .policy_by(named("global", 10, secs(60)), Constant::new("all", "all"))
    });
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let service = limited.service.clone();
            tokio::spawn(async move { ask(&service, from("203.0.113.9").header("x-api-key", "a")).await })
        })
        .collect();
    for task in tasks {
        let _answer = task.await.unwrap();
    }
    assert_eq!(limited.handler.hits(), 1);
    // Nine of the ten are left for others.
    let others = (0..10).map(|i| from("203.0.113.9").header("x-api-key", i));
    let got = limited.statuses(others).await;
    assert_eq!((&got[..9], got[9]), (&[200; 9][..], 429));
}

#[tokio::test]
async fn a_policy_whose_identity_is_missing_can_be_skipped_alone() {
    let limited = Limited::new(|layer| {
        layer
            .policy_by(named("key", 1, secs(60)), by_key())
            .policy(named("ip", 3, secs(60)))
            .missing(Missing::Skip)
    });
    let keyed = || from("203.0.113.9").header("x-api-key", "k");
    let requests = [from("203.0.113.9"), keyed(), keyed(), from("203.0.113.9"), from("203.0.113.9")];
    assert_eq!(limited.statuses(requests).await, [200, 200, 429, 200, 429]);
}

fn told_of_shadow(seen: &Seen) -> usize {
    seen.count("trial refused in shadow")
}

#[tokio::test]
async fn a_shadow_policy_counts_and_reports_but_never_refuses_or_shows() {
    let limited = Limited::by(named("trial", 1, secs(60)).shadow());
    for refused in [0, 1, 1] {
        let answer = limited.ask(from("203.0.113.9")).await;
        assert_eq!(shown(&answer), (200, None, None));
        assert_eq!(answer.retry_after(), None);
        assert_eq!(told_of_shadow(&limited.seen), refused);
    }

    let limited = Limited::new(|layer| {
        layer.policy(named("trial", 1, secs(60)).shadow()).policy(named("real", 3, secs(60)))
    });
    let mut got = Vec::new();
    for _ in 0..4 {
        got.push(shown(&limited.ask(from("203.0.113.9")).await));
    }
    let three = Some(3);
    assert_eq!(
        got,
        [(200, three, Some(2)), (200, three, Some(1)), (200, three, Some(0)), (429, three, Some(0))]
    );
    assert_eq!(limited.seen.told().iter().filter(|told| *told == "real refused").count(), 1);
}

#[tokio::test]
async fn a_shadow_policy_is_told_when_it_would_block() {
    let limited = Limited::by(named("trial", 1, secs(60)).block_for(secs(600)).shadow());
    for _ in 0..3 {
        assert_eq!(limited.ask(from("203.0.113.9")).await.status, 200);
    }
    let told = limited.seen.told();
    assert_eq!(told, ["trial refused in shadow", "trial blocked", "trial refused in shadow"]);
}

#[tokio::test]
async fn the_decision_that_outer_layers_read_is_the_one_that_the_client_sees() {
    let telling = |policy| {
        let builder = RateLimitLayer::builder(RateLimiter::memory()).policy(policy);
        builder.decision_in_response().build().unwrap()
    };
    let stacks = [("wide", "tight"), ("tight", "wide")];
    for (outer, inner) in stacks {
        let limit = |name| if name == "tight" { 1 } else { 100 };
        let [outer, inner] = [outer, inner].map(|name| telling(named(name, limit(name), secs(60))));
        let app = outer.layer(inner.layer(Handler::new()));
        for allowed in [true, false] {
            let decision = ask(&app, get("203.0.113.9", "/")).await.decision.unwrap();
            assert_eq!((decision.policy(), decision.is_allowed()), ("tight", allowed));
        }
    }
}

/// Whoever builds a layer for each connection must not sell a new budget with
/// each.
#[tokio::test]
async fn a_policy_that_nobody_held_for_a_moment_has_its_counters_still() {
    let limiter = RateLimiter::memory();
    for (connection, expected) in [200, 200, 429, 429].into_iter().enumerate() {
        let layer = RateLimitLayer::builder(limiter.clone()).policy(fixed(2, secs(60))).build().unwrap();
        let service = layer.layer(Handler::new());
        let response = service.oneshot(from("203.0.113.9").body(()).unwrap()).await.unwrap();
        assert_eq!(response.status(), expected, "{connection}");
    }
    assert_eq!(limiter.local_entries(), 1);
}

#[tokio::test]
async fn what_a_handler_reports_is_charged_by_each_layer_around_it() {
    let (limiter, ..) = limiter();
    let of = |name| named(name, 100, secs(60)).reserve_for(secs(60));
    let route = routing::get(async |Extension(tokens): Extension<Settlement>| tokens.report(12));
    let app = Router::new().route("/", route).layer(layer(&limiter, of("user")));
    let app = app.layer(layer(&limiter, of("tenant")));
    assert_eq!(ask(&app, from("203.0.113.9")).await.status, 200);
    for name in ["user", "tenant"] {
        let policy = limiter.policy(of(name)).unwrap();
        let key = Key::ip("203.0.113.9".parse().unwrap());
        assert_eq!(limiter.peek(&policy, &key).await.used(), 12, "{name}");
    }
}

#[tokio::test]
async fn the_tightest_policy_shows_after_another_one_has_got_its_place_back() {
    let (limiter, ..) = limiter();
    let failures =
        Limit::new(named("failures", 100, secs(60))).cost(10).count_if_status([StatusCode::CONFLICT]);
    let layer = RateLimitLayer::builder(limiter)
        .limit(failures)
        .limit(Limit::new(named("all", 96, secs(60))))
        .build()
        .unwrap();
    let app = layer.layer(Handler::new());
    assert_eq!(shown(&ask(&app, from("203.0.113.9")).await), (200, Some(96), Some(95)));
}

#[tokio::test]
async fn a_shadow_policy_that_would_have_refused_counts_no_answer() {
    let (limiter, ..) = limiter();
    let policy = || named("failures", 2, secs(60)).shadow().reserve_for(secs(60));
    let layer = RateLimitLayer::builder(limiter.clone())
        .limit(Limit::new(policy()).count_if_status([StatusCode::OK]))
        .build()
        .unwrap();
    let app = layer.layer(Handler::new());
    for _ in 0..5 {
        assert_eq!(ask(&app, from("203.0.113.9")).await.status, 200);
    }
    let key = Key::ip("203.0.113.9".parse().unwrap());
    let seen = limiter.peek(&limiter.policy(policy()).unwrap(), &key).await;
    assert_eq!(seen.used(), 2, "as it would be if it were enforced");
}

#[tokio::test]
async fn o_hdr_6_an_inner_refusal_is_shown_though_the_outer_layer_has_less_left() {
    let (limiter, ..) = limiter();
    let outer = layer(&limiter, named("outer", 3, secs(600)));
    let inner = RateLimitLayer::builder(limiter.clone())
        .limit(Limit::new(named("inner", 10, secs(60))).cost(8))
        .build()
        .unwrap();
    let app = outer.layer(inner.layer(Handler::new()));
    assert_eq!(ask(&app, from("203.0.113.9")).await.status, 200);
    // One is left outside, two inside, where eight are asked for.
    let refused = app.oneshot(from("203.0.113.9").body(Body::empty()).unwrap()).await.unwrap();
    let shown = |name: &str| refused.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
    assert_eq!((refused.status().as_u16(), shown("x-ratelimit-limit")), (429, 10), "the policy that refuses");
    assert_eq!((shown("x-ratelimit-remaining"), shown("retry-after")), (2, 60));
}
