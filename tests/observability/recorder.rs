//! A recorder that keeps the series it is given.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder};
use metrics::{SharedString, Unit};

/// What was recorded, by series. Clones share it.
#[derive(Clone, Default)]
pub struct Recorded(Arc<Mutex<BTreeMap<String, Arc<Value>>>>);

#[derive(Default)]
struct Value(Mutex<f64>);

impl Recorded {
    /// Runs `test` with this recorder, on this thread.
    pub fn during<T>(&self, test: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(self, test)
    }

    pub fn series(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    /// The value of `name{label=value,...}`, labels in order.
    pub fn value(&self, series: &str) -> Option<f64> {
        self.0.lock().unwrap().get(series).map(|value| *value.0.lock().unwrap())
    }

    fn register(&self, key: &Key) -> Arc<Value> {
        let mut labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        labels.sort();
        let series = format!("{}{{{}}}", key.name(), labels.join(","));
        self.0.lock().unwrap().entry(series).or_default().clone()
    }
}

impl CounterFn for Value {
    fn increment(&self, by: u64) {
        *self.0.lock().unwrap() += by as f64;
    }

    fn absolute(&self, value: u64) {
        *self.0.lock().unwrap() = value as f64;
    }
}

impl GaugeFn for Value {
    fn increment(&self, by: f64) {
        *self.0.lock().unwrap() += by;
    }

    fn decrement(&self, by: f64) {
        *self.0.lock().unwrap() -= by;
    }

    fn set(&self, value: f64) {
        *self.0.lock().unwrap() = value;
    }
}

/// A histogram's value is how often it recorded.
impl HistogramFn for Value {
    fn record(&self, _: f64) {
        *self.0.lock().unwrap() += 1.0;
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.register(key).into()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.register(key).into()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.register(key).into()
    }
}
