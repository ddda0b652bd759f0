//! Routes of the Gateway API whose parents are Services: watched for the control plane, for which they are
//! resources that become routes of the mesh, and their status written.
//!
//! `spec` reads them, `attached` decides what they become, and `status` what is reported. Where the API is not
//! installed, nothing but its definitions is watched.

mod attached;
mod spec;
mod status;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Notify, mpsc, watch};
use tollway_control::{ResourceEvent, ResourceKind, ResourceStatus};
use tollway_model::chain;
use tracing::warn;

use self::attached::{Attached, Due, RouteId};
use self::spec::RouteKind;
use crate::events::{About, Events, Notes};
use crate::follow::{Followed, Seen, Watch, follow};

const GROUP: &str = "gateway.networking.k8s.io";
/// From a status that was not written to the next try.
const WRITTEN_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Objects in one answer to a list.
const OBJECTS_PER_PAGE: u32 = 50;

/// The routes of a cluster.
pub(crate) struct GatewayApi {
    client: Client,
    attached: Mutex<Attached>,
    /// A status may have to be written.
    due: Notify,
}

impl GatewayApi {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, attached: Mutex::default(), due: Notify::new() }
    }

    fn attached(&self) -> MutexGuard<'_, Attached> {
        // A panic in another holder of the lock leaves what is known usable.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the control plane says of a resource.
    pub(crate) fn note_verdict(&self, of: &ResourceStatus) {
        self.attached().note_verdict(of);
        self.due.notify_one();
    }

    /// Reports until the receiver is dropped.
    pub(crate) async fn follow(&self, events: mpsc::Sender<ResourceEvent>, notes: Events) {
        tokio::select! {
            () = self.follow_definitions(&events) => {}
            () = self.write_statuses(&notes) => {}
        }
    }

    async fn follow_definitions(&self, events: &mpsc::Sender<ResourceEvent>) {
        let seen = [(); 2].map(|()| watch::Sender::new(Seen::Unknown));
        let [http, grpc] = &seen;
        let kinds = Kinds {
            http: WhenDefined::new(
                Api::all_with(self.client.clone(), &api_resource(RouteKind::Http)),
                http.subscribe(),
            ),
            grpc: WhenDefined::new(
                Api::all_with(self.client.clone(), &api_resource(RouteKind::Grpc)),
                grpc.subscribe(),
            ),
        };
        let definition = async |kind: RouteKind, seen| {
            let definitions: Api<Definition> = Api::all(self.client.clone());
            follow(definitions, &format!("{}.{GROUP}", kind.plural()), seen).await;
        };
        tokio::select! {
            () = self.follow_kinds(kinds, events) => {}
            () = definition(RouteKind::Http, http) => {}
            () = definition(RouteKind::Grpc, grpc) => {}
        }
    }

    /// The Services are watched once there may be a route.
    async fn follow_kinds(&self, mut kinds: Kinds, events: &mpsc::Sender<ResourceEvent>) {
        kinds.http.known().await;
        kinds.grpc.known().await;
        if !kinds.http.is_defined() && !kinds.grpc.is_defined() {
            // What is left of routes goes.
            for kind in [ResourceKind::HttpRoute, ResourceKind::GrpcRoute] {
                for event in [ResourceEvent::ListBegins(kind), ResourceEvent::ListEnds(kind)] {
                    if events.send(event).await.is_err() {
                        return;
                    }
                }
            }
            tokio::select! {
                () = kinds.http.defined() => {}
                () = kinds.grpc.defined() => {}
            }
        }
        let services: Api<Service> = Api::all(self.client.clone());
        let followed = Followed {
            what: "services of the cluster, for routes of the Gateway API",
            meanwhile: "routes are for the ports that were known last",
            hint: "it needs the rights to list and watch services of the cluster",
        };
        let mut services = Watch::new(services, Config::default(), followed);
        loop {
            let changed = tokio::select! {
                Some(event) = services.next() => self.attached().note_service(event),
                event = kinds.http.next() => self.attached().note_route(RouteKind::Http, event),
                event = kinds.grpc.next() => self.attached().note_route(RouteKind::Grpc, event),
            };
            self.due.notify_one();
            for event in changed {
                if events.send(event).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Writes one status after the other. One that was changed meanwhile is written once that is seen.
    async fn write_statuses(&self, notes: &Events) {
        let mut is_away = false;
        loop {
            let next = self.attached().next_due(Timestamp::now());
            let Some((id, due)) = next else {
                self.due.notified().await;
                continue;
            };
            if !due.complaints.is_empty() {
                let about = About {
                    api_version: format!("{GROUP}/v1"),
                    kind: id.kind.word().to_owned(),
                    namespace: id.namespace.clone(),
                    name: id.name.clone(),
                    uid: due.uid.clone(),
                };
                notes.add(Notes { about, texts: due.complaints.clone() });
            }
            match self.write(&id, &due).await {
                Ok(()) => is_away = false,
                // It has been deleted, or its change is about to be reported.
                Err(kube::Error::Api(error)) if matches!(error.code, 404 | 409) => {}
                Err(error) => {
                    if !std::mem::replace(&mut is_away, true) {
                        let error = chain(&error);
                        warn!(route = %format!("{} {}/{}", id.kind.word(), id.namespace, id.name), error, "the status of routes of the Gateway API cannot be written; they are in effect all the same, and it is tried again");
                    }
                    self.attached().put_back(id);
                    tokio::time::sleep(WRITTEN_AGAIN_AFTER).await;
                }
            }
        }
    }

    async fn write(&self, id: &RouteId, due: &Due) -> Result<(), kube::Error> {
        let resource = api_resource(id.kind);
        let routes: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &id.namespace, &resource);
        // The list is one value, in which others report, too.
        let patch = json!({
            "metadata": { "resourceVersion": due.version, "uid": due.uid },
            "status": { "parents": due.parents },
        });
        let parameters = PatchParams::default();
        routes.patch_status(&id.name, &parameters, &Patch::Merge(&patch)).await.map(drop)
    }
}

fn api_resource(kind: RouteKind) -> ApiResource {
    let names = GroupVersionKind::gvk(GROUP, "v1", kind.word());
    ApiResource::from_gvk_with_plural(&names, kind.plural())
}

/// The definition of a kind, of which only matters that it is there.
type Definition = PartialObjectMeta<CustomResourceDefinition>;

struct Kinds {
    http: WhenDefined,
    grpc: WhenDefined,
}

/// A watch of a kind that the cluster may not have. Without it there are no objects.
struct WhenDefined {
    api: Api<DynamicObject>,
    seen: watch::Receiver<Seen<Definition>>,
    watch: Option<Watch<'static, DynamicObject>>,
    /// What is said next.
    next: VecDeque<Event<DynamicObject>>,
}

impl WhenDefined {
    fn new(api: Api<DynamicObject>, seen: watch::Receiver<Seen<Definition>>) -> Self {
        Self { api, seen, watch: None, next: VecDeque::new() }
    }

    fn is_defined(&self) -> bool {
        self.seen.borrow().there().is_some()
    }

    /// Waits until it is known whether the cluster has the kind.
    async fn known(&mut self) {
        // It does not end while the definitions are followed.
        let _ = self.seen.wait_for(Seen::is_known).await;
        self.seen.mark_changed();
    }

    async fn defined(&mut self) {
        let _ = self.seen.wait_for(|seen| seen.there().is_some()).await;
        self.seen.mark_changed();
    }

    /// What is reported next; it may be dropped while it waits.
    async fn next(&mut self) -> Event<DynamicObject> {
        loop {
            if let Some(event) = self.next.pop_front() {
                return event;
            }
            tokio::select! {
                changed = self.seen.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    let (is_defined, is_known) = {
                        let seen = self.seen.borrow_and_update();
                        (seen.there().is_some(), seen.is_known())
                    };
                    if is_defined && self.watch.is_none() {
                        let followed = Followed {
                            what: "objects of the Gateway API",
                            meanwhile: "their changes have no effect",
                            hint: "the control plane needs the rights to list and watch them",
                        };
                        let pages = Config::default().page_size(OBJECTS_PER_PAGE);
                        self.watch = Some(Watch::new(self.api.clone(), pages, followed));
                    } else if is_known && !is_defined {
                        self.watch = None;
                        self.next.extend([Event::Init, Event::InitDone]);
                    }
                }
                Some(event) = next_of(&mut self.watch) => return event,
            }
        }
    }
}

/// The next event of a watch; without one there is none.
async fn next_of(
    watch: &mut Option<Watch<'static, DynamicObject>>,
) -> Option<Event<DynamicObject>> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}
