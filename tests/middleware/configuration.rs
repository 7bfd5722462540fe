//! What is refused when a layer is built, and what is never shown.

use std::fmt::{Debug, Display};
use std::time::Duration;

use http::StatusCode;
use tower_ratelimit::identity::{ClientIp, Constant, Header, Identify as _, RequestHead};
use tower_ratelimit::middleware::{Missing, RateLimitLayerBuilder};
use tower_ratelimit::response::ResetFormat;
use tower_ratelimit::{
    BuildError, Charge, Key, KeySecret, MAX_WINDOW, Policy, Rate, RateLimitLayer, RateLimiter,
    RateLimiterBuilder,
};

use crate::harness::{fixed, from, named, secs};

fn minute(name: &str) -> Policy {
    named(name, 1, secs(60))
}

fn refused_limiter(set: impl FnOnce(RateLimiterBuilder) -> RateLimiterBuilder) -> BuildError {
    set(RateLimiter::builder()).build().unwrap_err()
}

fn refused_layer(set: impl FnOnce(RateLimitLayerBuilder) -> RateLimitLayerBuilder) -> BuildError {
    set(RateLimitLayer::builder(RateLimiter::memory())).build().unwrap_err()
}

/// The error names the field first, and then the value.
fn assert_names(error: &BuildError, field: &str, value: &str) {
    let text = error.to_string();
    assert!(text.starts_with(&format!("{field}: ")), "{field}: {text}");
    assert!(text.contains(value), "{value}: {text}");
    assert!(!text.ends_with('.'), "{text}");
}

#[test]
fn a_limiter_is_refused_by_field_and_value() {
    for (namespace, shown) in [(":", "\":\""), ("a b", "\"a b\""), ("{a}", "\"{a}\""), ("a::", "\"a::\"")] {
        assert_names(&refused_limiter(|limiter| limiter.namespace(namespace)), "namespace", shown);
    }
    let long = "n".repeat(65);
    assert_names(&refused_limiter(|limiter| limiter.namespace(&long)), "namespace", &long);
    for deadline in [Duration::ZERO, secs(61)] {
        let error = refused_limiter(|limiter| limiter.redis("redis://127.0.0.1").deadline(deadline));
        assert_names(&error, "deadline", &format!("{deadline:?}"));
    }
    for (numerator, denominator) in [(0, 4), (5, 4), (1, 0), (0, 0)] {
        let share = |limiter: RateLimiterBuilder| {
            limiter.redis("redis://127.0.0.1").fallback_share(numerator, denominator)
        };
        assert_names(&refused_limiter(share), "fallback_share", &format!("{numerator}/{denominator}"));
    }
    assert_names(&refused_limiter(|limiter| limiter.local_capacity(0)), "local_capacity", "0");
}

#[test]
fn settings_that_have_no_effect_in_memory_are_refused() {
    let error = refused_limiter(|limiter| limiter.deadline(secs(1)));
    assert_eq!(error, BuildError::NeedsRedis { field: "deadline" });
    assert_names(&error, "deadline", "Redis");
    let error = refused_limiter(|limiter| limiter.fallback_share(1, 4));
    assert_eq!(error, BuildError::NeedsRedis { field: "fallback_share" });
}

#[test]
fn a_policy_is_refused_by_field_and_value() {
    for name in ["", "Http", "a:b", "{a}"] {
        assert_names(&refused_layer(|layer| layer.policy(minute(name))), "name", &format!("{name:?}"));
    }
    for block in [Duration::ZERO, Duration::from_micros(1500), MAX_WINDOW + secs(1)] {
        let error = refused_layer(|layer| layer.policy(minute("http").block_for(block)));
        assert_names(&error, "block_for", &format!("{block:?}"));
    }
    let error: BuildError = Rate::new(1 << 53, secs(60)).unwrap_err().into();
    assert_names(&error, "limit", "9007199254740992");
    let error: BuildError = Rate::new(1, Duration::MAX).unwrap_err().into();
    assert_names(&error, "window", &format!("{:?}", Duration::MAX));
}

#[test]
fn a_layer_takes_1_to_8_policies_of_different_names() {
    let with = |count: usize| {
        move |layer: RateLimitLayerBuilder| {
            (0..count).fold(layer, |layer, i| layer.policy(minute(&format!("p{i}"))))
        }
    };
    assert_eq!(refused_layer(with(0)), BuildError::NoPolicy);
    assert_names(&refused_layer(with(0)), "policy", "at least one");
    assert!(with(8)(RateLimitLayer::builder(RateLimiter::memory())).build().is_ok());
    let error = refused_layer(with(9));
    assert_eq!(error, BuildError::TooManyPolicies { count: 9 });
    assert_names(&error, "policy", "9");

    let other_rule = fixed(7, secs(7));
    for second in [fixed(1, secs(60)), other_rule] {
        let error = refused_layer(|layer| {
            layer.policy(fixed(1, secs(60))).policy_by(second, Constant::new("all", "all"))
        });
        assert_eq!(error, BuildError::DuplicatePolicy { name: "http".to_owned() });
        assert_names(&error, "policy", "\"http\"");
    }
}

