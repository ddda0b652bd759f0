//! `state.postgresql`: a table with Dapr's columns, of its first or second layout.

mod connection;
mod statements;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use deadpool_postgres::{GenericClient, Manager, Object, Pool, PoolError, Runtime};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

pub(crate) use self::connection::{Connection, read_connection, shown};
use self::statements::Statements;
use crate::component::{PostgresqlLayout, PostgresqlSettings};
use crate::error::{BoxError, StateError};
use crate::etag::{Step, plan_steps};
use crate::model::{Capability, Condition, Consistency, Entry, Fence, Transaction, Value};
use crate::store::StateStore;
use crate::sweep::{Sweep, sweep_every};

/// Attempts to make the tables while others make them too.
const TABLE_ATTEMPTS: u32 = 3;

/// A database of PostgreSQL.
pub(crate) struct PostgresqlStore {
    pool: Pool,
    statements: Statements,
    layout: PostgresqlLayout,
    address: String,
    timeout: Duration,
}

impl PostgresqlStore {
    pub(crate) async fn open(settings: &PostgresqlSettings) -> Result<Arc<Self>, StateError> {
        let mut config = settings.config.clone();
        connection::settle_mode(&mut config);
        config.connect_timeout(config.get_connect_timeout().copied().unwrap_or(settings.timeout));
        let tls = connection::tls(settings.root_certificates.as_ref())?;
        let pool = Pool::builder(Manager::new(config, tls))
            .max_size(settings.max_connections)
            .wait_timeout(Some(settings.timeout))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| StateError::Setting { what: error.to_string() })?;
        let store = Arc::new(Self {
            pool,
            statements: Statements::new(settings),
            layout: settings.layout,
            address: shown(&settings.config),
            timeout: settings.timeout,
        });
        store.timed(store.make_tables()).await?;
        sweep_every(&store, settings.cleanup_interval);
        Ok(store)
    }

    /// Under Dapr's lock, so that they are created once.
    async fn make_tables(&self) -> Result<(), StateError> {
        let mut client = self.client().await?;
        let failed = |error| self.failed(error);
        for attempt in 1.. {
            match client.batch_execute(&self.statements.make_metadata).await {
                Ok(()) => break,
                // Two at a time may both see it missing.
                Err(error)
                    if error.code() == Some(&SqlState::UNIQUE_VIOLATION)
                        && attempt < TABLE_ATTEMPTS => {}
                Err(error) => return Err(failed(error)),
            }
        }
        client.batch_execute(&self.statements.make_lock).await.map_err(failed)?;
        let making = client.transaction().await.map_err(failed)?;
        making.query_one(&self.statements.lock, &[]).await.map_err(failed)?;
        let level = making.query_opt(&self.statements.read_level, &[]).await.map_err(failed)?;
        if level.is_none() {
            making.batch_execute(&self.statements.make_table).await.map_err(failed)?;
            making.execute(&self.statements.write_level, &[]).await.map_err(failed)?;
        }
        making.commit().await.map_err(failed)
    }

    async fn client(&self) -> Result<Object, StateError> {
        let address = self.address.clone();
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => self.failed(error),
            PoolError::Timeout(_) => StateError::TimedOut { address, after: self.timeout },
            PoolError::Closed => StateError::Closed,
            PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
                StateError::Refused { address, source: error.into() }
            }
        })
    }

    async fn timed<T>(
        &self,
        work: impl Future<Output = Result<T, StateError>>,
    ) -> Result<T, StateError> {
        let timed = tokio::time::timeout(self.timeout, work).await;
        let address = || self.address.clone();
        timed.unwrap_or_else(|_| {
            Err(StateError::TimedOut { address: address(), after: self.timeout })
        })
    }

    async fn read(
        &self,
        client: &impl GenericClient,
        keys: &[&str],
    ) -> Result<HashMap<String, Entry>, StateError> {
        let failed = |error| self.failed(error);
        let read = client.prepare_cached(&self.statements.read).await.map_err(failed)?;
        let rows = client.query(&read, &[&keys]).await.map_err(failed)?;
        rows.iter().map(|row| self.entry(row)).collect()
    }

    fn entry(&self, row: &Row) -> Result<(String, Entry), StateError> {
        let failed = |error| self.failed(error);
        let key: String = row.try_get(0).map_err(failed)?;
        let value: Vec<u8> = row.try_get(1).map_err(failed)?;
        let value = if row.try_get(2).map_err(failed)? {
            self.bytes_of(&key, &value)?
        } else {
            value.into()
        };
        let expires: Option<f64> = row.try_get(4).map_err(failed)?;
        let expires = expires.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let entry = Entry {
            value,
            etag: row.try_get(3).map_err(failed)?,
            expires: expires.map(|since| UNIX_EPOCH + since),
        };
        Ok((key, entry))
    }

    /// The bytes that a document holds as a text of base64.
    fn bytes_of(&self, key: &str, document: &[u8]) -> Result<Bytes, StateError> {
        let foreign = |why: String| self.foreign(key, why);
        let text: String =
            serde_json::from_slice(document).map_err(|error| foreign(error.to_string()))?;
        let bytes = STANDARD.decode(text).map_err(|error| foreign(error.to_string()))?;
        Ok(bytes.into())
    }

    fn foreign(&self, key: &str, why: String) -> StateError {
        StateError::Foreign { address: self.address.clone(), key: key.to_owned(), why }
    }

    async fn step(&self, client: &impl GenericClient, step: &Step<'_>) -> Result<(), StateError> {
        let statements = &self.statements;
        let etag = match step.condition {
            Condition::Etag(etag) => Some(self.checked(step.key, etag)?),
            Condition::Absent | Condition::None => None,
        };
        let changed = match (step.put, step.condition) {
            (Some(set), Condition::None) => {
                self.put(client, &statements.put, &set.key, &set.value, set.ttl.seconds(None), None)
            }
            (Some(set), condition) => {
                let statement = match condition {
                    Condition::Etag(_) => &statements.put_etag,
                    Condition::Absent | Condition::None => &statements.put_absent,
                };
                self.put(client, statement, &set.key, &set.value, set.ttl.seconds(None), etag)
            }
            (None, Condition::Etag(_)) => return self.remove_etag(client, step.key, etag).await,
            (None, condition) => return self.remove(client, step.key, condition).await,
        };
        if changed.await? == 0 { Err(StateError::mismatch(step.key, None)) } else { Ok(()) }
    }

    /// Rows changed.
    async fn put(
        &self,
        client: &impl GenericClient,
        statement: &str,
        key: &str,
        value: &Value,
        seconds: Option<u32>,
        etag: Option<&str>,
    ) -> Result<u64, StateError> {
        let failed = |error| self.failed(error);
        let (value, is_text) = match (value, self.layout) {
            (Value::Bytes(bytes), PostgresqlLayout::V1) => {
                (format!("\"{}\"", STANDARD.encode(bytes)).into(), true)
            }
            (Value::Json(bytes) | Value::Bytes(bytes), _) => (bytes.clone(), false),
        };
        let (value, seconds) = (&value[..], seconds.map(f64::from));
        let prepared = client.prepare_cached(statement).await.map_err(failed)?;
        let mut all: Vec<&(dyn ToSql + Sync)> = vec![&key, &value, &seconds];
        if self.layout == PostgresqlLayout::V1 {
            all.push(&is_text);
        }
        if etag.is_some() {
            all.push(&etag);
        }
        client.execute(&prepared, &all).await.map_err(failed)
    }

    async fn remove_etag(
        &self,
        client: &impl GenericClient,
        key: &str,
        etag: Option<&str>,
    ) -> Result<(), StateError> {
        let failed = |error| self.failed(error);
        let statement = &self.statements.remove_etag;
        let prepared = client.prepare_cached(statement).await.map_err(failed)?;
        match client.execute(&prepared, &[&key, &etag]).await.map_err(failed)? {
            0 => Err(StateError::mismatch(key, None)),
            _ => Ok(()),
        }
    }

    async fn remove(
        &self,
        client: &impl GenericClient,
        key: &str,
        condition: Condition<'_>,
    ) -> Result<(), StateError> {
        if condition == Condition::Absent {
            let mut found = self.read(client, &[key]).await?;
            return match found.remove(key) {
                Some(entry) => Err(StateError::mismatch(key, entry.etag)),
                None => Ok(()),
            };
        }
        let failed = |error| self.failed(error);
        let prepared = client.prepare_cached(&self.statements.remove).await.map_err(failed)?;
        client.execute(&prepared, &[&key]).await.map(drop).map_err(failed)
    }

    /// Holds the number's row until the transaction ends: of two hosts one waits for the other.
    async fn fence(&self, client: &impl GenericClient, fence: &Fence) -> Result<(), StateError> {
        let number = Value::Json(fence.number.to_string().into());
        let statement = &self.statements.fence;
        match self.put(client, statement, &fence.key, &number, None, None).await? {
            0 => Err(StateError::Fenced { key: fence.key.clone(), number: fence.number }),
            _ => Ok(()),
        }
    }

    /// An etag that the layout can have. In the second layout other etags match no entry, as in
    /// Dapr.
    fn checked<'a>(&self, key: &str, etag: &'a str) -> Result<&'a str, StateError> {
        match self.layout {
            PostgresqlLayout::V1 if etag.parse::<u32>().is_err() => Err(StateError::EtagInvalid {
                key: key.to_owned(),
                etag: etag.to_owned(),
                expected: "a whole number",
            }),
            PostgresqlLayout::V2 if uuid::Uuid::try_parse(etag).is_err() => {
                Err(StateError::mismatch(key, None))
            }
            PostgresqlLayout::V1 | PostgresqlLayout::V2 => Ok(etag),
        }
    }

    fn failed(&self, error: Error) -> StateError {
        let address = self.address.clone();
        let told = error.as_db_error().map(|told| told.code().code());
        match told {
            // The server goes down, or takes no more connections.
            Some(code) if code.starts_with("57P") || code.starts_with("08") || code == "53300" => {
                StateError::Unreachable { address, source: error.into() }
            }
            Some(_) => StateError::Refused { address, source: cause_of(error) },
            None => StateError::Unreachable { address, source: error.into() },
        }
    }
}

