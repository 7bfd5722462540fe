//! One deadline for everything: connecting, sending, the answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::unconstrained;
use tower_ratelimit::observe::Observer;
use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{Decision, RateLimiter, Source};

use crate::setup::{PATIENT, Redis, builder, connect, eventually, fixed, hit, ms, who};
use crate::support::{Mode, Proxy, free_port};

const DEADLINE: Duration = Duration::from_millis(150);

/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(250);

struct Path {
    redis: Redis,
    proxy: Proxy,
    limiter: RateLimiter,
}

impl Path {
    async fn start(deadline: Duration) -> Self {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.server.addr()).await;
        let limiter = builder(proxy.url()).namespace(&redis.namespace).deadline(deadline).build().unwrap();
        Self { redis, proxy, limiter }
    }
}

async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    (future.await, started.elapsed())
}

#[tokio::test]
async fn connecting_and_answering_share_one_deadline() {
    for mode in [Mode::Swallow, Mode::Hold, Mode::Delay(ms(100))] {
        let path = Path::start(DEADLINE).await;
        path.proxy.set_mode(mode);
        let http = path.limiter.policy(fixed("http", 100, 60_000)).unwrap();
        let (decision, took) = timed(hit(&path.limiter, &http, "ann")).await;
        assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local), "{mode:?}");
        assert!(took >= DEADLINE && took < DEADLINE + SLACK, "{mode:?}: {took:?}");
    }
}

#[tokio::test]
async fn an_answer_after_the_deadline_is_not_waited_for_and_has_counted_once() {
    for mode in [Mode::Delay(ms(400)), Mode::Hold] {
        let path = Path::start(DEADLINE).await;
        let http = path.limiter.policy(fixed("http", 100, 60_000)).unwrap();
        connect(&path.limiter).await;
        path.proxy.set_mode(mode);
        let (decision, took) = timed(hit(&path.limiter, &http, "ann")).await;
        assert_eq!(decision.source(), Source::Local, "{mode:?}");
        assert!(took >= DEADLINE && took < DEADLINE + SLACK, "{mode:?}: {took:?}");
        path.proxy.set_mode(Mode::Forward);
        let key = http.store_key(&who("ann"));
        eventually("the late charge has counted", || path.redis.server.get(&key).is_some()).await;
        // One miss is no reason to drop a connection.
        eventually("answers come in time again", || path.limiter.is_connected()).await;
        assert_eq!(path.proxy.accepted(), 1, "{mode:?}");
        assert_eq!(path.redis.server.get(&key).as_deref(), Some("1"), "{mode:?}: it was not sent again");
    }
}

#[tokio::test]
async fn checks_that_miss_one_deadline_together_are_one_miss_and_three_drop_the_connection() {
    let path = Path::start(DEADLINE).await;
    let http = path.limiter.policy(fixed("http", 1000, 60_000)).unwrap();
    connect(&path.limiter).await;
    path.proxy.set_mode(Mode::Hold);
    for misses in 1..=3 {
        assert!(path.limiter.is_connected(), "after {} misses", misses - 1);
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..30 {
            let (limiter, http) = (path.limiter.clone(), http.clone());
            waiting.spawn(async move { hit(&limiter, &http, "ann").await });
        }
        for decision in waiting.join_all().await {
            assert_eq!(decision.source(), Source::Local);
        }
    }
    assert!(!path.limiter.is_connected());
    let (decision, took) = timed(hit(&path.limiter, &http, "ann")).await;
    assert_eq!(decision.source(), Source::Local);
    assert!(took < DEADLINE, "while there is no connection nobody waits: {took:?}");
    path.proxy.set_mode(Mode::Forward);
    eventually("the limiter is back", || path.limiter.is_connected()).await;
    assert!(path.proxy.accepted() >= 2);
}

#[tokio::test]
async fn a_server_that_never_answers_the_first_time_is_waited_for_three_deadlines_at_most() {
    let path = Path::start(DEADLINE).await;
    path.proxy.set_mode(Mode::Swallow);
    let http = path.limiter.policy(fixed("http", 1000, 60_000)).unwrap();
    let (_, took) = timed(async {
        for _ in 0..50 {
            assert_eq!(hit(&path.limiter, &http, "ann").await.source(), Source::Local);
        }
    })
    .await;
    assert!(took < DEADLINE * 3 + SLACK, "50 checks took {took:?}");
    path.proxy.set_mode(Mode::Forward);
    eventually("the limiter is back", || path.limiter.is_connected()).await;
    assert_eq!(hit(&path.limiter, &http, "bob").await.source(), Source::Redis);
}

#[tokio::test]
async fn building_never_blocks() {
    // Never accepts: its backlog is all there is.
    let deaf = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let deaf = format!("redis://{}", deaf.local_addr().unwrap());
    let closed = format!("redis://127.0.0.1:{}", free_port());
    for url in
        [deaf, closed, "redis://198.51.100.1:6379".to_owned(), "redis://no-such-host.invalid".to_owned()]
    {
        let started = Instant::now();
        let limiter = builder(&url).build().unwrap();
        let http = limiter.policy(fixed("http", 1, 60_000)).unwrap();
        let ann = who("ann");
        let _never_polled = limiter.peek(&http, &ann);
        assert!(started.elapsed() < ms(100), "{url}");
    }
}

/// How many checks have fallen back for want of a place.
#[derive(Clone, Default)]
struct Overloads(Arc<Mutex<usize>>);

impl Observer for Overloads {
    fn fell_back(&self, _: &str, reason: StoreErrorKind) {
        assert_eq!(reason, StoreErrorKind::Overload);
        *self.0.lock().unwrap() += 1;
    }
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Decision> + 'a>>;

#[tokio::test]
async fn more_checks_than_there_are_places_fall_back_and_dropped_ones_give_theirs_back() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let overloads = Overloads::default();
    let limiter = builder(proxy.url())
        .namespace(&redis.namespace)
        .deadline(PATIENT)
        .observer(overloads.clone())
        .build()
        .unwrap();
    let http = limiter.policy(fixed("http", 100_000, 60_000)).unwrap();
    connect(&limiter).await;
    proxy.set_mode(Mode::Hold);
    for round in 1..=2 {
        let mut waiting: Vec<Waiting<'_>> =
            (0..5000).map(|_| Box::pin(hit(&limiter, &http, "ann")) as Waiting<'_>).collect();
        // In one go, though a task should yield before.
        let decided = unconstrained(async {
            let mut cx = Context::from_waker(Waker::noop());
            waiting
                .iter_mut()
                .filter_map(|check| match check.as_mut().poll(&mut cx) {
                    Poll::Ready(decision) => Some(decision),
                    Poll::Pending => None,
                })
                .inspect(|decision| assert_eq!(decision.source(), Source::Local))
                .count()
        });
        assert_eq!(decided.await, 5000 - 4096);
        assert_eq!(*overloads.0.lock().unwrap(), round * (5000 - 4096));
        drop(waiting);
    }
    proxy.set_mode(Mode::Forward);
    assert_eq!(hit(&limiter, &http, "bob").await.source(), Source::Redis);
    assert_eq!(proxy.accepted(), 1);
}
