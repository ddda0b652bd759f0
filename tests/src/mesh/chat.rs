//! An app that upgrades connections to a protocol of its own.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

/// What a request needs so that the app upgrades it.
pub const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: chat\r\n";

/// Starts the app; its port of 127.0.0.1. A plain request gets 200; one that upgrades 101, then an
/// echo and, at its end, `farewell`.
pub fn start(farewell: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It ends with the test: nothing waits for it.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            talk(stream.unwrap(), farewell);
        }
    });
    port
}

fn talk(mut stream: TcpStream, farewell: &str) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            // The sidecar probes whether the app takes connections, and closes.
            _ => return,
        }
    }
    let upgrades = String::from_utf8_lossy(&head).to_lowercase().contains("upgrade: chat");
    let answer: &[u8] = if upgrades {
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: chat\r\n\r\n"
    } else {
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    };
    // A client that leaves while it is answered is no error of this app.
    let _ = stream.write_all(answer);
    if upgrades {
        let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
        let _ = stream.write_all(farewell.as_bytes());
    }
}
