//! What a policy does while Redis cannot decide is its own choice.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::observe::Observer;
use tower_ratelimit::store::{StoreErrorKind, StoreState};
use tower_ratelimit::{OnStoreFailure, Policy, RateLimitLayer, RateLimiter, Refusal, Source};

use crate::setup::{Redis, builder, client, eventually, fixed, hit, ms, request_from};
use crate::support::{Logs, free_port};

/// A limiter whose Redis was never there.
fn alone() -> RateLimiter {
    builder(format!("redis://127.0.0.1:{}", free_port())).deadline(ms(100)).build().unwrap()
}

fn choosing(name: &str, choice: OnStoreFailure) -> Policy {
    fixed(name, 3, 60_000).on_store_failure(choice)
}

struct Answer {
    status: u16,
    headers: Vec<String>,
    body: String,
}

/// Four answers of a layer, and how many requests came through it.
async fn four_answers(policies: impl IntoIterator<Item = Policy>) -> (Vec<Answer>, usize) {
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = hits.clone();
    let inner = service_fn(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(Response::new(http_body_util::Empty::<bytes::Bytes>::new())) }
    });
    let layer = RateLimitLayer::builder(alone());
    let service =
        policies.into_iter().fold(layer, |layer, policy| layer.policy(policy)).build().unwrap().layer(inner);
    let mut answers = Vec::new();
    for _ in 0..4 {
        let (parts, body) = service.clone().oneshot(request_from(1)).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let interesting = |name: &&str| name.starts_with("x-ratelimit") || *name == "retry-after";
        answers.push(Answer {
            status: parts.status.as_u16(),
            headers: parts
                .headers
                .keys()
                .map(|name| name.as_str())
                .filter(interesting)
                .map(str::to_owned)
                .collect(),
            body: String::from_utf8(body.to_vec()).unwrap(),
        });
    }
    (answers, hits.load(Ordering::Relaxed))
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

#[tokio::test]
async fn o_fb_2_failing_open_on_the_login_route() {
    let (local, hits) = four_answers([choosing("login", OnStoreFailure::Local)]).await;
    assert_eq!((statuses(&local), hits), (vec![200, 200, 200, 429], 3));

    let (closed, hits) = four_answers([choosing("login", OnStoreFailure::Deny)]).await;
    assert_eq!((statuses(&closed), hits), (vec![503; 4], 0), "the handler is not called");
    assert_eq!(closed[0].headers, ["retry-after"], "and no number is invented");
    let body: serde_json::Value = serde_json::from_str(&closed[0].body).unwrap();
    assert_eq!((&body["success"], &body["retryAfter"]), (&false.into(), &1.into()));

    let (open, hits) = four_answers([choosing("news", OnStoreFailure::Allow)]).await;
    assert_eq!((statuses(&open), hits), (vec![200; 4], 4));
    assert_eq!(open[0].headers, [""; 0], "nothing was counted, so nothing is told");

    let (unset, _) = four_answers([fixed("login", 3, 60_000)]).await;
    assert_eq!(statuses(&unset), [200, 200, 200, 429], "the default is not to fail open");
}

/// What was decided without Redis, by policy and reason.
#[derive(Clone, Default)]
struct Fallbacks(Arc<Mutex<Vec<(String, StoreErrorKind)>>>);

impl Observer for Fallbacks {
    fn fell_back(&self, policy: &str, reason: StoreErrorKind) {
        self.0.lock().unwrap().push((policy.to_owned(), reason));
    }
}

