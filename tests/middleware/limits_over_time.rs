//! Windows and blocks as a client meets them, on a clock turned by hand.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tower::Layer as _;
use tower_ratelimit::test_util::ManualClock;
use tower_ratelimit::{Policy, PolicyError, Rate, RateLimitLayer, RateLimiter};

use crate::harness::{Handler, Limited, ask, fixed, from, millis, secs};

async fn status(limited: &Limited) -> u16 {
    limited.ask(from("203.0.113.9")).await.status
}

/// What `count` requests get, `every` milliseconds.
async fn paced(limited: &Limited, count: usize, every: u64) -> Vec<u16> {
    let mut got = Vec::new();
    for _ in 0..count {
        got.push(status(limited).await);
        limited.advance(every);
    }
    got
}

#[tokio::test]
async fn o_win_2_a_hit_does_not_renew_the_window() {
    let limited = Limited::by(fixed(2, millis(600)));
    let pattern = [200, 200, 429].repeat(7);
    assert_eq!(paced(&limited, 21, 250).await, pattern);

    let limited = Limited::by(fixed(3, millis(600)));
    let mut resets = Vec::new();
    for _ in 0..6 {
        let decision = limited.ask(from("203.0.113.9")).await;
        resets.push(decision.reset().unwrap());
        limited.advance(90);
    }
    assert!(resets.windows(2).all(|pair| pair[0] == pair[1]), "one end, hits and refusals alike: {resets:?}");
}

#[tokio::test]
async fn o_win_7_a_window_below_a_second_limits() {
    let limited = Limited::by(fixed(2, millis(250)));
    assert_eq!(paced(&limited, 3, 0).await, [200, 200, 429]);
    limited.advance(249);
    assert_eq!(status(&limited).await, 429);
    limited.advance(1);
    assert_eq!(status(&limited).await, 200);

    let limited = Limited::by(fixed(1, millis(1)));
    assert_eq!(paced(&limited, 2, 0).await, [200, 429]);
    limited.advance(1);
    assert_eq!(status(&limited).await, 200);

    for window in [Duration::ZERO, Duration::from_micros(999)] {
        assert_eq!(Rate::new(2, window).unwrap_err(), PolicyError::Window { window });
    }
}

#[tokio::test]
async fn o_blk_1_tries_during_a_block_do_not_extend_it() {
    let limited = Limited::by(fixed(2, secs(1)).block_for(secs(2)));
    assert_eq!(paced(&limited, 2, 0).await, [200, 200]);
    let mut waits = Vec::new();
    for _ in 0..10 {
        waits.push(limited.ask(from("203.0.113.9")).await.retry_after().unwrap());
        limited.advance(200);
    }
    assert_eq!(waits, [2, 2, 2, 2, 2, 1, 1, 1, 1, 1], "to the second, 2.0 s after the first refusal");
    assert_eq!(status(&limited).await, 200);
    assert_eq!(limited.seen.count("http blocked"), 1);
}

#[tokio::test]
async fn o_blk_2_after_a_block_the_whole_allowance_is_back() {
    let limited = Limited::by(fixed(3, secs(10)).block_for(secs(1)));
    assert_eq!(paced(&limited, 4, 0).await, [200, 200, 200, 429]);
    limited.advance(999);
    assert_eq!(status(&limited).await, 429);
    limited.advance(1);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let answer = limited.ask(from("203.0.113.9")).await;
        seen.push((answer.status, answer.remaining().unwrap()));
    }
    assert_eq!(seen, [(200, 2), (200, 1), (200, 0), (429, 0)]);
}

#[tokio::test]
async fn o_blk_3_the_longest_block_lasts() {
    let limited = Limited::by(fixed(1, secs(1)).block_for(secs(366 * 86_400)));
    assert_eq!(paced(&limited, 2, 0).await, [200, 429]);
    limited.advance(366 * 86_400_000 - 1);
    assert_eq!(status(&limited).await, 429);
    limited.advance(1);
    assert_eq!(status(&limited).await, 200);
}

