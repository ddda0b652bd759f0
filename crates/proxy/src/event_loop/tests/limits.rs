//! What a sidecar spends on its callers ends somewhere, and says so.

use super::app_unreachable::Fleet;
use super::*;

const OUTBOUND: usize = 1;

fn sidecar(limits: Limits) -> Running {
    let (network, web) = (Network::new("west"), service("web"));
    let credentials = network.credentials(&web, "w-1", &[]);
    let listeners = [ListenerKind::HttpApi, ListenerKind::Outbound];
    Running::start_at(None, (limits, patient()), web, credentials, &listeners, None, None)
}

fn call(sidecar: &Running, app: &str) -> String {
    let request = format!("GET /v1.0/invoke/{app}/method/x HTTP/1.1\r\nhost: a\r\n\r\n");
    talk(&mut connect(sidecar.addresses[0]), request.as_bytes(), b"}")
}

/// A request that waits for the state of a service that is not known.
fn begin(sidecar: &Running) -> Stream {
    let mut stream = connect(sidecar.addresses[0]);
    stream.write_all(b"GET /v1.0/invoke/nobody/method/x HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream
}

/// A reset is an end as well.
fn is_closed(stream: &mut Stream) -> bool {
    stream.read(&mut [0; 8]).unwrap_or(0) == 0
}

fn is_served(stream: &mut Stream) -> bool {
    let request = "GET /v1.0/invoke/a.b.c.d/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    talk(stream, request.as_bytes(), b"}").starts_with("HTTP/1.1 400 ")
}

#[test]
fn one_connection_too_many_is_closed_and_those_that_are_served_go_on() {
    let sidecar = sidecar(Limits { connections: 2, ..Limits::default() });
    let metrics = &sidecar.metrics;
    let mut served = [(); 2].map(|()| begin(&sidecar));
    until("both being served", || metrics.outbound_requests.value() == 2);
    assert!(is_closed(&mut connect(sidecar.addresses[0])));
    assert_eq!(metrics.connections_refused.value(), 1);
    for stream in &mut served {
        let answer = talk(stream, b"", b"}");
        assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "{answer}");
    }
    drop(served);
    until("both having gone", || metrics.connections.value() == 0);
    assert!(is_served(&mut connect(sidecar.addresses[0])));
    assert_eq!(metrics.connections_refused.value(), 1);
}

#[test]
fn a_silent_connection_is_evicted_for_one_above_the_limit() {
    let sidecar = sidecar(Limits { connections: 2, ..Limits::default() });
    let metrics = &sidecar.metrics;
    let mut stays = connect(sidecar.addresses[0]);
    assert!(is_served(&mut stays));
    let mut silent = connect(sidecar.addresses[0]);
    until("both being there", || metrics.connections.value() == 2);
    for gone in 1..=3 {
        let mut newcomer = connect(sidecar.addresses[0]);
        assert!(is_closed(&mut silent), "it gives way to newcomer {gone}");
        until("that being counted", || metrics.connections_refused.value() == gone);
        if gone == 3 {
            assert!(is_served(&mut newcomer));
        }
        silent = newcomer;
    }
    assert!(is_served(&mut stays), "it was served a moment ago");
    assert_eq!(metrics.connections.value(), 2);
}

#[test]
fn connections_to_the_app_are_counted_apart_from_those_of_the_mesh() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    assert!(fleet.post().starts_with("HTTP/1.1 200 "));
    let dials = |thread: &Running| (thread.metrics.dials.value(), thread.metrics.app_dials.value());
    assert_eq!((dials(&fleet.caller), dials(&fleet.callees[0])), ((1, 0), (0, 1)));
}

#[test]
fn one_service_too_many_is_not_called_unknown() {
    let sidecar = sidecar(Limits { services: 1, ..Limits::default() });
    let answer = call(&sidecar, "first");
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "{answer}");
    let answer = call(&sidecar, "second");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("the list of services in use is full (1)"), "{answer}");
    let connect_to = "CONNECT third.mesh:80 HTTP/1.1\r\nhost: third.mesh:80\r\n\r\n";
    let answer = talk(&mut connect(sidecar.addresses[OUTBOUND]), connect_to.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

#[test]
fn a_connect_to_a_service_that_stays_unknown_is_answered() {
    let sidecar = sidecar(Limits::default());
    let connect_to = "CONNECT nobody.mesh:80 HTTP/1.1\r\nhost: nobody.mesh:80\r\n\r\n";
    let answer = talk(&mut connect(sidecar.addresses[OUTBOUND]), connect_to.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "{answer}");
}

#[test]
fn requests_that_were_called_off_take_no_place_in_the_line() {
    let sidecar = sidecar(Limits { waiting_per_service: 4, ..Limits::default() });
    for _ in 0..4 {
        let unfinished = "POST /v1.0/invoke/nobody/method/x HTTP/1.1\r\nhost: a\r\n\
                          content-length: 5\r\n\r\n";
        connect(sidecar.addresses[0]).write_all(unfinished.as_bytes()).unwrap();
    }
    until("four being called off", || sidecar.metrics.requests_cancelled.value() == 4);
    let answer = call(&sidecar, "nobody");
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "it waited in line: {answer}");
}

