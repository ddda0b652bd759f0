//! What the operator sees and removes of app state, at the admin socket.

use std::collections::HashMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use tollway_store::{KeyRange, Store};
use tollway_wire::v1::StateChange;
use tollway_wire::v1::remove_state_request::What;
use tollway_wire::{STATE_CHANGES, label, v1};
use tonic::Status;

use super::committer::{PAGE, StateError, Write, owner_of, size_of};
use super::{AppState, Open, failed, quotas};
use crate::quota::{Delta, Usage, most_first};
use crate::status::stopping;

/// Most apps, namespaces and keys of one answer.
const LISTED_STATES_MAX: usize = 1000;

impl AppState {
    /// What apps keep, and the keys of one.
    ///
    /// # Errors
    /// That a name is none, or that the state cannot be read.
    pub(crate) async fn list(
        &self,
        request: &v1::ListStateRequest,
    ) -> Result<v1::ListStateResponse, Status> {
        let wanted = Wanted::read(request)?;
        let open = self.settled().await?;
        let mut listed = used(&open.store, &wanted).await.map_err(|error| failed(&error))?;
        if let Some(owner) = &wanted.owner {
            let after = (!request.after_key.is_empty()).then_some(&*request.after_key);
            (listed.keys, listed.has_further_keys) =
                keys(&open.store, owner, after).await.map_err(|error| failed(&error))?;
        }
        Ok(listed)
    }

    /// Removes entries of an app, page by page.
    ///
    /// # Errors
    /// That a name is none, or that the state cannot be read or written.
    pub(crate) async fn remove(
        &self,
        request: v1::RemoveStateRequest,
    ) -> Result<v1::RemoveStateResponse, Status> {
        let owner = owner(&request.namespace, &request.app)?;
        let what = match request.what {
            Some(What::Key(key)) => Some(key),
            Some(What::All(true)) => None,
            Some(What::All(false)) | None => {
                return Err(Status::invalid_argument("name a key, or all"));
            }
        };
        let open = self.settled().await?;
        let removed = remove(&open, owner, what).await?;
        Ok(v1::RemoveStateResponse { removed: Some(removed) })
    }

    /// The open file, with everything that was sent before.
    async fn settled(&self) -> Result<Open, Status> {
        let open = self.open().await?;
        open.writes.settle().await.map_err(|_| stopping())?;
        Ok(open)
    }
}

/// What is to be listed, as the start of stored keys.
struct Wanted {
    prefix: String,
    owner: Option<String>,
}

impl Wanted {
    fn read(request: &v1::ListStateRequest) -> Result<Self, Status> {
        if !request.app.is_empty() {
            let owner = owner(&request.namespace, &request.app)?;
            return Ok(Self { prefix: owner.clone(), owner: Some(owner) });
        }
        let mut prefix = String::new();
        if !request.namespace.is_empty() {
            prefix = format!("{}/", name(&request.namespace, "namespace")?);
        }
        Ok(Self { prefix, owner: None })
    }
}

fn owner(namespace: &str, app: &str) -> Result<String, Status> {
    Ok(format!("{}/{}/", name(namespace, "namespace")?, name(app, "app")?))
}

/// Names compare without case.
fn name(text: &str, field: &'static str) -> Result<String, Status> {
    let name = label(text, field);
    let name = name.map_err(|error| Status::invalid_argument(tollway_model::chain(&error)))?;
    Ok(name.to_lower())
}

