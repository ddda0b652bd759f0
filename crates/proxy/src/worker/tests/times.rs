//! What takes too long is given up, on connections that are otherwise left alone.

use super::*;

/// Runs out soon.
const SOON: Duration = Duration::from_millis(400);
/// Runs out never, as far as these tests wait.
const LATE: Duration = Duration::from_secs(3600);

fn sidecar(timeouts: Timeouts) -> Running {
    let (network, web) = (Network::new("west"), service("web"));
    let any = "127.0.0.1:0".parse().unwrap();
    let doors = [Door::HttpApi, Door::Inbound];
    let credentials = network.credentials(&web, "w-1", &[]);
    Running::start_at(any, (Limits::default(), timeouts), web, credentials, &doors, None, None)
}

fn all_late() -> Timeouts {
    Timeouts {
        connect: LATE,
        handshake: LATE,
        head: LATE,
        downstream_idle: LATE,
        linger: LATE,
        ..patient()
    }
}

/// A request that is answered without any app.
const REFUSED: &str = "GET /v1.0/invoke/a.b.c.d/method/x HTTP/1.1\r\nhost: a\r\n\r\n";

fn read_to_end(mut stream: &TcpStream) -> (String, Duration) {
    let begun = Instant::now();
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut answer);
    (String::from_utf8_lossy(&answer).into_owned(), begun.elapsed())
}

/// Some time has passed, and far less than the helper of reads allows.
fn assert_in_time(waited: Duration) {
    assert!(waited >= SOON / 2 && waited < Duration::from_secs(8), "{waited:?}");
}

#[test]
fn a_silent_connection_is_closed() {
    let sidecar = sidecar(Timeouts { head: SOON, ..all_late() });
    let (answer, waited) = read_to_end(&connect(sidecar.addresses[0]));
    assert_eq!(answer, "");
    assert_in_time(waited);
}

#[test]
fn a_handshake_that_stops_is_closed() {
    let sidecar = sidecar(Timeouts { handshake: SOON, ..all_late() });
    let mut stream = connect(sidecar.addresses[1]);
    stream.write_all(&[22, 3, 1, 0, 200]).unwrap();
    let (_, waited) = read_to_end(&stream);
    assert_in_time(waited);
}

#[test]
fn a_slow_head_is_refused_also_on_a_connection_that_was_idle() {
    let sidecar = sidecar(Timeouts { head: SOON, linger: SOON, ..all_late() });
    let mut stream = connect(sidecar.addresses[0]);
    talk(&mut stream, REFUSED.as_bytes(), b"}");
    stream.write_all(b"GET / HT").unwrap();
    let (answer, waited) = read_to_end(&stream);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_in_time(waited);
}

#[test]
fn an_idle_connection_is_closed_and_one_in_use_is_not() {
    let sidecar = sidecar(Timeouts { downstream_idle: SOON * 2, linger: SOON, ..all_late() });
    let mut stream = connect(sidecar.addresses[0]);
    for _ in 0..6 {
        talk(&mut stream, REFUSED.as_bytes(), b"}");
        std::thread::sleep(SOON / 2);
    }
    let (answer, waited) = read_to_end(&stream);
    assert_eq!(answer, "");
    assert_in_time(waited);
}

#[test]
fn an_http2_connection_that_never_asks_is_closed() {
    let sidecar = sidecar(Timeouts { downstream_idle: SOON, linger: SOON, ..all_late() });
    let mut stream = connect(sidecar.addresses[0]);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let (answer, waited) = read_to_end(&stream);
    assert!(!answer.starts_with("HTTP"), "{answer}");
    assert_in_time(waited);
}
