//! The layer from outside: one module for each behaviour, all in memory.

#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]
// A test that cannot go on should stop, with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod axum_router;
mod client_ip;
mod configuration;
mod contract;
mod cors;
mod fields_by_outcome;
mod harness;
mod headers;
mod keys;
mod limits_over_time;
mod nesting;
mod replies;
mod skips;
mod standard_fields;
mod test_util;
#[cfg(feature = "tonic")]
mod tonic_server;
