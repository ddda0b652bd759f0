//! Dapr's `Component` files of state stores, read as Dapr reads them. What has no effect is a note,
//! and a store that is not served is one that cannot be used; wrong settings of one that is served
//! are mistakes, each with its position.
//!
//! A document becomes a [`Manifest`] (`manifest`). Its metadata are read one by one (`fields`) into
//! the settings of an engine (`settings`). The reader of the files passes the surroundings: the
//! app, and the variables with the secrets.

mod fields;
mod manifest;
mod settings;

use std::time::Duration;

pub use manifest::Manifest;
pub use settings::{PostgresqlLayout, PostgresqlSettings, RedisSettings, SqliteSettings};

use crate::key::KeyPrefix;

/// What a document is read for.
#[derive(Clone, Copy)]
pub struct ComponentContext<'a> {
    pub app: &'a str,
    pub namespace: &'a str,
    /// Components of other namespaces are for the app, too.
    pub takes_all_namespaces: bool,
    /// The value of a variable of the environment, if it is set.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

/// What a document is for the app that reads it.
#[derive(Debug)]
pub enum Read {
    Store(Box<Component>),
    Unusable(UnusableStore),
    /// It is for other apps or for another namespace.
    ForOthers {
        is_store: bool,
    },
    /// It is of a kind or type that is not served here, which is no mistake; in words.
    NotServed(String),
}

/// A state store that is described and that nothing can be kept in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnusableStore {
    pub name: String,
    /// The reason, for those who use the store.
    pub why: String,
    /// Actors would keep their state here.
    pub is_actor_store: bool,
}

/// A state store as it was described. `Debug` shows no secrets.
#[derive(Clone, Debug)]
pub struct Component {
    pub name: String,
    /// As it was written, such as `state.redis`.
    pub component_type: String,
    pub version: String,
    pub key_prefix: KeyPrefix,
    /// Actors may keep their state here.
    pub is_actor_store: bool,
    /// A store that does not open is left out, where it would end the start otherwise.
    pub ignore_errors: bool,
    /// Time to open it.
    pub init_timeout: Duration,
    pub engine: Engine,
}

/// The engines and their settings.
#[derive(Clone, Debug)]
pub enum Engine {
    InMemory,
    Sqlite(SqliteSettings),
    Redis(RedisSettings),
    Postgresql(Box<PostgresqlSettings>),
}

impl Engine {
    /// Where it is, for errors and logs; without secrets.
    #[must_use]
    pub fn address(&self) -> String {
        match self {
            Self::InMemory => "in memory".to_owned(),
            Self::Sqlite(settings) => settings.file.clone(),
            Self::Redis(settings) => settings.address(),
            Self::Postgresql(settings) => settings.address(),
        }
    }
}

#[cfg(test)]
mod tests;
