//! Faults in what Redis answers: it lives, and says no.

use std::fs;
use std::thread;

use tower_ratelimit::store::StoreErrorKind;

use crate::run::{Expected, Run};
use crate::setup::ms;
use crate::support::{Proxy, RedisServer, Reply, RespClient, free_port};

fn ok(server: &RedisServer, command: &[&str]) {
    assert_eq!(server.command(command), Reply::Simple("OK".to_owned()), "{command:?}");
}

pub(crate) fn set(server: &RedisServer, name: &str, value: &str) {
    ok(server, &["CONFIG", "SET", name, value]);
}

#[tokio::test]
async fn fault_20_script_flush_under_50_parallel_requests() {
    let mut run = Run::direct(20, RedisServer::start()).await;
    run.begin().await;
    let before = run.server(|server| server.commandstat("eval")).await;
    for _ in 0..10 {
        run.server(|server| ok(server, &["SCRIPT", "FLUSH"])).await;
        run.load.burst(50).await;
    }
    run.recover().await;
    let sent = run.server(|server| server.commandstat("eval")).await - before;
    assert!((10..=20).contains(&sent), "the script was sent {sent} times after 10 flushes");
    run.end(Expected { lines: Some(&["connected"]), ..Expected::default() }).await;
}

#[tokio::test]
async fn fault_21_readonly() {
    let mut run = Run::direct(21, RedisServer::start()).await;
    run.begin().await;
    run.server(|server| ok(server, &["REPLICAOF", "127.0.0.1", &free_port().to_string()])).await;
    run.suffer().await;
    run.server(|server| ok(server, &["REPLICAOF", "NO", "ONE"])).await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected", "lost readonly", "connected"]),
        reason: Some(StoreErrorKind::ReadOnly),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_22_busy() {
    let mut run = Run::direct(22, RedisServer::start()).await;
    run.server(|server| set(server, "lua-time-limit", "20")).await;
    run.begin().await;
    let addr = run.server(|server| server.addr()).await;
    let long = thread::spawn(move || {
        let mut client = RespClient::connect(addr).unwrap();
        client.command(&["EVAL", "while true do end", "0"])
    });
    run.suffer().await;
    run.server(|server| ok(server, &["SCRIPT", "KILL"])).await;
    run.recover().await;
    long.join().unwrap().unwrap();
    run.end(Expected {
        lines: Some(&["connected"]),
        reason: Some(StoreErrorKind::Busy),
        others: 1,
        ..Expected::default()
    })
    .await;
}

/// The connection stays: other keys, or the same a moment later, may be fine.
async fn refused_by_config(
    run: Run,
    name: &'static str,
    bad: &'static str,
    good: &'static str,
    reason: StoreErrorKind,
) {
    let mut run = run;
    run.begin().await;
    run.server(move |server| set(server, name, bad)).await;
    run.suffer().await;
    run.server(move |server| set(server, name, good)).await;
    run.recover().await;
    run.end(Expected { lines: Some(&["connected"]), reason: Some(reason), ..Expected::default() }).await;
}

#[tokio::test]
async fn fault_23_oom() {
    let run = Run::direct(23, RedisServer::start()).await;
    refused_by_config(run, "maxmemory", "1", "0", StoreErrorKind::OutOfMemory).await;
}

#[tokio::test]
async fn fault_24_noreplicas() {
    let server = RedisServer::start();
    if server.version() < 7 {
        println!("Redis 6.2 lets scripts write whatever min-replicas-to-write says");
        return;
    }
    let run = Run::direct(24, server).await;
    refused_by_config(run, "min-replicas-to-write", "1", "0", StoreErrorKind::NoReplicas).await;
}

/// Makes a snapshot, and waits for what becomes of it.
pub(crate) fn snapshot(server: &RedisServer, outcome: &str) {
    server.command(&["BGSAVE"]);
    for _ in 0..500 {
        let running = server.info("persistence", "rdb_bgsave_in_progress").unwrap() == "1";
        if !running && server.info("persistence", "rdb_last_bgsave_status").unwrap() == outcome {
            return;
        }
        thread::sleep(ms(10));
    }
    panic!("the snapshot was not {outcome}");
}

#[tokio::test]
async fn fault_25_misconf() {
    let mut run = Run::direct(25, RedisServer::start()).await;
    run.begin().await;
    run.server(|server| {
        set(server, "save", "3600 1");
        // A directory where the file is to be.
        fs::create_dir(server.dir().join("dump.rdb")).unwrap();
        snapshot(server, "err");
    })
    .await;
    run.suffer().await;
    run.server(|server| {
        fs::remove_dir(server.dir().join("dump.rdb")).unwrap();
        snapshot(server, "ok");
    })
    .await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["connected"]),
        reason: Some(StoreErrorKind::PersistenceFailed),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_26_maxclients() {
    let server = RedisServer::start();
    // The one that there may be is ours.
    set(&server, "maxclients", "1");
    let mut run = Run::direct(26, server).await;
    run.begin_in_trouble().await;
    run.suffer().await;
    run.server(|server| set(server, "maxclients", "100")).await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["lost max_clients", "connected"]),
        reason: Some(StoreErrorKind::Disconnected),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_27_password_missing() {
    let server = RedisServer::start_with(&["--requirepass", "s3cr3t"]);
    let mut run = Run::direct(27, server).await;
    run.begin_in_trouble().await;
    run.suffer().await;
    run.server(|server| set(server, "requirepass", "")).await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["refused auth", "connected"]),
        reason: Some(StoreErrorKind::Disconnected),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_28_password_wrong() {
    let server = RedisServer::start_with(&["--requirepass", "s3cr3t"]);
    let url = format!("redis://:wr0ng@{}", server.addr());
    let mut run = Run::start(28, server, None, url).await;
    run.begin_in_trouble().await;
    run.suffer().await;
    run.server(|server| set(server, "requirepass", "wr0ng")).await;
    run.recover().await;
    run.end(Expected {
        lines: Some(&["refused auth", "connected"]),
        reason: Some(StoreErrorKind::Disconnected),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_29_acl_without_evalsha() {
    let server = RedisServer::start();
    ok(&server, &["ACL", "SETUSER", "lim", "on", ">s3cr3t", "~*", "+@all"]);
    let url = format!("redis://lim:s3cr3t@{}", server.addr());
    let mut run = Run::start(29, server, None, url).await;
    run.begin().await;
    run.server(|server| ok(server, &["ACL", "SETUSER", "lim", "-evalsha"])).await;
    run.suffer().await;
    run.server(|server| ok(server, &["ACL", "SETUSER", "lim", "+evalsha"])).await;
    run.recover().await;
    run.end(Expected {
        // The connection is well: what is missing is told, and nothing is dropped.
        lines: Some(&["connected", "refused auth_forbidden"]),
        reason: Some(StoreErrorKind::Forbidden),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_30_wrong_db() {
    let few = RedisServer::start_with(&["--databases", "2"]);
    let server = RedisServer::start();
    ok(&server, &["SELECT", "7"]);
    let proxy = Proxy::start(few.addr()).await;
    let url = format!("{}/7", proxy.url());
    let mut run = Run::start(30, server, Some(proxy), url).await;
    run.begin_in_trouble().await;
    run.suffer().await;
    let enough = run.server(|server| server.addr()).await;
    run.proxy().switch_target(enough);
    run.recover().await;
    run.end(Expected {
        lines: Some(&["refused database", "connected"]),
        reason: Some(StoreErrorKind::Disconnected),
        ..Expected::default()
    })
    .await;
}

#[tokio::test]
async fn fault_31_wrongtype() {
    let mut run = Run::direct(31, RedisServer::start()).await;
    let keys: Vec<_> = (0..6).map(|client| run.key(client)).collect();
    run.server(move |server| {
        server.command(&["RPUSH", &keys[0], "1"]);
        server.command(&["HSET", &keys[1], "a", "1"]);
        server.command(&["ZADD", &keys[2], "1", "a"]);
        server.command(&["SADD", &keys[3], "a"]);
        server.command(&["SET", &keys[4], "abc"]);
        server.command(&["XADD", &keys[5], "*", "a", "1"]);
    })
    .await;
    run.begin().await;
    run.suffer().await;
    run.recover().await;
    run.end(Expected { lines: Some(&["connected"]), ..Expected::default() }).await;
}
