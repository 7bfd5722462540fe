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
//! | path | answers | counts by |
//! |---|---|---|
//! | `/` | a greeting | `http` |
//! | `/decision` | the decision as JSON, also with the 429 | `http` |
//! | `/whoami` | who the gateway takes the client for, and why | `http` |
//! | `POST /auth/login` | 200 to `{"user":"ann","password":"correct"}`, otherwise 401 | the rules |
//! | `POST /auth/register`, `/auth/me` | what a real one would | the rules |
//! | `/api/projects`, `/api/exports` | any method | the rules |
//! | `POST /v1/complete` | streams `max_tokens` words | `http`, and `tokens` by what it came to |
//! | `/hello.Greeter/SayHello` | the gRPC service of the example `grpc`, on the same port | `http` |
//! | `/mcp` | the MCP server of the example `mcp-server`, over streamable HTTP | `http`; the tool `execute_code` on `codemode`, by caller |
//! | `/healthz`, `/metrics` | always | nothing: they touch no store |
//!
//! The rules are those of `examples/saas.toml`, or of the file that `RULES_FILE`
//! names. What they leave counts on one policy, `http`, by client IP: who guesses
//! paths uses up his limit too. CORS preflights are free. Who calls the API says
//! `Authorization: Bearer <workspace>.<user>.<plan>` and is believed.
//!
//! ```text
//! gateway --check new.toml                       # what would change; 1 if it is wrong
//! RULES_FILE=rules.toml gateway & kill -HUP $!   # read it again
//! ```
//!
//! A refusal has the form that the client reads: JSON, problem details, a gRPC
//! status, or a result of an MCP tool. The standard fields `RateLimit` and `RateLimit-Policy` are on.
//!
//! The settings are those of [`tower_ratelimit::settings`] and of
//! [`settings`]. The first line on stdout is `listening on http://ADDR`; logs
//! go to stderr. Ctrl-C and SIGTERM let requests under way finish.
//!
//! Start reading in `limits.rs`: the rest is an axum service like any other.

mod callers;
mod limits;
mod metrics;
mod routes;
mod rules;
mod settings;
mod shutdown;

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use mcp_server::CancellationToken;
use tokio::net::TcpListener;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::settings::Settings;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let done = match (arguments.next(), arguments.next(), arguments.next()) {
        (None, ..) => run().await,
        (Some(check), Some(file), None) if check == "--check" => self::check(Path::new(&file)),
        _ => Err("takes no arguments, or --check FILE".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when this fails.
            let _ = writeln!(io::stderr(), "gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What it would mean to go over to the rules of a file.
fn check(file: &Path) -> Result<(), Box<dyn Error>> {
    let plan = limits::source(&Settings::from_env()?)?.check(file)?;
    Ok(write!(io::stdout(), "{plan}")?)
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
    let source = limits::source(&settings)?;
    let limits = limits::build(&settings, &source)?;
    let rules = limits.rules.clone();
    let limiter = limits.layer.limiter().clone();
    let mcp = CancellationToken::new();
    let app = routes::app(limits, exporter, settings.cors_origins, mcp.clone());

    // Before anyone can know that we are here.
    let stop = shutdown::requested()?;
    rules::reload_on_hangup(source, rules)?;
    let listener = TcpListener::bind(settings.listen)
        .await
        .map_err(|error| format!("LISTEN: cannot listen on {}: {error}", settings.listen))?;
    writeln!(io::stdout(), "listening on http://{}", listener.local_addr()?)?;
    shutdown::serve(listener, app, shutdown::ending(mcp, stop)).await?;
    if let Err(error) = limiter.shutdown(shutdown::PAY).await {
        tracing::warn!("some of what was counted without Redis is lost: {error}");
    }
    Ok(())
}
