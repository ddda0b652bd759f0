//! nginx with one process: a file of 1 KB over HTTP/1.1, HTTP/2 and TLS.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Door;
use crate::process;

/// How long it may take to listen.
const START: Duration = Duration::from_secs(10);
const FILE_BYTES: usize = 1024;

pub(super) struct Nginx {
    child: Child,
    http1: u16,
    http2: u16,
    https: u16,
}

impl Nginx {
    /// Serves from `directory`, which it may fill.
    pub(super) fn start(program: &Path, directory: &Path) -> Result<Self> {
        let ports = [free_port()?, free_port()?, free_port()?];
        prepare(directory, ports)?;
        let child = Command::new(program)
            .arg("-c")
            .arg(directory.join("nginx.conf"))
            .stderr(Stdio::null())
            .spawn()
            .context("nginx could not be started")?;
        let [http1, http2, https] = ports;
        let server = Self { child, http1, http2, https };
        let deadline = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", http1)).is_err() {
            if Instant::now() > deadline {
                bail!("nginx does not listen; see {}", directory.join("error.log").display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    pub(super) fn url(&self, door: Door) -> String {
        match door {
            Door::Http1 => format!("http://127.0.0.1:{}/file", self.http1),
            Door::Http2 => format!("http://127.0.0.1:{}/file", self.http2),
            Door::Https => format!("https://127.0.0.1:{}/file", self.https),
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It is ours and holds nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
