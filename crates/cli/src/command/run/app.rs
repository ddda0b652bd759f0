//! The app's process: started tied to this one, told signals, waited for.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitOptions};
use thiserror::Error;
use tollway_net::spawn::{Confinement, spawn_confined};

use super::environment::Changes;
use super::guard::Guard;

/// What a shell answers for a command that it does not find, and for one that it may not run.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;
/// What a shell adds to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// The app did not start.
#[derive(Debug, Error)]
pub(crate) enum CannotStart {
    #[error("there is no program `{program}`; check its name and your PATH")]
    Missing { program: String },
    #[error("`{program}` cannot be run; check that it is a program, and its mode")]
    Refused { program: String, source: io::Error },
}

/// What has become of the app.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Ended(Ending),
    /// By this signal; it can be continued.
    Stopped(i32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Code(i32),
    Signal(i32),
}

/// A started app. It leads a process group of its own.
pub(super) struct App {
    pid: Pid,
    _guard: Guard,
}

impl App {
    /// Call it from a thread that lives as long as the process does.
    pub(super) fn start(
        command: &[OsString],
        environment: Changes,
        guard: Guard,
    ) -> Result<Self, CannotStart> {
        let program = command.first().cloned().unwrap_or_default();
        let failed = |source| CannotStart::of(program.to_string_lossy().into_owned(), source);
        let mut process = Command::new(&program);
        process.args(command.iter().skip(1));
        for (name, value) in environment {
            match value {
                Some(value) => process.env(name, value),
                None => process.env_remove(name),
            };
        }
        let child = spawn_confined(process, Confinement::default()).map_err(failed)?;
        Ok(Self::of(&child, guard))
    }

    /// The app that `child` is, which nobody else waits for.
    pub(super) fn of(child: &Child, mut guard: Guard) -> Self {
        let pid = Pid::from_child(child);
        // Without its guard the app is still ended by the kernel, only not what it starts.
        if let Err(error) = guard.watch(pid) {
            tracing::debug!(%error, "the app has no guard");
        }
        Self { pid, _guard: guard }
    }

    /// The process group, which has the number of the process.
    pub(super) fn group(&self) -> Pid {
        self.pid
    }

    pub(super) fn pass_on(&self, signal: Signal) {
        // Fails if it has ended, which the next look tells.
        let _ = rustix::process::kill_process(self.pid, signal);
    }

    /// Continues the app and what it has started.
    pub(super) fn resume(&self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::CONT);
    }

    /// Whether something of what the app has started lives on, in its group.
    pub(super) fn leaves_something(&self) -> bool {
        rustix::process::test_kill_process_group(self.pid).is_ok()
    }

    /// Asks what the app has started to end.
    pub(super) fn end_rest(&self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
    }

    /// Ends the app and what it has started, at once.
    pub(super) fn kill(&self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
    }

    /// What has changed since the last look; never waits.
    pub(super) fn look(&self) -> Option<Change> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let (_, status) = rustix::process::waitpid(Some(self.pid), options).ok()??;
        if let Some(code) = status.exit_status() {
            return Some(Change::Ended(Ending::Code(code)));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(Change::Ended(Ending::Signal(signal)));
        }
        status.stopping_signal().map(Change::Stopped)
    }
}

impl CannotStart {
    /// What hindered the start of a program.
    pub(super) fn of(program: String, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::NotFound {
            return Self::Missing { program };
        }
        Self::Refused { program, source }
    }

    /// The exit code, as a shell has it.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            Self::Missing { .. } => NOT_FOUND,
            Self::Refused { .. } => NOT_EXECUTABLE,
        }
    }
}

impl Ending {
    /// As a shell tells it.
    pub(super) fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => BY_SIGNAL + signal,
        }
    }

    /// What is told of the app of this name.
    pub(super) fn told(self, app: &str) -> String {
        match self {
            Self::Code(0) => format!("{app} has ended"),
            Self::Code(code) => format!("{app} has ended with code {code}"),
            Self::Signal(signal) => format!("{app} was ended by signal {signal}"),
        }
    }
}
