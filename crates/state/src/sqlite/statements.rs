//! The tables and statements, in the names that Dapr gives them.

use rusqlite::{Connection, Error, OptionalExtension, TransactionBehavior, params};

/// Number of Dapr's changes of the tables that are made here.
const LEVEL: &str = "1";

/// The statements for one table. The table's name has been checked, and is in them unquoted.
pub(super) struct Statements {
    /// By key: value, whether it is base64, etag, end of life in seconds since 1970.
    pub(super) read: String,
    /// Key, value, whether it is base64, etag, time to live as SQLite's modifier.
    pub(super) put: String,
    pub(super) remove: String,
    /// Changes a row if the last sweep was so many milliseconds ago.
    pub(super) claim_sweep: String,
    pub(super) sweep: String,
    tables: [String; 2],
    read_level: String,
    write_level: String,
}

impl Statements {
    pub(super) fn new(table: &str, metadata: &str) -> Self {
        Self {
            read: format!(
                "SELECT value, is_binary, etag, unixepoch(expiration_time) FROM {table}
                 WHERE key = ?1
                   AND (expiration_time IS NULL OR expiration_time > CURRENT_TIMESTAMP)"
            ),
            put: format!(
                "INSERT OR REPLACE INTO {table}
                   (key, value, is_binary, etag, update_time, expiration_time)
                 VALUES (?1, ?2, ?3, ?4, CURRENT_TIMESTAMP, datetime(CURRENT_TIMESTAMP, ?5))"
            ),
            remove: format!("DELETE FROM {table} WHERE key = ?1"),
            claim_sweep: format!(
                "INSERT INTO {metadata} (key, value) VALUES ('last-cleanup', CURRENT_TIMESTAMP)
                 ON CONFLICT (key) DO UPDATE SET value = CURRENT_TIMESTAMP
                   WHERE (unixepoch(CURRENT_TIMESTAMP) - unixepoch(value)) * 1000 >= ?1"
            ),
            sweep: format!(
                "DELETE FROM {table}
                 WHERE expiration_time IS NOT NULL AND expiration_time < CURRENT_TIMESTAMP"
            ),
            tables: [
                format!(
                    "CREATE TABLE IF NOT EXISTS {metadata}
                       (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
                ),
                format!(
                    "CREATE TABLE IF NOT EXISTS {table} (
                       key TEXT NOT NULL PRIMARY KEY,
                       value TEXT NOT NULL,
                       is_binary BOOLEAN NOT NULL,
                       etag TEXT NOT NULL,
                       expiration_time TIMESTAMP DEFAULT NULL,
                       update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)"
                ),
            ],
            read_level: format!("SELECT value FROM {metadata} WHERE key = 'migrations'"),
            write_level: format!(
                "INSERT OR REPLACE INTO {metadata} (key, value) VALUES ('migrations', ?1)"
            ),
        }
    }

    /// Makes what is missing. Tables of a later Dapr are taken as they are.
    pub(super) fn make_tables(&self, connection: &mut Connection) -> Result<(), Error> {
        let making = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        for table in &self.tables {
            making.execute(table, params![])?;
        }
        let level: Option<String> =
            making.query_row(&self.read_level, params![], |row| row.get(0)).optional()?;
        if level.is_none() {
            making.execute(&self.write_level, params![LEVEL])?;
        }
        making.commit()
    }
}
