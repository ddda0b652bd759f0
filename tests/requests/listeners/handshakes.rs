//! Handshakes in odd shapes: names a gateway does not serve, hellos in pieces, without end in
//! time or size, certificates that end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_identity::UNRECOGNIZED_NAME_RECORD;
use tollway_testkit::{End, RawClient};

use crate::listeners::forged::Forge;
use crate::listeners::tls_listener::{H2, TlsListener, West};
use tollway_tests::network::{PATIENCE, STOCK, metric};
use tollway_tests::tls_client::{Dribble, call, client_hello, dial, trusting};

#[test]
fn gateway_refuses_names_it_does_not_serve() {
    let west = West::start();
    let gateway = west.gateway.port("gateway").unwrap();
    let before = metric(&west.gateway, "tollway_gateway_connections_refused_total");
    let names = [
        "nobody.default.west.mesh",
        "stock.shop.west.mesh",
        "stock.default.east.mesh",
        "control.east.mesh",
        "i-0.stock.default.west.mesh",
        "west.mesh",
        "a.b.c.d.e.mesh",
        "example.org",
    ];
    for name in names {
        let answer = RawClient::exchange(gateway, client_hello(name), PATIENCE).unwrap();
        assert_eq!(answer.bytes, UNRECOGNIZED_NAME_RECORD, "{name}");
        assert_eq!(answer.end, End::Closed, "{name}");
    }
    let refused = metric(&west.gateway, "tollway_gateway_connections_refused_total") - before;
    assert_eq!(refused, names.len() as u64);
    let listener = &west.listeners()[1];
    let reported =
        call(dial(gateway, PATIENCE), names[0], west.honest("web", listener), b"x").unwrap_err();
    assert!(reported.contains("does not have the name that was dialled"), "{reported}");
}

#[test]
fn gateway_reads_a_client_hello_in_any_pieces() {
    let west = West::start();
    let listeners = west.listeners();
    for listener in [&listeners[1], &listeners[3]] {
        let socket = Dribble(dial(listener.address, PATIENCE));
        let answer =
            call(socket, listener.server_name, west.honest("web", listener), &listener.request);
        assert!(answer.is_ok(), "{}: {answer:?}", listener.name);
    }
    // The handshake in records of seven bytes: the endpoint behind the gateway answers it.
    let hello = client_hello(STOCK);
    let mut records = Vec::new();
    for piece in hello[5..].chunks(7) {
        records.extend_from_slice(&[22, 3, 1, 0, u8::try_from(piece.len()).unwrap()]);
        records.extend_from_slice(piece);
    }
    let mut client = RawClient::connect(listeners[1].address).unwrap();
    client.send(&records).unwrap();
    let answer = client.read_until(PATIENCE, |bytes| bytes.len() > 100).unwrap();
    // A handshake record with a ServerHello.
    assert_eq!((answer.bytes[0], answer.bytes[5]), (22, 2), "{:?}", answer.end);
}

#[test]
fn a_handshake_that_never_ends_is_ended() {
    let west = West::start();
    let hello = client_hello(STOCK);
    let started = &hello[..hello.len() / 2];
    std::thread::scope(|scope| {
        for listener in west.listeners() {
            scope.spawn(move || {
                check_ended_by_time(&listener, |mut socket| socket.write_all(started))
            });
        }
        for listener in west.listeners() {
            scope.spawn(move || check_ended_by_time(&listener, |socket| drip(socket, started)));
        }
    });
}

/// Sends a byte every 200 ms, until the other end hangs up.
fn drip(socket: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    let (mut sender, bytes) = (socket.try_clone()?, bytes.to_vec());
    std::thread::spawn(move || {
        for byte in bytes {
            std::thread::sleep(Duration::from_millis(200));
            if sender.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn check_ended_by_time(
    listener: &TlsListener<'_>,
    start: impl FnOnce(&TcpStream) -> std::io::Result<()>,
) {
    const LONGEST: Duration = Duration::from_secs(14);
    let mut socket = dial(listener.address, Duration::from_secs(25));
    let began = Instant::now();
    start(&socket).unwrap();
    let mut rest = Vec::new();
    // A reset ends it as well.
    let _ = socket.read_to_end(&mut rest);
    let took = began.elapsed();
    assert!(took < LONGEST, "still open after {took:?} at the {}", listener.name);
    assert!(took > Duration::from_secs(3), "ended after {took:?} at the {}", listener.name);
}

#[test]
fn a_client_hello_without_end_is_bounded_in_size() {
    let west = West::start();
    let gateway = west.gateway.port("gateway").unwrap();
    let rss = tollway_testkit::resident_bytes(west.gateway.pid()).unwrap();
    // A handshake message of nearly 16 MiB, in records of 16 KiB.
    let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    endless.resize(5 + 0x4000, 0);
    for _ in 0..100 {
        endless.extend_from_slice(&[22, 3, 1, 0x40, 0]);
        endless.resize(endless.len() + 0x4000, 0);
    }
    let began = Instant::now();
    for _ in 0..50 {
        let answer = RawClient::exchange(gateway, &endless, PATIENCE).unwrap();
        assert_ne!(answer.end, End::TimedOut);
        assert!(answer.bytes.len() <= UNRECOGNIZED_NAME_RECORD.len());
    }
    assert!(began.elapsed() < Duration::from_secs(9), "they were waited for");
    let grown =
        tollway_testkit::peak_resident_bytes(west.gateway.pid()).unwrap().saturating_sub(rss);
    assert!(grown < 16 << 20, "grew by {grown} bytes");
    let listener = &west.listeners()[1];
    assert!(listener.call(west.honest("web", listener)).is_ok());
}

/// A certificate ends while its connection lives: the connection ends too, and no ticket brings
/// it back.
#[test]
fn an_ended_certificate_ends_what_it_opened() {
    let west = West::start();
    let listener = &west.listeners()[0];
    const LIFE: Duration = Duration::from_secs(4);
    let short = Forge { not_after_s: 4, ..Forge::workload("web", "west") };
    let config = trusting(Some(short.sign(&west.network.authority())), H2);
    let began = Instant::now();
    let mut tls = rustls::ClientConnection::new(
        Arc::clone(&config),
        rustls::pki_types::ServerName::try_from(STOCK).unwrap(),
    )
    .unwrap();
    let mut socket = dial(listener.address, PATIENCE);
    let mut stream = rustls::Stream::new(&mut tls, &mut socket);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut received = Vec::new();
    let ended = stream.read_to_end(&mut received);
    assert!(began.elapsed() < Duration::from_secs(12), "{ended:?}");
    // GOAWAY is among the frames.
    assert!(received.windows(4).any(|frame| frame == [8, 7, 0, 0]), "{received:?}");
    // The first answer brought a ticket.
    std::thread::sleep(LIFE.saturating_sub(began.elapsed()) + Duration::from_secs(1));
    let again = listener.call(config);
    assert!(again.is_err(), "{again:?}");
}
