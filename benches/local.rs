//! The local table when it is full, against the same table with room left, in
//! one run: `cargo bench --bench local`.
//!
//! Measured are whole checks of `RateLimiter`, one policy, counted in memory: by
//! newcomers, each of whom takes an entry, and by those who are known already.
//! Not measured: the layer around it, headers, Redis, and any other crate.
//!
//! Ends with an error if the full table has less than half the throughput.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tower_ratelimit::{Charge, Decision, Key, Policy, PolicyHandle, Rate, RateLimiter};

const CAPACITY: u32 = 250_000;

/// Checks in one measurement: fewer than there is room for in the empty table.
const CHECKS: u32 = 100_000;

/// The best of so many counts: what disturbs a run only ever makes it slower.
const RUNS: usize = 7;

/// A table in some state.
struct Table {
    limiter: RateLimiter,
    policy: PolicyHandle,
}

impl Table {
    fn new(limit: u64) -> Self {
        let limiter = RateLimiter::builder().local_capacity(CAPACITY as usize).build().unwrap();
        let rate = Rate::new(limit, Duration::from_secs(3600)).unwrap();
        let policy = limiter.policy(Policy::fixed_window("http", rate)).unwrap();
        Self { limiter, policy }
    }

    /// Some that ask `each` times.
    fn with(self, identities: u32, each: u32) -> Self {
        for identity in 0..identities {
            for _ in 0..each {
                let _ = self.check(identity);
            }
        }
        self
    }

    fn check(&self, identity: u32) -> Decision {
        let address = IpAddr::V4(Ipv4Addr::from(identity));
        let check = pin!(self.limiter.check([Charge::new(&self.policy, Key::ip(address))]));
        match { check }.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision,
            Poll::Pending => panic!("the local path does not wait"),
        }
    }

    /// Checks a second, by some threads with their own identities each.
    fn throughput(&self, first: u32, threads: u32) -> f64 {
        let each = CHECKS / threads;
        let start = Barrier::new(threads as usize + 1);
        let started = thread::scope(|scope| {
            for i in 0..threads {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for identity in first + i * each..first + (i + 1) * each {
                        let _ = self.check(identity);
                    }
                });
            }
            start.wait();
            Instant::now()
        });
        f64::from(each * threads) / started.elapsed().as_secs_f64()
    }
}

/// How the table is filled before, and who asks then.
struct Case {
    name: &'static str,
    full: fn() -> Table,
    with_room: fn() -> Table,
    first: u32,
}

/// Who was never there.
const NEWCOMERS: u32 = 1 << 30;

const CASES: [Case; 4] = [
    Case {
        name: "newcomers, full of clients with something left",
        full: || Table::new(100).with(2 * CAPACITY, 1),
        with_room: || Table::new(100),
        first: NEWCOMERS,
    },
    Case {
        name: "newcomers, full of clients that have used all",
        full: || Table::new(1).with(2 * CAPACITY, 1),
        with_room: || Table::new(1),
        first: NEWCOMERS,
    },
    Case {
        name: "newcomers, full of refused clients (one shared bucket)",
        full: || Table::new(1).with(2 * CAPACITY, 2),
        with_room: || Table::new(1),
        first: NEWCOMERS,
    },
    Case {
        name: "known clients that are refused, full of such",
        full: || Table::new(1).with(2 * CAPACITY, 2),
        with_room: || Table::new(1).with(CHECKS, 2),
        first: 0,
    },
];

fn main() -> ExitCode {
    let mut is_fast = true;
    println!("{CAPACITY} entries, checks a second in millions, the best of {RUNS} runs");
    println!("| who asks | threads | with room | full | ratio |");
    println!("|---|--:|--:|--:|--:|");
    for Case { name, full, with_room, first } in CASES {
        for threads in [1, 2] {
            // In turn, so that what slows the machine down slows both down.
            let (mut best_full, mut best_room) = (0.0_f64, 0.0_f64);
            for _ in 0..RUNS {
                best_room = best_room.max(with_room().throughput(first, threads));
                best_full = best_full.max(full().throughput(first, threads));
            }
            let ratio = best_full / best_room;
            is_fast &= ratio >= 0.5;
            println!("| {name} | {threads} | {:.2} | {:.2} | {ratio:.2} |", best_room / 1e6, best_full / 1e6);
        }
    }
    if is_fast {
        return ExitCode::SUCCESS;
    }
    println!("the full table has less than half the throughput");
    ExitCode::FAILURE
}
