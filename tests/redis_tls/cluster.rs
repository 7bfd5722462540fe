//! A cluster, each node of which is asked over TLS.

use tower_ratelimit::{RateLimiter, Source};

use crate::certificates::Ca;
use crate::setup::{NoFallback, PATIENT, connect, fixed, hit, tls_arguments};
use crate::support::RedisCluster;

#[tokio::test]
async fn the_nodes_that_a_cluster_names_are_asked_over_tls_as_the_first_one_is() {
    let ca = Ca::new();
    let arguments = tls_arguments(&ca, "IP:127.0.0.1");
    // Or Redis 7.0 does not tell at which ports it speaks TLS.
    let arguments: Vec<_> = arguments.iter().map(String::as_str).chain(["--tls-cluster", "yes"]).collect();
    let cluster = RedisCluster::start_with(&arguments);
    // One is enough to find the others.
    let url = format!("rediss://127.0.0.1:{}", cluster.nodes[0].arg("--tls-port").unwrap());
    let limiter = RateLimiter::builder()
        .redis_cluster([url])
        .redis_ca(ca.certificate())
        .deadline(PATIENT)
        .observer(NoFallback)
        .build()
        .unwrap();
    connect(&limiter).await;
    let http = limiter.policy(fixed("http", 5, 60_000)).unwrap();
    for i in 0..30 {
        assert_eq!(hit(&limiter, &http, &format!("client{i}")).await.source(), Source::Redis);
    }
    for node in &cluster.nodes {
        let clients = node.command(&["CLIENT", "LIST"]).text().unwrap();
        let port = format!("laddr=127.0.0.1:{}", node.arg("--tls-port").unwrap());
        assert!(clients.contains(&port) && node.commandstat("evalsha") > 3, "{clients}");
    }
}