#[tokio::test]
async fn a_login_is_blocked_for_an_hour_after_five_tries() {
    let limited = Limited::by(fixed(5, secs(900)).block_for(secs(3600)));
    assert_eq!(paced(&limited, 5, 60_000).await, [200; 5]);
    // The window has ten minutes left, the block an hour from its own start.
    let refused = limited.ask(from("203.0.113.9")).await;
    assert_eq!((refused.status, refused.retry_after()), (429, Some(3600)));
    limited.advance(3_599_999);
    assert_eq!(status(&limited).await, 429);
    limited.advance(1);
    assert_eq!(status(&limited).await, 200);
}

#[tokio::test]
async fn a_refused_try_costs_nothing_where_there_is_no_block() {
    let limited = Limited::by(fixed(1, secs(1)));
    assert_eq!(paced(&limited, 100, 5).await[1..], [429; 99]);
    limited.advance(500);
    assert_eq!(status(&limited).await, 200);
}

#[tokio::test]
async fn o_mem_2_inventing_identities_does_not_free_the_one_at_its_limit() {
    let limiter = RateLimiter::builder().local_capacity(1000).build().unwrap();
    let layer = RateLimitLayer::builder(limiter.clone()).policy(fixed(2, secs(60))).build().unwrap();
    let app = layer.layer(Handler::new());
    for expected in [200, 200, 429] {
        assert_eq!(ask(&app, from("203.0.113.9")).await.status, expected);
    }
    for i in 0..=1000_u32 {
        let peer = std::net::Ipv4Addr::from(0x0A00_0000 + i);
        assert_eq!(ask(&app, from(&peer.to_string())).await.status, 200);
    }
    assert!(limiter.local_entries() <= 1000);
    assert_eq!(ask(&app, from("203.0.113.9")).await.status, 429);
}

#[tokio::test]
async fn o_mem_2_nor_do_invented_identities_that_are_refused_themselves() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().local_capacity(1000).clock(clock.clone()).build().unwrap();
    let layer = RateLimitLayer::builder(limiter.clone()).policy(fixed(1, secs(60))).build().unwrap();
    let app = layer.layer(Handler::new());
    let twice = async |peer: &str| [ask(&app, from(peer)).await.status, ask(&app, from(peer)).await.status];
    assert_eq!(twice("203.0.113.9").await, [200, 429]);
    clock.advance(secs(1));
    let mut admitted = 0;
    for i in 0..1500_u32 {
        let got = twice(&std::net::Ipv4Addr::from(0x0A00_0000 + i).to_string()).await;
        assert_eq!(got[1], 429);
        admitted += usize::from(got[0] == 200);
    }
    assert_eq!(admitted, 999 + 1, "those that find no room share one bucket");
    assert_eq!(limiter.local_entries(), 1000);
    assert_eq!(ask(&app, from("203.0.113.9")).await.status, 429);
    // All of it ends with the window.
    clock.advance(secs(60));
    assert_eq!(limiter.local_entries(), 0);
    assert_eq!(twice("10.0.5.200").await, [200, 429]);
}

#[tokio::test(start_paused = true)]
async fn the_clock_that_tokio_pauses_is_the_limiters() {
    let layer = RateLimitLayer::builder(RateLimiter::memory())
        .policy(Policy::fixed_window("http", Rate::per_hour(1)))
        .build()
        .unwrap();
    let app = layer.layer(Handler::new());
    for (forward, expected) in [(0, 200), (3_599_999, 429), (1, 200)] {
        tokio::time::advance(millis(forward)).await;
        assert_eq!(ask(&app, from("203.0.113.9")).await.status, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_con_1_parallel_requests_do_not_pass_the_limit() {
    for round in 0..50 {
        let limited = Limited::by(fixed(5, secs(60)));
        let start = Arc::new(Barrier::new(200));
        let tasks: Vec<_> = (0..200)
            .map(|_| {
                let (service, start) = (limited.service.clone(), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    ask(&service, from("203.0.113.9")).await
                })
            })
            .collect();
        let mut remaining = Vec::new();
        for task in tasks {
            let answer = task.await.unwrap();
            if answer.status == 200 {
                remaining.push(answer.remaining().unwrap());
            }
        }
        remaining.sort_unstable();
        assert_eq!(remaining, [0, 1, 2, 3, 4], "each once, in round {round}");
    }
}
