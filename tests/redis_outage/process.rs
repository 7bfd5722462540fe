//! Faults of the process: gone, stopped, back, back and empty.

use std::time::{Duration, Instant};

use tower_ratelimit::store::StoreErrorKind;

use crate::run::{Expected, Run};
use crate::setup::ms;
use crate::support::RedisServer;

#[tokio::test]
async fn fault_01_absent_at_start() {
    let mut server = RedisServer::start();
    server.kill();
    let mut run = Run::direct(1, server).await;
    run.begin_in_trouble().await;
    run.suffer().await;
    run.server(RedisServer::restart).await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["lost io", "connected"]),
        reason: Some(StoreErrorKind::Disconnected),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_02_sigkill_and_restart() {
    let mut run = Run::direct(2, RedisServer::start()).await;
    run.begin().await;
    run.server(RedisServer::kill).await;
    run.suffer().await;
    run.server(RedisServer::restart).await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost io", "connected"]),
        reason: Some(StoreErrorKind::Disconnected),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_03_sigstop_before_the_first_use() {
    let server = RedisServer::start();
    server.stop_signal();
    let mut run = Run::direct(3, server).await;
    run.begin_in_trouble().await;
    run.suffer().await;
    run.server(|server| server.cont()).await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["lost timeout", "connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_04_sigstop_in_mid_run() {
    let mut run = Run::direct(4, RedisServer::start()).await;
    run.begin().await;
    run.server(|server| server.stop_signal()).await;
    run.suffer().await;
    run.server(|server| server.cont()).await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost timeout", "connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_05_sigcont_before_the_third_deadline() {
    let mut run = Run::direct(5, RedisServer::start()).await;
    run.begin().await;
    run.server(|server| {
        server.stop_signal();
        std::thread::sleep(ms(150));
        server.cont();
    })
    .await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected"]),
        reason: Some(StoreErrorKind::Timeout),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_06_restart_with_an_empty_script_cache() {
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = RedisServer::start_with(&keeps);
    let mut run = Run::direct(6, server).await;
    run.begin().await;
    run.server(|server| {
        server.shutdown();
        server.restart();
    })
    .await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost io", "connected"]),
        reason: Some(StoreErrorKind::Disconnected),
        ..Expected::default()
    })
    .await;
}

/// 1,500 keys that take a millisecond each.
#[tokio::test]
async fn fault_07_loading() {
    if RedisServer::start().version() < 7 {
        println!("Redis 6.2 cannot be told to answer while it loads so little");
        return;
    }
    let slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let server = RedisServer::start_with(&slow);
    let filler = "for i = 1, 1500 do redis.call('SET', 'filler' .. i, string.rep('x' .. i, 200)) end";
    server.command(&["EVAL", filler, "0"]);
    let mut run = Run::direct(7, server).await;
    run.begin().await;
    run.server(|server| {
        server.command(&["SAVE"]);
        // Answers when all is loaded.
        server.restart();
    })
    .await;
    run.recover().await;
    let refused = run.server(|server| server.info("errorstats", "errorstat_LOADING")).await;
    assert!(refused.is_some(), "it was asked while it loaded");
    run.end(Expected {
        lines: Some(&["connected", "lost io", "connected"]),
        reason: Some(StoreErrorKind::Disconnected),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_08_flapping() {
    let mut run = Run::direct(8, RedisServer::start()).await;
    run.begin().await;
    run.server(|server| {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(5) {
            server.kill();
            std::thread::sleep(ms(300));
            server.restart();
            std::thread::sleep(ms(300));
        }
    })
    .await;
    run.recover().await;
    run.end(Expected {
        reason: Some(StoreErrorKind::Disconnected),
        back_within: Some(Duration::from_secs(12)),
        ..Expected::default()
    })
    .await;
}
