//! A stranger at a gateway's port for other networks: no certificate, no key, a ClientHello with a
//! name, and lines behind it for what may be at the other end.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tollway_identity::{UNRECOGNIZED_NAME_RECORD, UPSTREAM_FAILED_RECORD};
use tollway_testkit::{RawClient, retry_until};

use tollway_tests::network::{CONTROL, Network, PATIENCE, metric};
use tollway_tests::tls_client::client_hello;

const LINES: &[u8] = b"\r\nGET secret\r\nSET owned yes\r\n";
const NO_TLS: &str = "tollway_gateway_answers_refused_total";

/// A service that reads lines, as some stores and mail servers do: what it does not understand it
/// answers and forgets.
#[derive(Clone)]
struct LineService {
    address: SocketAddr,
    taken: Arc<AtomicUsize>,
    executed: Arc<Mutex<Vec<String>>>,
}

impl LineService {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let service = Self { address, taken: Arc::default(), executed: Arc::default() };
        let started = service.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let service = service.clone();
                std::thread::spawn(move || service.serve(stream.unwrap()));
            }
        });
        started
    }

    fn serve(&self, mut stream: std::net::TcpStream) {
        self.taken.fetch_add(1, Ordering::SeqCst);
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            let is_command = text.starts_with("GET ") || text.starts_with("SET ");
            let answer: &[u8] =
                if is_command { b"+OK internal-secret-42\r\n" } else { b"-ERR\r\n" };
            if is_command {
                self.executed.lock().unwrap().push(text);
            }
            if stream.write_all(answer).is_err() {
                return;
            }
            line.clear();
        }
    }
}

/// A ClientHello of that name which ends a line, so that a service of lines answers it.
fn hello_with_a_line(name: &str) -> Vec<u8> {
    loop {
        let hello = client_hello(name);
        // About one in four has such a byte among its random ones.
        if hello.contains(&b'\n') {
            return hello;
        }
    }
}

#[test]
fn a_workload_at_a_service_of_lines_hands_it_no_line_of_a_stranger() {
    let service = LineService::start();
    let west = Network::start("west");
    let gateway = west.gateway();
    // The least token that there is: it names its own app and where that may be reached.
    let place = service.address.to_string();
    let app = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = app.local_addr().unwrap().port().to_string();
    let _pivot = west.sidecar("pivot", &["--app-port", &port, "--advertise", &place]);
    let address = gateway.port("gateway").unwrap();
    let before = metric(&gateway, NO_TLS);
    let mut refused = 0;
    retry_until(PATIENCE, "a connection that reaches the service", || {
        let name = "pivot.default.west.mesh";
        let sent = [&hello_with_a_line(name), LINES].concat();
        let answer = RawClient::exchange(address, sent, PATIENCE).unwrap();
        assert!(!answer.text().contains("internal-secret"), "{}", answer.text());
        refused += u64::from(answer.bytes == UPSTREAM_FAILED_RECORD);
        (refused > 2).then_some(())
    })
    .unwrap();
    assert!(service.taken.load(Ordering::SeqCst) > 2);
    assert_eq!(*service.executed.lock().unwrap(), Vec::<String>::new());
    assert!(metric(&gateway, NO_TLS) - before >= refused);
    let log = gateway.log();
    assert!(log.contains("ERR_GATEWAY_NO_TLS") && log.contains(&place), "{log}");
}

#[test]
fn a_stranger_gets_through_no_gateway_into_a_joined_network() {
    let service = LineService::start();
    let (west, east) = (Network::start("west"), Network::start("east"));
    let (gateway, _honest) = (west.gateway(), east.gateway());
    west.join_with(&east, &["--follow-gateways"]);
    // East's operator states another gateway after the join.
    let _misleading = east.gateway_at(&service.address.to_string());
    let known = retry_until(PATIENCE, "the stated gateway", || {
        let joins = west.command(&["join", "list"], b"");
        String::from_utf8(joins).unwrap().contains(&service.address.to_string()).then_some(())
    });
    known.unwrap();
    let address = gateway.port("gateway").unwrap();
    for name in ["x.default.east.mesh", "control.east.mesh", "gateway.east.mesh"] {
        let sent = [&hello_with_a_line(name), LINES].concat();
        let answer = RawClient::exchange(address, sent, PATIENCE).unwrap();
        assert_eq!(answer.bytes, UNRECOGNIZED_NAME_RECORD, "{name}");
    }
    assert_eq!(*service.executed.lock().unwrap(), Vec::<String>::new());
    let log = gateway.log();
    assert!(log.contains("ERR_GATEWAY_OTHER_NETWORK") && log.contains("--inside-listen"), "{log}");
}

#[test]
fn a_server_name_writes_no_line_into_the_log() {
    let west = Network::start("west");
    let gateway = west.gateway();
    let address = gateway.port("gateway").unwrap();
    let forged = b"x\n2026-01-01 ERROR forged line";
    let names: [&[u8]; 6] = [
        forged,
        b"\x1b[31mred.default.west.mesh",
        b"evil\0.default.west.mesh",
        b"\xff\xfe.default.west.mesh",
        b"..",
        b"control.west.mesh.",
    ];
    for name in names {
        let stand_in = "a".repeat(name.len());
        let hello = client_hello(&stand_in);
        let at = hello.windows(name.len()).position(|part| part == stand_in.as_bytes()).unwrap();
        let mut sent = hello;
        sent[at..at + name.len()].copy_from_slice(name);
        let answer = RawClient::exchange(address, sent, PATIENCE).unwrap();
        assert_eq!(answer.bytes, UNRECOGNIZED_NAME_RECORD, "{}", name.escape_ascii());
    }
    // Another spelling of what is there leads there.
    let answer = RawClient::exchange(
        address,
        client_hello(&CONTROL.to_uppercase()),
        std::time::Duration::from_millis(500),
    );
    assert!(answer.is_err() || answer.unwrap().bytes != UNRECOGNIZED_NAME_RECORD);
    let log = gateway.log();
    let is_forged = |line: &str| line.starts_with("2026-01-01") || line.contains('\x1b');
    assert!(!log.lines().any(is_forged), "{log}");
}
