//! The limiter on a cluster of three masters, each a real process.

#![allow(missing_docs)]
// A test that cannot go on should stop, with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod outage;
mod redirects;
mod reshard;
mod setup;
mod slots;

/// The suite of both stores, here with this binary's [`setup`].
#[path = "../redis_store/conformance.rs"]
mod conformance;
