//! What is refused before anything is sent.

use tower_ratelimit::{BuildError, Rate, RateLimitLayer, RateLimiter, RateLimiterBuilder};

use crate::certificates::Ca;

const URL: &str = "rediss://u:s3cr3t@127.0.0.1:1";

fn refused(builder: RateLimiterBuilder) -> BuildError {
    builder.build().unwrap_err()
}

#[tokio::test]
async fn building_needs_neither_a_server_nor_a_ca() {
    RateLimiter::redis(URL).unwrap();
    RateLimitLayer::per_ip(Rate::per_second(1)).redis(URL).unwrap();
    RateLimiter::builder().redis_ca(Ca::new().certificate()).redis(URL).build().unwrap();
}

#[test]
fn a_ca_that_would_mean_nothing_is_refused_by_its_name() {
    let ca = Ca::new().certificate();
    let error = refused(RateLimiter::builder().redis_ca(ca.clone()));
    assert_eq!(error, BuildError::NeedsRedis { field: "redis_ca" });
    let error = refused(RateLimiter::builder().redis_ca(ca).redis("redis://u:s3cr3t@127.0.0.1:1"));
    assert_eq!(error, BuildError::NeedsTls { field: "redis_ca" });
    assert_eq!(error.to_string(), "redis_ca: has no effect without a rediss:// URL");
}

#[test]
fn a_ca_that_cannot_be_read_is_refused() {
    let ca = Ca::new();
    let certificate = String::from_utf8(ca.certificate()).unwrap();
    let cut = certificate.replace("-----END CERTIFICATE-----", "");
    let wrong = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let bundle = format!("{certificate}{wrong}");
    for pem in ["", "a path?", wrong, &cut, &bundle] {
        assert_eq!(refused(RateLimiter::builder().redis(URL).redis_ca(pem)), BuildError::RedisCa, "{pem}");
    }
    let error = refused(RateLimiter::builder().redis(URL).redis_ca(ca.key()));
    assert_eq!(error, BuildError::RedisCa, "a key is no certificate");
    let two = format!("{certificate}{}", String::from_utf8(Ca::new().certificate()).unwrap());
    RateLimiter::builder().redis(URL).redis_ca(two).build().unwrap();
}

#[test]
fn tls_that_trusts_anybody_is_refused() {
    for url in ["rediss://u:s3cr3t@127.0.0.1/#insecure", "valkeys://u:s3cr3t@127.0.0.1/0#insecure"] {
        assert_eq!(refused(RateLimiter::builder().redis(url)), BuildError::RedisUrl);
    }
}

#[test]
fn o_log_1_nothing_shows_the_url() {
    let building = RateLimiter::builder().redis(URL).redis_ca(Ca::new().certificate());
    let mut shown = vec![format!("{building:?} {building:#?}")];
    let limiter = building.build().unwrap();
    shown.push(format!("{limiter:?} {limiter:#?}"));
    let error = refused(RateLimiter::builder().redis(URL).redis_ca("s3cr3t"));
    shown.push(format!("{error} {error:?}"));
    for text in shown {
        assert!(!text.contains("s3cr3t"), "{text}");
    }
}
