//! Requests that are refused or fail: over HTTP with status, body and marks of the mesh, over
//! gRPC with a status and the same marks.

use std::net::{IpAddr, TcpListener};
use std::process::Command;

use rustix::process::Signal;
use tollway_testkit::{ClosedPort, RawClient, Start, retry_until};
use tollway_tests::program;

use tollway_tests::mesh::http::get;
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE, Sidecar, start_tollway};

/// The caller's sidecar, as it names itself.
pub(crate) const CALLER: &str = "sidecar caller.default.west";
/// The callee's.
pub(crate) const CALLEE: &str = "sidecar echo.default.east";

/// The answer to a call as text.
pub(crate) fn call(caller: &Sidecar, service: &str, path: &str) -> String {
    get(caller.http(), &format!("/v1.0/invoke/{service}/method{path}"))
}

/// Compares an answer with status, code, hop and further text.
#[track_caller]
pub(crate) fn check(answer: &str, status: u16, code: &str, hop: &str, parts: &[&str]) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{code}:\n{answer}");
    assert!(answer.contains(&format!("x-tollway-error: {code}\r\n")), "{code}:\n{answer}");
    assert!(answer.contains(&format!("x-tollway-hop: {hop}\r\n")), "{code}:\n{answer}");
    assert!(answer.contains(&format!("\"errorCode\":\"{code}\"")), "{code}:\n{answer}");
    assert!(answer.contains(&format!("\"message\":\"{hop}: ")), "{code}:\n{answer}");
    for part in parts {
        assert!(answer.contains(part), "`{part}` in:\n{answer}");
    }
}

/// An address of `ip` without a listener.
pub(crate) fn nowhere(ip: &str) -> ClosedPort {
    ClosedPort::on(ip.parse::<IpAddr>().unwrap()).unwrap()
}

#[test]
fn failures_of_names_networks_and_apps_have_their_own_codes() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&["--request-timeout-ms", "2000"]);
    let app = mesh.east.app("echo", "a", AppProtocol::Http);
    let _tcp = mesh.east.app("bytes", "b", AppProtocol::Tcp);
    let absent = nowhere("127.0.0.1");
    let unready = mesh.east.sidecar_of("later", absent.port(), AppProtocol::Http);
    caller.until_served("echo.default.east");
    let api = caller.http();

    check(&get(api, "/nothing"), 404, "ERR_DIRECT_INVOKE", CALLER, &["/v1.0/invoke/"]);
    let long = "a".repeat(64);
    for (name, part) in [
        ("a..b", "empty part"),
        ("a.b.c.d", "4 parts"),
        (long.as_str(), "64 characters"),
        ("a%20b", "the character ' '"),
        ("%ff", "not readable"),
    ] {
        check(&call(&caller, name, "/"), 400, "ERR_BAD_NAME", CALLER, &[part]);
    }
    let answer = call(&caller, "nobody", "/");
    let parts = ["nobody.default.west", "check its name"];
    check(&answer, 404, "ERR_UNKNOWN_SERVICE", CALLER, &parts);
    let answer = call(&caller, "echo.default.south", "/");
    check(&answer, 404, "ERR_UNKNOWN_NETWORK", CALLER, &["`south`", "tollway join"]);
    let known = |service: &str| {
        let answer = retry_until(PATIENCE, service, || {
            let answer = call(&caller, service, "/");
            (!answer.contains("ERR_UNKNOWN_SERVICE")).then_some(answer)
        });
        answer.unwrap()
    };
    let answer = known("bytes.default.east");
    check(&answer, 502, "ERR_NOT_HTTP", CALLER, &["bytes.default.east", "--upstream"]);
    let answer = known("later.default.east");
    check(&answer, 503, "ERR_NO_READY_ENDPOINT", CALLER, &["later.default.east", "--app-port"]);

    let answer = call(&caller, "echo.default.east", "/delay?ms=60000");
    check(&answer, 504, "ERR_TIMED_OUT", CALLER, &["echo.default.east", "--request-timeout-ms"]);
    let answer = call(&caller, "echo.default.east", "/close");
    check(&answer, 502, "ERR_CLOSED_EARLY", CALLEE, &["the app", "log"]);
    app.echo.signal(Signal::KILL).unwrap();
    let answer = retry_until(PATIENCE, "the app's end", || {
        let answer = call(&caller, "echo.default.east", "/");
        answer.contains("ERR_APP_UNREACHABLE").then_some(answer)
    });
    match answer {
        Ok(answer) => check(&answer, 503, "ERR_APP_UNREACHABLE", CALLEE, &["its app: "]),
        // It was withdrawn before a call met it, which is as good.
        Err(_) => {
            assert!(call(&caller, "echo.default.east", "/").contains("ERR_NO_READY_ENDPOINT"))
        }
    }

    let health = get(unready.http(), "/v1.0/healthz");
    assert!(health.contains("ERR_HEALTH_NOT_READY") && health.contains("[app]"), "{health}");
    let health = get(api, "/v1.0/healthz?appid=other");
    assert!(health.contains("ERR_HEALTH_APPID_NOT_MATCH"), "{health}");
    let answer = get(api, "/v1.0/nothing");
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("ERR_NOT_SERVED"), "{answer}");
}

