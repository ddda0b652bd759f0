//! The local control plane: one for each user of a machine. `tollway run` starts it on demand, and
//! commands that name no control plane use it.
//!
//! It is a process of its own (`process`), since it outlives the process that starts it. A file in
//! its directory (`directory`) holds its address (`state`); only its admin socket proves that it
//! runs. A lock decides which of several processes starts it (`start`). `restart` starts one again
//! that crashed.

mod directory;
mod error;
mod find;
mod process;
mod restart;
mod running;
mod start;
mod state;

pub use directory::DirectoryError;
pub use error::LocalError;
pub use find::{Found, find, find_or_start, inspect};
pub use process::{ServeError, serve};
pub use restart::{ControlEvent, restart_when_absent};
pub use running::LocalControl;

/// How long the control plane stays after its last workload, in milliseconds, unless set
/// otherwise.
pub const LINGER_MS: u64 = 60_000;
