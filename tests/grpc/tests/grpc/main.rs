//! The layer on a tonic server and on a router of axum and tonic, and what gRPC
//! clients make of its refusals.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

mod calls;
mod frames;
mod python;
mod refusals;
mod setup;
mod web;
