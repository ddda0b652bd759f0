//! `state.sqlite`: a table in a file of SQLite, with Dapr's columns.
//!
//! One connection, used by one thread of the runtime's blocking pool at a time. Other processes
//! may use the file too: SQLite's own locks keep them apart.

mod file;
mod statements;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rusqlite::{Connection, Error, ErrorCode, OptionalExtension, Row, TransactionBehavior, params};
use uuid::Uuid;

use self::statements::Statements;
use crate::component::SqliteSettings;
use crate::error::StateError;
use crate::etag::{Step, plan_steps};
use crate::model::{Capability, Condition, Consistency, Entry, Fence, Set, Transaction, Value};
use crate::store::StateStore;
use crate::sweep::{Sweep, sweep_every};

/// A file of SQLite.
pub(crate) struct SqliteStore {
    database: Arc<Database>,
    timeout: Duration,
}

/// What the blocking threads use.
struct Database {
    connection: Mutex<Connection>,
    statements: Statements,
    file: String,
}

impl SqliteStore {
    pub(crate) async fn open(settings: SqliteSettings) -> Result<Arc<Self>, StateError> {
        let (timeout, every) = (settings.timeout, settings.cleanup_interval);
        let opened = tokio::task::spawn_blocking(move || {
            let failed = |error| failure(&settings.file, error);
            let statements = Statements::new(&settings.table, &settings.metadata_table);
            let mut connection = file::open(&settings)?;
            statements.make_tables(&mut connection).map_err(failed)?;
            let connection = Mutex::new(connection);
            Ok(Database { connection, statements, file: settings.file })
        });
        let database = Arc::new(opened.await.map_err(|_| StateError::Closed)??);
        let store = Arc::new(Self { database, timeout });
        sweep_every(&store, every);
        Ok(store)
    }

    /// Runs `work` where it may block. Work that has begun goes on when its time is over: SQLite
    /// cannot leave it half done.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Database, &mut Connection) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, StateError> {
        let database = Arc::clone(&self.database);
        let working = tokio::task::spawn_blocking(move || {
            let mut connection = database.connection.lock().unwrap_or_else(PoisonError::into_inner);
            work(&database, &mut connection)
        });
        match tokio::time::timeout(self.timeout, working).await {
            Ok(done) => done.map_err(|_| StateError::Closed)?,
            Err(_) => Err(StateError::TimedOut {
                address: self.database.file.clone(),
                after: self.timeout,
            }),
        }
    }
}

#[async_trait]
impl StateStore for SqliteStore {
    fn capabilities(&self) -> &'static [Capability] {
        Capability::USUAL
    }

    async fn get(&self, key: &str, _: Consistency) -> Result<Option<Entry>, StateError> {
        let key = key.to_owned();
        self.run(move |database, connection| database.read(connection, &key)).await
    }

    async fn bulk_get(&self, keys: &[String]) -> Result<Vec<Option<Entry>>, StateError> {
        let keys = keys.to_owned();
        self.run(move |database, connection| {
            // All of one moment.
            let reading = connection.transaction().map_err(|error| database.failed(error))?;
            keys.iter().map(|key| database.read(&reading, key)).collect()
        })
        .await
    }

    async fn transact(&self, transaction: Transaction) -> Result<(), StateError> {
        self.run(move |database, connection| database.write(connection, &transaction)).await
    }
}

#[async_trait]
impl Sweep for SqliteStore {
    async fn sweep(&self, every: Duration) -> Result<(), StateError> {
        let every_ms = i64::try_from(every.as_millis()).unwrap_or(i64::MAX);
        self.run(move |database, connection| {
            let statements = &database.statements;
            let mine = connection.execute(&statements.claim_sweep, params![every_ms]);
            if mine.map_err(|error| database.failed(error))? > 0 {
                let removed = connection.execute(&statements.sweep, params![]);
                removed.map_err(|error| database.failed(error))?;
            }
            Ok(())
        })
        .await
    }
}

impl Database {
    fn read(&self, connection: &Connection, key: &str) -> Result<Option<Entry>, StateError> {
        let found = connection
            .prepare_cached(&self.statements.read)
            .and_then(|mut statement| statement.query_row(params![key], row_of).optional())
            .map_err(|error| self.failed(error))?;
        found.map(|row| self.entry(key, row)).transpose()
    }

