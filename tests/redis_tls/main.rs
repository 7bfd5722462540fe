//! The limiter on a `redis-server` that speaks TLS, with a CA made for the test.

#![allow(missing_docs)]
// A test that cannot go on should stop, with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod build;
mod certificates;
mod cluster;
mod failures;
mod outage;
mod setup;

/// The suite of both stores, here with this binary's [`setup`]: over TLS.
#[path = "../redis_store/conformance.rs"]
mod conformance;
