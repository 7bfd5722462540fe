//! A capture of `tracing` events, for assertions on what is logged and on
//! what must never be.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{self, DefaultGuard};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Every event and span of every level, one line each:
/// `WARN tower_ratelimit::store: lost the connection reason="reset"`, and
/// `SPAN INFO target: name field=value` for a span.
///
/// Clones share their lines.
#[derive(Clone, Default)]
pub struct Logs(Arc<Inner>);

#[derive(Default)]
struct Inner {
    lines: Mutex<Vec<String>>,
    spans: AtomicU64,
}

impl Logs {
    /// Captures what this thread logs while the guard lives: on a runtime of
    /// one thread, all its tasks.
    pub fn capture() -> (Self, DefaultGuard) {
        // Whether an event interests anybody is remembered by the process. With
        // a single subscriber alive, only the thread that meets the event first
        // is asked, which may be one that captures nothing; with two, all are.
        static INTERESTED: OnceLock<[Dispatch; 2]> = OnceLock::new();
        INTERESTED.get_or_init(|| [0; 2].map(|_| Dispatch::new(Self::default())));
        let logs = Self::default();
        let guard = subscriber::set_default(logs.clone());
        (logs, guard)
    }

    /// Captures what the whole process logs. Tests of the same binary may log
    /// into it at the same time: look for what only this test can cause.
    pub fn global() -> Self {
        static GLOBAL: OnceLock<Logs> = OnceLock::new();
        GLOBAL
            .get_or_init(|| {
                let logs = Self::default();
                subscriber::set_global_default(logs.clone()).expect("no other global subscriber");
                logs
            })
            .clone()
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lock().clone()
    }

    /// The lines that contain `text`.
    pub fn matching(&self, text: &str) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| line.contains(text));
        lines
    }

    /// Whether any line contains `text`.
    pub fn contains(&self, text: &str) -> bool {
        self.lock().iter().any(|line| line.contains(text))
    }

    /// Forgets the lines so far.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Logs {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let meta = span.metadata();
        let mut line = Line(format!("SPAN {} {}: {}", meta.level(), meta.target(), meta.name()));
        span.record(&mut line);
        self.lock().push(line.0);
        Id::from_u64(self.0.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line("SPAN recorded:".to_owned());
        values.record(&mut line);
        self.lock().push(line.0);
    }

    fn event(&self, event: &Event<'_>) {
        let meta = event.metadata();
        let mut line = Line(format!("{} {}:", meta.level(), meta.target()));
        event.record(&mut line);
        self.lock().push(line.0);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A line to which fields are appended as they are visited.
struct Line(String);

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a `String` does not fail.
        let _ = if field.name() == "message" {
            write!(self.0, " {value:?}")
        } else {
            write!(self.0, " {field}={value:?}")
        };
    }
}
