//! Requests: what the app gets, and the errors of clients if there is no app.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use rustix::process::Signal;
use tollway_testkit::{ClosedPort, retry_until};

use crate::front::world::{Echo, Files, HOST, PATIENCE, World, get, request, request_of};
use tollway_tests::scripted_app::{Reply, Script, Then};

#[test]
fn the_app_gets_the_clients_address_scheme_and_host() {
    let world = World::start(Script::new(), &[]);
    let answer = world.ask(world.files.client(), &get("/plain?q=1")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let seen = world.app.requests("/plain?q=1").remove(0);
    assert_eq!(seen.values("host"), [HOST]);
    assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.values("x-forwarded-proto"), ["https"]);
    assert_eq!(seen.values("x-forwarded-host"), [HOST]);
    assert_eq!(seen.values("forwarded"), ["for=127.0.0.1;host=\"a.example\";proto=https"]);
    assert_eq!(seen.values("x-forwarded-client-cert"), [""; 0]);
}

/// A client's own claims are removed, in any spelling; the lists are extended.
#[test]
fn a_client_cannot_forge_the_fields_of_the_front() {
    let world = World::start(Script::new(), &[]);
    let forged = "x-forwarded-for: 192.0.2.1\r\nforwarded: for=192.0.2.1\r\n\
                  x-forwarded-proto: http\r\nX_Forwarded_Proto: http\r\n\
                  x-forwarded-host: evil\r\nx-forwarded_host: evil\r\n\
                  X-Forwarded-Client-Cert: Hash=evil\r\nx_forwarded_client_cert: Hash=evil\r\n\
                  x-tollway-caller: evil\r\nx-tollway-explain: 1\r\n\
                  connection: x-forwarded-for, x-forwarded-proto\r\n\
                  x-forwarded-client-certs: kept\r\n";
    world.ask(world.files.client(), &request("GET", "/forged", forged)).unwrap();
    let seen = world.app.requests("/forged").remove(0);
    assert!(!seen.head.contains("evil"), "{}", seen.head);
    assert!(!seen.head.contains('_') && !seen.head.contains("x-tollway"), "{}", seen.head);
    assert_eq!(seen.values("x-forwarded-proto"), ["https"]);
    assert_eq!(seen.values("x-forwarded-host"), [HOST]);
    // The client itself called the list hop-by-hop: it does not reach the app as the client's.
    assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.1"]);
    let element = "for=127.0.0.1;host=\"a.example\";proto=https";
    assert_eq!(seen.values("forwarded"), [format!("for=192.0.2.1, {element}")]);
    assert_eq!(seen.values("x-forwarded-client-certs"), ["kept"]);

    let listed = "x-forwarded-for: 192.0.2.1, 192.0.2.2\r\n";
    world.ask(world.files.client(), &request("GET", "/listed", listed)).unwrap();
    let seen = world.app.requests("/listed").remove(0);
    assert_eq!(seen.values("x-forwarded-for"), ["192.0.2.1, 192.0.2.2, 127.0.0.1"]);

    let chunked = "transfer-encoding: chunked\r\n";
    let body = "1\r\na\r\n0\r\nx-forwarded-client-cert: Hash=evil\r\nx-sum: 1\r\n\r\n";
    world.ask(world.files.client(), &(request("POST", "/trailers", chunked) + body)).unwrap();
    let seen = world.app.requests("/trailers").remove(0);
    let body = String::from_utf8(seen.body).unwrap();
    assert!(body.ends_with("x-sum: 1\r\n\r\n") && !body.contains("evil"), "{body}");
}

