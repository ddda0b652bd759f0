//! The client of a Kubernetes cluster: asks its API server what the control plane has to know.
//!
//! [`Cluster`] asks; `proof` reads the answers, without I/O, `lifetimes` watches which pods end, and
//! `resources`, `gateway_api` and `services` follow the custom resources, the routes of the Gateway API and the
//! Services. What follows from an answer is decided in `control`.
//! [`serve_injector`] adds sidecars to pods as they are made; [`Cluster::install`], [`join_clusters`] and
//! their neighbours are for the commands of an operator.

mod check;
mod conditions;
mod etcd_certificate;
mod events;
mod follow;
mod gateway_api;
mod injector;
mod install;
mod join;
mod join_bundles;
mod lifetimes;
mod listing;
mod own_certificate;
mod pods;
mod proof;
mod resources;
mod secret_certificate;
mod services;
mod serving_mark;

pub use check::{Finding, Grade};
pub use etcd_certificate::{EtcdCertificate, EtcdCertificates};
pub use injector::{InjectorError, InjectorOptions, serve_injector};
pub use install::{Change, Choices, InstallError, ManifestError, StoreKind, manifest};
pub use join::{ExecError, JoinClustersError, JoinOptions, Obstacle, Outcome, Side, join_clusters};
pub use join_bundles::BundleSecret;
pub use pods::InjectedApp;
pub use resources::{CustomResources, ResourceSources};
pub use serving_mark::ServingMark;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::mpsc;
use tollway_control::{
    Announcing, Asking, Following, PodEvent, PodId, Pods, PodsError, ProvenPod, Proving,
};
use tollway_identity::RootPin;
use tollway_model::{KubeName, chain};

/// The audience of the tokens by which pods prove who they are to a control plane.
pub const AUDIENCE: &str = "tollway";

/// Why there is no client of a cluster.
#[derive(Debug, Error)]
pub enum ClusterError {
    #[error(
        "no Kubernetes cluster is found: this is no pod with a service account, and no file of the variable KUBECONFIG or ~/.kube/config names one"
    )]
    Find(#[source] kube::config::InferConfigError),
    #[error("the client of the Kubernetes cluster cannot be made")]
    Client(#[source] kube::Error),
    #[error(
        "the configuration of clusters cannot be used; the variable KUBECONFIG or ~/.kube/config names it"
    )]
    Configuration(#[source] KubeconfigError),
    #[error("there is no context {name} in the configuration of clusters; {}", known_contexts(.known))]
    NoContext { name: String, known: Vec<String> },
}

fn known_contexts(known: &[String]) -> String {
    match known {
        [] => "it has none: set KUBECONFIG to a file that has some".to_owned(),
        known => format!("it has {}", known.join(", ")),
    }
}

/// The API server of a cluster. Clones share its connections.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl Cluster {
    /// The cluster that this process runs in, or else the one of the user's configuration.
    ///
    /// # Errors
    /// [`ClusterError`]: no cluster is named, or its certificates cannot be used.
    pub async fn find() -> Result<Self, ClusterError> {
        let config = kube::Config::infer().await.map_err(ClusterError::Find)?;
        let client = Client::try_from(config).map_err(ClusterError::Client)?;
        Ok(Self { client })
    }

    /// The cluster of a context of the user's configuration.
    ///
    /// # Errors
    /// [`ClusterError`]: there is no such context, or it cannot be used.
    pub async fn of_context(name: &str) -> Result<Self, ClusterError> {
        let configuration = Kubeconfig::read().map_err(ClusterError::Configuration)?;
        let known = || configuration.contexts.iter().map(|context| context.name.clone());
        if !known().any(|known| known == name) {
            return Err(ClusterError::NoContext {
                name: name.to_owned(),
                known: known().collect(),
            });
        }
        let options =
            KubeConfigOptions { context: Some(name.to_owned()), ..KubeConfigOptions::default() };
        let config = kube::Config::from_custom_kubeconfig(configuration, &options).await;
        let config = config.map_err(ClusterError::Configuration)?;
        let client = Client::try_from(config).map_err(ClusterError::Client)?;
        Ok(Self { client })
    }

    async fn pod_of(&self, token: &str) -> Result<ProvenPod, PodsError> {
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![AUDIENCE.to_owned()]),
                token: Some(token.to_owned()),
            },
            ..TokenReview::default()
        };
        let reviewed = reviews.create(&PostParams::default(), &review).await;
        let reviewed = reviewed.map_err(|error| unavailable("create tokenreviews", &error))?;
        let holder = proof::holder(&reviewed.status.unwrap_or_default())?;
        let pod = self.pod(&holder.namespace, &holder.pod).await?;
        proof::proven(holder, pod.as_ref())
    }

    async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, PodsError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = pods.get_opt(name).await;
        pod.map_err(|error| unavailable("get pods", &error))
    }

    async fn still_runs(&self, pod: &PodId) -> Result<bool, PodsError> {
        let found = self.pod(&pod.namespace, &pod.name).await?;
        Ok(proof::runs(&pod.uid, found.as_ref()))
    }

    async fn write_root(&self, at: &KubeName, root: &RootPin) -> Result<(), PodsError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &at.namespace);
        let data = [(ROOT_PIN_KEY, root.to_string()), (NETWORK_KEY, root.network().to_string())];
        let map = ConfigMap {
            metadata: ObjectMeta { name: Some(at.name.clone()), ..ObjectMeta::default() },
            data: Some(data.into_iter().map(|(key, text)| (key.to_owned(), text)).collect()),
            ..ConfigMap::default()
        };
        let parameters = PatchParams::apply(WRITER).force();
        let written = maps.patch(&at.name, &parameters, &Patch::Apply(&map)).await;
        let right = "get, create and patch configmaps";
        written.map(drop).map_err(|error| unavailable(right, &error))
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// The name under which the API server keeps what is written here apart from what others write.
pub(crate) const WRITER: &str = "tollway";
/// Keys of the ConfigMap of a network.
pub const ROOT_PIN_KEY: &str = "root-pin";
const NETWORK_KEY: &str = "network";

impl Pods for Cluster {
    fn prove<'a>(&'a self, token: &'a str) -> Proving<'a> {
        Box::pin(self.pod_of(token))
    }

    fn follow(&self, events: mpsc::Sender<PodEvent>) -> Following<'_> {
        Box::pin(lifetimes::follow(self.client.clone(), events))
    }

    fn runs<'a>(&'a self, pod: &'a PodId) -> Asking<'a> {
        Box::pin(self.still_runs(pod))
    }

    fn announce<'a>(&'a self, at: &'a KubeName, root: &'a RootPin) -> Announcing<'a> {
        Box::pin(self.write_root(at, root))
    }
}

/// The API server has not answered a question that takes the right `right`.
fn unavailable(right: &str, error: &kube::Error) -> PodsError {
    if let kube::Error::Api(status) = error
        && matches!(status.code, 401 | 403)
    {
        return PodsError::Unavailable(format!(
            "it refuses the control plane, whose service account needs the right to {right}: {}",
            status.message
        ));
    }
    PodsError::Unavailable(chain(error))
}
