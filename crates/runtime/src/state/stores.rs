//! The state stores of an app by name, and their operations.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use thiserror::Error;
use tokio::task::JoinSet;
use tollway_model::ServiceName;
use tollway_state::{
    Component, Consistency, Delete, Entry, IllegalKey, KeyPrefix, Op, Owner, Set, StateError,
    StateStore, Transaction, UnusableStore, open,
};

use super::guarded::GuardedStore;
use super::problem::{Doing, Problem};
use crate::resiliency::ResiliencyState;

/// Most changes of one request under way at once.
const AT_ONCE: usize = 16;
/// The store of an app without any component file.
const DEFAULT_NAME: &str = "statestore";
const DEFAULT_TYPE: &str = "state.tollway";

/// The store of a component cannot be opened, so the sidecar does not start.
#[derive(Debug, Error)]
#[error("the state store `{name}` cannot be opened")]
pub struct OpenStoreError {
    pub name: String,
    pub source: StateError,
}

/// Every state store that this app may use.
pub(crate) struct Stores {
    by_name: BTreeMap<String, Opened>,
    /// Why others cannot be used, by name.
    unusable: BTreeMap<String, String>,
    /// The one store is that of the network, in place of none.
    stands_in: bool,
    owner: ServiceName,
}

/// An open store.
pub(crate) struct Opened {
    name: String,
    component_type: String,
    version: String,
    prefix: KeyPrefix,
    is_actor_store: bool,
    store: Arc<dyn StateStore>,
}

/// The stores that are open, and those that cannot be used.
pub(crate) struct AllOpened {
    pub(super) opened: Vec<Opened>,
    pub(super) unusable: Vec<UnusableStore>,
    /// The one store is that of the network, in place of none.
    pub(super) stands_in: bool,
}

impl AllOpened {
    /// The store of an app without any component file.
    /// `stands_in`: as the app sees it, no store is configured, but for the name of this one.
    pub(crate) fn by_default(store: Arc<dyn StateStore>, stands_in: bool) -> Self {
        let opened = Opened {
            name: DEFAULT_NAME.to_owned(),
            component_type: DEFAULT_TYPE.to_owned(),
            version: "v1".to_owned(),
            prefix: KeyPrefix::default(),
            is_actor_store: true,
            store,
        };
        Self { opened: vec![opened], unusable: Vec::new(), stands_in }
    }
}

impl Opened {
    fn of(component: Component, store: Arc<dyn StateStore>) -> Self {
        Self {
            name: component.name,
            component_type: component.component_type,
            version: component.version,
            prefix: component.key_prefix,
            is_actor_store: component.is_actor_store,
            store,
        }
    }
}

/// The store of a request.
#[derive(Clone, Copy)]
pub(crate) struct Chosen<'a> {
    name: &'a str,
    prefix: &'a KeyPrefix,
    store: &'a Arc<dyn StateStore>,
    owner: &'a ServiceName,
}

/// A component as the metadata show it.
pub(crate) struct ComponentInfo {
    pub(crate) name: String,
    pub(crate) component_type: String,
    pub(crate) version: String,
    pub(crate) capabilities: Vec<String>,
}

/// Opens the stores of components, one after the other. Of two with the same name the first one
/// counts.
///
/// # Errors
/// [`OpenStoreError`] for the first store that cannot be opened, unless its component ignores
/// errors.
pub(crate) async fn open_all(
    components: Vec<Component>,
    mut unusable: Vec<UnusableStore>,
) -> Result<AllOpened, OpenStoreError> {
    let mut opened = Vec::with_capacity(components.len());
    for component in components {
        match open(&component).await {
            Ok(store) => {
                let (name, kind) = (&component.name, &component.component_type);
                tracing::info!(%name, %kind, address = component.engine.address(), "a state store is open");
                opened.push(Opened::of(component, store));
            }
            Err(error) if component.ignore_errors => {
                let error = tollway_model::chain(&error);
                tracing::warn!(name = component.name, error, "a state store is left out");
                let Component { name, is_actor_store, .. } = component;
                let why = format!("it could not be opened at the start: {error}");
                unusable.push(UnusableStore { name, why, is_actor_store });
            }
            Err(source) => return Err(OpenStoreError { name: component.name, source }),
        }
    }
    if !opened.iter().any(|opened| opened.is_actor_store) {
        for store in unusable.iter().filter(|store| store.is_actor_store) {
            let UnusableStore { name, why, .. } = store;
            tracing::warn!(name, why, "actors have no store for their state");
        }
    }
    Ok(AllOpened { opened, unusable, stands_in: false })
}

impl Stores {
    /// The stores, each under the rules of its component.
    pub(crate) fn new(
        all: AllOpened,
        owner: ServiceName,
        resiliency: Option<&Arc<ResiliencyState>>,
    ) -> Self {
        let AllOpened { opened, unusable, stands_in } = all;
        let named = |mut opened: Opened| {
            opened.store = GuardedStore::wrap(&opened.name, opened.store, resiliency);
            (opened.name.clone(), opened)
        };
        let why = |store: UnusableStore| (store.name, store.why);
        Self {
            by_name: opened.into_iter().rev().map(named).collect(),
            unusable: unusable.into_iter().map(why).collect(),
            stands_in,
            owner,
        }
    }

