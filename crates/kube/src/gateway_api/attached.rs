//! What the routes of the Gateway API become: routes of the mesh for the ports of the Services that they are
//! attached to, and what is reported of each. No I/O.
//!
//! A route of the mesh is a resource of the control plane, which judges it: its verdict becomes a condition of
//! the parent. A route that states no port is for every port of its Service, so the Services' ports are known
//! here; its backends are looked up among them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aws_lc_rs::digest;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use serde_json::Value;
use tollway_control::{
    Resource, ResourceEvent, ResourceKind, ResourceName, ResourceStatus, Verdict,
};
use tollway_model::route::{Backend, HeaderEdits, Mirror, Route, RouteAction, RouteRule};
use tollway_model::{Label, Object, ObjectName, ServiceName, ServiceRef};

use super::spec::{self, ParentRef, RouteKind, Rule, Target, WeighedTarget};
use super::status::{self, ParentState, Refusal};
use crate::listing::{Listing, Name, name};
use crate::resources::{check_size, created_unix_ms};
use crate::services::tcp_ports;

/// Bytes of the specifications of the routes of one namespace, as JSON, that are held.
const ROUTE_BYTES_PER_NAMESPACE: usize = 4 << 20;
/// Ports of Services to which one route is attached.
const PORTS_PER_ROUTE_LIMIT: usize = 64;
/// In the place of a backend that is none: no Service has such a name, so the share of the requests that it
/// would take is answered with 500.
const NO_BACKEND: &str = "no_backend:1";

/// Names a route of the cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct RouteId {
    pub(super) kind: RouteKind,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl RouteId {
    fn of(kind: RouteKind, (namespace, name): &Name) -> Self {
        Self { kind, namespace: namespace.clone(), name: name.clone() }
    }

    fn name(&self) -> Name {
        (self.namespace.clone(), self.name.clone())
    }
}

/// A port of a Service, for TCP.
#[derive(PartialEq, Debug)]
struct FrontPort {
    name: String,
    number: u16,
}

/// A route as the cluster has it.
#[derive(PartialEq, Debug)]
struct Stated {
    uid: String,
    /// Of the whole object, for a write that takes no other's place.
    version: String,
    generation: i64,
    created_unix_ms: u64,
    /// Of the specification, as JSON.
    bytes: usize,
    /// Those that are Services, each with how it is written.
    parents: Vec<(ParentRef, Value)>,
    rules: Result<Vec<Rule>, String>,
    /// The part `parents` of its status.
    reported: Vec<Value>,
}

/// What follows from a route.
#[derive(Debug, Default)]
struct Outcome {
    /// By their names.
    resources: BTreeMap<String, Derived>,
    parents: Vec<Attachment>,
    /// Of its references, the first that leads nowhere.
    unresolved: Option<Refusal>,
}

/// A resource that is derived from a route, and what the control plane has made of it.
#[derive(Debug)]
struct Derived {
    resource: Resource,
    verdict: Option<Verdict>,
}

/// What follows for a parent of a route.
#[derive(Debug)]
enum Attachment {
    /// It has these resources.
    To(Vec<String>),
    No(Refusal),
}

/// A status that is to be written.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) uid: String,
    /// Of the object that it belongs to.
    pub(super) version: String,
    /// The whole part `parents`.
    pub(super) parents: Vec<Value>,
    /// Why the route is not accepted, or not whole.
    pub(super) complaints: Vec<String>,
}

/// What is known of the cluster, and what follows from it.
#[derive(Debug, Default)]
pub(super) struct Attached {
    services: Listing<Vec<FrontPort>>,
    routes: Routes,
    /// By Service the routes that name it.
    named_by: BTreeMap<Name, BTreeSet<RouteId>>,
    /// By namespace the bytes of specifications that are held.
    held: BTreeMap<String, usize>,
    outcomes: BTreeMap<RouteId, Outcome>,
    /// By namespace and name of a resource the route that it is of.
    owners: BTreeMap<Name, RouteId>,
    /// Routes whose status may have to be written.
    due: BTreeSet<RouteId>,
    is_reported: bool,
}

