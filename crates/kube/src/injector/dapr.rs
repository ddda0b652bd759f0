//! Dapr's objects of a namespace, read when a pod with `dapr.io/enabled` is made, as daprd reads them when it
//! starts.

use std::time::Duration;

use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Semaphore;
use tollway_inject::DaprObjects;
use tollway_model::{Label, chain};

/// Time for all of them: the API server waits for the webhook 5 s.
const READ_WITHIN: Duration = Duration::from_secs(3);
/// Most objects of one kind in a namespace, and their bytes as JSON together: a pod carries far fewer.
const OBJECTS_LIMIT: usize = 1_000;
const OBJECTS_BYTES: usize = 2 << 20;
/// Objects in one answer to a list: each may have 1.5 MB.
const OBJECTS_PER_PAGE: u32 = 10;
/// Namespaces that are read at the same time.
const READS_LIMIT: usize = 2;
const GROUP: &str = "dapr.io";

/// Reads objects of Dapr.
pub(crate) struct DaprReader {
    client: Option<Client>,
    reads: Semaphore,
}

impl DaprReader {
    /// Without a client nothing is known of them.
    pub(crate) fn of(client: Option<Client>) -> Self {
        Self { client, reads: Semaphore::new(READS_LIMIT) }
    }

    /// Those of a namespace. Kinds that the cluster does not define have none.
    ///
    /// # Errors
    /// Why they cannot be read now, for the one who makes the pod.
    pub(crate) async fn objects(&self, namespace: &str) -> Result<Option<DaprObjects>, String> {
        let Some(client) = &self.client else { return Ok(None) };
        // It becomes a part of a path.
        Label::new(namespace).map_err(|error| format!("`{namespace}` is no namespace: {error}"))?;
        let of = |version, kind, plural| list(client, namespace, version, kind, plural);
        let read = async {
            let _permit = self.reads.acquire().await;
            // One after the other, so that little is held at once.
            let configurations = of("v1alpha1", "Configuration", "configurations").await?;
            let components = of("v1alpha1", "Component", "components").await?;
            let resiliencies = of("v1alpha1", "Resiliency", "resiliencies").await?;
            let endpoints = of("v1alpha1", "HTTPEndpoint", "httpendpoints").await?;
            // For a note alone.
            let subscriptions = of("v2alpha1", "Subscription", "subscriptions").await;
            let subscriptions = subscriptions.unwrap_or_default();
            Ok((configurations, components, resiliencies, endpoints, subscriptions))
        };
        let read = tokio::time::timeout(READ_WITHIN, read);
        let read = read.await.map_err(|_| "the API server does not answer in time".to_owned());
        let (configurations, components, resiliencies, endpoints, subscriptions) =
            read.and_then(|read| read).map_err(|why| {
                format!("Dapr's objects of namespace {namespace} cannot be read: {why}; try again")
            })?;
        let resources = [components, resiliencies, endpoints].concat();
        Ok(Some(DaprObjects { configurations, resources, subscriptions }))
    }
}

async fn list(
    client: &Client,
    namespace: &str,
    version: &str,
    kind: &str,
    plural: &str,
) -> Result<Vec<Value>, String> {
    let named = GroupVersionKind::gvk(GROUP, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&named, plural);
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let (mut objects, mut bytes) = (Vec::new(), 0);
    let mut page = ListParams::default().limit(OBJECTS_PER_PAGE);
    loop {
        let listed = match api.list(&page).await {
            Ok(listed) => listed,
            // The cluster has no such kind.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            Err(error) => return Err(chain(&error)),
        };
        for mut object in listed.items {
            object.metadata.managed_fields = None;
            // Items of a list have neither.
            let mut value = serde_json::to_value(object).map_err(|error| error.to_string())?;
            value["apiVersion"] = resource.api_version.clone().into();
            value["kind"] = kind.into();
            bytes += value.to_string().len();
            objects.push(value);
            if objects.len() > OBJECTS_LIMIT || bytes > OBJECTS_BYTES {
                return Err(format!(
                    "it has more than {OBJECTS_LIMIT} {plural}, or more than {OBJECTS_BYTES} bytes of them"
                ));
            }
        }
        match listed.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => page = page.continue_token(&more),
            None => return Ok(objects),
        }
    }
}
