//! The echo server against foreign clients: curl, tonic, and bytes by hand.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod support;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Echo, any_port, closed, grpc, http, http2};
use tollway_echo::{EchoOptions, Faults, Stop, payload, serve_echo};
use tollway_load::{GrpcRequest, HttpRequest, LoadOptions, Target};
use tollway_testkit::{free_address, need_tool, retry_until};

/// Where the child of `bodies_of_100_mb_pass_in_bounded_memory` writes its ports.
const CHILD_PORTS: &str = "TOLLWAY_ECHO_TEST_PORTS";

#[test]
fn curl_gets_its_body_back_over_both_versions() {
    let echo = Echo::start();
    let body = String::from_utf8(payload(300_000)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    std::fs::write(&file, &body).unwrap();
    let data = format!("@{}", file.display());
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let url = echo.url("/echo");
        let text = curl(&[version, "--data-binary", &data, "-H", "content-type: text/x", &url]);
        assert_eq!(text, body, "{version}");
        let chunked = ["-H", "transfer-encoding: chunked", "-H", "expect: 100-continue"];
        let text = curl(&[&[version, "--data-binary", &data, &url], &chunked[..]].concat());
        assert_eq!(text, body, "{version}, chunked");
    }
}

#[test]
fn curl_is_answered_as_it_asks() {
    let echo = Echo::start();
    let code = ["-o", "/dev/null", "-w", "%{http_code} %{size_download}"];
    for version in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
        for (path, expected) in [
            ("/size?bytes=1000000", "200 1000000"),
            ("/size?bytes=0", "200 0"),
            ("/status/204", "204 0"),
            ("/status/503", "503 0"),
            ("/size", "400 28"),
            ("/", "200 0"),
        ] {
            let text = curl(&[&[version, &echo.url(path)], &code[..]].concat());
            assert_eq!(text, expected, "{version} {path}");
        }
        let text = curl(&[version, "-I", &echo.url("/size?bytes=77")]);
        assert!(text.to_lowercase().contains("content-length: 77"), "{version} {text}");
        let text = curl(&[version, "-H", "x-one: 1", &echo.url("/headers?a=b")]);
        assert!(text.contains(":path: /headers?a=b\n") && text.contains("x-one: 1\n"), "{text}");
        let begin = Instant::now();
        let text = curl(&[&[version, &echo.url("/delay?ms=150")], &code[..]].concat());
        assert_eq!(text, "200 0");
        assert!(begin.elapsed() >= Duration::from_millis(150), "{version}");
    }
}

#[test]
fn replicas_sign_their_answers() {
    let echo =
        Echo::with(EchoOptions { name: Some("stock-2".into()), ..EchoOptions::new(any_port()) });
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let text = curl(&[version, "-D", "-", &echo.url("/")]);
        assert!(text.to_lowercase().contains("x-echo-name: stock-2"), "{version} {text}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let echo = Echo::start();
    let requests = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\none\
        GET /delay?ms=50 HTTP/1.1\r\nhost: a\r\n\r\n\
        GET /size?bytes=600000 HTTP/1.1\r\nhost: a\r\n\r\n\
        GET /status/404 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answer = exchange(echo.ports.http, requests.as_bytes());
    let text = String::from_utf8_lossy(&answer);
    let heads: Vec<_> =
        text.match_indices("HTTP/1.1 ").map(|(at, _)| &text[at + 9..at + 12]).collect();
    assert_eq!(heads, ["200", "200", "200", "404"]);
    assert!(answer.len() > 600_000);
}

#[test]
fn chunks_and_trailers_come_back() {
    let echo = Echo::start();
    let request = "POST /echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
        transfer-encoding: chunked\r\n\r\n3\r\none\r\n4\r\n two\r\n0\r\nx-sum: 7\r\n\r\n";
    let answer = exchange(echo.ports.http, request.as_bytes());
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    assert_eq!(body, "3\r\none\r\n4\r\n two\r\n0\r\nx-sum: 7\r\n\r\n");
}

#[test]
fn malformed_requests_are_refused_and_the_reason_arrives() {
    let echo = Echo::start();
    let both = "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\
        transfer-encoding: chunked\r\n\r\n";
    for (request, status) in
        [("GET / HTTP/1.1\r\n\r\n", "400"), (both, "400"), ("GET / HTTP/3.0\r\n\r\n", "505")]
    {
        let text = String::from_utf8(exchange(echo.ports.http, request.as_bytes())).unwrap();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {text}");
    }
}

#[test]
fn tcp_comes_back_until_the_peer_has_closed() {
    let echo = Echo::start();
    let body = payload(5_000_000);
    let mut stream = TcpStream::connect(echo.ports.tcp.unwrap()).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let received = std::thread::spawn(move || {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        received
    });
    stream.write_all(&body).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(received.join().unwrap() == body, "what came back differs");
}

#[test]
fn a_stop_answers_what_is_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let ports_file = directory.path().join("ports.json");
    // No other process listens at this one afterwards.
    let address = free_address().unwrap();
    let options = EchoOptions { ports_file: Some(ports_file.clone()), ..EchoOptions::new(address) };
    let stop = Stop::new();
    let stopped = stop.clone();
    let server = std::thread::spawn(move || serve_echo(&options, &stopped));
    wait_for_ports(&ports_file);
    let mut stream = TcpStream::connect(address).unwrap();
    let fields = "expect: 100-continue\r\ncontent-length: 1\r\n";
    let request = format!("POST /delay?ms=300 HTTP/1.1\r\nhost: a\r\n{fields}\r\nx");
    stream.write_all(request.as_bytes()).unwrap();
    // It answers once it has read the head.
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(interim, *b"HTTP/1.1 100 Continue\r\n\r\n");
    let _idle = TcpStream::connect(address).unwrap();
    stop.request();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.join().unwrap().unwrap();
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn bodies_of_100_mb_pass_in_bounded_memory() {
    const BYTES: usize = 100_000_000;
    let directory = tempfile::tempdir().unwrap();
    let ports_file = directory.path().join("ports.json");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "echo_child", "--ignored"])
        .env(CHILD_PORTS, &ports_file)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let address = wait_for_ports(&ports_file);
    let body = directory.path().join("body");
    std::fs::write(&body, payload(BYTES)).unwrap();
    let answer = directory.path().join("answer");
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let data = format!("@{}", body.display());
        let url = format!("http://{address}/echo");
        let output = answer.display().to_string();
        curl(&[version, "-H", "expect:", "--data-binary", &data, "-o", &output, &url]);
        let same = Command::new("cmp").args([&body, &answer]).status().unwrap();
        assert!(same.success(), "{version}: what came back differs");
    }
    let peak_kb = peak_memory_kb(child.id());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(peak_kb < 40_000, "the echo server grew to {peak_kb} kB");
}

