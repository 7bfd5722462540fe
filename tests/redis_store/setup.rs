//! A private Redis, a namespace of its own, and limiters on them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::extract::ConnectInfo;
use http::Request;
use tower_ratelimit::observe::Observer;
use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{
    Charge, Decision, Key, Policy, PolicyHandle, Rate, RateLimiter, RateLimiterBuilder, Source, test_util,
};

use crate::support::RedisServer;

/// A deadline that a busy machine does not miss: for what Redis must decide.
pub(crate) const PATIENT: Duration = Duration::from_secs(5);

/// How many random sequences are played on both stores.
pub(crate) const SEQUENCES: u32 = 10_000;

/// What does not happen by then never will.
const HOPELESS: Duration = Duration::from_secs(15);

/// A Redis of one test.
pub(crate) struct Redis {
    pub(crate) server: RedisServer,
    pub(crate) namespace: String,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::on(RedisServer::start())
    }

    pub(crate) fn on(server: RedisServer) -> Self {
        Self { server, namespace: test_util::namespace() }
    }

    /// On this server under this namespace, with a patient deadline.
    pub(crate) fn builder(&self) -> RateLimiterBuilder {
        builder(self.server.url()).namespace(&self.namespace)
    }

    /// A limiter that is not allowed to fall back.
    pub(crate) fn limiter(&self) -> RateLimiter {
        self.builder().observer(NoFallback).build().unwrap()
    }

    /// All keys of this test.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.server.keys_matching(&format!("{}:*", self.namespace))
    }
}

pub(crate) fn builder(url: impl Into<String>) -> RateLimiterBuilder {
    RateLimiter::builder().redis(url).deadline(PATIENT)
}

/// Fails the test when Redis does not decide a check.
pub(crate) struct NoFallback;

impl Observer for NoFallback {
    fn fell_back(&self, policy: &str, reason: StoreErrorKind) {
        panic!("{policy} fell back: {reason}");
    }
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn fixed(name: &str, limit: u64, window_ms: u64) -> Policy {
    Policy::fixed_window(name, Rate::new(limit, ms(window_ms)).unwrap())
}

/// With the edge of its sub-windows a while away: a test that has begun before it
/// would find half of what it has counted behind it.
pub(crate) fn sliding(name: &str, limit: u64, window_ms: u64) -> Policy {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let left = ms(window_ms - u64::try_from(now.as_millis()).unwrap() % window_ms);
    if left < ms(8_000).min(ms(window_ms) / 20) {
        std::thread::sleep(left);
    }
    Policy::sliding_window(name, Rate::new(limit, ms(window_ms)).unwrap())
}

pub(crate) fn bucket(name: &str, limit: u64, window_ms: u64) -> Policy {
    Policy::token_bucket(name, Rate::new(limit, ms(window_ms)).unwrap())
}

pub(crate) fn who(name: &str) -> Key {
    Key::principal(name)
}

/// One check of one policy, at a cost of 1.
pub(crate) async fn hit(limiter: &RateLimiter, policy: &PolicyHandle, name: &str) -> Decision {
    limiter.check([Charge::new(policy, who(name))]).await
}

pub(crate) async fn hit_for(limiter: &RateLimiter, policy: &PolicyHandle, name: &str, cost: u64) -> Decision {
    limiter.check([Charge::new(policy, who(name)).cost(cost)]).await
}

/// Makes the limiter connect, and waits until it has.
pub(crate) async fn connect(limiter: &RateLimiter) {
    let warm_up = limiter.policy(fixed("warm-up", 1, 60_000)).unwrap();
    let _ = limiter.peek(&warm_up, &who("nobody")).await;
    eventually("the limiter is connected", || limiter.is_connected()).await;
}

/// Waits until it is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < HOPELESS, "it never came true that {what}");
        tokio::time::sleep(ms(5)).await;
    }
}

/// A request from the `n`th client.
pub(crate) fn request_from(n: u8) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((client(n), 4711))));
    request
}

/// Its address.
pub(crate) fn client(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, n))
}

/// Whether Redis decided, or this process repeated what Redis had decided.
pub(crate) fn is_of_redis(decision: &Decision) -> bool {
    matches!(decision.source(), Source::Redis | Source::DenyCache)
}

/// Numbers that look random and are the same in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Each scenario in memory and on Redis, with policies of one algorithm.
macro_rules! on_both_stores {
    ($of:ident: $($scenario:ident)*) => {
        mod $of {
            mod in_memory {
                use tower_ratelimit::RateLimiter;
                $(#[tokio::test]
                async fn $scenario() {
                    super::super::$scenario(RateLimiter::memory(), crate::setup::$of).await;
                })*
            }

            mod on_redis {
                use crate::setup::Redis;
                $(#[tokio::test]
                async fn $scenario() {
                    let redis = Redis::start();
                    super::super::$scenario(redis.limiter(), crate::setup::$of).await;
                })*
            }
        }
    };
}

pub(crate) use on_both_stores;
