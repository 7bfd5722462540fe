//! How a shared store is doing: for health pages and alerts, not for decisions.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::{Nodes, StoreErrorKind, StoreEvent};

/// Latencies are kept for this many stretches, together the last minute.
const STRETCHES: u32 = 6;
const STRETCH: Duration = Duration::from_secs(10);

/// Whether a store decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreState {
    /// Nobody has asked it yet.
    Untried,
    /// It decides.
    Connected,
    /// Some masters of a cluster are gone: this process decides for their slots,
    /// the others for theirs.
    Partial,
    /// It is gone, and this process decides.
    Lost,
}

/// How the store of one limiter is doing, as this process sees it.
#[derive(Clone, Debug)]
pub struct Health {
    state: StoreState,
    since: Duration,
    last_error: Option<StoreErrorKind>,
    answers: u64,
    percentiles: [Duration; 3],
}

impl Health {
    /// Whether it decides.
    #[must_use]
    pub fn state(&self) -> StoreState {
        self.state
    }

    /// For how long it has been in this state.
    #[must_use]
    pub fn since(&self) -> Duration {
        self.since
    }

    /// What went wrong last, even if it is well again.
    #[must_use]
    pub fn last_error(&self) -> Option<StoreErrorKind> {
        self.last_error
    }

    /// How many checks it has answered in the last minute.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Half of the answers of the last minute came within this time; zero when
    /// there were none. To two digits, as the others.
    #[must_use]
    pub fn p50(&self) -> Duration {
        self.percentiles[0]
    }

    /// 95 % of them.
    #[must_use]
    pub fn p95(&self) -> Duration {
        self.percentiles[1]
    }

    /// 99 % of them.
    #[must_use]
    pub fn p99(&self) -> Duration {
        self.percentiles[2]
    }
}

/// Learns from a store's events how it is doing.
#[derive(Debug)]
pub(crate) struct HealthRecord(Mutex<Record>);

#[derive(Debug)]
struct Record {
    state: StoreState,
    nodes: Nodes,
    since: Instant,
    last_error: Option<StoreErrorKind>,
    /// Of the last minute, the oldest first.
    latencies: Vec<(Instant, Histogram<u32>)>,
}

impl HealthRecord {
    pub(crate) fn new() -> Self {
        let (state, since) = (StoreState::Untried, Instant::now());
        Self(Mutex::new(Record {
            state,
            nodes: Nodes::default(),
            since,
            last_error: None,
            latencies: Vec::new(),
        }))
    }

    pub(crate) fn learn(&self, event: &StoreEvent<'_>) {
        let mut record = self.lock();
        if let StoreEvent::Connected { .. } | StoreEvent::Lost { .. } | StoreEvent::Left { .. } = event {
            record.nodes.learn(event);
            match record.nodes.connected() {
                // Only the address to start from has left.
                (_, 0) => {}
                (0, _) => record.enter(StoreState::Lost),
                (connected, all) if connected == all => record.enter(StoreState::Connected),
                _ => record.enter(StoreState::Partial),
            }
        }
        match event {
            StoreEvent::Lost { error, .. } | StoreEvent::Misconfigured { error, .. } => {
                record.last_error = Some(error.kind());
            }
            StoreEvent::Answered { latency } => record.answered(*latency),
            // That there is no connection has been told when it was lost.
            StoreEvent::Failed { error, .. } if error.kind() != StoreErrorKind::Disconnected => {
                record.last_error = Some(error.kind());
            }
            StoreEvent::Connected { .. } | StoreEvent::Left { .. } | StoreEvent::Failed { .. } => {}
        }
    }

    pub(crate) fn now(&self) -> Health {
        let mut record = self.lock();
        record.forget_old();
        let mut all = latencies();
        for (_, stretch) in &record.latencies {
            // Of the same bounds, so nothing is refused.
            let _ = all.add(stretch);
        }
        let percentile = |percent| Duration::from_micros(all.value_at_percentile(percent));
        Health {
            state: record.state,
            since: record.since.elapsed(),
            last_error: record.last_error,
            answers: all.len(),
            percentiles: [50.0, 95.0, 99.0].map(percentile),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn enter(&mut self, state: StoreState) {
        if self.state != state {
            (self.state, self.since) = (state, Instant::now());
        }
    }

    fn answered(&mut self, latency: Duration) {
        let now = Instant::now();
        if self.latencies.last().is_none_or(|(begun, _)| now.duration_since(*begun) >= STRETCH) {
            self.forget_old();
            self.latencies.push((now, latencies()));
        }
        if let Some((_, stretch)) = self.latencies.last_mut() {
            stretch.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        }
    }

    fn forget_old(&mut self) {
        self.latencies.retain(|(begun, _)| begun.elapsed() < STRETCH * STRETCHES);
    }
}

/// Microseconds up to the longest deadline, to two digits.
fn latencies() -> Histogram<u32> {
    #[expect(clippy::expect_used, reason = "constant bounds")]
    Histogram::new_with_bounds(1, 60_000_000, 2).expect("legal bounds")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    #[tokio::test]
    async fn a_cluster_is_connected_in_part_while_one_master_is_missed() {
        let record = HealthRecord::new();
        let error = StoreError::new(StoreErrorKind::Io);
        for (event, state) in [
            (StoreEvent::Lost { address: "a,b", error: &error }, StoreState::Lost),
            (StoreEvent::Left { address: "a,b" }, StoreState::Lost),
            (StoreEvent::Connected { address: "a" }, StoreState::Connected),
            (StoreEvent::Connected { address: "b" }, StoreState::Connected),
            (StoreEvent::Lost { address: "a", error: &error }, StoreState::Partial),
            (StoreEvent::Lost { address: "b", error: &error }, StoreState::Lost),
            (StoreEvent::Connected { address: "b" }, StoreState::Partial),
            (StoreEvent::Left { address: "a" }, StoreState::Connected),
        ] {
            record.learn(&event);
            assert_eq!(record.now().state(), state, "{event:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_minute_counts_and_states_begin_when_they_change() {
        let record = HealthRecord::new();
        assert_eq!(record.now().state(), StoreState::Untried);
        record.learn(&StoreEvent::Connected { address: "x" });
        tokio::time::advance(Duration::from_secs(5)).await;
        for millis in 1..=100 {
            record.learn(&StoreEvent::Answered { latency: Duration::from_millis(millis) });
        }
        let health = record.now();
        assert_eq!((health.state(), health.since()), (StoreState::Connected, Duration::from_secs(5)));
        assert_eq!((health.answers(), health.last_error()), (100, None));
        for (measured, millis) in [(health.p50(), 50), (health.p95(), 95), (health.p99(), 99)] {
            let off = measured.abs_diff(Duration::from_millis(millis));
            assert!(off <= Duration::from_millis(1), "{measured:?} for {millis}");
        }
        let error = StoreError::new(StoreErrorKind::Io);
        record.learn(&StoreEvent::Lost { address: "x", error: &error });
        tokio::time::advance(Duration::from_secs(61)).await;
        let health = record.now();
        assert_eq!((health.answers(), health.p99()), (0, Duration::ZERO));
        assert_eq!((health.state(), health.last_error()), (StoreState::Lost, Some(StoreErrorKind::Io)));
        assert_eq!(health.since(), Duration::from_secs(61));
    }
}
