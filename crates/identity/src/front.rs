//! TLS for those who take no part in a mesh: ordinary certificates from files, several on one
//! port by server name, and clients that prove themselves by an authority of the operator's.
//!
//! Versions 1.2 and 1.3, no early data. Sessions are resumed by tickets of both versions, under a
//! key that changes every six hours and ends with the configuration: with a new configuration, each
//! client that needs a certificate presents it again. A resumed session skips the check of the
//! client's certificate, so callers check [`ClientCertificate::valid_at`] after each handshake.

mod choice;
mod client;
mod pair;
mod refusal;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, Ticketer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ServerConfig, version};
use thiserror::Error;

use crate::tls::TlsError;
use choice::ByServerName;

pub use client::{
    CLIENT_CHAIN_LIMIT, CLIENT_NAMES_LIMIT, ClientAuthorities, ClientCertificate,
    ClientCertificateError,
};
pub use pair::{FrontPair, PairError};
pub use refusal::{front_code_of, front_explain};

/// Tickets that a client of TLS 1.3 gets for a full handshake: each is used once, and browsers
/// open more than one connection.
const TICKETS: usize = 2;

/// Why files do not make a front.
#[derive(Debug, Error)]
pub enum FrontError {
    #[error("no certificate is given")]
    NoPair,
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The configuration of a front's listeners. The first of `pairs` is for clients that name no server
/// or another one; with `clients`, each client must show a certificate of one of these authorities.
///
/// # Errors
/// [`FrontError`].
pub fn front_config(
    pairs: &[FrontPair],
    clients: Option<&ClientAuthorities>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, FrontError> {
    let library = |error| FrontError::Tls(TlsError::Library(error));
    let resolver = ByServerName::of(pairs).ok_or(FrontError::NoPair)?;
    let clock = Arc::new(DefaultTimeProvider);
    let builder = ServerConfig::builder_with_details(provider(), clock)
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(library)?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients.verifier()),
        None => builder.with_client_cert_verifier(WebPkiClientVerifier::no_client_auth()),
    };
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Ticketer::new().map_err(library)?;
    config.send_tls13_tickets = TICKETS;
    Ok(Arc::new(config))
}

/// The cryptography of a front: what the library holds for safe. Clients choose of it: those
/// without instructions for AES know best.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
