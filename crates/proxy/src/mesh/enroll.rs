//! Identity: the first certificate by join token, later ones by the present certificate.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tollway_dial::Targets;
use tollway_identity::{
    CertificateDer, Credentials, Expected, KeyExchange, KeyPair, Revocations, TrustBundle,
    TrustBundles, bootstrap_config_at, client_config, issued_at, span,
};
use tollway_model::{ErrorCode, Instance, Locality, ServiceName, TrustDomain, chain};
use tollway_wire::v1::identity_client::IdentityClient;
use tollway_wire::{
    ConvertError, MESSAGE_LIMIT_BYTES, ROOTS_PER_TRUST_DOMAIN_LIMIT, TRUST_DOMAINS_LIMIT, v1,
};
use tonic::transport::Channel;
use tracing::{info, warn};

use super::config::{FirstProof, MeshConfig, Role, TokenSource};
use super::connect::{ALPN, connect_by_clock};
use super::control_at::ControlAt;
use super::error::MeshError;
use super::state_folder::{StateFolder, StateFolderError};

/// Pause between tries of the first contact.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Time for a certificate to be issued.
const ISSUE_TIMEOUT: Duration = Duration::from_secs(10);
/// Difference between two clocks that is not worth a word: issuing takes a moment too.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(30);
/// Certificates in an issued chain.
const CHAIN_LIMIT: usize = 4;

/// What this process enrolls as, and with which token at which control plane.
#[derive(Clone, Debug)]
pub(super) struct Enrolment {
    /// Where the control plane is; it may move.
    pub(super) control: ControlAt,
    pub(super) token: TokenSource,
    pub(super) role: Role,
    pub(super) service: ServiceName,
    pub(super) instance: Instance,
    pub(super) locality: Locality,
    /// The key of every request that shows the token: an answer that was lost costs no second use.
    token_key: Arc<KeyPair>,
    /// The life to ask for; 0: what the network gives.
    certificate_ttl_s: u32,
    /// Where the identity is kept over a restart.
    pub(super) state: Option<Arc<StateFolder>>,
    key_exchange: KeyExchange,
}

impl Enrolment {
    /// What a sidecar with these credentials enrolled as, at a control plane that is not dialled again.
    #[cfg(test)]
    pub(super) fn of_test(credentials: &Credentials) -> Self {
        let service = credentials.service().clone();
        let (app, namespace) = (service.app.clone(), service.namespace.clone());
        Self {
            control: ControlAt::fixed("127.0.0.1:1".parse().unwrap()),
            token: TokenSource::Environment,
            role: Role::Sidecar { app, namespace },
            service,
            instance: credentials.instance().unwrap().clone(),
            locality: Locality::default(),
            token_key: Arc::new(KeyPair::generate().unwrap()),
            certificate_ttl_s: 0,
            state: None,
            key_exchange: KeyExchange::default(),
        }
    }
}

