//! The guard: a small process that kills a process group when the process that started it is
//! killed.
//!
//! The kernel ends a confined process itself then, but not what that has started, such as the server
//! below `npm start`. The guard reads a pipe that only its starter can write: first the group, and
//! at an end in order a closing line. When the pipe ends without that line, the guard kills the
//! group.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::spawn::spawn_detached;

/// The line of an end in order.
const ALL_WELL: &str = "all well";

/// The guard of one group, as its starter has it. Its end in order is that of this value.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    orders: File,
}

impl Guard {
    /// Starts `command`, which is to call [`run_guard`]. It gets no environment, and standard
    /// streams of its own.
    ///
    /// # Errors
    /// Of the pipe to it, of fork and exec.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let (orders_end, orders) = io::pipe()?;
        command.env_clear().current_dir("/");
        command.stdin(orders_end).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn_detached(command)?;
        Ok(Self { child, orders: File::from(OwnedFd::from(orders)) })
    }

    /// Names the group to kill.
    pub(super) fn watch(&mut self, group: Pid) -> io::Result<()> {
        writeln!(self.orders, "{}", group.as_raw_nonzero())
    }
}

#[cfg(test)]
impl Guard {
    /// Ends the pipe as the kernel does for a process that is killed, and waits for the guard's end.
    pub(super) fn abandon(mut self) {
        let (_, closed) = io::pipe().unwrap();
        self.orders = File::from(OwnedFd::from(closed));
        self.child.wait().unwrap();
    }
}

impl Drop for Guard {
    /// An end in order: the guard kills nothing.
    fn drop(&mut self) {
        // Fails if the guard has ended already.
        let _ = writeln!(self.orders, "{ALL_WELL}");
        let _ = self.child.wait();
    }
}

/// Is the guard: reads its orders from standard input and carries them out.
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
