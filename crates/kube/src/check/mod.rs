//! Whether an install is as it should be: [`Cluster::check`] reads it, `judge` decides, without I/O.

mod judge;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, PodTemplateSpec};
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use tollway_model::ObjectKind;

use self::judge::{Agents, CustomResources, Part, Seen, Sight, Webhook, judge};
pub use self::judge::{Finding, Grade};
use crate::resources::{api_resource, resource_name};
use crate::{Cluster, ROOT_PIN_KEY};

/// The label of a DaemonSet of agents with the namespace of the install that they are of.
const CONTROL_OF_AGENTS: &str = "tollway.dev/control-namespace";

impl Cluster {
    /// Reads an install and judges it; `version` is what it should run.
    ///
    /// # Errors
    /// The API server gives no answer, or refuses the user.
    pub async fn check(&self, namespace: &str, version: &str) -> Result<Vec<Finding>, kube::Error> {
        let server = self.client.apiserver_version().await?;
        let number = |text: &str| text.trim_end_matches('+').parse().unwrap_or(0);
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let hooks: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let deployment = async |name: &str| {
            deployments.get_opt(name).await.map(|found| found.map(|one| part_of_deployment(&one)))
        };
        let root = sight(maps.get_opt("tollway-root").await)?;
        let root_pin = root.map(|map| map.data.and_then(|mut data| data.remove(ROOT_PIN_KEY)));
        let hook = sight(hooks.get_opt(&format!("tollway-{namespace}-injector")).await)?;
        let seen = Seen {
            kubernetes: (number(&server.major), number(&server.minor)),
            control: sets.get_opt("tollway-control").await?.map(|set| part_of_set(&set)),
            etcd: sets.get_opt("tollway-etcd").await?.map(|set| part_of_set(&set)),
            gateway: deployment("tollway-gateway").await?,
            injector: deployment("tollway-injector").await?,
            agents: sight(self.agents_of(namespace).await.map(Some))?,
            root_pin,
            webhook: hook.map(|hook| webhook(&hook)),
            resources: self.resources_seen().await?,
        };
        Ok(judge(&seen, namespace, version))
    }
}

impl Cluster {
    /// DaemonSets of any namespace whose agents this install controls.
    async fn agents_of(&self, namespace: &str) -> Result<Vec<Agents>, kube::Error> {
        let sets: Api<DaemonSet> = Api::all(self.client.clone());
        let of_install = format!("app.kubernetes.io/name=tollway,{CONTROL_OF_AGENTS}={namespace}");
        let listed = sets.list(&ListParams::default().labels(&of_install)).await?;
        Ok(listed.items.iter().map(agents).collect())
    }

    /// What the status of every custom resource says; absent where the cluster does not define them.
    async fn resources_seen(&self) -> Result<Sight<CustomResources>, kube::Error> {
        let mut seen = CustomResources::default();
        for kind in ObjectKind::ALL {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &api_resource(kind));
            let listed = match api.list(&ListParams::default()).await {
                Ok(listed) => listed,
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Sight::Absent),
                Err(kube::Error::Api(status)) if status.code == 403 => return Ok(Sight::Hidden),
                Err(error) => return Err(error),
            };
            for object in &listed.items {
                match is_accepted(object) {
                    Some(true) => seen.accepted += 1,
                    Some(false) => seen.refused.push(resource_name(kind, object).to_string()),
                    None => seen.unseen += 1,
                }
            }
        }
        Ok(Sight::There(seen))
    }
}

fn agents(set: &DaemonSet) -> Agents {
    let (spec, status) = (set.spec.as_ref(), set.status.as_ref());
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Agents {
        namespace: text(&set.metadata.namespace),
        name: text(&set.metadata.name),
        part: Part {
            wanted: status.map_or(0, |status| status.desired_number_scheduled),
            ready: status.map_or(0, |status| status.number_ready),
            image: spec.and_then(|spec| image(&spec.template)),
        },
    }
}

/// What a question about one object came to.
fn sight<K>(asked: Result<Option<K>, kube::Error>) -> Result<Sight<K>, kube::Error> {
    match asked {
        Ok(Some(object)) => Ok(Sight::There(object)),
        Ok(None) => Ok(Sight::Absent),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Sight::Hidden),
        Err(error) => Err(error),
    }
}

/// What the condition `Accepted` says.
fn is_accepted(object: &DynamicObject) -> Option<bool> {
    let conditions = object.data.pointer("/status/conditions")?.as_array()?;
    let accepted = conditions.iter().find(|condition| condition["type"] == "Accepted")?;
    Some(accepted["status"] == "True")
}

fn part_of_set(set: &StatefulSet) -> Part {
    let (spec, status) = (set.spec.as_ref(), set.status.as_ref());
    Part {
        wanted: spec.and_then(|spec| spec.replicas).unwrap_or(1),
        ready: status.and_then(|status| status.ready_replicas).unwrap_or(0),
        image: spec.and_then(|spec| image(&spec.template)),
    }
}

fn part_of_deployment(deployment: &Deployment) -> Part {
    let (spec, status) = (deployment.spec.as_ref(), deployment.status.as_ref());
    Part {
        wanted: spec.and_then(|spec| spec.replicas).unwrap_or(1),
        ready: status.and_then(|status| status.ready_replicas).unwrap_or(0),
        image: spec.and_then(|spec| image(&spec.template)),
    }
}

fn image(pod: &PodTemplateSpec) -> Option<String> {
    pod.spec.as_ref()?.containers.first()?.image.clone()
}

fn webhook(configuration: &MutatingWebhookConfiguration) -> Webhook {
    let hooks = configuration.webhooks.iter().flatten();
    let is_trusted =
        |bundle: Option<&k8s_openapi::ByteString>| bundle.is_some_and(|it| !it.0.is_empty());
    Webhook {
        is_trusted: hooks.clone().all(|hook| is_trusted(hook.client_config.ca_bundle.as_ref())),
        fails_open: hooks.clone().any(|hook| hook.failure_policy.as_deref() == Some("Ignore")),
    }
}
