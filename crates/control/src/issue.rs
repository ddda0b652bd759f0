//! Certificates for workloads and gateways: for the holder of a join token or of a pod's token, and
//! again for the holder of a certificate. `tokens` and `pods` decide about tokens, and `decide` about
//! certificates; the service executes, and stores the last certificate of each instance (`issued.rs`).

mod decide;
mod paces;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tollway_identity::{IssueError, IssueRequest, IssuedChain, SystemRequest, peer_identity};
use tollway_model::ErrorCode;
use tollway_wire::v1;
use tollway_wire::v1::identity_server::Identity;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

pub(crate) use self::decide::{Claim, Refusal, agents_group};
use self::decide::{decide_renewal, decide_ttl};
pub(crate) use self::paces::IssuePaces;
use self::paces::Proven;
use crate::clock::unix_now_ms;
use crate::connections::{Caller, Holder, revoked_status};
use crate::hub::Hub;
use crate::instance_keys::{InstanceKeys, Remembered};
use crate::issued::{IssuedLog, record_of};
use crate::pods::{Cluster, PodRefusal, ProvenPod};
use crate::tokens::{Redeemable, Tokens, is_gateway};

/// By what a caller may have a certificate.
enum Proof {
    Token(Redeemable),
    Pod(ProvenPod),
    Certificate,
}

pub(crate) struct IdentityService {
    pub(crate) tokens: Tokens,
    pub(crate) keys: Arc<InstanceKeys>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) issued: IssuedLog,
    pub(crate) paces: Arc<IssuePaces>,
    /// The pods that may have identities.
    pub(crate) cluster: Option<Cluster>,
    /// Lifetime of a certificate unless a shorter one is requested.
    pub(crate) certificate_ttl: Duration,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn issue(
        &self,
        request: Request<v1::IssueRequest>,
    ) -> Result<Response<v1::IssueResponse>, Status> {
        let (caller, from) = (Caller::of(&request), Caller::address(&request));
        let request = request.into_inner();
        let claim = Claim {
            service: tollway_wire::service_name(request.service.as_ref()).map_err(Refusal::from)?,
            instance: tollway_wire::instance(&request.instance).map_err(Refusal::from)?,
        };
        let issuing = async {
            let Allowed { proof, remembered, ended } =
                self.may_have(&caller, &claim, &request.token, &request.pod_token).await?;
            let ttl = decide_ttl(request.ttl_s, self.certificate_ttl);
            let issued =
                self.sign(&claim, request.csr, ttl).map_err(|error| issue_status(&error))?;
            let identity = peer_identity(&issued.chain)
                .map_err(|error| Status::internal(tollway_model::chain(&error)))?;
            let record = record_of(&claim, &identity, unix_now_ms());
            // Stored before it is given out: no certificate runs that is not listed.
            match &proof {
                Proof::Token(token) => {
                    let is_new = self.issued.is_new(&claim).await?;
                    let may_repeat = !remembered.is_barred();
                    let record = record.clone();
                    self.tokens.spend(token, &claim.instance, record, may_repeat, from).await?;
                    self.issued.add_if(is_new, &claim);
                }
                Proof::Pod(pod) => {
                    let is_new = self.issued.is_new(&claim).await?;
                    self.issued.enrol(&claim, record.clone()).await?;
                    self.issued.add_if(is_new, &claim);
                    info!(service = %claim.service, pod = pod.name, account = pod.service_account, node = pod.node, "a pod has proven who it is");
                }
                Proof::Certificate => {}
            }
            self.keys.issued(remembered, &identity, ended).await?;
            match &proof {
                Proof::Certificate => self.issued.renew(&claim, record).await?,
                // After the keys are stored: an end that is reported from now on finds them.
                Proof::Pod(pod) => {
                    if let Err(ended) = self.cluster()?.enrol(pod, &claim) {
                        self.keys.end_pod(&claim, &pod.uid).await?;
                        return Err(ended.into());
                    }
                }
                Proof::Token(_) => {}
            }
            Ok::<_, Status>(issued)
        };
        let issued = issuing.await.inspect_err(|status| {
            let (code, reason) = (tollway_wire::code_of(status), status.message());
            let code = code.map(ErrorCode::word);
            warn!(service = %claim.service, instance = %claim.instance, code, reason, "a certificate was refused");
        })?;
        self.tokens.noted.note();
        info!(service = %claim.service, instance = %claim.instance, "issued a certificate");
        Ok(Response::new(v1::IssueResponse {
            chain: issued.chain.iter().map(|der| der.to_vec()).collect(),
            trust: Some(self.hub.read(crate::catalogue::Catalogue::trust)),
            trust_domain: self.tokens.authority.trust_domain().to_string(),
        }))
    }

    async fn check(
        &self,
        request: Request<v1::CheckRequest>,
    ) -> Result<Response<v1::CheckResponse>, Status> {
        let v1::CheckRequest { token, pod_token } = request.into_inner();
        let checked = async {
            if token.is_empty() && !pod_token.is_empty() {
                let pod = self.cluster()?.prove(&pod_token).await?;
                self.paces.count(&Proven::Pod(pod.uid))?;
                return Ok(0);
            }
            let (id, token) = self.tokens.check(&token).await?;
            self.paces.count(&Proven::Token(id))?;
            Ok(token.expires_at_unix_ms)
        };
        let checked: Result<_, Status> = checked.await;
        let expires_at_unix_ms = checked.map_err(tollway_wire::with_clock(unix_now_ms()))?;
        Ok(Response::new(v1::CheckResponse {
            network: self.tokens.authority.network().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_unix_ms: unix_now_ms(),
            token_expires_at_unix_ms: expires_at_unix_ms,
        }))
    }
}

