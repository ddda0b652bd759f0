//! A network's certificate authority: one root key, certificates for its own names only.
//!
//! Roots and leaves are EC P-256; leaves are issued straight from the root, so a chain has one
//! certificate (the control plane's own chain carries the root too, for the first contact of
//! [`crate::bootstrap_config`]). Serial numbers are random.

mod error;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyUsagePurpose,
    NameConstraints, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, DnsName};
use time::OffsetDateTime;
use tollway_model::{
    Group, Instance, Label, MESH_SUFFIX, NetworkName, ProbeSecret, ServiceName, SpiffeId,
    TrustDomain,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::key::KeyPair;
pub use error::{AuthorityError, IssueError};

/// The namespace of the mesh's own parts. Workloads cannot have it.
pub const SYSTEM_NAMESPACE: &str = "tollway";
/// The control plane's app name in [`SYSTEM_NAMESPACE`].
pub const CONTROL_APP: &str = "control";
/// A gateway's app name in [`SYSTEM_NAMESPACE`].
pub const GATEWAY_APP: &str = "gateway";

/// Shortest life of a leaf that is issued.
pub const SHORTEST_TTL: Duration = Duration::from_secs(10);
/// Longest life of a leaf that is issued.
pub const LONGEST_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// Life of a root.
const ROOT_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// A certificate is valid from this long before it was issued, for clocks that are behind; a
/// quarter of its life where that is less.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// Largest certificate request that is read.
const CSR_BYTES_LIMIT: usize = 4096;

/// An authority's root and key as text. The key is secret; `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityPem {
    pub certificate: String,
    /// PKCS#8. Secret.
    pub key: String,
}

impl fmt::Debug for AuthorityPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityPem")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// A workload's request for a certificate.
#[derive(Debug)]
pub struct IssueRequest {
    /// PKCS#10 in DER; only its public key is used.
    pub csr_der: Vec<u8>,
    pub service: ServiceName,
    pub instance: Instance,
    /// From [`SHORTEST_TTL`] to [`LONGEST_TTL`].
    pub ttl: Duration,
}

/// A request for a certificate by a part of the mesh itself, whose name is fixed.
#[derive(Debug)]
pub struct SystemRequest {
    /// PKCS#10 in DER; only its public key is used.
    pub csr_der: Vec<u8>,
    pub instance: Instance,
    /// From [`SHORTEST_TTL`] to [`LONGEST_TTL`].
    pub ttl: Duration,
}

/// A certificate with what is needed to show it.
#[derive(Clone, Debug)]
pub struct IssuedChain {
    /// Leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    pub spiffe_id: SpiffeId,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl IssuedChain {
    /// All certificates as PEM, the leaf first.
    #[must_use]
    pub fn to_pem(&self) -> String {
        self.chain.iter().map(|certificate| pem(certificate)).collect()
    }
}

/// The name under which the control plane of `network` is dialled through gateways:
/// `control.<network>.mesh`.
#[must_use]
pub fn control_dns_san(network: &NetworkName) -> String {
    format!("{CONTROL_APP}.{}.{MESH_SUFFIX}", network.to_lower())
}

/// The name under which members of `network` dial their own control plane:
/// `control.tollway.<network>.mesh`. No gateway serves it, so a connection under this name comes from
/// the peer itself.
#[must_use]
pub fn home_control_dns_san(network: &NetworkName) -> String {
    format!("{CONTROL_APP}.{SYSTEM_NAMESPACE}.{}.{MESH_SUFFIX}", network.to_lower())
}

/// The server name that probes whether a gateway of `network` is up: `gateway.<network>.mesh`.
/// A gateway answers who proves to have a secret ([`crate::ProbeQuestion`]); nothing is served under
/// it.
#[must_use]
pub fn gateway_dns_san(network: &NetworkName) -> String {
    format!("{GATEWAY_APP}.{}.{MESH_SUFFIX}", network.to_lower())
}

/// The identity of the control plane of a trust domain.
#[must_use]
pub fn control_spiffe_id(trust_domain: &TrustDomain) -> SpiffeId {
    SpiffeId {
        trust_domain: trust_domain.clone(),
        namespace: system_label(SYSTEM_NAMESPACE),
        app: system_label(CONTROL_APP),
    }
}

