//! The custom resources of a cluster: watched for the control plane, which reports their status. Those of the
//! Gateway API are in `gateway_api`.
//!
//! `conditions` makes the status of a report. A status that is there already is not written again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tollway_config::manifest::{GROUP, KindNames, VERSION, kind_names, read_resource};
use tollway_control::{
    Following, Reporting, Resource, ResourceEvent, ResourceKind, ResourceName, ResourceStatus,
    Resources, Verdict,
};
use tollway_model::{ObjectKind, chain};

use crate::conditions::{State, state};
use crate::events::{About, Events, Notes, Source};
use crate::follow::{Followed, Watch};
use crate::gateway_api::GatewayApi;
use crate::{Cluster, WRITER};

/// Longest specification that is read, as JSON, in bytes. An object of a quarter of it is too large.
pub(crate) const SPECIFICATION_BYTES: usize = 256 << 10;
/// Resources in one answer to a list: each may have 1.5 MB.
const RESOURCES_PER_PAGE: u32 = 20;
/// What its events are.
pub(crate) const EVENTS: Source = Source { component: "tollway-control", reason: "NotAccepted" };

/// Which resources of a cluster are followed.
#[derive(Clone, Copy, Debug)]
pub struct ResourceSources {
    /// Those of Tollway's own kinds.
    pub own: bool,
    /// HTTPRoutes and GRPCRoutes of the Gateway API with Services as parents.
    pub gateway_api: bool,
}

/// The custom resources of a cluster.
pub struct CustomResources {
    client: Client,
    sources: ResourceSources,
    gateway_api: GatewayApi,
    /// What the API server has last reported of each.
    seen: Mutex<HashMap<ResourceName, Seen>>,
    events: OnceLock<Events>,
}

struct Seen {
    uid: String,
    state: State,
}

impl std::fmt::Debug for CustomResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CustomResources").finish_non_exhaustive()
    }
}

impl CustomResources {
    /// Those of `cluster`.
    #[must_use]
    pub fn of(cluster: &Cluster, sources: ResourceSources) -> Self {
        let client = cluster.client.clone();
        let gateway_api = GatewayApi::new(client.clone());
        Self { client, sources, gateway_api, seen: Mutex::default(), events: OnceLock::new() }
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<ResourceName, Seen>> {
        // A panic in another holder of the lock leaves the map usable.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow_all(&self, events: mpsc::Sender<ResourceEvent>) {
        let (notes, writing) = Events::new(self.client.clone(), EVENTS);
        let routes = async {
            if self.sources.gateway_api {
                self.gateway_api.follow(events.clone(), notes.clone()).await;
            }
        };
        // It is followed once.
        let _ = self.events.set(notes.clone());
        let own = async {
            if self.sources.own {
                self.follow_own(events.clone()).await;
            }
        };
        tokio::select! {
            _ = async { tokio::join!(own, routes) } => {}
            () = writing => {}
        }
    }

    async fn follow_own(&self, events: mpsc::Sender<ResourceEvent>) {
        let [policies, routes, traffic_policies, failovers, egresses] =
            ObjectKind::ALL.map(|kind| Box::pin(self.follow_kind(kind, events.clone())));
        tokio::join!(policies, routes, traffic_policies, failovers, egresses);
    }

    /// Reports until the receiver is dropped.
    async fn follow_kind(&self, kind: ObjectKind, events: mpsc::Sender<ResourceEvent>) {
        let resources: Api<DynamicObject> = Api::all_with(self.client.clone(), &api_resource(kind));
        let what = format!("custom resources of the kind {}", kind_names(kind).kind);
        let followed = Followed {
            what: &what,
            meanwhile: "their changes have no effect",
            hint: "the cluster needs their definitions, and the control plane the rights to list and watch them",
        };
        let pages = Config::default().page_size(RESOURCES_PER_PAGE);
        let mut watch = Watch::new(resources, pages, followed);
        while let Some(event) = watch.next().await {
            if events.send(self.reported(kind, event)).await.is_err() {
                return;
            }
        }
    }

    fn reported(&self, kind: ObjectKind, event: Event<DynamicObject>) -> ResourceEvent {
        match event {
            Event::Init => ResourceEvent::ListBegins(ResourceKind::Own(kind)),
            Event::InitDone => ResourceEvent::ListEnds(ResourceKind::Own(kind)),
            Event::InitApply(object) => ResourceEvent::Listed(self.see(kind, &object)),
            Event::Apply(object) => ResourceEvent::Changed(self.see(kind, &object)),
            Event::Delete(object) => {
                let name = resource_name(kind, &object);
                self.seen().remove(&name);
                ResourceEvent::Deleted(name)
            }
        }
    }

    fn see(&self, kind: ObjectKind, object: &DynamicObject) -> Resource {
        let resource = resource(kind, object);
        let state = object.data.get("status").cloned().unwrap_or_default();
        let seen = Seen {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            // What another version wrote is written again.
            state: serde_json::from_value(state).unwrap_or_default(),
        };
        self.seen().insert(resource.name.clone(), seen);
        resource
    }

    async fn write(&self, kind: ObjectKind, status: &ResourceStatus) -> Result<(), kube::Error> {
        let Some((uid, before)) =
            self.seen().get(&status.name).map(|seen| (seen.uid.clone(), seen.state.clone()))
        else {
            // It has been deleted.
            return Ok(());
        };
        let now = Timestamp::now();
        let state = state(&before, status, now);
        if state == before {
            return Ok(());
        }
        let ResourceName { namespace, name, .. } = &status.name;
        let resource = api_resource(kind);
        if let Verdict::Refused { why, .. } = &status.verdict {
            let about = About {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                uid,
            };
            if let Some(events) = self.events.get() {
                events.add(Notes { about, texts: vec![why.clone()] });
            }
        }
        let patch = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": { "name": name, "namespace": namespace },
            "status": state,
        });
        let resources: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let parameters = PatchParams::apply(WRITER).force();
        match resources.patch_status(name, &parameters, &Patch::Apply(&patch)).await {
            Ok(_) => {
                if let Some(seen) = self.seen().get_mut(&status.name) {
                    seen.state = state;
                }
                Ok(())
            }
            // It has been deleted meanwhile.
            Err(kube::Error::Api(error)) if error.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Resources for CustomResources {
    fn follow(&self, events: mpsc::Sender<ResourceEvent>) -> Following<'_> {
        Box::pin(self.follow_all(events))
    }

    fn report<'a>(&'a self, status: &'a ResourceStatus) -> Reporting<'a> {
        Box::pin(async move {
            match status.name.kind {
                ResourceKind::Own(kind) => {
                    self.write(kind, status).await.map_err(|error| chain(&error))
                }
                ResourceKind::HttpRoute | ResourceKind::GrpcRoute => {
                    self.gateway_api.note_verdict(status);
                    Ok(())
                }
            }
        })
    }
}

pub(crate) fn api_resource(kind: ObjectKind) -> ApiResource {
    let KindNames { kind, plural } = kind_names(kind);
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
}

pub(crate) fn resource_name(kind: ObjectKind, object: &DynamicObject) -> ResourceName {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, name) = (text(&object.metadata.namespace), text(&object.metadata.name));
    ResourceName { kind: ResourceKind::Own(kind), namespace, name }
}

