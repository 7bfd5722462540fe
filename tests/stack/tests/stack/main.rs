//! The layer beside other middleware, on sockets and on streams.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail"
)]

#[path = "../../../support/mod.rs"]
mod support;

mod recommended;
mod setup;
mod sockets;
mod streams;
mod tower_http_layers;
mod tower_layers;
