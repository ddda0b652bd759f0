//! Redis, PostgreSQL and MariaDB, real ones: each on a port and in a folder of its own, without anything
//! of the system's configuration, and gone with the value that holds it.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, geteuid};

use crate::program::attempt;
use crate::{Process, Start, TempDir, free_port, retry_until, tool};

/// Far longer than a server takes to start on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time for a server to end after its signal.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The user that Debian's package of PostgreSQL makes.
const SERVER_USER: &str = "postgres";

/// A Redis server with a password.
pub struct RedisServer {
    process: Process,
    address: SocketAddr,
    options: Vec<String>,
    _folder: TempDir,
}

impl RedisServer {
    pub const PASSWORD: &'static str = "a secret of tests";

    /// Starts Debian's `redis-server`, with more `options` of its configuration.
    pub fn start(options: &[&str]) -> Result<Self> {
        let folder = TempDir::new()?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let options: Vec<String> = ["--save", "", "--appendonly", "no", "--dir"]
            .into_iter()
            .map(str::to_owned)
            .chain([folder.path().display().to_string()])
            .chain(options.iter().map(|&option| option.to_owned()))
            .collect();
        let process = run_redis(address, &options)?;
        Ok(Self { process, address, options, _folder: folder })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs a command of `redis-cli`; what it prints, without the last line's end.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        let client = tool("redis-cli").context("there is no redis-cli")?;
        let mut command = Command::new(client);
        command.args(["-h", "127.0.0.1", "-p", &self.address.port().to_string()]);
        command.args(["-a", Self::PASSWORD, "--no-auth-warning"]).args(arguments);
        printed(&mut command)
    }

    /// Kills it; its data is lost.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Starts it again where it was.
    pub fn restart(&mut self) -> Result<()> {
        self.process = run_redis(self.address, &self.options)?;
        Ok(())
    }
}

fn run_redis(address: SocketAddr, options: &[String]) -> Result<Process> {
    let server = tool("redis-server").context("there is no redis-server")?;
    let port = address.port().to_string();
    let process = Start::new(server)
        .args(["--bind", "127.0.0.1", "--port", &port, "--requirepass", RedisServer::PASSWORD])
        .args(options)
        .start()?;
    until_listening(process, address)
}

/// A MariaDB server without rights: everybody on this machine is its root.
pub struct MariaDbServer {
    _process: Process,
    address: SocketAddr,
    _folder: TempDir,
}

impl MariaDbServer {
    /// Makes a database by Debian's `mariadb-install-db` and serves it.
    pub fn start() -> Result<Self> {
        let install = tool("mariadb-install-db").context("there is no mariadb-install-db")?;
        let server = tool("mariadbd").context("there is no mariadbd")?;
        let folder = TempDir::new()?;
        let data = folder.path().join("data");
        let user = if geteuid().is_root() { "root" } else { "" };
        let mut make = Command::new(install);
        make.args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]);
        make.arg(format!("--datadir={}", data.display())).arg(format!("--user={user}"));
        if let Err(reason) = attempt(&mut make) {
            bail!("mariadb-install-db failed: {reason}");
        }
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let process = Start::new(server)
            .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-grant-tables"])
            .args(["--innodb-buffer-pool-size=8M", "--innodb-flush-log-at-trx-commit=0"])
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", folder.path().join("socket").display()))
            .arg(format!("--port={}", address.port()))
            .arg(format!("--user={user}"))
            .start()?;
        Ok(Self { _process: until_listening(process, address)?, address, _folder: folder })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A PostgreSQL server with an empty database.
pub struct PostgresServer {
    process: Process,
    address: SocketAddr,
    programs: PathBuf,
    options: Vec<String>,
    folder: TempDir,
}

impl PostgresServer {
    pub const USER: &'static str = "tollway";
    pub const PASSWORD: &'static str = "a secret of tests";