/// A network's certificate authority.
pub struct Authority {
    trust_domain: TrustDomain,
    network: NetworkName,
    issuer: Issuer<'static, rcgen::KeyPair>,
    root_der: CertificateDer<'static>,
    root_pem: String,
    root_not_after: SystemTime,
}

impl Authority {
    /// Makes a new root, valid ten years.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn create(
        trust_domain: &TrustDomain,
        network: &NetworkName,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate().map_err(AuthorityError::Key)?.into_inner();
        let params = root_params(trust_domain, network, now)?;
        let certificate = params.self_signed(&key).map_err(AuthorityError::Sign)?;
        Ok(Self {
            trust_domain: trust_domain.clone(),
            network: network.clone(),
            root_der: certificate.der().clone(),
            root_pem: certificate.pem(),
            root_not_after: params.not_after.into(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Reads what [`Authority::to_pem`] wrote, and checks that it is the authority of
    /// `trust_domain` and that key and root belong together.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn from_pem(
        trust_domain: &TrustDomain,
        network: &NetworkName,
        pem: &AuthorityPem,
    ) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(&pem.key).map_err(AuthorityError::Key)?.into_inner();
        let root_der = CertificateDer::from_pem_slice(pem.certificate.as_bytes())
            .map_err(AuthorityError::Pem)?;
        let root_not_after = check_root(&root_der, trust_domain, &key)?;
        let issuer =
            Issuer::from_ca_cert_der(&root_der, key).map_err(|_| AuthorityError::NotARoot)?;
        Ok(Self {
            trust_domain: trust_domain.clone(),
            network: network.clone(),
            issuer,
            root_der,
            root_pem: pem.certificate.clone(),
            root_not_after,
        })
    }

    /// Root certificate and key as secret text.
    #[must_use]
    pub fn to_pem(&self) -> AuthorityPem {
        AuthorityPem { certificate: self.root_pem.clone(), key: self.issuer.key().serialize_pem() }
    }

    /// The secret with which the joined network `of` probes the gateways of this one. Another one for
    /// each network, and for each time that it is joined; it shows nothing of the key.
    #[must_use]
    pub fn probe_secret(&self, of: &NetworkName, joined_at_unix_s: u64) -> ProbeSecret {
        crate::probe::derive(&self.issuer.key().serialize_der(), of, joined_at_unix_s)
    }

    #[must_use]
    pub fn root_der(&self) -> &CertificateDer<'static> {
        &self.root_der
    }

    /// The root as PEM; not secret.
    #[must_use]
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    #[must_use]
    pub fn root_not_after(&self) -> SystemTime {
        self.root_not_after
    }

    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    #[must_use]
    pub fn network(&self) -> &NetworkName {
        &self.network
    }

    /// Issues a workload's certificate: its SPIFFE identity, its service's and its instance's
    /// DNS names, for client and server. It ends with the root at the latest.
    ///
    /// # Errors
    /// [`IssueError`]; another network's names and the mesh's own namespace are refused.
    pub fn issue(
        &self,
        request: &IssueRequest,
        now: SystemTime,
    ) -> Result<IssuedChain, IssueError> {
        if request.service.network != self.network {
            return Err(IssueError::ForeignNetwork {
                own: self.network.clone(),
                asked: request.service.network.clone(),
            });
        }
        if request.service.namespace == system_label(SYSTEM_NAMESPACE) {
            return Err(IssueError::ReservedNamespace);
        }
        let names =
            vec![request.service.dns_san(), request.service.instance_dns_san(&request.instance)];
        let spiffe_id = request.service.spiffe_id(&self.trust_domain);
        self.sign(&request.csr_der, spiffe_id, names, request.ttl, now)
    }