/// The routes of both kinds.
#[derive(Debug, Default)]
struct Routes {
    http: Listing<Stated>,
    grpc: Listing<Stated>,
}

impl Routes {
    fn of(&self, kind: RouteKind) -> &Listing<Stated> {
        match kind {
            RouteKind::Http => &self.http,
            RouteKind::Grpc => &self.grpc,
        }
    }

    fn of_mut(&mut self, kind: RouteKind) -> &mut Listing<Stated> {
        match kind {
            RouteKind::Http => &mut self.http,
            RouteKind::Grpc => &mut self.grpc,
        }
    }

    fn get(&self, id: &RouteId) -> Option<&Stated> {
        self.of(id.kind).by_name.get(&id.name())
    }

    fn ids(&self) -> impl Iterator<Item = RouteId> {
        let of = |kind| self.of(kind).by_name.keys().map(move |name| RouteId::of(kind, name));
        of(RouteKind::Http).chain(of(RouteKind::Grpc))
    }

    fn are_complete(&self) -> bool {
        self.http.is_complete && self.grpc.is_complete
    }
}

impl Attached {
    pub(super) fn note_service(&mut self, event: Event<Service>) -> Vec<ResourceEvent> {
        let changed = self.services.note(event, |of| name(&of.metadata), ports);
        let routes = changed.iter().filter_map(|(name, _)| self.named_by.get(name));
        let routes = routes.flatten().cloned().collect();
        self.report(routes)
    }

    pub(super) fn note_route(
        &mut self,
        kind: RouteKind,
        event: Event<DynamicObject>,
    ) -> Vec<ResourceEvent> {
        let read = |of: &DynamicObject| Some(Stated::read(kind, of));
        let changed = self.routes.of_mut(kind).note(event, |of| name(&of.metadata), read);
        let mut concerned = BTreeSet::new();
        for (name, before) in changed {
            let id = RouteId::of(kind, &name);
            if let Some(before) = &before {
                self.forget_names(&id, before);
            }
            self.hold(&id, before.as_ref());
            if let Some(stated) = self.routes.get(&id) {
                for service in stated.services(&id.namespace) {
                    self.named_by.entry(service).or_default().insert(id.clone());
                }
            }
            concerned.insert(id);
        }
        self.report(concerned)
    }

    fn forget_names(&mut self, id: &RouteId, before: &Stated) {
        for service in before.services(&id.namespace) {
            if let Some(routes) = self.named_by.get_mut(&service) {
                routes.remove(id);
                if routes.is_empty() {
                    self.named_by.remove(&service);
                }
            }
        }
    }

    /// Counts a specification with those of its namespace, in place of what the route had. One for which there
    /// is no space is not held.
    fn hold(&mut self, id: &RouteId, before: Option<&Stated>) {
        let share = self.held.entry(id.namespace.clone()).or_default();
        *share -= before.map_or(0, Stated::held);
        if let Some(stated) = self.routes.of_mut(id.kind).by_name.get_mut(&id.name()) {
            if *share + stated.held() > ROUTE_BYTES_PER_NAMESPACE {
                stated.rules = Err(format!(
                    "the routes of a namespace have {ROUTE_BYTES_PER_NAMESPACE} bytes together; delete some, and then change this one in any way"
                ));
            }
            *share += stated.held();
        }
        if *share == 0 {
            self.held.remove(&id.namespace);
        }
    }

