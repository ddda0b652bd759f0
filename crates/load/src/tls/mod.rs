//! TLS of the load engine, as a curl-like client has it: which authorities to trust, what to show, which
//! versions, whether to resume. Nothing of the mesh's identities is known here.

mod facts;
mod sessions;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::client::{ResolvesClientCert, Resumption, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, SignatureScheme, SupportedProtocolVersion, version};
use tollway_echo::pem::{self, PemError};
use tollway_identity::{AnyCertificate, outside_provider, system_roots};

pub(crate) use self::facts::{Handshake, Handshakes};
use self::sessions::Sessions;
use crate::options::Target;

/// TLS of a run's connections; used only if the target's URL is `https`.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Takes whatever certificate the server shows.
    pub insecure: bool,
    /// PEM file of the authorities to believe instead of the system's.
    pub authorities: Option<PathBuf>,
    /// PEM file of the own certificate and what it chains to.
    pub certificate: Option<PathBuf>,
    /// PEM file of its key; absent where the certificate's file holds it too.
    pub key: Option<PathBuf>,
    /// The name to ask for and to check, instead of the target's host.
    pub server_name: Option<String>,
    pub versions: TlsVersions,
    /// Never resumes a session: every handshake is a full one.
    pub full_handshakes: bool,
    /// A finished configuration; then the other fields are not used.
    pub ready: Option<ReadyTls>,
}

/// A finished configuration and the server name, for a caller whose identity is in no file. It has
/// a certificate and the run's ALPN protocols.
#[derive(Clone, Debug)]
pub struct ReadyTls {
    pub config: Arc<ClientConfig>,
    pub server_name: ServerName<'static>,
}

/// Which versions are offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersions {
    #[default]
    Any,
    Only12,
    Only13,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error(
        "the system has no certificate authorities; name a file of them, or accept any certificate"
    )]
    NoAuthorities,
    #[error("{name:?} is no name that TLS can ask for; give another one")]
    ServerName { name: String },
    #[error("a key without a certificate shows nothing; name the certificate as well")]
    KeyAlone,
    #[error("the TLS library refuses the configuration")]
    Library(#[source] rustls::Error),
}

/// Makes the TLS side of each of a run's connections.
pub(crate) struct TlsDialler {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    shown: Arc<AtomicBool>,
}

impl TlsDialler {
    /// For `target`, by `options`; `alpn` has the run's protocols, `sessions` the most tickets that
    /// are stored.
    pub(crate) fn new(
        target: &Target,
        options: &TlsOptions,
        alpn: &[u8],
        sessions: usize,
    ) -> Result<Self, TlsError> {
        if let Some(ReadyTls { config, server_name }) = options.ready.clone() {
            return Ok(Self { config, name: server_name, shown: Arc::new(true.into()) });
        }
        let host = options.server_name.as_deref().unwrap_or(&target.host);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TlsError::ServerName { name: host.to_owned() })?;
        let shown = Arc::new(AtomicBool::new(false));
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(options.versions.list())
            .map_err(TlsError::Library)?;
        let builder = if options.insecure {
            builder.dangerous().with_custom_certificate_verifier(AnyCertificate::new(&provider()))
        } else {
            builder.with_root_certificates(roots(options)?)
        };
        let mut config = match identity(options)? {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(Watched {
                identity: SingleCertAndKey::from(identity),
                shown: Arc::clone(&shown),
            })),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = if options.full_handshakes {
            Resumption::disabled()
        } else {
            Resumption::store(Arc::new(Sessions::new(sessions)))
        };
        Ok(Self { config: Arc::new(config), name, shown })
    }

    /// The client's side of one connection, with its hello ready to be sent.
    pub(crate) fn connection(&self) -> Result<tollway_net::Tls, rustls::Error> {
        UnbufferedClientConnection::new(Arc::clone(&self.config), self.name.clone()).map(Into::into)
    }

    /// Whether a server has requested the own certificate and got it.
    pub(crate) fn certificate_was_shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }
}

impl TlsVersions {
    fn list(self) -> &'static [&'static SupportedProtocolVersion] {
        static ANY: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
        match self {
            Self::Any => &ANY,
            Self::Only12 => &ANY[1..],
            Self::Only13 => &ANY[..1],
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    outside_provider()
}

fn roots(options: &TlsOptions) -> Result<RootCertStore, TlsError> {
    if let Some(path) = &options.authorities {
        return Ok(pem::authorities(path)?);
    }
    let roots = system_roots();
    if roots.is_empty() { Err(TlsError::NoAuthorities) } else { Ok(roots) }
}

fn identity(options: &TlsOptions) -> Result<Option<CertifiedKey>, TlsError> {
    match (&options.certificate, &options.key) {
        (Some(certificate), key) => {
            Ok(Some(pem::identity(certificate, key.as_ref().unwrap_or(certificate))?))
        }
        (None, Some(_)) => Err(TlsError::KeyAlone),
        (None, None) => Ok(None),
    }
}

/// Presents the own certificate to a server that requests one, and records that.
#[derive(Debug)]
struct Watched {
    identity: SingleCertAndKey,
    shown: Arc<AtomicBool>,
}

impl ResolvesClientCert for Watched {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let shown = ResolvesClientCert::resolve(&self.identity, root_hint_subjects, schemes);
        self.shown.fetch_or(shown.is_some(), Ordering::Relaxed);
        shown
    }

    fn has_certs(&self) -> bool {
        true
    }
}
