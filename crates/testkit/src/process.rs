//! Starts a real program for a test, waits until it listens, and never leaves it behind.
//!
//! The program is killed when the value is dropped, and by the kernel when the thread that
//! started it ends first.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Signal;
use tollway_net::ports_file::Ports;
use tollway_net::process::{Process as Child, Readiness, Waited, log_tail};
use tollway_net::spawn::Confinement;

use crate::TempDir;

/// How long a program may take until it listens, on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// How much of its log is shown when something goes wrong.
const TAIL_LINES: usize = 40;

/// A program about to be started.
pub struct Start {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    ready_within: Duration,
}

/// A running program, its log and its ports.
pub struct Process {
    name: String,
    child: Child,
    ports: Ports,
    dir: TempDir,
}

impl Start {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            ready_within: READY_WITHIN,
        }
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// How long the program may take to write its ports file; default 20 s.
    pub fn ready_within(mut self, deadline: Duration) -> Self {
        self.ready_within = deadline;
        self
    }

    /// Starts the program and does not wait for anything.
    pub fn start(self) -> Result<Process> {
        let name = self.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let dir = TempDir::new()?;
        let log = File::create(log_path(&dir)).context("could not create the program's log")?;
        let mut command = Command::new(&self.program);
        command
            .args(self.arguments)
            .envs(self.variables)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("could not share the program's log")?)
            .stderr(log);
        let child = Child::spawn(command, Confinement::default())
            .with_context(|| format!("could not start {}", self.program.display()))?;
        Ok(Process { name, child, ports: Ports::new(), dir })
    }

    /// Starts the program with `--ports-file FILE` added and waits until that file holds
    /// `{"name": "ip:port", …}`. The error shows the end of the log.
    pub fn start_listening(self) -> Result<Process> {
        let ready_within = self.ready_within;
        let ports_dir = TempDir::new()?;
        let ports_file = ports_dir.path().join("ports.json");
        let mut process = self.arg("--ports-file").arg(&ports_file).start()?;
        // A file of another form is an error at once; one that is not complete yet is not.
        let read =
            || match std::fs::read(&ports_file).ok().map(|bytes| serde_json::from_slice(&bytes)) {
                Some(Ok(value)) => parse_ports(&value).map(Some),
                Some(Err(_)) | None => Ok(None),
            };
        let ports = match process.child.wait_ready(Instant::now() + ready_within, None, read) {
            Ok(Readiness::Ready(ports)) => Ok(ports),
            Ok(Readiness::Ended(status)) => Err(anyhow!("{} ended: {status}", process.name)),
            Ok(Readiness::TimedOut | Readiness::Interrupted) => {
                Err(anyhow!("{} writing its ports file: not within {ready_within:?}", process.name))
            }
            Err(error) => Err(error),
        };
        process.ports = ports.map_err(|error| process.explain(error))?;
        Ok(process)
    }
}

impl Process {
    pub fn pid(&self) -> u32 {
        self.child.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// The address of the listener that the program calls `name` in its ports file.
    pub fn port(&self, name: &str) -> Result<SocketAddr> {
        self.ports.get(name).copied().with_context(|| {
            format!("{} has no port `{name}`, only {:?}", self.name, self.ports.keys())
        })
    }

    /// Everything that the program wrote so far to its standard output and error.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(log_path(&self.dir)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.status().is_none()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.child.signal(signal).with_context(|| format!("could not signal {}", self.name))
    }

    /// Waits until the program ends by itself.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        match self.child.wait_until(Instant::now() + within, None) {
            Waited::Ended => {
                self.child.wait().with_context(|| format!("could not wait for {}", self.name))
            }
            Waited::TimedOut | Waited::Interrupted => {
                let error = anyhow!("end of {}: not within {within:?}", self.name);
                Err(self.explain(error))
            }
        }
    }

    /// Asks the program to end (SIGTERM) and waits for it.
    pub fn terminate(&mut self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(within)
    }

    /// Kills the program (SIGKILL).
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("could not kill {}", self.name))?;
        Ok(())
    }

    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        error
            .context(format!("the end of its log:\n{}", log_tail(&log_path(&self.dir), TAIL_LINES)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- {} (pid {}):\n{}",
                self.name,
                self.pid(),
                log_tail(&log_path(&self.dir), TAIL_LINES)
            );
        }
    }
}