    /// What has become of these routes; of all of them once all is known.
    fn report(&mut self, mut concerned: BTreeSet<RouteId>) -> Vec<ResourceEvent> {
        if !self.services.is_complete || !self.routes.are_complete() {
            return Vec::new();
        }
        let mut events = Vec::new();
        let is_first = !std::mem::replace(&mut self.is_reported, true);
        let kinds = [ResourceKind::HttpRoute, ResourceKind::GrpcRoute];
        if is_first {
            events.extend(kinds.map(ResourceEvent::ListBegins));
            concerned = self.routes.ids().collect();
        }
        for id in concerned {
            let changed = self.judge(&id);
            if is_first {
                let listed = |event| match event {
                    ResourceEvent::Changed(resource) => ResourceEvent::Listed(resource),
                    other @ (ResourceEvent::ListBegins(_)
                    | ResourceEvent::ListEnds(_)
                    | ResourceEvent::Listed(_)
                    | ResourceEvent::Deleted(_)) => other,
                };
                events.extend(changed.into_iter().map(listed));
            } else {
                events.extend(changed);
            }
        }
        if is_first {
            events.extend(kinds.map(ResourceEvent::ListEnds));
        }
        events
    }

    /// Derives the resources of a route again, and returns those that differ.
    fn judge(&mut self, id: &RouteId) -> Vec<ResourceEvent> {
        let before = self.outcomes.remove(id).unwrap_or_default();
        let mut now = match self.routes.get(id) {
            Some(stated) => self.outcome(id, stated),
            None => Outcome::default(),
        };
        let mut events = Vec::new();
        for (name, derived) in before.resources {
            match now.resources.get_mut(&name) {
                Some(same) if same.resource == derived.resource => same.verdict = derived.verdict,
                Some(_) => {}
                None => {
                    self.owners.remove(&(id.namespace.clone(), name));
                    events.push(ResourceEvent::Deleted(derived.resource.name));
                }
            }
        }
        for (name, derived) in &now.resources {
            self.owners.insert((id.namespace.clone(), name.clone()), id.clone());
            if derived.verdict.is_none() {
                events.push(ResourceEvent::Changed(derived.resource.clone()));
            }
        }
        if self.routes.get(id).is_some() {
            self.outcomes.insert(id.clone(), now);
            self.due.insert(id.clone());
        } else {
            self.due.remove(id);
        }
        events
    }

    fn outcome(&self, id: &RouteId, stated: &Stated) -> Outcome {
        let mut outcome = Outcome::default();
        let rules = match &stated.rules {
            Ok(rules) => {
                let all = rules.iter().map(|rule| self.rule(id, rule, &mut outcome.unresolved));
                Ok(all.collect::<Vec<RouteRule>>())
            }
            Err(why) => Err(why.clone()),
        };
        for (parent, _) in &stated.parents {
            let attachment = match self.ports_of(id, parent) {
                Ok(ports) => {
                    let service = parent_name(parent, &id.namespace);
                    let names = ports.into_iter().map(|port| {
                        let resource = resource(id, stated, &service, port, rules.clone());
                        let name = resource.name.name.clone();
                        let derived = Derived { resource, verdict: None };
                        outcome.resources.entry(name.clone()).or_insert(derived);
                        name
                    });
                    Attachment::To(names.collect())
                }
                Err(refusal) => Attachment::No(refusal),
            };
            outcome.parents.push(attachment);
        }
        if outcome.resources.len() > PORTS_PER_ROUTE_LIMIT {
            let refusal = Refusal {
                reason: "UnsupportedValue",
                why: format!(
                    "the route is attached to {} ports of Services; at most {PORTS_PER_ROUTE_LIMIT} are accepted",
                    outcome.resources.len()
                ),
            };
            outcome.resources.clear();
            let refused = |of: &mut Attachment| *of = Attachment::No(refusal.clone());
            outcome.parents.iter_mut().for_each(refused);
        }
        outcome
    }

