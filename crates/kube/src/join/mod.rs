//! Joins the networks of two clusters: [`join_clusters`] reads both installs, has one export a bundle and the other
//! accept it, and waits until each reaches the other. `plan` decides, without I/O.

mod exec;
mod plan;

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::Api;
use kube::api::ListParams;
use thiserror::Error;
use tokio::time::Instant;

pub use self::exec::ExecError;
pub use self::plan::Obstacle;
use self::plan::{Gateway, Install, Joined, Plan, decide, explain};
use crate::Cluster;
use crate::serving_mark::SERVES;

/// The program in the image, and where its control plane is administered.
const PROGRAM: &str = "/tollway";
const STORE: &str = "--store=/var/lib/tollway/control";
/// Pods of the control plane.
const CONTROL: &str = "app.kubernetes.io/name=tollway,app.kubernetes.io/component=control";
/// From one look at whether the networks reach each other to the next.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// An install that is to be joined.
#[derive(Clone, Debug)]
pub struct Side {
    pub cluster: Cluster,
    /// How messages call the cluster.
    pub context: String,
    /// Namespace of the install.
    pub namespace: String,
}

/// How networks are joined.
#[derive(Clone, Copy, Debug)]
pub struct JoinOptions {
    /// The gateways of each may move later without a new bundle.
    pub follow_gateways: bool,
    /// Time for each to reach the other; nothing is awaited without.
    pub within: Option<Duration>,
}

/// What became of two networks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// These two are joined now.
    Joined(String, String),
    /// They were before.
    WereJoined(String, String),
}

/// Why two clusters were not joined.
#[derive(Debug, Error)]
pub enum JoinClustersError {
    #[error("{context}: the API server gives no answer{hint}")]
    Api { context: String, hint: &'static str, source: kube::Error },
    #[error(
        "{context} has no control plane in namespace {namespace}; install it by `tollway kube install` or the chart, or name its namespace by --namespace"
    )]
    NoInstall { context: String, namespace: String },
    #[error(
        "no control plane of {context} in namespace {namespace} is ready; `tollway kube check` with this context shows why"
    )]
    NotReady { context: String, namespace: String },
    #[error("the networks of {0} and {1} cannot be joined")]
    Obstacle(String, String, #[source] Obstacle),
    #[error("{context}")]
    Exec { context: String, source: ExecError },
    #[error("{context}: {what}")]
    Command { context: String, what: String },
    #[error(
        "the networks are joined, and after {within:?} {}; set gateway.advertise of each install to an address that the other cluster reaches, and join them once more",
        .unreached.join(", and ")
    )]
    Unreached { within: Duration, unreached: Vec<String> },
}

/// Joins the networks of two installs, unless they are joined and reach each other.
///
/// # Errors
/// [`JoinClustersError`]; with [`JoinClustersError::Unreached`] they are joined all the same.
pub async fn join_clusters(
    sides: [&Side; 2],
    options: JoinOptions,
) -> Result<Outcome, JoinClustersError> {
    let [first, second] = sides;
    let (control, other) = tokio::try_join!(Control::find(first), Control::find(second))?;
    let (one, two) = tokio::try_join!(control.read(), other.read())?;
    let obstacle = |obstacle| {
        JoinClustersError::Obstacle(first.context.clone(), second.context.clone(), obstacle)
    };
    let networks = (one.network.clone(), two.network.clone());
    match decide(&one, &two).map_err(obstacle)? {
        Plan::Nothing => return Ok(Outcome::WereJoined(networks.0, networks.1)),
        Plan::SecondAccepts => hand_over(&control, &other, options).await?,
        Plan::FirstAccepts => hand_over(&other, &control, options).await?,
    }
    if let Some(within) = options.within {
        wait_reached([&control, &other], within).await?;
    }
    Ok(Outcome::Joined(networks.0, networks.1))
}

/// The bundle has a secret; it is in no file on the way.
async fn hand_over(
    exporting: &Control<'_>,
    accepting: &Control<'_>,
    options: JoinOptions,
) -> Result<(), JoinClustersError> {
    let follow: &[&str] = if options.follow_gateways { &["--follow-gateways"] } else { &[] };
    let contexts = (exporting.side.context.as_str(), accepting.side.context.as_str());
    let bundle = exporting.run(&["join", "export"], follow, None, contexts).await?;
    accepting.run(&["join", "accept", "-"], follow, Some(&bundle), contexts).await?;
    Ok(())
}

async fn wait_reached(
    [one, two]: [&Control<'_>; 2],
    within: Duration,
) -> Result<(), JoinClustersError> {
    let ends = Instant::now() + within;
    loop {
        let (first, second) = tokio::try_join!(one.read(), two.read())?;
        let unreached: Vec<String> =
            [first.unreached(&second), second.unreached(&first)].into_iter().flatten().collect();
        if unreached.is_empty() {
            return Ok(());
        }
        if Instant::now() >= ends {
            return Err(JoinClustersError::Unreached { within, unreached });
        }
        tokio::time::sleep(LOOKED_AGAIN_AFTER).await;
    }
}

/// A control plane that serves, and how to reach it.
struct Control<'a> {
    side: &'a Side,
    pods: Api<Pod>,
    pod: String,
    network: String,
}

