//! Neighbours of the fabric: written by operators, followed by the agents of their groups.
//!
//! They are in a file of their own beside the control plane's (`tollway.neighbours`), made when
//! somebody first asks. One task writes it (`committer.rs`); what it wrote lately stands in a lane for
//! each group (`lane.rs`), from which any number of watchers are told (`watch.rs`). Why it is so is
//! `docs/design/007-neighbours-store.md`.

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

pub(crate) use open::Neighbours;
pub(crate) use service::{Access, NEIGHBOURS_REQUEST_BYTES, NeighboursService};
