//! `tollway check` against real parts: what is well, what is not, and what to do about it.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use tollway_testkit::{ClosedPort, EtcdServer, TempDir, need_tool, retry_until};
use tollway_tests::mesh::{Mesh, PATIENCE, start_tollway};
use tollway_tests::program;
use tollway_tests::user::{User, kill};

/// What a check printed, as text, and its exit code.
fn check(arguments: &[&str]) -> (String, i32) {
    let output = Command::new(program())
        .arg("check")
        .args(arguments)
        .env_remove("TOLLWAY_TOKEN")
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
}

/// The findings of a check by name: level, what, code.
fn findings(arguments: &[&str]) -> Vec<(String, String, String, String)> {
    let (text, code) = check(&[arguments, &["--json"]].concat());
    let found = read(&text);
    assert_eq!(code == 0, found.iter().all(|(_, level, ..)| level != "fail"));
    found
}

/// Findings from JSON.
fn read(text: &str) -> Vec<(String, String, String, String)> {
    let page: serde_json::Value = serde_json::from_str(text).unwrap();
    let of = |check: &serde_json::Value, key: &str| check[key].as_str().unwrap_or("").to_owned();
    let checks = page["checks"].as_array().unwrap().iter();
    checks.map(|c| (of(c, "name"), of(c, "level"), of(c, "what"), of(c, "code"))).collect()
}

#[track_caller]
fn expect(arguments: &[&str], name: &str, level: &str, said: &str, code: &str) {
    hold(&findings(arguments), name, level, said, code);
}

#[track_caller]
fn hold(all: &[(String, String, String, String)], name: &str, level: &str, said: &str, code: &str) {
    let found = all
        .iter()
        .any(|(n, l, what, c)| n == name && l == level && what.contains(said) && c == code);
    assert!(found, "no {level} {name} with `{said}` [{code}] in {all:#?}");
}

#[test]
fn a_machine_without_any_part_is_well() {
    let (text, code) = check(&[]);
    assert_eq!(code, 0, "nothing was asked for that could fail: {text}");
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    assert!(text.starts_with("ok    kernel          Linux "), "{text}");
    assert!(text.contains("control plane"), "{text}");
}

#[test]
fn a_check_names_what_prevents_a_start() {
    let files = TempDir::new().unwrap();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap();
    let file = files.path().join("sidecar.yaml");
    let text = format!("app_id: web\nhttp_listen: {taken}\ncontrol: 127.0.0.1:1\n");
    std::fs::write(&file, text).unwrap();
    let options = ["sidecar", "--config", file.to_str().unwrap()];
    let holder = format!("taken by {} (process {})", own_name(), std::process::id());
    expect(&options, "http_listen", "fail", &holder, "ERR_PORT_TAKEN");
    expect(&options, "settings file", "ok", "sidecar.yaml is valid", "");
    expect(&options, "token", "fail", "TOLLWAY_TOKEN", "ERR_TOKEN_MISSING");
    expect(&options, "control plane", "warn", "127.0.0.1:1", "ERR_CONTROL_UNREACHABLE");
    std::fs::write(&file, "app_id: web\nhttp_lisen: 1\nthreads: x\n").unwrap();
    let what = "sidecar.yaml:2:1: unknown setting `http_lisen`; did you mean `http_listen`?";
    expect(&options, "settings file", "fail", what, "ERR_BAD_CONFIGURATION");
    expect(&options, "settings file", "fail", "sidecar.yaml:3:10: ", "ERR_BAD_CONFIGURATION");
}

/// The name of this process, as the kernel cuts it.
fn own_name() -> String {
    std::fs::read_to_string("/proc/self/comm").unwrap().trim().to_owned()
}

