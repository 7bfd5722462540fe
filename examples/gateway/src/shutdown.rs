//! Serving, and how it ends: no new connections, requests under way finish.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use mcp_server::CancellationToken;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A client that does not take its answer must not keep the process.
const DRAIN: Duration = Duration::from_secs(10);

/// MCP clients keep streams open that have no end of their own. So long have calls
/// that are under way to be answered before all are ended.
const CALLS: Duration = Duration::from_secs(1);

/// What was counted while Redis was gone is still paid, if Redis is back.
pub(crate) const PAY: Duration = Duration::from_secs(1);

/// Serves until `stop`, then drains for at most ten seconds.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stopped) = oneshot::channel();
    // Without `connect_info` there is no peer address to limit by.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        stop.await;
        tracing::info!("stopping: requests under way may finish");
        let _ = stopping.send(());
    });
    let too_late = async {
        // An error means that the server has ended by itself.
        if stopped.await.is_err() {
            std::future::pending().await
        }
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        ended = server.into_future() => ended,
        () = too_late => {
            tracing::warn!("stopped with requests still under way");
            Ok(())
        }
    }
}

/// Waits for `stop`, and ends the streams of MCP sessions soon after.
pub(crate) async fn ending(mcp: CancellationToken, stop: impl Future<Output = ()>) {
    stop.await;
    tokio::spawn(async move {
        tokio::time::sleep(CALLS).await;
        mcp.cancel();
    });
}

/// Waits for Ctrl-C or SIGTERM. They are caught from now on, not from the first
/// poll.
#[cfg(unix)]
pub(crate) fn requested() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Waits for Ctrl-C.
#[cfg(not(unix))]
pub(crate) fn requested() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    })
}
