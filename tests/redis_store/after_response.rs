//! What counts only after the response: failed logins, and tokens of a stream.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;
use tower::ServiceExt;
use tower_ratelimit::identity::{ClientIp, Extension as FromExtension};
use tower_ratelimit::middleware::Settlement;
use tower_ratelimit::rules::Limit;
use tower_ratelimit::{Charge, Key, Policy, PolicyHandle, Rate, RateLimitLayer, RateLimiter, Source};

use crate::setup::{
    Redis, bucket, builder, client, connect, eventually, fixed, hit_for, ms, request_from, sliding, who,
};
use crate::support::{Mode, Proxy};

type Of = fn(&str, u64, u64) -> Policy;

/// Each scenario with every algorithm, in memory and on Redis.
macro_rules! everywhere {
    ($($scenario:ident)*) => {
        mod in_memory {
            use super::ALL;
            use tower_ratelimit::RateLimiter;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                let play = |of| super::$scenario(RateLimiter::memory(), of);
                tokio::join!(play(ALL[0]), play(ALL[1]), play(ALL[2]));
            })*
        }

        mod on_redis {
            use super::ALL;
            use crate::setup::Redis;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $scenario() {
                let play = async |of| {
                    let redis = Redis::start();
                    super::$scenario(redis.limiter(), of).await;
                };
                tokio::join!(play(ALL[0]), play(ALL[1]), play(ALL[2]));
            })*
        }
    };
}

const ALL: [Of; 3] = [fixed, sliding, bucket];

everywhere! {
    o_auth_1_successful_logins_use_up_the_budget
    o_auth_2_own_account_used_to_reset_the_counter
    o_auth_3_parallel_guesses_before_the_first_failure_is_recorded
    good_logins_at_once_are_not_blocked
    a_guess_whose_client_has_left_counts
    o_llm_1_streamed_answers_never_charged
    o_llm_2_all_in_flight_requests_pass_the_zero_cost_check
    o_llm_4_budget_runs_out_in_the_middle_of_a_stream
    a_stream_dropped_half_way_is_charged_for_what_was_reported
    a_request_that_nobody_settles_lapses
    settled_once_whatever_is_called_twice
}

/// The account that a login is for, as an outer layer has read it.
#[derive(Clone)]
struct Account(String);

/// A login route behind a limit on failures.
#[derive(Clone)]
struct Logins {
    app: Router,
    handled: Arc<AtomicU64>,
    limiter: RateLimiter,
    policies: Vec<PolicyHandle>,
}

