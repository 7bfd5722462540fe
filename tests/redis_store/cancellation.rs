//! Clients that leave: the response future dropped wherever it waits.

use std::future::{Future, pending, poll_fn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::{Request, Response};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_layer::Layer;
use tower_ratelimit::{Decision, Key, PolicyHandle, RateLimitLayer, RateLimiter, Source};
use tower_service::Service;

use crate::setup::{PATIENT, Redis, builder, connect, eventually, fixed, hit, ms};
use crate::support::{Mode, Proxy};

/// What the store does.
#[derive(Clone, Copy, Debug)]
enum Store {
    Ok,
    /// Its connections break before a charge arrives.
    Error,
    /// It charges, and the answer is lost.
    ErrorAfterwards,
    Slow,
    /// It stalls, and what it was sent arrives in the end.
    Never,
    /// It is a black hole.
    NeverEver,
}

impl Store {
    const ALL: [Self; 6] =
        [Self::Ok, Self::Error, Self::ErrorAfterwards, Self::Slow, Self::Never, Self::NeverEver];

    fn mode(self) -> Mode {
        match self {
            Self::Ok => Mode::Forward,
            Self::Error => Mode::Reset,
            Self::ErrorAfterwards => Mode::CutReplyAfter(0),
            Self::Slow => Mode::Delay(ms(15)),
            Self::Never => Mode::Hold,
            Self::NeverEver => Mode::Swallow,
        }
    }
}

/// What the inner service does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inner {
    Ok,
    Error,
    Slow,
    Never,
}

impl Inner {
    const ALL: [Self; 4] = [Self::Ok, Self::Error, Self::Slow, Self::Never];
}

/// When the client leaves.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// After so many polls, some time apart.
    AfterPolls(u32),
    AfterMillis(u64),
}

impl Leaves {
    fn all() -> Vec<Self> {
        let polls = (0..=9).map(Self::AfterPolls);
        let millis = [0, 1, 3, 8, 17, 25, 60, 150].map(Self::AfterMillis);
        polls.chain(millis).collect()
    }

    /// What came of a future, `None` when the client left before.
    async fn drive<F: Future>(self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        match self {
            Self::AfterPolls(times) => {
                for _ in 0..times {
                    let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
                    if let Poll::Ready(output) = polled {
                        return Some(output);
                    }
                    sleep(ms(4)).await;
                }
                None
            }
            Self::AfterMillis(millis) => timeout(ms(millis), future).await.ok(),
        }
    }
}

/// The decisions with which the inner service was called.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<(IpAddr, Decision)>>>);

impl Calls {
    fn of(&self, ip: IpAddr) -> Vec<Decision> {
        let calls = self.0.lock().unwrap();
        calls.iter().filter(|(caller, _)| *caller == ip).map(|(_, decision)| decision.clone()).collect()
    }
}

/// The inner service's own error, which the layer must not touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HandlerFailed;

/// Its future. A type of its own, for the compiler loses the lifetime of a bare
/// box inside the layer's future.
struct Answering(Pin<Box<dyn Future<Output = Result<Response<String>, HandlerFailed>> + Send>>);

impl Future for Answering {
    type Output = Result<Response<String>, HandlerFailed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

/// The inner service.
#[derive(Clone)]
struct Handler {
    inner: Inner,
    calls: Calls,
}

impl Service<Request<()>> for Handler {
    type Response = Response<String>;
    type Error = HandlerFailed;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerFailed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let ConnectInfo(peer) = *request.extensions().get::<ConnectInfo<SocketAddr>>().unwrap();
        let decision = request.extensions().get::<Decision>().expect("called after the verdict").clone();
        self.calls.0.lock().unwrap().push((peer.ip(), decision));
        let inner = self.inner;
        Answering(Box::pin(async move {
            match inner {
                Inner::Ok => Ok(Response::new(String::new())),
                Inner::Error => Err(HandlerFailed),
                Inner::Slow => {
                    sleep(ms(20)).await;
                    Ok(Response::new(String::new()))
                }
                Inner::Never => pending().await,
            }
        }))
    }
}

struct Scene {
    store: Store,
    inner: Inner,
    proxy: Proxy,
    limiter: RateLimiter,
    policy: PolicyHandle,
    layer: RateLimitLayer,
    calls: Calls,
}

impl Scene {
    async fn set(redis: &Redis, store: Store, inner: Inner, limit: u64) -> Self {
        Self::within(ms(100), redis, store, inner, limit).await
    }

    async fn within(deadline: Duration, redis: &Redis, store: Store, inner: Inner, limit: u64) -> Self {
        let proxy = Proxy::start(redis.server.addr()).await;
        let limiter = builder(proxy.url()).namespace(&redis.namespace).deadline(deadline).build().unwrap();
        connect(&limiter).await;
        let name = format!("{store:?}-{inner:?}-{limit}").to_lowercase();
        let policy = limiter.policy(fixed(&name, limit, 60_000)).unwrap();
        let layer = RateLimitLayer::builder(limiter.clone())
            .policy(policy.policy().clone())
            .decision_in_request()
            .build()
            .unwrap();
        proxy.set_mode(store.mode());
        Self { store, inner, proxy, limiter, policy, layer, calls: Calls::default() }
    }

