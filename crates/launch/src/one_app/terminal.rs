//! Which process group is in the terminal's foreground.
//!
//! The app has a process group of its own. While this process is in the foreground it puts the app
//! there, so that Ctrl-C and Ctrl-Z reach the app alone and it can read what is typed. `supervise`
//! decides when.

use nix::sys::signal::{SigSet, Signal};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use crate::error::LaunchError;

/// The controlling terminal of this process.
pub(super) struct Terminal {
    tty: OwnedFd,
    own_group: Pid,
}

/// Lets this process use the terminal from the background too, where the kernel would stop it.
/// For this thread and those that it starts; the app starts without this.
pub(super) fn stay_unstopped() -> Result<(), LaunchError> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTTOU);
    let blocked = signals.thread_block().map_err(std::io::Error::from);
    blocked.map_err(LaunchError::system("cannot block SIGTTOU"))
}

impl Terminal {
    /// `None` where there is none, such as for a service or in a pipeline of a build.
    pub(super) fn of_this_process() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self { tty, own_group: rustix::process::getpgrp() })
    }

    /// Hands the foreground to `group`, if it is ours or `group`'s. Returns whether `group` has it.
    pub(super) fn give(&self, group: Pid) -> bool {
        match rustix::termios::tcgetpgrp(&self.tty) {
            Ok(present) if present == group => true,
            Ok(present) if present == self.own_group => {
                rustix::termios::tcsetpgrp(&self.tty, group).is_ok()
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// Takes the foreground back from `group`, if it has it.
    pub(super) fn take_back(&self, group: Pid) {
        if rustix::termios::tcgetpgrp(&self.tty) == Ok(group) {
            // Fails when the terminal has gone.
            let _ = rustix::termios::tcsetpgrp(&self.tty, self.own_group);
        }
    }

    /// Stops this process and those it shares a job with, as Ctrl-Z does without us between.
    /// The kernel does nothing when no process could continue them.
    pub(super) fn stop_own_job(&self) {
        let _ = rustix::process::kill_process_group(self.own_group, rustix::process::Signal::TSTP);
    }
}