    /// The ports of a Service that a parent names.
    fn ports_of(&self, id: &RouteId, parent: &ParentRef) -> Result<Vec<u16>, Refusal> {
        let no_match = |why: String| Refusal { reason: "NoMatchingParent", why };
        let (namespace, name) = parent_name(parent, &id.namespace);
        let Some(ports) = self.services.by_name.get(&(namespace.clone(), name.clone())) else {
            return Err(no_match(format!("there is no Service {namespace}/{name}")));
        };
        let is_meant = |of: &&FrontPort| {
            parent.port.is_none_or(|port| port == of.number)
                && parent.section_name.as_ref().is_none_or(|name| *name == of.name)
        };
        let found: Vec<u16> = ports.iter().filter(is_meant).map(|of| of.number).collect();
        if found.is_empty() {
            let why = format!("the Service {namespace}/{name} has no such port for TCP");
            return Err(no_match(why));
        }
        Ok(found)
    }

    /// A rule with its backends and mirrors. One that leads nowhere is noted.
    fn rule(&self, id: &RouteId, of: &Rule, unresolved: &mut Option<Refusal>) -> RouteRule {
        let mut rule = of.rule.clone();
        if matches!(rule.action, RouteAction::Redirect(_)) {
            return rule;
        }
        let none = || ServiceRef::parse(NO_BACKEND).expect("it is a port of a Service");
        let backend = |of: &WeighedTarget, unresolved: &mut Option<Refusal>| {
            let service = self.look_up(id, &of.target).unwrap_or_else(|refusal| {
                let is_named = refusal.reason == status::BACKEND_NOT_FOUND;
                unresolved.get_or_insert(refusal);
                // It may come, and is the same then.
                service_of(&of.target).filter(|_| is_named).unwrap_or_else(none)
            });
            Backend {
                service,
                weight: of.weight,
                request: of.request.clone(),
                response: of.response.clone(),
            }
        };
        let mut backends: Vec<_> = of.backends.iter().map(|of| backend(of, unresolved)).collect();
        if backends.is_empty() {
            let (request, response) = (HeaderEdits::default(), HeaderEdits::default());
            backends.push(Backend { service: none(), weight: 1, request, response });
        }
        rule.action = RouteAction::Forward(backends);
        for (target, share) in &of.mirrors {
            match self.look_up(id, target) {
                Ok(service) => rule.mirrors.push(Mirror { service, share: *share }),
                Err(refusal) => {
                    unresolved.get_or_insert(refusal);
                }
            }
        }
        rule
    }

    /// The port of a Service that a route sends requests to. It may be of any namespace, as the API has it for
    /// meshes (GEP-1294): policies there decide who calls it, by the identity of the caller.
    fn look_up(&self, id: &RouteId, target: &Target) -> Result<ServiceRef, Refusal> {
        let refused = |reason, why| Err(Refusal { reason, why });
        let Target { group, kind, name, .. } = target;
        if !group.is_empty() || kind != "Service" {
            let why = format!("`{kind}` of the group `{group}` is no backend; Services are");
            return refused(status::INVALID_KIND, why);
        }
        let namespace = target.namespace.as_ref().unwrap_or(&id.namespace);
        let ports = self.services.by_name.get(&(namespace.clone(), name.clone()));
        let Some((ports, port)) = ports.zip(target.port) else {
            let why = if target.port.is_none() {
                format!("the backend {name} has no port")
            } else {
                format!("there is no Service {namespace}/{name}")
            };
            return refused(status::BACKEND_NOT_FOUND, why);
        };
        match service_of(target).filter(|_| ports.iter().any(|of| of.number == port)) {
            Some(service) => Ok(service),
            None => {
                let why = format!("the Service {namespace}/{name} has no port {port} for TCP");
                refused(status::BACKEND_NOT_FOUND, why)
            }
        }
    }

    /// Takes what the control plane says of a resource.
    pub(super) fn note_verdict(&mut self, of: &ResourceStatus) {
        let ResourceName { namespace, name, .. } = &of.name;
        let Some(id) = self.owners.get(&(namespace.clone(), name.clone())).cloned() else {
            return;
        };
        let derived =
            self.outcomes.get_mut(&id).and_then(|outcome| outcome.resources.get_mut(name));
        if let Some(derived) =
            derived.filter(|derived| derived.resource.generation == of.generation)
        {
            derived.verdict = Some(of.verdict.clone());
            self.due.insert(id);
        }
    }

