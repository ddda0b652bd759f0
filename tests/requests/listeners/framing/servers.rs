//! The servers, and how each reports what it read.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;

use tollway_testkit::{Process, Start, TempDir, free_address, retry_until};

use super::corpus::report_of;
use tollway_tests::network::{PATIENCE, STOCK, until_status};
use tollway_tests::scripted_app::{App, Script, chunked};

/// The sidecar's own requests, which may come at any moment.
const OWN_QUESTION: &str = "GET /dapr/config .";

pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    tells: Tells,
    /// How many bytes of its report have been taken.
    done: Cell<usize>,
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
        Self::itself("go", process)
    }

    pub(crate) fn python(program: &Path) -> Self {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("requests/listeners/framing/app.py");
        let process = Start::new(program).arg(script).start_listening().unwrap();
        Self::itself("python", process)
    }

    fn itself(name: &'static str, process: Process) -> Self {
        let address = process.port("http").unwrap();
        Self { name, address, tells: Tells::Itself(process), done: Cell::new(0), _files: None }
    }

    /// Go's reverse proxy.
    pub(crate) fn go_to(program: &Path, app: SocketAddr) -> Self {
        let process = Start::new(program).args(["--to", &app.to_string()]);
        Self::itself("go", process.start_listening().unwrap())
    }

    pub(crate) fn nginx(program: &Path) -> Self {
        Self::behind(App::start(Script::new()), |app| Self::nginx_to(program, app))
    }

    pub(crate) fn nginx_to(program: &Path, app: SocketAddr) -> Self {
        Self::proxy("nginx", app, |files, address, app| {
            let dir = files.path().display();
            let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"));
            let config = format!(
                "daemon off; master_process off; pid {dir}/pid; error_log stderr;\n\
                 events {{}}\n\
                 http {{ access_log off; underscores_in_headers on;\n\
                 ignore_invalid_headers off; {}\n\
                 server {{ listen {address}; server_name _;\n\
                 location / {{ proxy_pass http://{app}; proxy_http_version 1.1; }} }} }}\n",
                temp.concat()
            );
            let file = files.path().join("nginx.conf");
            std::fs::write(&file, config).unwrap();
            Start::new(program).args(["-e", "stderr", "-c"]).arg(file)
        })
    }

    pub(crate) fn haproxy(program: &Path) -> Self {
        Self::behind(App::start(Script::new()), |app| Self::haproxy_to(program, app))
    }

    pub(crate) fn haproxy_to(program: &Path, app: SocketAddr) -> Self {
        Self::proxy("haproxy", app, |files, address, app| {
            let config = format!(
                "defaults\n mode http\n timeout client 30s\n timeout server 30s\n\
                 timeout connect 5s\n\
                 frontend f\n bind {address}\n default_backend b\n\
                 backend b\n server s {app}\n"
            );
            let file = files.path().join("haproxy.cfg");
            std::fs::write(&file, config).unwrap();
            Start::new(program).args(["-db", "-f"]).arg(file)
        })
    }

    /// A proxy to an app that reports what the proxy passes on.
    fn behind(app: App, start: impl Fn(SocketAddr) -> Self) -> Self {
        let server = start(app.address);
        match server.tells {
            Tells::Itself(proxy) => Self { tells: Tells::Behind(app, proxy), ..server },
            Tells::Behind(..) => server,
        }
    }

    fn proxy(
        name: &'static str,
        app: SocketAddr,
        start: impl Fn(&TempDir, SocketAddr, SocketAddr) -> Start,
    ) -> Self {
        let files = TempDir::new().unwrap();
        let address = free_address().unwrap();
        let process = start(&files, address, app).start().unwrap();
        until_status(address, &format!("GET /up HTTP/1.1\r\nhost: {STOCK}\r\n\r\n"), 200);
        Self {
            name,
            address,
            tells: Tells::Itself(process),
            done: Cell::new(0),
            _files: Some(files),
        }
    }

    /// The body of its answer to a request to `target`.
    pub(crate) fn answer_to(&self, target: &str) -> String {
        match &self.tells {
            Tells::Itself(_) => "ok".to_owned(),
            Tells::Behind(..) => format!("own {target}"),
        }
    }

    /// What was read since the last of these fences: honest requests through `listener`, behind
    /// whatever was passed on before. No name is used twice.
    pub(crate) fn read_until_fence(&self, listener: SocketAddr, name: &str) -> Vec<String> {
        let fence = format!("GET /fence-{name}");
        until_status(listener, &format!("{fence} HTTP/1.1\r\nhost: {STOCK}\r\n\r\n"), 200);
        let is_fence = |line: &String| line.starts_with("GET /fence-") || line.contains("/warm");
        retry_until(PATIENCE, &fence, || {
            let (all, end) = self.read();
            let fence = all.iter().position(|line| *line == format!("{fence} ."))?;
            let start = all[..fence].iter().rposition(is_fence).map_or(0, |at| at + 1);
            self.forget(end);
            let read = all[start..fence].iter().filter(|line| *line != OWN_QUESTION);
            Some(read.cloned().collect())
        })
        .unwrap()
    }

    /// The requests in its report that were not taken, and the offset at which they end.
    fn read(&self) -> (Vec<String>, usize) {
        match &self.tells {
            Tells::Itself(process) => {
                let log = process.log();
                let lines = log[self.done.get()..].lines();
                let read = lines.filter_map(|line| line.strip_prefix("READ "));
                (read.map(str::to_owned).collect(), log.len())
            }
            Tells::Behind(app, _) => (passed_on_to(app), 0),
        }
    }

    fn forget(&self, end: usize) {
        self.done.set(end);
        if let Tells::Behind(app, _) = &self.tells {
            app.forget();
        }
    }
}

fn passed_on_to(app: &App) -> Vec<String> {
    app.requests("")
        .iter()
        .map(|request| {
            let method = request.head.split(' ').next().unwrap_or_default();
            let is_chunked = !request.values("transfer-encoding").is_empty();
            let body = is_chunked.then(|| chunked(&request.body).unwrap().0);
            let lines = request.head.lines().skip(1);
            let fields = lines.filter_map(|line| line.split_once(':'));
            let fields = fields.map(|(name, value)| (name, value.trim().as_bytes()));
            report_of(method, request.target(), body.as_ref().unwrap_or(&request.body), fields)
        })
        .collect()
}
