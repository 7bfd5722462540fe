//! A service behind rules, and how the tests ask it. It answers 200, and 401 to a
//! login, for only those that fail count.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower::{Layer as _, Service as _, service_fn};
use tower_ratelimit::identity::{Account, Principal};
use tower_ratelimit::observe::{Checked, Observer, Problem};
use tower_ratelimit::rules::{LiveRules, RuleSet};
use tower_ratelimit::test_util::ManualClock;
use tower_ratelimit::{BuildError, Policy, Rate, RateLimitLayer, RateLimiter};

/// A service that answers 200, behind rules.
pub struct Ruled {
    pub limiter: RateLimiter,
    pub live: LiveRules,
    pub clock: ManualClock,
    pub seen: Seen,
    layer: RateLimitLayer,
}

impl Ruled {
    pub fn by(rules: RuleSet) -> Self {
        Self::new(rules).unwrap()
    }

    pub fn new(rules: RuleSet) -> Result<Self, BuildError> {
        let (clock, seen) = (ManualClock::new(), Seen::default());
        let limiter = RateLimiter::builder().clock(clock.clone()).observer(seen.clone()).build()?;
        let live = LiveRules::new(&limiter, rules)?;
        let layer = RateLimitLayer::builder(limiter.clone()).rules(live.clone()).build()?;
        Ok(Self { limiter, live, clock, seen, layer })
    }

    pub async fn ask(&self, request: Ask) -> Answer {
        through(&self.layer, request).await
    }

    /// How many of these are admitted, one after the other, before the first
    /// refusal.
    pub async fn admits(&self, request: impl Fn() -> Ask) -> u64 {
        for admitted in 0..10_000 {
            if self.ask(request()).await.status == StatusCode::TOO_MANY_REQUESTS {
                return admitted;
            }
        }
        panic!("never refused");
    }

    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

/// Sends one request through a layer.
pub async fn through(layer: &RateLimitLayer, request: Ask) -> Answer {
    let handler = service_fn(|request: Request<()>| async move {
        let fails = request.method() == "POST" && request.uri().path() == "/auth/login";
        let mut response = Response::new(());
        *response.status_mut() = if fails { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
        Ok::<_, Infallible>(response)
    });
    let response = layer.layer(handler).call(request.0).await.unwrap();
    let number = |name: &str| Some(response.headers().get(name)?.to_str().unwrap().parse().unwrap());
    Answer {
        status: response.status(),
        limit: number("x-ratelimit-limit"),
        remaining: number("x-ratelimit-remaining"),
        retry_after: number("retry-after"),
    }
}

/// A request from 203.0.113.9.
pub struct Ask(Request<()>);

pub fn ask(method: &str, path: &str) -> Ask {
    let peer: IpAddr = "203.0.113.9".parse().unwrap();
    Ask(Request::builder().method(method).uri(path).extension(peer).body(()).unwrap())
}

impl Ask {
    /// As the authentication layer verified it: `workspace.user.plan`.
    pub fn who(mut self, token: &str) -> Self {
        let [workspace, user, plan] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
        self.0.extensions_mut().insert(Principal::new().workspace(workspace).user(user).plan(plan));
        self
    }

    pub fn account(mut self, name: &str) -> Self {
        self.0.extensions_mut().insert(Account::new(name));
        self
    }

    pub fn from(mut self, peer: &str) -> Self {
        self.0.extensions_mut().insert::<IpAddr>(peer.parse().unwrap());
        self
    }

    pub fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.0.headers_mut().insert(name, http::HeaderValue::from_static(value));
        self
    }

    pub fn extension<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.0.extensions_mut().insert(value);
        self
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: StatusCode,
    pub limit: Option<u64>,
    pub remaining: Option<u64>,
    pub retry_after: Option<u64>,
}

/// What a limiter has told its observers since it was last asked.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<(BTreeSet<String>, Vec<String>)>>);

impl Seen {
    /// `<policy> <key>` of all that was checked.
    pub fn keys(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().0).into_iter().collect()
    }

    /// Problems and digests.
    pub fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().1)
    }
}

impl Observer for Seen {
    fn checked(&self, checked: &Checked<'_>) {
        let line = format!("{} {}", checked.policy(), checked.key().as_str());
        self.0.lock().unwrap().0.insert(line);
    }

    fn misconfigured(&self, problem: &Problem) {
        self.0.lock().unwrap().1.push(problem.as_str().to_owned());
    }

    fn rules(&self, digest: &str, replaced: Option<&str>) {
        self.0.lock().unwrap().1.push(format!("rules {digest} for {replaced:?}"));
    }
}

pub fn minute(name: &str, limit: u32) -> Policy {
    Policy::fixed_window(name, Rate::per_minute(limit))
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