    /// Issues the control plane's own certificate, under `control.<network>.mesh` too. The
    /// chain ends in the root, which a first contact compares with its join token.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_control(
        &self,
        request: &SystemRequest,
        now: SystemTime,
    ) -> Result<IssuedChain, IssueError> {
        let mut issued =
            self.issue_system(CONTROL_APP, Some(control_dns_san(&self.network)), request, now)?;
        issued.chain.push(self.root_der.clone());
        Ok(issued)
    }

    /// Issues the certificate that a gateway presents to its control plane.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_gateway(
        &self,
        request: &SystemRequest,
        now: SystemTime,
    ) -> Result<IssuedChain, IssueError> {
        self.issue_system(GATEWAY_APP, None, request, now)
    }

    /// Issues the certificate of an agent of the fabric, with which it follows its group's
    /// neighbours.
    ///
    /// # Errors
    /// [`IssueError`].
    pub fn issue_fabric(
        &self,
        group: &Group,
        request: &SystemRequest,
        now: SystemTime,
    ) -> Result<IssuedChain, IssueError> {
        self.issue_system(group.agent_app().as_str(), None, request, now)
    }

    fn issue_system(
        &self,
        app: &str,
        alias: Option<String>,
        request: &SystemRequest,
        now: SystemTime,
    ) -> Result<IssuedChain, IssueError> {
        let service = ServiceName {
            app: system_label(app),
            namespace: system_label(SYSTEM_NAMESPACE),
            network: self.network.clone(),
        };
        let mut names = vec![service.dns_san(), service.instance_dns_san(&request.instance)];
        names.extend(alias);
        let spiffe_id = service.spiffe_id(&self.trust_domain);
        self.sign(&request.csr_der, spiffe_id, names, request.ttl, now)
    }

    fn sign(
        &self,
        csr_der: &[u8],
        spiffe_id: SpiffeId,
        dns_names: Vec<String>,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<IssuedChain, IssueError> {
        let public_key = read_request(csr_der)?;
        let (not_before, not_after) = self.validity(ttl, now)?;
        let mut params = CertificateParams::default();
        params.not_before = date_time(not_before).ok_or(IssueError::Clock)?;
        params.not_after = date_time(not_after).ok_or(IssueError::Clock)?;
        params.serial_number = Some(random_serial().ok_or(IssueError::Randomness)?);
        params.distinguished_name = distinguished_name(spiffe_id.app.as_str());
        params.subject_alt_names = subject_alt_names(&spiffe_id, dns_names)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&public_key, &self.issuer).map_err(IssueError::Sign)?;
        Ok(IssuedChain { chain: vec![leaf.der().clone()], spiffe_id, not_before, not_after })
    }

    /// From when to when a leaf issued now is valid, in whole seconds.
    fn validity(
        &self,
        ttl: Duration,
        now: SystemTime,
    ) -> Result<(SystemTime, SystemTime), IssueError> {
        if ttl < SHORTEST_TTL || ttl > LONGEST_TTL {
            return Err(IssueError::Ttl {
                asked: ttl,
                shortest: SHORTEST_TTL,
                longest: LONGEST_TTL,
            });
        }
        let backdated = CLOCK_SKEW.min(ttl / 4);
        let not_before = now.checked_sub(backdated).ok_or(IssueError::Clock)?;
        let not_after = now.checked_add(ttl).ok_or(IssueError::Clock)?.min(self.root_not_after);
        if not_after <= now {
            return Err(IssueError::RootEnded);
        }
        Ok((
            whole_seconds(not_before).ok_or(IssueError::Clock)?,
            whole_seconds(not_after).ok_or(IssueError::Clock)?,
        ))
    }
}

/// The issuer's clock when it made a certificate. An [`Authority`] backdates the beginning by a
/// share of the lifetime that both ends can compute.
#[must_use]
pub fn issued_at(not_before: SystemTime, not_after: SystemTime) -> SystemTime {
    let life = not_after.duration_since(not_before).unwrap_or_default();
    // The backdating is a quarter of the requested lifetime, that is, a fifth of the whole.
    not_before.checked_add(CLOCK_SKEW.min(life / 5)).unwrap_or(not_before)
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("trust_domain", &self.trust_domain)
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

fn root_params(
    trust_domain: &TrustDomain,
    network: &NetworkName,
    now: SystemTime,
) -> Result<CertificateParams, AuthorityError> {
    let domain = format!("{}.{MESH_SUFFIX}", network.to_lower());
    if DnsName::try_from(domain.as_str()).is_err() {
        return Err(AuthorityError::Name { name: domain });
    }
    let uri = Ia5String::try_from(root_uri(trust_domain))
        .map_err(|_| AuthorityError::Name { name: trust_domain.to_string() })?;
    let instant = |t: Option<SystemTime>| t.and_then(date_time).ok_or(AuthorityError::Clock);
    let mut params = CertificateParams::default();
    params.not_before = instant(now.checked_sub(CLOCK_SKEW).and_then(whole_seconds))?;
    params.not_after = instant(now.checked_add(ROOT_LIFE).and_then(whole_seconds))?;
    params.serial_number = Some(random_serial().ok_or(AuthorityError::Randomness)?);
    params.distinguished_name = distinguished_name(&network.to_lower());
    params.subject_alt_names = vec![SanType::URI(uri)];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName(domain)],
        excluded_subtrees: Vec::new(),
    });
    Ok(params)
}

