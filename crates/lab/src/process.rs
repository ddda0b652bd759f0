//! Supervised processes: started with a clean environment and their output in files, watched
//! until ready, stopped in reverse order. None outlives the supervisor, whatever happens to it.

mod error;
mod spec;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tollway_net::ports_file::{self, Ports};
use tollway_net::process::{Process, Readiness, Stopped, Waited, log_tail, stop_in_order};
use tollway_net::spawn::Confinement;

pub use error::ProcessError;
pub use spec::Spec;

use crate::cancel::{Cancel, Cancelled};

/// How long a process may take from SIGTERM to its end before it is killed.
pub const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long the next process waits for one that is stopping. A process that takes longer goes on
/// stopping meanwhile: often it waits for connections of those that come after it.
const STOP_INTERVAL: Duration = Duration::from_millis(250);
/// Lines of a log that an error shows.
const TAIL_LINES: usize = 20;

/// Starts processes and owns them.
///
/// Not `Send`: the kernel kills a child when the thread that started it ends, so supervisor and
/// thread must live together.
#[derive(Debug)]
pub struct Supervisor {
    dir: PathBuf,
    cancel: Cancel,
    processes: Vec<Named>,
    same_thread: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Named {
    name: String,
    command_line: String,
    process: Process,
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
        ports_file::remove(&self.ports_path(&spec.name))
            .map_err(|source| ProcessError::Ports { source })?;
        let started = self.spawn(spec)?;
        let pid = started.pid();
        tracing::debug!(name = spec.name, pid, command = started.command_line, "process started");
        self.processes.push(started);
        Ok(pid)
    }

    /// Waits for the ports file of a started process.
    pub fn wait_ports(&mut self, name: &str, limit: Duration) -> Result<Ports, ProcessError> {
        let path = self.ports_path(name);
        self.wait_for(name, "its ports file", limit, || {
            ports_file::read(&path).map_err(|source| ProcessError::Ports { source })
        })
    }

    /// Calls `ready` every few milliseconds until it gives a value or fails, the process ends or
    /// `limit` has passed.
    pub fn wait_for<T>(
        &mut self,
        name: &str,
        what: &'static str,
        limit: Duration,
        ready: impl FnMut() -> Result<Option<T>, ProcessError>,
    ) -> Result<T, ProcessError> {
        let deadline = Instant::now() + limit;
        let found = self.processes.iter_mut().find(|started| started.name == name);
        let started = found.ok_or_else(|| ProcessError::Unknown { name: name.into() })?;
        match started.process.wait_ready(deadline, Some(self.cancel.as_fd()), ready)? {
            Readiness::Ready(value) => Ok(value),
            Readiness::Ended(status) => Err(self.exit_error(name, status)),
            Readiness::Interrupted => Err(Cancelled.into()),
            Readiness::TimedOut => {
                let (log, tail) = self.log_tail(name);
                Err(ProcessError::NotReady { name: name.into(), what, limit, log, tail })
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
        self.finish_with_output(spec, &mut running, limit)
    }

    /// Waits for the end of a process that was begun, and returns what it printed, with what
    /// earlier ones of its name did. As [`Supervisor::run`] otherwise.
    pub fn finish_with_output(
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
        let Named { name, process, .. } = &mut running.0;
        match process.wait_until(Instant::now() + limit, Some(self.cancel.as_fd())) {
            Waited::Ended => {
                process.wait().map_err(|source| ProcessError::Watch { name: name.clone(), source })
            }
            Waited::Interrupted => Err(Cancelled.into()),
            Waited::TimedOut => {
                let (log, tail) = self.log_tail(name);
                Err(ProcessError::TooLong { name: name.clone(), limit, log, tail })
            }
        }
    }

    /// # Errors
    /// [`ProcessError::Exited`] for the first process that ended before it was stopped.
    pub fn check_alive(&mut self) -> Result<(), ProcessError> {
        let ended = self.processes.iter_mut().find_map(|started| {
            started.process.status().map(|status| (started.name.clone(), status))
        });
        ended.map_or(Ok(()), |(name, status)| Err(self.exit_error(&name, status)))
    }

    /// The id of a running process.
    #[must_use]
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.processes.iter().find(|started| started.name == name).map(Named::pid)
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
        let started = self.processes.drain(..).map(|started| (started.name, started.process));
        let outcomes = stop_in_order(started.collect(), STOP_INTERVAL, STOP_LIMIT);
        outcomes.into_iter().filter_map(|(name, outcome)| complaint(&name, outcome)).collect()
    }

    fn spawn(&self, spec: &Spec) -> Result<Named, ProcessError> {
        let (out, err) = log_paths(&self.dir, &spec.name);
        let mut command = Command::new(&spec.program);
        command.args(&spec.args).env_clear().envs(spec.whole_environment()).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(log_file(&out)?).stderr(log_file(&err)?);
        let command_line = spec.command_line();
        let lent: Vec<BorrowedFd<'_>> = spec.lend.iter().map(|ns| ns.as_fd()).collect();
        let failed = |source| ProcessError::Spawn {
            name: spec.name.clone(),
            program: spec.program.clone(),
            source,
        };
        let open = |path| File::options().write(true).open(path);
        let cgroup = spec.cgroup.as_ref().map(open).transpose().map_err(failed)?;
        let confinement = Confinement {
            namespace: spec.namespace.as_deref(),
            inherit: &lent,
            cgroup: cgroup.as_ref().map(AsFd::as_fd),
        };
        let process = Process::spawn(command, confinement).map_err(failed)?;
        Ok(Named { name: spec.name.clone(), command_line, process })
    }

    pub(crate) fn exit_error(&self, name: &str, status: ExitStatus) -> ProcessError {
        let (log, tail) = self.log_tail(name);
        ProcessError::Exited { name: name.into(), status, log, tail }
    }

    /// The log to read, and its last lines: standard error, or else standard output.
    fn log_tail(&self, name: &str) -> (PathBuf, String) {
        let (out, err) = log_paths(&self.dir, name);
        let tail = log_tail(&err, TAIL_LINES);
        match tail.is_empty() {
            true => (out.clone(), log_tail(&out, TAIL_LINES)),
            false => (err, tail),
        }
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
pub struct Running(Named);

impl Running {
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Whether it has ended.
    #[must_use]
    pub(crate) fn has_ended(&self) -> bool {
        self.0.process.wait_until(Instant::now(), None) == Waited::Ended
    }
}

impl Named {
    fn pid(&self) -> u32 {
        self.process.pid().as_raw_nonzero().get().unsigned_abs()
    }
}

/// The sentence for a process that did not end cleanly.
fn complaint(name: &str, outcome: Stopped) -> Option<String> {
    match outcome {
        Stopped::Clean => None,
        Stopped::Failed(status) => Some(format!("{name} stopped with {status}")),
        Stopped::EndedBefore => Some(format!("{name} had ended before it was stopped")),
        Stopped::Killed => {
            Some(format!("{name} did not stop within {} s and was killed", STOP_LIMIT.as_secs()))
        }
    }
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

#[cfg(test)]
mod tests;
