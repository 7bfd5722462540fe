use std::time::Duration;

use http::Method;
use tower_ratelimit::observe::Metrics;
use tower_ratelimit::test_util::{ManualClock, namespace};
use tower_ratelimit::{Charge, Key, Policy, RateLimiter};

use super::recorder::Recorded;
use super::support::RedisServer;
use super::*;

fn layer_of(limiter: RateLimiter, rate: Rate) -> RateLimitLayer {
    RateLimitLayer::builder(limiter).policy(Policy::fixed_window("http", rate)).build().unwrap()
}

fn limiter() -> RateLimiter {
    RateLimiter::builder().observer(Metrics::new()).clock(ManualClock::new()).build().unwrap()
}

#[test]
fn o_met_1_client_key_as_metric_label() {
    let recorded = Recorded::default();
    recorded.during(|| {
        runtime().block_on(async {
            let layer = layer_of(limiter(), ONE);
            for i in 0..10_000 {
                for _ in 0..2 {
                    send(&layer, from(client(i))).await;
                }
            }
        });
    });
    let series = recorded.series();
    assert!(series.len() < 30, "{series:#?}");
    assert!(series.iter().all(|series| !series.contains("203.")), "{series:#?}");
    let requests = |outcome| {
        recorded.value(&format!("ratelimit_requests_total{{outcome={outcome},policy=http,source=local}}"))
    };
    assert_eq!(requests("allowed"), Some(10_000.0));
    assert_eq!(requests("limit"), Some(10_000.0));
    assert_eq!(recorded.value("ratelimit_refusals_total{policy=http,reason=limit}"), Some(10_000.0));
    assert_eq!(recorded.value("ratelimit_local_entries{}"), Some(10_000.0));
    assert_eq!(recorded.value("ratelimit_store_connected{}"), None, "in memory there is nothing to connect");
}

#[test]
fn near_limit_counts_what_was_allowed_with_80_percent_used() {
    let recorded = Recorded::default();
    recorded.during(|| {
        runtime().block_on(async {
            let layer = layer_of(limiter(), Rate::per_minute(10));
            for _ in 0..12 {
                send(&layer, from(client(1))).await;
            }
        });
    });
    assert_eq!(recorded.value("ratelimit_near_limit_total{policy=http}"), Some(3.0), "8, 9 and 10 of 10");
}

#[test]
fn redis_metrics_tell_answers_cached_refusals_errors_and_fallbacks() {
    let recorded = Recorded::default();
    let mut server = RedisServer::start();
    recorded.during(|| {
        runtime().block_on(async {
            let limiter = RateLimiter::builder()
                .redis(server.url())
                .namespace(namespace())
                .deadline(Duration::from_secs(5))
                .observer(Metrics::new())
                .build()
                .unwrap();
            let layer = layer_of(limiter, ONE);
            for _ in 0..4 {
                send(&layer, from(client(1))).await;
            }
            assert_eq!(recorded.value("ratelimit_store_connected{}"), Some(1.0));
            server.kill();
            // One of these meets the broken connection, the others find none.
            while recorded.value("ratelimit_store_connected{}") == Some(1.0) {
                send(&layer, from(client(2))).await;
            }
            send(&layer, from(client(2))).await;
        });
    });
    let value = |series: &str| recorded.value(series).unwrap_or_default();
    assert_eq!(value("ratelimit_requests_total{outcome=allowed,policy=http,source=redis}"), 1.0);
    assert_eq!(value("ratelimit_requests_total{outcome=limit,policy=http,source=redis}"), 1.0);
    assert_eq!(value("ratelimit_requests_total{outcome=limit,policy=http,source=deny_cache}"), 2.0);
    assert_eq!(value("ratelimit_deny_cache_hits_total{policy=http}"), 2.0);
    assert_eq!(value("ratelimit_store_duration_seconds{}"), 2.0, "asked and answered twice");
    // A check that it could not decide, and the connection that was lost.
    assert_eq!(value("ratelimit_store_errors_total{reason=io}"), 2.0);
    assert_eq!(value("ratelimit_fallbacks_total{policy=http,reason=io}"), 1.0);
    assert!(value("ratelimit_fallbacks_total{policy=http,reason=disconnected}") >= 1.0);
}

