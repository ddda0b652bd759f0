//! What the operator sees and removes of reminders, at the admin socket.

use std::collections::HashMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use tollway_model::{Label, chain};
use tollway_store::{KeyRange, ReadError, Store};
use tollway_wire::v1::remove_actor_reminders_request::What;
use tollway_wire::{ReminderKey, ReminderResult, v1};
use tonic::Status;

use super::committer::{QUOTAS, RemindersError, Removal, Request};
use super::{Reminders, key, record, status};
use crate::quota::{Delta, Usage, most_first};
use crate::status::stopping;

/// Most types, namespaces and reminders of one answer.
const LISTED_REMINDERS_MAX: usize = 1000;
/// Entries that are read at once.
const PAGE: usize = 1_000;

impl Reminders {
    /// What is stored of each type, and the reminders of one.
    ///
    /// # Errors
    /// That a name is none, or that the reminders cannot be read.
    pub(crate) async fn list(
        &self,
        request: &v1::ListActorRemindersRequest,
    ) -> Result<v1::ListActorRemindersResponse, Status> {
        let wanted = Wanted::read(request)?;
        let open = self.open().await?;
        open.writes.settle().await.map_err(|_| stopping())?;
        let unread = |error| status(&RemindersError::Read(error));
        let mut listed = used(&open.store, &wanted.usage).await.map_err(unread)?;
        if let Some(range) = &wanted.reminders {
            let after = (!request.after.is_empty()).then_some(&*request.after);
            (listed.reminders, listed.next) =
                reminders(&open.store, range, after).await.map_err(unread)?;
        }
        Ok(listed)
    }

    /// Removes reminders of a type without hosts. Returns how many.
    ///
    /// # Errors
    /// That a name is none, that the type has hosts, or that the reminders cannot be written.
    pub(crate) async fn remove(
        &self,
        request: v1::RemoveActorRemindersRequest,
    ) -> Result<u64, Status> {
        let namespace = namespace(&request.namespace)?;
        let actor_type = actor_type(&request.actor_type)?;
        let range = match request.what {
            Some(What::ActorId(id)) if !id.is_empty() => {
                key::of_actor(&namespace, &actor_type, &id)
            }
            Some(What::One(one)) if !one.actor_id.is_empty() => {
                let v1::ReminderOfActor { actor_id, name } = one;
                let named = ReminderKey { actor_type: actor_type.clone(), actor_id, name };
                KeyRange::key(key::of_reminder(&namespace, &named))
            }
            Some(What::All(true)) => key::of_type(&namespace, &actor_type),
            _ => return Err(Status::invalid_argument("name an actor, a reminder of one, or all")),
        };
        let open = self.open().await?;
        let removal = Request::Remove(Removal { namespace, actor_type, range });
        let removed = open.writes.send(removal).await.map_err(|_| stopping())?;
        let removed = removed.await.map_err(|_| stopping())?.map_err(|error| status(&error))?;
        Ok(removed.iter().map(deleted).sum())
    }
}

fn deleted(result: &ReminderResult) -> u64 {
    if let ReminderResult::Done { deleted, .. } = result { *deleted } else { 0 }
}

/// What is to be listed.
struct Wanted {
    /// Of which usage is counted.
    usage: KeyRange,
    reminders: Option<KeyRange>,
}

impl Wanted {
    fn read(request: &v1::ListActorRemindersRequest) -> Result<Self, Status> {
        if request.namespace.is_empty() {
            if !request.actor_type.is_empty() || !request.actor_id.is_empty() {
                return Err(Status::invalid_argument("name the namespace of the type"));
            }
            return Ok(Self { usage: KeyRange::all(), reminders: None });
        }
        let namespace = namespace(&request.namespace)?;
        if request.actor_type.is_empty() {
            return Ok(Self { usage: key::of_namespace(&namespace), reminders: None });
        }
        let actor_type = actor_type(&request.actor_type)?;
        let of_type = key::of_type(&namespace, &actor_type);
        let reminders = match request.actor_id.as_str() {
            "" => of_type.clone(),
            id => key::of_actor(&namespace, &actor_type, id),
        };
        Ok(Self { usage: of_type, reminders: Some(reminders) })
    }
}

