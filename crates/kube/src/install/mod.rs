//! An install without Helm: what the chart renders by default, with a few choices.
//!
//! `manifest` is the rendered text with the choices put in, without I/O. This applies it by server-side
//! apply, waits until all of it is ready, and takes it away again.

mod manifest;

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use thiserror::Error;
use tollway_model::chain;

pub use self::manifest::{Choices, ManifestError, StoreKind, manifest};
use crate::Cluster;

/// The name under which the API server keeps what an install writes apart from what others write.
const WRITER: &str = "tollway-kube-install";
/// What defines kinds of objects: its removal removes every object of the kind.
const DEFINITION: &str = "CustomResourceDefinition";
/// From one look at what starts to the next.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Why an install, or its removal, does not succeed.
#[derive(Debug, Error)]
pub enum InstallError {
    #[error("{object} cannot be {verb}: {reason}{hint}")]
    Object { object: String, verb: &'static str, reason: String, hint: &'static str },
    #[error("after {within:?} this is not ready: {missing}; `tollway kube check` shows why")]
    NotReady { within: Duration, missing: String },
}

/// What became of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Applied,
    Removed,
    WasAbsent,
    /// It stays, with what depends on it.
    Kept,
}

impl Cluster {
    /// Applies the objects of [`manifest()`] in their order, the namespace first. `report` is called with each.
    ///
    /// # Errors
    /// [`InstallError`]: the API server refuses one; those before it stay.
    pub async fn install(
        &self,
        namespace: &str,
        objects: &[Value],
        mut report: impl FnMut(&str, Change),
    ) -> Result<(), InstallError> {
        let home = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {
                "pod-security.kubernetes.io/enforce": "restricted",
            }},
        });
        for object in std::iter::once(&home).chain(objects) {
            let (api, name, shown) = self.api_of(object);
            let parameters = PatchParams::apply(WRITER);
            let applied = api.patch(&name, &parameters, &Patch::Apply(object)).await;
            applied.map_err(|error| refused(&shown, "applied", &error))?;
            report(&shown, Change::Applied);
        }
        Ok(())
    }

    /// Waits until what is installed in a namespace is ready.
    ///
    /// # Errors
    /// [`InstallError::NotReady`] with what is missing.
    pub async fn wait_installed(
        &self,
        namespace: &str,
        within: Duration,
    ) -> Result<(), InstallError> {
        let ends = tokio::time::Instant::now() + within;
        loop {
            let missing = self.not_ready(namespace).await;
            match missing {
                Ok(missing) if missing.is_empty() => return Ok(()),
                Ok(missing) if tokio::time::Instant::now() >= ends => {
                    return Err(InstallError::NotReady { within, missing: missing.join(", ") });
                }
                Err(error) if tokio::time::Instant::now() >= ends => {
                    return Err(InstallError::NotReady { within, missing: chain(&error) });
                }
                Ok(_) | Err(_) => tokio::time::sleep(LOOKED_AGAIN_AFTER).await,
            }
        }
    }

    /// Workloads of an install that do not have all their pods ready, in the version applied last.
    async fn not_ready(&self, namespace: &str) -> Result<Vec<String>, kube::Error> {
        let ours = ListParams::default().labels("app.kubernetes.io/part-of=tollway");
        let mut missing = Vec::new();
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        for set in sets.list(&ours).await? {
            let (spec, status) = (set.spec.unwrap_or_default(), set.status.unwrap_or_default());
            let pods = [status.ready_replicas, status.updated_replicas];
            missing.extend(shortage(
                &set.metadata,
                status.observed_generation,
                spec.replicas,
                pods,
            ));
        }
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        for one in deployments.list(&ours).await? {
            let (spec, status) = (one.spec.unwrap_or_default(), one.status.unwrap_or_default());
            let pods = [status.ready_replicas, status.updated_replicas];
            missing.extend(shortage(
                &one.metadata,
                status.observed_generation,
                spec.replicas,
                pods,
            ));
        }
        Ok(missing)
    }

    /// Removes the objects, the last one first. With `purge` it removes the definitions of custom resources,
    /// the volumes of the store and the namespace too.
    ///
    /// # Errors
    /// [`InstallError`]: the API server refuses to delete one.
    pub async fn uninstall(
        &self,
        namespace: &str,
        objects: &[Value],
        purge: bool,
        mut report: impl FnMut(&str, Change),
    ) -> Result<(), InstallError> {
        for object in objects.iter().rev() {
            let (api, name, shown) = self.api_of(object);
            if !purge && object["kind"] == DEFINITION {
                report(&shown, Change::Kept);
                continue;
            }
            match api.delete(&name, &DeleteParams::foreground()).await {
                Ok(_) => report(&shown, Change::Removed),
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    report(&shown, Change::WasAbsent);
                }
                Err(error) => return Err(refused(&shown, "deleted", &error)),
            }
        }
        if !purge {
            return Ok(());
        }
        let ours = ListParams::default().labels("app.kubernetes.io/name=tollway");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let deleted = claims.delete_collection(&DeleteParams::default(), &ours).await;
        deleted.map_err(|error| refused("the volumes of the store", "deleted", &error))?;
        report("the volumes of the store", Change::Removed);
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let shown = format!("Namespace {namespace}");
        match namespaces.delete(namespace, &DeleteParams::default()).await {
            Ok(_) => report(&shown, Change::Removed),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                report(&shown, Change::WasAbsent)
            }
            Err(error) => return Err(refused(&shown, "deleted", &error)),
        }
        Ok(())
    }

    /// Where an object is at the API server, its name, and how it is called in messages.
    fn api_of(&self, object: &Value) -> (Api<DynamicObject>, String, String) {
        api_of(self.client.clone(), object)
    }
}

