//! A sidecar as programs see it that start daprd and watch it: lines of its log, its health, its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use tollway_testkit::{free_port, retry_until};
use tollway_tests::mesh::http::runtime;
use tollway_tests::scripted_app::App;
use tollway_tests::user::{PATIENCE, User};

use super::ask;
use crate::api::daprd::{Daprd, file, program};
use crate::api::{invoke, message};

/// An app whose health the test sets.
struct Patient {
    port: String,
    is_ill: Arc<AtomicBool>,
}

impl Patient {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let is_ill = Arc::new(AtomicBool::new(false));
        let health = Arc::clone(&is_ill);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let health = Arc::clone(&health);
                std::thread::spawn(move || answer(stream.unwrap(), &health));
            }
        });
        Self { port, is_ill }
    }

    fn flags(&self) -> [&str; 8] {
        [
            "--app-port",
            &self.port,
            "--enable-app-health-check",
            "--app-health-check-path=/well",
            "--app-health-probe-interval",
            "1",
            "--app-health-threshold",
            "1",
        ]
    }

    fn set_ill(&self, is_ill: bool) {
        self.is_ill.store(is_ill, Ordering::Relaxed);
    }
}

fn answer(mut stream: TcpStream, is_ill: &AtomicBool) {
    let mut head = Vec::new();
    let mut bytes = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(1..) => head.extend_from_slice(&bytes),
            _ => return,
        }
    }
    let is_ill = head.starts_with(b"GET /well") && is_ill.load(Ordering::Relaxed);
    let status = if is_ill { "503 Service Unavailable" } else { "200 OK" };
    let reply = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(reply.as_bytes());
}

/// A process under daprd's name whose standard output alone is read.
struct Started {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    http: std::net::SocketAddr,
}

