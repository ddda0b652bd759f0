//! Listeners of the kernel: they come and go while others are served, and close in a drain.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use tollway_net::ListenerOptions;

use super::*;

fn bind() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap(), ListenerOptions::default()).unwrap()
}

/// A connection through the kernel, if it is not refused.
fn dial(address: SocketAddr) -> Option<Stream> {
    let socket = TcpStream::connect(address).ok()?;
    // A socket is read and written in the same way, whatever its family is.
    Some(Stream::local(UnixStream::from(OwnedFd::from(socket))))
}

#[track_caller]
fn check_served(stream: &mut Stream) {
    let request = "GET /v1.0/invoke/a.b.c.d/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let answer = talk(stream, request.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[test]
fn a_listener_that_is_closed_takes_what_waits_there_and_no_more() {
    let sidecar = Running::with_sockets(vec![(bind(), ListenerKind::HttpApi)]);
    let address = sidecar.addresses[0];
    let mut before = dial(address).unwrap();
    check_served(&mut before);
    let mut waits = dial(address).unwrap();
    sidecar.commands.send(Command::CloseListener(address));
    check_served(&mut waits);
    assert!(dial(address).is_none());
    let later = bind();
    let address = later.address();
    sidecar.commands.send(Command::OpenListeners(vec![(later, ListenerKind::HttpApi)]));
    check_served(&mut dial(address).unwrap());
    check_served(&mut before);
}

#[test]
fn a_listener_of_another_kind_treats_new_connections_so() {
    let sidecar = Running::with_sockets(vec![(bind(), ListenerKind::HttpApi)]);
    let address = sidecar.addresses[0];
    let mut before = dial(address).unwrap();
    check_served(&mut before);
    sidecar.send_egress(tollway_routing::EgressRules::default());
    sidecar.commands.send(Command::RedirectListener(address, ListenerKind::Outbound));
    let outbound = "GET / HTTP/1.1\r\nhost: example.org\r\n\r\n";
    let answer = talk(&mut dial(address).unwrap(), outbound.as_bytes(), b"}");
    assert!(answer.contains("`example.org` is not a service of the mesh"), "{answer}");
    check_served(&mut before);
}

#[test]
fn a_drain_closes_listeners_once_others_may_know_of_it() {
    let sidecar = Running::with_sockets(vec![(bind(), ListenerKind::HttpApi)]);
    let address = sidecar.addresses[0];
    sidecar.commands.send(Command::Drain);
    advance(patient().withdraw - SWEEP);
    check_served(&mut dial(address).unwrap());
    advance(3 * SWEEP);
    assert!(dial(address).is_none());
    until("the end of the loop", || sim::has_ended(sidecar.node));
}
