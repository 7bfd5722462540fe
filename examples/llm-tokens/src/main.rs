//! Tokens of a language model as the cost of a request: 100 a minute for each
//! client, of which a request holds 40 until it is known what it came to.
//!
//! ```text
//! cargo run -p llm-tokens
//! ask() { curl -sN -D - http://127.0.0.1:3000/v1/complete -H 'content-type: application/json' -d "{\"max_tokens\":$1}"; }
//! ask 5; ask 70; ask 1
//! ```
//!
//! Expect five words with 60 remaining, for the estimate is held while they
//! stream; then about 55 remaining, as the first came to five; then 429.

use std::net::SocketAddr;

use tower_ratelimit::RateLimiter;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = llm_tokens::app(RateLimiter::memory())?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
