//! What the control plane keeps of reminders: writes, many at a time, and reads of what a host has
//! been granted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tollway_model::chain;
use tollway_placement::{Epoch, ShardSet};
use tollway_proxy::mesh::MeshClient;
use tollway_wire::v1::reminders_client::RemindersClient;
use tollway_wire::v1::{Grant, ListRemindersRequest, WriteRemindersRequest};
use tollway_wire::{
    REMINDERS_REQUEST_BYTES, Reminder, ReminderChange, ReminderResult, reminder, reminder_result,
};
use tonic::transport::Channel;

/// Changes that wait to be written; whoever comes later waits.
const WAITING: usize = 1024;
/// Most changes of one request.
const TOGETHER: usize = 256;
/// Bytes of the changes of one request, but for a change that has more.
const BATCH_BYTES: usize = REMINDERS_REQUEST_BYTES / 2;
/// What a change takes beside its data, at most.
const CHANGE_BYTES: usize = 2048;
/// For an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

type Written = Result<ReminderResult, String>;

/// One host's way to what is kept of the reminders of its actors.
pub(crate) struct Book {
    changes: mpsc::Sender<(ReminderChange, oneshot::Sender<Written>)>,
    line: Arc<Line>,
    life: u64,
}

/// A connection to the control plane, made when it is needed, and anew when it has failed.
struct Line {
    mesh: Arc<MeshClient>,
    channel: Mutex<Option<Channel>>,
}

impl Line {
    async fn client(&self) -> Result<RemindersClient<Channel>, String> {
        let mut held = self.channel.lock().await;
        if held.is_none() {
            let connected = self.mesh.connect().await;
            *held = Some(connected.map_err(|error| chain(&error))?);
        }
        held.clone().map(RemindersClient::new).ok_or_else(String::new)
    }

    /// What a call gives; after a failure the next one is made over another connection.
    async fn asked<T>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, String> {
        let answer = tokio::time::timeout(TIMEOUT, call).await;
        let failed = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => status.message().to_owned(),
            Err(_) => format!("the control plane has not answered within {} s", TIMEOUT.as_secs()),
        };
        *self.channel.lock().await = None;
        Err(failed)
    }
}

impl Book {
    /// Of a host in this life of it; writes until dropped.
    pub(crate) fn new(mesh: Arc<MeshClient>, life: u64) -> Arc<Self> {
        let (changes, waiting) = mpsc::channel(WAITING);
        let line = Arc::new(Line { mesh, channel: Mutex::default() });
        tokio::spawn(write_all(Arc::clone(&line), life, waiting));
        Arc::new(Self { changes, line, life })
    }

    /// Makes a change; it is durable when this returns.
    ///
    /// # Errors
    /// Why it is not known whether it was made, in words.
    pub(crate) async fn write(&self, change: ReminderChange) -> Written {
        let (answer, answered) = oneshot::channel();
        let gone = || "the sidecar is about to end".to_owned();
        self.changes.send((change, answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// Every reminder of some shards, as `each` gets them, and the shards that are not held.
    ///
    /// # Errors
    /// Why not all could be read, in words.
    pub(crate) async fn list(
        &self,
        actor_type: &str,
        grants: Vec<Grant>,
        mut each: impl FnMut(Reminder),
    ) -> Result<(), String> {
        let mut client = self.line.client().await?;
        let request =
            ListRemindersRequest { life: self.life, actor_type: actor_type.to_owned(), grants };
        let answer = self.line.asked(client.list_reminders(request)).await?;
        let mut pages = answer.into_inner();
        while let Some(page) = self.line.asked(pages.message()).await? {
            for stated in page.reminders {
                each(reminder(stated).map_err(|error| error.to_string())?);
            }
        }
        Ok(())
    }
}

/// The grant of these shards under one epoch, as it travels.
pub(crate) fn grants(shards: &ShardSet, epoch: Epoch) -> Vec<Grant> {
    tollway_wire::grants(&shards.iter().map(|shard| (shard, epoch)).collect())
}

/// Writes what waits, again and again: what comes while a request is under way goes into the next.
async fn write_all(
    line: Arc<Line>,
    life: u64,
    mut waiting: mpsc::Receiver<(ReminderChange, oneshot::Sender<Written>)>,
) {
    let mut batch = Vec::with_capacity(TOGETHER);
    while !batch.is_empty() || waiting.recv_many(&mut batch, TOGETHER).await > 0 {
        let mut bytes = 0;
        let mut fits = |(change, _): &(ReminderChange, _)| {
            bytes += bytes_of(change);
            bytes <= BATCH_BYTES
        };
        // The first always does.
        let count = batch.iter().take_while(|change| fits(change)).count().max(1);
        let (changes, answers): (Vec<_>, Vec<_>) = batch.drain(..count).unzip();
        let changes = changes.into_iter().map(Into::into).collect();
        let request = WriteRemindersRequest { life, changes };
        let written = async {
            let mut client = line.client().await?;
            let answer = line.asked(client.write_reminders(request)).await?.into_inner();
            let read = |stated| reminder_result(stated).map_err(|error| error.to_string());
            let results = answer.results.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
            if results.len() != answers.len() {
                return Err("its answer is malformed".to_owned());
            }
            Ok(results)
        };
        // Whoever asked may have gone away.
        match written.await {
            Ok(results) => {
                for (answer, result) in answers.into_iter().zip(results) {
                    let _ = answer.send(Ok(result));
                }
            }
            Err(why) => {
                for answer in answers {
                    let _ = answer.send(Err(why.clone()));
                }
            }
        }
    }
}

fn bytes_of(change: &ReminderChange) -> usize {
    let data = match change {
        ReminderChange::Put { registration, .. } => registration.data.len(),
        ReminderChange::DeleteOfShards { .. } => BATCH_BYTES,
        ReminderChange::Advance { .. }
        | ReminderChange::Delete { .. }
        | ReminderChange::DeleteOfActor { .. } => 0,
    };
    CHANGE_BYTES + data
}
