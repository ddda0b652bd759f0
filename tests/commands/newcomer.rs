//! The first hour with Tollway on a user's machine: without root, with the usual ports taken,
//! without IPv6, in a small terminal. Nothing shows a traceback, nothing is a dead end.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tollway_net::netns::NetNs;
use tollway_testkit::{Process, Start, TempDir, retry_until};
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{PATIENCE, start_tollway};
use tollway_tests::program;

/// Options of `setpriv` for the user without privileges that every system has.
const NOBODY: [&str; 5] = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];

#[test]
fn every_help_fits_sixty_columns() {
    let mut commands = vec![Vec::new()];
    while let Some(command) = commands.pop() {
        let output =
            Command::new(program()).args(&command).arg("--help").env("COLUMNS", "60").output();
        let help = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(help.contains("Usage: "), "{command:?} has no help: {help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 60, "tollway {command:?} --help: {line}");
        }
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        for line in listed.take_while(|line| line.starts_with("  ")) {
            let name = line.split_whitespace().next().unwrap();
            if name != "help" && line.starts_with("  ") && !line.starts_with("   ") {
                commands.push([command.clone(), vec![name.to_owned()]].concat());
            }
        }
    }
}

#[test]
fn a_user_without_root_gets_all_the_way() {
    let setpriv = tollway_testkit::need_tool!("setpriv");
    if !rustix::process::geteuid().is_root() {
        tollway_testkit::skip!("this test gives up root, and is not run as root");
    }
    let home = Home::new();
    let start = |command: &str, options: &[&str]| {
        let ports = home.file(&format!("{command}.ports"));
        let program = Start::new(&setpriv).args(NOBODY).arg(home.program()).arg(command);
        let process = program.args(options).args(["--ports-file", &ports]).start().unwrap();
        let read = || std::fs::read_to_string(&ports).ok();
        let text = retry_until(PATIENCE, &format!("{command} listening"), read);
        let text = text.unwrap_or_else(|error| panic!("{error:#}: {}", process.log()));
        let ports: BTreeMap<String, SocketAddr> = serde_json::from_str(&text).unwrap();
        (process, ports)
    };
    let run = |arguments: &[&str]| {
        let mut nobody = Command::new(&setpriv);
        nobody.args(NOBODY).arg(home.program()).args(arguments);
        nobody.env_remove("XDG_RUNTIME_DIR").env("HOME", home.path()).output().unwrap()
    };
    let store = home.file("store");
    let (_control, ports) = start("control", &["--listen", "127.0.0.1:0", "--store", &store]);
    let control = ports["control"].to_string();
    let token = home.file("token");
    run(&["token", "create", "--uses", "any", "--store", &store, "-o", &token]);
    let (_echo, ports) = start("echo", &["--http", "127.0.0.1:0"]);
    let (app, url) = (ports["http"].port().to_string(), format!("http://{}/echo", ports["http"]));
    let options = [&["--app-id", "echo", "--app-port", &app], &all_free(&control, &token)[..]];
    let (sidecar, ports) = start("sidecar", &options.concat());
    until_answered(&sidecar, ports["http"]);
    for (arguments, said) in [
        (vec!["get", "services", "--store", &store], "echo.default.local"),
        (vec!["join", "list", "--store", &store], "NETWORK"),
        (vec!["check"], "namespaces"),
        (vec!["check", "demo"], "to look at, 0 failed"),
        (vec!["check", "run", "--app-id", "a", "--", "sh"], "0 failed"),
        (vec!["check", "control", "--store", &store, "--listen", "127.0.0.1:0"], "0 failed"),
        (vec!["get", "policies", "--store", &store], ""),
        (vec!["load", "http", &url, "--requests", "10", "--connections", "1"], "10"),
    ] {
        let output = run(&arguments);
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{arguments:?}: {out}{err}");
        assert!(out.contains(said), "{arguments:?}: {out}{err}");
        assert_no_traceback(&out, &err);
        let too_wide = out.lines().find(|line| line.chars().count() > 60);
        assert!(arguments[0] != "check" || too_wide.is_none(), "{too_wide:?}");
    }
}