impl Logins {
    fn limited_by(limiter: RateLimiter, limits: Vec<Limit>, takes: Duration) -> Self {
        let handled = Arc::<AtomicU64>::default();
        let login = async move |State(handled): State<Arc<AtomicU64>>, headers: HeaderMap| {
            handled.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(takes).await;
            if headers.contains_key("good") { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
        };
        let mut layer = RateLimitLayer::builder(limiter.clone());
        let mut policies = Vec::new();
        for limit in limits {
            policies.push(limit.policy().clone());
            layer = layer.limit(limit);
        }
        let layer = layer.build().unwrap();
        let policies = policies.into_iter().map(|policy| limiter.policy(policy).unwrap()).collect();
        let app = Router::new().route("/login", post(login)).layer(layer).with_state(handled.clone());
        Self { app, handled, limiter, policies }
    }

    /// `n` failures for each account and address.
    fn of(limiter: RateLimiter, policy: Policy, takes: Duration) -> Self {
        let login = Limit::new(policy)
            .by((ClientIp::peer(), account()))
            .count_if_status([StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN]);
        Self::limited_by(limiter, vec![login], takes)
    }

    async fn try_as(&self, from: u8, account: &str, good: bool) -> Response<Body> {
        let mut request = request_from(from).map(|()| Body::empty());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = "/login".parse().unwrap();
        request.extensions_mut().insert(Account(account.to_owned()));
        if good {
            request.headers_mut().insert("good", "yes".parse().unwrap());
        }
        self.app.clone().oneshot(request).await.unwrap()
    }

    async fn used(&self, policy: usize, key: Key) -> u64 {
        self.limiter.peek(&self.policies[policy], &key).await.used()
    }
}

fn account() -> FromExtension<Account> {
    FromExtension::new(|account: &Account| Some(Cow::Borrowed(&*account.0)))
}

fn account_of(from: u8, name: &str) -> Key {
    Key::builder().ip(client(from)).principal(name).finish()
}

fn number(response: &Response<Body>, name: &str) -> u64 {
    response.headers()[name].to_str().unwrap().parse().unwrap()
}

async fn o_auth_1_successful_logins_use_up_the_budget(limiter: RateLimiter, of: Of) {
    let logins = Logins::of(limiter, of("login", 5, 3_600_000), ms(0));
    for _ in 0..20 {
        let response = logins.try_as(9, "ann", true).await;
        assert_eq!(response.status(), 200);
        assert_eq!(number(&response, "x-ratelimit-remaining"), 5, "its place was given back");
    }
    for left in [4, 3, 2, 1, 0] {
        let response = logins.try_as(9, "ann", false).await;
        assert_eq!(response.status(), 401);
        assert_eq!(number(&response, "x-ratelimit-remaining"), left);
    }
    for good in [true, false] {
        assert_eq!(logins.try_as(9, "ann", good).await.status(), 429, "no oracle");
    }
    assert_eq!(logins.try_as(9, "bob", true).await.status(), 200);
}

async fn o_auth_2_own_account_used_to_reset_the_counter(limiter: RateLimiter, of: Of) {
    let failures = |policy, identity: bool| {
        let limit = Limit::new(policy).count_if_status([StatusCode::UNAUTHORIZED]);
        if identity { limit.by((ClientIp::peer(), account())) } else { limit.by(ClientIp::peer()) }
    };
    let limits =
        vec![failures(of("login", 5, 3_600_000), true), failures(of("login-ip", 8, 3_600_000), false)];
    let logins = Logins::limited_by(limiter, limits, ms(0));
    for victim in ["victim", "another"] {
        for _ in 0..4 {
            assert_eq!(logins.try_as(9, victim, false).await.status(), 401);
        }
        let own = logins.try_as(9, "attacker", true).await;
        assert_eq!(own.status(), if victim == "victim" { 200 } else { 429 });
    }
    assert_eq!(logins.used(1, Key::ip(client(9))).await, 8);
    assert_eq!(logins.try_as(9, "third", true).await.status(), 429, "everything from that address");
    assert_eq!(logins.try_as(8, "third", true).await.status(), 200);
}

async fn o_auth_3_parallel_guesses_before_the_first_failure_is_recorded(limiter: RateLimiter, of: Of) {
    let logins = Logins::of(limiter, of("login", 5, 3_600_000).block_for(ms(7_200_000)), ms(50));
    let start = Arc::new(Barrier::new(100));
    let mut guesses = JoinSet::new();
    for _ in 0..100 {
        let (logins, start) = (logins.clone(), start.clone());
        guesses.spawn(async move {
            start.wait().await;
            logins.try_as(9, "ann", false).await.status().as_u16()
        });
    }
    let statuses = guesses.join_all().await;
    assert_eq!(logins.handled.load(Ordering::SeqCst), 5, "reached the handler");
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 5);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 95);
    assert_eq!(logins.used(0, account_of(9, "ann")).await, 5);
    assert_eq!(logins.try_as(9, "ann", true).await.status(), 429);
    let blocked = logins.limiter.peek(&logins.policies[0], &account_of(9, "ann")).await;
    assert!(blocked.blocked_for().is_some(), "the first one after them has started the block");
}

