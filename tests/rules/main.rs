//! Rules from outside: which policies apply to a request, and what changes when
//! rules are replaced. All in memory.

#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]
// A test that cannot go on should stop, with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chosen;
mod harness;
mod refused;
mod reload;
mod saas;
#[path = "../../examples/tenants_and_plans/rules.rs"]
mod saas_in_rust;