#[test]
fn o_rds_9_a_password_that_is_missing_is_a_problem_while_it_lasts_and_an_error_by_name() {
    let recorded = Recorded::default();
    recorded.during(|| {
        runtime().block_on(async {
            let server = RedisServer::start();
            server.command(&["CONFIG", "SET", "requirepass", "s3cr3t"]);
            let limiter =
                RateLimiter::builder().redis(server.url()).observer(Metrics::new()).build().unwrap();
            let layer = layer_of(limiter.clone(), Rate::per_minute(100));
            let problem = "ratelimit_misconfigured{problem=store}";
            send(&layer, from(client(1))).await;
            assert_eq!(recorded.value(problem), Some(1.0));
            assert!(recorded.value("ratelimit_store_errors_total{reason=auth}") >= Some(1.0));
            server.command(&["CONFIG", "SET", "requirepass", ""]);
            let started = std::time::Instant::now();
            while recorded.value(problem) != Some(0.0) {
                assert!(started.elapsed() < Duration::from_secs(10));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
}

#[test]
fn a_problem_is_1_while_it_lasts() {
    let recorded = Recorded::default();
    recorded.during(|| {
        runtime().block_on(async {
            let clock = ManualClock::new();
            let limiter =
                RateLimiter::builder().observer(Metrics::new()).clock(clock.clone()).build().unwrap();
            let layer = layer_of(limiter, Rate::per_minute(100));
            let problem = "ratelimit_misconfigured{problem=no_peer_address}";
            send(&layer, Request::new(())).await;
            assert_eq!(recorded.value(problem), Some(1.0));
            clock.advance(Duration::from_secs(59));
            send(&layer, from(client(1))).await;
            assert_eq!(recorded.value(problem), Some(1.0));
            clock.advance(Duration::from_secs(1));
            send(&layer, from(client(1))).await;
            assert_eq!(recorded.value(problem), Some(0.0));
        });
    });
    assert_eq!(recorded.value("ratelimit_odd_addresses_total{reason=no_peer}"), Some(1.0));
}

#[test]
fn o_blk_4_forwarding_headers_of_refused_untrusted_peers_are_counted() {
    let recorded = Recorded::default();
    recorded.during(|| {
        runtime().block_on(async {
            let layer = layer_of(limiter(), ONE);
            for _ in 0..3 {
                let mut request = from(client(7));
                request.headers_mut().insert("x-forwarded-for", "198.51.100.1".parse().unwrap());
                send(&layer, request).await;
            }
        });
    });
    assert_eq!(recorded.value("ratelimit_untrusted_forwarded_total{}"), Some(2.0), "one was admitted");
    assert_eq!(recorded.value("ratelimit_misconfigured{problem=untrusted_forwarding}"), Some(1.0));
}

#[test]
fn a_shadow_policy_is_counted_and_a_skipped_request_is_not() {
    let recorded = Recorded::default();
    recorded.during(|| {
        runtime().block_on(async {
            let layer = RateLimitLayer::builder(limiter())
                .policy(Policy::fixed_window("trial", ONE).shadow())
                .skip_method(Method::TRACE)
                .build()
                .unwrap();
            for _ in 0..3 {
                assert_eq!(send(&layer, from(client(1))).await.status(), 200);
            }
            let mut skipped = from(client(1));
            *skipped.method_mut() = Method::TRACE;
            send(&layer, skipped).await;
        });
    });
    assert_eq!(recorded.value("ratelimit_refusals_total{policy=trial,reason=limit}"), Some(2.0));
    assert_eq!(
        recorded.value("ratelimit_requests_total{outcome=allowed,policy=trial,source=local}"),
        Some(1.0)
    );
}

#[test]
fn what_another_policy_refused_is_spared() {
    let recorded = Recorded::default();
    recorded.during(|| {
        runtime().block_on(async {
            let limiter = limiter();
            let [tight, wide] = limiter
                .policies(&[
                    Policy::fixed_window("tight", ONE),
                    Policy::fixed_window("wide", Rate::per_minute(9)),
                ])
                .unwrap();
            for _ in 0..2 {
                let key = Key::principal("ann");
                let _ = limiter.check([Charge::new(&tight, key), Charge::new(&wide, key)]).await;
            }
        });
    });
    assert_eq!(
        recorded.value("ratelimit_requests_total{outcome=spared,policy=wide,source=local}"),
        Some(1.0)
    );
}