impl Started {
    fn new(user: &User, flags: &[&str]) -> Self {
        let port = free_port().unwrap();
        let mut command: Command = user.plain_command(&program(user));
        command.args(["--app-id", "web", "--dapr-grpc-port", "0", "--metrics-port", "0"]);
        command.args(["--dapr-http-port", &port.to_string()]).args(flags);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, http: (Ipv4Addr::LOCALHOST, port).into() }
    }

    /// The first line with this text; what came before it is lost.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        let mut before = Vec::new();
        for line in self.lines.by_ref().map(Result::unwrap) {
            if line.contains(text) {
                return line;
            }
            before.push(line);
        }
        panic!("no {text} in {before:#?}")
    }

    fn terminate(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    fn status(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

/// The harm: what starts daprd and waits for `dapr initialized` in its standard output, as Dapr's
/// Sidekick for .NET does, waits for good.
#[test]
fn programs_that_wait_for_lines_of_daprds_log_find_them() {
    let (user, app) = (User::new(), App::start(std::collections::HashMap::new()));
    let mut daprd = Started::new(&user, &["--app-port", &app.port()]);
    let ready = daprd.until("dapr initialized. Status: Running. Init Elapsed");
    assert!(ready.starts_with("time=\"") && ready.contains(" level=info msg=\"dapr"), "{ready}");
    assert!(ready.contains(" app_id=web ") && ready.contains(" type=log "), "{ready}");
    assert_eq!(ask(daprd.http, "GET", "/v1.0/healthz", &[]).status, 204);
    assert_eq!(ask(daprd.http, "POST", "/v1.0/shutdown", &[]).status, 204);
    daprd.until("msg=\"Shutdown requested via API\"");
    daprd.until("msg=\"Daprd shutdown gracefully\"");
    assert_eq!(daprd.status(), Some(0));
    let port = app.port();
    let as_json = ["--app-port", &port, "--log-as-json", "--disable-init-endpoints", "config"];
    let mut daprd = Started::new(&user, &as_json);
    daprd.until("\"msg\":\"Skipping programmatic dapr configuration loading\"");
    let ready: serde_json::Value =
        serde_json::from_str(&daprd.until("dapr initialized. Status: Running.")).unwrap();
    assert_eq!((&ready["level"], &ready["app_id"]), (&"info".into(), &"web".into()), "{ready}");
    let forced = [("dapr-force-shutdown", "true")];
    assert_eq!(ask(daprd.http, "POST", "/v1.0/shutdown", &forced).status, 204);
    daprd.until("Force shutdown requested, exiting immediately without graceful shutdown");
    assert_eq!(daprd.status(), Some(1));
}

/// The harm: the reason is in no line of the log that a supervisor keeps.
#[test]
fn what_ends_the_start_stands_in_the_log_as_daprd_has_it() {
    let user = User::new();
    let component = |kind: &str| {
        format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {{name: foo}}\n\
             spec: {{type: {kind}, version: v1}}\n"
        )
    };
    let both = component("secretstores.local.file") + "---\n" + &component("state.in-memory");
    let folder = file(&user, "twice/a.yaml", &both);
    let folder = std::path::Path::new(&folder).parent().unwrap().to_str().unwrap();
    let mut daprd = Started::new(&user, &["--resources-path", folder]);
    let line = daprd.until("Fatal error from runtime: ");
    let expected = "level=fatal msg=\"Fatal error from runtime: failed to load components: duplicate \
                    definition of Component name foo (state.in-memory/v1) with existing foo \
                    (secretstores.local.file/v1)";
    assert!(line.contains(expected), "{line}");
    assert_eq!(daprd.status(), Some(1));
}

/// The harm: what watches the sidecar's health restarts it because its app is ill.
#[test]
fn an_app_that_falls_ill_is_named_and_does_not_make_the_sidecar_ill() {
    let (user, app) = (User::new(), Patient::start());
    let web = Daprd::listening(&user, "web", &app.flags());
    let caller = Daprd::listening(&user, "caller", &[]);
    caller.until_served("web");
    web.until_served("web");
    app.set_ill(true);
    for daprd in [&web, &caller] {
        let ill = retry_until(PATIENCE, "an ill app", || {
            let answer = ask(daprd.http(), "GET", "/v1.0/invoke/web/method/x", &[]);
            (answer.status == 500).then_some(answer)
        });
        let text = ill.unwrap().json()["message"].to_string();
        assert!(text.contains("app is not in a healthy state"), "{text}");
        let grpc = daprd.grpc_address();
        let failed = runtime().block_on(invoke(grpc, "web", message("x", ""))).unwrap_err();
        assert!(failed.message().contains("app is not in a healthy state"), "{failed}");
    }
    let health = ask(web.http(), "GET", "/v1.0/healthz", &[]);
    assert_eq!(health.status, 204, "{}", health.body);
    app.set_ill(false);
    web.until_served("web");
}

/// The harm: a preStop that has the app report itself ill waits for the whole of the block.
#[test]
fn a_block_of_the_end_lasts_until_the_app_is_ill() {
    let (user, app) = (User::new(), Patient::start());
    let flags = [&app.flags()[..], &["--dapr-block-shutdown-duration", "180s"]].concat();
    let mut daprd = Started::new(&user, &flags);
    daprd.until("dapr initialized. Status: Running.");
    daprd.terminate();
    daprd.until("Blocking graceful shutdown for 3m0s or until app reports unhealthy...");
    assert_eq!(ask(daprd.http, "GET", "/v1.0/invoke/web/method/x", &[]).status, 200);
    app.set_ill(true);
    daprd.until("App reported unhealthy, entering shutdown...");
    daprd.until("Daprd shutdown gracefully");
    assert_eq!(daprd.status(), Some(0));
    let mut short = Started::new(&user, &["--dapr-block-shutdown-duration", "1s"]);
    short.until("dapr initialized. Status: Running.");
    short.terminate();
    short.until("Block shutdown period expired, entering shutdown...");
    assert_eq!(short.status(), Some(0));
}