/// When an object was created, in milliseconds since 1970; 0 where that is not stated.
pub(crate) fn created_unix_ms(of: &ObjectMeta) -> u64 {
    let created = of.creation_timestamp.as_ref();
    created.and_then(|time| u64::try_from(time.0.as_millisecond()).ok()).unwrap_or_default()
}

/// The bytes of a specification as JSON; an error if they are more than are read.
pub(crate) fn check_size(spec: &Value) -> (usize, Result<(), String>) {
    let bytes = spec.to_string().len();
    let is_read = bytes <= SPECIFICATION_BYTES;
    let why =
        || format!("the specification has {bytes} bytes; at most {SPECIFICATION_BYTES} are read");
    (bytes, is_read.then_some(()).ok_or_else(why))
}

fn resource(kind: ObjectKind, object: &DynamicObject) -> Resource {
    let name = resource_name(kind, object);
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let (bytes, size) = check_size(&spec);
    let read = size.and_then(|()| {
        let read = read_resource(kind, &name.namespace, &name.name, &spec);
        read.map_err(|error| error.to_string())
    });
    Resource {
        generation: object.metadata.generation.unwrap_or_default(),
        created_unix_ms: created_unix_ms(&object.metadata),
        bytes,
        object: read,
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_read_with_its_generation_and_age() {
        let of = |spec| {
            let object = json!({
                "apiVersion": "tollway.dev/v1", "kind": "Policy",
                "metadata": {
                    "name": "readers", "namespace": "shop", "generation": 3,
                    "creationTimestamp": "2026-01-02T03:04:05Z",
                },
                "spec": spec,
            });
            resource(ObjectKind::Policy, &serde_json::from_value(object).unwrap())
        };
        let read = of(json!({"target": {"app": "stock"}, "allow": []}));
        assert_eq!(read.name.to_string(), "policy shop/readers");
        assert_eq!((read.generation, read.created_unix_ms), (3, 1_767_323_045_000));
        assert_eq!(read.object.unwrap().id().to_string(), "policy shop/readers");
        let refused = of(json!({"target": {"app": "stock"}, "mode": "loud"})).object.unwrap_err();
        assert!(refused.contains("loud"), "{refused}");
    }
}
