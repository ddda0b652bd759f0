//! Revisioned keys: get, transact, list and watch, leases.
//!
//! [`Store`] is the interface of an engine whose log is a file ([`Store::open_embedded`]) or in
//! etcd ([`Store::open_etcd`]). Every transaction has one revision, shared by all its entries;
//! revisions only grow. A list is taken at a revision, and a watch from that revision sees every
//! later change: there is no gap between the two. Everything that a caller can grow is bounded: see
//! [`Limits`].

mod embedded;
mod error;
mod etcd;
mod model;
mod sequencer;
mod store;

pub use embedded::{
    Damage, Inspection, PROGRESS_EVERY_REVISIONS, Repaired, inspect, inspect_entry, repair,
    skip_lost_revisions,
};
pub use error::{
    LeaseError, OpenError, ReadError, RepairError, SkipError, TransactError, WatchError,
};
pub use etcd::{Etcd, EtcdError, EtcdOptions, EtcdTls};
pub use model::{
    Batch, Change, Commit, Entry, Expected, Guard, KeyRange, LeaseId, Limits, Op, Page, Scanned,
    Seen, Size, Transaction,
};
pub use sequencer::{Answer, CommitOutcome, Decide, Ended, Pending, Sequencer, SequencerTask};
pub use store::{Store, Watch};
