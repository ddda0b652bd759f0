//! Dapr's objects of a namespace, read when a pod with `dapr.io/enabled` is made, as daprd reads them when it
//! starts.

use std::time::Duration;

use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::Value;
use tollway_inject::DaprObjects;
use tollway_model::chain;

/// Time for all of them: the API server waits for the webhook 5 s.
const READ_WITHIN: Duration = Duration::from_secs(3);
/// Most objects of one kind in a namespace.
const OBJECTS_LIMIT: u32 = 1_000;
const GROUP: &str = "dapr.io";

/// Reads objects of Dapr.
pub(crate) struct DaprReader {
    client: Option<Client>,
}

impl DaprReader {
    /// Without a client nothing is known of them.
    pub(crate) fn of(client: Option<Client>) -> Self {
        Self { client }
    }

    /// Those of a namespace. Kinds that the cluster does not define have none.
    ///
    /// # Errors
    /// Why they cannot be read now, for the one who makes the pod.
    pub(crate) async fn objects(&self, namespace: &str) -> Result<Option<DaprObjects>, String> {
        let Some(client) = &self.client else { return Ok(None) };
        let of = |version, kind, plural| list(client, namespace, version, kind, plural);
        let read = async {
            tokio::try_join!(
                of("v1alpha1", "Configuration", "configurations"),
                of("v1alpha1", "Component", "components"),
                of("v1alpha1", "Resiliency", "resiliencies"),
                of("v1alpha1", "HTTPEndpoint", "httpendpoints"),
                of("v2alpha1", "Subscription", "subscriptions"),
            )
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
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: version.to_owned(),
        api_version: format!("{GROUP}/{version}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    match api.list(&ListParams::default().limit(OBJECTS_LIMIT)).await {
        Ok(listed) if listed.metadata.continue_.as_ref().is_some_and(|more| !more.is_empty()) => {
            Err(format!("there are more than {OBJECTS_LIMIT} {plural}"))
        }
        Ok(listed) => {
            let value = |mut object: DynamicObject| {
                object.metadata.managed_fields = None;
                // Items of a list have neither.
                let mut value = serde_json::to_value(object).map_err(|error| error.to_string())?;
                value["apiVersion"] = resource.api_version.clone().into();
                value["kind"] = kind.into();
                Ok(value)
            };
            listed.items.into_iter().map(value).collect()
        }
        // The cluster has no such kind.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(chain(&error)),
    }
}
