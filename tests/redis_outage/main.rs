//! The limiter while Redis fails, on real `redis-server` processes and a real
//! TCP path: the fault matrix of the README, and the cases by id.
//!
//! Each fault is a test that prints its row; `tests/faults` prints the table.

#![allow(missing_docs)]
// A test that cannot go on should stop, with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod cases;
mod load;
mod matrix;
mod path;
mod process;
mod run;
mod setup;