    /// The next route whose status is to be written.
    pub(super) fn next_due(&mut self, now: Timestamp) -> Option<(RouteId, Due)> {
        while let Some(id) = self.due.pop_first() {
            if let Some(due) = self.due_of(&id, now) {
                return Some((id, due));
            }
        }
        None
    }

    /// The status of a route was not written: it is due again.
    pub(super) fn put_back(&mut self, id: RouteId) {
        if self.outcomes.contains_key(&id) {
            self.due.insert(id);
        }
    }

    /// `None` if it is as it has to be, or not known yet.
    fn due_of(&self, id: &RouteId, now: Timestamp) -> Option<Due> {
        let (stated, outcome) = (self.routes.get(id)?, self.outcomes.get(id)?);
        let mut complaints = Vec::new();
        let mut states = Vec::new();
        for ((_, written), attachment) in stated.parents.iter().zip(&outcome.parents) {
            let verdict = match attachment {
                Attachment::No(refusal) => Err(refusal.clone()),
                Attachment::To(names) => {
                    let verdicts = names.iter().map(|name| outcome.resources.get(name));
                    let verdicts = verdicts.map(|derived| derived?.verdict.as_ref());
                    Ok(together(verdicts.collect::<Option<Vec<_>>>()?)?)
                }
            };
            if let Err(Refusal { why, .. }) | Ok(Verdict::Refused { why, .. }) = &verdict
                && !complaints.contains(why)
            {
                complaints.push(why.clone());
            }
            states.push(ParentState { written, verdict, unresolved: outcome.unresolved.as_ref() });
        }
        complaints.extend(outcome.unresolved.as_ref().map(|refusal| refusal.why.clone()));
        let parents = status::parents(&stated.reported, stated.generation, &states, now);
        (parents != stated.reported).then(|| Due {
            uid: stated.uid.clone(),
            version: stated.version.clone(),
            parents,
            complaints,
        })
    }
}

/// The verdict about several resources: one that is refused decides. `None` without any.
fn together(verdicts: Vec<&Verdict>) -> Option<Verdict> {
    verdicts.into_iter().cloned().reduce(|one, other| match (one, other) {
        (refused @ Verdict::Refused { .. }, _) | (_, refused @ Verdict::Refused { .. }) => refused,
        (
            Verdict::Accepted { revision, sidecars, lagging },
            Verdict::Accepted {
                revision: other_revision,
                sidecars: other_sidecars,
                lagging: other_lagging,
            },
        ) => {
            let lagging = lagging.zip(other_lagging).map(|(mut all, others)| {
                let new = others.into_iter().filter(|name| !all.contains(name));
                let new: Vec<_> = new.collect();
                all.extend(new);
                all
            });
            let (revision, sidecars) = (revision.max(other_revision), sidecars.max(other_sidecars));
            Verdict::Accepted { revision, sidecars, lagging }
        }
    })
}

fn parent_name(parent: &ParentRef, namespace: &str) -> Name {
    (parent.namespace.as_deref().unwrap_or(namespace).to_owned(), parent.name.clone())
}

/// The Service and port that a target names; `None` for names that none has.
fn service_of(target: &Target) -> Option<ServiceRef> {
    let namespace = target.namespace.as_deref().map(Label::new).transpose().ok()?;
    let app = ServiceName::read_called(&format!("{}:{}", target.name, target.port?)).ok()?;
    Some(ServiceRef { app, namespace, network: None })
}

