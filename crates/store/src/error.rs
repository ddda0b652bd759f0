//! What can go wrong, one enum for each kind of operation.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tollway_model::ErrorCode;

use crate::model::{Expected, LeaseId};

/// Why a store did not open. The text names the file and a remedy.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error(
        "cannot open the store {}; check that its directory exists and that this user may write there",
        path.display()
    )]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "cannot open the store {url}; check that etcd runs there and that the master is not another process by now"
    )]
    Etcd { url: String, source: std::io::Error },
    /// There is no file to read; only opening makes a store.
    #[error("there is no store {}; check --store", path.display())]
    Missing { path: PathBuf },
    #[error(
        "the store {} is in use by another process; stop that one or choose another file",
        path.display()
    )]
    Locked { path: PathBuf },
    #[error(
        "{} is not a Tollway store; choose another file, or move this one away to start an empty store",
        path.display()
    )]
    NotAStore { path: PathBuf },
    #[error(
        "the store {} has format {found}, this program reads format {supported}; use the version of Tollway that wrote it",
        path.display()
    )]
    Format { path: PathBuf, found: u32, supported: u32 },
    #[error(
        "the store {} is damaged at byte {offset}: {what}",
        path.display()
    )]
    Corrupt { path: PathBuf, offset: u64, what: &'static str },
    #[error("the program is shutting down; the store was not opened")]
    RuntimeGone,
    #[error("cannot start the writer thread of the store {}", path.display())]
    Thread { path: PathBuf, source: std::io::Error },
}

impl OpenError {
    /// Its entry in the catalogue of failures.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Io { source, .. } => ErrorCode::of_file(source, ErrorCode::StoreUnwritable),
            Self::Missing { .. } => ErrorCode::FileUnusable,
            Self::Locked { .. } => ErrorCode::StoreLocked,
            Self::NotAStore { .. } | Self::Format { .. } => ErrorCode::StoreForeign,
            Self::Corrupt { .. } => ErrorCode::StoreCorrupt,
            Self::Etcd { .. } | Self::RuntimeGone | Self::Thread { .. } => {
                ErrorCode::StoreUnwritable
            }
        }
    }
}

/// Why a store was not repaired. It is as it was.
#[derive(Debug, Error)]
pub enum RepairError {
    #[error("the store was not repaired")]
    Read(#[from] OpenError),
    #[error("the store {} is not damaged; nothing was changed", path.display())]
    NotDamaged { path: PathBuf },
    #[error("cannot write next to the store {}; nothing was changed", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Why a store does not skip revisions. It is as it was.
#[derive(Debug, Error)]
pub enum SkipError {
    #[error("the store was not changed")]
    Read(#[from] OpenError),
    #[error("cannot write next to the store {}; nothing was changed", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Why a transaction did not happen.
#[derive(Debug, Error)]
pub enum TransactError {
    /// A guard did not hold; nothing was changed.
    #[error("the key {} is not as expected ({expected:?}); it is at revision {found:?}", key.escape_ascii())]
    Conflict {
        key: Bytes,
        expected: Expected,
        /// The revision of the key, `None` when it is absent.
        found: Option<u64>,
    },
    #[error("the transaction has a key of {length} bytes; a key has 1 to {limit}")]
    KeyLength { length: usize, limit: usize },
    #[error("the value of {} has {length} bytes; a value has at most {limit}", key.escape_ascii())]
    ValueTooLong { key: Bytes, length: usize, limit: usize },
    #[error("the transaction has {count} steps or guards; it may have at most {limit}: split it")]
    TooManyOps { count: usize, limit: usize },
    #[error("the transaction has {bytes} bytes; it may have at most {limit}: split it")]
    TooLarge { bytes: usize, limit: usize },
    #[error("lease {} has ended or was never granted; grant a new one", lease.0)]
    NoLease { lease: LeaseId },
    #[error("lease {} would hold more than {limit} keys; use several leases", lease.0)]
    LeaseFull { lease: LeaseId, limit: usize },
    /// The disk is full; nothing was changed, and the store continues.
    #[error("no room for the store {}; free space on its disk", path.display())]
    NoRoom { path: PathBuf, source: std::sync::Arc<std::io::Error> },
    /// The disk refused; what was written is unknown, and the store takes no further writes.
    #[error("the store {} cannot be written; free space or repair the disk, then restart", path.display())]
    Disk { path: PathBuf, source: std::sync::Arc<std::io::Error> },
    /// etcd refused, or this process is not the one any more that writes there; what was written
    /// is unknown, and the store takes no further writes.
    #[error("the store {url} cannot be written any more; start this process again")]
    Etcd { url: String, source: std::sync::Arc<std::io::Error> },
    #[error("the store is closed")]
    Closed,
}

impl TransactError {
    /// Its entry in the catalogue of failures, for what the disk does.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::NoRoom { .. } => Some(ErrorCode::DiskFull),
            Self::Disk { .. } | Self::Etcd { .. } => Some(ErrorCode::StoreUnwritable),
            Self::Conflict { .. }
            | Self::KeyLength { .. }
            | Self::ValueTooLong { .. }
            | Self::TooManyOps { .. }
            | Self::TooLarge { .. }
            | Self::NoLease { .. }
            | Self::LeaseFull { .. }
            | Self::Closed => None,
        }
    }
}

/// Why a read failed.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("the store is closed")]
    Closed,
}

/// Why a watch did not start, or ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WatchError {
    /// The history no longer has changes from there: list again, then watch from that revision.
    #[error(
        "changes after revision {from} are no longer kept, a watch may start from {oldest}; list again"
    )]
    Compacted { from: u64, oldest: u64 },
    /// The store has not reached that revision: it belongs to another store or to one restored from
    /// a copy. List again.
    #[error("revision {from} has not happened here, the store is at {current}; list again")]
    Future { from: u64, current: u64 },
    /// The watcher fell behind the history: list again.
    #[error("the watch fell too far behind, changes up to revision {oldest} are gone; list again")]
    TooSlow { oldest: u64 },
    #[error("there are already {limit} watches")]
    TooMany { limit: usize },
    #[error("the store is closed")]
    Closed,
}

/// Why a lease operation failed.
#[derive(Debug, Error)]
pub enum LeaseError {
    #[error("lease {} has ended or was never granted; grant a new one", lease.0)]
    NoLease { lease: LeaseId },
    #[error("a lease of {asked:?} is not possible; it lasts {shortest:?} to {longest:?}")]
    Ttl { asked: Duration, shortest: Duration, longest: Duration },
    #[error("there are already {limit} leases")]
    TooMany { limit: usize },
    #[error("the lease could not be recorded")]
    Transact(#[source] TransactError),
}
