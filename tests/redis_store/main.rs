//! The limiter on a real `redis-server`, one module per behaviour.

#![allow(missing_docs)]
// A test that cannot go on should stop, with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod after_response;
mod algorithms;
mod blocks;
mod bounds;
mod cancellation;
mod concurrency;
mod conformance;
mod continuity;
mod deadline;
mod deny_cache;
mod failure_choice;
mod foreign_values;
mod key_layout;
mod outage;
mod reconcile;
mod round_trips;
mod runtimes;
mod scripts;
mod secrets;
mod setup;
mod shares;
mod sharing;
mod windows;
