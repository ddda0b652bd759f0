//! The guard: a small process that kills the app's process group when `tollway run` is killed.
//!
//! The kernel ends the app itself then, but not what the app has started, such as the server
//! below `npm start`. The guard reads a pipe that only `tollway run` can write: first the app's
//! group, and at an end in order a closing line. When the pipe ends without that line, the guard
//! kills the group.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tollway_net::spawn::spawn_detached;

use crate::error::LaunchError;
use crate::program::own_program;

/// The name of the hidden command.
const COMMAND: &str = "run-guard";
const ALL_WELL: &str = "all well";

/// The guard of one app, as `tollway run` has it.
pub(crate) struct Guard {
    child: Child,
    orders: File,
}

impl Guard {
    pub(crate) fn start() -> Result<Self, LaunchError> {
        let (orders_end, orders) = io::pipe().map_err(LaunchError::system("cannot make a pipe"))?;
        let mut command = Command::new(own_program());
        command.arg(COMMAND).env_clear().current_dir("/");
        command.stdin(orders_end).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn_detached(command)
            .map_err(LaunchError::system("cannot start the guard of the app"))?;
        let orders = File::from(std::os::fd::OwnedFd::from(orders));
        Ok(Self { child, orders })
    }

    /// Names the group to end.
    pub(crate) fn watch(&mut self, group: Pid) -> io::Result<()> {
        writeln!(self.orders, "{}", group.as_raw_nonzero())
    }
}

impl Drop for Guard {
    /// The app ended in order: the guard kills nothing.
    fn drop(&mut self) {
        // Fails if the guard has ended already.
        let _ = writeln!(self.orders, "{ALL_WELL}");
        let _ = self.child.wait();
    }
}

/// Runs the guard: the hidden command `run-guard`.
pub fn run_guard() {
    let mut lines = BufReader::new(io::stdin()).lines();
    let group = lines.next().and_then(Result::ok).and_then(|line| line.parse().ok());
    let Some(group) = group.and_then(Pid::from_raw) else { return };
    let all_well = lines.next().and_then(Result::ok).is_some_and(|line| line == ALL_WELL);
    if !all_well {
        // Fails if everything has ended, which is the aim.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}