/// Obtains the first identity: the one that was kept, or one by token. Tries again while that may
/// help, until the start timeout.
pub(super) async fn first(
    config: &MeshConfig,
    control: ControlAt,
) -> Result<(Enrolment, Credentials), MeshError> {
    let deadline = Instant::now() + config.start_timeout;
    let state = open_state(config, deadline).await?;
    let kept = state.as_ref().map(|state| state.read()).transpose()?.flatten();
    let kept = kept.map(|kept| kept.with_key_exchange(config.key_exchange));
    // Without a kept identity there must be a token; with one it may be spent, or gone.
    let token = config.token.read();
    let (network, token) = match (token, &kept) {
        (Ok(token), _) => (token.root().network().clone(), Some(token)),
        (Err(_), Some(kept)) => (kept.service().network.clone(), None),
        (Err(error), None) => return Err(error),
    };
    let named_there = config.state.as_ref().is_some_and(|state| state.has_name);
    let kept_name = kept.as_ref().filter(|_| named_there).and_then(Credentials::instance);
    let who = Enrolment {
        control,
        token: config.token.clone(),
        role: config.role.clone(),
        service: config.role.service(&network),
        instance: kept_name.unwrap_or(&config.instance).clone(),
        locality: config.locality.clone(),
        token_key: Arc::new(KeyPair::generate()?),
        certificate_ttl_s: config
            .certificate_ttl
            .map_or(0, |ttl| u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX)),
        state,
        key_exchange: config.key_exchange,
    };
    if let (Some(state), Some(kept)) = (&who.state, &kept) {
        state.check_owner(kept, &who.service, &who.instance)?;
    }
    // A network that was made again has another root, and a token for it.
    let kept = kept.filter(|kept| token.as_ref().is_none_or(|token| is_of(kept, token)));
    if let Some(kept) = kept.as_ref().filter(|kept| !has_ended(kept)) {
        info!(identity = %kept.spiffe_id(), instance = %who.instance, "has kept its certificate");
        return Ok((who, kept.clone()));
    }
    let mut logged = false;
    loop {
        let obtained = match &kept {
            Some(kept) => again(&who, kept).await,
            None => by_token(&who).await,
        };
        let error = match obtained {
            Ok(credentials) => {
                if let Some(state) = &who.state {
                    state.keep(&credentials).await?;
                }
                return Ok((who, credentials));
            }
            Err(error) => error,
        };
        who.control.note_lost(false);
        if !error.may_pass() || Instant::now() + RETRY_PAUSE >= deadline {
            return Err(error);
        }
        if !std::mem::replace(&mut logged, true) {
            let patience = config.start_timeout;
            warn!(error = %chain(&error), ?patience, "no identity yet; trying again");
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Redeems the join token, or shows the token of the pod.
pub(super) async fn by_token(who: &Enrolment) -> Result<Credentials, MeshError> {
    let proof = who.token.read()?;
    let root = proof.root();
    // The trust domain is not known yet and no part of the server name.
    let any = TrustDomain::default_for(root.network());
    let name = Expected::control(root.network(), &any).server_name()?;
    let config = |clock| bootstrap_config_at(root, ALPN, who.key_exchange, clock);
    let channel = connect_by_clock(&who.control, name, &config).await?;
    issue(channel, who, &who.token_key, Some(&proof)).await
}

/// Renews a certificate that has ended, or is refused as one that has, by itself; where the control
/// plane does not, redeems the join token again.
pub(super) async fn again(
    who: &Enrolment,
    present: &Credentials,
) -> Result<Credentials, MeshError> {
    let refused = match by_certificate(who, present).await {
        Ok(renewed) => return Ok(renewed),
        Err(error) if error.is_away() => return Err(error),
        Err(error) => error,
    };
    match by_token(who).await {
        Err(
            MeshError::NoToken { .. }
            | MeshError::TokenFile { .. }
            | MeshError::PodTokenFile { .. },
        ) => Err(refused),
        Err(_)
            if matches!(
                refused.code(),
                Some(ErrorCode::KeyRefused | ErrorCode::IdentityRevoked)
            ) =>
        {
            Err(refused)
        }
        obtained => obtained,
    }
}

async fn by_certificate(who: &Enrolment, present: &Credentials) -> Result<Credentials, MeshError> {
    let expected = Expected::control(&who.service.network, &present.spiffe_id().trust_domain);
    let config = |clock| client_config(&present.clone().with_clock(clock), &expected, ALPN);
    let channel = connect_by_clock(&who.control, expected.server_name()?, &config).await?;
    renew(channel, who).await
}

/// Whether the token is for the root that is trusted with the kept identity.
fn is_of(kept: &Credentials, token: &FirstProof) -> bool {
    let own = kept.bundles().get(&kept.spiffe_id().trust_domain);
    let mut roots = own.map(TrustBundle::roots).unwrap_or_default().iter();
    roots.any(|root| token.root().pins(root))
}

/// Waits for a former process to leave the folder.
async fn open_state(
    config: &MeshConfig,
    deadline: Instant,
) -> Result<Option<Arc<StateFolder>>, MeshError> {
    let Some(state) = &config.state else { return Ok(None) };
    loop {
        match StateFolder::open(&state.path) {
            Ok(folder) => return Ok(Some(Arc::new(folder))),
            Err(StateFolderError::Locked { .. }) if Instant::now() + RETRY_PAUSE < deadline => {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Renews over a connection that shows the present certificate.
pub(super) async fn renew(channel: Channel, who: &Enrolment) -> Result<Credentials, MeshError> {
    issue(channel, who, &KeyPair::generate()?, None).await
}

/// Whether the certificate is no longer good for anything.
pub(super) fn has_ended(credentials: &Credentials) -> bool {
    SystemTime::now() >= credentials.not_after()
}

async fn issue(
    channel: Channel,
    who: &Enrolment,
    key: &KeyPair,
    proof: Option<&FirstProof>,
) -> Result<Credentials, MeshError> {
    let (token, pod_token) = texts(proof);
    let request = v1::IssueRequest {
        csr: key.csr_der()?,
        service: Some((&who.service).into()),
        instance: who.instance.as_str().to_owned(),
        token,
        ttl_s: who.certificate_ttl_s,
        pod_token,
    };
    let mut client = IdentityClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES);
    let issued = tokio::time::timeout(ISSUE_TIMEOUT, client.issue(request)).await;
    let issued = issued.map_err(|_| MeshError::Silent(ISSUE_TIMEOUT))??.into_inner();
    let count = issued.chain.len();
    if count > CHAIN_LIMIT {
        return Err(ConvertError::TooMany { field: "chain", count, limit: CHAIN_LIMIT }.into());
    }
    let chain = issued.chain.into_iter().map(CertificateDer::from).collect();
    let trust = issued.trust.ok_or(ConvertError::Missing { field: "trust" })?;
    let credentials = Credentials::new(key, chain, bundles(&trust)?)?;
    let credentials = credentials.with_key_exchange(who.key_exchange);
    check_clock(&who.control.targets(), &credentials, SystemTime::now())?;
    info!(identity = %credentials.spiffe_id(), instance = %who.instance, "has a certificate");
    Ok(credentials)
}

/// The join token and the token of a pod, as a request has them: one of them is empty.
pub(super) fn texts(proof: Option<&FirstProof>) -> (String, String) {
    match proof {
        None => Default::default(),
        Some(FirstProof::Join(token)) => (token.to_string(), String::new()),
        Some(FirstProof::Pod { token, .. }) => (String::new(), token.clone()),
    }
}

/// Compares this machine's clock with the one that dated a certificate a moment ago.
fn check_clock(
    control: &Targets,
    credentials: &Credentials,
    now: SystemTime,
) -> Result<(), MeshError> {
    let theirs = issued_at(credentials.not_before(), credentials.not_after());
    let (direction, by) = match now.duration_since(theirs) {
        Ok(ahead) => ("ahead of", ahead),
        Err(behind) => ("behind", behind.duration()),
    };
    let reason = format!("this machine's is {} {direction} the other", span(by));
    if now < credentials.not_before() || now >= credentials.not_after() {
        return Err(MeshError::Clock { control: control.to_string(), reason });
    }
    if by > CLOCK_TOLERANCE {
        warn!(code = %ErrorCode::ClockOff, %control, reason, "the clocks disagree; certificates of others may seem expired or not yet valid");
    }
    Ok(())
}

/// Reads the trust bundles from the wire.
pub(super) fn bundles(trust: &v1::TrustBundles) -> Result<TrustBundles, MeshError> {
    let count = trust.bundles.len();
    if count > TRUST_DOMAINS_LIMIT {
        let limit = TRUST_DOMAINS_LIMIT;
        return Err(ConvertError::TooMany { field: "bundles", count, limit }.into());
    }
    let list = trust.bundles.iter().map(bundle).collect::<Result<Vec<_>, _>>()?;
    Ok(TrustBundles::new(trust.revision, list)?)
}

fn bundle(stated: &v1::TrustBundle) -> Result<TrustBundle, MeshError> {
    let count = stated.roots.len();
    if count > ROOTS_PER_TRUST_DOMAIN_LIMIT {
        let limit = ROOTS_PER_TRUST_DOMAIN_LIMIT;
        return Err(ConvertError::TooMany { field: "roots", count, limit }.into());
    }
    let network = tollway_wire::network_name(&stated.network)?;
    let trust_domain = tollway_wire::trust_domain(&stated.trust_domain)?;
    let roots = stated.roots.iter().map(|root| CertificateDer::from(root.clone())).collect();
    let revoked = Revocations::new(tollway_wire::revocations(&stated.revoked)?);
    Ok(TrustBundle::new(network, trust_domain, roots)?.with_revoked(revoked))
}