fn namespace(text: &str) -> Result<Label, Status> {
    let namespace = tollway_wire::label(text, "namespace");
    namespace.map_err(|error| Status::invalid_argument(chain(&error)))
}

fn actor_type(text: &str) -> Result<String, Status> {
    let actor_type = tollway_wire::actor_type(text);
    Ok(actor_type.map_err(|error| Status::invalid_argument(chain(&error)))?.to_owned())
}

async fn used(
    store: &Store,
    wanted: &KeyRange,
) -> Result<v1::ListActorRemindersResponse, ReadError> {
    let mut types: HashMap<(String, String), Usage> = HashMap::new();
    let mut namespaces: HashMap<String, Usage> = HashMap::new();
    let mut all = Usage::default();
    let (range, mut after) = (KeyRange::all(), None::<Bytes>);
    loop {
        let scan = store.scan(&range, after.as_deref(), PAGE, |entry| {
            let mut delta = Delta::default();
            delta.replace(None, Some(entry.key.len() + entry.value.len()));
            all = all.with(delta);
            if wanted.contains(entry.key) {
                let (namespace, actor_type) =
                    (key::namespace(entry.key), key::actor_type(entry.key));
                let of_type = types.entry((namespace.to_owned(), actor_type.to_owned()));
                let of_namespace = namespaces.entry(namespace.to_owned()).or_default();
                *of_namespace = of_namespace.with(delta);
                let of_type = of_type.or_default();
                *of_type = of_type.with(delta);
            }
            ControlFlow::Continue(())
        });
        let scanned = scan.await?;
        after = scanned.last;
        if !scanned.more {
            break;
        }
    }
    let (types, further_types) = most_first(types, LISTED_REMINDERS_MAX);
    let (namespaces, _) = most_first(namespaces, LISTED_REMINDERS_MAX);
    let usage = |Usage { entries, bytes }: Usage| Some(v1::StateUsage { entries, bytes });
    let of_type = |((namespace, actor_type), used)| v1::ReminderTypeUsage {
        namespace,
        actor_type,
        usage: usage(used),
    };
    let of_namespace =
        |(namespace, used)| v1::NamespaceStateUsage { namespace, usage: usage(used) };
    Ok(v1::ListActorRemindersResponse {
        types: types.into_iter().map(of_type).collect(),
        further_types,
        namespaces: namespaces.into_iter().map(of_namespace).collect(),
        all: usage(all),
        quotas: Some(QUOTAS),
        ..v1::ListActorRemindersResponse::default()
    })
}

/// Reminders of a range in the order of their keys, and the key after which others follow.
async fn reminders(
    store: &Store,
    range: &KeyRange,
    after: Option<&[u8]>,
) -> Result<(Vec<v1::ActorReminder>, Vec<u8>), ReadError> {
    let page = store.list(range, after, LISTED_REMINDERS_MAX).await?;
    let reminder = |entry: &tollway_store::Entry| {
        let (actor_id, name) = key::id_and_name(&entry.key)?;
        let (head, registered) = record::read(&entry.value)?;
        Some(v1::ActorReminder {
            actor_id: actor_id.to_owned(),
            name: name.to_owned(),
            due_unix_ms: u64::try_from(head.due.unix_micros() / 1000).unwrap_or_default(),
            period: registered.period,
            bytes: (entry.key.len() + entry.value.len()) as u64,
        })
    };
    let next = page.entries.last().filter(|_| page.more).map(|entry| entry.key.to_vec());
    Ok((page.entries.iter().filter_map(reminder).collect(), next.unwrap_or_default()))
}