#[test]
fn every_case_of_h2spec_passes() {
    let h2spec = need_tool!("h2spec");
    let echo = Echo::start();
    let port = echo.ports.http.port().to_string();
    let output = Command::new(h2spec)
        .args(["--strict", "--host", "127.0.0.1", "--port", &port, "--timeout", "3"])
        .args(["--path", "/size?bytes=100"])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("146 tests, 146 passed, 0 skipped, 0 failed"), "{report}");
}

/// Not a test: the process whose memory is measured. Ends when its standard input does.
#[test]
#[ignore = "run by bodies_of_100_mb_pass_in_bounded_memory"]
fn echo_child() {
    let ports_file = std::env::var_os(CHILD_PORTS).unwrap();
    let options =
        EchoOptions { ports_file: Some(ports_file.into()), ..EchoOptions::new(any_port()) };
    let stop = Stop::new();
    let stopper = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stopper.request();
    });
    serve_echo(&options, &stop).unwrap();
}

/// Runs curl; its output.
fn curl(arguments: &[&str]) -> String {
    let output = Command::new("curl")
        .args(["-s", "-S", "--noproxy", "*", "--max-time", "60"])
        .args(arguments)
        .output()
        .expect("curl is needed for this test: install it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Sends bytes and reads until the server closes.
fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

fn wait_for_ports(path: &Path) -> SocketAddr {
    let written = || std::fs::read_to_string(path).ok();
    let text = retry_until(Duration::from_secs(20), "the ports file", written).unwrap();
    let ports: serde_json::Value = serde_json::from_str(&text).unwrap();
    ports["http"].as_str().unwrap().parse().unwrap()
}

fn peak_memory_kb(pid: u32) -> u64 {
    let status = std::fs::File::open(format!("/proc/{pid}/status")).unwrap();
    let line = BufReader::new(status).lines().map_while(Result::ok);
    let peak = line
        .filter_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    peak.last().unwrap()
}

#[test]
fn faults_happen_as_often_as_asked_over_every_protocol() {
    let echo = Echo::start();
    let request = HttpRequest::default();
    for two in [false, true] {
        let run = |query: &str| {
            let target = Target::http(&echo.url(&format!("/echo?{query}"))).unwrap();
            let options = twenty_at_once(target, 1000);
            if two { http2(&options, &request) } else { http(&options, &request) }
        };
        let delayed = run("delay=3ms").traffic;
        assert_eq!(delayed.requests, 1000);
        assert!(delayed.phases_us["waiting"].p50.unwrap() >= 3_000.0, "{delayed:?}");
        let failed = run("status=503:20,429:10").traffic;
        let share = |kind: &str| failed.errors_by_kind[kind];
        assert!((150..250).contains(&share("status-503")), "{failed:?}");
        assert!((65..135).contains(&share("status-429")), "{failed:?}");
        let sized = run("size=5000").traffic;
        assert!(sized.bytes.received > 5_000_000, "{:?}", sized.bytes);
        let refused = run("status=42").traffic;
        assert_eq!(refused.errors_by_kind["status-400"], 1000);
        let closed = run("close=10").traffic;
        assert!(closed.requests < 1000 && closed.errors_by_kind["closed"] > 50, "{closed:?}");
    }
}

#[test]
fn a_servers_own_faults_hold_for_calls_of_grpc_too() {
    let faults = Faults {
        delay: "2ms".parse().unwrap(),
        status: "503:50".parse().unwrap(),
        ..Faults::default()
    };
    let echo = Echo::with(EchoOptions { faults, ..EchoOptions::new(any_port()) });
    let options = twenty_at_once(echo.grpc(), 400);
    let call = GrpcRequest { verify_echo: true, ..GrpcRequest::echo(100_000) };
    let traffic = grpc(&options, &call).traffic;
    assert_eq!(traffic.scheduled(), 400);
    assert!((140..260).contains(&traffic.errors_by_kind["grpc-14"]), "{traffic:?}");
    assert!(traffic.service_us.mean.unwrap() >= 2_000.0, "{traffic:?}");
}

fn twenty_at_once(target: Target, requests: u64) -> LoadOptions {
    LoadOptions { connections: 4, streams: 5, ..closed(target, requests) }
}
