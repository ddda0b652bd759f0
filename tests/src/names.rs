//! Programs for which a name has addresses of a test's choice: each runs in a mount namespace with a
//! hosts file of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use tollway_testkit::{Start, TempDir};

use crate::program::program;

/// What binds the hosts file over the system's, and then becomes the program.
const SCRIPT: &str = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";

/// A hosts file in which `localhost` has these addresses, in this order.
pub struct Hosts {
    unshare: PathBuf,
    files: TempDir,
}

impl Hosts {
    /// `None` if this user may not have such namespaces. `unshare` is the tool of that name.
    #[must_use]
    pub fn of_localhost(unshare: &Path, addresses: &[&str]) -> Option<Self> {
        let hosts = Self { unshare: unshare.to_owned(), files: TempDir::new().unwrap() };
        let lines: String = addresses.iter().map(|a| format!("{a} localhost\n")).collect();
        std::fs::write(hosts.file(), lines).unwrap();
        let mut trial = Command::new(unshare);
        trial.args(["-m", "sh", "-c", SCRIPT]).arg(hosts.file()).arg("true");
        trial.output().unwrap().status.success().then_some(hosts)
    }

    fn file(&self) -> PathBuf {
        self.files.path().join("hosts")
    }

    /// Our program there, without arguments yet.
    #[must_use]
    pub fn start(&self) -> Start {
        self.start_program(Path::new(program()))
    }

    #[must_use]
    pub fn start_program(&self, program: &Path) -> Start {
        let start = Start::new(&self.unshare).args(["-m", "sh", "-c", SCRIPT]);
        start.arg(self.file()).arg(program)
    }

    /// Our program there, to be run to its end.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.unshare);
        command.args(["-m", "sh", "-c", SCRIPT]).arg(self.file()).arg(program());
        command
    }
}
