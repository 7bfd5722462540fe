//! One fault: the same course for all of them, and the same demands.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::sleep;
use tower_ratelimit::store::StoreErrorKind;
use tower_ratelimit::{RateLimiter, test_util};
use tracing::subscriber::DefaultGuard;

use crate::load::{CLIENTS, LIMIT, Load, Watch, counted};
use crate::matrix;
use crate::setup::ms;
use crate::support::{Logs, Proxy, RedisServer};

/// That of the limiter, which is the default.
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);

/// What a request may take beyond the deadline, and beyond what the machine
/// did to a task that only sleeps.
const SLACK: Duration = Duration::from_millis(50);

/// For all requests that came while there was no connection.
const MEDIAN_ALONE: Duration = Duration::from_millis(1);

/// What a charge of unknown outcome may cost a client that it counts twice
/// against: one for each deadline that is waited for.
const SHY: u64 = 3;

/// From here on a stall of the machine can make a check miss its deadline.
const STALLED: Duration = Duration::from_millis(15);

/// Redis decides again within this time of its return.
const RETURN: Duration = Duration::from_secs(2);

/// The limiter has one connection, and may have a second one for a moment: the
/// old one while the new one comes.
const SOCKETS: usize = 2;

/// How long traffic goes on before a fault and after it.
const CALM: Duration = Duration::from_millis(250);

/// How long a fault lasts: more than the three deadlines that are waited for.
const FAULT: Duration = Duration::from_millis(1200);

/// What a fault is to look like from outside, besides what holds for all.
#[derive(Default)]
pub(crate) struct Expected {
    /// The log lines in their order: `connected`, `lost REASON`, `refused
    /// REASON` (a misconfiguration). `None`: only that they take turns.
    pub(crate) lines: Option<&'static [&'static str]>,
    /// Why checks fell back, among other reasons. `None`: for none, Redis has
    /// decided everything.
    pub(crate) reason: Option<StoreErrorKind>,
    /// Default: 2 s.
    pub(crate) back_within: Option<Duration>,
    /// Connections that the test itself has to the server.
    pub(crate) others: usize,
}

/// One run of the load through one fault.
pub(crate) struct Run {
    row: (u8, &'static str),
    server: Arc<Mutex<RedisServer>>,
    proxy: Option<Proxy>,
    limiter: RateLimiter,
    pub(crate) load: Arc<Load>,
    watch: Watch,
    sockets: Arc<Mutex<usize>>,
    recovery: Option<Duration>,
    traffic: JoinHandle<()>,
    /// Ends with the run.
    _tasks: JoinSet<()>,
    logs: Logs,
    _logging: DefaultGuard,
}

impl Run {
    /// Straight to the server.
    pub(crate) async fn direct(number: u8, server: RedisServer) -> Self {
        let url = server.url();
        Self::start(number, server, None, url).await
    }