/// Checks that `root` is a root of `trust_domain` and that `key` is its key; returns its end.
fn check_root(
    root: &CertificateDer<'_>,
    trust_domain: &TrustDomain,
    key: &rcgen::KeyPair,
) -> Result<SystemTime, AuthorityError> {
    let (_, parsed) = X509Certificate::from_der(root).map_err(|_| AuthorityError::NotARoot)?;
    if !parsed.is_ca() {
        return Err(AuthorityError::NotARoot);
    }
    let own_key = key.subject_public_key_info();
    if parsed.public_key().raw != own_key.as_slice() {
        return Err(AuthorityError::KeyMismatch);
    }
    let found = match parsed.subject_alternative_name() {
        Ok(Some(names)) => names.value.general_names.iter().find_map(uri_of),
        Ok(None) | Err(_) => None,
    };
    let expected = root_uri(trust_domain);
    match found {
        Some(found) if found == expected => {
            Ok(system_time(parsed.validity().not_after.timestamp()))
        }
        found => Err(AuthorityError::Foreign {
            expected,
            found: found.unwrap_or_else(|| "nobody".to_owned()),
        }),
    }
}

/// RFC 7468: 64 characters a line.
pub(crate) fn pem(certificate: &CertificateDer<'_>) -> String {
    const LINE: usize = 64;
    let text = STANDARD.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII, so any place is between two characters.
        let (line, after) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem + "-----END CERTIFICATE-----\n"
}

fn uri_of(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None }
}

fn root_uri(trust_domain: &TrustDomain) -> String {
    format!("spiffe://{trust_domain}")
}

fn read_request(csr_der: &[u8]) -> Result<rcgen::PublicKey, IssueError> {
    if csr_der.len() > CSR_BYTES_LIMIT {
        return Err(IssueError::RequestTooLarge { bytes: csr_der.len(), limit: CSR_BYTES_LIMIT });
    }
    let der = CertificateSigningRequestDer::from(csr_der);
    let request = CertificateSigningRequestParams::from_der(&der).map_err(IssueError::Request)?;
    let accepted =
        [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519];
    if !accepted.contains(&request.public_key.algorithm()) {
        return Err(IssueError::KeyType);
    }
    Ok(request.public_key)
}

fn subject_alt_names(
    spiffe_id: &SpiffeId,
    dns_names: Vec<String>,
) -> Result<Vec<SanType>, IssueError> {
    let uri = spiffe_id.to_string();
    let uri = Ia5String::try_from(uri.clone()).map_err(|_| IssueError::Name { name: uri })?;
    let mut names = vec![SanType::URI(uri)];
    for name in dns_names {
        if DnsName::try_from(name.as_str()).is_err() {
            return Err(IssueError::Name { name });
        }
        let ia5 = Ia5String::try_from(name.clone()).map_err(|_| IssueError::Name { name })?;
        names.push(SanType::DnsName(ia5));
    }
    Ok(names)
}

/// `O=tollway, CN=<common name>`; nothing decides on it.
fn distinguished_name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "tollway");
    name.push(DnType::CommonName, common_name);
    name
}

fn random_serial() -> Option<SerialNumber> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    // Positive and of full length for every random value.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Some(SerialNumber::from_slice(&bytes))
}

fn system_label(text: &str) -> Label {
    Label::new(text).expect("the mesh's own names are labels")
}

fn whole_seconds(time: SystemTime) -> Option<SystemTime> {
    let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn date_time(time: SystemTime) -> Option<OffsetDateTime> {
    let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()
}

/// A time in a certificate; before 1970 counts as 1970.
pub(crate) fn system_time(unix_seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(unix_seconds).unwrap_or(0))
}
