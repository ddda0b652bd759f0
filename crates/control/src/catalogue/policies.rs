//! The policies of this network, by name and by what they protect.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;
use tollway_model::{ObjectName, Policy, PolicyScope, PolicyTarget, ServiceName};
use tollway_wire::v1;

use super::RecordError;

/// A stored policy.
#[derive(PartialEq, Debug)]
pub(crate) struct StoredPolicy {
    pub(crate) policy: Policy,
    /// As it travels.
    pub(crate) wire: v1::Policy,
    /// The transaction that last changed it.
    pub(crate) revision: u64,
}

impl StoredPolicy {
    pub(super) fn read(value: &[u8], revision: u64) -> Result<Self, RecordError> {
        let wire = v1::Policy::decode(value)?;
        let policy = tollway_wire::policy(&wire)?;
        Ok(Self { policy, wire, revision })
    }

    /// Stands for a policy that cannot be read, of a later version perhaps. What it protected is
    /// not known either, so it closes its whole namespace: nothing may open by a mistake.
    fn unreadable(name: ObjectName, revision: u64) -> Self {
        let policy = |target| Policy {
            name: name.clone(),
            target,
            allow: Some(Vec::new()),
            deny: Vec::new(),
        };
        let namespace = policy(PolicyTarget::Namespace);
        // The mesh's own namespace has no other policies than those for the network.
        let policy =
            if namespace.check().is_ok() { namespace } else { policy(PolicyTarget::Network) };
        Self { wire: (&policy).into(), policy, revision }
    }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Policies {
    by_name: BTreeMap<ObjectName, Arc<StoredPolicy>>,
    by_scope: BTreeMap<PolicyScope, BTreeMap<ObjectName, Arc<StoredPolicy>>>,
}

impl Policies {
    pub(super) fn put(&mut self, stored: StoredPolicy) {
        let name = stored.policy.name.clone();
        self.remove(&name);
        let stored = Arc::new(stored);
        let scope = self.by_scope.entry(stored.policy.scope()).or_default();
        scope.insert(name.clone(), stored.clone());
        self.by_name.insert(name, stored);
    }

    /// Puts what closes in the place of a policy that cannot be read.
    pub(super) fn put_unreadable(&mut self, name: ObjectName, revision: u64) {
        self.put(StoredPolicy::unreadable(name, revision));
    }

    /// Says whether it was there.
    pub(super) fn remove(&mut self, name: &ObjectName) -> bool {
        let Some(stored) = self.by_name.remove(name) else { return false };
        let scope = stored.policy.scope();
        if let Some(others) = self.by_scope.get_mut(&scope) {
            others.remove(name);
            if others.is_empty() {
                self.by_scope.remove(&scope);
            }
        }
        true
    }

    pub(crate) fn get(&self, name: &ObjectName) -> Option<&Arc<StoredPolicy>> {
        self.by_name.get(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Every policy in the order of names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<StoredPolicy>> {
        self.by_name.values()
    }

    /// Those that protect exactly `scope`.
    pub(crate) fn of_scope(&self, scope: &PolicyScope) -> impl Iterator<Item = &Arc<StoredPolicy>> {
        self.by_scope.get(scope).into_iter().flat_map(BTreeMap::values)
    }

    /// Those that protect a service, always in the same order.
    pub(crate) fn of_service(&self, service: &ServiceName) -> Vec<Arc<StoredPolicy>> {
        let scopes = PolicyScope::of_service(service);
        scopes.iter().flat_map(|scope| self.of_scope(scope)).cloned().collect()
    }
}
