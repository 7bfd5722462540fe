//! What must not be readable: passwords in logs, credentials of clients in
//! Redis.

use std::convert::Infallible;
use std::fmt::Debug;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_ratelimit::identity::Header;
use tower_ratelimit::observe::Observer;
use tower_ratelimit::store::StoreEvent;
use tower_ratelimit::{KeySecret, RateLimitLayer, RateLimiter, Source};

use crate::setup::{
    NoFallback, PATIENT, Redis, builder, connect, eventually, fixed, hit, ms, request_from, who,
};
use crate::support::{Logs, RedisServer, free_port};

/// All that is told of the store, as `Debug` shows it.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Observer for Told {
    fn store(&self, event: &StoreEvent<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

#[tokio::test]
async fn o_log_1_redis_url_with_password_in_the_error() {
    let (logs, _guard) = Logs::capture();
    let server = RedisServer::start_with(&["--requirepass", "another"]);
    let closed = format!("127.0.0.1:{}", free_port());
    let told = Told::default();
    let mut shown = Vec::new();
    let mut show = |value: &dyn Debug| shown.push(format!("{value:?} {value:#?}"));
    for (address, reason) in [(closed.clone(), "io"), (server.addr().to_string(), "auth")] {
        let url = format!("redis://u:s3cr3t@{address}/0");
        let building = RateLimiter::builder().redis(&url).deadline(PATIENT).observer(told.clone());
        show(&building);
        let limiter = building.build().unwrap();
        let layers = RateLimitLayer::builder(limiter.clone()).policy(fixed("http", 3, 60_000));
        show(&layers);
        show(&layers.build().unwrap());
        let http = limiter.policy(fixed("http", 3, 60_000)).unwrap();
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!(decision.source(), Source::Local);
        let lost = limiter.reset(&http, &who("ann")).await.unwrap_err();
        show(&limiter);
        show(&http);
        show(&decision);
        show(&lost);
        show(&format_args!("{lost}"));
        eventually("the failure is logged", || logs.contains(&address)).await;
        let line = logs.matching("rate limit store").pop().unwrap();
        assert!(line.contains(&address) && line.contains(&format!("reason=\"{reason}\"")), "{line}");
    }
    for malformed in [
        "redis://u:s3cr3t@127.0.0.1:port/0",
        "redis://u:s3cr3t@127.0.0.1:99999",
        "redis://u:s3cr3t@",
        "redis//u:s3cr3t@127.0.0.1",
        "http://u:s3cr3t@127.0.0.1",
        "rediss://u:s3cr3t@127.0.0.1/#insecure",
        "redis://u:s3cr3t@127.0.0.1/seven",
        "s3cr3t",
    ] {
        let building = RateLimiter::builder().redis(malformed);
        show(&building);
        let error = building.build().unwrap_err();
        assert!(error.to_string().starts_with("redis: "), "{malformed}: {error}");
        show(&error);
        show(&format_args!("{error}"));
        show(&RateLimitLayer::per_ip(tower_ratelimit::Rate::per_second(1)).redis(malformed).unwrap_err());
    }
    shown.extend(logs.lines());
    shown.extend(told.0.lock().unwrap().iter().cloned());
    assert!(shown.iter().any(|text| text.contains(&closed)), "host and port may be seen");
    assert!(shown.len() > 50);
    for text in shown {
        assert!(!text.contains("s3cr3t"), "{text}");
    }
}

/// Everything that a server is asked, word by word.
struct Monitor(TcpStream);

impl Monitor {
    fn start(addr: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(ms(5000))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut ok = [0; 5];
        stream.read_exact(&mut ok).unwrap();
        assert_eq!(&ok, b"+OK\r\n");
        Self(stream)
    }

    /// All that it has seen, up to a command with this word in it.
    fn until(&mut self, last: &str) -> String {
        let mut seen = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.0.read(&mut piece) {
                Ok(0) => panic!("the server is gone"),
                Ok(n) => seen.extend_from_slice(&piece[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{last:?} never came: {error}"),
            }
            let text = String::from_utf8_lossy(&seen);
            if text.contains(last) {
                return text.into_owned();
            }
        }
    }
}

#[tokio::test]
async fn o_log_2_api_keys_readable_in_redis() {
    let redis = Redis::start();
    let mut monitor = Monitor::start(redis.server.addr());
    let identities = [
        Header::secret("x-api-key").unwrap(),
        Header::secret("x-api-key").unwrap().hmac(KeySecret::new("of the deployment")),
    ];
    for identity in identities {
        // Two replicas, one client.
        for used in [1, 2, 3] {
            let limiter =
                builder(redis.server.url()).namespace(&redis.namespace).observer(NoFallback).build().unwrap();
            connect(&limiter).await;
            let layer = RateLimitLayer::builder(limiter)
                .policy(fixed("http", 9, 60_000))
                .identity(identity.clone())
                .build()
                .unwrap();
            let service = layer.layer(service_fn(async |_: http::Request<()>| {
                Ok::<_, Infallible>(http::Response::new(String::new()))
            }));
            let mut request = request_from(9);
            request.headers_mut().insert("x-api-key", "live_ABC123".parse().unwrap());
            let response = service.oneshot(request).await.unwrap();
            assert_eq!(response.headers()["x-ratelimit-remaining"], (9 - used).to_string().as_str());
        }
    }
    let keys = redis.keys();
    assert_eq!(keys.len(), 2, "{keys:?}");
    redis.server.command(&["ECHO", "the-end"]);
    let asked = monitor.until("the-end");
    for kind in ["sha256.", "hmac."] {
        let key = keys.iter().find(|key| key.contains(kind)).unwrap();
        assert!(asked.contains(key.as_str()), "the monitor has seen {key}");
        let hash = key.rsplit_once('=').unwrap().1;
        assert!(hash.len() >= 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    }
    for text in keys.iter().chain([&asked]) {
        assert!(!text.contains("live_ABC123") && !text.contains("ABC123"), "{text}");
    }
}
