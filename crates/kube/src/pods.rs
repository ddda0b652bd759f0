//! Which pods of a cluster have a sidecar, and of which version.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use tollway_inject::{APP, INJECTED};

use crate::Cluster;

/// Pods in one answer of the API server.
const PAGE: u32 = 500;

/// Pods of one app that have sidecars of one version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InjectedApp {
    pub namespace: String,
    pub app: String,
    /// The version of the injector that added them.
    pub version: String,
    pub pods: usize,
}

impl Cluster {
    /// Apps with sidecars, in the order of namespaces and names; of one namespace or of all. Pods are read
    /// in pages, without their contents.
    ///
    /// # Errors
    /// The API server gives no answer.
    pub async fn injected_apps(
        &self,
        namespace: Option<&str>,
    ) -> Result<Vec<InjectedApp>, kube::Error> {
        let pods: Api<Pod> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let mut counts = BTreeMap::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let listed = pods.list_metadata(&page).await?;
            listed.items.iter().for_each(|pod| count(pod, &mut counts));
            match listed.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        let app = |((namespace, app, version), pods)| InjectedApp { namespace, app, version, pods };
        Ok(counts.into_iter().map(app).collect())
    }
}

fn count(pod: &PartialObjectMeta<Pod>, counts: &mut BTreeMap<(String, String, String), usize>) {
    let annotation = |name: &str| pod.metadata.annotations.as_ref()?.get(name).cloned();
    let Some(version) = annotation(INJECTED) else { return };
    let name = || pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let app = annotation(APP).unwrap_or_else(name);
    *counts.entry((namespace, app, version)).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pods_are_counted_by_app_and_version_and_others_are_left_out() {
        let pod = |name: &str, annotations: Value| {
            let metadata = json!({"name": name, "namespace": "shop", "annotations": annotations});
            serde_json::from_value::<PartialObjectMeta<Pod>>(json!({"metadata": metadata})).unwrap()
        };
        let mut counts = BTreeMap::new();
        for pod in [
            pod("a-1", json!({INJECTED: "0.1.0", APP: "a"})),
            pod("a-2", json!({INJECTED: "0.1.0", APP: "a"})),
            pod("a-3", json!({INJECTED: "0.2.0", APP: "a"})),
            pod("plain", json!({APP: "a"})),
            pod("lone", json!({INJECTED: "0.1.0"})),
        ] {
            count(&pod, &mut counts);
        }
        let key = |app: &str, version: &str| ("shop".into(), app.into(), version.into());
        let expected = [(key("a", "0.1.0"), 2), (key("a", "0.2.0"), 1), (key("lone", "0.1.0"), 1)];
        assert_eq!(counts, BTreeMap::from(expected));
    }
}