/// An app cannot claim to be the front either.
#[test]
fn answers_pass_without_the_fields_of_the_data_plane() {
    let reported =
        b"HTTP/1.1 418 Teapot\r\ncontent-length: 2\r\nx-a: b\r\nx-tollway-error: evil\r\n\r\nhi";
    let script = Script::from([("/told", Reply { bytes: reported.to_vec(), then: Then::GoOn })]);
    let world = World::start(script, &[]);
    let answer = world.ask(world.files.client(), &get("/told")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 418 ") && answer.ends_with("\r\n\r\nhi"), "{answer}");
    assert!(answer.contains("x-a: b") && !answer.contains("evil"), "{answer}");
}

#[test]
fn without_an_app_requests_fail_as_app_unreachable() {
    let files = Files::new();
    let nobody = ClosedPort::on(Ipv4Addr::LOCALHOST).unwrap();
    let front = files.front(&format!("http://{}", nobody.address()), &[]);
    let mut client = files.connect(&front);
    let answer = client.ask(&get("/")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("ERR_APP_UNREACHABLE") && answer.contains("x-tollway-hop: front"));
    assert!(answer.contains("front: cannot reach its app: "), "{answer}");
    let address = nobody.address().to_string();
    assert!(!answer.contains(&address), "where the app is shows: {answer}");
    assert!(front.log().contains(&address), "{}", front.log());
    // The same connection carries on.
    assert!(client.ask(&get("/")).unwrap().starts_with("HTTP/1.1 503 "));
    let refused = client.ask("CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n").unwrap();
    assert!(refused.contains("ERR_UNSUPPORTED") && refused.contains("tunnels"), "{refused}");
}

#[test]
fn a_connection_may_leave_http() {
    let bytes =
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: raw\r\n\r\nwelcome";
    let script = Script::from([("/raw", Reply { bytes: bytes.to_vec(), then: Then::Hang })]);
    let world = World::start(script, &[]);
    let mut client = world.files.connect(&world.front);
    let fields = "connection: upgrade\r\nupgrade: raw\r\n";
    client.0.write_all(request("GET", "/raw", fields).as_bytes()).unwrap();
    let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
    while !answer.ends_with(b"welcome") {
        let count = client.0.read(&mut piece).unwrap();
        assert!(count > 0, "closed after {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..count]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "));
    client.0.write_all(b"bytes of another protocol").unwrap();
    let arrived = || world.app.was_sent("bytes of another protocol").then_some(());
    retry_until(PATIENCE, "the bytes at the app", arrived).unwrap();
}

#[test]
fn an_app_may_speak_http2() {
    let echo = Echo::start("h2c");
    let mut client = echo.connect();
    let answer =
        client.ask(&(request("POST", "/echo", "content-length: 5\r\n") + "hello")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hello"), "{answer}");
}

/// A request under way when the front is asked to end is answered, and the front ends by itself.
#[test]
fn requests_under_way_are_answered_at_the_end() {
    let files = Files::new();
    let app = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut front = files.front(&format!("http://{}", app.local_addr().unwrap()), &[]);
    let mut client = files.connect(&front);
    client.0.write_all(get("/slow").as_bytes()).unwrap();
    let mut stream = request_of(&app);
    front.signal(Signal::TERM).unwrap();
    let is_told = || front.log().contains("draining").then_some(());
    retry_until(PATIENCE, "the front's drain", is_told).unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    let answer = client.ask("").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert!(front.wait(PATIENCE).unwrap().success());
}

#[test]
fn each_request_has_a_line_in_the_access_log() {
    let files = Files::new();
    let log = files.path("access.log");
    let front = files.front("http://127.0.0.1:1", &["--access-log", &log]);
    let mut client = files.connect(&front);
    client.ask(&get("/secret?not=told")).unwrap();
    let line = retry_until(PATIENCE, "the line", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().next().map(str::to_owned)
    });
    let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
    assert_eq!(line["direction"], "inbound");
    assert_eq!((line["method"].as_str(), line["path"].as_str()), (Some("GET"), Some("/secret")));
    assert_eq!(
        (&line["status"], &line["error_code"]),
        (&503.into(), &"ERR_APP_UNREACHABLE".into())
    );
    assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(line["service"].is_null() && line["callee"].is_null(), "{line}");
}
