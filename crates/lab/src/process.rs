//! Supervised processes: started with a clean environment and their output in files, watched
//! until ready, stopped in reverse order. None outlives the supervisor, whatever happens to it.

mod error;
mod spec;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};
use tollway_net::spawn::{Confinement, spawn_confined};

pub use error::ProcessError;
pub use spec::Spec;

use crate::cancel::{Cancel, Waited};
use crate::ports::{self, Ports};

/// How long a process may take from SIGTERM to its end before it is killed.
pub const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long the next process waits for one that is stopping. A process that takes longer goes on
/// stopping meanwhile: often it waits for connections of those that come after it.
const STOP_TURN: Duration = Duration::from_millis(250);
/// How often a file a process should write is looked for.
const READY_INTERVAL: Duration = Duration::from_millis(4);

/// Starts processes and owns them.
///
/// Not `Send`: the kernel kills a child when the thread that started it ends, so supervisor and
/// thread must live together.
#[derive(Debug)]
pub struct Supervisor {
    dir: PathBuf,
    cancel: Cancel,
    processes: Vec<Process>,
    same_thread: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Process {
    name: String,
    command_line: String,
    child: Child,
    pidfd: OwnedFd,
}

impl Supervisor {
    /// Keeps output and ports files in `dir`, which must exist.
    #[must_use]
    pub fn new(dir: &Path, cancel: &Cancel) -> Self {
        let dir = dir.to_path_buf();
        Self { dir, cancel: cancel.clone(), processes: Vec::new(), same_thread: PhantomData }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a process of that name should write its ports file.
    #[must_use]
    pub fn ports_path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{}.ports.json", file_stem(name)))
    }

    /// Starts a process that runs until it is stopped. The ports file of an earlier one of its
    /// name is removed: it would pass for this one's.
    pub fn start(&mut self, spec: &Spec) -> Result<u32, ProcessError> {
        self.cancel.check()?;
        ports::remove(&self.ports_path(&spec.name))
            .map_err(|source| ProcessError::Ports { source })?;
        let process = self.spawn(spec)?;
        let pid = process.child.id();
        tracing::debug!(name = spec.name, pid, command = process.command_line, "process started");
        self.processes.push(process);
        Ok(pid)
    }

    /// Waits for the ports file of a started process.
    pub fn wait_ports(&mut self, name: &str, limit: Duration) -> Result<Ports, ProcessError> {
        let path = self.ports_path(name);
        self.wait_for(name, "its ports file", limit, || {
            ports::read(&path).map_err(|source| ProcessError::Ports { source })
        })
    }

    /// Asks `ready` every few milliseconds until it answers, fails, the process ends or `limit`
    /// has passed.
    pub fn wait_for<T>(
        &mut self,
        name: &str,
        what: &'static str,
        limit: Duration,
        mut ready: impl FnMut() -> Result<Option<T>, ProcessError>,
    ) -> Result<T, ProcessError> {
        let until = Instant::now() + limit;
        loop {
            if let Some(answer) = ready()? {
                return Ok(answer);
            }
            let process = self.process_mut(name)?;
            let pidfd = process.pidfd.try_clone().map_err(|source| process.watch_error(source))?;
            let next = until.min(Instant::now() + READY_INTERVAL);
            if self.cancel.wait(Some(pidfd.as_fd()), next)? == Waited::Readable {
                return Err(self.ended(name));
            }
            if Instant::now() >= until {
                let (log, tail) = self.log_tail(name);
                return Err(ProcessError::NotReady { name: name.into(), what, limit, log, tail });
            }
        }
    }

    /// Runs a short command to its end and returns what it printed. Any other end than exit
    /// status 0 within `limit` is an error with the tail of its output.
    pub fn run(&self, spec: &Spec, limit: Duration) -> Result<String, ProcessError> {
        let (path, _) = log_paths(&self.dir, &spec.name);
        // What an earlier command of the name printed is not this one's; it may not exist.
        let _ = fs::remove_file(&path);
        let mut running = self.begin(spec)?;
        self.finish_told(spec, &mut running, limit)
    }

