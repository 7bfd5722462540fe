//! The supervised connection.
//!
//! One pooled connection is held and shared by all checks. When it breaks or
//! stops answering it is taken out of the pool for good, checks fail at once,
//! and a background task brings and probes the next one. No request pays for
//! any of that; only the very first attempt is waited for.
//!
//! The task starts with the first check, on that check's runtime. When that
//! runtime ends the connection ends with it, and all starts again with the next
//! check. The task holds no strong reference while it waits, so it ends with the
//! limiter.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use deadpool_redis::{Connection, Pool, PoolError};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, ProtocolVersion, RedisError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::backoff::{FIRST_BACKOFF, LAST_BACKOFF, Losses, jittered};
use super::dial::{CONNECT_TIMEOUT, Dial, address};
use super::error;
use super::news::{Events, Item, News, Told};
use crate::store::{StoreError, StoreErrorKind};

/// A connection that misses this many deadlines in a row is dropped.
pub(super) const MISSES: u32 = 3;

/// What must work on a new connection before checks use it.
pub(super) trait Probe: Send + Sync + 'static {
    /// Answers with the server's time since 1970.
    fn probe(
        &self,
        connection: MultiplexedConnection,
    ) -> impl Future<Output = Result<Duration, RedisError>> + Send;
}

/// A connection that checks may use.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    /// Which connection it is, so that a late failure of an older one does not
    /// take down its successor.
    pub(super) generation: u64,
    /// The server's time since 1970, and when it was that.
    server_time: (Duration, Instant),
}

impl Live {
    /// The server's time by now.
    pub(super) fn server_now(&self) -> Duration {
        let (then, at) = self.server_time;
        then + at.elapsed()
    }
}

#[derive(Clone)]
enum State {
    Untried,
    Up(Live),
    Down,
}

/// The connection of one store.
pub(super) struct Link<P> {
    shared: Arc<Shared<P>>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

struct Shared<P> {
    dial: Dial,
    /// Of one connection: the one that is held, or the one that is coming.
    pool: Mutex<Pool>,
    address: String,
    deadline: Duration,
    state: watch::Sender<State>,
    misses: Mutex<Misses>,
    /// Shared by the links of one store, so that no two connections of it have
    /// one number.
    generations: Arc<AtomicU64>,
    told: Mutex<Told>,
    /// The connection on which a misconfiguration was told of.
    complained: AtomicU64,
    news: News,
    probe: P,
}

#[derive(Default)]
struct Misses {
    in_a_row: u32,
    /// Since when something was asked and nothing answered, or the last miss.
    silent_since: Option<Instant>,
}

impl<P: Probe> Link<P> {
    /// A link to a server that nobody has talked to yet.
    pub(super) fn new(
        target: ConnectionInfo,
        deadline: Duration,
        probe: P,
        events: Events,
        generations: Arc<AtomicU64>,
    ) -> Result<Self, RedisError> {
        let address = address(target.addr());
        let dial = Dial { target, closed: Arc::default() };
        let pool = Mutex::new(dial.pool(ProtocolVersion::RESP3)?);
        let (state, _) = watch::channel(State::Untried);
        let shared = Shared {
            dial,
            pool,
            address,
            deadline,
            state,
            misses: Mutex::default(),
            generations,
            told: Mutex::default(),
            complained: AtomicU64::new(0),
            news: News::new(events),
            probe,
        };
        Ok(Self { shared: Arc::new(shared), supervisor: Mutex::new(None) })
    }

    /// Host and port.
    pub(super) fn address(&self) -> &str {
        &self.shared.address
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*self.shared.state.borrow(), State::Up(_))
    }

    /// The connection, if it is up.
    pub(super) fn live(&self) -> Option<Live> {
        match &*self.shared.state.borrow() {
            State::Up(live) => Some(live.clone()),
            State::Untried | State::Down => None,
        }
    }

    /// The number of the connection that is up.
    pub(super) fn generation(&self) -> Option<u64> {
        match &*self.shared.state.borrow() {
            State::Up(live) => Some(live.generation),
            State::Untried | State::Down => None,
        }
    }

    /// Why a check must not even wait, if so.
    pub(super) fn unavailable(&self) -> Option<StoreError> {
        let untried = match *self.shared.state.borrow() {
            State::Up(_) => false,
            State::Untried => true,
            State::Down => return Some(StoreError::new(StoreErrorKind::Disconnected)),
        };
        // Outside of a runtime nothing can be waited for, not even a deadline.
        let usable = if untried { self.supervise() } else { Handle::try_current().is_ok() };
        (!usable).then(|| StoreError::new(StoreErrorKind::Disconnected))
    }