fn log_path(dir: &TempDir) -> PathBuf {
    dir.path().join("log")
}

fn parse_ports(value: &serde_json::Value) -> Result<Ports> {
    let Some(object) = value.as_object() else {
        bail!("the ports file is no JSON object: {value}");
    };
    object
        .iter()
        .map(|(name, address)| {
            let parsed = address.as_str().and_then(|address| address.parse().ok());
            let parsed = parsed.with_context(|| format!("port `{name}`: no address: {address}"))?;
            Ok((name.clone(), parsed))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry_until;

    const SOON: Duration = Duration::from_secs(20);

    /// A shell script as the program; `$2` is the ports file.
    fn script(text: &str) -> Start {
        Start::new("/bin/sh").args(["-c", text, "script"])
    }

    fn is_gone(pid: u32) -> bool {
        match std::fs::read_to_string(format!("/proc/{pid}/status")) {
            Ok(status) => status.contains("State:\tZ"),
            Err(_) => true,
        }
    }

    #[test]
    fn ports_are_read_when_they_are_complete() {
        let mut process = script(
            r#"printf '{"http":"127.0.0.1:80' > $2; echo half; printf '80","admin":"[::1]:9"}' >> $2
               exec sleep 60"#,
        )
        .start_listening()
        .unwrap();
        assert_eq!(process.port("http").unwrap(), "127.0.0.1:8080".parse().unwrap());
        assert_eq!(process.port("admin").unwrap(), "[::1]:9".parse().unwrap());
        let error = process.port("grpc").unwrap_err().to_string();
        assert!(error.contains("no port `grpc`"), "{error}");
        assert!(process.is_running());
    }

    #[test]
    fn program_that_ends_early_is_an_error_with_its_log() {
        let Err(error) = script("echo cannot bind; exit 3").start_listening() else {
            panic!("the program cannot have listened");
        };
        let text = format!("{error:#}");
        assert!(text.contains("cannot bind") && text.contains("exit status: 3"), "{text}");
    }

    #[test]
    fn program_that_never_listens_is_an_error_after_the_deadline() {
        let never = script("echo still starting; exec sleep 60");
        let Err(error) = never.ready_within(Duration::from_millis(300)).start_listening() else {
            panic!("the program cannot have listened");
        };
        let text = format!("{error:#}");
        assert!(text.contains("still starting") && text.contains("not within"), "{text}");
    }

    #[test]
    fn terminate_lets_the_program_clean_up() {
        let text = "trap 'echo bye; exit 7' TERM; echo '{}' > $2; while :; do sleep 0.05; done";
        let mut process = script(text).start_listening().unwrap();
        assert_eq!(process.terminate(SOON).unwrap().code(), Some(7));
        assert!(process.log().contains("bye"));
    }

    #[test]
    fn drop_kills_the_program() {
        let process = script("exec sleep 60").start().unwrap();
        let pid = process.pid();
        assert!(!is_gone(pid));
        drop(process);
        assert!(is_gone(pid));
    }

    #[test]
    fn program_dies_with_the_thread_that_started_it() {
        let start = || {
            let process = script("echo '{}' > $2; exec sleep 60").start_listening().unwrap();
            let pid = process.pid();
            std::mem::forget(process);
            pid
        };
        let pid = std::thread::spawn(start).join().unwrap();
        retry_until(SOON, "death of the orphan", || is_gone(pid).then_some(())).unwrap();
    }

    #[test]
    fn ports_file_of_another_form_is_refused() {
        let parse = |text: &str| parse_ports(&serde_json::from_str(text).unwrap());
        assert!(parse(r#"["127.0.0.1:1"]"#).unwrap_err().to_string().contains("no JSON object"));
        assert!(parse(r#"{"http": 80}"#).unwrap_err().to_string().contains("`http`"));
    }
}