#[test]
fn a_request_that_goes_in_a_circle_ends() {
    let sidecar = sidecar(Limits::default());
    let ask = |hops: usize| {
        let list = vec!["10.0.0.1"; hops].join(", ");
        let request = format!(
            "GET /v1.0/invoke/nobody/method/x HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {list}\r\n\r\n"
        );
        talk(&mut connect(sidecar.addresses[0]), request.as_bytes(), b"}")
    };
    let answer = ask(31);
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "{answer}");
    let answer = ask(32);
    assert!(answer.starts_with("HTTP/1.1 508 "), "{answer}");
    assert!(answer.contains("ERR_LOOP"), "{answer}");
}

#[test]
fn what_a_caller_that_has_gone_asked_for_is_called_off() {
    let world = World::new(AppProtocol::Http);
    let [caller, callee] = [&world.caller.metrics, &world.callee.metrics];
    let request = format!("GET {INVOKE}/stuck HTTP/1.1\r\nhost: a\r\n\r\n");
    for round in 1..=2 {
        let mut stream = connect(world.http());
        stream.write_all(request.as_bytes()).unwrap();
        until("the request at the app's sidecar", || callee.inbound_requests.value() == round);
        // The sidecar cannot distinguish the two.
        if round == 1 {
            drop(stream);
        } else {
            stream.finish();
            assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0, "no answer, and no connection");
        }
        until("the caller's sidecar seeing it", || caller.requests_cancelled.value() == round);
        until("the callee's sidecar hearing it", || callee.requests_cancelled.value() == round);
    }
}

#[test]
fn a_complete_answer_reaches_a_caller_that_sends_no_more() {
    const BYTES: usize = 200_000;
    let world = World::new(AppProtocol::Http);
    let mut stream = connect(world.http());
    let head = format!("POST {INVOKE}/echo HTTP/1.1\r\nhost: a\r\ncontent-length: {BYTES}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.send_meanwhile(vec![b'x'; BYTES]);
    let served = || world.caller.metrics.outbound_requests.value() == 1;
    until("the request being taken", served);
    let mut answer = vec![0; 1];
    stream.read_exact(&mut answer).unwrap();
    // It has nothing left to come from the app a moment later; the client has read one byte of it.
    advance(SWEEP);
    stream.finish();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(&vec![b'x'; BYTES]), "{} bytes", answer.len());
}

/// The end of an answer takes its reader longer than the moment that a peer has to close, or to ask
/// for more: here much more of it waits than the kernel takes for a peer that does not read yet.
#[test]
fn a_slow_reader_gets_the_last_answer_whole() {
    const MEGABYTES: usize = 4;
    let world = World::new(AppProtocol::Http);
    let limits = Limits { out_bytes: MEGABYTES * 1_000_000, ..Limits::default() };
    world.caller.configure(MeshProtocol::default(), (limits, patient()));
    let read_slowly = |fields: &str| {
        let mut stream = connect(world.http());
        let line = format!("GET {INVOKE}/large/{MEGABYTES} HTTP/1.1\r\n");
        stream.write_all((line + "host: a\r\n" + fields + "\r\n").as_bytes()).unwrap();
        let mut answer = vec![0; 1];
        stream.read_exact(&mut answer).unwrap();
        // Long enough for the rest to wait here, and for a caller that counts to lose patience.
        advance(patient().linger_longest);
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.ends_with(b"\r\n0\r\n\r\n"), "{fields}: {} bytes", answer.len());
        assert!(answer.len() > MEGABYTES * 1_000_000);
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        String::from_utf8(answer[..end].to_vec()).unwrap()
    };
    read_slowly("");
    let last = read_slowly("connection: close\r\n");
    assert!(last.contains("close"), "it says that it is the last one");
}
