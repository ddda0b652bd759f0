//! What the tools are pointed at: nginx, the echo server, iperf3's own server.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(10);
const FILE_BYTES: usize = 1024;

/// A process that ends with this value.
pub(super) struct Server(Child);

impl Server {
    /// Starts `command` and waits until something listens on `port`.
    fn start(command: &mut Command, port: u16) -> Result<Self> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let name = command.get_program().to_string_lossy().into_owned();
        let mut server = Self(child.with_context(|| format!("`{name}` could not be started"))?);
        let deadline = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline || server.0.try_wait()?.is_some() {
                bail!("`{name}` does not listen on port {port}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is ours and holds nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// nginx with one process: a file of 1 KB over HTTP/1.1, HTTP/2 and TLS.
pub(super) struct Nginx {
    _server: Server,
    pub(super) http1: u16,
    pub(super) http2: u16,
    pub(super) https: u16,
}

impl Nginx {
    /// Serves from `directory`, which it may fill.
    pub(super) fn start(program: &Path, directory: &Path) -> Result<Self> {
        let [http1, http2, https] = [free_port()?, free_port()?, free_port()?];
        prepare(directory, [http1, http2, https])?;
        let configuration = directory.join("nginx.conf");
        let server = Server::start(Command::new(program).arg("-c").arg(configuration), http1)
            .with_context(|| format!("see {}", directory.join("error.log").display()))?;
        Ok(Self { _server: server, http1, http2, https })
    }
}

/// `tollway echo` on one port for HTTP and gRPC and one for TCP.
pub(super) struct Echo {
    _server: Server,
    pub(super) http: u16,
    pub(super) tcp: u16,
}

impl Echo {
    pub(super) fn start(tollway: &Path, arguments: &[&str]) -> Result<Self> {
        let (http, tcp) = (free_port()?, free_port()?);
        let mut command = Command::new(tollway);
        command.args(["echo", "--http", &at(http), "--tcp", &at(tcp)]).args(arguments);
        Ok(Self { _server: Server::start(&mut command, http)?, http, tcp })
    }
}

pub(super) struct Iperf3 {
    _server: Server,
    pub(super) port: u16,
}

impl Iperf3 {
    pub(super) fn start(program: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(program);
        command.args(["--server", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        Ok(Self { _server: Server::start(&mut command, port)?, port })
    }
}

pub(super) fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn prepare(directory: &Path, [http1, http2, https]: [u16; 3]) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("file"), "x".repeat(FILE_BYTES))?;
    let (certificate, key) = (directory.join("server.pem"), directory.join("server.key"));
    make_certificate(&certificate, &key)?;
    let at = directory.display();
    let configuration = format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;\n\
         worker_rlimit_nofile 4096;\n\
         events {{ worker_connections 2048; }}\n\
         http {{\n  access_log off; keepalive_requests 1000000000; sendfile on; tcp_nopush on;\n  \
         open_file_cache max=16;\n  client_body_temp_path {at}/body; proxy_temp_path {at}/proxy;\n  \
         fastcgi_temp_path {at}/fastcgi; uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n  \
         server {{\n    listen 127.0.0.1:{http1};\n    listen 127.0.0.1:{http2} http2;\n    \
         listen 127.0.0.1:{https} ssl;\n    ssl_certificate {};\n    ssl_certificate_key {};\n    \
         location / {{ root {at}; }}\n  }}\n}}\n",
        certificate.display(),
        key.display(),
    );
    std::fs::write(directory.join("nginx.conf"), configuration)
        .with_context(|| format!("could not write into {at}"))
}

fn make_certificate(certificate: &PathBuf, key: &PathBuf) -> Result<()> {
    let kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=localhost"];
    process::output(
        Command::new("openssl")
            .args(["req", "-x509", "-nodes", "-days", "30"])
            .args(kind)
            .arg("-out")
            .arg(certificate)
            .arg("-keyout")
            .arg(key),
    )
    .map(|_| ())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
