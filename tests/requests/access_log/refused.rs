//! What is refused before it is a request, and connections that lead nowhere.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use tollway_testkit::{RawClient, retry_until};

use super::{Logs, line};
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE};

#[test]
fn what_is_no_request_is_a_line_with_its_status_and_who_sent_it() {
    let logs = Logs::new();
    let mesh = Mesh::start();
    let [option, file] = &logs.options("log");
    let caller = mesh.west.caller(&[option, file]);
    let sent = |address: SocketAddr, bytes: &str| {
        RawClient::exchange(address, bytes, PATIENCE).unwrap().statuses()
    };
    let bad_head = sent(caller.http(), "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: two\r\n\r\n");
    assert_eq!(bad_head, [400]);
    let refused = line(&logs.path("log"), |line| line["status"] == 400);
    check(&refused, "request", "outbound", "ERR_MALFORMED_REQUEST");
    assert_eq!((&refused["method"], &refused["path"]), (&Value::Null, &Value::Null), "{refused}");

    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nLong: {}\r\n\r\n", "x".repeat(200_000));
    assert_eq!(sent(caller.http(), &long), [431]);
    let refused = line(&logs.path("log"), |line| line["status"] == 431);
    check(&refused, "request", "outbound", "ERR_HEAD_TOO_LARGE");

    assert_eq!(sent(caller.http(), "hello\r\n\r\n"), [0; 0]);
    let no_http = line(&logs.path("log"), |line| line["kind"] == "connection");
    check(&no_http, "connection", "outbound", "ERR_MALFORMED_REQUEST");
    assert_eq!(no_http["status"], Value::Null, "{no_http}");

    let host = "nobody.default.east.mesh:1";
    let unknown = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    assert_eq!(sent(caller.outbound(), &unknown), [404]);
    let refused = line(&logs.path("log"), |line| line["kind"] == "connect");
    check(&refused, "connect", "outbound", "ERR_UNKNOWN_SERVICE");
    assert_eq!(
        (&refused["service"], &refused["status"]),
        (&json!("nobody.default.east"), &json!(404))
    );

    let listener = caller.process.port("inbound").unwrap();
    sent(listener, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let stranger = line(&logs.path("log"), |line| line["direction"] == "inbound");
    check(&stranger, "connection", "inbound", "ERR_TLS_FAILED");
    assert_eq!((&stranger["caller"], &stranger["status"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_tcp_connection_that_policies_refuse_names_its_caller() {
    let logs = Logs::new();
    let mesh = Mesh::start();
    let [option, file] = &logs.options("callee");
    let _db = mesh.east.app_with("db", "a", AppProtocol::Tcp, &[option, file]);
    let [option, file] = &logs.options("caller");
    let upstreams = ["--upstream", "0=db.default.east", "--upstream", "0=gone.default.east"];
    let caller = mesh.west.caller(&[&[option.as_str(), file], &upstreams[..]].concat());
    mesh.east.apply(
        "apiVersion: tollway.dev/v1\nkind: Policy\nmetadata:\n  name: db\nspec:\n  \
         target: {app: db}\n  deny:\n    - from: [caller.default.west]\n",
    );

    let port = caller.upstream("db.default.east");
    let denied = |line: &Value| line["error_code"] == "ERR_POLICY_DENIED";
    let seen = retry_until(PATIENCE, "a refusal by the policy", || {
        end_of(port);
        crate::access_log::lines(&logs.path("callee")).into_iter().find(denied)
    });
    let refused = seen.unwrap();
    check(&refused, "tcp", "inbound", "ERR_POLICY_DENIED");
    assert_eq!(refused["caller"], "spiffe://west.tollway/ns/default/caller");
    assert_eq!(refused["service"], "db.default.east");

    end_of(caller.upstream("gone.default.east"));
    let nobody = line(&logs.path("caller"), |line| line["service"] == "gone.default.east");
    check(&nobody, "tcp", "outbound", "ERR_UNKNOWN_SERVICE");
    assert_eq!((&nobody["callee"], &nobody["request_bytes"]), (&Value::Null, &json!(0)));
}

#[test]
fn a_connection_too_many_is_a_line() {
    let logs = Logs::new();
    let mesh = Mesh::start();
    let [option, file] = &logs.options("log");
    let caller = mesh.west.caller(&[option, file, "--max-connections", "4"]);
    let _open: Vec<_> = (0..6).map(|_| TcpStream::connect(caller.http()).unwrap()).collect();
    let refused = line(&logs.path("log"), |line| line["error_code"] == "ERR_OVERLOADED");
    check(&refused, "connection", "outbound", "ERR_OVERLOADED");
}

#[track_caller]
fn check(line: &Value, kind: &str, direction: &str, code: &str) {
    assert_eq!((&line["kind"], &line["direction"]), (&json!(kind), &json!(direction)), "{line}");
    assert_eq!((&line["outcome"], &line["error_code"]), (&json!("failed"), &json!(code)), "{line}");
    let remote = line["remote"].as_str().unwrap_or_default();
    assert!(remote.parse::<SocketAddr>().is_ok(), "{line}");
}

/// Connects, and waits for the other side to end that.
fn end_of(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A reset ends it as well.
    let _ = stream.read_to_end(&mut Vec::new());
}