#[test]
fn settings_of_a_layer_that_exclude_each_other_are_refused() {
    let error = refused_layer(|layer| {
        layer.policy(minute("http")).without_headers().reset_format(ResetFormat::DeltaSeconds)
    });
    assert_eq!(error, BuildError::Conflict { field: "reset_format", other: "without_headers" });
    assert_names(&error, "reset_format", "without_headers");

    let own = RateLimitLayer::builder(RateLimiter::memory()).policy(minute("http")).build().unwrap();
    let error = own.redis("redis://127.0.0.1:6379").unwrap_err();
    assert_names(&error, "redis", "limiter");

    let key = || Header::new("x-api-key").unwrap();
    let error = refused_layer(|layer| layer.policy_by(minute("http"), key()).identity(key()));
    assert_names(&error, "identity", "policy_by");
    let mixed = RateLimitLayer::builder(RateLimiter::memory());
    let mixed = mixed.policy_by(minute("key"), key()).policy(minute("ip")).identity(ClientIp::peer());
    assert!(mixed.build().is_ok(), "one policy uses it");
}

#[test]
fn statuses_and_ranges_that_do_not_fit_are_refused() {
    for status in [StatusCode::OK, StatusCode::FOUND, StatusCode::INTERNAL_SERVER_ERROR] {
        let error = refused_layer(|layer| layer.policy(minute("http")).missing(Missing::Reject(status)));
        assert_names(&error, "missing", status.as_str());
    }
    for status in [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE] {
        let error = refused_layer(|layer| layer.policy(minute("http")).too_large_status(status));
        assert_names(&error, "too_large_status", status.as_str());
    }
    let layer = RateLimitLayer::builder(RateLimiter::memory()).policy(minute("http"));
    assert!(layer.too_large_status(StatusCode::PAYLOAD_TOO_LARGE).build().is_ok());

    let error = refused_layer(|layer| layer.policy(minute("http")).skip_ips(["10.0.0.0/8", "10.0.0.0/33"]));
    assert_names(&error, "skip_ips", "\"10.0.0.0/33\"");
}

/// A password, a query and a fragment of a URL that `{:?}` of anything must not
/// show.
const URL: &str = "redis://u:s3cr3t@127.0.0.1:1/0";

fn assert_silent(what: &str, text: &str) {
    for secret in ["s3cr3t", "203.0.113.9", "live_ABC123", "deployment-secret"] {
        assert!(!text.contains(secret), "{what} shows {secret}: {text}");
    }
}

fn assert_debug_silent(values: &[(&str, &dyn Debug)]) {
    for (what, value) in values {
        assert_silent(what, &format!("{value:?}"));
        assert_silent(what, &format!("{value:#?}"));
    }
}

#[test]
fn o_log_1_no_debug_output_shows_a_password_or_a_key() {
    let builder = RateLimiter::builder().redis(URL).namespace("app");
    let shown = format!("{builder:?}");
    assert_silent("builder", &shown);
    let limiter = builder.build().unwrap();
    let policy = limiter.policy(minute("http")).unwrap();
    let secret = Header::new("x-api-key").unwrap().hmac(KeySecret::new("deployment-secret"));
    let layer = || RateLimitLayer::builder(limiter.clone()).policy(minute("http")).identity(secret.clone());
    let key = Key::builder().ip("203.0.113.9".parse().unwrap()).principal("live_ABC123").finish();
    let charge = Charge::new(&policy, key);
    let request = from("203.0.113.9")
        .uri("/x?key=live_ABC123")
        .header("x-api-key", "live_ABC123")
        .header("x-forwarded-for", "203.0.113.9")
        .body(())
        .unwrap();
    let head = RequestHead::new(&request);
    let explained = ClientIp::peer().explain(&head);
    let identified = secret.identify(&head, Key::builder());
    assert_debug_silent(&[
        ("layer builder", &layer()),
        ("limiter", &limiter),
        ("policy", &policy),
        ("key", &key),
        ("key builder", &Key::builder().principal("live_ABC123")),
        ("charge", &charge),
        ("identity", &secret),
        ("request head", &head),
        ("explanation", &explained),
        ("identified", &identified),
        ("layer", &layer().build().unwrap()),
    ]);
    // Where it connects to, an operator must be able to see.
    assert!(format!("{limiter:?}").contains("127.0.0.1:1"), "{limiter:?}");
    let short = RateLimitLayer::per_ip(Rate::per_minute(1)).redis(URL).unwrap();
    assert_silent("per_ip layer", &format!("{short:?}"));
}

#[test]
fn o_log_1_no_error_shows_the_url_that_it_refuses() {
    for url in ["redis://u:s3cr3t@", "http://u:s3cr3t@127.0.0.1", "s3cr3t", "redis://u:s3cr3t@h:99999/0"] {
        let errors = [
            refused_limiter(|limiter| limiter.redis(url)),
            RateLimiter::redis(url).unwrap_err(),
            RateLimitLayer::per_ip(Rate::per_minute(1)).redis(url).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error, BuildError::RedisUrl, "{url}");
            assert_names(&error, "redis", "redis://");
            let mut chain: Option<&dyn std::error::Error> = Some(&error);
            while let Some(error) = chain {
                assert_silent("error", &format!("{error} {error:?}"));
                chain = error.source();
            }
        }
    }
}

#[test]
fn errors_can_be_sent_and_compared() {
    fn error<T: std::error::Error + Display + Send + Sync + Clone + PartialEq + 'static>() {}
    error::<BuildError>();
}
