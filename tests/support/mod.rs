//! What the integration tests share: private Redis servers, a TCP proxy that
//! misbehaves on command, and a capture of log events.
//!
//! Use it with `mod support;` in a test binary.

// Each test binary compiles this module for itself and uses a part of it.
#![allow(dead_code, unused_imports)]
// `pub` is what tests may use, as it would be in a crate of its own.
#![allow(unreachable_pub)]
// A test that cannot go on should stop, with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod logs;
mod proxy;
mod redis_cluster;
mod redis_server;
mod resp;

pub use self::logs::Logs;
pub use self::proxy::{Mode, Proxy};
pub use self::redis_cluster::{RedisCluster, own_slots};
pub use self::redis_server::{FREE_PORT, RedisServer, free_port};
pub use self::resp::{Reply, RespClient};
