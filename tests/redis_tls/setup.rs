//! As for the plain server, but what is not told otherwise goes over TLS.

use tower_ratelimit::{RateLimiter, RateLimiterBuilder, test_util};

use crate::certificates::Ca;
use crate::support::{FREE_PORT, RedisServer};

#[allow(dead_code)]
#[path = "../redis_store/setup.rs"]
mod plain;

/// The script is the same as on a plain server; there it plays many more.
pub(crate) const SEQUENCES: u32 = 100;

pub(crate) use self::plain::{
    NoFallback, PATIENT, bucket, connect, eventually, fixed, hit, hit_for, ms, on_both_stores, request_from,
    sliding, who,
};

/// A Redis of one test: on its plain port for the assertions, with TLS for the
/// limiter.
pub(crate) struct Redis {
    pub(crate) server: RedisServer,
    pub(crate) ca: Ca,
    pub(crate) namespace: String,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::start_with("IP:127.0.0.1", &[])
    }

    /// With a certificate for these hosts, and further arguments.
    pub(crate) fn start_with(hosts: &str, args: &[&str]) -> Self {
        let ca = Ca::new();
        let tls = tls_arguments(&ca, hosts);
        let tls: Vec<_> = tls.iter().map(String::as_str).collect();
        let server = RedisServer::start_with(&[&tls[..], args].concat());
        Self { server, ca, namespace: test_util::namespace() }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.server.arg("--tls-port").unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("rediss://{}", self.address())
    }

    /// On this server under this namespace, with a patient deadline.
    pub(crate) fn builder(&self) -> RateLimiterBuilder {
        RateLimiter::builder()
            .redis(self.url())
            .redis_ca(self.ca.certificate())
            .deadline(PATIENT)
            .namespace(&self.namespace)
    }

    /// A limiter that is not allowed to fall back.
    pub(crate) fn limiter(&self) -> RateLimiter {
        self.builder().observer(NoFallback).build().unwrap()
    }
}

/// What makes a server speak TLS on a second port, with a certificate for these
/// hosts.
pub(crate) fn tls_arguments(ca: &Ca, hosts: &str) -> Vec<String> {
    let (certificate, key) = ca.issue(hosts);
    let arguments = [
        "--tls-port",
        FREE_PORT,
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca.certificate_path(),
        "--tls-auth-clients",
        "no",
    ];
    arguments.map(String::from).into()
}
