//! Why a state store refused or failed a request.

use std::time::Duration;

use thiserror::Error;

/// The error of a client library.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a read or a write failed. Unless a variant says otherwise, nothing has changed.
#[derive(Debug, Error)]
pub enum StateError {
    /// The entry is not the one that the caller has seen. The first words are Dapr's, which apps
    /// compare.
    #[error("possible etag mismatch. error from state store: {key} {found}", found = found_words(found.as_deref()))]
    EtagMismatch {
        key: String,
        /// The etag of the entry; `None` without an entry, or if it is not known.
        found: Option<String>,
    },
    /// No entry of this engine can have such an etag.
    #[error("invalid etag value: {etag:?} for {key}; an etag of this store is {expected}")]
    EtagInvalid { key: String, etag: String, expected: &'static str },
    /// Another host holds the fence of this transaction.
    #[error(
        "fenced off by {key}: the number kept there is larger than {number}; another host owns the actor now"
    )]
    Fenced { key: String, number: u64 },
    #[error("the transaction changes {key}, which keeps its own fence")]
    TouchesFence { key: String },
    #[error("the transaction has {count} operations; it may have at most {limit}: split it")]
    TooManyOps { count: usize, limit: usize },
    /// `what` is such as `the value of order in bytes`.
    #[error("{what} would be {found}: {limit} is the most")]
    TooLarge { what: String, found: u64, limit: u64 },
    #[error(
        "the store is full: it holds {limit} bytes at most; delete what is not needed, or keep state in a store outside this process"
    )]
    Full { limit: usize },
    /// Whether a write has happened is unknown.
    #[error(
        "the store {address} cannot be reached; check that it runs and that the component's metadata name it rightly"
    )]
    Unreachable { address: String, source: BoxError },
    /// Whether a write has happened is unknown.
    #[error(
        "the store {address} has not answered within {after:?}; whether a write has happened is unknown"
    )]
    TimedOut { address: String, after: Duration },
    /// The engine refuses: permissions, disk, a table with other columns.
    #[error("the store {address} refused")]
    Refused { address: String, source: BoxError },
    /// The stored entry does not have Dapr's format.
    #[error("what the store {address} keeps under {key} cannot be read: {why}")]
    Foreign { address: String, key: String, why: String },
    /// A setting that only shows itself when the store is opened.
    #[error("{what}")]
    Setting { what: String },
    /// The app's Resiliency allows no more time. Whether a write has happened is unknown.
    #[error(
        "no answer within {after:?}, which the Resiliency of this app allows; whether a write has happened is unknown"
    )]
    TookTooLong { after: Duration },
    /// The app's Resiliency lets no operation through for a while. The words are Dapr's.
    #[error("circuit breaker is open")]
    CircuitOpen,
    /// The runtime ended under it.
    #[error("the store is closed")]
    Closed,
}

impl StateError {
    /// Whether the caller has read another version of the entry. Reading again may help.
    #[must_use]
    pub fn is_mismatch(&self) -> bool {
        matches!(self, Self::EtagMismatch { .. })
    }

    /// The request can never succeed.
    #[must_use]
    pub fn is_callers_fault(&self) -> bool {
        matches!(
            self,
            Self::EtagInvalid { .. }
                | Self::TouchesFence { .. }
                | Self::TooManyOps { .. }
                | Self::TooLarge { .. }
        )
    }

    /// Whether the store works and this is its answer to the request: the same request again has the
    /// same one.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        self.is_callers_fault()
            || matches!(
                self,
                Self::EtagMismatch { .. }
                    | Self::Fenced { .. }
                    | Self::Foreign { .. }
                    | Self::Setting { .. }
                    | Self::Closed
            )
    }

    pub(crate) fn mismatch(key: &str, found: Option<String>) -> Self {
        Self::EtagMismatch { key: key.to_owned(), found }
    }
}

fn found_words(found: Option<&str>) -> String {
    found.map_or_else(|| "is not as expected".to_owned(), |etag| format!("has the etag {etag}"))
}
