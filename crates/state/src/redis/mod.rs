//! `state.redis`: each entry is a hash with the fields `data` and `version`, as in Dapr.
//!
//! Every write is one script, which checks all conditions before it changes anything: a script
//! runs alone and is not undone when it fails midway.

mod connect;

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use redis::aio::ConnectionManager;
use redis::{ErrorKind, Pipeline, RedisError, Script, ServerErrorKind, cmd, pipe};

use crate::component::RedisSettings;
use crate::error::StateError;
use crate::etag::{Step, consistency, plan_steps};
use crate::model::{
    Capability, Concurrency, Condition, Consistency, Entry, Fence, Transaction, Value,
};
use crate::store::StateStore;

/// A whole transaction. Keys: the fence's, then one for each step. Arguments: the fence's number or
/// nothing, then five for each step (condition, `+` or `-`, data, seconds to live, `0` if it is a
/// first write). Returns nothing, or what prevented it: `fenced`, or a step's number from 1 and the
/// version found.
const TRANSACT: &str = include_str!("transact.lua");
/// Longest that a strongly consistent write waits for the replicas, in milliseconds: Dapr's.
const REPLICAS_WITHIN_MS: u64 = 1000;

/// A client of one Redis server.
pub(crate) struct RedisStore {
    connection: ConnectionManager,
    transact: Script,
    address: String,
    timeout: Duration,
    /// The component's time to live, for writes without one.
    ttl: Option<NonZeroU32>,
    /// Replicas that the server had when it was opened.
    replicas: u32,
}

/// The fields `data` and `version` of a hash.
type Hash = (Option<Vec<u8>>, Option<String>);

impl RedisStore {
    pub(crate) async fn open(settings: &RedisSettings) -> Result<Self, StateError> {
        let mut connection = connect::connect(settings).await?;
        let address = settings.address();
        let told = cmd("INFO").arg("replication").query_async::<String>(&mut connection).await;
        let told = told.map_err(|error| failure(&address, settings.timeout, error))?;
        Ok(Self {
            connection,
            transact: Script::new(TRANSACT),
            address,
            timeout: settings.timeout,
            ttl: settings.ttl,
            replicas: replicas(&told),
        })
    }

    fn failed(&self, error: RedisError) -> StateError {
        failure(&self.address, self.timeout, error)
    }

