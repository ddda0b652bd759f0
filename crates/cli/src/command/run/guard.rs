//! The guard: a tiny process that ends the app's process group when `tollway run` is killed.
//!
//! The kernel ends the app itself then, but not what the app has started, such as the server
//! below `npm start`. The guard reads a pipe that only `tollway run` can write: the app's group,
//! and at the end that all went well. When the pipe ends without that, it kills the group.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};
use tollway_net::spawn::spawn_detached;

/// The name of the hidden command.
pub(super) const COMMAND: &str = "run-guard";
const ALL_WELL: &str = "all well";

/// The guard of one app, as `tollway run` has it.
pub(super) struct Guard {
    child: Child,
    orders: File,
}

impl Guard {
    pub(super) fn start() -> Result<Self> {
        let (orders_end, orders) = io::pipe().context("cannot make a pipe")?;
        let mut command = Command::new(own_program());
        command.arg(COMMAND).env_clear().current_dir("/");
        command.stdin(orders_end).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn_detached(command).context("cannot start the guard of the app")?;
        let orders = File::from(std::os::fd::OwnedFd::from(orders));
        Ok(Self { child, orders })
    }

    /// Tells which group to end.
    pub(super) fn watch(&mut self, group: Pid) -> io::Result<()> {
        writeln!(self.orders, "{}", group.as_raw_nonzero())
    }
}

impl Drop for Guard {
    /// The end in good order.
    fn drop(&mut self) {
        // If the guard is gone already, there is nobody to tell.
        let _ = writeln!(self.orders, "{ALL_WELL}");
        let _ = self.child.wait();
    }
}

/// This program, also where its file was replaced since it was started.
pub(super) fn own_program() -> PathBuf {
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    program.unwrap_or_else(|| "/proc/self/exe".into())
}

/// The guard's own life.
pub(crate) fn run() {
    let mut lines = BufReader::new(io::stdin()).lines();
    let group = lines.next().and_then(Result::ok).and_then(|line| line.parse().ok());
    let Some(group) = group.and_then(Pid::from_raw) else { return };
    let all_well = lines.next().and_then(Result::ok).is_some_and(|line| line == ALL_WELL);
    if !all_well {
        // Fails if everything has ended, which is the aim.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}
