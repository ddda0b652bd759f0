use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;

use super::*;
use crate::{Listener, ListenerOptions, Poller, Token};

/// Two ends, driven together: reads of `b` go to `received`.
struct Pair {
    poller: Poller,
    a: Conn,
    b: Conn,
    scratch: Scratch,
    a_received: Vec<u8>,
    b_received: Vec<u8>,
    a_closed: Option<Closed>,
    b_closed: Option<Closed>,
}

impl Pair {
    fn new(client: Option<Tls>, server: Option<Tls>) -> Self {
        Self::by(ListenerOptions::default(), client, server)
    }

    fn by(options: ListenerOptions, client: Option<Tls>, server: Option<Tls>) -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let a = Conn::connect(listener.address(), client).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let b = Conn::accepted(listener.accept().unwrap(), server);
        let poller = Poller::new().unwrap();
        poller.add(&a, Token(0)).unwrap();
        poller.add(&b, Token(1)).unwrap();
        Self {
            poller,
            a,
            b,
            scratch: Scratch::new(),
            a_received: Vec::new(),
            b_received: Vec::new(),
            a_closed: None,
            b_closed: None,
        }
    }

    /// Runs the loop until `done` or two seconds are over.
    fn run(&mut self, done: impl Fn(&Self) -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(2);
        while !done(self) {
            assert!(std::time::Instant::now() < end, "the exchange did not finish");
            for conn in [&mut self.a, &mut self.b] {
                if let Flush::Failed(error) = conn.flush() {
                    panic!("{error}");
                }
            }
            self.wait(Duration::from_millis(5));
            drain(&mut self.a, &mut self.scratch, &mut self.a_received, &mut self.a_closed);
            drain(&mut self.b, &mut self.scratch, &mut self.b_received, &mut self.b_closed);
        }
    }

    /// Passes readiness to both ends; returns whether there was any in time.
    fn wait(&mut self, time: Duration) -> bool {
        let mut ready = Vec::new();
        self.poller.wait(Some(time), &mut ready).unwrap();
        for readiness in &ready {
            if readiness.token == Token(0) { &mut self.a } else { &mut self.b }.ready(*readiness);
        }
        !ready.is_empty()
    }
}

fn drain(
    conn: &mut Conn,
    scratch: &mut Scratch,
    received: &mut Vec<u8>,
    closed: &mut Option<Closed>,
) {
    loop {
        match conn.read(scratch) {
            Read::Data(data) => received.extend_from_slice(data),
            Read::Blocked => return,
            Read::Closed(how) => *closed = Some(how),
            Read::Failed(error) => panic!("{error}"),
        }
    }
}

/// A peer that answers and closes over bytes that it has not read: its reset may come before its
/// answer is read.
#[test]
fn what_came_before_a_failed_flush_is_read_and_its_end_is_not_clean() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut conn = Conn::connect(listener.local_addr().unwrap(), None).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let mut poller = Poller::new().unwrap();
    poller.add(&conn, Token(0)).unwrap();
    let mut ready = Vec::new();
    poller.wait(Some(Duration::from_secs(5)), &mut ready).unwrap();
    ready.iter().for_each(|readiness| conn.ready(*readiness));
    conn.out().extend_from_slice(b"more than is read");
    assert!(matches!(conn.flush(), Flush::Done));
    io::Read::read_exact(&mut peer, &mut [0]).unwrap();
    io::Write::write_all(&mut peer, b"enough").unwrap();
    drop(peer);
    let end = std::time::Instant::now() + Duration::from_secs(5);
    loop {
        conn.out().extend_from_slice(b"x");
        match conn.flush() {
            Flush::Failed(_) => break,
            Flush::Done | Flush::Blocked => assert!(std::time::Instant::now() < end),
        }
    }
    let mut scratch = Scratch::new();
    assert!(matches!(conn.read(&mut scratch), Read::Data(b"enough")));
    assert!(matches!(conn.read(&mut scratch), Read::Closed(Closed::Truncated)));
    assert!(!conn.may_read() && conn.is_finished());
}

#[test]
fn a_connection_that_broke_here_alone_ends_behind_what_has_come() {
    let mut pair = Pair::new(None, None);
    pair.b.out().extend_from_slice(b"said before");
    pair.run(|p| p.a_received == b"said before");
    pair.a.note_broken();
    let mut scratch = Scratch::new();
    assert!(matches!(pair.a.read(&mut scratch), Read::Closed(Closed::Truncated)));
}

