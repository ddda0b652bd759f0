//! Load on the table of neighbours of a control plane: an operator's writes, in rounds, and agents'
//! look-ups.
//!
//! The caller provides connections and their rights. Times are of the clock that all processes of
//! the machine share, so that an agent's marks are comparable.

mod follow;
mod get;
mod population;
mod write;

use std::time::Duration;

use tonic::Status;

pub use follow::Followers;
pub use get::{GetOptions, get_neighbours};
pub use population::{MAX_NEIGHBOURS, Population};
pub use write::{Pace, WriteOptions, write_neighbours};

/// How long agents may take for a round.
const HELD_WITHIN: Duration = Duration::from_secs(300);

/// Why a run cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum NeighbourLoadError {
    #[error(
        "{entries} neighbours are too many; {MAX_NEIGHBOURS} are the most of one round, each with \
         an address of its own"
    )]
    TooMany { entries: u64 },
    #[error("the control plane refuses: {}", .0.message())]
    Refused(#[from] Status),
    #[error(
        "the control plane did not make {count} of {entries} changes, the first since: {first}; \
         load a group of its own, with room for the run"
    )]
    NotMade { count: usize, entries: u64, first: String },
    #[error("the control plane answered {answered} of {sent} writes and ended")]
    Ended { answered: usize, sent: usize },
    #[error(
        "agents do not hold revision {revision} after {} s; check `tollway fabric status` next to \
         them", .limit.as_secs()
    )]
    NotHeld { revision: u64, limit: Duration },
    #[error("the control plane ended an agent's watch; check its log")]
    WatchEnded,
}
