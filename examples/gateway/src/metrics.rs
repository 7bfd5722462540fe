//! Metrics for Prometheus. The crate reports to the `metrics` facade; here is
//! what listens to it.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tower_ratelimit::RateLimiter;

/// From a Redis next door to one that misses the default deadline of 100 ms.
const STORE_SECONDS: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

const UPKEEP: Duration = Duration::from_secs(5);

/// Listens from now on; before the first check, which looks for a listener.
pub(crate) fn install() -> Result<PrometheusHandle, BuildError> {
    let store = Matcher::Full("ratelimit_store_duration_seconds".to_owned());
    let exporter =
        PrometheusBuilder::new().set_buckets_for_metric(store, &STORE_SECONDS)?.install_recorder()?;
    // Samples wait until they are sorted into buckets: without this, for a
    // scrape that may never come.
    let upkeep = exporter.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(exporter)
}

/// Checks report how many identities are kept; in a quiet hour there are none,
/// and the gauge would still show the rush before it.
pub(crate) fn refresh(limiter: &RateLimiter) {
    ::metrics::gauge!("ratelimit_local_entries").set(limiter.local_entries() as f64);
}