    /// Makes a database by Debian's `initdb` and serves it, with more `options` (`name=value`).
    pub fn start(options: &[&str]) -> Result<Self> {
        let initdb = tool("initdb").context("there is no initdb")?;
        let programs = initdb.parent().map(Path::to_owned).unwrap_or_default();
        let folder = TempDir::new()?;
        let data = folder.path().join("data");
        std::fs::create_dir(&data)?;
        let secret = folder.path().join("password");
        std::fs::write(&secret, Self::PASSWORD)?;
        give_to_server(folder.path(), &data)?;
        let line = as_server(&initdb);
        let mut make = Command::new(&line[0]);
        make.args(&line[1..]).arg("-D").arg(&data).arg("--pwfile").arg(&secret).current_dir("/");
        make.args(["-U", Self::USER, "-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "-N"]);
        if let Err(reason) = attempt(&mut make) {
            bail!("initdb failed: {reason}");
        }
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let process = run_postgres(&programs, &data, address, &options)?;
        let server = Self { process, address, programs, options, folder };
        retry_until(READY_WITHIN, "PostgreSQL to take queries", || server.query("SELECT 1").ok())?;
        Ok(server)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// In the words of libpq.
    pub fn connection_string(&self) -> String {
        let (user, password, port) = (Self::USER, Self::PASSWORD, self.address.port());
        format!("host=127.0.0.1 port={port} user={user} password='{password}' dbname=postgres")
    }

    /// Runs a statement by `psql`: rows of cells with `|` between them.
    pub fn query(&self, statement: &str) -> Result<String> {
        let client = tool("psql").context("there is no psql")?;
        let mut command = Command::new(client);
        command.env("PGPASSWORD", Self::PASSWORD).env("PGSSLMODE", "prefer");
        command.args(["-h", "127.0.0.1", "-p", &self.address.port().to_string()]);
        command.args(["-U", Self::USER, "-d", "postgres", "-X", "-q", "-A", "-t"]);
        command.args(["-v", "ON_ERROR_STOP=1", "-c", statement]);
        printed(&mut command)
    }

    /// Ends it in the middle of its work.
    pub fn kill(&mut self) -> Result<()> {
        // Its children would keep the folder otherwise.
        self.process.signal(Signal::QUIT)?;
        self.process.wait(ENDS_WITHIN).map(drop)
    }

    /// Starts it again at its address, with its data.
    pub fn restart(&mut self) -> Result<()> {
        let data = self.folder.path().join("data");
        self.process = run_postgres(&self.programs, &data, self.address, &self.options)?;
        let awaited = "PostgreSQL to take queries again";
        retry_until(READY_WITHIN, awaited, || self.query("SELECT 1").ok()).map(drop)
    }

    /// A file that only the server reads, such as a key.
    pub fn file(name: &str, content: &str) -> Result<(TempDir, PathBuf)> {
        let folder = TempDir::new()?;
        let file = folder.path().join(name);
        std::fs::write(&file, content)?;
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600))?;
        give_to_server(folder.path(), &file)?;
        Ok((folder, file))
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.process.is_running() {
            // A kill follows where it does not obey.
            let _ = self.kill();
        }
    }
}

fn run_postgres(
    programs: &Path,
    data: &Path,
    address: SocketAddr,
    options: &[String],
) -> Result<Process> {
    let port = format!("port={}", address.port());
    let own = ["listen_addresses=127.0.0.1", &port, "unix_socket_directories=", "fsync=off"];
    let line = as_server(&programs.join("postgres"));
    let mut start = Start::new(&line[0]).args(&line[1..]).arg("-D").arg(data);
    for option in own.into_iter().chain(options.iter().map(String::as_str)) {
        start = start.arg("-c").arg(option);
    }
    until_listening(start.start()?, address)
}

/// The command line of a program of PostgreSQL, which refuses to run as root: then its own user
/// runs it.
fn as_server(program: &Path) -> Vec<OsString> {
    let own = program.as_os_str().to_owned();
    if !geteuid().is_root() {
        return vec![own];
    }
    let other = ["setpriv", "--reuid", SERVER_USER, "--regid", SERVER_USER, "--clear-groups"];
    // The parent-death signal is lost with the change of the user.
    let line = other.into_iter().chain(["--pdeathsig", "KILL", "--"]).map(OsString::from);
    line.chain([own]).collect()
}

/// Gives the server's user a file or folder of its own in a folder of the test.
fn give_to_server(folder: &Path, path: &Path) -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    let user = printed(Command::new("id").args(["-u", SERVER_USER]))?;
    let user = user.parse().with_context(|| format!("no number of a user: {user}"))?;
    chown(path, Some(user), None).with_context(|| format!("could not give {}", path.display()))
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().context("could not start the client")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("{}{text}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text.trim_end_matches('\n').to_owned())
}

fn until_listening(mut process: Process, address: SocketAddr) -> Result<Process> {
    let up = retry_until(READY_WITHIN, "a server to listen", || {
        let connected = TcpStream::connect(address).is_ok();
        (connected || !process.is_running()).then_some(connected)
    });
    if matches!(up, Ok(true)) {
        return Ok(process);
    }
    bail!("the server does not listen at {address}:\n{}", process.log())
}