fn tls_pair() -> (Tls, Tls) {
    let issued = rcgen::generate_simple_self_signed(["b.test".to_owned()]).unwrap();
    let certificate = issued.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(issued.signing_key.serialize_der().into());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client =
        rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let server = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let name = "b.test".try_into().unwrap();
    (
        rustls::client::UnbufferedClientConnection::new(Arc::new(client), name).unwrap().into(),
        rustls::server::UnbufferedServerConnection::new(Arc::new(server)).unwrap().into(),
    )
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect()
}

fn exchange(mut pair: Pair) {
    let (to_b, to_a) = (pattern(3_000_000), pattern(1_000_001));
    pair.a.out().extend_from_slice(&to_b);
    pair.b.out().extend_from_slice(&to_a);
    pair.a.finish();
    pair.run(|p| p.b_received.len() == 3_000_000 && p.a_received.len() == 1_000_001);
    assert!(pair.a_received == to_a && pair.b_received == to_b);
    pair.run(|p| p.b_closed.is_some());
    assert_eq!(pair.b_closed, Some(Closed::Clean));
    assert_eq!(pair.a_closed, None, "the other direction stays open");
    pair.b.out().extend_from_slice(b"late");
    pair.b.finish();
    pair.run(|p| p.a_closed.is_some());
    assert!(pair.a_received.ends_with(b"late"));
    assert_eq!(pair.a.pending() + pair.b.pending(), 0);
    assert!(pair.b.out.capacity() <= OUT_KEEP_BYTES, "memory is given back");
}

#[test]
fn plain_bytes_pass_both_ways_with_half_close() {
    exchange(Pair::new(None, None));
}

#[test]
fn encrypted_bytes_pass_both_ways_with_half_close() {
    let (client, server) = tls_pair();
    exchange(Pair::new(Some(client), Some(server)));
}

#[test]
fn a_close_without_notify_is_reported_as_truncation() {
    let (client, server) = tls_pair();
    let mut pair = Pair::new(Some(client), Some(server));
    pair.a.out().extend_from_slice(b"cut");
    pair.run(|p| p.b_received == b"cut");
    rustix::net::shutdown(&pair.a, rustix::net::Shutdown::Write).unwrap();
    pair.run(|p| p.b_closed.is_some());
    assert_eq!(pair.b_closed, Some(Closed::Truncated));
}

#[test]
fn a_record_that_is_cut_off_is_reported_as_truncation() {
    let (client, server) = tls_pair();
    let mut pair = Pair::new(Some(client), Some(server));
    pair.run(|p| !p.a.is_handshaking() && !p.b.is_handshaking());
    pair.a.out().extend_from_slice(b"never whole");
    pair.a.encrypt().unwrap();
    pair.a.wire.pop();
    pair.run(|p| p.b.tls.as_ref().is_some_and(|tls| !tls.kept().is_empty()));
    rustix::net::shutdown(&pair.a, rustix::net::Shutdown::Write).unwrap();
    pair.run(|p| p.b_closed.is_some());
    assert_eq!(pair.b_closed, Some(Closed::Truncated));
    assert!(pair.b_received.is_empty());
}

#[test]
fn a_plain_peer_at_a_tls_listener_fails_as_tls() {
    let (_, server) = tls_pair();
    let mut pair = Pair::new(None, Some(server));
    pair.a.out().extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
    pair.a.ready(Readiness { token: Token(0), readable: false, writable: true, closed: false });
    assert!(matches!(pair.a.flush(), Flush::Done));
    std::thread::sleep(Duration::from_millis(5));
    let Read::Failed(ConnError::Tls(_)) = pair.b.read(&mut pair.scratch) else {
        panic!("expected a TLS failure");
    };
}