#[test]
fn a_request_that_is_no_good_is_refused_at_the_first_hop() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let send = |bytes: &str| RawClient::exchange(caller.http(), bytes, PATIENCE).unwrap().text();
    let answer =
        send("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n");
    check(&answer, 400, "ERR_MALFORMED_REQUEST", CALLER, &["repair the client"]);
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {}\r\n\r\n", "a".repeat(200_000));
    check(&send(&head), 431, "ERR_HEAD_TOO_LARGE", CALLER, &["header fields"]);
    let answer = send("CONNECT echo.mesh:80 HTTP/1.1\r\nHost: echo.mesh:80\r\n\r\n");
    check(&answer, 400, "ERR_UNSUPPORTED", CALLER, &["outbound port"]);
    // Slower than the ten seconds that a head may take.
    let answer = send("GET / HTTP/1.1\r\nHost: a\r\n");
    check(&answer, 408, "ERR_HEAD_TIMED_OUT", CALLER, &["10 s"]);
}

#[test]
fn an_app_cannot_speak_for_the_mesh() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let app = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = app.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in app.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            // The sidecar's probe sends nothing; a request has a head that is read at once.
            if std::io::Read::read(&mut stream, &mut head).is_ok_and(|length| length > 0) {
                let answer = "HTTP/1.1 503 Mine\r\nx-tollway-error: ERR_POLICY_DENIED\r\n\
                     x-tollway-hop: sidecar other\r\nx-mine: 1\r\ncontent-length: 0\r\n\r\n";
                let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
            }
        }
    });
    let _sidecar = mesh.east.sidecar_of("forger", port, AppProtocol::Http);
    let answer = retry_until(PATIENCE, "the app's answer", || {
        let answer = call(&caller, "forger.default.east", "/");
        answer.contains("x-mine: 1").then_some(answer)
    });
    let answer = answer.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(!answer.contains("x-tollway-"), "{answer}");
}

#[test]
fn an_answer_that_is_not_http_is_not_passed_on() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let app = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = app.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in app.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"SSH-2.0-OpenSSH_9.2\r\n\r\n");
        }
    });
    let _sidecar = mesh.east.sidecar_of("garbler", port, AppProtocol::Http);
    let answer = retry_until(PATIENCE, "an answer", || {
        let answer = call(&caller, "garbler.default.east", "/");
        answer.contains("ERR_BAD_RESPONSE").then_some(answer)
    });
    let hop = "sidecar garbler.default.east";
    check(&answer.unwrap(), 502, "ERR_BAD_RESPONSE", hop, &["--app-protocol"]);
}