    /// Waits for the end of a process that was begun, and returns what it printed, with what
    /// earlier ones of its name did. As [`Supervisor::run`] otherwise.
    pub fn finish_told(
        &self,
        spec: &Spec,
        running: &mut Running,
        limit: Duration,
    ) -> Result<String, ProcessError> {
        let (path, _) = log_paths(&self.dir, &spec.name);
        let status = self.finish(running, limit)?;
        if !status.success() {
            return Err(self.exit_error(&spec.name, status));
        }
        fs::read_to_string(&path).map_err(|source| ProcessError::Log { path, source })
    }

    /// Starts a process that ends by itself; [`Running`] kills it when dropped before.
    pub fn begin(&self, spec: &Spec) -> Result<Running, ProcessError> {
        self.cancel.check()?;
        Ok(Running(self.spawn(spec)?))
    }

    /// Waits for the end of a process, whatever its status.
    pub fn finish(
        &self,
        running: &mut Running,
        limit: Duration,
    ) -> Result<ExitStatus, ProcessError> {
        let process = &mut running.0;
        let until = Instant::now() + limit;
        if self.cancel.wait(Some(process.pidfd.as_fd()), until)? == Waited::TimedOut {
            let (log, tail) = self.log_tail(&process.name);
            let name = process.name.clone();
            return Err(ProcessError::TooLong { name, limit, log, tail });
        }
        process.child.wait().map_err(|source| process.watch_error(source))
    }

    /// Fails with the story of the first process that ended though nobody stopped it.
    pub fn check_alive(&mut self) -> Result<(), ProcessError> {
        let ended = self.processes.iter_mut().find_map(|process| {
            matches!(process.child.try_wait(), Ok(Some(_))).then(|| process.name.clone())
        });
        ended.map_or(Ok(()), |name| Err(self.ended(&name)))
    }

    /// The id of a running process.
    #[must_use]
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.processes.iter().find(|p| p.name == name).map(|p| p.child.id())
    }

    /// Command line by process name, in order of names.
    #[must_use]
    pub fn command_lines(&self) -> BTreeMap<String, String> {
        self.processes.iter().map(|p| (p.name.clone(), p.command_line.clone())).collect()
    }

    /// Stops the processes of these names, the last started first, as [`Supervisor::stop`] does.
    pub fn stop_named(&mut self, names: &[String]) -> Vec<String> {
        let all = std::mem::take(&mut self.processes);
        let (named, others) = all.into_iter().partition(|process| names.contains(&process.name));
        self.processes = named;
        let complaints = self.stop();
        self.processes = others;
        complaints
    }

    /// Stops all processes, the last started first: SIGTERM, and SIGKILL after [`STOP_LIMIT`].
    /// Returns a sentence for each that did not end cleanly.
    pub fn stop(&mut self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut lingering = Vec::new();
        while let Some(mut process) = self.processes.pop() {
            if matches!(process.child.try_wait(), Ok(Some(_))) {
                complaints.push(format!("{} had ended before it was stopped", process.name));
                continue;
            }
            // Fails only when the process ended meanwhile, which the wait then sees.
            let _ = rustix::process::pidfd_send_signal(&process.pidfd, Signal::TERM);
            let told = Instant::now();
            if wait_readable(&process.pidfd, told + STOP_TURN) {
                complaints.extend(process.complaint());
            } else {
                lingering.push((process, told));
            }
        }
        for (process, told) in lingering {
            complaints.extend(process.end_by(told + STOP_LIMIT));
        }
        complaints
    }

