//! What a run's connections agreed on, and what their handshakes cost.

use rustls::pki_types::CertificateDer;
use rustls::{CommonState, HandshakeKind};
use tollway_record::Histogram;
use tollway_record::tls::TlsFacts;
use x509_parser::public_key::PublicKey;

/// The algorithm's object identifier (RFC 8410).
const ED25519: &str = "1.3.101.112";

/// A handshake that is over.
pub(crate) struct Handshake {
    /// Since TCP was connected.
    pub(crate) took_ns: u64,
    /// Processor time it took on this side.
    pub(crate) cpu_ns: u64,
    pub(crate) certificate_was_shown: bool,
    /// Whether its times count; if not, only what was negotiated does.
    pub(crate) counted: bool,
}

/// The handshakes of a run.
pub(crate) struct Handshakes {
    /// What the last connection agreed on; `None` while none was made.
    agreed: Option<TlsFacts>,
    full: Histogram,
    resumed: Histogram,
    cpu: Histogram,
}

impl Handshakes {
    pub(crate) fn new() -> Self {
        Self {
            agreed: None,
            full: Histogram::new(),
            resumed: Histogram::new(),
            cpu: Histogram::new(),
        }
    }

    /// A handshake is over.
    pub(crate) fn done(&mut self, tls: &CommonState, handshake: &Handshake) {
        let Handshake { took_ns, cpu_ns, certificate_was_shown, counted } = *handshake;
        let agreed = self.agreed.get_or_insert_with(|| agreed(tls));
        agreed.client_certificate |= certificate_was_shown;
        if !counted {
            return;
        }
        match tls.handshake_kind() {
            Some(HandshakeKind::Resumed) => self.resumed.record(took_ns),
            Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None => {
                self.full.record(took_ns);
            }
        }
        self.cpu.record(cpu_ns);
    }

    /// Of all handshakes; where there were full and resumed ones, also of each kind.
    pub(crate) fn times(&self) -> impl Iterator<Item = (&'static str, Histogram)> {
        let mut all = self.full.clone();
        all.merge(&self.resumed);
        let both = self.full.n() > 0 && self.resumed.n() > 0;
        let times = [
            ("tls_handshaking", all.n() > 0, all),
            ("tls_handshaking_full", both, self.full.clone()),
            ("tls_handshaking_resumed", both, self.resumed.clone()),
        ];
        times.into_iter().filter(|(_, is_known, _)| *is_known).map(|(name, _, times)| (name, times))
    }

    /// `None` where there was no TLS.
    pub(crate) fn facts(&self) -> Option<TlsFacts> {
        let agreed = self.agreed.clone()?;
        Some(TlsFacts {
            handshakes_full: self.full.n(),
            handshakes_resumed: self.resumed.n(),
            handshake_cpu_us: (self.cpu.n() > 0).then(|| self.cpu.summary()),
            ..agreed
        })
    }
}

fn agreed(tls: &CommonState) -> TlsFacts {
    let name = |name: Option<&str>| name.unwrap_or("unknown").to_owned();
    let version = tls.protocol_version();
    let suite = tls.negotiated_cipher_suite();
    let group = tls.negotiated_key_exchange_group();
    let alpn = tls.alpn_protocol().map(|alpn| String::from_utf8_lossy(alpn).into_owned());
    TlsFacts {
        version: name(version.as_ref().and_then(rustls::ProtocolVersion::as_str)),
        cipher_suite: name(suite.as_ref().and_then(|suite| suite.suite().as_str())),
        group: group.and_then(|group| group.name().as_str()).map(str::to_owned),
        server_key: tls.peer_certificates().and_then(|chain| key_of(chain.first()?)),
        alpn,
        ..TlsFacts::default()
    }
}

/// The kind and length of a certificate's key, such as `RSA-2048` or `EC-256`.
fn key_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let key = certificate.public_key();
    let is_ed25519 = key.algorithm.algorithm.to_id_string() == ED25519;
    let key = key.parsed().ok()?;
    let bits = key.key_size();
    Some(match key {
        PublicKey::RSA(_) => format!("RSA-{bits}"),
        PublicKey::EC(_) => format!("EC-{bits}"),
        PublicKey::Unknown(_) if is_ed25519 => "Ed25519".to_owned(),
        PublicKey::DSA(_)
        | PublicKey::GostR3410(_)
        | PublicKey::GostR3410_2012(_)
        | PublicKey::Unknown(_) => "other".to_owned(),
    })
}