    fn write(
        &self,
        connection: &mut Connection,
        transaction: &Transaction,
    ) -> Result<(), StateError> {
        let steps = plan_steps(transaction)?;
        let failed = |error| self.failed(error);
        let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let writing = writing.map_err(failed)?;
        if let Some(fence) = &transaction.fence {
            self.fence(&writing, fence)?;
        }
        for step in &steps {
            self.step(&writing, step)?;
        }
        writing.commit().map_err(failed)
    }

    fn fence(&self, writing: &Connection, fence: &Fence) -> Result<(), StateError> {
        let number = fence.number.to_string();
        if let Some(kept) = self.read(writing, &fence.key)? {
            let kept = std::str::from_utf8(&kept.value).ok().and_then(|text| text.parse().ok());
            let kept: u64 =
                kept.ok_or_else(|| self.foreign(&fence.key, "it is no number".to_owned()))?;
            if kept > fence.number {
                return Err(StateError::Fenced { key: fence.key.clone(), number: fence.number });
            }
        }
        self.put(writing, &Set::new(fence.key.clone(), Value::Json(number.into())))
    }

    /// Everything else waits while this transaction writes, so what is read stays so.
    fn step(&self, writing: &Connection, step: &Step<'_>) -> Result<(), StateError> {
        if step.condition != Condition::None {
            let found = self.read(writing, step.key)?;
            let holds = match step.condition {
                Condition::None => true,
                Condition::Absent => found.is_none(),
                Condition::Etag(etag) => {
                    found.as_ref().is_some_and(|entry| entry.etag.as_deref() == Some(etag))
                }
            };
            if !holds {
                return Err(StateError::mismatch(step.key, found.and_then(|entry| entry.etag)));
            }
        }
        match step.put {
            Some(set) => self.put(writing, set),
            None => self.remove(writing, step.key),
        }
    }

    fn put(&self, writing: &Connection, set: &Set) -> Result<(), StateError> {
        let (value, is_binary) = match &set.value {
            Value::Bytes(bytes) => (STANDARD.encode(bytes), true),
            Value::Json(text) => (self.text(&set.key, text)?, false),
        };
        let ttl = set.ttl.seconds(None).map(|seconds| format!("+{seconds} seconds"));
        let etag = Uuid::new_v4().to_string();
        writing
            .prepare_cached(&self.statements.put)
            .and_then(|mut put| put.execute(params![set.key, value, is_binary, etag, ttl]))
            .map(drop)
            .map_err(|error| self.failed(error))
    }

    fn remove(&self, writing: &Connection, key: &str) -> Result<(), StateError> {
        writing
            .prepare_cached(&self.statements.remove)
            .and_then(|mut remove| remove.execute(params![key]))
            .map(drop)
            .map_err(|error| self.failed(error))
    }

    fn text(&self, key: &str, text: &Bytes) -> Result<String, StateError> {
        let read = String::from_utf8(text.to_vec());
        read.map_err(|_| self.foreign(key, "a JSON document is not UTF-8".to_owned()))
    }

    fn entry(&self, key: &str, row: Found) -> Result<Entry, StateError> {
        let value = if row.is_binary {
            let read = STANDARD.decode(&row.value);
            read.map_err(|error| self.foreign(key, format!("it is no base64: {error}")))?
        } else {
            row.value.into_bytes()
        };
        let expires = row.expires.and_then(|seconds| u64::try_from(seconds).ok());
        let expires: Option<SystemTime> =
            expires.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        Ok(Entry { value: value.into(), etag: Some(row.etag), expires })
    }

    fn foreign(&self, key: &str, why: String) -> StateError {
        StateError::Foreign { address: self.file.clone(), key: key.to_owned(), why }
    }

    fn failed(&self, error: Error) -> StateError {
        failure(&self.file, error)
    }
}

/// A stored row.
struct Found {
    value: String,
    is_binary: bool,
    etag: String,
    /// Seconds since 1970.
    expires: Option<i64>,
}

fn row_of(row: &Row<'_>) -> Result<Found, Error> {
    Ok(Found {
        value: row.get(0)?,
        is_binary: row.get(1)?,
        etag: row.get(2)?,
        expires: row.get(3)?,
    })
}

fn failure(file: &str, error: Error) -> StateError {
    let address = file.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::CannotOpen) => {
            StateError::Unreachable { address, source: error.into() }
        }
        _ => StateError::Refused { address, source: error.into() },
    }
}
