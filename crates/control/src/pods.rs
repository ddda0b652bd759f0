//! Pods of a Kubernetes cluster: their service account's token proves which pod asks for an identity.
//!
//! The API server reviews the token ([`Pods`], given by the program that starts the control plane);
//! `decide` compares what it reports of the pod with what is asked for. Reviews are bounded, since every
//! peer that reaches the port can ask for one.

mod decide;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tollway_identity::RootPin;
use tollway_model::KubeName;
use tonic::Status;
use tracing::{info, warn};

pub(crate) use self::decide::PodRefusal;
use self::decide::{decide_pod, decide_shape};
use crate::issue::{Claim, Refusal};

/// Reviews under way at the API server.
const REVIEWS_LIMIT: usize = 32;
/// Time for a review to begin and to end.
const REVIEW_WITHIN: Duration = Duration::from_secs(8);

/// From a failed announcement to the next: at first, and at most.
const ANNOUNCED_AGAIN_AFTER: Duration = Duration::from_millis(500);
const ANNOUNCED_AGAIN_WITHIN: Duration = Duration::from_secs(30);

/// What a cluster reports of a pod whose token it has reviewed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProvenPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The service account that it runs as, in its namespace.
    pub service_account: String,
    pub node: String,
    /// The app that its annotations name; none for a pod that is no app's.
    pub app: Option<String>,
}

/// Why a cluster reports no pod for a token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PodsError {
    /// The token proves nothing, or its pod does not run any more.
    #[error("{0}")]
    Refused(String),
    /// The API server gives no answer.
    #[error("{0}")]
    Unavailable(String),
}

/// The answer of a cluster, once it is there.
pub type Proving<'a> = Pin<Box<dyn Future<Output = Result<ProvenPod, PodsError>> + Send + 'a>>;

/// The outcome of an announcement, once it is there.
pub type Announcing<'a> = Pin<Box<dyn Future<Output = Result<(), PodsError>> + Send + 'a>>;

/// The API server of a cluster: which pod a token is of, and where the cluster finds this network's root.
pub trait Pods: Send + Sync + fmt::Debug {
    /// The pod that holds `token`, which is for this network's audience, as it is now.
    fn prove<'a>(&'a self, token: &'a str) -> Proving<'a>;

    /// Writes the pin of this network's root into the ConfigMap `at`.
    fn announce<'a>(&'a self, at: &'a KubeName, root: &'a RootPin) -> Announcing<'a>;
}

/// Pods of one cluster may have identities of this network.
#[derive(Clone, Debug)]
pub struct PodOptions {
    pub pods: Arc<dyn Pods>,
    /// Pods of this service account are gateways of the network. `None`: no pod is one.
    pub gateways: Option<KubeName>,
    /// The ConfigMap that receives the pin of this network's root. `None`: none does.
    pub root: Option<KubeName>,
}

/// The pods of a network's cluster. Clones share the bound.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    options: PodOptions,
    reviews: Arc<Semaphore>,
}

impl Cluster {
    pub(crate) fn new(options: PodOptions) -> Self {
        Self { options, reviews: Arc::new(Semaphore::new(REVIEWS_LIMIT)) }
    }

    /// Makes the root known in the cluster, as often as that fails.
    pub(crate) async fn announce(self, root: RootPin) {
        let Some(at) = &self.options.root else { return };
        let mut pause = ANNOUNCED_AGAIN_AFTER;
        while let Err(error) = self.options.pods.announce(at, &root).await {
            let hint = "it needs the rights to get, create and patch this ConfigMap";
            warn!(configmap = %at, %error, hint, "the root pin is not written");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ANNOUNCED_AGAIN_WITHIN);
        }
        info!(configmap = %at, %root, "the root pin is written");
    }

    /// The pod that the token is of.
    pub(crate) async fn prove(&self, token: &str) -> Result<ProvenPod, Status> {
        decide_shape(token).map_err(Refusal::Pod)?;
        let proving = async {
            let _turn = self.reviews.acquire().await;
            self.options.pods.prove(token).await
        };
        let proven = tokio::time::timeout(REVIEW_WITHIN, proving).await.unwrap_or_else(|_| {
            let reason = format!("it gives no answer within {REVIEW_WITHIN:?}");
            Err(PodsError::Unavailable(reason))
        });
        proven.map_err(|error| {
            let refusal = match error {
                PodsError::Refused(reason) => PodRefusal::Token { reason },
                PodsError::Unavailable(reason) => PodRefusal::NoAnswer { reason },
            };
            Refusal::Pod(refusal).into()
        })
    }

    /// Whether a pod may have the identity that is asked for.
    pub(crate) fn allows(&self, pod: &ProvenPod, claim: &Claim) -> Result<(), Refusal> {
        decide_pod(pod, claim, self.options.gateways.as_ref()).map_err(Refusal::Pod)
    }
}
