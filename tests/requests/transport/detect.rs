//! Apps that send first, like mail and database servers: no hop waits for a byte of the caller.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use tollway_testkit::retry_until;

use tollway_tests::mesh::Mesh;
use tollway_tests::network::{Network, PATIENCE, STOCK, metric};

const SERVICE: &str = "stock.default.west";
const GREETING: &[u8] = b"220 stock is ready\r\n";
const CALLERS: usize = 20;
/// The limit of a process: a hop that waited for a caller's first bytes, to detect a protocol,
/// would wait so long, which is longer than a test may take.
const FIRST_BYTES: &str = "head_ms=3600000";

/// Greets, repeats one line, and returns it.
fn start_greeter() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                // A probe of the app has gone already.
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

/// The greeting for a silent caller; `None` if it is not admitted yet.
fn read_greeting(stream: &mut TcpStream) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut heard = [0; GREETING.len()];
    stream.read_exact(&mut heard).ok()?;
    assert_eq!(heard, *GREETING);
    Some(())
}

/// The port of the service.
fn by_port(web: SocketAddr) -> Option<TcpStream> {
    TcpStream::connect(web).ok()
}

/// A tunnel to it.
fn by_connect(outbound: SocketAddr, host: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(outbound).ok()?;
    write!(stream, "CONNECT {host}:25 HTTP/1.1\r\nhost: {host}:25\r\n\r\n").ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    head.starts_with(b"HTTP/1.1 200 ").then_some(stream)
}

/// Callers that all listen silently get the greeting, and are answered when they send.
#[track_caller]
fn greets_all(way: &str, open: impl Fn() -> Option<TcpStream>) {
    // Once the caller's sidecar has discovered it.
    retry_until(PATIENCE, way, || read_greeting(&mut open()?)).unwrap();
    let mut callers: Vec<_> = (0..CALLERS).map(|_| open().unwrap()).collect();
    for (nth, caller) in callers.iter_mut().enumerate() {
        assert!(read_greeting(caller).is_some(), "caller {nth} by {way} heard no greeting");
    }
    for caller in &mut callers {
        caller.write_all(b"MAIL\n").unwrap();
        let mut rest = Vec::new();
        caller.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"MAIL\n", "by {way}");
    }
}

#[test]
fn an_app_that_speaks_first_is_heard_before_its_caller_speaks() {
    let network = Network::start("west");
    let port = start_greeter().to_string();
    let of_app = ["--app-port", &port, "--app-protocol", "tcp", "--limit", FIRST_BYTES];
    let _stock = network.sidecar("stock", &of_app);
    let upstream = format!("0={SERVICE}");
    let web = network.sidecar("web", &["--upstream", &upstream, "--limit", FIRST_BYTES]);
    let port = web.port(&format!("upstream:{SERVICE}")).unwrap();
    let outbound = web.port("outbound").unwrap();
    greets_all("its port", || by_port(port));
    greets_all("CONNECT", || by_connect(outbound, STOCK));
}

/// Both gateways are on the route, and neither may wait for more than the server name.
#[test]
fn an_app_in_another_network_that_speaks_first_is_heard_before_its_caller_speaks() {
    const FAR: &str = "stock.default.east";
    let mut mesh = Mesh::not_joined(&["--remote-calls", "gateway"]);
    for network in [&mut mesh.west, &mut mesh.east] {
        let gateway = network.another_gateway(&["--limit", FIRST_BYTES]);
        let left = std::mem::replace(&mut network.gateway, gateway).terminate(PATIENCE);
        assert!(left.unwrap().success());
    }
    mesh.join();
    let port = start_greeter().to_string();
    let of_app = ["--app-port", &port, "--app-protocol", "tcp", "--limit", FIRST_BYTES];
    let _stock = mesh.east.sidecar("stock", &of_app);
    let upstream = format!("0={FAR}");
    let web = mesh.west.caller(&["--upstream", &upstream, "--limit", FIRST_BYTES]);
    greets_all("its port", || by_port(web.upstream(FAR)));
    greets_all("CONNECT", || by_connect(web.outbound(), &format!("{FAR}.mesh")));
    for network in [&mesh.west, &mesh.east] {
        let passed = metric(&network.gateway, "tollway_gateway_connections_total");
        assert!(passed as usize >= 2 * CALLERS, "{passed} connections through a gateway");
    }
}