#[test]
fn a_command_that_cannot_start_names_the_remedy() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    let files = TempDir::new().unwrap();
    let store = files.path().join("store").to_str().unwrap().to_owned();
    for (arguments, named, way_out) in [
        (vec!["control", "--store", &store, "--listen", &taken], &*taken, "--listen"),
        (vec!["control", "--store", "/proc/store"], "/proc/store", "--store"),
        (vec!["sidecar", "--app-id", "a", "--http-listen", &taken], &*taken, "--http-listen"),
        (vec!["gateway", "--listen", "127.0.0.1:0"], "token", "tollway token create"),
        (vec!["sidecar"], "--app-id", "--help"),
        (vec!["sidecar", "--app-id", "a.b.c.d"], "a.b.c.d", "--help"),
        (vec!["echo", "--http", &taken], &*taken, "--http"),
        (vec!["get", "services", "--store", &store], &*store, "tollway control"),
        (vec!["join", "list", "--store", &store], &*store, "tollway control"),
        (vec!["join", "accept", "--store", &store, "/nowhere"], "/nowhere", ""),
        (vec!["token", "create", "--store", &store], &*store, "tollway control"),
        (vec!["load", "http", "http://127.0.0.1:1/", "--duration", "1"], "127.0.0.1:1", "listen"),
        (vec!["load", "http", "nonsense"], "nonsense", ""),
        (vec!["sidecar", "--config", "/nowhere.yaml"], "/nowhere.yaml", ""),
        (vec!["chek"], "chek", "check"),
    ] {
        let output =
            Command::new(program()).args(&arguments).env_remove("TOLLWAY_TOKEN").output().unwrap();
        let (out, err) = texts(&output);
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 2)), "{arguments:?} ended with {code:?}: {err}");
        assert!(err.contains(named) && err.contains(way_out), "{arguments:?}: {err}");
        assert_no_traceback(&out, &err);
    }
}

#[test]
fn everything_works_without_ipv6() {
    let Ok(namespace) = NetNs::create("newcomer") else {
        tollway_testkit::skip!("network namespaces are not permitted here");
    };
    namespace.run(without_ipv6).unwrap();
}

fn without_ipv6() {
    for device in ["all", "default", "lo"] {
        let setting = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
        // A kernel without IPv6 has no such setting.
        let _ = std::fs::write(setting, "1");
    }
    assert!(TcpListener::bind("[::1]:0").is_err());
    let home = Home::new();
    let store = home.file("store");
    let control = start_tollway("control").args(["--listen", "127.0.0.1:0", "--store", &store]);
    let control = control.start_listening().unwrap();
    let made = Command::new(program()).args(["token", "create", "--store", &store]).output();
    let token = home.file("token");
    tollway_net::secret_file::write(token.as_ref(), &made.unwrap().stdout).unwrap();
    let echo = start_tollway("echo").args(["--http", "127.0.0.1:0"]).start_listening().unwrap();
    let app = echo.port("http").unwrap().port().to_string();
    let control = control.port("control").unwrap().to_string();
    let sidecar = start_tollway("sidecar").args(["--app-id", "echo", "--app-port", &app]);
    let sidecar = sidecar.args(all_free(&control, &token)).start_listening().unwrap();
    until_answered(&sidecar, sidecar.port("http").unwrap());
    let checked = Command::new(program()).arg("check").output().unwrap();
    let (out, err) = texts(&checked);
    assert!(checked.status.success() && out.contains("works over IPv4"), "{out}{err}");
    let wanted = ["sidecar", "--app-id", "b", "--http-listen", "[::1]:0"];
    let refused = Command::new(program()).args(wanted).output().unwrap();
    let (out, err) = texts(&refused);
    assert!(err.contains("[::1]:0"), "{err}");
    assert_no_traceback(&out, &err);
}

/// Options of a sidecar that takes free ports.
fn all_free<'a>(control: &'a str, token: &'a str) -> [&'a str; 14] {
    let any = "127.0.0.1:0";
    [
        ["--control", control],
        ["--token-file", token],
        ["--http-listen", any],
        ["--grpc-listen", any],
        ["--outbound-listen", any],
        ["--inbound-listen", any],
        ["--admin-listen", any],
    ]
    .concat()
    .try_into()
    .unwrap()
}

/// By its own name, through the mesh.
fn until_answered(sidecar: &Process, listener: SocketAddr) {
    let answered = || {
        let answer = get(listener, "/v1.0/invoke/echo/method/echo");
        answer.starts_with("HTTP/1.1 200").then_some(())
    };
    let waited = retry_until(PATIENCE, "an answer", answered);
    assert!(waited.is_ok(), "{}", sidecar.log());
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn assert_no_traceback(out: &str, err: &str) {
    for sign in ["panicked", "backtrace", "RUST_", "unwrap", ".rs:", "os error"] {
        assert!(!out.contains(sign) && !err.contains(sign), "{out}{err}");
    }
}

/// A directory that everybody may use, with the program in it.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(TempDir::new().unwrap());
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o777)).unwrap();
        std::fs::copy(program(), home.program()).unwrap();
        std::fs::set_permissions(home.program(), PermissionsExt::from_mode(0o755)).unwrap();
        home
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn program(&self) -> PathBuf {
        self.path().join("tollway")
    }

    fn file(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }
}
