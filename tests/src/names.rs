//! Programs for which a name has addresses of a test's choice: each runs in a mount namespace with a
//! hosts file, or a list of name servers, of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use tollway_testkit::{Start, TempDir};

use crate::program::program;

/// What binds a file over the system's, and then becomes the program.
const SCRIPT: &str = "over=$1; shift; mount --bind \"$0\" \"$over\" && exec \"$@\"";

/// A file of the system's with other content.
pub struct Hosts {
    unshare: PathBuf,
    files: TempDir,
    over: &'static str,
}

impl Hosts {
    /// A hosts file in which `localhost` has these addresses, in this order. `None` if this user may not
    /// have such namespaces. `unshare` is the tool of that name.
    #[must_use]
    pub fn of_localhost(unshare: &Path, addresses: &[&str]) -> Option<Self> {
        let lines: String = addresses.iter().map(|a| format!("{a} localhost\n")).collect();
        Self::over("/etc/hosts", unshare, &lines)
    }

    /// Name servers that are asked in this order; as [`Self::of_localhost`].
    #[must_use]
    pub fn of_servers(unshare: &Path, addresses: &[&str]) -> Option<Self> {
        let lines: String = addresses.iter().map(|a| format!("nameserver {a}\n")).collect();
        Self::over("/etc/resolv.conf", unshare, &format!("{lines}options timeout:1\n"))
    }

    fn over(over: &'static str, unshare: &Path, content: &str) -> Option<Self> {
        let hosts = Self { unshare: unshare.to_owned(), files: TempDir::new().unwrap(), over };
        std::fs::write(hosts.file(), content).unwrap();
        let mut trial = hosts.bound();
        trial.arg("true").output().unwrap().status.success().then_some(hosts)
    }

    fn file(&self) -> PathBuf {
        self.files.path().join("file")
    }

    fn bound(&self) -> Command {
        let mut command = Command::new(&self.unshare);
        command.args(["-m", "sh", "-c", SCRIPT]).arg(self.file()).arg(self.over);
        command
    }

    /// Our program there, without arguments yet.
    #[must_use]
    pub fn start(&self) -> Start {
        self.start_program(Path::new(program()))
    }

    #[must_use]
    pub fn start_program(&self, program: &Path) -> Start {
        let start = Start::new(&self.unshare).args(["-m", "sh", "-c", SCRIPT]);
        start.arg(self.file()).arg(self.over).arg(program)
    }

    /// Our program there, to be run to its end.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.bound();
        command.arg(program());
        command
    }
}
