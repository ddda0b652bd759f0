//! The clusters of `cargo xtask cluster`, for tests: `kubectl` against each, programs in their networks,
//! machines that are killed and started again.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::retry_until;

/// The variable with the folder of the rig, which `cargo xtask cluster test` sets.
const VARIABLE: &str = "TOLLWAY_CLUSTER";
/// How long a machine may take to be ready again.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Both clusters, `a` with the machines `a1` and `a2`, and `b` with `b1`.
#[derive(Debug)]
pub struct Rig {
    folder: PathBuf,
}

impl Rig {
    /// The clusters that the environment names; `None` where it names none.
    #[must_use]
    pub fn of_environment() -> Option<Self> {
        Some(Self { folder: std::env::var_os(VARIABLE)?.into() })
    }

    /// One of the clusters.
    #[must_use]
    pub fn cluster(&self, name: &'static str) -> Cluster<'_> {
        Cluster { rig: self, name }
    }

    /// Kills a machine with all that runs on it, as if its power failed.
    pub fn kill_machine(&self, name: &str) -> Result<()> {
        let pid = self.first_process(name)?;
        kill_process(pid, Signal::KILL)
            .with_context(|| format!("could not kill machine {name}"))?;
        let file = self.machine(name).join("pid");
        std::fs::remove_file(&file).with_context(|| format!("could not remove {}", file.display()))
    }

    /// The first process of a machine, which is in all of its namespaces.
    pub fn first_process(&self, machine: &str) -> Result<Pid> {
        let file = self.machine(machine).join("pid");
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("could not read {}", file.display()))?;
        running(&text).with_context(|| format!("{} names no running process", file.display()))
    }

    /// Starts a killed machine again, and waits until its process is there.
    pub fn start_machine(&self, name: &str) -> Result<()> {
        let folder = self.machine(name);
        let request = folder.join("start");
        File::create(&request).with_context(|| format!("could not make {}", request.display()))?;
        let pid = folder.join("pid");
        retry_until(START_LIMIT, "a machine starts", || pid.exists().then_some(()))
    }

    fn machine(&self, name: &str) -> PathBuf {
        self.folder.join("machines").join(name)
    }
}

/// The process of a text `PID START BOOT`, unless another one has its number by now.
fn running(text: &str) -> Option<Pid> {
    let mut words = text.split_whitespace();
    let (pid, start) = (words.next()?, words.next()?);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let seen = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?;
    Pid::from_raw(pid.parse().ok()?).filter(|_| seen == start)
}

/// One cluster of a [`Rig`].
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    rig: &'a Rig,
    name: &'static str,
}

impl Cluster<'_> {
    /// The administrator's access file. Its server is reached from the cluster's network alone.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.rig.folder.join(format!("{}.kubeconfig", self.name))
    }

    /// A program that runs in the network of the cluster, beside its machines.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(self.rig.folder.join(format!("enter-{}", self.name)));
        command.arg(program);
        command
    }

    /// Runs `kubectl` and returns what it printed.
    ///
    /// # Errors
    /// With its complaint, if it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(arguments, "")
    }

    /// Runs `kubectl` with a text on its standard input.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        let program: &Path = &self.rig.folder.join(format!("kubectl-{}", self.name));
        let line = || format!("kubectl {} in cluster {}", arguments.join(" "), self.name);
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(line)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read it reports the reason itself.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().with_context(line)?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{}: {}{printed}", line(), String::from_utf8_lossy(&output.stderr));
        }
        Ok(printed)
    }

    /// Runs lines of the shell in which `kubectl` is that of this cluster, as far as the first that fails.
    ///
    /// # Errors
    /// With what it printed, if one fails.
    pub fn shell(&self, lines: &str) -> Result<String> {
        let kubectl = self.rig.folder.join(format!("kubectl-{}", self.name));
        let lines = format!("kubectl() {{ {} \"$@\"; }}\n{lines}", kubectl.display());
        let output = Command::new("sh").args(["-e", "-c", &lines]).output().context("sh")?;
        let printed = [&*output.stdout, &*output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        if !output.status.success() {
            bail!("{printed}");
        }
        Ok(printed)
    }

    /// The lines that `kubectl` prints, each with when it came, until the iterator is dropped.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn kubectl_lines(&self, arguments: &[&str]) -> Result<Lines> {
        let program = self.rig.folder.join(format!("kubectl-{}", self.name));
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("kubectl {}", arguments.join(" ")))?;
        let printed = child.stdout.take().context("its output is piped")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut lines = BufReader::new(printed).lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send((line, Instant::now())))
        });
        Ok(Lines { child, lines })
    }

    /// Waits until `kubectl` prints what `holds` is about; the error has what it printed last.
    pub fn wait_for(
        &self,
        within: Duration,
        arguments: &[&str],
        holds: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let mut last = String::new();
        let what = format!("kubectl {} in cluster {}", arguments.join(" "), self.name);
        let found = retry_until(within, &what, || {
            last = self.kubectl(arguments).unwrap_or_else(|error| format!("{error:#}"));
            holds(&last).then_some(())
        });
        found.with_context(|| format!("it printed last: {last}"))?;
        Ok(last)
    }
}

/// What a command prints. Dropping it ends the command.
#[derive(Debug)]
pub struct Lines {
    child: Child,
    lines: mpsc::Receiver<(String, Instant)>,
}

impl Iterator for Lines {
    type Item = (String, Instant);

    fn next(&mut self) -> Option<Self::Item> {
        self.lines.recv().ok()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_got_the_number_of_another_is_not_that_one() {
        let pid = std::process::id();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let start = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap();
        assert!(running(&format!("{pid} {start} boot")).is_some());
        assert!(running(&format!("{pid} {start}0 boot")).is_none());
        assert!(running("").is_none());
    }
}
