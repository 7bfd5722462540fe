//! Where counts live.
//!
//! The memory store applies the pure step under its locks. Redis runs the same
//! rules as a script, atomically, and answers with the state before the check.
//! Neither knows HTTP, or what to do when it fails: it says so with a
//! [`StoreError`], and the limiter decides.

mod event;
#[cfg(feature = "redis")]
mod health;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;

pub use self::event::{StoreError, StoreErrorKind, StoreEvent};
#[cfg(feature = "redis")]
pub(crate) use self::health::HealthRecord;
#[cfg(feature = "redis")]
pub use self::health::{Health, StoreState};