async fn used(store: &Store, wanted: &Wanted) -> Result<v1::ListStateResponse, StateError> {
    let (mut apps, mut namespaces) = (HashMap::new(), HashMap::new());
    let mut all = Usage::default();
    let mut add = |key: &[u8], size: usize| {
        let mut delta = Delta::default();
        delta.replace(None, Some(size));
        all = all.with(delta);
        if !key.starts_with(wanted.prefix.as_bytes()) {
            return;
        }
        let owner = owner_of(key);
        add_to(&mut apps, owner, delta);
        add_to(&mut namespaces, quotas::namespace(owner), delta);
    };
    let (range, mut after) = (KeyRange::all(), None::<Bytes>);
    loop {
        let scan = store.scan(&range, after.as_deref(), PAGE, |entry| {
            add(entry.key, size_of(entry.key, entry.value));
            ControlFlow::Continue(())
        });
        let scanned = scan.await?;
        after = scanned.last;
        if !scanned.more {
            break;
        }
    }
    let (apps, further_apps) = most_first(apps, LISTED_STATES_MAX);
    let (namespaces, _) = most_first(namespaces, LISTED_STATES_MAX);
    Ok(v1::ListStateResponse {
        apps: apps.into_iter().filter_map(app_usage).collect(),
        further_apps,
        namespaces: namespaces
            .into_iter()
            .map(|(namespace, used)| v1::NamespaceStateUsage {
                namespace,
                usage: Some(usage(used)),
            })
            .collect(),
        all: Some(usage(all)),
        quotas: Some(quotas::QUOTAS),
        ..v1::ListStateResponse::default()
    })
}

fn add_to(used: &mut HashMap<String, Usage>, name: &str, delta: Delta) {
    // Most entries are of a name that is there.
    if let Some(usage) = used.get_mut(name) {
        *usage = usage.with(delta);
    } else {
        used.insert(name.to_owned(), Usage::default().with(delta));
    }
}

fn app_usage((owner, used): (String, Usage)) -> Option<v1::AppStateUsage> {
    let (namespace, app) = owner.trim_end_matches('/').split_once('/')?;
    let (namespace, app) = (namespace.to_owned(), app.to_owned());
    Some(v1::AppStateUsage { namespace, app, usage: Some(usage(used)) })
}

fn usage(Usage { entries, bytes }: Usage) -> v1::StateUsage {
    v1::StateUsage { entries, bytes }
}

/// Keys of an app in their order, and whether more follow.
async fn keys(
    store: &Store,
    owner: &str,
    after: Option<&str>,
) -> Result<(Vec<v1::StateKeyUsage>, bool), StateError> {
    let mut keys = Vec::new();
    let after = after.map(|key| format!("{owner}{key}"));
    let range = KeyRange::prefix(owner.to_owned());
    let scan =
        store.scan(&range, after.as_deref().map(str::as_bytes), LISTED_STATES_MAX, |entry| {
            if let Ok(key) = std::str::from_utf8(&entry.key[owner.len()..]) {
                let bytes = size_of(entry.key, entry.value) as u64;
                keys.push(v1::StateKeyUsage { key: key.to_owned(), bytes });
            }
            ControlFlow::Continue(())
        });
    let more = scan.await?.more;
    Ok((keys, more))
}

/// Removes one key of an app, or all.
async fn remove(open: &Open, owner: String, key: Option<String>) -> Result<v1::StateUsage, Status> {
    let (mut removed, mut after) = (v1::StateUsage::default(), None::<Bytes>);
    let range = match key {
        Some(key) => KeyRange::key(format!("{owner}{key}")),
        None => KeyRange::prefix(owner.clone()),
    };
    loop {
        let mut changes = Vec::new();
        let scan = open.store.scan(&range, after.as_deref(), STATE_CHANGES, |entry| {
            if let Ok(key) = std::str::from_utf8(&entry.key[owner.len()..]) {
                removed.entries += 1;
                removed.bytes += size_of(entry.key, entry.value) as u64;
                changes.push(StateChange { key: key.to_owned(), ..StateChange::default() });
            }
            ControlFlow::Continue(())
        });
        let scanned = scan.await.map_err(|error| failed(&error.into()))?;
        if !changes.is_empty() {
            let request = v1::WriteStateRequest { changes, fence: None };
            let write = Write { owner: owner.clone(), request };
            let written = open.writes.send(write).await.map_err(|_| stopping())?;
            written.await.map_err(|_| stopping())?.map_err(|error| failed(&error))?;
        }
        after = scanned.last;
        if !scanned.more {
            return Ok(removed);
        }
    }
}
