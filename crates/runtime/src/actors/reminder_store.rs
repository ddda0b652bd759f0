//! Reminders in the control plane: writes, many in one request, and reads of the shards that a host
//! has been granted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tollway_actors::placement::{Epoch, ShardSet};
use tollway_wire::v1::reminders_client::RemindersClient;
use tollway_wire::v1::{Grant, ListRemindersRequest, WriteRemindersRequest};
use tollway_wire::{
    REMINDERS_REQUEST_BYTES, Reminder, ReminderChange, ReminderResult, reminder, reminder_result,
};
use tonic::transport::Channel;

use crate::control_link::ControlLink;

/// Changes that wait to be written; a further one waits until there is space.
const WAITING: usize = 1024;
/// Most changes of one request.
const TOGETHER: usize = 256;
/// Most bytes of the changes of one request. A single larger change has a request of its own.
const BATCH_BYTES: usize = REMINDERS_REQUEST_BYTES / 2;
/// Most bytes that a change takes in addition to its data.
const CHANGE_BYTES: usize = 2048;
/// Time for the control plane to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The result of one change, or the reason why it is not known, as text.
pub(crate) type Written = Result<ReminderResult, String>;

/// A change, and the sender of its result.
type Pending = (ReminderChange, oneshot::Sender<Written>);

/// The stored reminders of one host's actors.
#[tonic::async_trait]
pub(crate) trait ReminderStore: Send + Sync {
    /// Makes a change; it is durable when this returns.
    ///
    /// # Errors
    /// The reason why it is not known whether the change was made, as text.
    async fn write(&self, change: ReminderChange) -> Written;

    /// Passes every reminder of some shards to `each`.
    ///
    /// # Errors
    /// The reason why not all reminders could be read, as text.
    async fn list(
        &self,
        actor_type: &str,
        grants: Vec<Grant>,
        each: &mut (dyn FnMut(Reminder) + Send),
    ) -> Result<(), String>;
}

/// The reminders as the control plane stores them.
pub(crate) struct ControlReminders {
    changes: mpsc::Sender<Pending>,
    channel: Arc<ControlChannel>,
    life: u64,
}

/// A connection to the control plane. It is opened when it is needed, and again after a failure.
struct ControlChannel {
    control: Arc<dyn ControlLink>,
    channel: Mutex<Option<Channel>>,
}

impl ControlChannel {
    async fn client(&self) -> Result<RemindersClient<Channel>, String> {
        let mut channel = self.channel.lock().await;
        let open = match &*channel {
            Some(open) => open.clone(),
            None => channel.insert(self.control.connect().await?).clone(),
        };
        Ok(RemindersClient::new(open))
    }

    /// Returns the response to a call. After a failure the next call opens another connection.
    async fn response<T>(
        &self,
        call: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, String> {
        let reason = match tokio::time::timeout(TIMEOUT, call).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(status)) => status.message().to_owned(),
            Err(_) => format!("the control plane has not answered within {} s", TIMEOUT.as_secs()),
        };
        *self.channel.lock().await = None;
        Err(reason)
    }

    /// Writes changes in one request, and returns the result of each.
    async fn write(
        &self,
        life: u64,
        changes: Vec<ReminderChange>,
    ) -> Result<Vec<ReminderResult>, String> {
        let count = changes.len();
        let changes = changes.into_iter().map(Into::into).collect();
        let request = WriteRemindersRequest { life, changes };
        let mut client = self.client().await?;
        let response = self.response(client.write_reminders(request)).await?.into_inner();
        let read = |result| reminder_result(result).map_err(|error| error.to_string());
        let results = response.results.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if results.len() != count {
            return Err("its answer is malformed".to_owned());
        }
        Ok(results)
    }
}

impl ControlReminders {
    /// The reminders of a host in its present life. Writes until it is dropped.
    pub(crate) fn new(control: Arc<dyn ControlLink>, life: u64) -> Arc<Self> {
        let (changes, pending) = mpsc::channel(WAITING);
        let channel = Arc::new(ControlChannel { control, channel: Mutex::default() });
        tokio::spawn(write_all(Arc::clone(&channel), life, pending));
        Arc::new(Self { changes, channel, life })
    }
}

