//! A user of this machine with a runtime directory, who starts apps and calls them. What they
//! started ends with the value.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tollway_testkit::{Process, Start, TempDir, binary, retry_until};

/// Far more than anything here takes; a test that waits for it has failed.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a control plane stays after its last workload.
pub const LINGER: Duration = Duration::from_secs(2);

/// Users that no system has.
static NEXT_UID: AtomicU32 = AtomicU32::new(0);
const FIRST_UID: u32 = 1_000_000_000;

pub struct User {
    files: TempDir,
    /// The user to become: the program that does it, and the number.
    other: Option<(PathBuf, u32)>,
}

/// How a command ended and what it wrote.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Default for User {
    fn default() -> Self {
        Self::new()
    }
}

impl User {
    /// The user who runs the tests, with a runtime directory of its own.
    pub fn new() -> Self {
        let files = TempDir::new().unwrap();
        std::fs::set_permissions(files.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        Self { files, other: None }
    }

    /// A user without privileges, home or runtime directory, made by `setpriv`.
    pub fn unprivileged(setpriv: &Path) -> Self {
        let uid = FIRST_UID + std::process::id() * 100 + NEXT_UID.fetch_add(1, Ordering::Relaxed);
        Self { files: TempDir::new().unwrap(), other: Some((setpriv.to_owned(), uid)) }
    }

    /// The directory of the control plane of a user without a runtime directory.
    pub fn fallback(&self) -> PathBuf {
        let uid = self.other.as_ref().map(|(_, uid)| *uid).unwrap();
        PathBuf::from(format!("/tmp/tollway-{uid}"))
    }

    pub fn directory(&self) -> PathBuf {
        if self.other.is_some() { self.fallback() } else { self.files.path().join("tollway") }
    }

    /// Starts `script` under `tollway run`.
    pub fn run(&self, options: &[&str], script: &str) -> Process {
        self.run_command(options, &["sh", "-c", script])
    }

    pub fn run_command(&self, options: &[&str], command: &[&str]) -> Process {
        let words = self.run_words(options, command);
        let mut start = Start::new(&words[0]).args(&words[1..]);
        for (name, value) in self.variables() {
            start = start.env(name, value);
        }
        start.start().unwrap()
    }

    /// The words of `tollway run`.
    pub fn run_words(&self, options: &[&str], command: &[&str]) -> Vec<String> {
        let linger = LINGER.as_millis().to_string();
        let run = ["run", "--linger-ms", &linger];
        let mut words = self.words();
        words.extend([&run, options, &["--"], command].concat().iter().map(|w| (*w).to_owned()));
        words
    }

    /// A command in this user's environment.
    pub fn plain_command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.envs(self.variables()).current_dir(self.files.path());
        command
    }

    /// An empty runtime directory counts as none.
    pub fn variables(&self) -> [(&'static str, PathBuf); 2] {
        let runtime = match &self.other {
            Some(_) => PathBuf::new(),
            None => self.files.path().to_owned(),
        };
        [("XDG_RUNTIME_DIR", runtime), ("TOLLWAY", binary("tollway").unwrap())]
    }

    /// A control plane that is not the user's local one, and its store.
    pub fn control_plane(&self) -> (Process, PathBuf) {
        let store = self.path("store");
        let start = Start::new(binary("tollway").unwrap())
            .args(["control", "--listen", "127.0.0.1:0", "--store"])
            .arg(&store);
        (start.start_listening().unwrap(), store)
    }

    /// A file of this user's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Runs a command to its end.
    pub fn tollway(&self, arguments: &[&str]) -> Ended {
        let output = self.command(arguments).output().unwrap();
        Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// A command that this user types.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let words = self.words();
        let mut command = self.plain_command(Path::new(&words[0]));
        command.args(&words[1..]).args(arguments);
        command
    }

    pub fn call(&self, arguments: &[&str]) -> Ended {
        self.tollway(&[&["call"], arguments].concat())
    }

    pub fn until_called(&self, target: &str) {
        let mut last = String::new();
        let called = retry_until(PATIENCE, target, || {
            let called = self.call(&[target]);
            last = called.stderr;
            (called.code == Some(0)).then_some(())
        });
        called.map_err(|error| error.context(last)).unwrap();
    }

    pub fn control_pid(&self) -> u32 {
        control_pid(&self.directory()).unwrap()
    }

    /// Where the local control plane that was started last takes workloads.
    pub fn control_address(&self) -> SocketAddr {
        state(&self.directory()).unwrap()["control"].as_str().unwrap().parse().unwrap()
    }

    /// The program, with what makes it this user's.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some((setpriv, uid)) = &self.other {
            words.push(setpriv.to_string_lossy().into_owned());
            let id = format!("--reuid={uid}");
            words.extend([id, format!("--regid={uid}"), "--clear-groups".to_owned()]);
        }
        words.push(binary("tollway").unwrap().to_string_lossy().into_owned());
        words
    }
}

impl Drop for User {
    /// The control plane would end by itself, but the tests may be over before.
    fn drop(&mut self) {
        let directory = self.directory();
        if let Some(pid) = control_pid(&directory) {
            let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            if command.is_ok_and(|line| line.contains(&*directory.to_string_lossy())) {
                kill(pid, Signal::KILL);
            }
        }
        if self.other.is_some() {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn control_pid(directory: &Path) -> Option<u32> {
    u32::try_from(state(directory)?["pid"].as_u64()?).ok()
}

fn state(directory: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(directory.join("control.json")).ok()?).ok()
}

pub fn kill(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

/// The number that follows `label` at the beginning of a line.
pub fn pid_in(log: &str, label: &str) -> u32 {
    log.lines().find_map(|line| line.strip_prefix(label)?.trim().parse().ok()).unwrap()
}

pub fn is_gone(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => status.contains("State:\tZ"),
        Err(_) => true,
    }
}