/// What a workload lacks: not all of its pods are ready and of its version, or its controller has not seen
/// the version applied last.
fn shortage(
    metadata: &ObjectMeta,
    seen: Option<i64>,
    wanted: Option<i32>,
    ready_and_updated: [Option<i32>; 2],
) -> Option<String> {
    let wanted = wanted.unwrap_or(1);
    let ready = ready_and_updated.map(|pods| pods.unwrap_or(0)).into_iter().min().unwrap_or(0);
    let name = metadata.name.as_deref().unwrap_or_default();
    let is_whole = seen == metadata.generation && ready >= wanted;
    (!is_whole).then(|| format!("{name} ({ready} of {wanted} pods)"))
}

fn api_of(client: Client, object: &Value) -> (Api<DynamicObject>, String, String) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (kind, name) = (text("/kind"), text("/metadata/name"));
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
    let api = match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    (api, name.to_owned(), format!("{kind} {name}"))
}

fn refused(object: &str, verb: &'static str, error: &kube::Error) -> InstallError {
    let (code, reason) = if let kube::Error::Api(status) = error {
        (status.code, status.message.clone())
    } else {
        (0, chain(error))
    };
    let hint = match code {
        409 => {
            "; it belongs to another install: change it by the means that made it, such as `helm upgrade`"
        }
        401 | 403 => "; use the access of an administrator of the cluster",
        _ => "",
    };
    InstallError::Object { object: object.to_owned(), verb, reason, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_whole_when_all_its_pods_are_of_its_version_and_ready() {
        let named = |generation| ObjectMeta {
            name: Some("gateway".to_owned()),
            generation: Some(generation),
            ..ObjectMeta::default()
        };
        let of = |seen, pods| shortage(&named(2), Some(seen), Some(2), pods);
        assert_eq!(of(2, [Some(2), Some(2)]), None);
        assert_eq!(of(1, [Some(2), Some(2)]).as_deref(), Some("gateway (2 of 2 pods)"));
        assert_eq!(of(2, [Some(2), Some(1)]).as_deref(), Some("gateway (1 of 2 pods)"));
        assert_eq!(of(2, [None, Some(2)]).as_deref(), Some("gateway (0 of 2 pods)"));
        let one = shortage(&named(1), Some(1), None, [Some(1), Some(1)]);
        assert_eq!(one, None, "a workload without a number wants one pod");
    }
}
