//! TLS, handshakes and the use of connections: against the echo server, nginx, curl, h2load.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

#[path = "support/certificates.rs"]
mod certificates;
mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use certificates::Certificates;
use support::{Echo, any_port, closed, get, grpc, holds_once, http, http2, open_loop, unwatched};
use tollway_echo::{EchoOptions, HttpsOptions, payload};
use tollway_load::{
    GrpcRequest, HttpRequest, LoadError, LoadOptions, Reuse, Target, TlsOptions, TlsVersions,
    run_http,
};
use tollway_record::RunResult;
use tollway_record::record::Tls;
use tollway_testkit::{free_address, need_tool, retry_until};

#[test]
fn every_protocol_is_spoken_over_tls() {
    let (certificates, echo) = secure_echo(false);
    let options = secure(&echo, &certificates, 200);
    let post = HttpRequest {
        method: "POST".into(),
        body: payload(50_000),
        verify_echo: true,
        ..HttpRequest::default()
    };
    check(&http(&options, &post), 200, "http/1.1");
    check(&http2(&options, &post), 200, "h2");
    let call = GrpcRequest { verify_echo: true, ..GrpcRequest::echo(50_000) };
    let mut options = options;
    let address = echo.ports.https.unwrap();
    options.target = Target::grpc(&format!("grpcs://{address}")).unwrap();
    check(&grpc(&options, &call), 200, "h2");
}

#[test]
fn a_client_certificate_is_shown_to_who_asks() {
    let (certificates, echo) = secure_echo(true);
    let mut options = secure(&echo, &certificates, 100);
    let refused = get(&options);
    assert_eq!(refused.traffic.requests, 0, "{refused:?}");
    options.tls.certificate = Some(certificates.path("client.pem"));
    let result = get(&options);
    assert_eq!((result.traffic.requests, result.tls), (100, Tls::Mtls), "{result:?}");
    assert!(result.tls_facts.unwrap().client_certificate);
}

#[test]
fn a_server_that_cannot_be_believed_is_refused() {
    let (certificates, echo) = secure_echo(false);
    let mut options = secure(&echo, &certificates, 50);
    let other = Certificates::make();
    options.tls.authorities = Some(other.path("ca.pem"));
    let error = failure(&options);
    assert!(error.contains("UnknownIssuer"), "{error}");
    options.tls.authorities = Some(certificates.path("ca.pem"));
    options.tls.server_name = Some("elsewhere.example".into());
    let error = failure(&options);
    assert!(error.contains("not valid for name"), "{error}");
    options.tls.insecure = true;
    assert_eq!(get(&options).traffic.requests, 50);
}

#[test]
fn handshakes_are_full_or_resumed_as_asked() {
    let (certificates, echo) = secure_echo(false);
    let mut options = secure(&echo, &certificates, 300);
    options.reuse = Reuse { requests: Some(1), idle: None };
    for versions in [TlsVersions::Only12, TlsVersions::Only13] {
        options.tls.versions = versions;
        options.tls.full_handshakes = true;
        options.warmup = Duration::ZERO;
        let full = get(&options).tls_facts.unwrap();
        // Without the four connections of the beginning.
        assert_eq!((full.handshakes_full, full.handshakes_resumed), (296, 0), "{versions:?}");
        options.tls.full_handshakes = false;
        options.warmup = Duration::from_millis(200);
        let result = get(&options);
        let resumed = result.tls_facts.unwrap();
        let all = resumed.handshakes_full + resumed.handshakes_resumed;
        assert!(all >= 300 && resumed.handshakes_resumed > 280, "{versions:?} {resumed:?}");
        let mean =
            |facts: &tollway_record::tls::TlsFacts| facts.handshake_cpu_us.unwrap().mean.unwrap();
        // A full one checks a signature.
        assert!(mean(&resumed) < mean(&full), "{} < {}", mean(&resumed), mean(&full));
    }
}

