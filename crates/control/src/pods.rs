//! Pods of a Kubernetes cluster: their service account's token proves which pod asks for an identity.
//!
//! The API server reviews the token ([`Pods`], given by the program that starts the control plane);
//! `decide` compares what it reports of the pod with what is asked for. Reviews are bounded, since every
//! peer that reaches the port can ask for one. `enrolled` knows which pods have identities and which of them
//! have ended, and `lifetimes` ends the registrations of these.

mod decide;
mod enrolled;
mod lifetimes;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tollway_identity::RootPin;
use tollway_model::{AgentAccount, Instance, KubeName, ServiceName};
use tonic::Status;
use tracing::{info, warn};

pub(crate) use self::decide::PodRefusal;
use self::decide::{decide_pod, decide_shape};
use self::enrolled::EnrolledPods;
pub(crate) use self::lifetimes::Lifetimes;
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

impl ProvenPod {
    pub(crate) fn id(&self) -> PodId {
        let Self { namespace, name, uid, .. } = self;
        PodId { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() }
    }
}

/// One pod among all that ever were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodId {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What a watch of a cluster reports of its pods. Pods that have ended, well or not, count as deleted ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PodEvent {
    /// All pods are about to be reported, now or once the API server answers.
    ListBegins,
    /// A pod runs, or is about to.
    Listed {
        uid: String,
    },
    /// All pods have been reported.
    ListEnds,
    /// A pod has begun to terminate: its app takes no calls for long any more.
    Leaving {
        uid: String,
    },
    Ended {
        uid: String,
    },
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

/// A watch; it completes when its receiver is dropped.
pub type Following<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Whether a pod runs, once the cluster has answered.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<bool, PodsError>> + Send + 'a>>;

/// The API server of a cluster: which pod a token is of, which pods have ended, and where the cluster finds
/// this network's root.
pub trait Pods: Send + Sync + fmt::Debug {
    /// The pod that holds `token`, which is for this network's audience, as it is now.
    fn prove<'a>(&'a self, token: &'a str) -> Proving<'a>;

    /// Reports which pods there are and which end. While the API server gives no watch it reports nothing, and
    /// tries again.
    fn follow(&self, events: mpsc::Sender<PodEvent>) -> Following<'_>;

    /// Whether this pod, and no other of its name, runs or is about to.
    fn runs<'a>(&'a self, pod: &'a PodId) -> Asking<'a>;

    /// Writes the pin of this network's root into the ConfigMap `at`.
    fn announce<'a>(&'a self, at: &'a KubeName, root: &'a RootPin) -> Announcing<'a>;
}

/// Pods of one cluster may have identities of this network.
#[derive(Clone, Debug)]
pub struct PodOptions {
    pub pods: Arc<dyn Pods>,
    pub parts: PartAccounts,
    /// ConfigMaps that receive the pin of this network's root.
    pub roots: Vec<KubeName>,
}

/// Whose pods are parts of the mesh; no other pod is one.
#[derive(Clone, Debug, Default)]
pub struct PartAccounts {
    /// Pods of this service account are gateways of the network.
    pub gateways: Option<KubeName>,
    /// Pods of these service accounts are agents of groups of neighbours.
    pub agents: Vec<AgentAccount>,
}

/// The pods of a network's cluster. Clones share the bound and what is known of pods.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    options: PodOptions,
    reviews: Arc<Semaphore>,
    enrolled: Arc<Mutex<EnrolledPods>>,
}

impl Cluster {
    pub(crate) fn new(options: PodOptions) -> Self {
        let reviews = Arc::new(Semaphore::new(REVIEWS_LIMIT));
        Self { options, reviews, enrolled: Arc::default() }
    }

    /// ConfigMaps that are to have the root.
    pub(crate) fn roots(&self) -> &[KubeName] {
        &self.options.roots
    }

    /// Writes the root into a ConfigMap, again as often as that fails.
    pub(crate) async fn announce(self, at: KubeName, root: RootPin) {
        let mut pause = ANNOUNCED_AGAIN_AFTER;
        while let Err(error) = self.options.pods.announce(&at, &root).await {
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

    /// Takes note that a pod has enrolled, so that its end is followed. A pod that has ended since it showed
    /// its token is refused.
    pub(crate) fn enrol(&self, pod: &ProvenPod, claim: &Claim) -> Result<(), Refusal> {
        if self.enrolled().enrol(pod.id(), claim.clone()) {
            return Ok(());
        }
        let reason = format!("pod {} of namespace {} is deleted", pod.name, pod.namespace);
        Err(Refusal::Pod(PodRefusal::Token { reason }))
    }

    fn enrolled(&self) -> MutexGuard<'_, EnrolledPods> {
        self.enrolled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this workload is in a pod that has begun to terminate.
    pub(crate) fn is_leaving(&self, service: &ServiceName, instance: &Instance) -> bool {
        self.enrolled().is_leaving(service, instance)
    }

    /// Whether a pod may have the identity that is asked for.
    pub(crate) fn allows(&self, pod: &ProvenPod, claim: &Claim) -> Result<(), Refusal> {
        decide_pod(pod, claim, &self.options.parts).map_err(Refusal::Pod)
    }
}
