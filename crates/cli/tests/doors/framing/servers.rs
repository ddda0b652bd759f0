//! The servers, and how each tells what it read: lines `METHOD TARGET BODY-IN-HEX.`

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use tollway_testkit::{Process, Start, TempDir, free_port};

use super::corpus::HOST;
use crate::app::{App, Script};
use crate::network::until_status;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    tells: Tells,
    fences: AtomicU32,
    _files: Option<TempDir>,
}

enum Tells {
    /// In its own output.
    Itself(Process),
    /// A proxy: what it passes on is what it understood.
    Behind(App, #[expect(dead_code, reason = "lives as long as it is asked")] Process),
}

impl Server {
    pub(crate) fn go(program: &Path) -> Self {
        let process = Start::new(program).start_listening().unwrap();
        Self::telling(process.port("http").unwrap(), Tells::Itself(process), None)
    }

    pub(crate) fn python(program: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doors/framing/app.py");
        let process = Start::new(program).arg(script).start_listening().unwrap();
        Self::telling(process.port("http").unwrap(), Tells::Itself(process), None)
    }

    pub(crate) fn nginx(program: &Path) -> Self {
        Self::proxy(|files, port, app| {
            let dir = files.path().display();
            let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"));
            let config = format!(
                "daemon off; worker_processes 1; pid {dir}/pid; error_log stderr;\n\
                 events {{}}\n\
                 http {{ access_log off; underscores_in_headers on; {}\n\
                 server {{ listen 127.0.0.1:{port}; server_name _;\n\
                 location / {{ proxy_pass http://{app}; proxy_http_version 1.1; }} }} }}\n",
                temp.concat()
            );
            let file = files.path().join("nginx.conf");
            std::fs::write(&file, config).unwrap();
            Start::new(program).args(["-e", "stderr", "-c"]).arg(file)
        })
    }

    pub(crate) fn haproxy(program: &Path) -> Self {
        Self::proxy(|files, port, app| {
            let config = format!(
                "defaults\n mode http\n timeout client 30s\n timeout server 30s\n\
                 timeout connect 5s\n\
                 frontend f\n bind 127.0.0.1:{port}\n default_backend b\n\
                 backend b\n server s {app}\n"
            );
            let file = files.path().join("haproxy.cfg");
            std::fs::write(&file, config).unwrap();
            Start::new(program).args(["-db", "-f"]).arg(file)
        })
    }

    fn proxy(start: impl Fn(&TempDir, u16, SocketAddr) -> Start) -> Self {
        let app = App::start(Script::new());
        let files = TempDir::new().unwrap();
        let port = free_port().unwrap();
        let process = start(&files, port, app.address).start().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        until_status(address, &format!("GET /up HTTP/1.1\r\nhost: {HOST}\r\n\r\n"), 200);
        Self::telling(address, Tells::Behind(app, process), Some(files))
    }

    fn telling(address: SocketAddr, tells: Tells, files: Option<TempDir>) -> Self {
        Self { address, tells, fences: AtomicU32::new(0), _files: files }
    }

    /// Has an honest request answered; its target.
    pub(crate) fn fence(&self, door: SocketAddr) -> String {
        let target = format!("/fence-{}", self.fences.fetch_add(1, Ordering::Relaxed));
        until_status(door, &format!("GET {target} HTTP/1.1\r\nhost: {HOST}\r\n\r\n"), 200);
        target
    }

    /// What was read between the fence before `fence` and it; `None` until it is there.
    pub(crate) fn read_until(&self, fence: &str) -> Option<Vec<String>> {
        let all = self.read();
        let is_fence = |line: &&String| line.starts_with("GET /fence-") || line.contains("/warm");
        let end = all.iter().position(|line| *line == format!("GET {fence} ."))?;
        let start = all[..end].iter().rposition(|line| is_fence(&line)).map_or(0, |at| at + 1);
        Some(all[start..end].to_vec())
    }

    fn read(&self) -> Vec<String> {
        match &self.tells {
            Tells::Itself(process) => {
                let log = process.log();
                let lines = log.lines().filter_map(|line| line.strip_prefix("READ "));
                lines.map(str::to_owned).collect()
            }
            Tells::Behind(app, _) => app
                .requests("")
                .iter()
                .map(|request| {
                    let method = request.head.split(' ').next().unwrap_or_default();
                    let chunked = !request.values("transfer-encoding").is_empty();
                    let body = if chunked { unchunk(&request.body) } else { request.body.clone() };
                    let mut line = format!("{method} {} ", request.target());
                    body.iter().for_each(|byte| write!(line, "{byte:02x}").unwrap());
                    line + "."
                })
                .collect(),
        }
    }
}

/// What honest chunks carry.
fn unchunk(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = crate::app::find(chunks, b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&chunks[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&chunks[end + 2..end + 2 + size]);
        chunks = &chunks[end + 2 + size + 2..];
    }
}
