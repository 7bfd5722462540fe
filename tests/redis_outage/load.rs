//! The load that every fault has to bear, and what is measured of it.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::ConnectInfo;
use http::{Request, Response};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_ratelimit::observe::{Checked, Observer};
use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{Key, Policy, Rate, RateLimitLayer, RateLimiter, Source};

/// What each client may do during the run.
pub(crate) const LIMIT: u64 = 40;

/// So long that no run meets the edge of a sub-window, nor a token that has come
/// back.
const WINDOW: Duration = Duration::from_secs(30 * 86_400);

/// The policy that the environment asks for, a fixed window otherwise.
fn policy() -> Policy {
    let rate = Rate::new(LIMIT, WINDOW).unwrap();
    match std::env::var("FAULT_ALGORITHM").as_deref() {
        Err(_) | Ok("fixed_window") => Policy::fixed_window("http", rate),
        Ok("sliding_window") => Policy::sliding_window("http", rate),
        Ok("token_bucket") => Policy::token_bucket("http", rate),
        Ok(other) => panic!("FAULT_ALGORITHM: {other} is not an algorithm"),
    }
}

/// The key of a client under that policy.
pub(crate) fn key(limiter: &RateLimiter, client: u8) -> String {
    limiter.policy(policy()).unwrap().store_key(&Key::ip(address(client)))
}

/// How much a value that Redis keeps for that policy has counted.
pub(crate) fn counted(value: &str) -> Option<u64> {
    let mut numbers = value.split(':').map(str::parse::<u64>);
    match (numbers.next()?.ok()?, numbers.next(), numbers.next()) {
        (count, None, _) => Some(count),
        // A sub-window's length and index, then its count.
        (_, Some(_), Some(count)) if value.matches(':').count() == 3 => count.ok(),
        // A window, and the level in parts of a token.
        (window, Some(level), _) => Some(level.ok()?.div_ceil(window)),
    }
}

/// Two of them are at their limit before anything fails, two are half there,
/// two have hardly begun.
pub(crate) const CLIENTS: u8 = 6;

/// Between two bursts of requests.
const PAUSE: Duration = Duration::from_millis(10);

/// Requests at once while the clients use up what they have.
const AT_ONCE: usize = 8;

/// One request.
#[derive(Clone, Copy)]
struct Sample {
    took: Duration,
    /// There was no connection when it came.
    alone: bool,
    status: u16,
}

/// Requests through a layer, from a few clients and from ever new ones.
pub(crate) struct Load {
    limiter: RateLimiter,
    service: BoxCloneSyncService<Request<()>, u16, Infallible>,
    samples: Mutex<Vec<Sample>>,
    admitted: Mutex<[u64; CLIENTS as usize]>,
    newcomers: AtomicU32,
    /// Whether a missing connection is one that is lost, or cannot be made; and
    /// not one that is just coming for the first time.
    missing_is_alone: AtomicBool,
    is_over: AtomicBool,
    /// What the machine and the test itself did to a task that only sleeps.
    stall: Mutex<Duration>,
}

impl Load {
    pub(crate) fn on(limiter: RateLimiter) -> Arc<Self> {
        let layer = RateLimitLayer::builder(limiter.clone()).policy(policy()).build().unwrap();
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
        let service = layer.layer(inner).map_response(|response| response.status().as_u16());
        Arc::new(Self {
            limiter,
            service: BoxCloneSyncService::new(service),
            samples: Mutex::default(),
            admitted: Mutex::default(),
            newcomers: AtomicU32::new(0),
            missing_is_alone: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            stall: Mutex::default(),
        })
    }

    /// A request of one of the clients: from 0.
    async fn ask(&self, client: u8) -> bool {
        let admitted = self.request(address(client)).await == 200;
        self.admitted.lock().unwrap()[usize::from(client)] += u64::from(admitted);
        admitted
    }

    /// A request of somebody who has never been here.
    async fn newcomer(&self) {
        let [_, a, b, c] = self.newcomers.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let status = self.request(IpAddr::V4(Ipv4Addr::new(10, a, b, c))).await;
        assert_eq!(status, 200, "a newcomer");
    }

    /// Many requests of newcomers at once.
    pub(crate) async fn burst(self: &Arc<Self>, requests: usize) {
        let mut burst = JoinSet::new();
        for _ in 0..requests {
            let load = self.clone();
            burst.spawn(async move { load.newcomer().await });
        }
        burst.join_all().await;
    }

