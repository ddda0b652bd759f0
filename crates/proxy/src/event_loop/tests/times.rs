//! What takes too long is given up, on connections that are otherwise left alone.

use super::app_unreachable::Fleet;
use super::*;

/// Runs out soon.
const SOON: Duration = Duration::from_millis(400);
/// Runs out never, as far as these tests wait.
const LATE: Duration = Duration::from_secs(3600);

fn sidecar(timeouts: Timeouts) -> Running {
    let (network, web) = (Network::new("west"), service("web"));
    let any = "127.0.0.1:0".parse().unwrap();
    let listeners = [ListenerKind::HttpApi, ListenerKind::Inbound];
    let credentials = network.credentials(&web, "w-1", &[]);
    Running::start_at(any, (Limits::default(), timeouts), web, credentials, &listeners, None, None)
}

fn all_late() -> Timeouts {
    Timeouts {
        connect: LATE,
        handshake: LATE,
        head: LATE,
        downstream_idle: LATE,
        linger: LATE,
        linger_longest: LATE,
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

/// Who has the last answer and goes on sending is read for as long as it sends, but not longer
/// than that.
#[test]
fn a_refused_peer_that_sends_on_is_closed_in_the_end() {
    let sidecar = sidecar(Timeouts { linger: SOON * 2, linger_longest: SOON * 4, ..all_late() });
    let mut stream = connect(sidecar.addresses[0]);
    let begun = Instant::now();
    stream.write_all(b"GET / HTTP/1.1\r\nno colon\r\n\r\n").unwrap();
    let (answer, _) = read_to_end(&stream);
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    // Far sooner than `linger` each time, also on a machine that is busy.
    while stream.write_all(b"more").is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20), "still read");
        std::thread::sleep(SOON / 20);
    }
    assert!(begun.elapsed() >= SOON * 2, "{:?}", begun.elapsed());
}

#[test]
fn a_handshake_that_stops_is_closed() {
    let sidecar = sidecar(Timeouts { handshake: SOON, ..all_late() });
    let mut stream = connect(sidecar.addresses[1]);
    stream.write_all(&[22, 3, 1, 0, 200]).unwrap();
    let (_, waited) = read_to_end(&stream);
    assert_in_time(waited);
    assert_eq!(sidecar.metrics.tls_handshake_failures.value(), 1);
}

/// What each has kept meanwhile is bounded in `net`; for how long, here.
#[test]
fn long_hellos_that_stop_short_are_closed_in_time_and_others_are_served_meanwhile() {
    const CROWD: u64 = 50;
    const KEPT_BYTES_MAX: usize = 64 * 1024 - 1;
    let sidecar = sidecar(Timeouts { handshake: SOON, ..all_late() });
    let begun = Instant::now();
    let hello = tollway_testkit::begun_hello(KEPT_BYTES_MAX);
    let crowd: Vec<TcpStream> = (0..CROWD)
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
        assert!(begun.elapsed() >= SOON / 2, "it was not waited for its end");
    }
    assert_eq!(sidecar.metrics.tls_handshake_failures.value(), CROWD);
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