/// The right to a certificate.
struct Allowed {
    proof: Proof,
    remembered: Remembered,
    /// How long ago the certificate that is renewed ended, if it has.
    ended: Option<Duration>,
}

impl IdentityService {
    async fn may_have(
        &self,
        caller: &Caller,
        claim: &Claim,
        token: &str,
        pod_token: &str,
    ) -> Result<Allowed, Status> {
        let Claim { service, instance } = claim;
        let proof = if !token.is_empty() {
            let token = self.tokens.find(token, service).await?;
            self.paces.count(&Proven::Token(token.id()))?;
            Some(Proof::Token(token))
        } else if !pod_token.is_empty() {
            let cluster = self.cluster()?;
            let pod = cluster.prove(pod_token).await?;
            cluster.allows(&pod, claim)?;
            self.paces.count(&Proven::Pod(pod.uid.clone()))?;
            Some(Proof::Pod(pod))
        } else {
            None
        };
        if let Some(proof) = proof {
            // Only the holder of a token learns what is revoked.
            if self.hub.read(|catalogue| catalogue.is_revoked(service, instance)) {
                return Err(revoked_status(service, instance));
            }
            let pod = match &proof {
                Proof::Pod(pod) => Some(pod.id()),
                Proof::Token(_) | Proof::Certificate => None,
            };
            let remembered = self.keys.enrolling(claim, pod).await?;
            return Ok(Allowed { proof, remembered, ended: None });
        }
        if matches!(caller, Caller::Anonymous) {
            return Err(Refusal::NoProof.into());
        }
        let grace = self.keys.grace();
        let who = self.hub.read(|catalogue| caller.renewing(catalogue, grace))?;
        decide_renewal(&(who.service.clone(), who.instance.clone()), claim)?;
        let holder =
            Holder::new(service.namespace.as_str(), service.app.as_str(), instance.as_str());
        self.paces.count(&Proven::Certificate(holder))?;
        let remembered = self.keys.renewing(&who).await?;
        Ok(Allowed { proof: Proof::Certificate, remembered, ended: who.ended })
    }

    fn cluster(&self) -> Result<&Cluster, Refusal> {
        self.cluster.as_ref().ok_or(Refusal::Pod(PodRefusal::NoCluster))
    }

    fn sign(
        &self,
        claim: &Claim,
        csr_der: Vec<u8>,
        ttl: Duration,
    ) -> Result<IssuedChain, IssueError> {
        let instance = claim.instance.clone();
        let now = SystemTime::now();
        if is_gateway(&claim.service) {
            return self
                .tokens
                .authority
                .issue_gateway(&SystemRequest { csr_der, instance, ttl }, now);
        }
        if let Some(group) = agents_group(&claim.service) {
            let request = SystemRequest { csr_der, instance, ttl };
            return self.tokens.authority.issue_fabric(&group, &request, now);
        }
        let service = claim.service.clone();
        self.tokens.authority.issue(&IssueRequest { csr_der, service, instance, ttl }, now)
    }
}

fn issue_status(error: &IssueError) -> Status {
    let text = tollway_model::chain(error);
    match error {
        IssueError::RequestTooLarge { .. }
        | IssueError::Request(_)
        | IssueError::KeyType
        | IssueError::ForeignNetwork { .. }
        | IssueError::ReservedNamespace
        | IssueError::Name { .. } => Status::invalid_argument(text),
        IssueError::Ttl { .. }
        | IssueError::RootEnded
        | IssueError::Clock
        | IssueError::Randomness
        | IssueError::Sign(_) => Status::internal(text),
    }
}