    /// Reads keys in order, in one round trip.
    async fn read(&self, keys: &[&str]) -> Result<Vec<Option<Entry>>, StateError> {
        let mut asked = pipe();
        for key in keys {
            asked.cmd("HMGET").arg(key).arg("data").arg("version");
            asked.cmd("PTTL").arg(key);
        }
        let mut connection = self.connection.clone();
        let found = asked.query_async::<Vec<redis::Value>>(&mut connection).await;
        match found {
            Ok(found) => keys
                .iter()
                .zip(found.chunks(2))
                .map(|(key, found)| {
                    let read = redis::from_redis_value_ref::<Hash>(&found[0]).and_then(|hash| {
                        Ok((hash, redis::from_redis_value_ref::<i64>(&found[1])?))
                    });
                    let (hash, left) =
                        read.map_err(|error| self.foreign(key, error.to_string()))?;
                    self.entry(key, hash, left)
                })
                .collect(),
            // One of them is no hash: which, is found out one by one.
            Err(error) if is_wrong_type(&error) && keys.len() > 1 => {
                let mut entries = Vec::with_capacity(keys.len());
                for key in keys {
                    entries.push(Box::pin(self.read(&[key])).await?.pop().flatten());
                }
                Ok(entries)
            }
            Err(error) if is_wrong_type(&error) => Ok(vec![self.read_text(keys[0]).await?]),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// A value without an etag: Dapr's own before it had etags, or another program's.
    async fn read_text(&self, key: &str) -> Result<Option<Entry>, StateError> {
        let mut asked: Pipeline = pipe();
        asked.cmd("GET").arg(key).cmd("PTTL").arg(key);
        let mut connection = self.connection.clone();
        let found = asked.query_async::<(Option<Vec<u8>>, i64)>(&mut connection).await;
        match found {
            Ok((data, left)) => {
                Ok(data.map(|data| Entry { value: data.into(), etag: None, expires: expiry(left) }))
            }
            Err(error) if is_wrong_type(&error) => {
                Err(self.foreign(key, "it is neither a hash nor a text".to_owned()))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// The entry of a hash that lives so many milliseconds more.
    fn entry(&self, key: &str, hash: Hash, left: i64) -> Result<Option<Entry>, StateError> {
        match hash {
            (None, None) => Ok(None),
            (Some(data), Some(version)) => Ok(Some(Entry {
                value: Bytes::from(data),
                etag: Some(version),
                expires: expiry(left),
            })),
            _ => Err(self.foreign(key, "its hash lacks `data` or `version`".to_owned())),
        }
    }

    fn foreign(&self, key: &str, why: String) -> StateError {
        StateError::Foreign { address: self.address.clone(), key: key.to_owned(), why }
    }

    async fn run(&self, steps: &[Step<'_>], fence: Option<&Fence>) -> Result<(), StateError> {
        let mut script = self.transact.prepare_invoke();
        script.key(fence.map_or("", |fence| &fence.key));
        script.arg(fence.map_or_else(String::new, |fence| fence.number.to_string()));
        for step in steps {
            script.key(step.key);
            add_arguments(&mut script, step, self.ttl);
        }
        let mut connection = self.connection.clone();
        let told = script.invoke_async::<Option<Vec<String>>>(&mut connection).await;
        let Some(told) = told.map_err(|error| self.failed(error))? else { return Ok(()) };
        match (&told[..], fence) {
            ([word], Some(fence)) if word == "fenced" => {
                Err(StateError::Fenced { key: fence.key.clone(), number: fence.number })
            }
            ([word], Some(fence)) if word == "no-number" => {
                Err(self.foreign(&fence.key, "it is no number".to_owned()))
            }
            ([place, found], _) => {
                let step = place.parse::<usize>().ok().and_then(|place| steps.get(place - 1));
                let found = Some(found.clone()).filter(|found| !found.is_empty());
                Err(StateError::mismatch(step.map_or("", |step| step.key), found))
            }
            _ => Err(self.foreign("", format!("the script returned {told:?}"))),
        }
    }

    /// Waits until the replicas have what was written.
    async fn settle(&self) -> Result<(), StateError> {
        if self.replicas == 0 {
            return Ok(());
        }
        let mut connection = self.connection.clone();
        let mut wait = cmd("WAIT");
        wait.arg(self.replicas).arg(REPLICAS_WITHIN_MS);
        wait.query_async::<()>(&mut connection).await.map_err(|error| self.failed(error))
    }
}

#[async_trait]
impl StateStore for RedisStore {
    fn capabilities(&self) -> &'static [Capability] {
        Capability::USUAL
    }

    async fn get(&self, key: &str, _: Consistency) -> Result<Option<Entry>, StateError> {
        Ok(self.read(&[key]).await?.pop().flatten())
    }

    async fn bulk_get(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StateError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.read(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<(), StateError> {
        let steps = plan_steps(&transaction)?;
        for step in &steps {
            check_etag(step)?;
        }
        self.run(&steps, transaction.fence.as_ref()).await?;
        match consistency(&transaction) {
            Consistency::Strong => self.settle().await,
            Consistency::Eventual => Ok(()),
        }
    }
}

fn check_etag(step: &Step<'_>) -> Result<(), StateError> {
    match step.condition {
        Condition::Etag(etag) if etag.parse::<i64>().is_err() => Err(StateError::EtagInvalid {
            key: step.key.to_owned(),
            etag: etag.to_owned(),
            expected: "a whole number",
        }),
        Condition::Etag(_) | Condition::Absent | Condition::None => Ok(()),
    }
}

fn add_arguments(
    script: &mut redis::ScriptInvocation<'_>,
    step: &Step<'_>,
    unsaid: Option<NonZeroU32>,
) {
    match step.condition {
        Condition::None => script.arg(""),
        Condition::Absent => script.arg("!"),
        Condition::Etag(etag) => script.arg(etag),
    };
    let Some(set) = step.put else {
        script.arg("-").arg("").arg("").arg("");
        return;
    };
    let (Value::Json(data) | Value::Bytes(data)) = &set.value;
    let is_first = set.concurrency == Concurrency::FirstWrite;
    let seconds = set.ttl.seconds(unsaid).map_or_else(String::new, |seconds| seconds.to_string());
    script.arg("+").arg(&data[..]).arg(seconds).arg(if is_first { "0" } else { "" });
}

/// When what lives so many milliseconds more is gone; less than 0 means no end.
fn expiry(left: i64) -> Option<SystemTime> {
    u64::try_from(left).ok().map(|left| SystemTime::now() + Duration::from_millis(left))
}

/// Whether a command, or one of several, met a value of another kind than it is for.
fn is_wrong_type(error: &RedisError) -> bool {
    let told = error.clone().into_server_errors();
    told.is_some_and(|told| told.iter().any(|(_, error)| error.code() == "WRONGTYPE"))
}

/// The number of replicas in the response to `INFO replication`.
fn replicas(told: &str) -> u32 {
    let number = told.lines().find_map(|line| line.trim().strip_prefix("connected_slaves:"));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn failure(address: &str, timeout: Duration, error: RedisError) -> StateError {
    let address = address.to_owned();
    if error.is_timeout() {
        return StateError::TimedOut { address, after: timeout };
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "the rest is what the server refuses")]
    match error.kind() {
        ErrorKind::Io
        | ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown) => {
            StateError::Unreachable { address, source: error.into() }
        }
        _ => StateError::Refused { address, source: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_from_the_servers_report() {
        assert_eq!(replicas("# Replication\r\nrole:master\r\nconnected_slaves:2\r\n"), 2);
        assert_eq!(replicas("# Replication\r\nrole:slave\r\n"), 0);
    }
}
