//! Identities: a network's authority, keys and certificates, trust bundles, join tokens, and the
//! TLS configurations that enforce them.
//!
//! Every mesh connection is TLS 1.3 with certificates on both sides. A certificate names its
//! workload by exactly one SPIFFE identity. It is accepted only if it chains to a root of that
//! identity's trust domain: the authority of `east` can never issue for `west`. A front
//! (`front.rs`) has ordinary certificates and takes no part in this.
//!
//! This crate opens no sockets and starts no tasks. Issuing takes `now`; TLS takes its time from
//! a clock that tests replace ([`Credentials::with_clock`]).

mod authority;
mod bundle;
mod credentials;
mod credentials_text;
mod front;
mod key;
mod peer;
mod pin;
mod probe;
mod renew;
mod revocations;
mod sealed;
mod shared_token;
mod tls;
mod token;

pub use authority::{
    Authority, AuthorityError, AuthorityPem, CONTROL_APP, GATEWAY_APP, IssueError, IssueRequest,
    IssuedChain, LONGEST_TTL, SHORTEST_TTL, SYSTEM_NAMESPACE, SystemRequest, control_dns_san,
    control_spiffe_id, gateway_dns_san, home_control_dns_san, issued_at,
};
pub use bundle::{
    BundleError, Distrust, ROOTS_LIMIT, TRUST_DOMAINS_LIMIT, TrustBundle, TrustBundles,
};
pub use credentials::{Credentials, CredentialsError};
pub use credentials_text::{CREDENTIALS_TEXT_BYTES_LIMIT, CredentialsTextError};
pub use front::{
    CLIENT_CHAIN_LIMIT, CLIENT_NAMES_LIMIT, ClientAuthorities, ClientCertificate,
    ClientCertificateError, FrontError, FrontPair, PairError, front_code_of, front_config,
    front_explain,
};
pub use key::{KeyError, KeyPair};
pub use peer::{
    CERTIFICATE_BYTES_LIMIT, CHAIN_LIMIT, NAMES_LIMIT, PeerError, PeerIdentity, peer_identity,
};
pub use pin::{RootPin, RootPinError};
pub use probe::{GatewayState, PROBE_ANSWER, ProbeAnswer, ProbeHello, ProbeId, ProbeQuestion};
pub use renew::renewal_time;
pub use revocations::Revocations;
pub use sealed::{SealError, SealingKey};
pub use shared_token::{SHARED_TOKEN_BYTES_LIMIT, SharedToken, SharedTokenError};
pub use tls::{
    AnyCertificate, ClientPair, Expected, FirstRecord, HelloRandom, KeyExchange, Refusal,
    RootsError, ServerNameRead, ServerNameReader, TICKET_LIFE_LIMIT, TlsError,
    UNRECOGNIZED_NAME_RECORD, UPSTREAM_FAILED_RECORD, app_config, bootstrap_config,
    bootstrap_config_at, client_config, client_hello_bytes, code_of, control_server_config,
    explain, first_record, outside_provider, public_config, roots_in_file, roots_in_pem,
    server_config, span, system_roots,
};
pub use token::{JoinToken, SecretHash, TokenError};

/// Re-exported so that callers name certificates and clocks as this crate does.
pub use rustls::pki_types::CertificateDer;
pub use rustls::time_provider::TimeProvider;
