//! What takes too long is given up, on connections that are otherwise left alone.

use super::app_unreachable::Fleet;
use super::*;

fn sidecar() -> Running {
    let (network, web) = (Network::new("west"), service("web"));
    let listeners = [ListenerKind::HttpApi, ListenerKind::Inbound];
    Running::start(web.clone(), network.credentials(&web, "w-1", &[]), &listeners, None, None)
}

/// A request that is answered without any app.
const REFUSED: &str = "GET /v1.0/invoke/a.b.c.d/method/x HTTP/1.1\r\nhost: a\r\n\r\n";

/// What comes until the connection ends, and how long that takes. A reset is an end as well.
fn read_to_end(stream: &Stream) -> (String, Duration) {
    let begun = now();
    let mut answer = Vec::new();
    match stream.clone().read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => panic!("it does not end"),
        _ => {}
    }
    (String::from_utf8_lossy(&answer).into_owned(), now() - begun)
}

/// The time is over, and the connection was examined in the next passes.
#[track_caller]
fn assert_in_time(waited: Duration, limit: Duration) {
    assert!((limit..limit + 3 * SWEEP).contains(&waited), "{waited:?} instead of {limit:?}");
}

#[test]
fn a_silent_connection_is_closed() {
    let sidecar = sidecar();
    let (answer, waited) = read_to_end(&connect(sidecar.addresses[0]));
    assert_eq!(answer, "");
    assert_in_time(waited, patient().head);
}

/// A peer that has its last answer and goes on sending is read on, but no longer than `linger_longest`.
#[test]
fn a_refused_peer_that_sends_on_is_closed_in_the_end() {
    let sidecar = sidecar();
    let mut stream = connect(sidecar.addresses[0]);
    let begun = now();
    stream.write_all(b"GET / HTTP/1.1\r\nno colon\r\n\r\n").unwrap();
    let (answer, _) = read_to_end(&stream);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    while stream.write_all(b"more").is_ok() {
        advance(patient().linger / 2);
        assert!(now() < begun + 2 * patient().linger_longest, "it is read on");
    }
    let waited = now() - begun;
    assert!(
        (patient().linger_longest..patient().linger_longest * 2).contains(&waited),
        "{waited:?}"
    );
}

#[test]
fn a_handshake_that_stops_is_closed() {
    let sidecar = sidecar();
    let mut stream = connect(sidecar.addresses[1]);
    stream.write_all(&[22, 3, 1, 0, 200]).unwrap();
    let (_, waited) = read_to_end(&stream);
    assert_in_time(waited, patient().handshake);
    assert_eq!(sidecar.metrics.tls_handshake_failures.value(), 1);
}

