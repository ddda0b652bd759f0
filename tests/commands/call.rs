//! `tollway call`: the request, the answer, and the error if there is none.

use std::io::Write;
use std::process::{Command, Stdio};

use tollway_testkit::{Process, binary};
use tollway_tests::mesh::{AppProtocol, Mesh, tollway};
use tollway_tests::user::{PATIENCE, User};

const ECHO: &str = "exec \"$TOLLWAY\" echo --http 127.0.0.1:$APP_PORT --name $APP_ID";

fn files() -> (User, Process) {
    let user = User::new();
    let run = user.run(&["--app-id", "files", "--app-port", "0"], ECHO);
    user.until_called("files/healthz");
    (user, run)
}

#[test]
fn bodies_are_any_bytes_and_any_length() {
    let (user, _run) = files();
    // Longer than every buffer in between, and no text.
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 31 % 251) as u8).collect();
    let sent = user.path("sent");
    std::fs::write(&sent, &bytes).unwrap();
    let received = user.path("received");
    let received_option = received.to_str().unwrap();
    let from_file = format!("@{}", sent.display());
    let called = user.call(&["files/echo", "-d", &from_file, "-o", received_option]);
    assert_eq!(called.code, Some(0), "{}", called.stderr);
    assert!(std::fs::read(&received).unwrap() == bytes, "the file came back changed");
    let mut call = user.command(&["call", "files/echo", "-d", "-"]);
    let mut call = call.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = call.stdin.take().unwrap();
    let writing = std::thread::spawn({
        let bytes = bytes.clone();
        move || input.write_all(&bytes).unwrap()
    });
    let output = call.wait_with_output().unwrap();
    writing.join().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == bytes, "standard input came back changed");
}

#[test]
fn method_and_fields_are_those_asked_for() {
    let (user, _run) = files();
    let heads = |arguments: &[&str]| user.call(&[&["files/headers"], arguments].concat()).stdout;
    let plain = heads(&[]).to_ascii_lowercase();
    for part in ["get", "x-tollway-caller", "spiffe://local.tollway/ns/default/call"] {
        assert!(plain.contains(part), "no {part} in {plain}");
    }
    let with_json = heads(&["-d", "{}"]).to_ascii_lowercase();
    assert!(with_json.contains("post") && with_json.contains("application/json"), "{with_json}");
    let given = heads(&["-X", "PUT", "-d", "{}", "-H", "Content-Type: text/csv", "-H", "X-One: 1"]);
    let given = given.to_ascii_lowercase();
    for part in ["put", "text/csv", "x-one"] {
        assert!(given.contains(part), "no {part} in {given}");
    }
    assert!(!given.contains("application/json"), "{given}");
    let other = heads(&["--namespace", "default", "--app-id", "tester"]);
    assert!(other.contains("spiffe://local.tollway/ns/default/tester"), "{other}");
}

#[test]
fn the_exit_code_distinguishes_success_failure_and_misuse() {
    let (user, _run) = files();
    let ends_with = |target: &str, code, reason: &str| {
        let called = user.call(&[target]);
        assert_eq!(called.code, Some(code), "{target}: {}", called.stderr);
        assert!(called.stderr.contains(reason), "{target}: {}", called.stderr);
        called.stdout
    };
    ends_with("files/status/204", 0, "");
    ends_with("files/status/304", 0, "");
    ends_with("files/status/404", 1, "files answered 404 Not Found");
    ends_with("files/status/500", 1, "files answered 500 ");
    let code = "error: sidecar call.default.local: service nobody.default.local is not known \
                [ERR_UNKNOWN_SERVICE]\nhint: ";
    let unknown = ends_with("nobody/", 1, code);
    assert_eq!(unknown, "", "a failure of the mesh is no answer");
    ends_with("files.shop.nowhere/", 1, "nowhere");
    let nobody = user.call(&["files/", "--sidecar", "http://127.0.0.1:1"]);
    assert!(
        nobody.stderr.contains("[ERR_UNREACHABLE]\nhint: check --sidecar"),
        "{}",
        nobody.stderr
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = listener.local_addr().unwrap().to_string();
    let asked = std::time::Instant::now();
    let mute_call = user.call(&["files/", "--sidecar", &format!("http://{mute}")]);
    let reported = format!(
        "error: what listens at {mute} is no sidecar: it takes connections, but has not said a \
         word for 5 s [ERR_UNREACHABLE]\nhint: check --sidecar"
    );
    assert!(mute_call.stderr.contains(&reported), "{}", mute_call.stderr);
    assert!(asked.elapsed() < PATIENCE, "it is not waited for: {:?}", asked.elapsed());
    let usage = user.call(&["a.b.c.d/"]);
    assert_eq!(usage.code, Some(2), "{}", usage.stderr);
}

#[test]
fn a_failed_call_leaves_the_output_file_alone() {
    let (user, _run) = files();
    let file = user.path("kept");
    std::fs::write(&file, "kept").unwrap();
    let called = user.call(&["nobody/", "-o", file.to_str().unwrap()]);
    assert_eq!(called.code, Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn a_call_that_takes_too_long_ends() {
    let (user, _run) = files();
    let called = user.call(&["files/delay?ms=20000", "--timeout-ms", "500"]);
    assert_eq!(called.code, Some(1));
    assert!(called.stderr.contains("500 ms [ERR_TIMED_OUT]\n"), "{}", called.stderr);
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let (user, _run) = files();
    let mut call = user.command(&["call", "files/size?bytes=50000000"]);
    let mut call = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(call.stdout.take());
    let output = call.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn services_of_joined_networks_are_called_by_name() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("echo", "a", AppProtocol::Http);
    let west = mesh.west.store();
    let token = tollway(["token", "create", "--uses", "any", "--store", west.to_str().unwrap()]);
    let control = mesh.west.control_address.to_string();
    let call = |target: &str| {
        Command::new(binary("tollway").unwrap())
            .args(["call", target, "-i", "--control", &control])
            .env("TOLLWAY_TOKEN", token.trim())
            .output()
            .unwrap()
    };
    let called = tollway_testkit::retry_until(PATIENCE, "a call from west to east", || {
        let called = call("echo.default.east/healthz");
        called.status.success().then_some(called)
    });
    let head = String::from_utf8(called.unwrap().stdout).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("x-echo-name: a\r\n"), "{head}");
}
