//! The reference service: one rate limit for every replica, set up from the
//! environment, to be tried with curl.
//!
//! ```text
//! MCP_RATE_LIMIT_MAX=3 cargo run -p gateway
//! for i in 1 2 3 4; do curl -i http://127.0.0.1:3000/; done
//! ```
//!
//! Expect three times 200, with `x-ratelimit-remaining` 2, 1 and 0, then 429
//! with `retry-after` and a JSON body. With `REDIS_URL=redis://127.0.0.1:6379`
//! any number of gateways share the limit, at the key `http:rl:127.0.0.1`; when
//! that Redis goes away they go on limiting by themselves.
//!
//! | path | answers |
//! |---|---|
//! | `/` | a greeting |
//! | `/decision` | the decision as JSON, also with the 429 |
//! | `/whoami` | who the gateway takes the client for, and why |
//! | `/hello.Greeter/SayHello` | the gRPC service of the example `grpc`, on the same port and limit |
//! | `/healthz`, `/metrics` | always: they are never limited and touch no store |
//!
//! A refusal has the form that the client reads: JSON, problem details, or a gRPC
//! status. The standard fields `RateLimit` and `RateLimit-Policy` are on.
//!
//! All others are 404. Everything but the last row counts on one policy,
//! `http`, by client IP: who guesses paths uses up his limit too. CORS
//! preflights are free.
//!
//! The settings are those of [`tower_ratelimit::settings`] and of
//! [`settings`]. The first line on stdout is `listening on http://ADDR`; logs
//! go to stderr. Ctrl-C and SIGTERM let requests under way finish.
//!
//! Start reading in `limits.rs`: the rest is an axum service like any other.

mod limits;
mod metrics;
mod routes;
mod settings;
mod shutdown;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use tokio::net::TcpListener;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::settings::Settings;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when this fails.
            let _ = writeln!(io::stderr(), "gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let settings = Settings::from_env()?;
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false))
        .with(settings.log_levels.clone())
        .init();
    for warning in settings.warnings() {
        tracing::warn!("{warning}");
    }
    let exporter = metrics::install()?;
    let limits = limits::build(&settings)?;
    let limiter = limits.layer.limiter().clone();
    let app = routes::app(limits, exporter, settings.cors_origins);

    // Before anyone can know that we are here.
    let stop = shutdown::requested()?;
    let listener = TcpListener::bind(settings.listen)
        .await
        .map_err(|error| format!("LISTEN: cannot listen on {}: {error}", settings.listen))?;
    writeln!(io::stdout(), "listening on http://{}", listener.local_addr()?)?;
    shutdown::serve(listener, app, stop).await?;
    if let Err(error) = limiter.shutdown(shutdown::PAY).await {
        tracing::warn!("some of what was counted without Redis is lost: {error}");
    }
    Ok(())
}
