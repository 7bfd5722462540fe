use std::sync::{Arc, Mutex};

use http::header::{AUTHORIZATION, COOKIE};
use tower_ratelimit::identity::Header;
use tower_ratelimit::observe::{Checked, Observer, Verdict};
use tower_ratelimit::store::StoreEvent;
use tower_ratelimit::{Key, KeySecret, Policy, RateLimiter};

use super::support::{Logs, RedisServer, free_port};
use super::*;

#[test]
fn o_log_3_refusal_log_line_carries_the_secret() {
    let (logs, _guard) = Logs::capture();
    runtime().block_on(async {
        let layer = RateLimitLayer::builder(RateLimiter::memory())
            .policy(Policy::fixed_window("keys", ONE))
            .identity(Header::new("x-api-key").unwrap())
            .build()
            .unwrap();
        for _ in 0..2 {
            let request = Request::builder()
                .uri("/x?api_key=live_QUERY123")
                .header("x-api-key", "live_HEADER123")
                .header(AUTHORIZATION, "Bearer live_BEARER123")
                .header(COOKIE, "session=live_COOKIE123")
                .extension(IpAddr::from(client(9)))
                .body(())
                .unwrap();
            send(&layer, request).await;
        }
    });
    let refusals = logs.matching("refused a request");
    assert_eq!(refusals.len(), 1, "{:?}", logs.lines());
    assert!(refusals[0].contains("keys"), "the policy's name: {}", refusals[0]);
    let key = Key::builder().named("header.x-api-key", "live_HEADER123").finish();
    assert!(refusals[0].contains(&key.redacted().to_string()), "a short hash of the key: {}", refusals[0]);
    for secret in ["live_", "api_key=", "203.0.113"] {
        assert!(!logs.contains(secret), "{secret}: {:?}", logs.lines());
    }
}

#[test]
fn o_log_1_redis_url_with_password_in_the_error() {
    const PASSWORD: &str = "s3cr3t";
    let (logs, _guard) = Logs::capture();
    let mut shown = Vec::new();
    let closed = format!("redis://u:{PASSWORD}@127.0.0.1:{}/0", free_port());
    let open = RedisServer::start();
    let wrong = format!("redis://u:{PASSWORD}@{}/0", open.addr());
    runtime().block_on(async {
        for url in [&closed, &wrong] {
            let builder = RateLimiter::builder().redis(url);
            shown.push(format!("{builder:?}"));
            let layer = RateLimitLayer::per_ip(ONE).redis(url.as_str()).unwrap();
            let response = send(&layer, from(client(1))).await;
            assert_eq!(response.status(), 200, "decided by this process");
            shown.push(format!("{layer:?} {:?} {response:?}", layer.limiter()));
        }
    });
    for malformed in
        [format!("redis://u:{PASSWORD}@:x:/"), format!("http://u:{PASSWORD}@h/"), format!("{PASSWORD}@h")]
    {
        let error = RateLimiter::redis(malformed).unwrap_err();
        shown.push(format!("{error} {error:?}"));
    }
    shown.push(format!("{:?}", KeySecret::new(PASSWORD)));
    shown.push(format!("{:?}", Header::secret("x-api-key").unwrap().hmac(KeySecret::new(PASSWORD))));
    for text in shown.iter().chain(&logs.lines()) {
        assert!(!text.contains(PASSWORD), "{text}");
    }
    let port = open.port().to_string();
    assert!(
        logs.matching("refuses this client").iter().any(|line| line.contains(&port)),
        "{:?}",
        logs.lines()
    );
}

#[test]
fn o_rds_1_an_outage_is_one_line_and_so_is_its_end() {
    let (logs, _guard) = Logs::capture();
    let mut server = RedisServer::start();
    runtime().block_on(async {
        let layer = RateLimitLayer::per_ip(Rate::per_minute(1_000)).redis(server.url()).unwrap();
        let until = async |connected: bool| {
            while layer.limiter().is_connected() != connected {
                send(&layer, from(client(1))).await;
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        until(true).await;
        server.kill();
        until(false).await;
        for _ in 0..50 {
            send(&layer, from(client(1))).await;
        }
        server.restart();
        until(true).await;
    });
    assert_eq!(logs.matching("rate limit store").len(), 3, "connected, lost, connected: {:?}", logs.lines());
}

#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<String>>>);

impl Noted {
    fn note(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }
}

impl Observer for Noted {
    fn checked(&self, checked: &Checked<'_>) {
        self.note(format!("checked {} {}", checked.policy(), checked.verdict().as_str()));
    }

    fn refused(&self, checked: &Checked<'_>) {
        self.note(format!("refused {}", checked.key().as_str()));
    }

    fn blocked(&self, checked: &Checked<'_>) {
        assert_eq!(checked.verdict(), Verdict::BlockStarted);
        self.note(format!("blocked for {:?}", checked.retry_after().unwrap()));
    }

    fn store(&self, event: &StoreEvent<'_>) {
        self.note(format!("store {event:?}"));
    }
}

#[test]
fn an_observer_is_told_of_refusals_and_of_blocks_when_they_start() {
    let noted = Noted::default();
    runtime().block_on(async {
        let limiter = RateLimiter::builder().observer(noted.clone()).build().unwrap();
        let login = Policy::fixed_window("login", ONE).block_for(std::time::Duration::from_secs(3_600));
        let layer = RateLimitLayer::builder(limiter).policy(login).build().unwrap();
        for _ in 0..3 {
            send(&layer, from(client(9))).await;
        }
    });
    let noted = noted.0.lock().unwrap();
    let expected = [
        "checked login allowed",
        "checked login blocked",
        "refused 203.0.113.9",
        "blocked for 3600s",
        "checked login blocked",
        "refused 203.0.113.9",
    ];
    assert_eq!(*noted, expected);
}