/// What a route says of one port of a Service.
fn resource(
    id: &RouteId,
    stated: &Stated,
    service: &Name,
    port: u16,
    rules: Result<Vec<RouteRule>, String>,
) -> Resource {
    let kind = match id.kind {
        RouteKind::Http => ResourceKind::HttpRoute,
        RouteKind::Grpc => ResourceKind::GrpcRoute,
    };
    let name = resource_name(kind, id, service, port);
    let route = |rules| {
        let object = ObjectName::new(&id.namespace, &name).map_err(|error| error.to_string())?;
        let app = ServiceName::read_called(&format!("{}:{port}", service.1));
        let app = app.map_err(|error| error.to_string())?;
        let namespace = Label::new(&service.0).map_err(|error| error.to_string())?;
        Ok(Object::Route(Arc::new(Route {
            name: object,
            service: ServiceRef { app, namespace: Some(namespace), network: None },
            rules,
            created_unix_ms: stated.created_unix_ms,
        })))
    };
    Resource {
        generation: stated.generation,
        created_unix_ms: stated.created_unix_ms,
        bytes: stated.bytes,
        object: rules.and_then(route),
        name: ResourceName { kind, namespace: id.namespace.clone(), name },
    }
}

/// `http_ROUTE_SERVICE_PORT`, and the Service's namespace where that is another one. Names of the cluster have
/// no `_`, so no two are alike. Where that is too long or has dots, part of the route's name and a digest.
fn resource_name(kind: ResourceKind, id: &RouteId, service: &Name, port: u16) -> String {
    let start = kind.prefix();
    let (namespace, service) = service;
    let mut name = format!("{start}{}_{service}_{port}", id.name);
    if *namespace != id.namespace {
        name.push('_');
        name.push_str(namespace);
    }
    if Label::new(&name).is_ok() {
        return name;
    }
    let digest = digest::digest(&digest::SHA256, name.as_bytes());
    let digest: String = digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let readable: String = id.name.replace('.', "-").chars().take(32).collect();
    format!("{start}{readable}_{digest}")
}

/// The ports for TCP; `None` for a Service that is a name of another host.
fn ports(service: &Service) -> Option<Vec<FrontPort>> {
    let ports = tcp_ports(service)?;
    let ports =
        ports.map(|(of, number)| FrontPort { name: of.name.clone().unwrap_or_default(), number });
    Some(ports.collect())
}

impl Stated {
    fn read(kind: RouteKind, object: &DynamicObject) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let none = Value::Null;
        let spec = object.data.get("spec").unwrap_or(&none);
        let (bytes, size) = check_size(spec);
        let parents = spec::parents(spec);
        // What is attached to gateways alone is for others.
        let rules = if parents.is_empty() {
            Ok(Vec::new())
        } else {
            size.and_then(|()| spec::rules(kind, spec))
        };
        let reported = object.data.pointer("/status/parents").and_then(Value::as_array);
        Self {
            uid: text(&object.metadata.uid),
            version: text(&object.metadata.resource_version),
            generation: object.metadata.generation.unwrap_or_default(),
            created_unix_ms: created_unix_ms(&object.metadata),
            bytes,
            parents,
            rules,
            reported: reported.cloned().unwrap_or_default(),
        }
    }

    /// Bytes of its specification that are held.
    fn held(&self) -> usize {
        if self.parents.is_empty() || self.rules.is_err() { 0 } else { self.bytes }
    }

    /// The Services that it names, for a route of this namespace.
    fn services(&self, namespace: &str) -> BTreeSet<Name> {
        let parents = self.parents.iter().map(|(parent, _)| parent_name(parent, namespace));
        let target = |of: &Target| {
            (of.namespace.as_deref().unwrap_or(namespace).to_owned(), of.name.clone())
        };
        let rules = self.rules.iter().flatten();
        let targets = rules.flat_map(|rule| {
            let mirrors = rule.mirrors.iter().map(|(of, _)| of);
            rule.backends.iter().map(|of| &of.target).chain(mirrors)
        });
        parents.chain(targets.map(target)).collect()
    }
}

#[cfg(test)]
mod tests;