#[tonic::async_trait]
impl ReminderStore for ControlReminders {
    async fn write(&self, change: ReminderChange) -> Written {
        let (result, written) = oneshot::channel();
        let ending = || "the sidecar is about to end".to_owned();
        self.changes.send((change, result)).await.map_err(|_| ending())?;
        written.await.map_err(|_| ending())?
    }

    async fn list(
        &self,
        actor_type: &str,
        grants: Vec<Grant>,
        each: &mut (dyn FnMut(Reminder) + Send),
    ) -> Result<(), String> {
        let mut client = self.channel.client().await?;
        let request =
            ListRemindersRequest { life: self.life, actor_type: actor_type.to_owned(), grants };
        let response = self.channel.response(client.list_reminders(request)).await?;
        let mut pages = response.into_inner();
        while let Some(page) = self.channel.response(pages.message()).await? {
            for listed in page.reminders {
                each(reminder(listed).map_err(|error| error.to_string())?);
            }
        }
        Ok(())
    }
}

/// The grant of these shards under one epoch, as a message has it.
pub(crate) fn grants(shards: &ShardSet, epoch: Epoch) -> Vec<Grant> {
    tollway_wire::grants(&shards.iter().map(|shard| (shard, epoch)).collect())
}

/// Writes pending changes until the store is dropped. Changes that arrive while a request is under
/// way go into the next one.
async fn write_all(channel: Arc<ControlChannel>, life: u64, mut pending: mpsc::Receiver<Pending>) {
    let mut batch = Vec::with_capacity(TOGETHER);
    while !batch.is_empty() || pending.recv_many(&mut batch, TOGETHER).await > 0 {
        let count = batch_length(batch.iter().map(|(change, _)| bytes_of(change)));
        let (changes, senders): (Vec<_>, Vec<_>) = batch.drain(..count).unzip();
        let written = channel.write(life, changes).await;
        for (at, sender) in senders.into_iter().enumerate() {
            let result = written.as_ref().map(|results| results[at].clone());
            // The caller may have cancelled its request.
            let _ = sender.send(result.map_err(Clone::clone));
        }
    }
}

/// How many of the first changes, given by their bytes, go into one request: at least one, then as
/// many as stay within [`BATCH_BYTES`].
fn batch_length(bytes: impl Iterator<Item = usize>) -> usize {
    let mut total = 0;
    let fits = |bytes: &usize| {
        total += bytes;
        total <= BATCH_BYTES
    };
    bytes.take_while(fits).count().max(1)
}

/// The most bytes that a change takes in a request. The deletion of whole shards counts as a full
/// request, since the control plane may have much to do for it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_at_least_one_change_and_no_more_bytes_than_its_limit() {
        let length = |bytes: &[usize]| batch_length(bytes.iter().copied());
        assert_eq!(length(&[BATCH_BYTES * 3, 1]), 1, "a larger change has its own request");
        assert_eq!(length(&[BATCH_BYTES, 1]), 1);
        assert_eq!(length(&[BATCH_BYTES - 1, 1, 1]), 2);
        assert_eq!(length(&[1, BATCH_BYTES, 1]), 1, "the order of changes stays");
        assert_eq!(length(&[CHANGE_BYTES; 5]), 5);
    }

    #[test]
    fn the_deletion_of_shards_has_a_request_of_its_own() {
        let deletion =
            ReminderChange::DeleteOfShards { actor_type: "Cart".to_owned(), grants: Vec::new() };
        let of_actor = ReminderChange::DeleteOfActor {
            actor_type: "Cart".to_owned(),
            actor_id: "1".to_owned(),
            epoch: Epoch(1),
        };
        let bytes = [&deletion, &of_actor].map(bytes_of);
        assert_eq!(batch_length(bytes.into_iter()), 1);
        assert_eq!(batch_length(bytes.into_iter().rev()), 1);
    }
}