#[test]
fn connections_carry_as_many_requests_as_allowed() {
    let echo = Echo::start();
    let (certificates, secure_echo) = secure_echo(false);
    for (plain, streams) in [(true, 1), (false, 1), (false, 4)] {
        let mut options = match plain {
            true => to(&echo.url("/size?bytes=10"), 200),
            false => secure(&secure_echo, &certificates, 200),
        };
        options.connections = 4;
        options.streams = streams;
        options.reuse = Reuse { requests: Some(5), idle: None };
        let request = HttpRequest::default();
        let result = if streams > 1 { http2(&options, &request) } else { get(&options) };
        assert_eq!(result.traffic.requests, 200, "{result:?}");
        let opened = result.traffic.phases_us["connecting"].n;
        // Those of the beginning are not counted.
        assert!((35..=45).contains(&opened), "{opened} of {streams}");
        assert_eq!(result.requests_per_connection, Some(5));
    }
}

#[test]
fn a_connection_that_was_idle_for_too_long_is_not_used() {
    let echo = Echo::start();
    let mut options = open_loop(&echo.url("/"), 5.0, 2.0);
    options.connections = 1;
    options.reuse = Reuse { requests: None, idle: Some(Duration::from_millis(10)) };
    let result = get(&options);
    assert_eq!(result.traffic.requests, 10, "{result:?}");
    // If the machine was suspended, requests may have come right after each other.
    let opened = result.traffic.phases_us["connecting"].n;
    assert!((5..=10).contains(&opened), "{opened} for ten requests");
    options.reuse.idle = Some(Duration::from_secs(60));
    assert!(!get(&options).traffic.phases_us.contains_key("connecting"));
}

#[test]
fn a_closed_listener_fails_the_requests_that_have_to_connect() {
    let listener = TcpListener::bind(any_port()).unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut options = open_loop(&url, 50.0, 1.0);
    options.reuse = Reuse { requests: Some(1), idle: None };
    options.connections = 2;
    // The first connections are open, then the listener is gone.
    let closing = std::thread::spawn(move || {
        let first = listener.accept().unwrap();
        let second = listener.accept().unwrap();
        drop((listener, first, second));
    });
    let result = get(&options);
    closing.join().unwrap();
    assert_eq!(result.traffic.requests, 0);
    assert_eq!(result.traffic.scheduled(), 50, "{result:?}");
    assert!(result.traffic.errors_by_kind["connect"] > 10, "{result:?}");
}

#[test]
fn each_delay_is_in_its_phase() {
    let (certificates, echo) = secure_echo(false);
    const DELAY: Duration = Duration::from_millis(100);
    const DELAY_US: f64 = 99_000.0;
    let relay = slow_start_relay(echo.ports.https.unwrap(), DELAY);
    let mut options = secure(&echo, &certificates, 5);
    options.target = Target::http(&format!("https://localhost:{}/", relay.port())).unwrap();
    options.connect_to = Some(relay);
    options.connections = 1;
    options.reuse = Reuse { requests: Some(1), idle: None };
    let mean = |result: &RunResult, phase: &str| result.traffic.phases_us[phase].mean.unwrap();
    let short = |result: &RunResult, phases: [&str; 2]| {
        let us = phases.map(|phase| mean(result, phase));
        (us[0] + us[1] < DELAY_US).then_some(()).ok_or(format!("{phases:?}: {us:?} µs"))
    };
    holds_once(|| {
        let result = get(&options);
        assert!(mean(&result, "tls_handshaking") >= DELAY_US, "{result:?}");
        short(&result, ["connecting", "waiting"])
    });

    // An answer that takes its time.
    let mut options = to(&echo.url("/delay?ms=100"), 5);
    options.connections = 1;
    holds_once(|| {
        let result = get(&options);
        assert!(mean(&result, "waiting") >= DELAY_US, "{result:?}");
        assert!(!result.traffic.phases_us.contains_key("blocked"));
        short(&result, ["sending", "receiving"])
    });

    // One connection for five requests in 50 ms: each but the first waits for the one before.
    let mut options = open_loop(&echo.url("/delay?ms=300"), 100.0, 0.05);
    options.connections = 1;
    options.warmup = Duration::ZERO;
    holds_once(|| {
        let blocked = get(&options).traffic.phases_us["blocked"];
        assert_eq!(blocked.n, 4);
        (blocked.max.unwrap() >= 1_100_000.0).then_some(()).ok_or(format!("{blocked:?}"))
    });
}