#[tokio::test]
async fn o_fb_2_login_is_closed_while_news_are_open() {
    let (logs, _guard) = Logs::capture();
    let fallbacks = Fallbacks::default();
    let url = format!("redis://127.0.0.1:{}", free_port());
    let limiter = builder(url).deadline(ms(100)).observer(fallbacks.clone()).build().unwrap();
    let tried = Arc::new(AtomicUsize::new(0));
    let login = {
        let tried = tried.clone();
        move || {
            tried.fetch_add(1, Ordering::Relaxed);
            async { StatusCode::UNAUTHORIZED }
        }
    };
    let layer = |policy| RateLimitLayer::builder(limiter.clone()).policy(policy).build().unwrap();
    let app = Router::new()
        .route("/login", post(login).layer(layer(choosing("login", OnStoreFailure::Deny))))
        .route("/news", get(async || "news").layer(layer(choosing("news", OnStoreFailure::Allow))));
    let ask = async |method: Method, path: &str| {
        let request = Request::builder().method(method).uri(path).extension(client(1)).body(Body::empty());
        app.clone().oneshot(request.unwrap()).await.unwrap()
    };
    for _ in 0..20 {
        let refused = ask(Method::POST, "/login").await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (503, &"1".parse().unwrap())
        );
        assert_eq!(ask(Method::GET, "/news").await.status(), 200);
    }
    assert_eq!(tried.load(Ordering::Relaxed), 0, "no password was tried");
    assert_eq!(logs.matching("rate limit store lost").len(), 1, "an open route is not silent");
    let fallbacks = fallbacks.0.lock().unwrap();
    for policy in ["login", "news"] {
        let reasons: Vec<_> =
            fallbacks.iter().filter(|(of, _)| of == policy).map(|(_, reason)| *reason).collect();
        assert_eq!(reasons, [StoreErrorKind::Disconnected; 20], "{policy}");
    }
}

#[tokio::test]
async fn of_several_policies_one_that_denies_decides_and_one_that_allows_is_left_out() {
    let (both, hits) = four_answers([
        choosing("a", OnStoreFailure::Local),
        choosing("b", OnStoreFailure::Deny),
        choosing("c", OnStoreFailure::Allow),
    ])
    .await;
    assert_eq!((statuses(&both), hits), (vec![503; 4], 0));
    let (rest, _) =
        four_answers([choosing("a", OnStoreFailure::Allow), choosing("b", OnStoreFailure::Local)]).await;
    assert_eq!(statuses(&rest), [200, 200, 200, 429]);
    let (shadow, _) = four_answers([choosing("a", OnStoreFailure::Deny).shadow()]).await;
    assert_eq!(statuses(&shadow), [200; 4], "a shadow policy refuses nothing");
}

#[tokio::test]
async fn a_denying_policy_says_why_and_that_nothing_was_counted() {
    let limiter = alone();
    let login = limiter.policy(choosing("login", OnStoreFailure::Deny)).unwrap();
    let decision = hit(&limiter, &login, "ann").await;
    assert_eq!((decision.refusal(), decision.source()), (Some(Refusal::Unavailable), Source::Local));
    assert!(!decision.is_counted() && !decision.is_allowed());
    assert_eq!(decision.retry_after_seconds(), Some(1));
}

#[tokio::test]
async fn health_tells_the_state_since_when_and_why() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let state = || limiter.health().unwrap().state();
    assert_eq!(state(), StoreState::Untried);
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    for _ in 0..20 {
        assert_eq!(hit(&limiter, &http, "ann").await.source(), Source::Redis);
    }
    let health = limiter.health().unwrap();
    assert_eq!((health.state(), health.last_error(), health.answers()), (StoreState::Connected, None, 20));
    assert!(!health.p50().is_zero() && health.p50() <= health.p95() && health.p95() <= health.p99());
    redis.server.kill();
    eventually("the loss is known", || state() == StoreState::Lost).await;
    let lost = limiter.health().unwrap();
    assert_eq!(lost.last_error(), Some(StoreErrorKind::Io));
    assert!(lost.since() < ms(10_000));
    assert!(RateLimiter::memory().health().is_none());
}

#[tokio::test]
async fn shutdown_pays_what_is_left_or_says_that_it_could_not() {
    let mut redis = Redis::start();
    let limiter = redis.builder().build().unwrap();
    let http = limiter.policy(fixed("http", 100, 60_000)).unwrap();
    assert!(limiter.shutdown(ms(10)).await.is_ok(), "nothing is owed");
    for _ in 0..5 {
        assert!(hit(&limiter, &http, "ann").await.is_allowed());
    }
    redis.server.kill();
    for _ in 0..7 {
        assert!(hit(&limiter, &http, "ann").await.is_allowed());
    }
    let error = limiter.shutdown(ms(100)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Timeout);
    redis.server.restart();
    limiter.shutdown(ms(5_000)).await.unwrap();
    assert_eq!(redis.server.get(&http.store_key(&crate::setup::who("ann"))).as_deref(), Some("12"));
    assert!(RateLimiter::memory().shutdown(ms(1)).await.is_ok());
}
