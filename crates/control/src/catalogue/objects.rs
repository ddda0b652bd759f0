//! What the operator of this network has applied: objects by name and by scope.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;
use tollway_model::traffic_policy::TrafficParts;
use tollway_model::{
    Egress, Failover, Label, Mode, NetworkName, Object, ObjectId, ObjectKind, ObjectName,
    ObjectScope, Policy, PolicyScope, PolicyTarget, Route, RouteScope, ServiceName, TrafficPolicy,
};
use tollway_wire::v1;

use super::RecordError;

/// A stored object.
#[derive(PartialEq, Debug)]
pub(crate) struct Stored {
    pub(crate) object: Object,
    /// As it travels.
    pub(crate) wire: v1::Object,
    pub(crate) scope: ObjectScope,
    /// Who has written it; `None` where that cannot be read.
    pub(crate) origin: Option<v1::ObjectOrigin>,
    /// The transaction that last changed it.
    pub(crate) revision: u64,
}

impl Stored {
    pub(super) fn read(
        value: &[u8],
        revision: u64,
        network: &NetworkName,
    ) -> Result<Self, RecordError> {
        let wire = v1::Object::decode(value)?;
        let object = tollway_wire::object(&wire)?;
        let origin = Some(wire.origin());
        Ok(Self { scope: object.scope(network), object, wire, origin, revision })
    }
}

