//! h2spec (github.com/summerwind/h2spec) against the echo server: every case, strictly.

#[path = "../examples/h2_echo/echo.rs"]
mod echo;

use std::net::TcpListener;
use std::process::Command;

use tollway_testkit::need_tool;

#[test]
fn every_case_of_h2spec_passes() {
    let h2spec = need_tool!("h2spec");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let socket = socket.unwrap();
            std::thread::spawn(move || echo::serve(socket));
        }
    });
    let output = Command::new(h2spec)
        .args(["--strict", "--host", "127.0.0.1", "--port", &port, "--timeout", "2"])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("146 tests, 146 passed, 0 skipped, 0 failed"), "{report}");
}

#[test]
fn the_echo_server_answers_a_client_it_has_never_met() {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let server = std::thread::spawn(move || echo::serve(socket));
    // SETTINGS; HEADERS on stream 1: GET / with http, END_STREAM and END_HEADERS.
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    client.write_all(b"\0\0\0\x04\0\0\0\0\0\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84").unwrap();
    let mut received = Vec::new();
    while !received.windows(echo::GREETING.len()).any(|bytes| bytes == echo::GREETING) {
        let mut buffer = [0; 1024];
        let count = client.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "the server closed without an answer");
        received.extend_from_slice(&buffer[..count]);
    }
    drop(client);
    server.join().unwrap().unwrap();
}