/// Sends 20 MB to a peer that reads less than is offered, never more than `QUEUED` ahead of it.
fn send_to_a_slow_reader(mut pair: Pair) {
    const QUEUED: usize = 128 * 1024;
    const TOTAL: usize = 20_000_000;
    pair.run(|p| !p.a.is_handshaking() && !p.b.is_handshaking());
    rustix::net::sockopt::set_socket_send_buffer_size(&pair.a, 32 * 1024).unwrap();
    let sent = pattern(TOTAL);
    let (mut queued, mut longest) = (0, 0);
    let mut received = Vec::with_capacity(TOTAL);
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while received.len() < TOTAL {
        assert!(std::time::Instant::now() < end, "{} bytes came", received.len());
        let room = QUEUED.saturating_sub(pair.a.pending()).min(TOTAL - queued);
        pair.a.out().extend_from_slice(&sent[queued..queued + room]);
        queued += room;
        if let Flush::Failed(error) = pair.a.flush() {
            panic!("{error}");
        }
        longest = longest.max(pair.a.out.capacity()).max(pair.a.wire.capacity());
        pair.wait(Duration::from_millis(5));
        if let Read::Data(data) = pair.b.read(&mut pair.scratch) {
            received.extend_from_slice(data);
        }
    }
    assert!(received == sent);
    assert!(longest <= 8 * QUEUED, "{longest} bytes were held for {QUEUED} queued");
}

#[test]
fn a_slow_reader_does_not_make_the_output_grow() {
    send_to_a_slow_reader(Pair::new(None, None));
}

#[test]
fn a_slow_reader_does_not_make_the_encrypted_output_grow() {
    let (client, server) = tls_pair();
    send_to_a_slow_reader(Pair::new(Some(client), Some(server)));
}

/// What the kernel takes of one end for a peer that reads nothing, and whether all arrives once it
/// reads.
fn unread(mut pair: Pair, sender: fn(&mut Pair) -> &mut Conn) -> usize {
    const TOTAL: usize = 20_000_000;
    pair.run(|p| !p.a.is_connecting());
    sender(&mut pair).out().extend_from_slice(&pattern(TOTAL));
    while matches!(sender(&mut pair).flush(), Flush::Blocked)
        && pair.wait(Duration::from_millis(100))
    {}
    let taken = TOTAL - sender(&mut pair).pending();
    pair.run(|p| p.a_received.len() + p.b_received.len() == TOTAL);
    assert!([pair.a_received, pair.b_received].concat() == pattern(TOTAL));
    taken
}

#[test]
fn the_kernel_takes_what_was_said_for_a_peer_that_does_not_read() {
    const BYTES: u32 = 64 << 10;
    let options = ListenerOptions { unsent_bytes: Some(BYTES), ..ListenerOptions::default() };
    let accepted = unread(Pair::by(options, None, None), |p| &mut p.b);
    let pair = Pair::new(None, None);
    pair.a.limit_unsent(BYTES).unwrap();
    let dialled = unread(pair, |p| &mut p.a);
    let unbound = unread(Pair::new(None, None), |p| &mut p.b);
    for few in [accepted, dialled] {
        assert!(few < 1 << 20 && few * 2 < unbound, "{few} bytes, without a bound {unbound}");
    }
}

#[test]
fn nothing_is_pending_after_a_send_has_failed() {
    let mut pair = Pair::new(None, None);
    pair.run(|p| !p.a.is_connecting());
    pair.a.out().extend_from_slice(&pattern(20_000_000));
    assert!(matches!(pair.a.flush(), Flush::Blocked));
    assert!(pair.a.pending() > 0);
    pair.b.abort_on_close();
    let Pair { poller, mut a, b, .. } = pair;
    drop(b);
    std::thread::sleep(Duration::from_millis(5));
    a.ready(Readiness { token: Token(0), readable: true, writable: true, closed: true });
    assert!(matches!(a.flush(), Flush::Failed(ConnError::Socket(_))));
    a.out().extend_from_slice(b"more");
    assert!(matches!(a.flush(), Flush::Done));
    assert_eq!(a.pending(), 0);
    drop(poller);
}

#[test]
fn a_refused_connect_is_reported() {
    let address = {
        let listener =
            Listener::bind("127.0.0.1:0".parse().unwrap(), ListenerOptions::default()).unwrap();
        listener.address()
    };
    let mut conn = match Conn::connect(address, None) {
        Ok(conn) => conn,
        Err(error) => panic!("{error}"),
    };
    let mut poller = Poller::new().unwrap();
    poller.add(&conn, Token(0)).unwrap();
    let mut ready = Vec::new();
    poller.wait(Some(Duration::from_secs(1)), &mut ready).unwrap();
    conn.ready(ready[0]);
    let Flush::Failed(error) = conn.flush() else { panic!("expected a failure") };
    assert!(error.to_string().starts_with("cannot connect: Connection refused"), "{error}");
}
