//! A million invented identities, in a table for ten thousand: nobody who was
//! blocked is freed, and the memory stays what it is.
//!
//! A binary of its own, with one test, for it measures its process.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[path = "support/mod.rs"]
mod support;

use std::fs;
use std::time::Duration;

use tower_ratelimit::{Charge, Key, Policy, PolicyHandle, Rate, RateLimiter, Refusal, Source};

use crate::support::RedisServer;

const CAPACITY: usize = 10_000;
const INVENTED: u32 = 1_000_000;
const MAY_GROW_BY: u64 = 20 << 20;

fn policy() -> Policy {
    let hour = Duration::from_secs(3600);
    Policy::fixed_window("login", Rate::new(2, hour).unwrap()).block_for(hour)
}

async fn hit(limiter: &RateLimiter, policy: &PolicyHandle, name: &str) -> (Option<Refusal>, Source) {
    let decision = limiter.check([Charge::new(policy, Key::principal(name))]).await;
    (decision.refusal(), decision.source())
}

/// Memory of this process that is not on disk, in bytes. `None` where there is
/// no `/proc`.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Sprays, and answers how much memory that took.
async fn spray(limiter: &RateLimiter, policy: &PolicyHandle) -> Option<u64> {
    let before = resident();
    for i in 0..INVENTED {
        let (refusal, source) = hit(limiter, policy, &format!("invented-{i}")).await;
        assert_eq!((refusal, source), (None, Source::Local));
        if i % 1_000 == 0 {
            assert!(limiter.local_entries() <= CAPACITY);
        }
    }
    Some(resident()?.saturating_sub(before?))
}

#[tokio::test]
async fn a_million_invented_identities_free_nobody_and_take_no_memory() {
    let mut server = RedisServer::start();
    let through_redis = RateLimiter::builder().redis(server.url()).local_capacity(CAPACITY);
    let in_memory = RateLimiter::builder().local_capacity(CAPACITY);
    for (builder, first_source) in [(through_redis, Source::Redis), (in_memory, Source::Local)] {
        let limiter = builder.build().unwrap();
        let login = limiter.policy(policy()).unwrap();
        for refusal in [None, None, Some(Refusal::Blocked)] {
            assert_eq!(hit(&limiter, &login, "ann").await, (refusal, first_source));
        }
        server.kill();
        // Noticed by the first that asks. From then on nobody waits.
        let _ = hit(&limiter, &login, "bob").await;
        while limiter.is_connected() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }

        let grown = spray(&limiter, &login).await;
        assert!(limiter.local_entries() <= CAPACITY);
        let (refusal, _) = hit(&limiter, &login, "ann").await;
        assert_eq!(refusal, Some(Refusal::Blocked));
        match grown {
            Some(grown) => {
                println!("{INVENTED} identities, {CAPACITY} kept: {} KiB more", grown >> 10);
                assert!(grown < MAY_GROW_BY, "{grown} bytes");
            }
            None => println!("no /proc on this machine: memory was not measured"),
        }
    }
}
