//! The gateway from outside: its binary, its environment, HTTP/1.1 and a
//! private Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod browsers;
mod gateway;
mod grpc_service;
mod http;
mod limit;
mod mcp;
mod metrics;
mod outage;
mod reload;
mod replicas;
mod rules;
mod settings;
mod shutdown;
#[path = "../../../../tests/support/mod.rs"]
mod support;
mod tokens;
mod whoami;