    /// Through a proxy.
    pub(crate) async fn proxied(number: u8) -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.addr()).await;
        let url = proxy.url();
        Self::start(number, server, Some(proxy), url).await
    }

    /// Nothing is sent before [`begin`](Self::begin).
    pub(crate) async fn start(number: u8, server: RedisServer, proxy: Option<Proxy>, url: String) -> Self {
        let (logs, logging) = Logs::capture();
        let watch = Watch::default();
        let namespace = test_util::namespace();
        let limiter = RateLimiter::builder().redis(url).deadline(DEADLINE).namespace(&namespace);
        let limiter = limiter.observer(watch.clone()).build().unwrap();
        let load = Load::on(limiter.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(load.clone().control());
        let sockets = Arc::default();
        if proxy.is_none() {
            tasks.spawn(count_sockets(server.port(), Arc::clone(&sockets)));
        }
        Self {
            row: (number, matrix::name(number)),
            server: Arc::new(Mutex::new(server)),
            proxy,
            limiter,
            load,
            watch,
            sockets,
            recovery: None,
            traffic: tokio::spawn(async {}),
            _tasks: tasks,
            logs,
            _logging: logging,
        }
    }

    /// The clients come, and Redis decides.
    pub(crate) async fn begin(&mut self) {
        self.traffic().await;
        assert!(self.limiter.is_connected(), "{}", self.row.1);
        self.load.expect_no_waiting();
    }

    /// The clients come, and there is a fault already.
    pub(crate) async fn begin_in_trouble(&mut self) {
        self.load.expect_no_waiting();
        self.traffic().await;
        assert!(!self.limiter.is_connected(), "{}", self.row.1);
    }

    async fn traffic(&mut self) {
        self.load.use_up().await;
        self.traffic = tokio::spawn(self.load.clone().flow());
        self.wait(CALM).await;
    }

    /// Does something with the server while the traffic goes on.
    pub(crate) async fn server<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut RedisServer) -> T + Send + 'static,
    ) -> T {
        let server = self.server.clone();
        spawn_blocking(move || act(&mut server.lock().unwrap())).await.unwrap()
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    /// The key of a client's counter.
    pub(crate) fn key(&self, client: u8) -> String {
        crate::load::key(&self.limiter, client)
    }

    /// The fault lasts.
    pub(crate) async fn suffer(&mut self) {
        self.wait(FAULT).await;
    }

    pub(crate) async fn wait(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.look_at_sockets();
            sleep(ms(10)).await;
        }
    }

    fn look_at_sockets(&self) {
        if let Some(proxy) = &self.proxy {
            let mut most = self.sockets.lock().unwrap();
            *most = proxy.open().max(*most);
        }
    }

    /// From now on Redis could decide again. Waits until it does.
    pub(crate) async fn recover(&mut self) {
        let returned = Instant::now();
        let back = loop {
            if let Some(back) = self.watch.last_by_redis().filter(|&decided| decided > returned) {
                break back;
            }
            assert!(returned.elapsed() < Duration::from_secs(20), "{}: it never came back", self.row.1);
            self.look_at_sockets();
            sleep(ms(1)).await;
        };
        self.recovery = Some(back - returned);
        self.wait(CALM).await;
    }

    /// Everybody uses up what is left; prints the row, and checks it.
    pub(crate) async fn end(mut self, expected: Expected) {
        self.load.stop();
        (&mut self.traffic).await.unwrap();
        self.load.drain().await;
        let fault = self.row.1;
        self.print();
        let load = &self.load;

        assert_eq!(load.server_errors(), 0, "{fault}: answers of 5xx");
        let (slowest, stall) = (load.slowest(), load.stall());
        assert!(slowest <= DEADLINE + SLACK + stall, "{fault}: {slowest:?} with a stall of {stall:?}");
        let is_away = |lines: &[&str]| lines.iter().any(|line| line.starts_with("lost"));
        match load.median_alone() {
            Some(median) => {
                assert!(median < MEDIAN_ALONE, "{fault}: {median:?} in the middle without a connection");
            }
            None => assert!(!expected.lines.is_none_or(is_away), "{fault}: nobody came meanwhile"),
        }
        for (client, admitted) in load.admitted().into_iter().enumerate() {
            let enforced = LIMIT - SHY..=LIMIT;
            assert!(enforced.contains(&admitted), "{fault}: client {client} was admitted {admitted} times");
        }
        let sockets = *self.sockets.lock().unwrap();
        // The server's helper keeps one for the test's own commands.
        let others = expected.others + usize::from(self.proxy.is_none());
        assert!(sockets <= SOCKETS + others, "{fault}: {sockets} sockets, of which {others} may be others'");
        let (recovery, limit) = (self.recovery.unwrap(), expected.back_within.unwrap_or(RETURN));
        assert!(recovery <= limit, "{fault}: back on Redis after {recovery:?}");
        self.assert_lines(expected.lines);
        let reasons = self.watch.reasons();
        match expected.reason {
            Some(reason) => assert!(reasons.contains(&reason), "{fault}: fell back for {reasons:?}"),
            // Of the deadline, 20 ms are left by the slowest path here: a machine
            // that stalls for longer makes answers late by itself.
            None if stall >= STALLED => {
                assert!(reasons.iter().all(|reason| *reason == StoreErrorKind::Timeout))
            }
            None => assert_eq!(reasons, [], "{fault}: Redis has decided everything"),
        }
        self.assert_redis_counts_what_was_admitted().await;
    }

    fn print(&self) {
        let (number, fault) = self.row;
        let load = &self.load;
        let admitted: u64 = load.admitted().iter().sum();
        let allowed = u64::from(CLIENTS) * LIMIT;
        let recovery = match self.recovery {
            _ if self.watch.fallbacks() == 0 => String::from("never left"),
            Some(time) => format!("{} ms", time.as_millis()),
            None => String::from("never"),
        };
        println!(
            "| {number:02} | {fault} | {} | {:.1} ms | {:.1} ms | {:.3} ms | {admitted} of {allowed} | {recovery} |",
            load.requests(),
            load.slowest().as_secs_f64() * 1000.0,
            load.stall().as_secs_f64() * 1000.0,
            load.median_alone().unwrap_or_else(|| load.median()).as_secs_f64() * 1000.0,
        );
    }

    fn assert_lines(&self, expected: Option<&[&str]>) {
        let lines: Vec<String> =
            self.logs.matching("rate limit store").iter().map(|line| brief(line)).collect();
        match expected {
            Some(expected) => assert_eq!(lines, expected, "{}: a line for each transition", self.row.1),
            None => {
                let is_up = |line: &String| line == "connected";
                let turns = lines.windows(2).all(|pair| is_up(&pair[0]) != is_up(&pair[1]));
                assert!(turns && lines.last().is_some_and(is_up), "{}: {lines:?}", self.row.1);
            }
        }
    }

    /// What was counted here is known there, at the latest after the healthy
    /// second that idle clients wait for.
    async fn assert_redis_counts_what_was_admitted(&self) {
        let keys: Vec<_> = (0..CLIENTS).map(|client| self.key(client)).collect();
        let started = Instant::now();
        loop {
            let keys = keys.clone();
            let counts = self
                .server(move |server| keys.iter().map(|key| server.get(key)).collect::<Vec<_>>())
                .await
                .into_iter()
                .map(|count| count.and_then(|value| counted(&value)).unwrap_or(0));
            let counts: Vec<u64> = counts.collect();
            let admitted = self.load.admitted();
            if counts.iter().zip(admitted).all(|(count, admitted)| *count >= admitted) {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(4),
                "{}: admitted {admitted:?}, Redis counts {counts:?}",
                self.row.1
            );
            sleep(ms(50)).await;
        }
    }

    /// Whether the limiter has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.limiter.is_connected()
    }
}

/// `connected`, `lost io`, `refused auth`.
fn brief(line: &str) -> String {
    let reason =
        line.split_once("reason=\"").and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default();
    let event = if line.contains("store connected") {
        "connected"
    } else if line.contains("misconfigured=true") {
        "refused"
    } else {
        "lost"
    };
    format!("{event} {reason}").trim_end().to_owned()
}

/// Remembers how many connections to a port there were at most. One that is seen
/// only once is just being closed.
async fn count_sockets(port: u16, most: Arc<Mutex<usize>>) {
    let mut before = 0;
    loop {
        let sockets = spawn_blocking(move || established(port)).await.unwrap();
        let now_most = sockets.min(before).max(*most.lock().unwrap());
        *most.lock().unwrap() = now_most;
        before = sockets;
        sleep(ms(20)).await;
    }
}

/// The clients' ends of established connections to a loopback port.
pub(crate) fn established(port: u16) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").expect("a table of connections");
    let remote = format!("0100007F:{port:04X}");
    let is_ours = |line: &&str| {
        let mut fields = line.split_ascii_whitespace().skip(2);
        fields.next() == Some(&remote) && fields.next() == Some("01")
    };
    table.lines().filter(is_ours).count()
}