impl<'a> Control<'a> {
    async fn find(side: &'a Side) -> Result<Self, JoinClustersError> {
        let Side { cluster, context, namespace } = side;
        let missing = || JoinClustersError::NoInstall {
            context: context.clone(),
            namespace: namespace.clone(),
        };
        let sets: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), namespace);
        let set = sets.get_opt("tollway-control").await.map_err(|error| side.api(error))?;
        let spec = set.and_then(|set| set.spec).ok_or_else(missing)?;
        let containers = spec.template.spec.map(|spec| spec.containers).unwrap_or_default();
        let network = argument(&containers, "--network=").ok_or_else(missing)?;
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
        let listed = pods.list(&ListParams::default().labels(CONTROL)).await;
        let listed = listed.map_err(|error| side.api(error))?;
        let pod = serving(listed.items).and_then(|pod| pod.metadata.name);
        let pod = pod.ok_or_else(|| JoinClustersError::NotReady {
            context: context.clone(),
            namespace: namespace.clone(),
        })?;
        Ok(Self { side, pods, pod, network })
    }

    async fn read(&self) -> Result<Install, JoinClustersError> {
        let side = self.side;
        let deployments: Api<Deployment> =
            Api::namespaced(side.cluster.client.clone(), &side.namespace);
        let gateway = deployments.get_opt("tollway-gateway").await;
        let gateway = gateway.map_err(|error| side.api(error))?;
        let context = side.context.as_str();
        let printed = self.run(&["join", "list", "--json"], &[], None, (context, context)).await?;
        let joined: Vec<Joined> =
            serde_json::from_slice(&printed).map_err(|error| JoinClustersError::Command {
                context: side.context.clone(),
                what: format!("the list of joined networks cannot be read: {error}"),
            })?;
        Ok(Install {
            context: side.context.clone(),
            network: self.network.clone(),
            gateway: gateway.as_ref().map_or(Gateway::Missing, how_reached),
            joined,
        })
    }

    /// Runs a command of the operator; a failure is explained for these two contexts.
    async fn run(
        &self,
        command: &[&str],
        more: &[&str],
        input: Option<&[u8]>,
        (exporting, accepting): (&str, &str),
    ) -> Result<Vec<u8>, JoinClustersError> {
        let all = [&[PROGRAM], command, &[STORE], more].concat();
        let context = || self.side.context.clone();
        match exec::run(&self.pods, &self.pod, &all, input).await {
            Ok(printed) => Ok(printed),
            Err(ExecError::Failed(written)) => Err(JoinClustersError::Command {
                context: context(),
                what: explain(&written, exporting, accepting),
            }),
            Err(source @ (ExecError::Begin(_) | ExecError::Broken(_))) => {
                Err(JoinClustersError::Exec { context: context(), source })
            }
        }
    }
}

impl Side {
    fn api(&self, source: kube::Error) -> JoinClustersError {
        let is_refused =
            matches!(&source, kube::Error::Api(status) if matches!(status.code, 401 | 403));
        let hint =
            if is_refused { "; use the access of an administrator of the cluster" } else { "" };
        JoinClustersError::Api { context: self.context.clone(), hint, source }
    }
}

/// The one that serves. Of several it has a label, and the others, which stand by, are ready as well.
fn serving(pods: Vec<Pod>) -> Option<Pod> {
    let is_marked = |pod: &Pod| pod.metadata.labels.iter().flatten().any(|(key, _)| key == SERVES);
    pods.into_iter().filter(is_ready).max_by_key(is_marked)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The value of an argument of the first container.
fn argument(containers: &[Container], start: &str) -> Option<String> {
    let arguments = containers.first()?.args.as_ref()?;
    arguments.iter().find_map(|argument| argument.strip_prefix(start)).map(str::to_owned)
}

fn how_reached(gateway: &Deployment) -> Gateway {
    let ready = gateway.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    let pod = gateway.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let dials_out = pod.is_some_and(|pod| argument(&pod.containers, "--dial-out").is_some());
    match (ready > 0, dials_out) {
        (false, _) => Gateway::NotReady,
        (true, true) => Gateway::DialsOut,
        (true, false) => Gateway::Listens,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn pod(name: &str, is_ready: bool, serves: bool) -> Pod {
        let labels = serves.then(|| [(SERVES.to_owned(), "true".to_owned())].into());
        let status = if is_ready { "True" } else { "False" };
        let ready = PodCondition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            ..PodCondition::default()
        };
        Pod {
            metadata: ObjectMeta { name: Some(name.to_owned()), labels, ..ObjectMeta::default() },
            status: Some(PodStatus { conditions: Some(vec![ready]), ..PodStatus::default() }),
            ..Pod::default()
        }
    }

    #[test]
    fn commands_go_to_the_replica_that_serves() {
        let found = |pods: Vec<Pod>| serving(pods).and_then(|pod| pod.metadata.name);
        let by = [pod("0", true, false), pod("1", true, true), pod("2", true, false)];
        assert_eq!(found(by.to_vec()).as_deref(), Some("1"));
        assert_eq!(found(vec![pod("0", true, false)]).as_deref(), Some("0"), "the only one");
        assert_eq!(found(vec![pod("0", false, true)]), None, "it does not answer");
    }
}
