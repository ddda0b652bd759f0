//! The reminders of some shards, page by page.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_actors::placement::{Epoch, ShardSet};
use tollway_actors::schedule::Moment;
use tollway_model::{Label, chain};
use tollway_store::{Entry, KeyRange, Store};
use tollway_wire::{actor_type, read_grant, shard_bytes, v1};
use tonic::Status;

use super::committer::{PAGE_BYTES, RemindersError, now};
use super::{key, record};
use crate::background::Background;
use crate::placement::{Host, Placements};

/// Reminders of one response.
const PAGE: usize = 1_000;
/// Responses waiting for a host that does not read.
const RESPONSES_LIMIT: usize = 2;
/// A host that reads no response for this long is dropped; it asks again when it can.
const SLOW_CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

type Responses = ReceiverStream<Result<v1::ListRemindersResponse, Status>>;

/// A host's request.
pub(super) struct Wanted {
    namespace: Label,
    host: Host,
    actor_type: String,
    grants: Vec<(Epoch, ShardSet)>,
}

impl Wanted {
    pub(super) fn read(
        namespace: Label,
        host: Host,
        request: &v1::ListRemindersRequest,
    ) -> Result<Self, Status> {
        let invalid = |error| Status::invalid_argument(chain(&error));
        let actor_type = actor_type(&request.actor_type).map_err(invalid)?.to_owned();
        let grants: Result<Vec<_>, _> = request.grants.iter().map(read_grant).collect();
        Ok(Self { namespace, host, actor_type, grants: grants.map_err(invalid)? })
    }

    /// Which of the shards the host holds, and which it does not. `None` for one that has not
    /// entered.
    pub(super) fn split(&self, placements: &Placements) -> Option<(ShardSet, ShardSet)> {
        placements.holding(&self.namespace, &self.host, |holds| {
            let (mut held, mut fenced) = (ShardSet::default(), ShardSet::default());
            for (epoch, shards) in &self.grants {
                for shard in shards.iter() {
                    match holds(&self.actor_type, shard, *epoch) {
                        true => held.insert(shard),
                        false => fenced.insert(shard),
                    }
                }
            }
            (held, fenced)
        })
    }
}

/// Begins the answer; each page is read when the host has taken the one before.
pub(super) fn begin(
    background: &Background,
    store: Store,
    wanted: &Wanted,
    held: &ShardSet,
    fenced: &ShardSet,
) -> Responses {
    let ranges = key::of_shards(&wanted.namespace, &wanted.actor_type, held);
    let fenced = if fenced.is_empty() { Vec::new() } else { shard_bytes(fenced) };
    let (responses, stream) = mpsc::channel(RESPONSES_LIMIT);
    background.spawn_until_stop(async move {
        if let Err(status) = send_all(&store, &ranges, fenced, &responses).await {
            let _ = responses.try_send(Err(status));
        }
    });
    ReceiverStream::new(stream)
}

async fn send_all(
    store: &Store,
    ranges: &[KeyRange],
    fenced: Vec<u8>,
    responses: &mpsc::Sender<Result<v1::ListRemindersResponse, Status>>,
) -> Result<(), Status> {
    let mut response = v1::ListRemindersResponse { fenced, ..Default::default() };
    let mut bytes = 0;
    for range in ranges {
        let mut after: Option<Bytes> = None;
        loop {
            let page = store.list(range, after.as_deref(), PAGE).await;
            let page = page.map_err(|error| super::status(&RemindersError::Read(error)))?;
            let now = now();
            for entry in &page.entries {
                bytes += entry.key.len() + entry.value.len();
                response.reminders.extend(reminder(entry, now)?);
            }
            if response.reminders.len() >= PAGE || bytes >= PAGE_BYTES {
                send(responses, std::mem::take(&mut response)).await?;
                bytes = 0;
            }
            after = page.entries.last().map(|entry| entry.key.clone());
            if !page.more {
                break;
            }
        }
    }
    // The last one, which may be the first and empty.
    send(responses, response).await
}

/// A reminder as it is sent; `None` if it is over.
fn reminder(entry: &Entry, now: Moment) -> Result<Option<v1::Reminder>, Status> {
    let read = record::read(&entry.value).zip(key::id_and_name(&entry.key));
    let Some(((head, registration), (id, name))) = read else {
        let key = entry.key.escape_ascii().to_string();
        return Err(super::status(&RemindersError::Foreign { key }));
    };
    Ok((!head.is_over(now)).then(|| v1::Reminder {
        actor_id: id.to_owned(),
        name: name.to_owned(),
        version: head.version,
        registration: Some(registration),
    }))
}

async fn send(
    responses: &mpsc::Sender<Result<v1::ListRemindersResponse, Status>>,
    response: v1::ListRemindersResponse,
) -> Result<(), Status> {
    match tokio::time::timeout(SLOW_CLIENT_TIMEOUT, responses.send(Ok(response))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Status::cancelled("the host went away")),
        Err(_) => Err(Status::deadline_exceeded("the host does not read; ask again")),
    }
}