#[test]
fn slow_readers_and_slow_writers_show_in_sending_and_receiving() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let body = payload(8_000_000);
    let length = body.len();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::thread::sleep(Duration::from_millis(400));
        read_request(&mut stream, length);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no").unwrap();
        std::thread::sleep(Duration::from_millis(600));
        stream.write_all(b"k").unwrap();
    });
    let mut options = to(&url, 1);
    options.connections = 1;
    let request = HttpRequest { method: "POST".into(), body, ..HttpRequest::default() };
    let result = http(&options, &request);
    server.join().unwrap();
    let phase = |name: &str| result.traffic.phases_us[name].mean.unwrap();
    // Half of each: the client may wake up late where others use the processors.
    assert!(phase("sending") >= 200_000.0, "{result:?}");
    assert!(phase("receiving") >= 300_000.0, "{result:?}");
    let sum = phase("sending") + phase("waiting") + phase("receiving");
    let service = result.traffic.service_us.mean.unwrap();
    assert!((sum - service).abs() < 1.0, "{sum} is not {service}");
}

#[test]
fn nginx_agrees_about_tls() {
    let nginx = need_tool!("nginx");
    let certificates = Certificates::make();
    let server = Nginx::start(&nginx, &certificates);
    let mut options = to(&format!("https://localhost:{}/", server.address.port()), 200);
    options.connect_to = Some(server.address);
    options.tls.authorities = Some(certificates.path("ca.pem"));
    let request = HttpRequest::default();
    for (versions, name) in [(TlsVersions::Only12, "TLSv1_2"), (TlsVersions::Only13, "TLSv1_3")] {
        options.tls.versions = versions;
        options.reuse = Reuse::default();
        for result in [http(&options, &request), http2(&options, &request)] {
            assert_eq!(result.traffic.requests, 200, "{result:?}");
            let facts = result.tls_facts.unwrap();
            assert_eq!((facts.version.as_str(), result.tls), (name, Tls::Tls));
            assert_eq!(facts.server_key.as_deref(), Some("EC-256"));
        }
        options.reuse = Reuse { requests: Some(1), idle: None };
        let result = get(&options);
        assert_eq!(result.traffic.requests, 200, "{result:?}");
        let facts = result.tls_facts.unwrap();
        assert!(facts.handshakes_resumed > 150, "{facts:?}");
    }
    options.tls.certificate = Some(certificates.path("client.pem"));
    options.reuse = Reuse::default();
    assert_eq!(get(&options).tls, Tls::Mtls);
}

#[test]
fn curl_and_h2load_are_served_over_tls() {
    let curl = need_tool!("curl");
    let h2load = need_tool!("h2load");
    let (certificates, echo) = secure_echo(false);
    let address = echo.ports.https.unwrap();
    let url = format!("https://localhost:{}/headers", address.port());
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let output = Command::new(&curl)
            .args(["-sS", flag, "-w", "%{http_version}", "--noproxy", "*", "--cacert"])
            .arg(certificates.path("ca.pem"))
            .args(["--resolve", &format!("localhost:{}:127.0.0.1", address.port()), &url])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.ends_with(version), "{text} {}", String::from_utf8_lossy(&output.stderr));
    }
    let output = Command::new(&h2load)
        .args(["-n", "2000", "-c", "4", "-m", "10"])
        .arg(format!("https://{address}/size?bytes=1024"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("2000 succeeded"), "{text}");
}