/// Stands for a policy that cannot be read, of a later version perhaps. What it protected is not
/// known either, so it closes its whole namespace: nothing may open by a mistake.
fn closed(name: &ObjectName) -> Policy {
    let policy = |target| {
        let (name, allow, deny) = (name.clone(), Some(Vec::new()), Vec::new());
        Policy { name, target, mode: Mode::Enforce, allow, deny }
    };
    let namespace = policy(PolicyTarget::Namespace);
    // The mesh's own namespace has no other policies than those for the network.
    if namespace.check().is_ok() { namespace } else { policy(PolicyTarget::Network) }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Objects {
    by_id: BTreeMap<ObjectId, Arc<Stored>>,
    by_scope: BTreeMap<ObjectScope, BTreeMap<ObjectName, Arc<Stored>>>,
    /// Revisions of those that cannot be read and have no effect.
    unreadable: BTreeMap<ObjectId, u64>,
}

impl Objects {
    /// Returns the scope that it has, and that which it had.
    pub(super) fn put(&mut self, stored: Stored) -> Vec<ObjectScope> {
        let id = stored.object.id();
        let mut scopes = self.remove(&id);
        let stored = Arc::new(stored);
        if !scopes.contains(&stored.scope) {
            scopes.push(stored.scope.clone());
        }
        let of_scope = self.by_scope.entry(stored.scope.clone()).or_default();
        of_scope.insert(id.name.clone(), stored.clone());
        self.by_id.insert(id, stored);
        scopes
    }

    /// What is stored of `id` cannot be read. A policy then closes what it may have protected; an
    /// object of another kind has no effect. Returns the scope that it has, and that which it had.
    pub(super) fn put_unreadable(
        &mut self,
        id: &ObjectId,
        revision: u64,
        network: &NetworkName,
    ) -> Vec<ObjectScope> {
        match id.kind {
            ObjectKind::Policy => {
                let object = Object::Policy(Arc::new(closed(&id.name)));
                let (wire, scope) = ((&object).into(), object.scope(network));
                self.put(Stored { object, wire, scope, origin: None, revision })
            }
            ObjectKind::Route
            | ObjectKind::TrafficPolicy
            | ObjectKind::Failover
            | ObjectKind::Egress => {
                let scopes = self.remove(id);
                self.unreadable.insert(id.clone(), revision);
                scopes
            }
        }
    }

    /// Returns the scope that it had; none if it was not there.
    pub(super) fn remove(&mut self, id: &ObjectId) -> Vec<ObjectScope> {
        self.unreadable.remove(id);
        let Some(stored) = self.by_id.remove(id) else { return Vec::new() };
        if let Some(others) = self.by_scope.get_mut(&stored.scope) {
            others.remove(&id.name);
            if others.is_empty() {
                self.by_scope.remove(&stored.scope);
            }
        }
        vec![stored.scope.clone()]
    }

    pub(crate) fn get(&self, id: &ObjectId) -> Option<&Arc<Stored>> {
        self.by_id.get(id)
    }

    /// The transaction that last changed it, even if it cannot be read; `None` if it is not there.
    pub(crate) fn revision(&self, id: &ObjectId) -> Option<u64> {
        let readable = self.by_id.get(id).map(|stored| stored.revision);
        readable.or_else(|| self.unreadable.get(id).copied())
    }

    /// Those of a kind that can be read, in the order of names.
    pub(crate) fn of_kind(&self, kind: ObjectKind) -> impl Iterator<Item = &Arc<Stored>> {
        self.by_id.iter().filter(move |(id, _)| id.kind == kind).map(|(_, stored)| stored)
    }

    /// Those of exactly this scope, in the order of names.
    pub(crate) fn of_scope(&self, scope: &ObjectScope) -> impl Iterator<Item = &Arc<Stored>> {
        self.by_scope.get(scope).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn scopes(&self) -> &BTreeMap<ObjectScope, BTreeMap<ObjectName, Arc<Stored>>> {
        &self.by_scope
    }

    pub(super) fn has_scope(&self, scope: &ObjectScope) -> bool {
        self.by_scope.contains_key(scope)
    }

    /// The policies that protect a service, always in the same order.
    pub(crate) fn policies_of(&self, service: &ServiceName) -> Vec<Arc<Stored>> {
        let scopes = PolicyScope::of_service(service).map(ObjectScope::Policy);
        scopes.iter().flat_map(|scope| self.of_scope(scope)).cloned().collect()
    }

    /// The routes that hold for callers of a namespace: those of this namespace, or, where it has
    /// none of its own, those of the service's.
    pub(crate) fn routes_of(&self, service: &ServiceName, callers: &Label) -> Arc<[Arc<Route>]> {
        let scope = |callers| ObjectScope::Route(RouteScope { service: service.clone(), callers });
        let own = scope(Some(callers.clone()));
        let holding = if self.has_scope(&own) { own } else { scope(None) };
        let route = |stored: &Arc<Stored>| match &stored.object {
            Object::Route(route) => Some(route.clone()),
            Object::Policy(_)
            | Object::TrafficPolicy(_)
            | Object::Failover(_)
            | Object::Egress(_) => None,
        };
        self.of_scope(&holding).filter_map(route).collect()
    }

    /// What the traffic policies come to for a service of this network.
    pub(crate) fn traffic_of(&self, service: &ServiceName) -> TrafficParts {
        let scopes = PolicyScope::of_service(service).map(ObjectScope::TrafficPolicy);
        let stored = scopes.iter().flat_map(|scope| self.of_scope(scope));
        let policies = stored.filter_map(|stored| match &stored.object {
            Object::TrafficPolicy(policy) => Some(&**policy),
            Object::Policy(_) | Object::Route(_) | Object::Failover(_) | Object::Egress(_) => None,
        });
        TrafficPolicy::combine(service, policies)
    }

    /// What holds for a service that is called in any network.
    pub(crate) fn failover_of(&self, service: &ServiceName) -> Option<&Failover> {
        let scopes = PolicyScope::of_service(service).map(ObjectScope::Failover);
        let stored: Vec<_> = scopes.iter().flat_map(|scope| self.of_scope(scope)).collect();
        let all = stored.into_iter().filter_map(|stored| match &stored.object {
            Object::Failover(failover) => Some(&**failover),
            Object::Policy(_) | Object::Route(_) | Object::TrafficPolicy(_) | Object::Egress(_) => {
                None
            }
        });
        Failover::holding(service, all)
    }

    /// Which external hosts the app of a service may call, always in the same order.
    pub(crate) fn egress_of(&self, service: &ServiceName) -> Vec<Arc<Egress>> {
        let scopes = PolicyScope::of_service(service).map(ObjectScope::Egress);
        let stored = scopes.iter().flat_map(|scope| self.of_scope(scope));
        let holding = stored.filter_map(|stored| match &stored.object {
            Object::Egress(egress) => egress.holds_for(service).then(|| Arc::clone(egress)),
            Object::Policy(_)
            | Object::Route(_)
            | Object::TrafficPolicy(_)
            | Object::Failover(_) => None,
        });
        holding.collect()
    }

    /// Whether routes of `scope` hold for callers of a namespace, or would if there were any.
    pub(crate) fn holds_for(&self, scope: &RouteScope, callers: &Label) -> bool {
        match &scope.callers {
            Some(namespace) => namespace == callers,
            None => {
                let own =
                    RouteScope { callers: Some(callers.clone()), service: scope.service.clone() };
                !self.has_scope(&ObjectScope::Route(own))
            }
        }
    }
}
