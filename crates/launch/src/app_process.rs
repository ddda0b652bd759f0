//! The app's process: starts it tied to this one, passes signals on, waits for its end.

use std::ffi::OsString;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, WaitOptions};
use tollway_net::spawn::{Confinement, spawn_confined};

use crate::error::CannotStart;
use crate::guard::Guard;

/// What a shell adds to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// Changes to the environment of this process; `None` removes a variable.
pub(crate) type EnvironmentChanges = Vec<(&'static str, Option<String>)>;

/// A change of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Ended(Ending),
    /// By this signal; it can be continued.
    Stopped(i32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Code(i32),
    Signal(i32),
}

/// A started app. It leads a process group of its own.
pub(crate) struct App {
    pid: Pid,
    _guard: Guard,
}

impl App {
    /// Call it from a thread that lives as long as the process does.
    pub(crate) fn start(
        command: &[OsString],
        environment: EnvironmentChanges,
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

    /// The app with the process `child`. The caller does not wait for its end.
    pub(crate) fn of(child: &Child, mut guard: Guard) -> Self {
        let pid = Pid::from_child(child);
        // Without its guard the app is still ended by the kernel, only not what it starts.
        if let Err(error) = guard.watch(pid) {
            tracing::debug!(%error, "the app has no guard");
        }
        Self { pid, _guard: guard }
    }

    /// The process group, which has the number of the process.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    pub(crate) fn pass_on(&self, signal: Signal) {
        // Fails if it has ended, which the next call of `change` returns.
        let _ = rustix::process::kill_process(self.pid, signal);
    }

    /// Continues the app and what it has started.
    pub(crate) fn resume(&self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::CONT);
    }

    /// Whether processes that the app has started are left in its group.
    pub(crate) fn leaves_processes(&self) -> bool {
        rustix::process::test_kill_process_group(self.pid).is_ok()
    }

    /// Asks what the app has started to end.
    pub(crate) fn end_rest(&self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::TERM);
    }

    /// Ends the app and what it has started, at once.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
    }

    /// The change since the last call, if there is one; never waits.
    pub(crate) fn change(&self) -> Option<Change> {
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

impl Ending {
    /// The exit code of a shell.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => BY_SIGNAL + signal,
        }
    }

    /// A sentence about the end of the app of this name.
    pub(crate) fn sentence(self, app: &str) -> String {
        match self {
            Self::Code(0) => format!("{app} has ended"),
            Self::Code(code) => format!("{app} has ended with code {code}"),
            Self::Signal(signal) => format!("{app} was ended by signal {signal}"),
        }
    }
}
