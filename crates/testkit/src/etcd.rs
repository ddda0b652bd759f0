//! A real etcd of one member: on ports and in a folder of its own, gone with the value that holds it.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::{Process, Start, TempDir, free_port, retry_until, tool};

/// Far longer than it takes to start on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// etcd, without a password.
pub struct EtcdServer {
    process: Process,
    address: SocketAddr,
    options: Vec<String>,
    scheme: &'static str,
    folder: TempDir,
}

impl EtcdServer {
    /// Starts Debian's `etcd`, with more `options`.
    pub fn start(options: &[&str]) -> Result<Self> {
        Self::start_as("http", options)
    }

    /// Starts etcd with TLS for its clients; `options` configure it.
    pub fn start_with_tls(options: &[&str]) -> Result<Self> {
        Self::start_as("https", options)
    }

    fn start_as(scheme: &'static str, options: &[&str]) -> Result<Self> {
        let folder = TempDir::new()?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let peers = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let data = folder.path().join("data");
        let (client, peer) = (format!("{scheme}://{address}"), format!("http://{peers}"));
        let options: Vec<String> = [
            "--name",
            "one",
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("one={peer}"),
            "--data-dir",
            &data.display().to_string(),
        ]
        .iter()
        .chain(options)
        .map(|&option| option.to_owned())
        .collect();
        let process = run(&options)?;
        let server = Self { process, address, options, scheme, folder };
        server.until_ready()?;
        Ok(server)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs a command of `etcdctl`; what it prints.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        let client = tool("etcdctl").context("there is no etcdctl")?;
        let output = Command::new(client)
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.address.to_string()])
            .args(arguments)
            .output()?;
        if !output.status.success() {
            bail!("etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Stops or continues the process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Kills it.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Starts it again with its data.
    pub fn restart(&mut self) -> Result<()> {
        self.process = run(&self.options)?;
        self.until_ready()
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// With TLS, the test itself waits until it is ready.
    fn until_ready(&self) -> Result<()> {
        let listens = || match self.scheme {
            "http" => self.command(&["endpoint", "health"]).map(drop).ok(),
            _ => std::net::TcpStream::connect(self.address).map(drop).ok(),
        };
        retry_until(READY_WITHIN, "etcd to serve", listens)
    }
}

fn run(options: &[String]) -> Result<Process> {
    let server = tool("etcd").context("there is no etcd")?;
    Start::new(server).args(options).start()
}