#[test]
fn a_control_plane_is_asked_without_changing_it() {
    let mesh = Mesh::start();
    let (west, east) =
        (mesh.west.control_address.to_string(), mesh.east.control_address.to_string());
    let store = mesh.west.store();
    let tokens = TempDir::new().unwrap();
    let token = |name: &str, options: &[&str]| {
        let made = Command::new(program())
            .args(["token", "create", "--store", store.to_str().unwrap()])
            .args(options)
            .output()
            .unwrap();
        let path = tokens.path().join(name);
        tollway_net::secret_file::write(&path, &made.stdout).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = token("good", &[]);
    let short = token("short", &["--ttl-ms", "1"]);
    let any = ["--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"];
    let with = |control: &str, token: &str| -> Vec<String> {
        let options = ["sidecar", "--control", control, "--token-file", token];
        options.iter().chain(&any).map(|&option| option.to_owned()).collect()
    };
    let expect = |options: &[String], name: &str, level: &str, said: &str, code: &str| {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        expect(&options, name, level, said, code);
    };
    let well = with(&west, &good);
    expect(&well, "control plane", "ok", "serves the network west", "");
    expect(&well, "clock", "ok", "agrees", "");
    expect(&well, "version", "ok", env!("CARGO_PKG_VERSION"), "");
    expect(&well, "token", "ok", "is taken, for 24 h", "");
    expect(&with(&east, &good), "control plane", "fail", "", "ERR_CONTROL_FOREIGN");
    expect(&with(&west, &short), "token", "fail", "expired", "ERR_TOKEN_EXPIRED");
    // The other access: by the directory, as the operator.
    let running = ["control", "--store", store.to_str().unwrap(), "--listen", &west];
    let running: Vec<String> = running.iter().map(|&option| option.to_owned()).collect();
    expect(&running, "listen", "warn", "taken by tollway", "ERR_PORT_TAKEN");
    expect(&running, "store", "ok", "in use by a control plane that answers", "");
    expect(&running, "versions", "ok", "everywhere (1 connected)", "");
    expect(&running, "peering", "ok", "east: ", "");
    expect(&running, "root", "ok", "the network's, good for 36", "");
    expect(&running, "roots", "ok", "those of east, good for 36", "");
    let options: Vec<&str> = running.iter().map(String::as_str).collect();
    assert_eq!(check(&options).1, 0);
}

/// The roots of both networks are made for ten years.
#[test]
fn roots_that_end_are_reported_while_there_is_time() {
    let faketime = need_tool!("faketime");
    let mesh = Mesh::start();
    let store = mesh.west.store();
    let later = |by: &str| {
        let output = Command::new(&faketime)
            .args(["--exclude-monotonic", "-f", by, program(), "check", "control", "--json"])
            .args(["--listen", "127.0.0.1:0", "--store", store.to_str().unwrap()])
            .output()
            .unwrap();
        read(&String::from_utf8(output.stdout).unwrap())
    };
    let soon = later("+3600d");
    hold(&soon, "root", "warn", "the network's ends in 49 d", "");
    hold(&soon, "roots", "warn", "those of east ends in 49 d", "");
    let over = later("+3651d");
    hold(&over, "roots", "fail", "those of east ended 1 d", "ERR_CERTIFICATE_EXPIRED");
    // The control planes agree on their version, else there would be a line about it.
    assert!(!soon.iter().any(|(name, _, what, _)| name == "versions" && what.contains("east")));
}

#[test]
fn what_run_needs_is_looked_at_and_nothing_is_started() {
    let user = User::new();
    let check = |words: &[&str]| {
        let ended = user.tollway(&[&["check", "run", "--json"], words].concat());
        assert_eq!(ended.stderr, "");
        read(&ended.stdout)
    };
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let holder = format!("taken by {} (process {})", own_name(), std::process::id());
    let found = check(&["--app-id", "a", "--app-port", &port, "--", "no-such-program", "--json"]);
    hold(&found, "app_port", "fail", &holder, "ERR_PORT_TAKEN");
    hold(&found, "program", "fail", "no program `no-such-program`", "ERR_APP_NOT_STARTED");
    hold(&found, "control plane", "ok", "starts with the first app", "");
    assert!(!user.directory().exists(), "the check made {}", user.directory().display());

    let run = user.run(&["--app-id", "a", "--app-port", "0"], "sleep 600");
    let local = || check(&["--", "sh"]).into_iter().find(|(_, _, what, _)| what.contains("at 127"));
    let local = retry_until(PATIENCE, "a local control plane", local).unwrap();
    assert_eq!((&*local.0, &*local.1), ("control plane", "ok"));
    kill(user.control_pid(), Signal::KILL);
    drop(run);
    let crashed = || {
        let found = check(&[]);
        found.iter().any(|(_, level, what, _)| level == "warn" && what.contains("has crashed"))
    };
    retry_until(PATIENCE, "the crash being seen", || crashed().then_some(())).unwrap();
    let named = check(&["--control", "127.0.0.1:1"]);
    hold(&named, "token", "fail", "TOLLWAY_TOKEN", "ERR_TOKEN_MISSING");
    hold(&named, "control plane", "warn", "127.0.0.1:1", "ERR_CONTROL_UNREACHABLE");
}

#[test]
fn a_network_that_is_away_fails_the_check() {
    let mut mesh = Mesh::start();
    mesh.east.gateway.kill().unwrap();
    let store = mesh.west.store();
    let options = ["control", "--store", store.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let away = || {
        let found = findings(&options);
        let away = |f: &(String, String, String, String)| {
            f.0 == "peering" && f.1 == "fail" && f.3 == "ERR_UNREACHABLE_NETWORK"
        };
        found.iter().any(away).then_some(())
    };
    retry_until(PATIENCE, "east being away", away).unwrap();
    assert_eq!(check(&options).1, 1);
}

#[test]
fn a_store_is_read_and_left_as_it_is() {
    let files = TempDir::new().unwrap();
    let store = files.path().join("store");
    let path = store.to_str().unwrap();
    let options = ["control", "--store", path, "--listen", "127.0.0.1:0"];
    expect(&options, "directory", "ok", "will be made", "");
    assert!(!store.exists(), "the check made {path}");
    let mut control = start_tollway("control")
        .args(["--listen", "127.0.0.1:0", "--store", path])
        .start_listening()
        .unwrap();
    assert!(control.terminate(PATIENCE).unwrap().success());
    let before = content(&store);
    expect(&options, "store", "ok", " keys, revision ", "");
    assert!(content(&store) == before, "the check wrote to the store");
    let file = store.join("tollway.store");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[20] ^= 0xff;
    std::fs::write(&file, bytes).unwrap();
    expect(&options, "store", "fail", "is damaged at byte", "ERR_STORE_CORRUPT");
    std::fs::write(&file, "something else, longer than the header of a store would be").unwrap();
    expect(&options, "store", "fail", "is not a Tollway store", "ERR_STORE_FOREIGN");
    let no_directory = file.join("below");
    let options = ["control", "--store", no_directory.to_str().unwrap()];
    expect(&options, "store", "fail", "", "ERR_STORE_UNWRITABLE");
}

#[test]
fn a_store_in_etcd_is_named_as_for_a_start() {
    let files = TempDir::new().unwrap();
    let admin_dir = files.path().join("admin");
    let path = admin_dir.to_str().unwrap();
    let closed = ClosedPort::on(Ipv4Addr::LOCALHOST).unwrap();
    let away = format!("etcd://{}/tollway/west", closed.address());
    let whole = ["control", "--listen", "127.0.0.1:0", "--store", &away, "--admin-dir", path];
    let found = findings(&whole);
    hold(&found, "directory", "ok", "admin will be made", "");
    hold(&found, "store", "fail", &closed.address().to_string(), "ERR_STORE_UNWRITABLE");
    let (text, code) = check(&whole);
    assert_eq!(code, 1);
    assert!(text.contains("fix: check that it runs there"), "{text}");
    expect(&whole[..5], "store", "fail", "the store is in etcd", "");
    let no_member = ["control", "--store", "etcd://a/x", "--admin-dir", path];
    expect(&no_member, "options", "fail", "`a` is no member of etcd", "ERR_BAD_CONFIGURATION");
    let no_file = [&whole[..], &["--etcd-ca", "/no"]].concat();
    expect(&no_file, "store", "fail", "cannot read /no", "");
    assert!(!admin_dir.exists(), "the check made {path}");
}

#[test]
fn etcd_is_asked_for_its_master_and_left_as_it_is() {
    need_tool!("etcdctl");
    need_tool!("etcd");
    let etcd = EtcdServer::start(&[]).unwrap();
    let files = TempDir::new().unwrap();
    let (first, second) = (files.path().join("first"), files.path().join("second"));
    let store = format!("etcd://{}/tollway/west", etcd.address());
    let with = |admin_dir: &Path| {
        let admin_dir = admin_dir.to_str().unwrap();
        let listen = ["control", "--listen", "127.0.0.1:0"];
        findings(&[&listen[..], &["--store", &store, "--admin-dir", admin_dir]].concat())
    };
    let free = with(&first);
    hold(&free, "store", "ok", &format!("etcd at {} answers", etcd.address()), "");
    assert!(!free.iter().any(|(name, ..)| name == "control plane"), "{free:#?}");
    assert_eq!(etcd.command(&["get", "--prefix", "", "--keys-only"]).unwrap().trim(), "");
    let _control = start_tollway("control")
        .args(["--listen", "127.0.0.1:0", "--network", "west", "--store", &store, "--admin-dir"])
        .arg(&first)
        .start_listening()
        .unwrap();
    hold(&with(&first), "control plane", "ok", "network west, revision ", "");
    hold(&with(&second), "control plane", "ok", "serves from there", "");
}

fn content(directory: &Path) -> Vec<(std::ffi::OsString, Vec<u8>, std::time::SystemTime)> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let mut all: Vec<_> = entries
        .map(|entry| {
            let written = entry.metadata().unwrap().modified().unwrap();
            (entry.file_name(), std::fs::read(entry.path()).unwrap_or_default(), written)
        })
        .collect();
    all.sort();
    all
}