    /// The store of a name.
    ///
    /// # Errors
    /// [`Problem`] when there is none.
    pub(crate) fn choose<'a>(&'a self, name: &'a str) -> Result<Chosen<'a>, Problem> {
        let app = self.owner.app.as_str();
        if let (None, Some(why)) = (self.by_name.get(name), self.unusable.get(name)) {
            return Err(Problem::unusable(name, why, app));
        }
        if self.by_name.is_empty() || self.stands_in && !self.by_name.contains_key(name) {
            return Err(Problem::not_configured(name, app));
        }
        let opened = self.by_name.get(name).ok_or_else(|| Problem::not_found(name, app))?;
        let (prefix, store) = (&opened.prefix, &opened.store);
        Ok(Chosen { name, prefix, store, owner: &self.owner })
    }

    /// The store of the app's actors.
    pub(crate) fn of_actors(&self) -> Option<Arc<dyn StateStore>> {
        let mut marked = self.by_name.values().filter(|opened| opened.is_actor_store);
        marked.next().map(|opened| Arc::clone(&opened.store))
    }

    /// The components as the metadata show them, by name.
    pub(crate) fn components(&self) -> Vec<ComponentInfo> {
        let info = |opened: &Opened| ComponentInfo {
            name: opened.name.clone(),
            component_type: opened.component_type.clone(),
            version: opened.version.clone(),
            capabilities: capabilities(opened),
        };
        self.by_name.values().map(info).collect()
    }
}

/// As Dapr's, `ACTOR` stands at each store that could be that of actors.
fn capabilities(opened: &Opened) -> Vec<String> {
    opened.store.capabilities().iter().map(|known| known.word().to_owned()).collect()
}

impl Chosen<'_> {
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    pub(crate) async fn get(
        &self,
        key: &str,
        consistency: Consistency,
    ) -> Result<Option<Entry>, Problem> {
        let stored = self.stored(key)?;
        let found = self.store.get(&stored, consistency).await;
        found.map_err(|error| self.failed(Doing::Get(key), &error))
    }

    /// Entries in the order of their keys.
    pub(crate) async fn bulk_get(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, Problem> {
        let stored = keys.iter().map(|key| self.stored(key)).collect::<Result<Vec<_>, _>>()?;
        let found = self.store.bulk_get(&stored).await;
        found.map_err(|error| self.failed(Doing::BulkGet, &error))
    }

    /// Makes each change independently: some may fail while the others are made.
    pub(crate) async fn change(&self, ops: Vec<Op>, doing: Doing<'_>) -> Result<(), Problem> {
        let ops = self.stored_ops(ops)?;
        let keys: HashSet<&str> = ops.iter().map(Op::key).collect();
        // Changes of one key are made in their order.
        let at_once = if keys.len() == ops.len() { AT_ONCE } else { 1 };
        let mut failures = Vec::new();
        let mut under_way = JoinSet::new();
        for op in ops {
            if under_way.len() == at_once
                && let Some(done) = under_way.join_next().await
            {
                failures.extend(failure_of(done));
            }
            let store = Arc::clone(self.store);
            under_way.spawn(async move {
                match op {
                    Op::Set(set) => store.set(set).await,
                    Op::Delete(delete) => store.delete(delete).await,
                }
            });
        }
        while let Some(done) = under_way.join_next().await {
            failures.extend(failure_of(done));
        }
        match &failures[..] {
            [] => Ok(()),
            failures => Err(Problem::of_failures(self.name, doing, failures)),
        }
    }

    /// Makes all changes or none.
    pub(crate) async fn transact(&self, ops: Vec<Op>) -> Result<(), Problem> {
        let ops = self.stored_ops(ops)?;
        let done = self.store.transact(Transaction { ops, fence: None }).await;
        done.map_err(|error| self.failed(Doing::Transact, &error))
    }

    /// The key in the store for an app's key.
    fn stored(&self, key: &str) -> Result<String, Problem> {
        let owner = Owner {
            app: self.owner.app.as_str(),
            namespace: self.owner.namespace.as_str(),
            store: self.name,
        };
        let stored = self.prefix.stored_key(&owner, key);
        stored.map_err(|error: IllegalKey| Problem::illegal_key(self.name, key, &error))
    }

    fn stored_ops(&self, ops: Vec<Op>) -> Result<Vec<Op>, Problem> {
        let stored = |op| {
            Ok(match op {
                Op::Set(set) => Op::Set(Set { key: self.stored(&set.key)?, ..set }),
                Op::Delete(delete) => {
                    Op::Delete(Delete { key: self.stored(&delete.key)?, ..delete })
                }
            })
        };
        ops.into_iter().map(stored).collect()
    }

    fn failed(&self, doing: Doing<'_>, error: &StateError) -> Problem {
        Problem::of_failures(self.name, doing, std::slice::from_ref(error))
    }
}

fn failure_of(done: Result<Result<(), StateError>, tokio::task::JoinError>) -> Option<StateError> {
    done.unwrap_or(Err(StateError::Closed)).err()
}