    async fn request(&self, from: IpAddr) -> u16 {
        let mut request = Request::new(());
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((from, 4711))));
        let alone = self.missing_is_alone.load(Ordering::Relaxed) && !self.limiter.is_connected();
        let started = Instant::now();
        let status = self.service.clone().oneshot(request).await.unwrap();
        let sample = Sample { took: started.elapsed(), alone, status };
        self.samples.lock().unwrap().push(sample);
        status
    }

    /// Brings the clients where they are to be when the fault comes.
    pub(crate) async fn use_up(self: &Arc<Self>) {
        let mut requests = Vec::new();
        for (client, share) in [(0, LIMIT + 2), (1, LIMIT + 2), (2, LIMIT / 2), (3, LIMIT / 2)] {
            requests.extend((0..share).map(|_| client));
        }
        for at_once in requests.chunks(AT_ONCE) {
            let mut burst = JoinSet::new();
            for &client in at_once {
                let load = self.clone();
                burst.spawn(async move { load.ask(client).await });
            }
            burst.join_all().await;
        }
    }

    /// From now on a request that finds no connection must not wait.
    pub(crate) fn expect_no_waiting(&self) {
        self.missing_is_alone.store(true, Ordering::Relaxed);
    }

    /// Ends the [`flow`](Self::flow).
    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Steady traffic, until it is [stopped](Self::stop) and all of it answered.
    pub(crate) async fn flow(self: Arc<Self>) {
        let mut ticks = interval(PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Mostly of those who are at their limit; all of them in 240 ms.
        let mut rota =
            [0, 1, 2, 0, 1, 3, 0, 1, 4, 0, 1, 2, 0, 1, 3, 0, 1, 0, 1, 2, 0, 1, 3, 5].into_iter().cycle();
        let mut under_way = JoinSet::new();
        while !self.is_over.load(Ordering::Relaxed) {
            ticks.tick().await;
            while let Some(done) = under_way.try_join_next() {
                done.unwrap();
            }
            for client in rota.by_ref().take(2) {
                let load = self.clone();
                under_way.spawn(async move {
                    load.ask(client).await;
                });
            }
            let load = self.clone();
            under_way.spawn(async move { load.newcomer().await });
        }
        under_way.join_all().await;
    }

    /// Everybody asks until refused.
    pub(crate) async fn drain(&self) {
        for client in 0..CLIENTS {
            for _ in 0..LIMIT + 5 {
                if !self.ask(client).await {
                    break;
                }
            }
        }
    }

    /// A task that only sleeps, and remembers how late it woke up at worst.
    pub(crate) async fn control(self: Arc<Self>) {
        const NAP: Duration = Duration::from_millis(1);
        loop {
            let started = Instant::now();
            sleep(NAP).await;
            let late = started.elapsed().saturating_sub(NAP);
            let mut stall = self.stall.lock().unwrap();
            *stall = late.max(*stall);
        }
    }

    pub(crate) fn stall(&self) -> Duration {
        *self.stall.lock().unwrap()
    }

    pub(crate) fn requests(&self) -> usize {
        self.samples.lock().unwrap().len()
    }

    pub(crate) fn slowest(&self) -> Duration {
        self.samples.lock().unwrap().iter().map(|sample| sample.took).max().unwrap()
    }

    /// Of all requests.
    pub(crate) fn median(&self) -> Duration {
        self.median_of(|_| true).unwrap()
    }

    /// Of the requests that came while there was no connection.
    pub(crate) fn median_alone(&self) -> Option<Duration> {
        self.median_of(|sample| sample.alone)
    }

    fn median_of(&self, which: impl Fn(&Sample) -> bool) -> Option<Duration> {
        let samples = self.samples.lock().unwrap();
        let mut took: Vec<_> =
            samples.iter().filter(|sample| which(sample)).map(|sample| sample.took).collect();
        took.sort_unstable();
        took.get(took.len() / 2).copied()
    }

    pub(crate) fn server_errors(&self) -> usize {
        self.samples.lock().unwrap().iter().filter(|sample| sample.status >= 500).count()
    }

    pub(crate) fn admitted(&self) -> [u64; CLIENTS as usize] {
        *self.admitted.lock().unwrap()
    }
}

/// The address of one of the clients.
pub(crate) fn address(client: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, client))
}

/// What the limiter says of itself.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    last_by_redis: Option<Instant>,
    reasons: Vec<StoreErrorKind>,
    fallbacks: usize,
}

impl Watch {
    /// When Redis has decided last.
    pub(crate) fn last_by_redis(&self) -> Option<Instant> {
        self.0.lock().unwrap().last_by_redis
    }

    /// Why checks fell back, each reason once.
    pub(crate) fn reasons(&self) -> Vec<StoreErrorKind> {
        self.0.lock().unwrap().reasons.clone()
    }

    pub(crate) fn fallbacks(&self) -> usize {
        self.0.lock().unwrap().fallbacks
    }
}

impl Observer for Watch {
    fn checked(&self, checked: &Checked<'_>) {
        if checked.source() == Source::Redis {
            self.0.lock().unwrap().last_by_redis = Some(Instant::now());
        }
    }

    fn fell_back(&self, _: &str, reason: StoreErrorKind) {
        let mut seen = self.0.lock().unwrap();
        seen.fallbacks += 1;
        if !seen.reasons.contains(&reason) {
            seen.reasons.push(reason);
        }
    }
}