#[test]
fn sidecars_and_gateways_that_are_away_are_named_with_their_address() {
    let mut mesh = Mesh::start();
    let caller = mesh.west.caller(&["--connect-timeout-ms", "500"]);
    let nowhere = nowhere("127.0.1.1");
    let gone = nowhere.address().to_string();
    let echo = start_tollway("echo").args(["--http", "127.0.0.1:0"]).start_listening().unwrap();
    let port = echo.port("http").unwrap().port().to_string();
    let elsewhere = ["--app-port", &port, "--advertise", &gone];
    let _lost = mesh.west.sidecar("lost", &elsewhere);
    let answer = retry_until(PATIENCE, "a service without an address", || {
        let answer = call(&caller, "lost", "/");
        answer.contains("\"ERR_UNREACHABLE\"").then_some(answer)
    });
    let parts = ["lost.default.west", &gone, "--advertise"];
    check(&answer.unwrap(), 503, "ERR_UNREACHABLE", CALLER, &parts);

    let _app = mesh.east.app("echo", "a", AppProtocol::Http);
    let late = mesh.west.caller(&["--connect-timeout-ms", "500"]);
    caller.until_served("echo.default.east");
    let gateway = mesh.east.gateway.port("gateway").unwrap().to_string();
    mesh.east.gateway.kill().unwrap();
    let answer = call(&late, "echo.default.east", "/");
    let parts = [gateway.as_str(), "network east", "Connection refused"];
    check(&answer, 503, "ERR_GATEWAY_UNREACHABLE", CALLER, &parts);
    let answer = retry_until(PATIENCE, "the network's withdrawal", || {
        let answer = call(&late, "echo.default.east", "/");
        answer.contains("ERR_UNREACHABLE_NETWORK").then_some(answer)
    });
    check(&answer.unwrap(), 503, "ERR_UNREACHABLE_NETWORK", CALLER, &["`east`"]);

    mesh.west.control.kill().unwrap();
    let health = retry_until(PATIENCE, "the loss of the control plane", || {
        let health = get(caller.http(), "/v1.0/healthz/outbound");
        health.contains("ERR_OUTBOUND_HEALTH_NOT_READY").then_some(health)
    });
    assert!(health.unwrap().starts_with("HTTP/1.1 500"));
}

#[test]
fn a_sidecar_without_descriptors_stays_up_and_logs_the_remedy() {
    let mesh = Mesh::start();
    let _app = mesh.east.app("echo", "a", AppProtocol::Http);
    let script = "ulimit -n 64; exec \"$0\" \"$@\"";
    let few = Start::new("/bin/sh").args(["-c", script, program(), "sidecar"]);
    let caller = mesh.west.sidecar_by(few.ready_within(PATIENCE), "caller", &[]);
    caller.until_served("echo.default.east");
    let crowd: Vec<_> = (0..100).map(|_| std::net::TcpStream::connect(caller.http())).collect();
    let reported = retry_until(PATIENCE, "a word about it", || {
        caller.process.log().contains("ERR_OUT_OF_DESCRIPTORS").then(|| caller.process.log())
    });
    let log = reported.unwrap();
    assert!(log.contains("64") && log.contains("ulimit -n"), "{log}");
    drop(crowd);
    caller.until_served("echo.default.east");
    let refused = caller.process.metric("tollway_connections_refused_total").unwrap();
    assert!(refused > 0, "whoever gave way, or had to wait, is counted");
}

#[test]
fn a_call_from_the_terminal_prints_the_error_of_the_mesh() {
    let mesh = Mesh::start();
    let caller = mesh.west.caller(&[]);
    let url = format!("http://{}", caller.http());
    let mut command = Command::new(program());
    command.args(["call", "--sidecar", &url, "nobody/"]);
    crate::failures::terminal::failure_of(command)
        .check("ERR_UNKNOWN_SERVICE", &[CALLER, "nobody.default.west", "check its name"]);
}

#[test]
fn a_full_sidecar_and_a_tcp_call_of_an_http_service_are_reported() {
    let mesh = Mesh::start();
    let _app = mesh.west.app("echo", "a", AppProtocol::Http);
    let options = ["--max-requests", "1", "--upstream", "0=echo.default.west"];
    let caller = mesh.west.caller(&options);
    caller.until_served("echo");
    let (listener, path) = (caller.http(), "/v1.0/invoke/echo/method/delay?ms=2500");
    let calls = [(); 3].map(|()| std::thread::spawn(move || get(listener, path)));
    let answers = calls.map(|call| call.join().unwrap());
    assert!(answers.iter().any(|answer| answer.starts_with("HTTP/1.1 200")), "{answers:?}");
    let full = answers.iter().find(|answer| !answer.starts_with("HTTP/1.1 200")).unwrap();
    check(full, 503, "ERR_OVERLOADED", CALLER, &["(1)", "try again later"]);
    let tcp = caller.upstream("echo.default.west");
    let heard = RawClient::exchange(tcp, "hello", PATIENCE).unwrap();
    assert!(heard.bytes.is_empty(), "bytes came from nowhere: {heard:?}");
    let reported = retry_until(PATIENCE, "a word about it", || {
        caller.process.log().contains("ERR_NOT_TCP").then_some(())
    });
    reported.unwrap();
}
