//! One supervised process: tied to this one, watched without polling, stopped by a deadline.
//!
//! A [`Process`] leads a process group of its own, and the kernel kills it when the thread that
//! started it ends; a [`Guard`] then kills what it has started. One that is [detached] outlives this
//! process. Its end makes a descriptor readable, so a wait for it can also be interrupted and
//! bounded. [`stop_in_order`] ends several; [`Lines`] passes their output on. Names and what a
//! failure means are left to the callers.
//!
//! [detached]: Process::spawn_detached

mod guard;
mod lines;
mod log;
mod stop;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

pub use guard::{Guard, run_guard};
pub use lines::{Lines, Stream};
pub use log::log_tail;
pub use stop::{Stopped, stop_in_order};

use crate::spawn::{Confinement, spawn_confined, spawn_detached};

/// Interval of [`Process::wait_ready`]'s checks.
const READY_INTERVAL: Duration = Duration::from_millis(4);
/// What a shell adds to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// A running process, or one that has ended. It is killed when dropped, unless it is detached.
///
/// The thread that starts it must live as long as it does, unless it is detached.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Readable once the process has ended.
    pidfd: OwnedFd,
    guard: Option<Guard>,
    /// Its end follows from the end of this value.
    is_tied: bool,
}

/// Why a wait for the end of a process returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    Ended,
    /// The descriptor that interrupts the wait became readable.
    Interrupted,
    TimedOut,
}

/// The outcome of a wait for a process to become ready.
#[derive(Debug)]
pub enum Readiness<T> {
    Ready(T),
    Ended(ExitStatus),
    Interrupted,
    TimedOut,
}

/// A change of a process that may also be stopped and continued, as a job of a shell is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Ended(Ending),
    /// By this signal; it can be continued.
    Stopped(i32),
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Code(i32),
    Signal(i32),
}

impl Process {
    /// Starts `command` as [`spawn_confined`] does.
    ///
    /// # Errors
    /// Of fork and exec, and of opening the descriptor of the process; nothing is left running.
    pub fn spawn(command: Command, confinement: Confinement<'_>) -> io::Result<Self> {
        Self::of(spawn_confined(command, confinement)?, true)
    }

    /// Starts `command` as [`spawn_detached`] does.
    ///
    /// # Errors
    /// Those of [`Self::spawn`].
    pub fn spawn_detached(command: Command) -> io::Result<Self> {
        Self::of(spawn_detached(command)?, false)
    }

    fn of(mut child: Child, is_tied: bool) -> io::Result<Self> {
        match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { child, pidfd, guard: None, is_tied }),
            Err(error) => {
                // Both fail only if the process has ended and was waited for.
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    /// Has `guard` kill its group if this process is killed. The guard ends with this value.
    ///
    /// # Errors
    /// If the guard has ended.
    pub fn set_guard(&mut self, mut guard: Guard) -> io::Result<()> {
        guard.watch(self.pid())?;
        self.guard = Some(guard);
        Ok(())
    }

    /// Its process id, which is also that of its group.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The other end of its standard output, if that is a pipe that was not taken yet.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The other end of its standard error, if that is a pipe that was not taken yet.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If it has ended and was waited for.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.pidfd, signal)?)
    }

    /// Sends a signal to its group: to it and to the processes that it started and that stayed in
    /// the group. The group outlives its leader.
    pub fn signal_group(&self, signal: Signal) {
        // Fails only if the group is empty.
        let _ = rustix::process::kill_process_group(self.pid(), signal);
    }

    /// Whether its group has a process, be it the leader or one that the leader started.
    #[must_use]
    pub fn has_group(&self) -> bool {
        rustix::process::test_kill_process_group(self.pid()).is_ok()
    }

    /// How it ended, if it has; never waits.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// What changed since the last call, stops included; never waits. Use either this or
    /// [`Self::status`]: each end is reported once.
    #[must_use]
    pub fn change(&self) -> Option<Change> {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        let (_, status) = rustix::process::waitpid(Some(self.pid()), options).ok()??;
        if let Some(code) = status.exit_status() {
            return Some(Change::Ended(Ending::Code(code)));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(Change::Ended(Ending::Signal(signal)));
        }
        status.stopping_signal().map(Change::Stopped)
    }

    /// Waits for its end until a deadline, or until `interrupt` is readable.
    #[must_use]
    pub fn wait_until(&self, deadline: Instant, interrupt: Option<BorrowedFd<'_>>) -> Waited {
        let own = self.pidfd.as_fd();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Without an interrupt its slot names the process again, with nothing to wait for.
            let (other, flags) =
                interrupt.map_or((own, PollFlags::empty()), |fd| (fd, PollFlags::IN));
            let mut fds = [
                PollFd::from_borrowed_fd(other, flags),
                PollFd::from_borrowed_fd(own, PollFlags::IN),
            ];
            // Fails when a signal arrives or memory is short: poll again.
            let polled = rustix::event::poll(&mut fds, Some(&timespec(left)));
            if polled.is_ok() && !flags.is_empty() && !fds[0].revents().is_empty() {
                return Waited::Interrupted;
            }
            if polled.is_ok() && !fds[1].revents().is_empty() {
                return Waited::Ended;
            }
            if left.is_zero() {
                return Waited::TimedOut;
            }
        }
    }

    /// Waits for its end, which [`Self::wait_until`] has reported, and removes it from the
    /// kernel's table of processes.
    ///
    /// # Errors
    /// If something else has waited for it.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Calls `ready` every few milliseconds until it gives a value or fails, the process ends,
    /// `interrupt` is readable, or the deadline passes. A process that has ended is not ready.
    ///
    /// # Errors
    /// Those of `ready`.
    pub fn wait_ready<T, E>(
        &mut self,
        deadline: Instant,
        interrupt: Option<BorrowedFd<'_>>,
        mut ready: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Readiness<T>, E> {
        loop {
            if let Some(value) = ready()? {
                return Ok(match self.status() {
                    Some(status) => Readiness::Ended(status),
                    None => Readiness::Ready(value),
                });
            }
            let next = deadline.min(Instant::now() + READY_INTERVAL);
            match self.wait_until(next, interrupt) {
                Waited::Ended => match self.status() {
                    Some(status) => return Ok(Readiness::Ended(status)),
                    None => continue,
                },
                Waited::Interrupted => return Ok(Readiness::Interrupted),
                Waited::TimedOut if next == deadline => return Ok(Readiness::TimedOut),
                Waited::TimedOut => {}
            }
        }
    }

    /// Lets it run on, which is of use if it is detached. A thread waits for its end, so that it does
    /// not stay as a zombie while this process lives.
    ///
    /// # Errors
    /// If the thread cannot be started; the process runs on all the same.
    pub fn release(mut self) -> io::Result<()> {
        self.is_tied = false;
        let waiting = std::thread::Builder::new().name("wait-for-end".to_owned());
        waiting.spawn(move || self.wait()).map(|_| ())
    }

    /// Kills it and waits for its end, which may have been before.
    ///
    /// # Errors
    /// If something else has waited for it.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        // By the descriptor: the process id may be another's once the end was waited for.
        let _ = self.signal(Signal::KILL);
        self.child.wait()
    }
}

impl Ending {
    /// The exit code that a shell gives it.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => BY_SIGNAL + signal,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_tied {
            // Fails only if something else has waited for it.
            let _ = self.kill();
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests;
