//! As for a single server, on a cluster.

use tower_ratelimit::{RateLimiter, RateLimiterBuilder, test_util};

use crate::support::RedisCluster;

#[allow(dead_code, unused_imports, unused_macros)]
#[path = "../redis_store/setup.rs"]
mod single;

/// The script is the same as on a plain server; there it plays many more.
pub(crate) const SEQUENCES: u32 = 100;

pub(crate) use self::single::{
    NoFallback, PATIENT, bucket, eventually, fixed, hit, hit_for, ms, request_from, sliding, who,
};

/// A cluster of one test.
pub(crate) struct Redis {
    pub(crate) cluster: RedisCluster,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self { cluster: RedisCluster::start() }
    }

    /// On this cluster, under a namespace of its own, with a patient deadline.
    pub(crate) fn builder(&self) -> RateLimiterBuilder {
        RateLimiter::builder()
            .redis_cluster(self.cluster.urls())
            .deadline(PATIENT)
            .namespace(test_util::namespace())
    }

    /// A limiter that is not allowed to fall back.
    pub(crate) fn limiter(&self) -> RateLimiter {
        self.builder().observer(NoFallback).build().unwrap()
    }
}

/// Makes the limiter connect to all masters, and waits until it has.
pub(crate) async fn connect(limiter: &RateLimiter) {
    let warm_up = limiter.policy(fixed("warm-up", 1, 60_000)).unwrap();
    let _ = limiter.peek(&warm_up, &who("nobody")).await;
    eventually("every master is connected", || limiter.is_connected()).await;
}

/// All scenarios of one algorithm on one cluster, one after the other: a cluster
/// takes seconds to start.
macro_rules! on_both_stores {
    ($of:ident: $($scenario:ident)*) => {
        mod $of {
            #[tokio::test]
            async fn every_scenario_of_the_stores_passes_on_a_cluster() {
                let redis = crate::setup::Redis::start();
                let mut played = 0;
                $(
                    println!(stringify!($scenario));
                    super::$scenario(redis.limiter(), crate::setup::$of).await;
                    played += 1;
                )*
                assert!(played > 10, "only {played} scenarios were played");
            }
        }
    };
}

pub(crate) use on_both_stores;