async fn good_logins_at_once_are_not_blocked(limiter: RateLimiter, of: Of) {
    let logins = Logins::of(limiter, of("login", 5, 3_600_000).block_for(ms(7_200_000)), ms(30));
    for distinct in [true, false] {
        let start = Arc::new(Barrier::new(30));
        let mut tries = JoinSet::new();
        for i in 0..30 {
            let (logins, start) = (logins.clone(), start.clone());
            tries.spawn(async move {
                let account = if distinct { format!("user-{i}") } else { "ann".to_owned() };
                start.wait().await;
                let response = logins.try_as(9, &account, true).await;
                if response.status() == 429 {
                    assert_eq!(number(&response, "retry-after"), 1);
                    tokio::time::sleep(ms(1_000)).await;
                    // Those that obey get in, though they all come back at once.
                    return (429, retried(&logins, &account).await);
                }
                (response.status().as_u16(), 200)
            });
        }
        for (first, last) in tries.join_all().await {
            assert!(first == 200 || (!distinct && first == 429), "{first}");
            assert_eq!(last, 200);
        }
    }
    let seen = logins.limiter.peek(&logins.policies[0], &account_of(9, "ann")).await;
    assert_eq!((seen.used(), seen.blocked_for()), (0, None));
}

async fn retried(logins: &Logins, account: &str) -> u16 {
    for _ in 0..10 {
        let response = logins.try_as(9, account, true).await;
        if response.status() != 429 {
            return response.status().as_u16();
        }
        assert_eq!(number(&response, "retry-after"), 1);
        tokio::time::sleep(ms(1_000)).await;
    }
    429
}

async fn a_guess_whose_client_has_left_counts(limiter: RateLimiter, of: Of) {
    let logins = Logins::of(limiter, of("login", 3, 3_600_000), ms(60_000));
    for used in [1, 2, 3] {
        let handled = async {
            while logins.handled.load(Ordering::SeqCst) != used {
                tokio::time::sleep(ms(5)).await;
            }
        };
        // It hangs up while the password is looked at.
        tokio::select! {
            response = logins.try_as(9, "ann", false) => panic!("{:?}", response.status()),
            () = handled => {}
        }
        // What a drop leaves to be told to Redis is told in the background.
        let started = Instant::now();
        while held(&logins).await {
            assert!(started.elapsed() < ms(5_000), "{used}");
            tokio::time::sleep(ms(5)).await;
        }
        assert_eq!(logins.used(0, account_of(9, "ann")).await, used);
    }
    assert_eq!(logins.try_as(9, "ann", false).await.status(), 429);
}

/// Whether something of ann's is still held open.
async fn held(logins: &Logins) -> bool {
    let limiter = &logins.limiter;
    let all = Charge::new(&logins.policies[0], account_of(9, "ann")).cost(3);
    limiter.check([all]).await.refusal() == Some(tower_ratelimit::Refusal::Reserved)
}

/// A route that streams and tells what it has cost.
struct Completions {
    app: Router,
    limiter: RateLimiter,
    tokens: PolicyHandle,
}

/// What the handler does: it gets the handle and the sender of its chunks.
type Writer = fn(Settlement, Sender<Bytes>, Arc<Semaphore>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

impl Completions {
    fn of(
        limiter: RateLimiter,
        policy: Policy,
        estimate: u64,
        go_on: Arc<Semaphore>,
        writer: Writer,
    ) -> Self {
        let complete = async move |Extension(tokens): Extension<Settlement>| {
            let (sender, body) = Channel::new(1);
            tokio::spawn(writer(tokens, sender, go_on.clone()));
            Response::new(Body::new(body))
        };
        let tokens = limiter.policy(policy.clone()).unwrap();
        let layer = RateLimitLayer::builder(limiter.clone())
            .limit(Limit::new(policy).cost(estimate))
            .build()
            .unwrap();
        let app = Router::new().route("/complete", post(complete)).layer(layer);
        Self { app, limiter, tokens }
    }

    async fn ask(&self) -> Response<Body> {
        let mut request: Request<Body> = request_from(9).map(|()| Body::empty());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = "/complete".parse().unwrap();
        self.app.clone().oneshot(request).await.unwrap()
    }

    async fn used(&self) -> u64 {
        self.limiter.peek(&self.tokens, &Key::ip(client(9))).await.used()
    }

    /// Waits until what the end of a stream has settled is told to the store.
    async fn until_used(&self, expected: u64) {
        let started = Instant::now();
        while self.used().await != expected {
            assert!(started.elapsed() < ms(5_000), "{} and not {expected}", self.used().await);
            tokio::time::sleep(ms(5)).await;
        }
    }
}

async fn o_llm_1_streamed_answers_never_charged(limiter: RateLimiter, of: Of) {
    let policy = of("tokens", 100, 3_600_000).reserve_for(ms(60_000));
    let completions =
        Completions::of(limiter, policy, 1, Arc::new(Semaphore::new(0)), |tokens, mut chunks, _| {
            Box::pin(async move {
                for _ in 0..5 {
                    let _ = chunks.send_data(Bytes::from_static(b"word ")).await;
                }
                tokens.report(60);
            })
        });
    for used in [60, 120] {
        let response = completions.ask().await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 25);
        completions.until_used(used).await;
    }
    let refused = completions.ask().await;
    assert_eq!(refused.status(), 429);
    assert_eq!(number(&refused, "x-ratelimit-remaining"), 0, "never negative");
}

