//! The rules of `examples/saas.toml`, in Rust. A test compares the two.

use std::time::Duration;

use http::{Method, StatusCode};
use tower_ratelimit::identity::{Account, ClientIp, Principal, Route, Scoped};
use tower_ratelimit::rules::{Factor, Limit, Rule, RuleSet};
use tower_ratelimit::{Policy, PolicyError, Rate};

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Everything under `/auth/` counts by address, everything under `/api/` by
/// workspace, with a plan's limits and twice as much for VIPs.
pub(crate) fn saas(client_ip: &ClientIp) -> Result<RuleSet, PolicyError> {
    let rules = RuleSet::new().skip_path("/healthz").skip_path("/metrics");
    let rules = auth(rules, client_ip)?;
    Ok(api(rules, client_ip))
}

/// No plan and no VIP has more guesses at a password: no factor is named here.
fn auth(rules: RuleSet, client_ip: &ClientIp) -> Result<RuleSet, PolicyError> {
    let address = || Scoped::new("global", client_ip.clone());
    let failures = |limit: Limit| limit.count_if_status([StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN]);
    let held = Duration::from_secs(30);

    let login = Policy::fixed_window("login", Rate::new(5, minutes(15))?).block_for(minutes(60));
    let login = Limit::new(login.reserve_for(held)).by((address(), Account::identity(), Route::new()));
    let login_ip = Policy::fixed_window("login-ip", Rate::new(50, minutes(15))?).reserve_for(held);
    let login_ip = Limit::new(login_ip).by(address());

    let register = Policy::fixed_window("register", Rate::per_hour(3)).block_for(minutes(24 * 60));
    let register = Limit::new(register).by((address(), Principal::by_user(), Route::new()));
    let other = Policy::fixed_window("auth", Rate::new(10, minutes(5))?).block_for(minutes(30));
    let other = Limit::new(other).by((address(), Principal::by_user(), Route::new()));

    let login_route = Rule::route("/auth/login").method(Method::POST);
    Ok(rules
        .rule(login_route.limit(failures(login)).limit(failures(login_ip)))
        .rule(Rule::route("/auth/register").method(Method::POST).limit(register))
        .rule(Rule::route("/auth/{*rest}").limit(other)))
}

fn api(rules: RuleSet, client_ip: &ClientIp) -> RuleSet {
    let vip = Factor::times("vip", 2).users(["vip"]);
    let scoped = |policy: Policy| {
        let identity = (Principal::by_workspace(), client_ip.clone(), Principal::by_user(), Route::new());
        Limit::new(policy).by(identity).factor(vip.clone())
    };
    let per_minute = |name: &str, free: u32, pro: u64, enterprise: u64| {
        let policy = Policy::fixed_window(name, Rate::per_minute(free)).block_for(minutes(5));
        scoped(policy).plan("pro", pro).plan("enterprise", enterprise)
    };
    let api = || Rule::route("/api/{*rest}");
    rules
        .rule(Rule::route("/api/exports").limit(scoped(Policy::fixed_window("export", Rate::per_hour(5)))))
        .rule(api().method(Method::POST).method(Method::PUT).method(Method::PATCH).limit(per_minute(
            "api-write",
            20,
            100,
            1_000,
        )))
        .rule(api().method(Method::DELETE).limit(per_minute("api-delete", 10, 50, 500)))
        .rule(api().limit(per_minute("api-read", 100, 500, 5_000)))
}
