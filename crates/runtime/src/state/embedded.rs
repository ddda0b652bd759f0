//! The store of an app without any component file. It is in the control plane of the app's network,
//! and the app's replicas share it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Mutex;
use tollway_state::{
    Capability, Condition, Consistency, Entry, StateError, StateStore, Step, Transaction, Ttl,
    plan_steps,
};
use tollway_wire::v1::state_client::StateClient;
use tollway_wire::v1::write_state_response::Refusal;
use tollway_wire::v1::{
    ReadStateRequest, StateChange, StateEntry, StateFence, WriteStateRequest, state_change,
};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::control_link::ControlLink;

/// Time for the control plane to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response, in bytes. The control plane's has at most 3 MiB of values, or a single value.
const ANSWER_BYTES: usize = 8 << 20;

/// The address of the store in errors.
const ADDRESS: &str = "of the control plane";

/// A response under way.
type Answer<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// The state of this app in the control plane of its network.
pub(crate) struct EmbeddedStore {
    control: Arc<dyn ControlLink>,
    /// Opened when it is first needed, and again after a failure.
    channel: Mutex<Option<Channel>>,
}

impl EmbeddedStore {
    pub(crate) fn new(control: Arc<dyn ControlLink>) -> Self {
        Self { control, channel: Mutex::new(None) }
    }

    async fn client(&self) -> Result<StateClient<Channel>, StateError> {
        let mut held = self.channel.lock().await;
        let channel = match &*held {
            Some(channel) => channel.clone(),
            None => {
                let connected = self.control.connect().await;
                let channel = connected.map_err(|error| unreachable(error.into()))?;
                held.insert(channel).clone()
            }
        };
        Ok(StateClient::new(channel).max_decoding_message_size(ANSWER_BYTES))
    }

    /// Makes a request. With `may_repeat` it makes a second attempt over another connection if the
    /// first connection has failed.
    async fn ask<T>(
        &self,
        may_repeat: bool,
        ask: impl Fn(StateClient<Channel>) -> Answer<T> + Send + Sync,
    ) -> Result<T, StateError> {
        let mut attempts = if may_repeat { 2 } else { 1 };
        loop {
            attempts -= 1;
            let client = self.client().await?;
            let asked = tokio::time::timeout(TIMEOUT, ask(client)).await;
            let status = match asked {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => {
                    *self.channel.lock().await = None;
                    let address = ADDRESS.to_owned();
                    return Err(StateError::TimedOut { address, after: TIMEOUT });
                }
            };
            if !is_of_connection(&status) {
                return Err(refused(&status));
            }
            *self.channel.lock().await = None;
            if attempts == 0 {
                return Err(unreachable(status.into()));
            }
        }
    }

    async fn read(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StateError> {
        let mut entries = Vec::with_capacity(keys.len());
        while entries.len() < keys.len() {
            let request = ReadStateRequest { keys: keys[entries.len()..].to_vec() };
            let ask = |mut client: StateClient<Channel>| -> Answer<_> {
                let request = request.clone();
                Box::pin(async move { client.read_state(request).await })
            };
            let found = self.ask(true, ask).await?.entries;
            if found.is_empty() {
                return Err(malformed());
            }
            entries.extend(found.into_iter().map(entry));
        }
        entries.truncate(keys.len());
        Ok(entries)
    }
}

#[tonic::async_trait]
impl StateStore for EmbeddedStore {
    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Etag, Capability::Transactional, Capability::Ttl, Capability::ActorStateStore]
    }

    async fn get(&self, key: &str, _: Consistency) -> Result<Option<Entry>, StateError> {
        Ok(self.read(&[key.to_owned()]).await?.pop().flatten())
    }

    async fn bulk_get(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StateError> {
        self.read(keys).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<(), StateError> {
        let steps = plan_steps(&transaction)?;
        // A change without a condition has the same effect when it is made twice.
        let may_repeat = steps.iter().all(|step| step.condition == Condition::None);
        let changes = steps.iter().map(change).collect::<Result<Vec<_>, _>>()?;
        let fence = transaction.fence.as_ref();
        let request = WriteStateRequest {
            changes,
            fence: fence.map(|fence| StateFence { key: fence.key.clone(), number: fence.number }),
        };
        let ask = |mut client: StateClient<Channel>| -> Answer<_> {
            let request = request.clone();
            Box::pin(async move { client.write_state(request).await })
        };
        let answer = self.ask(may_repeat, ask).await?;
        match (answer.refusal, fence) {
            (None, _) => Ok(()),
            (Some(Refusal::Mismatch(mismatch)), _) => Err(StateError::EtagMismatch {
                key: mismatch.key,
                found: (mismatch.revision != 0).then(|| mismatch.revision.to_string()),
            }),
            (Some(Refusal::Fenced(_)), Some(fence)) => {
                Err(StateError::Fenced { key: fence.key.clone(), number: fence.number })
            }
            (Some(Refusal::Fenced(_)), None) => Err(malformed()),
            (Some(Refusal::Excess(excess)), _) => Err(StateError::TooLarge {
                what: excess.what,
                found: excess.found,
                limit: excess.limit,
            }),
        }
    }
}

fn change(step: &Step<'_>) -> Result<StateChange, StateError> {
    let condition = match step.condition {
        Condition::None => None,
        Condition::Absent => Some(state_change::Condition::Absent(true)),
        Condition::Etag(etag) => {
            let revision = etag.parse().map_err(|_| StateError::EtagInvalid {
                key: step.key.to_owned(),
                etag: etag.to_owned(),
                expected: "a whole number",
            })?;
            Some(state_change::Condition::Revision(revision))
        }
    };
    let ttl_seconds = match step.put.map(|set| set.ttl) {
        Some(Ttl::Seconds(seconds)) => seconds.get(),
        Some(Ttl::Unsaid | Ttl::Forever) | None => 0,
    };
    Ok(StateChange {
        key: step.key.to_owned(),
        value: step.put.map(|set| set.value.bytes().to_vec()),
        ttl_seconds,
        condition,
    })
}

fn entry(state: StateEntry) -> Option<Entry> {
    let end = |unix_ms| UNIX_EPOCH + Duration::from_millis(unix_ms);
    let expires: Option<SystemTime> =
        (state.expires_unix_ms != 0).then(|| end(state.expires_unix_ms));
    (state.revision != 0).then(|| Entry {
        value: state.value.into(),
        etag: Some(state.revision.to_string()),
        expires,
    })
}

/// Whether the failure may be one of the connection.
fn is_of_connection(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Unauthenticated
    )
}

fn unreachable(source: tollway_state::BoxError) -> StateError {
    StateError::Unreachable { address: ADDRESS.to_owned(), source }
}

fn refused(status: &Status) -> StateError {
    let reason = if status.code() == Code::Unimplemented {
        "its version stores no state; update it"
    } else {
        status.message()
    };
    StateError::Refused { address: ADDRESS.to_owned(), source: reason.into() }
}

fn malformed() -> StateError {
    let source = "its answer is malformed".into();
    StateError::Refused { address: ADDRESS.to_owned(), source }
}

#[cfg(test)]
mod tests;