async fn o_llm_2_all_in_flight_requests_pass_the_zero_cost_check(limiter: RateLimiter, of: Of) {
    let (policy, go_on) = (of("tokens", 100, 3_600_000).reserve_for(ms(60_000)), Arc::new(Semaphore::new(0)));
    let writer: Writer = |tokens, mut chunks, go_on| {
        Box::pin(async move {
            go_on.acquire().await.unwrap().forget();
            let _ = chunks.send_data(Bytes::from_static(b"word")).await;
            tokens.report(4);
            tokens.report(6);
        })
    };
    let completions = Completions::of(limiter, policy, 40, go_on.clone(), writer);
    let mut responses = Vec::new();
    for _ in 0..10 {
        responses.push(completions.ask().await);
    }
    let admitted: Vec<_> = responses.into_iter().filter(|response| response.status() == 200).collect();
    assert_eq!(admitted.len(), 2);
    assert_eq!(completions.used().await, 80, "held open");
    // Either may be the first that goes on.
    go_on.add_permits(2);
    for response in admitted {
        response.into_body().collect().await.unwrap();
    }
    completions.until_used(20).await;
    let seen = completions.limiter.peek(&completions.tokens, &Key::ip(client(9))).await;
    assert_eq!(seen.remaining(), 80);
}

async fn o_llm_4_budget_runs_out_in_the_middle_of_a_stream(limiter: RateLimiter, of: Of) {
    let (policy, go_on) = (of("tokens", 30, 3_600_000).reserve_for(ms(60_000)), Arc::new(Semaphore::new(0)));
    let writer: Writer = |tokens, mut chunks, go_on| {
        Box::pin(async move {
            for i in 0..10 {
                if i == 9 {
                    go_on.acquire().await.unwrap().forget();
                }
                tokens.report(10);
                let _ = chunks.send_data(Bytes::from_static(b"word")).await;
            }
        })
    };
    let completions = Completions::of(limiter, policy, 10, go_on.clone(), writer);
    let mut body = completions.ask().await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(&first[..], b"word", "before the last is made");
    go_on.add_permits(1);
    let rest = body.collect().await.unwrap().to_bytes();
    assert_eq!(rest.len(), 9 * 4, "a stream that has started ends normally");
    completions.until_used(100).await;
    assert_eq!(completions.ask().await.status(), 429, "the next one is refused");
}

async fn a_stream_dropped_half_way_is_charged_for_what_was_reported(limiter: RateLimiter, of: Of) {
    let policy = of("tokens", 100, 3_600_000).reserve_for(ms(60_000));
    let completions =
        Completions::of(limiter, policy, 50, Arc::new(Semaphore::new(0)), |tokens, mut chunks, _| {
            Box::pin(async move {
                tokens.report(7);
                for _ in 0..1_000 {
                    if chunks.send_data(Bytes::from_static(b"word")).await.is_err() {
                        return;
                    }
                }
            })
        });
    let mut body = completions.ask().await.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(completions.used().await, 50);
    drop(body);
    completions.until_used(7).await;
}

