//! Carries the store into the catalogue: one list, then a watch from its revision; the list
//! again whenever the watch cannot go on.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tollway_model::ObjectKind;
use tollway_store::{Batch, Change, Entry, KeyRange, ReadError, Store, WatchError};
use tracing::{error, info, warn};

use crate::catalogue::{Catalogue, Home, Subject};
use crate::hub::Hub;
use crate::key::{Key, MESH_PREFIX};

const PAGE_ENTRIES: usize = 1_000;
/// Pause before a watch that was refused is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The catalogue could not be filled.
#[derive(Debug, Error)]
#[error("cannot read the registry from the store")]
pub struct FeedError(#[from] ReadError);

/// Reads the whole registry. The result is complete as of its revision.
pub(crate) async fn load(store: &Store, home: Home) -> Result<Catalogue, FeedError> {
    let range = KeyRange::prefix(MESH_PREFIX);
    let mut catalogue: Option<Catalogue> = None;
    let mut after = None;
    loop {
        let page = store.list(&range, after.as_deref(), PAGE_ENTRIES).await?;
        // Later pages may show later changes already; the watch from the first page's revision
        // brings those again, which changes nothing.
        let filled = catalogue.get_or_insert_with(|| Catalogue::new(home.clone(), page.revision));
        for entry in &page.entries {
            apply_entry(filled, entry);
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            break;
        }
    }
    Ok(catalogue.expect("the first page made one"))
}

/// Keeps `hub` current until the store closes.
pub(crate) async fn run(store: Store, hub: Arc<Hub>) {
    let mut from = hub.read(Catalogue::revision).0;
    loop {
        let error = follow(&store, &hub, &mut from).await;
        match error {
            WatchError::Closed => return,
            WatchError::TooMany { .. } => warn!(%error, "the registry is not watched; retrying"),
            WatchError::Compacted { .. }
            | WatchError::Future { .. }
            | WatchError::TooSlow { .. } => {
                info!(%error, "reading the registry again");
                let home = hub.read(|catalogue| catalogue.home().clone());
                let Ok(newer) = load(&store, home).await else { return };
                from = newer.revision().0;
                hub.change(|catalogue| catalogue.replace(newer));
            }
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn follow(store: &Store, hub: &Hub, from: &mut u64) -> WatchError {
    let mut watch = match store.watch(KeyRange::prefix(MESH_PREFIX), *from).await {
        Ok(watch) => watch,
        Err(error) => return error,
    };
    loop {
        match watch.next().await {
            Ok(batch) => {
                *from = batch.revision;
                hub.change(|catalogue| apply_batch(catalogue, &batch));
            }
            Err(error) => return error,
        }
    }
}

fn apply_batch(catalogue: &mut Catalogue, batch: &Batch) -> Vec<Subject> {
    let apply = |change: &Change| match change {
        Change::Put(entry) => apply_entry(catalogue, entry),
        Change::Delete { key, revision } => {
            Key::parse(key).map(|key| catalogue.delete(&key, *revision)).unwrap_or_default()
        }
    };
    let subjects = batch.changes.iter().flat_map(apply).collect();
    catalogue.advance(batch.revision);
    subjects
}

fn apply_entry(catalogue: &mut Catalogue, entry: &Entry) -> Vec<Subject> {
    let Some(key) = Key::parse(&entry.key) else { return Vec::new() };
    let reason = match catalogue.put(&key, &entry.value, entry.revision) {
        Ok(subjects) => return subjects,
        Err(reason) => tollway_model::chain(&reason),
    };
    // One bad record must not hide all the others.
    let Key::Object(id) = key else {
        let key = entry.key.escape_ascii();
        error!(%key, error = reason, "a stored record was passed over");
        return Vec::new();
    };
    let effect = match id.kind {
        ObjectKind::Policy => "it closes its namespace",
        ObjectKind::Route
        | ObjectKind::TrafficPolicy
        | ObjectKind::Failover
        | ObjectKind::Egress => "it has no effect",
    };
    error!(
        object = %id,
        error = reason,
        "a stored object cannot be read: {effect} until it is applied again or deleted"
    );
    catalogue.put_unreadable(&id, entry.revision)
}