/// The server's error without its statement.
fn cause_of(error: Error) -> BoxError {
    error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string).into()
}

#[async_trait]
impl StateStore for PostgresqlStore {
    fn capabilities(&self) -> &'static [Capability] {
        Capability::USUAL
    }

    async fn get(&self, key: &str, _: Consistency) -> Result<Option<Entry>, StateError> {
        let reading = async {
            let client = self.client().await?;
            Ok(self.read(&client, &[key]).await?.remove(key))
        };
        self.timed(reading).await
    }

    async fn bulk_get(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StateError> {
        let asked: Vec<&str> = keys.iter().map(String::as_str).collect();
        let reading = async {
            let client = self.client().await?;
            let found = self.read(&client, &asked).await?;
            Ok(asked.iter().map(|key| found.get(*key).cloned()).collect())
        };
        self.timed(reading).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<(), StateError> {
        let mut steps = plan_steps(&transaction)?;
        // In one order, so that two transactions never wait for each other.
        steps.sort_unstable_by_key(|step| step.key);
        self.timed(self.write(&steps, transaction.fence.as_ref())).await
    }
}

impl PostgresqlStore {
    async fn write(&self, steps: &[Step<'_>], fence: Option<&Fence>) -> Result<(), StateError> {
        let mut client = self.client().await?;
        if let ([step], None) = (steps, fence) {
            return self.step(&client, step).await;
        }
        let failed = |error| self.failed(error);
        // Dropped without a commit, it is rolled back.
        let writing = client.transaction().await.map_err(failed)?;
        if let Some(fence) = fence {
            self.fence(&writing, fence).await?;
        }
        for step in steps {
            self.step(&writing, step).await?;
        }
        writing.commit().await.map_err(failed)
    }
}

#[async_trait]
impl Sweep for PostgresqlStore {
    async fn sweep(&self, every: Duration) -> Result<(), StateError> {
        let sweeping = async {
            let client = self.client().await?;
            let failed = |error| self.failed(error);
            let claim = &self.statements.claim_sweep;
            let every_ms = every.as_secs_f64() * 1000.0;
            if client.execute(claim, &[&every_ms]).await.map_err(failed)? > 0 {
                client.batch_execute(&self.statements.sweep).await.map_err(failed)?;
            }
            Ok(())
        };
        self.timed(sweeping).await
    }
}