/// An echo server with a TLS listener.
fn secure_echo(mutual: bool) -> (Certificates, Echo) {
    let certificates = Certificates::make();
    let echo = Echo::with(EchoOptions {
        https: Some(HttpsOptions {
            address: any_port(),
            certificate: certificates.path("server.pem"),
            key: certificates.path("server.key"),
            client_authorities: mutual.then(|| certificates.path("ca.pem")),
        }),
        ..EchoOptions::new(any_port())
    });
    (certificates, echo)
}

/// `requests` one after the other on each of four connections to the TLS listener.
fn secure(echo: &Echo, certificates: &Certificates, requests: u64) -> LoadOptions {
    let address = echo.ports.https.unwrap();
    let tls =
        TlsOptions { authorities: Some(certificates.path("ca.pem")), ..TlsOptions::default() };
    LoadOptions { tls, connections: 4, ..to(&format!("https://{address}/echo"), requests) }
}

/// `requests` one after the other on each of the connections.
fn to(url: &str, requests: u64) -> LoadOptions {
    LoadOptions { streams: 10, ..closed(Target::http(url).unwrap(), requests) }
}

fn check(result: &RunResult, requests: u64, alpn: &str) {
    assert_eq!((result.traffic.requests, result.tls), (requests, Tls::Tls), "{result:?}");
    let facts = result.tls_facts.clone().unwrap();
    assert_eq!((facts.version.as_str(), facts.alpn.as_deref()), ("TLSv1_3", Some(alpn)));
    assert_eq!(facts.server_key.as_deref(), Some("EC-256"));
    assert_eq!((facts.handshakes_full, facts.client_certificate), (4, false));
    assert_eq!(result.traffic.phases_us["tls_handshaking"].n, 4);
}

/// The causes of a run that does not begin.
fn failure(options: &LoadOptions) -> String {
    match unwatched(|watch| run_http(options, &HttpRequest::default(), watch)) {
        Err(LoadError::Connect { source: Some(source), .. }) => source.to_string(),
        other => panic!("the run was not refused: {other:?}"),
    }
}

/// Passes bytes on; the first of the server's come late.
fn slow_start_relay(to: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let mut server = TcpStream::connect(to).unwrap();
            let (mut from_client, mut to_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                // Ends with either side.
                let _ = std::io::copy(&mut from_client, &mut to_server);
                let _ = to_server.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut first = [0; 16 * 1024];
                let count = server.read(&mut first).unwrap_or(0);
                std::thread::sleep(delay);
                let _ = client.write_all(&first[..count]);
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    address
}

fn read_request(stream: &mut TcpStream, body_bytes: usize) {
    let mut read = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the request ended early");
        read.extend_from_slice(&buffer[..count]);
        let head = read.windows(4).position(|four| four == b"\r\n\r\n");
        if head.is_some_and(|head| read.len() == head + 4 + body_bytes) {
            return;
        }
    }
}

struct Nginx {
    child: Child,
    address: SocketAddr,
}

impl Nginx {
    fn start(program: &std::path::Path, certificates: &Certificates) -> Self {
        let address = free_address().unwrap();
        let directory = certificates.path("");
        let directory = directory.display();
        certificates.write(
            "nginx.conf",
            &format!(
                "daemon off; master_process off; pid {directory}/pid; error_log stderr;\n\
                 events {{ }}\n\
                 http {{\n  access_log off;\n  client_body_temp_path {directory}/body;\n\
                 proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;\n\
                 uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;\n\
                 server {{\n    listen {address} ssl http2;\n\
                 ssl_certificate {directory}/server.pem;\n\
                 ssl_certificate_key {directory}/server.key;\n\
                 ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache builtin;\n\
                 ssl_client_certificate {directory}/ca.pem; ssl_verify_client optional;\n\
                 location / {{ return 200 ok; }}\n  }}\n}}\n"
            ),
        );
        let child = Command::new(program)
            .arg("-c")
            .arg(certificates.path("nginx.conf"))
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let server = Self { child, address };
        let listens = || TcpStream::connect(address).ok();
        retry_until(Duration::from_secs(30), "nginx", listens).unwrap();
        server
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
