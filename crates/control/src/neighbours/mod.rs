//! Neighbours of the fabric: written by operators, followed by the agents of their groups.
//!
//! They are in a file of their own (`tollway.neighbours`), made at the first request. One task writes
//! it (`committer.rs`). Its latest changes are in a lane for each group (`lane.rs`), from which any
//! number of watchers read (`watch.rs`). The reasons are in `docs/design/007-neighbours-store.md`.

mod agents;
mod committer;
mod counts;
mod decide;
mod groups;
mod key;
mod lane;
mod open;
mod requests;
mod service;
mod tombstones;
mod walk;
mod watch;

pub(crate) use open::{FILE_NAME, Neighbours};
pub(crate) use service::{Access, NEIGHBOURS_REQUEST_BYTES, NeighboursService};