/// `net` limits the bytes that are stored of each; this test is about the time.
#[test]
fn long_hellos_that_stop_short_are_closed_in_time_and_others_are_served_meanwhile() {
    const CROWD: u64 = 50;
    const KEPT_BYTES_MAX: usize = 64 * 1024 - 1;
    let sidecar = sidecar();
    let begun = now();
    let hello = tollway_testkit::begun_hello(KEPT_BYTES_MAX);
    let crowd: Vec<Stream> = (0..CROWD)
        .map(|_| {
            let mut stream = connect(sidecar.addresses[1]);
            stream.write_all(&hello).unwrap();
            stream
        })
        .collect();
    let answer = talk(&mut connect(sidecar.addresses[0]), REFUSED.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    for stream in &crowd {
        let (answer, _) = read_to_end(stream);
        assert_eq!(answer, "");
        assert_in_time(now() - begun, patient().handshake);
    }
    assert_eq!(sidecar.metrics.tls_handshake_failures.value(), CROWD);
}

#[test]
fn a_slow_head_is_refused_also_on_a_connection_that_was_idle() {
    let sidecar = sidecar();
    let mut stream = connect(sidecar.addresses[0]);
    talk(&mut stream, REFUSED.as_bytes(), b"}");
    advance(patient().downstream_idle / 2);
    stream.write_all(b"GET / HT").unwrap();
    let (answer, waited) = read_to_end(&stream);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_in_time(waited, patient().head);
}

#[test]
fn an_idle_connection_is_closed_and_one_in_use_is_not() {
    let sidecar = sidecar();
    let mut stream = connect(sidecar.addresses[0]);
    for _ in 0..6 {
        talk(&mut stream, REFUSED.as_bytes(), b"}");
        advance(patient().downstream_idle / 2);
    }
    let (answer, waited) = read_to_end(&stream);
    assert_eq!(answer, "");
    assert_in_time(waited, patient().downstream_idle / 2);
}

#[test]
fn an_http2_connection_that_never_asks_is_closed() {
    let sidecar = sidecar();
    let mut stream = connect(sidecar.addresses[0]);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    stream.write_all(SETTINGS_ACK).unwrap();
    let (answer, waited) = read_to_end(&stream);
    assert!(!answer.starts_with("HTTP"), "{answer}");
    assert_in_time(waited, patient().downstream_idle);
}

#[test]
fn a_service_without_calls_is_let_go() {
    let fleet = Fleet::new(AppProtocol::Http, &[start_app()]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let answer = fleet.post();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let let_go = || fleet.caller.around.unsubscribed.load(Ordering::SeqCst);
    // What is forgotten while the control plane is away could not be called.
    fleet.caller.around.is_away.store(true, Ordering::SeqCst);
    advance(2 * patient().service_idle);
    assert_eq!(let_go(), 0);
    fleet.caller.around.is_away.store(false, Ordering::SeqCst);
    advance(3 * SWEEP);
    assert_eq!(let_go(), 1);
    assert_eq!(fleet.caller.metrics.dials.value(), 1, "an idle connection is not made again");
}

#[test]
fn a_gateway_keeps_services_without_calls() {
    let (network, stock) = (Network::new("west"), service("stock"));
    let endpoint = listen();
    let routes = routes_of(label("west"), vec![unused_address()]);
    let name = service("gateway");
    let credentials = network.credentials(&name, "g-1", &[]);
    let gateway = Running::start(name, credentials, &[ListenerKind::Gateway], None, Some(routes));
    // Sent once, as the control plane does.
    gateway.commands.send(Command::Services(vec![ServiceUpdate {
        service: stock,
        revision: Revision(1),
        state: ServiceState::Local {
            unready: [].into(),
            endpoints: [Endpoint::new(label("s-1"), endpoint.address)].into(),
            protocol: AppProtocol::Http,
            trust_domain: network.trust_domain,
        },
        routes: Arc::default(),
        traffic: Arc::default(),
    }]));
    advance(patient().service_idle * 2);
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let server_name = "stock.default.west.mesh".try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), server_name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    let mut client = connect(gateway.addresses[0]);
    client.write_all(&hello).unwrap();
    assert_eq!(endpoint.waiting(), 1, "the gateway has forgotten the service");
}

/// The connection breaks off when `stream_idle` is over, which is counted as a failure.
#[track_caller]
fn check_ends_in_time(stream: &Stream, caller: &Running) {
    // Sooner than at the callee.
    let stream_idle = patient().stream_idle / 2;
    let timeouts = Timeouts { stream_idle, ..patient() };
    caller.configure(MeshProtocol::default(), (Limits::default(), timeouts));
    let (rest, waited) = read_to_end(stream);
    assert_eq!(rest, "");
    assert_in_time(waited, stream_idle);
    assert_eq!(caller.metrics.request_failures.value(), 1);
}

/// What has been sent of it cannot be taken back.
#[test]
fn an_answer_that_stands_still_is_broken_off_and_counted() {
    let app = listen();
    let fleet = Fleet::new(AppProtocol::Http, &[app.address]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let mut stream = connect(fleet.caller.addresses[0]);
    stream.write_all(b"GET /v1.0/invoke/stock/method/x HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut asked = app.accept();
    talk(&mut asked, b"", b"\r\n\r\n");
    asked.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhal").unwrap();
    let answer = talk(&mut stream, b"", b"hal");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    check_ends_in_time(&stream, &fleet.caller);
}

#[test]
fn a_relayed_connection_that_stands_still_is_closed_and_counted() {
    let app = listen();
    let fleet = Fleet::new(AppProtocol::Tcp, &[app.address]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    let mut stream = connect(fleet.caller.addresses[1]);
    stream.write_all(b"over").unwrap();
    let mut relayed = app.accept();
    talk(&mut relayed, b"and back", b"over");
    talk(&mut stream, b"", b"and back");
    check_ends_in_time(&stream, &fleet.caller);
}

#[test]
fn discovery_times_out_however_many_requests_follow() {
    let sidecar = sidecar();
    let request = "GET /v1.0/invoke/nobody/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let ask = || {
        let mut stream = connect(sidecar.addresses[0]);
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let (mut first, begun) = (ask(), now());
    let mut others = Vec::new();
    while !first.has_arrived() {
        others.push(ask());
        advance(SWEEP);
    }
    assert_in_time(now() - begun, patient().discovery);
    let answer = talk(&mut first, b"", b"}");
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "{answer}");
}

/// Whatever has ended for want of use meanwhile, here or at the peer.
#[test]
fn a_request_is_answered_after_any_pause() {
    let t = patient();
    let ends = [t.app_idle, t.downstream_idle / 2, t.downstream_idle, t.mesh_idle];
    let about = |end: Duration| [end - SWEEP, end, end + SWEEP];
    let pauses = ends.into_iter().flat_map(about).chain([t.service_idle + SWEEP]);
    for (mesh, app, is_remote) in [
        (MeshProtocol::Http2, AppProtocol::Http, false),
        (MeshProtocol::Http2, AppProtocol::H2c, true),
        (MeshProtocol::Http1, AppProtocol::Http, false),
        (MeshProtocol::Http1, AppProtocol::Http, true),
    ] {
        let fleet = Fleet::new(app, &[start_app(), start_app()]);
        fleet.caller.configure(mesh, (Limits::default(), patient()));
        let gateway = fleet.start_gateway(None, &fleet.addresses());
        let state = match is_remote {
            true => fleet.remote(gateway.addresses[0]),
            false => fleet.local(&fleet.addresses()),
        };
        fleet.caller.send_state(&fleet.stock, state);
        for pause in pauses.clone() {
            let answer = fleet.post();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{mesh:?} {app:?} {pause:?}: {answer}");
            advance(pause);
        }
        let metrics = &fleet.caller.metrics;
        assert_eq!(metrics.request_failures.value(), 0);
        assert_eq!(metrics.retries.value(), 0, "{mesh:?} {app:?}: a connection had ended before");
    }
}