    /// The connection. Waits only while the very first attempt is under way.
    pub(super) async fn connection(&self) -> Result<Live, StoreError> {
        let mut changes = self.shared.state.subscribe();
        let tried = changes.wait_for(|state| !matches!(state, State::Untried)).await;
        match tried.as_deref() {
            Ok(State::Up(live)) => Ok(live.clone()),
            _ => Err(StoreError::new(StoreErrorKind::Disconnected)),
        }
    }

    /// Until another connection than that one is up, or the limiter is gone.
    pub(super) fn superseded(&self, generation: u64) -> impl Future<Output = ()> + Send + use<P> {
        let mut changes = self.shared.state.subscribe();
        async move {
            let another = |state: &State| matches!(state, State::Up(live) if live.generation != generation);
            let _ = changes.wait_for(another).await;
        }
    }

    /// A check is about to ask, or has given up waiting for the very first
    /// connection: after as many misses as cost a connection nobody waits for
    /// that either.
    pub(super) fn asks(&self) {
        if self.shared.missed() {
            self.shared.give_up_first();
            if let Some(generation) = self.generation() {
                self.shared.lose(generation, &StoreError::new(StoreErrorKind::Timeout));
            }
        }
    }

    /// A check was answered within its deadline.
    pub(super) fn answered(&self) {
        *self.shared.lock_misses() = Misses::default();
    }

    /// A check on this connection failed.
    pub(super) fn failed(&self, live: &Live, error: &StoreError) {
        let is_current = self.generation() == Some(live.generation);
        if !matches!(error.kind(), StoreErrorKind::Timeout | StoreErrorKind::Io | StoreErrorKind::Tls) {
            // A server that says no is there.
            self.answered();
        }
        let broken = match error.kind() {
            StoreErrorKind::Timeout => is_current && self.shared.missed(),
            kind => error::breaks_connection(kind),
        };
        if broken {
            self.shared.lose(live.generation, error);
        } else if error.kind().is_misconfiguration() {
            self.shared.complain(live.generation, error);
        }
    }

    /// Starts the background task if none runs. Answers whether one does.
    pub(super) fn supervise(&self) -> bool {
        let mut supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if supervisor.as_ref().is_some_and(|task| !task.is_finished()) {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        let task = supervise(OnRuntime(Arc::downgrade(&self.shared)), self.shared.state.subscribe());
        *supervisor = Some(runtime.spawn(task));
        true
    }
}

impl<P> Shared<P> {
    /// Counts a missed deadline if there was no answer for one: once per
    /// deadline period, however many checks wait in it, and whether they wait
    /// until the end or leave before. Answers whether it was one too many.
    fn missed(&self) -> bool {
        let mut misses = self.lock_misses();
        let now = Instant::now();
        let silent_since = *misses.silent_since.get_or_insert(now);
        if now.duration_since(silent_since) >= self.deadline {
            misses.in_a_row += 1;
            misses.silent_since = Some(now);
        }
        misses.in_a_row >= MISSES
    }

    fn lock_misses(&self) -> MutexGuard<'_, Misses> {
        self.misses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the checks a new connection.
    fn raise(&self, connection: MultiplexedConnection, server_time: (Duration, Instant)) {
        let mut told = self.lock_told();
        *told = Told::Nothing;
        *self.lock_misses() = Misses::default();
        // 0 is none.
        let generation = self.generations.fetch_add(1, Ordering::Release) + 1;
        self.state.send_replace(State::Up(Live { connection, generation, server_time }));
        self.news.queue(Item::Connected);
        drop(told);
        self.news.tell(&self.address);
    }

    /// A check was refused by what somebody must mend, on a connection that is
    /// well: told once for each.
    fn complain(&self, generation: u64, error: &StoreError) {
        if self.complained.swap(generation, Ordering::Relaxed) != generation {
            self.news.queue(Item::Misconfigured(error.clone()));
            self.news.tell(&self.address);
        }
    }

    /// The first attempt has failed: those who wait for it wait no longer.
    fn give_up_first(&self) {
        self.state.send_if_modified(|state| {
            let first = matches!(state, State::Untried);
            if first {
                *state = State::Down;
            }
            first
        });
    }

    /// Takes a connection down, unless another one has come since.
    fn lose(&self, generation: u64, error: &StoreError) {
        let mut told = self.lock_told();
        let lost = self.state.send_if_modified(|state| {
            let current = matches!(state, State::Up(live) if live.generation == generation);
            if current {
                *state = State::Down;
            }
            current
        });
        if lost {
            self.queue_lost(&mut told, error);
        }
        drop(told);
        self.news.tell(&self.address);
    }