#[test]
fn a_service_without_calls_is_let_go() {
    let (network, stock, web) = (Network::new("west"), service("stock"), service("web"));
    let app = Some(AppTarget { address: start_app(), protocol: AppProtocol::Http });
    let credentials = network.credentials(&stock, "s-1", &[]);
    let callee = Running::start(stock.clone(), credentials, &[ListenerKind::Inbound], app, None);
    let timeouts = Timeouts { mesh_idle: SOON, service_idle: SOON, ..patient() };
    let any = "127.0.0.1:0".parse().unwrap();
    let credentials = network.credentials(&web, "w-1", &[]);
    let listeners = [ListenerKind::HttpApi];
    let settings = (Limits::default(), timeouts);
    let caller = Running::start_at(any, settings, web, credentials, &listeners, None, None);
    let endpoints = [Endpoint { instance: label("s-1"), address: callee.addresses[0] }].into();
    let trust_domain = network.trust_domain;
    let state = ServiceState::Local { endpoints, protocol: AppProtocol::Http, trust_domain };
    caller.send_state(&stock, state);
    let request = "GET /v1.0/invoke/stock/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let answer = talk(&mut connect(caller.addresses[0]), request.as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let deadline = Instant::now() + Duration::from_secs(10);
    while caller.around.unsubscribed.load(Ordering::SeqCst) == 0 {
        assert!(Instant::now() < deadline, "still held, {} dials", caller.metrics.dials.value());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(caller.metrics.dials.value(), 1, "an idle connection is not made again");
}

#[test]
fn a_gateway_keeps_services_without_calls() {
    let (network, stock) = (Network::new("west"), service("stock"));
    let endpoint = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let routes = GatewayRoutes { network: label("west"), control: "127.0.0.1:1".parse().unwrap() };
    let any = "127.0.0.1:0".parse().unwrap();
    let settings = (Limits::default(), Timeouts { service_idle: SOON, ..patient() });
    let name = service("gateway");
    let credentials = network.credentials(&name, "g-1", &[]);
    let listeners = [ListenerKind::Gateway];
    let gateway =
        Running::start_at(any, settings, name, credentials, &listeners, None, Some(routes));
    let address = endpoint.local_addr().unwrap();
    // LogLimiter once, as the control plane does.
    gateway.commands.send(Command::Services(vec![ServiceUpdate {
        service: stock,
        revision: Revision(1),
        state: ServiceState::Local {
            endpoints: [Endpoint { instance: label("s-1"), address }].into(),
            protocol: AppProtocol::Http,
            trust_domain: network.trust_domain,
        },
    }]));
    std::thread::sleep(SOON * 3);
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let server_name = "stock.default.west.mesh".try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), server_name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    let mut client = connect(gateway.addresses[0]);
    client.write_all(&hello).unwrap();
    endpoint.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while endpoint.accept().is_err() {
        assert!(Instant::now() < deadline, "the gateway has forgotten the service");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has `stream_idle` run out soon, on which this one ends without a word more, and is counted.
#[track_caller]
fn check_ends_in_time(stream: &TcpStream, caller: &Running) {
    let timeouts = Timeouts { stream_idle: SOON, ..patient() };
    caller.configure(MeshProtocol::default(), (Limits::default(), timeouts));
    let (rest, _) = read_to_end(stream);
    assert_eq!(rest, "");
    assert_eq!(caller.metrics.request_failures.value(), 1);
}

/// What has been sent of it cannot be taken back.
#[test]
fn an_answer_that_stands_still_is_broken_off_and_counted() {
    let app = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fleet = Fleet::new(AppProtocol::Http, &[app.local_addr().unwrap()]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    std::thread::spawn(move || {
        let (mut stream, _) = app.accept().unwrap();
        talk(&mut stream, b"", b"\r\n\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nhal").unwrap();
        // It is asked for no more, and waits for the end.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut stream = connect(fleet.caller.addresses[0]);
    let request = "GET /v1.0/invoke/stock/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let answer = talk(&mut stream, request.as_bytes(), b"hal");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    check_ends_in_time(&stream, &fleet.caller);
}

#[test]
fn a_relayed_connection_that_stands_still_is_closed_and_counted() {
    let app = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fleet = Fleet::new(AppProtocol::Tcp, &[app.local_addr().unwrap()]);
    fleet.caller.send_state(&fleet.stock, fleet.local(&fleet.addresses()));
    std::thread::spawn(move || {
        let (stream, _) = app.accept().unwrap();
        copy(stream.try_clone().unwrap(), stream, |_| {});
    });
    let mut stream = connect(fleet.caller.addresses[1]);
    talk(&mut stream, b"over and back", b"over and back");
    check_ends_in_time(&stream, &fleet.caller);
}

#[test]
fn discovery_times_out_however_many_requests_follow() {
    let sidecar = sidecar(Timeouts { discovery: SOON, ..all_late() });
    let request = "GET /v1.0/invoke/nobody/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut first = connect(sidecar.addresses[0]);
    first.write_all(request.as_bytes()).unwrap();
    first.set_read_timeout(Some(SOON / 8)).unwrap();
    let deadline = Instant::now() + SOON * 10;
    let mut others = Vec::new();
    let mut answer = [0; 4096];
    let count = loop {
        let mut other = connect(sidecar.addresses[0]);
        other.write_all(request.as_bytes()).unwrap();
        others.push(other);
        if let Ok(count) = first.read(&mut answer) {
            break count;
        }
        assert!(Instant::now() < deadline, "no answer as long as others ask");
    };
    let answer = String::from_utf8_lossy(&answer[..count]);
    assert!(answer.contains("ERR_DISCOVERY_TIMED_OUT"), "{answer}");
}
