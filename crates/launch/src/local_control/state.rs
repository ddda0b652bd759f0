//! The files of the local control plane in its directory: its state and its admin socket.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Folder of the store and the admin socket.
pub(super) const STORE: &str = "control";
const NAME: &str = "control.json";
/// Largest file that is read, in bytes.
const BYTES_LIMIT: u64 = 4096;

/// A control plane that ran or still runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct State {
    /// Of the program.
    pub(super) version: String,
    /// 0 when it ended in good order.
    pub(super) pid: u32,
    /// How long it stays after its last workload.
    pub(super) linger_ms: u64,
    /// Where workloads connect.
    pub(super) control: SocketAddr,
}

impl State {
    /// `None` when there is none, or it does not read as one.
    pub(super) fn read(directory: &Path) -> Option<Self> {
        let file = std::fs::File::open(directory.join(NAME)).ok()?;
        let mut bytes = Vec::new();
        file.take(BYTES_LIMIT).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Whole or not at all: readers come at any time.
    pub(super) fn write(&self, directory: &Path) -> std::io::Result<()> {
        let partial = directory.join(format!("{NAME}.partial"));
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(&partial, directory.join(NAME))
    }
}

/// The admin socket of a control plane in `directory`.
pub(super) fn socket(directory: &Path) -> PathBuf {
    directory.join(STORE).join(tollway_control::SOCKET_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(State::read(directory.path()), None);
        let state = State {
            version: "1.2.3".into(),
            pid: 7,
            linger_ms: 5,
            control: "127.0.0.1:4".parse().unwrap(),
        };
        state.write(directory.path()).unwrap();
        assert_eq!(State::read(directory.path()), Some(state));
        std::fs::write(directory.path().join(NAME), "{\"version\":").unwrap();
        assert_eq!(State::read(directory.path()), None);
    }
}
