//! The MCP layer: what it recognises, what it refuses and how, and what stock
//! clients make of it. Clients of other languages are in the gateway's tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

mod cases;
mod clients;
mod forms;
mod harness;
mod look;
