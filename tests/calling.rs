//! The snippets of the module `calling`, run: what callers in other languages copy
//! has to work. Needs node (18 or later) and python3.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::process::Command;
use tower::ServiceBuilder;
use tower_ratelimit::observe::{Checked, Observer};
use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};

/// Long enough to be refused in it, short enough to wait for.
const WINDOW: Duration = Duration::from_secs(2);

#[derive(Clone, Default)]
struct Refusals(Arc<AtomicUsize>);

impl Observer for Refusals {
    fn refused(&self, _: &Checked<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// `/` admits one request in each window, `/never` none.
async fn serve() -> (SocketAddr, Refusals) {
    let refusals = Refusals::default();
    let limiter = RateLimiter::builder().observer(refusals.clone()).build().unwrap();
    let layer = |name: &str, limit| {
        let policy = Policy::fixed_window(name, Rate::new(limit, WINDOW).unwrap());
        ServiceBuilder::new().layer(RateLimitLayer::builder(limiter.clone()).policy(policy).build().unwrap())
    };
    let app = Router::new()
        .route("/", get(|| async { "hello" }).layer(layer("http", 1)))
        .route("/never", get(|| async { "hello" }).layer(layer("never", 0)));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, service).await });
    (addr, refusals)
}

/// Runs a script that asks `/` twice, then `/never`, and prints a status for each
/// and, for the first two, what is left.
async fn run(runtime: &str, arguments: &[&str], script: &str) {
    let (addr, refusals) = serve().await;
    let started = Instant::now();
    let snippets = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/calling");
    let ran = Command::new(runtime)
        .args(arguments)
        .arg(script.replace("URL", &format!("http://{addr}")))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(snippets)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap_or_else(|error| panic!("needs {runtime}, to run the snippets of src/calling: {error}"));
    let (said, told) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}\n{told}");
    let lines: Vec<_> = said.lines().collect();
    let [first, second, never] = lines[..] else { panic!("three lines: {said}") };
    for line in [first, second] {
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[..2], ["200", "0"], "{said}");
        let seconds: f64 = words[2].parse().unwrap();
        assert!(seconds > 0.0 && seconds <= 3.0, "the rest of the window, rounded up: {said}");
    }
    assert_eq!(never, "429", "after two tries");
    assert_eq!(refusals.0.load(Ordering::SeqCst), 1 + 2, "each waits as long as it is told");
    assert!(started.elapsed() >= 2 * (WINDOW - Duration::from_millis(500)), "{:?}", started.elapsed());
}

#[tokio::test]
async fn the_snippet_in_javascript_waits_as_it_is_told() {
    let script = r#"
        import { patientFetch, left } from "./client.mjs";
        for (let i = 0; i < 2; i += 1) {
            const response = await patientFetch("URL/");
            const { requests, seconds } = left(response);
            console.log(response.status, requests, seconds);
        }
        console.log((await patientFetch("URL/never", {}, 2)).status);
    "#;
    run("node", &["--input-type=module", "--eval"], script).await;
}

#[tokio::test]
async fn the_snippet_in_python_waits_as_it_is_told() {
    let script = r#"
import urllib.error
from client import patient_get, left
for _ in range(2):
    response = patient_get("URL/")
    print(response.status, *left(response))
try:
    patient_get("URL/never", 2)
except urllib.error.HTTPError as error:
    print(error.code)
"#;
    run("python3", &["-c"], script).await;
}
