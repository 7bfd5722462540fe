//! Limits by workspace, plan and method, doubled for VIPs, without a server.
//!
//! ```text
//! cargo run --example tenants_and_plans
//! ```
//!
//! Expect a table of who may do how much: 20 writes for `free`, 100 for `pro`, 40
//! for the VIP on `free`, and a login that is the same for everybody. Then a
//! reload, shown before it is done.

mod rules;

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request};
use axum::routing::any;
use tower::ServiceExt;
use tower_ratelimit::identity::{ClientIp, Principal};
use tower_ratelimit::rules::{LiveRules, RuleSet};
use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = RateLimiter::memory();
    let live = LiveRules::new(&limiter, rules::saas(&ClientIp::peer())?)?;
    let layer = RateLimitLayer::builder(limiter).rules(live.clone()).build()?;
    let app: Router =
        Router::new().route("/api/projects", any(done)).route("/auth/login", any(done)).layer(layer);

    let mut out = io::stdout();
    writeln!(out, "{:<12}{:<6}{:<8}{:<16}limit", "plan", "user", "method", "path")?;
    for (plan, user) in [("free", "ann"), ("pro", "ann"), ("enterprise", "ann"), ("free", "vip")] {
        for (method, path) in
            [(Method::POST, "/api/projects"), (Method::GET, "/api/projects"), (Method::POST, "/auth/login")]
        {
            // On a server the authentication layer leaves the principal here.
            let who = Principal::new().workspace("acme").user(user).plan(plan);
            let request = Request::builder().method(&method).uri(path).extension(who);
            let request = request.extension(SocketAddr::from(([203, 0, 113, 9], 51_512)));
            let response = app.clone().oneshot(request.body(Body::empty())?).await?;
            let limit = response.headers()["x-ratelimit-limit"].to_str()?;
            writeln!(out, "{plan:<12}{user:<6}{:<8}{path:<16}{limit}", method.as_str())?;
        }
    }

    let plan = live.plan(RuleSet::new().otherwise(Policy::fixed_window("http", Rate::per_minute(10))))?;
    write!(out, "\nto go over to one limit for everything:\n{plan}")?;
    plan.apply()?;
    Ok(())
}

async fn done() -> &'static str {
    "done\n"
}