    /// One client, who leaves.
    async fn visit(&self, ip: IpAddr, leaves: Leaves) -> Option<Result<u16, HandlerFailed>> {
        let mut service = self.layer.layer(Handler { inner: self.inner, calls: self.calls.clone() });
        let mut request = Request::new(());
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(ip, 4711)));
        poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
        let response = leaves.drive(service.call(request)).await?;
        Some(response.map(|response| response.status().as_u16()))
    }

    /// Redis as it was, with the limiter on it.
    async fn heal(&self) {
        self.proxy.set_mode(Mode::Forward);
        // A connection that has missed something may still have to be found dead.
        let started = std::time::Instant::now();
        while hit(&self.limiter, &self.policy, "a later client").await.source() != Source::Redis {
            assert!(started.elapsed() < Duration::from_secs(10), "later checks do not go to Redis");
            sleep(ms(10)).await;
        }
        // What was held up has arrived by then.
        sleep(ms(30)).await;
    }
}

fn clients() -> impl Iterator<Item = (IpAddr, Leaves)> {
    let ip = |n: usize| IpAddr::V4(Ipv4Addr::new(203, 0, 113, u8::try_from(n).unwrap()));
    Leaves::all().into_iter().enumerate().map(move |(n, leaves)| (ip(n), leaves))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_at_any_await_counts_once_or_not_at_all() {
    let redis = Arc::new(Redis::start());
    let mut scenes = JoinSet::new();
    for store in Store::ALL {
        for inner in Inner::ALL {
            let redis = redis.clone();
            scenes.spawn(async move {
                let scene = Arc::new(Scene::set(&redis, store, inner, 1000).await);
                let mut visits = JoinSet::new();
                for (ip, leaves) in clients() {
                    let scene = scene.clone();
                    visits.spawn(async move { (ip, leaves, scene.visit(ip, leaves).await) });
                }
                let outcomes = visits.join_all().await;
                scene.heal().await;
                for (ip, leaves, outcome) in outcomes {
                    assert_consistent(&redis, &scene, ip, leaves, outcome);
                }
            });
        }
    }
    scenes.join_all().await;
    for key in redis.keys() {
        assert_ne!(redis.server.pttl(&key), -1, "{key} has no TTL");
    }
}

fn assert_consistent(
    redis: &Redis,
    scene: &Scene,
    ip: IpAddr,
    leaves: Leaves,
    outcome: Option<Result<u16, HandlerFailed>>,
) {
    let what = format!("{:?} {:?} {leaves:?}: {outcome:?}", scene.store, scene.inner);
    let count = redis.server.get(&scene.policy.store_key(&Key::ip(ip)));
    assert!(matches!(count.as_deref(), None | Some("1")), "{what}, counted {count:?}");
    let calls = scene.calls.of(ip);
    assert!(calls.len() <= 1, "{what}, called {} times", calls.len());
    if let Leaves::AfterPolls(0) = leaves {
        assert_eq!((count.as_deref(), calls.len()), (None, 0), "{what}: never polled, never charged");
    }
    if let Some(decision) = calls.first() {
        assert!(decision.is_allowed(), "{what}");
        if decision.source() == Source::Redis {
            assert_eq!(count.as_deref(), Some("1"), "{what}: admitted by Redis");
        }
    }
    match outcome {
        None => {}
        Some(result) => {
            assert_eq!(calls.len(), 1, "{what}");
            let expected = if scene.inner == Inner::Error { Err(HandlerFailed) } else { Ok(200) };
            assert_eq!(result, expected, "{what}: whatever the store does");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inner_service_is_never_called_for_a_request_that_is_refused_or_dropped_before() {
    let redis = Arc::new(Redis::start());
    let mut scenes = JoinSet::new();
    for store in Store::ALL {
        let redis = redis.clone();
        scenes.spawn(async move {
            let scene = Arc::new(Scene::set(&redis, store, Inner::Ok, 0).await);
            let mut visits = JoinSet::new();
            for (ip, leaves) in clients() {
                let scene = scene.clone();
                visits.spawn(async move { (scene.visit(ip, leaves).await, ip) });
            }
            for (outcome, ip) in visits.join_all().await {
                assert!(matches!(outcome, None | Some(Ok(429))), "{store:?}: {outcome:?}");
                assert!(scene.calls.of(ip).is_empty());
            }
        });
    }
    scenes.join_all().await;
    let stored = redis.keys();
    assert!(stored.iter().all(|key| !key.contains("203.0.113.")), "{stored:?}");
}

#[tokio::test]
async fn thousands_of_clients_that_leave_while_the_store_is_asked_give_their_places_back() {
    let redis = Redis::start();
    // Ten thousand take longer than a usual deadline on a slow machine.
    let scene = Scene::within(PATIENT, &redis, Store::Never, Inner::Ok, 100_000).await;
    let ip = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 200));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        let mut waiting: Vec<_> =
            (0..1000).map(|_| Box::pin(scene.visit(ip, Leaves::AfterMillis(60_000)))).collect();
        for visit in &mut waiting {
            assert!(visit.as_mut().poll(&mut cx).is_pending());
        }
    }
    assert!(scene.limiter.is_connected(), "nobody has missed a deadline");
    scene.heal().await;
    assert!(scene.calls.of(ip).is_empty());
    let key = scene.policy.store_key(&Key::ip(ip));
    let count: u64 = redis.server.get(&key).map_or(0, |count| count.parse().unwrap());
    assert!(count <= 10_000, "{count}");
    eventually("the limiter is connected", || scene.limiter.is_connected()).await;
    assert_eq!(scene.proxy.accepted(), 1, "on the connection that it had");
}