    fn spawn(&self, spec: &Spec) -> Result<Process, ProcessError> {
        let (out, err) = log_paths(&self.dir, &spec.name);
        let mut command = Command::new(&spec.program);
        command.args(&spec.args).env_clear().envs(spec.whole_environment()).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(log_file(&out)?).stderr(log_file(&err)?);
        let command_line = spec.command_line();
        let lent: Vec<BorrowedFd<'_>> = spec.lend.iter().map(|ns| ns.as_fd()).collect();
        let confinement = Confinement { namespace: spec.namespace.as_deref(), inherit: &lent };
        let failed = |source| ProcessError::Spawn {
            name: spec.name.clone(),
            program: spec.program.clone(),
            source,
        };
        let child = spawn_confined(command, confinement).map_err(failed)?;
        match open_pidfd(&child) {
            Ok(pidfd) => Ok(Process { name: spec.name.clone(), command_line, child, pidfd }),
            Err(source) => {
                end_now(child);
                Err(failed(source))
            }
        }
    }

    fn process_mut(&mut self, name: &str) -> Result<&mut Process, ProcessError> {
        let found = self.processes.iter_mut().find(|process| process.name == name);
        found.ok_or_else(|| ProcessError::Unknown { name: name.into() })
    }

    /// The error for a process whose end was noticed.
    fn ended(&mut self, name: &str) -> ProcessError {
        match self.process_mut(name).map(|process| process.child.wait()) {
            Ok(Ok(status)) => self.exit_error(name, status),
            Ok(Err(source)) => ProcessError::Watch { name: name.into(), source },
            Err(error) => error,
        }
    }

    pub(crate) fn exit_error(&self, name: &str, status: ExitStatus) -> ProcessError {
        let (log, tail) = self.log_tail(name);
        ProcessError::Exited { name: name.into(), status, log, tail }
    }

    /// The log to look at, and its last lines: what went to standard error, or else to standard
    /// output.
    fn log_tail(&self, name: &str) -> (PathBuf, String) {
        let (out, err) = log_paths(&self.dir, name);
        let tail = tail_of(&err);
        if tail.is_empty() { (out.clone(), tail_of(&out)) } else { (err, tail) }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        for complaint in self.stop() {
            tracing::warn!("{complaint}");
        }
    }
}

/// A process expected to end by itself. Killed when dropped before.
#[derive(Debug)]
pub struct Running(Process);

impl Running {
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when the process has ended and was waited for.
        let _ = self.0.child.kill();
        let _ = self.0.child.wait();
    }
}

impl Process {
    fn watch_error(&self, source: io::Error) -> ProcessError {
        ProcessError::Watch { name: self.name.clone(), source }
    }

    /// Waits until then, and kills what is left.
    fn end_by(self, until: Instant) -> Option<String> {
        if wait_readable(&self.pidfd, until) {
            return self.complaint();
        }
        end_now(self.child);
        Some(format!("{} did not stop within {} s and was killed", self.name, STOP_LIMIT.as_secs()))
    }

    /// What is wrong with how a stopped process ended.
    fn complaint(mut self) -> Option<String> {
        let status = self.child.wait().ok()?;
        let clean = status.success() || status.signal() == Some(Signal::TERM.as_raw());
        (!clean).then(|| format!("{} stopped with {status}", self.name))
    }
}

/// Like [`Cancel::wait`] but not to be cancelled: stopping goes on after Ctrl-C.
fn wait_readable(fd: &OwnedFd, until: Instant) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(_) if left.is_zero() => return false,
            Err(_) => {}
        }
    }
}

fn open_pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

fn end_now(mut child: Child) {
    // Both fail only when the process has ended and was waited for.
    let _ = child.kill();
    let _ = child.wait();
}

fn log_file(path: &Path) -> Result<File, ProcessError> {
    let open = File::options().create(true).append(true).open(path);
    open.map_err(|source| ProcessError::Log { path: path.into(), source })
}

fn log_paths(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    let stem = file_stem(name);
    (dir.join(format!("{stem}.out")), dir.join(format!("{stem}.err")))
}

fn file_stem(name: &str) -> String {
    name.replace(['/', ' '], "-")
}

fn tail_of(path: &Path) -> String {
    const TAIL_LINES: usize = 20;
    const TAIL_BYTES: usize = 4_096;
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests;