async fn a_request_that_nobody_settles_lapses(limiter: RateLimiter, of: Of) {
    let policy = of("tokens", 100, 3_600_000).reserve_for(ms(300));
    let completions =
        Completions::of(limiter, policy, 50, Arc::new(Semaphore::new(0)), |_, mut chunks, _| {
            Box::pin(async move {
                let _ = chunks.send_data(Bytes::from_static(b"word")).await;
            })
        });
    completions.ask().await.into_body().collect().await.unwrap();
    assert_eq!(completions.used().await, 50);
    tokio::time::sleep(ms(350)).await;
    assert_eq!(completions.used().await, 0);
}

async fn settled_once_whatever_is_called_twice(limiter: RateLimiter, of: Of) {
    let policy = of("tokens", 100, 3_600_000).reserve_for(ms(60_000));
    let completions =
        Completions::of(limiter, policy, 50, Arc::new(Semaphore::new(0)), |tokens, chunks, _| {
            Box::pin(async move {
                tokens.report(90);
                let clone = tokens.clone();
                assert!(clone.settle(8));
                assert!(!tokens.settle(8));
                tokens.report(90);
                // The body ends with it, and with the body what was reported is due.
                drop(chunks);
            })
        });
    completions.ask().await.into_body().collect().await.unwrap();
    completions.until_used(8).await;
    tokio::time::sleep(ms(50)).await;
    assert_eq!(completions.used().await, 8);
}

#[tokio::test]
async fn o_llm_3_balance_goes_below_zero() {
    let redis = Redis::start();
    for limiter in [redis.limiter(), RateLimiter::memory()] {
        let window = limiter.policy(fixed("window", 1_000, 60_000).reserve_for(ms(60_000))).unwrap();
        let over = limiter.reserve([Charge::new(&window, who("ann"))]).await.settle(1_200).await.unwrap();
        assert_eq!((over.used(), over.remaining()), (1_200, 0), "not -200");
        let next = hit_for(&limiter, &window, "ann", 100).await;
        assert!(!next.is_allowed());
        assert!(next.retry_after().unwrap() > ms(59_000), "when the window ends; the debt ends with it");

        let bucket = Policy::token_bucket("bucket", Rate::per_second(100)).burst(1_000);
        let bucket = limiter.policy(bucket.reserve_for(ms(60_000))).unwrap();
        let over = limiter.reserve([Charge::new(&bucket, who("ann"))]).await.settle(1_200).await.unwrap();
        assert_eq!(over.remaining(), 0);
        let next = hit_for(&limiter, &bucket, "ann", 100).await;
        let wait = next.retry_after().unwrap();
        assert!(wait > ms(2_900) && wait <= ms(3_000), "{wait:?}: a debt of 200, and 100");
    }
}

#[tokio::test]
async fn a_settlement_that_redis_does_not_take_is_told_to_it_later() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let tokens = limiter.policy(fixed("tokens", 100, 3_600_000).reserve_for(ms(60_000))).unwrap();
    let reserved = limiter.reserve([Charge::new(&tokens, who("ann")).cost(40)]).await;
    redis.server.kill();
    let after = reserved.settle(10).await.unwrap();
    assert_eq!((after.used(), after.remaining()), (10, 90), "counted here");
    redis.server.restart();
    eventually("the limiter is back on Redis", || limiter.is_connected()).await;
    let next = limiter.peek(&tokens, &who("ann")).await;
    assert_eq!(next.used(), 10);
    let key = tokens.store_key(&who("ann"));
    eventually("Redis knows", || redis.server.get(&key).as_deref() == Some("10")).await;
}

