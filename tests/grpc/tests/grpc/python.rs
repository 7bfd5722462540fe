//! The gRPC library of another language: grpcio, from PyPI.

use std::path::Path;
use std::process::Command;

use tower_ratelimit::{Rate, RateLimitLayer};

use crate::setup::{serve_router, serve_tonic};

/// `tests/run` installs grpcio and asks for this test; see the script for how to
/// do so by hand.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Python with grpcio and grpcio-status, named in GRPCIO_PYTHON"]
async fn o_grpc_1_a_python_client_sees_code_8_and_the_delay() {
    let python = std::env::var("GRPCIO_PYTHON").expect(
        "set GRPCIO_PYTHON to a Python that has grpcio and grpcio-status (pip install grpcio-status)",
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("grpcio_client.py");
    let layer = || RateLimitLayer::per_ip(Rate::per_minute(2));
    for addr in [serve_tonic(layer()).await.0, serve_router(|app| app.layer(layer())).await] {
        let ran = Command::new(&python).arg(&script).arg(addr.to_string()).output().unwrap();
        let (said, told) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{said}\n{told}");
        println!("{said}");
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines[..2], ["0 OK", "0 OK"], "{said}");
        let refused: Vec<_> = lines[2].split(' ').collect();
        assert_eq!(refused[..3], ["8", "RESOURCE_EXHAUSTED", "policy:http"], "{said}");
        for seconds in &refused[3..] {
            let seconds: f64 = seconds.parse().unwrap();
            assert!(seconds > 0.0 && seconds <= 60.0, "{said}");
        }
        assert_eq!(refused.len(), 5, "{said}");
    }
}
