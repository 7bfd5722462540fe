//! A budget of tokens, of which a request takes an estimate when it is admitted
//! and what it has really cost when its stream has ended.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use http_body_util::channel::{Channel, Sender};
use serde_json::Value;
use tokio::time::sleep;
use tower_ratelimit::middleware::Settlement;
use tower_ratelimit::rules::Limit;
use tower_ratelimit::{BuildError, Policy, Rate, RateLimitLayer, RateLimiter};

/// What an answer may come to before anybody knows.
pub const ESTIMATE: u64 = 40;

/// A reservation that nobody settles lapses after this: longer than any answer
/// takes.
pub const LONGEST_ANSWER: Duration = Duration::from_secs(60);

/// The service, with a budget of 100 tokens a minute for each address.
///
/// # Errors
///
/// None of these settings is refused.
pub fn app(limiter: RateLimiter) -> Result<Router, BuildError> {
    let tokens = Policy::token_bucket("tokens", Rate::per_minute(100)).reserve_for(LONGEST_ANSWER);
    let layer = RateLimitLayer::builder(limiter).limit(Limit::new(tokens).cost(ESTIMATE)).build()?;
    Ok(routes(layer))
}

/// `POST /v1/complete` with `{"prompt":"..","max_tokens":12}`, limited by a layer
/// whose policy reserves.
///
/// Only this method is: on the whole router the layer would hold an estimate for
/// each 404 and 405 as well, which nobody settles.
pub fn routes(tokens: RateLimitLayer) -> Router {
    Router::new().route("/v1/complete", post(complete).route_layer(tokens))
}

async fn complete(
    Extension(tokens): Extension<Settlement>,
    prompt: Result<Json<Value>, JsonRejection>,
) -> Response {
    // What ends before the first word costs nothing, and holds nothing.
    tokens.report(0);
    let Json(prompt) = match prompt {
        Ok(prompt) => prompt,
        Err(unreadable) => return unreadable.into_response(),
    };
    let words = prompt["max_tokens"].as_u64().unwrap_or(ESTIMATE);
    let (sender, body) = Channel::new(1);
    tokio::spawn(generate(words, sender, tokens));
    Body::new(body).into_response()
}

/// Stands for the model. What it has made is reported word by word, so a client
/// that hangs up pays for what it got, and the model stops.
async fn generate(words: u64, mut sender: Sender<Bytes>, tokens: Settlement) {
    for _ in 0..words {
        sleep(Duration::from_millis(10)).await;
        if sender.send_data(Bytes::from_static(b"word ")).await.is_err() {
            return;
        }
        tokens.report(1);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;

    use axum::extract::{ConnectInfo, Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn ask(app: &Router, words: u64) -> Response {
        let prompt = format!(r#"{{"prompt":"hello","max_tokens":{words}}}"#);
        let mut request = Request::post("/v1/complete")
            .header("content-type", "application/json")
            .body(Body::from(prompt))
            .unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([203, 0, 113, 9], 1))));
        app.clone().oneshot(request).await.unwrap()
    }

    fn left(response: &Response) -> u64 {
        response.headers()["x-ratelimit-remaining"].to_str().unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn an_answer_costs_what_it_came_to_and_not_the_estimate() {
        let app = app(RateLimiter::memory()).unwrap();
        let answer = ask(&app, 5).await;
        assert_eq!((answer.status().as_u16(), left(&answer)), (200, 60), "the estimate is held");
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text.len(), 5 * 5);
        let next = ask(&app, 70).await;
        // A token or two may have come back by then.
        assert!((55..=57).contains(&left(&next)), "{}", left(&next));
        next.into_body().collect().await.unwrap();
        let refused = ask(&app, 1).await;
        assert_eq!(refused.status(), 429, "75 of 100 are used, and 40 may be needed");
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_pays_for_what_it_got() {
        let app = app(RateLimiter::memory()).unwrap();
        let mut body = ask(&app, 90).await.into_body();
        for _ in 0..5 {
            body.frame().await.unwrap().unwrap();
        }
        drop(body);
        let next = ask(&app, 1).await;
        assert!((52..=57).contains(&left(&next)), "{}", left(&next));
    }
}
