//! TLS to Redis: the only file that names rustls.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{Client, ConnectionInfo, RedisError, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, pem::PemObject};

/// The target, trusting the CAs in `pem` and no others. `None` when there are
/// none in it, or one that cannot be read.
pub(super) fn trusting(target: ConnectionInfo, pem: &[u8]) -> Option<ConnectionInfo> {
    // The client takes a text without certificates, a key for instance, and then
    // trusts nobody.
    CertificateDer::pem_slice_iter(pem).next()?.ok()?;
    let trust = TlsCertificates { client_tls: None, root_cert: Some(pem.to_vec()) };
    let client = Client::build_with_tls(target, trust).ok()?;
    Some(client.get_connection_info().clone())
}

/// Makes sure that rustls has a provider. It panics on a connection when the
/// program is built with several and has chosen none, and a panic would end the
/// supervision.
///
/// Not before a connection is made: the choice is the program's as long as it
/// can be.
pub(super) fn ensure_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only when somebody else was faster.
        let _ = ring::default_provider().install_default();
    }
}

/// Whether TLS itself has failed, rather than the connection below it.
pub(super) fn has_failed(error: &RedisError) -> bool {
    // The client hands out its own box as the source.
    let source = error.source().and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    source.is_some_and(|source| {
        let inside = source.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        source.is::<rustls::Error>() || inside.is_some_and(|inside| inside.is::<rustls::Error>())
    })
}
