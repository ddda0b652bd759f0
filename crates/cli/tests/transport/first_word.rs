//! Apps that speak before they are spoken to, as mail and database servers do: nobody waits for a
//! word of their callers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tollway_testkit::retry_until;

use crate::network::{Network, PATIENCE, STOCK};

const SERVICE: &str = "stock.default.west";
const GREETING: &[u8] = b"220 stock is ready\r\n";
/// Within this of all callers the first hears the greeting: no wait for a caller's first bytes, to
/// tell a protocol by, would be so short.
const AT_ONCE: Duration = Duration::from_millis(100);
const CALLERS: usize = 20;

/// Greets, repeats one line, and says what it was.
fn start_greeter() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                // Who only looks whether the app is there has gone already.
                if stream.write_all(GREETING).is_err() {
                    return;
                }
                let mut line = [0; 5];
                if stream.read_exact(&mut line).is_ok() {
                    let _ = stream.write_all(&line);
                }
            });
        }
    });
    port
}

/// What a caller hears that has said nothing; `None` when it is not let in yet.
fn hear(stream: &mut TcpStream) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut heard = [0; GREETING.len()];
    stream.read_exact(&mut heard).ok()?;
    assert_eq!(heard, *GREETING);
    Some(())
}

/// The port that stands for the service.
fn by_port(web: SocketAddr) -> Option<TcpStream> {
    TcpStream::connect(web).ok()
}

/// A tunnel to it.
fn by_connect(outbound: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(outbound).ok()?;
    write!(stream, "CONNECT {STOCK}:25 HTTP/1.1\r\nhost: {STOCK}:25\r\n\r\n").ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    head.starts_with(b"HTTP/1.1 200 ").then_some(stream)
}

#[test]
fn an_app_that_speaks_first_is_heard_at_once() {
    let network = Network::start("west");
    let port = start_greeter().to_string();
    let _stock = network.sidecar("stock", &["--app-port", &port, "--app-protocol", "tcp"]);
    let web = network.sidecar("web", &["--upstream", &format!("0={SERVICE}")]);
    let upstream = web.port(&format!("upstream:{SERVICE}")).unwrap();
    let outbound = web.port("outbound").unwrap();
    type Open = fn(SocketAddr) -> Option<TcpStream>;
    for (way, open, address) in
        [("its port", by_port as Open, upstream), ("CONNECT", by_connect, outbound)]
    {
        // Once the caller's sidecar knows of it.
        retry_until(PATIENCE, way, || hear(&mut open(address)?)).unwrap();
        let mut fastest = PATIENCE;
        for _ in 0..CALLERS {
            let began = Instant::now();
            let mut stream = open(address).unwrap();
            hear(&mut stream).unwrap();
            fastest = fastest.min(began.elapsed());
            stream.write_all(b"MAIL\n").unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"MAIL\n", "by {way}");
        }
        assert!(fastest < AT_ONCE, "the fastest greeting by {way} took {fastest:?}");
    }
}