    /// An outage is told once, whoever notices it first.
    fn queue_lost(&self, told: &mut Told, error: &StoreError) {
        let news = Told::of(error);
        if *told < news {
            *told = news;
            self.news.queue(Item::Lost(error.clone()));
        }
    }

    /// Held while the state changes and its news is queued, so that what was
    /// told last is what is true.
    fn lock_told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Probe> Shared<P> {
    /// Brings a connection on which a check would work.
    async fn connect(&self) -> Result<(Connection, (Duration, Instant)), StoreError> {
        let connection = match self.dial().await {
            // A server or a proxy that knows only the older protocol.
            Err(error) if error.kind() == StoreErrorKind::UnknownCommand => {
                *self.lock_pool() =
                    self.dial.pool(ProtocolVersion::RESP2).map_err(|error| error::classify(&error))?;
                self.dial().await?
            }
            dialled => dialled?,
        };
        let probed =
            tokio::time::timeout(CONNECT_TIMEOUT, self.probe.probe(connection.as_ref().clone())).await;
        let error = match probed {
            Ok(Ok(server_time)) => return Ok((connection, (server_time, Instant::now()))),
            Ok(Err(error)) => error::classify(&error),
            Err(_) => StoreError::new(StoreErrorKind::Timeout),
        };
        // Out of the pool for good, or it would be handed out again.
        drop(Connection::take(connection));
        Err(error)
    }

    async fn dial(&self) -> Result<Connection, StoreError> {
        #[cfg(feature = "tls")]
        if matches!(self.dial.target.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            super::tls::ensure_provider();
        }
        let pool = self.lock_pool().clone();
        pool.get().await.map_err(|error| match &error {
            PoolError::Backend(error) => error::classify(error),
            _ => StoreError::new(StoreErrorKind::Timeout),
        })
    }

    fn lock_pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client has said that a connection is closed. It does not say which,
    /// so the present one is asked for a sign of life; any answer is one.
    async fn ask(&self) {
        let State::Up(mut live) = self.state.borrow().clone() else { return };
        let ping = redis::cmd("PING");
        let asked = tokio::time::timeout(CONNECT_TIMEOUT, ping.query_async::<()>(&mut live.connection)).await;
        let error = match asked {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error::classify(&error),
            Err(_) => StoreError::new(StoreErrorKind::Timeout),
        };
        if matches!(error.kind(), StoreErrorKind::Io | StoreErrorKind::Tls | StoreErrorKind::Timeout) {
            self.lose(live.generation, &error);
        }
    }
}

/// Keeps a connection up until the limiter is gone.
async fn supervise<P: Probe>(shared: OnRuntime<P>, mut state: watch::Receiver<State>) {
    let mut backoff = FIRST_BACKOFF;
    let mut losses = Losses::default();
    loop {
        let Some(strong) = shared.0.upgrade() else { return };
        match strong.connect().await {
            Ok((connection, server_time)) => {
                backoff = FIRST_BACKOFF;
                strong.raise(connection.as_ref().clone(), server_time);
                let closed = strong.dial.closed.clone();
                drop(strong);
                if !until_lost(&shared.0, &mut state, &closed).await {
                    return;
                }
                drop(Connection::take(connection));
                sleep(losses.hold()).await;
            }
            Err(error) => {
                strong.give_up_first();
                strong.queue_lost(&mut strong.lock_told(), &error);
                strong.news.tell(&strong.address);
                drop(strong);
                sleep(jittered(backoff)).await;
                backoff = (backoff * 2).min(LAST_BACKOFF);
            }
        }
    }
}

/// Waits for the end of a connection. Answers false when it is the limiter's.
async fn until_lost<P: Probe>(
    shared: &Weak<Shared<P>>,
    state: &mut watch::Receiver<State>,
    closed: &Notify,
) -> bool {
    loop {
        let lost = async { state.wait_for(|state| !matches!(state, State::Up(_))).await.is_ok() };
        tokio::select! {
            is_lost = lost => return is_lost,
            () = closed.notified() => {
                let Some(strong) = shared.upgrade() else { return false };
                strong.ask().await;
            }
        }
    }
}

/// What the background task holds of its link. Dropped with the task: when its
/// runtime ends, the connection is driven no more, and the next check on another
/// runtime is the first one there.
struct OnRuntime<P>(Weak<Shared<P>>);

impl<P> Drop for OnRuntime<P> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            *shared.lock_misses() = Misses::default();
            let mut told = shared.lock_told();
            if let State::Up(_) = shared.state.send_replace(State::Untried) {
                shared.queue_lost(&mut told, &StoreError::new(StoreErrorKind::Disconnected));
            }
            drop(told);
            shared.news.tell(&shared.address);
        }
    }
}