#[tokio::test]
async fn a_login_waits_for_a_hanging_redis_once_and_not_again_for_its_settlement() {
    let redis = Redis::start();
    let limiter = redis.builder().deadline(ms(100)).build().unwrap();
    let logins = Logins::of(limiter.clone(), fixed("login", 5, 3_600_000), ms(0));
    assert_eq!(logins.try_as(9, "ann", false).await.status(), 401);
    redis.server.stop_signal();
    let asked = Instant::now();
    let response = logins.try_as(9, "ann", false).await;
    let took = asked.elapsed();
    assert_eq!((response.status().as_u16(), number(&response, "x-ratelimit-remaining")), (401, 3));
    assert!(took < ms(180), "{took:?}");
    for left in [2, 1, 0] {
        let response = logins.try_as(9, "ann", false).await;
        assert_eq!((response.status().as_u16(), number(&response, "x-ratelimit-remaining")), (401, left));
    }
    assert_eq!(logins.try_as(9, "ann", true).await.status(), 429);
    redis.server.cont();
    eventually("the limiter is back on Redis", || limiter.is_connected()).await;
    assert_eq!(logins.try_as(9, "ann", true).await.status(), 429);
    // The places that Redis has held without anybody waiting are given back after
    // a healthy second.
    let started = Instant::now();
    while logins.used(0, account_of(9, "ann")).await != 5 {
        assert!(started.elapsed() < ms(10_000), "each failure counts once");
        tokio::time::sleep(ms(50)).await;
    }
}

#[tokio::test]
async fn a_late_answer_holds_a_place_neither_twice_nor_after_it_was_settled() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).deadline(ms(150)).build().unwrap();
    let tokens = limiter.policy(fixed("tokens", 100, 3_600_000).reserve_for(ms(60_000))).unwrap();
    connect(&limiter).await;
    let reserve = async |name| limiter.reserve([Charge::new(&tokens, who(name)).cost(40)]).await;
    let _ = reserve("script").await;
    proxy.set_mode(Mode::Delay(ms(200)));
    let (open, settled) = tokio::join!(reserve("ann"), reserve("bob"));
    assert_eq!(open.decision().source(), Source::Local);
    assert_eq!(settled.decision().source(), Source::Local);
    proxy.set_mode(Mode::Forward);
    tokio::time::sleep(ms(200)).await;
    proxy.set_mode(Mode::Reset);
    eventually("Redis is gone", || !limiter.is_connected()).await;
    assert_eq!(limiter.peek(&tokens, &who("ann")).await.used(), 40);
    assert_eq!(settled.settle(10).await.unwrap().used(), 10);
}

#[tokio::test]
async fn what_was_settled_in_an_outage_holds_no_place_when_redis_is_back_with_its_data() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).build().unwrap();
    let tokens = limiter.policy(fixed("tokens", 100, 3_600_000).reserve_for(ms(60_000))).unwrap();
    let reserved = limiter.reserve([Charge::new(&tokens, who("ann")).cost(40)]).await;
    proxy.set_mode(Mode::Reset);
    eventually("Redis is gone", || !limiter.is_connected()).await;
    assert_eq!(reserved.settle(10).await.unwrap().used(), 10);
    proxy.set_mode(Mode::Forward);
    eventually("the limiter is back on Redis", || limiter.is_connected()).await;
    // After a healthy second.
    let started = Instant::now();
    while limiter.peek(&tokens, &who("ann")).await.used() != 10 {
        assert!(started.elapsed() < ms(10_000), "the place is held for a minute");
        tokio::time::sleep(ms(50)).await;
    }
}

#[tokio::test]
async fn a_settlement_that_has_begun_goes_on_when_nobody_waits_for_it() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).build().unwrap();
    let tokens = limiter.policy(fixed("tokens", 100, 3_600_000).reserve_for(ms(60_000))).unwrap();
    let reserved = limiter.reserve([Charge::new(&tokens, who("ann")).cost(40)]).await;
    proxy.set_mode(Mode::Delay(ms(100)));
    let settling = tokio::time::timeout(ms(20), reserved.settle(10)).await;
    assert!(settling.is_err(), "it was dropped while Redis was asked");
    proxy.set_mode(Mode::Forward);
    let key = tokens.store_key(&who("ann"));
    eventually("Redis knows", || redis.server.get(&key).as_deref() == Some("10")).await;
    assert_eq!(limiter.peek(&tokens, &who("ann")).await.used(), 10);
}
