//! A stranger at a gateway's port for other networks: no certificate, no key, a ClientHello with a
//! name, and lines behind it for what may be at the other end.

use std::net::TcpListener;

use tollway_identity::{UNRECOGNIZED_NAME_RECORD, UPSTREAM_FAILED_RECORD};
use tollway_testkit::{RawClient, retry_until};

use tollway_tests::line_service::{LINES, LineService, hello_with_a_line};
use tollway_tests::network::{CONTROL, Network, PATIENCE, metric};
use tollway_tests::tls_client::client_hello;

const NO_TLS: &str = "tollway_gateway_answers_refused_total";

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
    assert!(service.taken() > 2);
    assert_eq!(service.executed(), Vec::<String>::new());
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
    assert_eq!(service.executed(), Vec::<String>::new());
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
