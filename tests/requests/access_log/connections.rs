//! Connections that carry bytes: a line each, when they have ended.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use serde_json::{Value, json};
use tollway_testkit::{RawClient, retry_until};

use super::{Logs, line, lines};
use tollway_tests::mesh::chat::{self, UPGRADE};
use tollway_tests::mesh::{AppProtocol, Mesh, PATIENCE};

const CALLER: &str = "spiffe://west.tollway/ns/default/caller";

#[test]
fn a_stream_of_bytes_is_a_line_on_both_sides_when_it_has_ended() {
    let logs = Logs::new();
    let mesh = Mesh::start();
    let [option, file] = &logs.options("callee");
    let _db = mesh.east.app_with("db", "a", AppProtocol::Tcp, &[option, file]);
    let [option, file] = &logs.options("caller");
    let caller = mesh.west.caller(&[option, file, "--upstream", "0=db.default.east"]);
    let (port, outbound) = (caller.upstream("db.default.east"), caller.outbound());
    let first = retry_until(PATIENCE, "TCP across", || echoed(port, "", 4)).unwrap();
    drop(first);

    let open = echoed(port, "", 1000).unwrap();
    let known = |wanted: u64| move |line: &Value| line["request_bytes"] == wanted;
    assert!(!lines(&logs.path("caller")).iter().any(known(1000)), "a line before its end");
    open.shutdown(Shutdown::Write).unwrap();
    for (name, direction) in [("caller", "outbound"), ("callee", "inbound")] {
        let line = line(&logs.path(name), known(1000));
        check(&line, "tcp", "db", direction);
        let nothing = [&line["method"], &line["path"], &line["status"]];
        assert_eq!(nothing, [&Value::Null; 3], "{line}");
        assert_eq!((&line["outcome"], &line["response_bytes"]), (&json!("answered"), &json!(1000)));
    }
    drop(open);

    let head = "CONNECT db.default.east.mesh:1 HTTP/1.1\r\nHost: db.default.east.mesh:1\r\n\r\n";
    echoed(outbound, head, 2000).unwrap().shutdown(Shutdown::Write).unwrap();
    let tunnel = line(&logs.path("caller"), known(2000));
    check(&tunnel, "connect", "db", "outbound");
    assert_eq!((&tunnel["method"], &tunnel["status"]), (&json!("CONNECT"), &json!(200)));
    check(&line(&logs.path("callee"), known(2000)), "tcp", "db", "inbound");
}

#[test]
fn a_connection_that_leaves_http_is_the_line_of_its_request() {
    let app_port = chat::start("").to_string();
    let logs = Logs::new();
    let mesh = Mesh::start();
    let [option, file] = &logs.options("callee");
    let _app = mesh.east.sidecar("chat", &["--app-port", &app_port, option, file]);
    let [option, file] = &logs.options("caller");
    let caller = mesh.west.caller(&[option, file]);
    caller.until_served("chat.default.east");
    let mut client = RawClient::connect(caller.http()).unwrap();
    let target = "/v1.0/invoke/chat.default.east/method/chat?token=secret";
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n");
    client.send(request).unwrap();
    let head = client.read_until(PATIENCE, |bytes| bytes.ends_with(b"\r\n\r\n")).unwrap();
    assert_eq!(head.statuses(), [101], "{}", head.text());
    client.send("seven b").unwrap();
    client.read_until(PATIENCE, |bytes| bytes == b"seven b").unwrap();
    for name in ["caller", "callee"] {
        let early = lines(&logs.path(name)).into_iter().find(|line| line["path"] == "/chat");
        assert_eq!(early, None, "a line before its end");
    }
    client.finish_sending().unwrap();
    client.read_to_end(PATIENCE).unwrap();
    for (name, direction) in [("caller", "outbound"), ("callee", "inbound")] {
        let line = line(&logs.path(name), |line| line["path"] == "/chat");
        check(&line, "upgrade", "chat", direction);
        assert_eq!((&line["method"], &line["status"]), (&json!("GET"), &json!(101)));
        let bytes = (&line["request_bytes"], &line["response_bytes"]);
        assert_eq!(bytes, (&json!(7), &json!(7)), "{line}");
    }
}

/// The fields of every such line.
#[track_caller]
fn check(line: &Value, kind: &str, app: &str, direction: &str) {
    assert_eq!((&line["kind"], &line["direction"]), (&json!(kind), &json!(direction)), "{line}");
    assert_eq!(line["service"], format!("{app}.default.east"), "{line}");
    assert_eq!(line["caller"], CALLER, "{line}");
    assert_eq!(line["callee"], format!("spiffe://east.tollway/ns/default/{app}"), "{line}");
    assert!(line["instance"].as_str().is_some_and(|text| !text.is_empty()), "{line}");
    let remote = line["remote"].as_str().unwrap_or_default();
    assert!(remote.parse::<SocketAddr>().is_ok(), "{line}");
    assert!(line["duration_us"].as_u64().unwrap() > 0, "{line}");
    assert!(!line.to_string().contains("secret"), "{line}");
}

/// A connection over which `count` bytes came back, after `head` was sent and answered.
fn echoed(address: SocketAddr, head: &str, count: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    while !head.is_empty() && !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        answer.push(byte[0]);
    }
    let sent = vec![b'x'; count];
    stream.write_all(&sent).ok()?;
    let mut heard = vec![0; count];
    stream.read_exact(&mut heard).ok()?;
    (heard == sent).then_some(stream)
}
