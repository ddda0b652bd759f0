//! Connections that outlive the trust or the certificate they were made with.

use rustls::StreamOwned;
use tollway_http::h2;
use tollway_identity::{Expected, Revocations, TrustBundles, client_config};
use tollway_model::Revocation;

use super::sim::Peer;
use super::*;

type Mesh = StreamOwned<rustls::ClientConnection, Stream>;

/// How long web's certificate is valid.
const LIFE: Duration = Duration::from_secs(3600);
/// What is left for what is under way when it is about to end.
const LAST: Duration = Duration::from_secs(60);

/// stock in east, and web in west.
struct Pair {
    west: Network,
    east: Network,
    callee: Running,
    caller: Arc<Credentials>,
}

impl Pair {
    fn new() -> Self {
        let (west, east) = (Network::new("west"), Network::new("east"));
        let stock = service("stock.default.east");
        let app = AppTarget::at(start_app(), AppProtocol::Http);
        let of_stock = east.credentials(&stock, "s-1", &[&west]);
        let callee = Running::start(stock, of_stock, &[ListenerKind::Inbound], Some(app), None);
        let caller = west.credentials_for(LIFE, &service("web"), "w-1", &[&east]);
        Self { west, east, callee, caller }
    }

    /// A connection over the mesh by a client that does what it likes.
    fn dial(&self, alpn: &'static [u8]) -> Mesh {
        let expected = Expected::service(&service("stock.default.east"), &self.east.trust_domain);
        let config = client_config(&self.caller, &expected, &[alpn]).unwrap();
        let name = expected.server_name().unwrap();
        let tls = rustls::ClientConnection::new(config, name).unwrap();
        StreamOwned::new(tls, connect(self.callee.addresses[0]))
    }
}

const GET: &[u8] = b"GET /x HTTP/1.1\r\nhost: stock.default.east.mesh\r\n\r\n";

/// Whether a request on the connection is answered with 200; false if the connection is gone.
fn is_answered(mesh: &mut Mesh) -> bool {
    let mut buffer = [0; 4096];
    if mesh.write_all(GET).and_then(|()| mesh.flush()).is_err() {
        return false;
    }
    matches!(mesh.read(&mut buffer), Ok(count) if buffer[..count].starts_with(b"HTTP/1.1 200"))
}

#[test]
fn a_network_that_is_trusted_no_more_loses_the_connections_it_has() {
    let pair = Pair::new();
    let mut mesh = pair.dial(b"http/1.1");
    assert!(is_answered(&mut mesh) && is_answered(&mut mesh));
    let stock = service("stock.default.east");
    let still = pair.east.credentials(&stock, "s-1", &[&pair.west]);
    pair.callee.commands.send(Command::Credentials(still));
    assert!(is_answered(&mut mesh), "new credentials alone end nothing");
    let alone = pair.east.credentials(&stock, "s-1", &[]);
    pair.callee.commands.send(Command::Credentials(alone));
    assert!(!is_answered(&mut mesh), "it still calls");
}

/// The same credentials without an app of west, or without one instance of it.
fn revoking(of: &Credentials, app: &str, instance: Option<&str>) -> Arc<Credentials> {
    let (namespace, app, instance) = (label("default"), label(app), instance.map(label));
    let revoked = Revocations::new([Revocation { namespace, app, instance }]);
    let bundles = of.bundles().iter().map(|bundle| {
        let is_west = bundle.network().as_str() == "west";
        let revoked = if is_west { revoked.clone() } else { Revocations::default() };
        bundle.clone().with_revoked(revoked)
    });
    let bundles = TrustBundles::new(2, bundles.collect::<Vec<_>>()).unwrap();
    Arc::new(of.with_bundles(bundles).unwrap())
}

#[test]
fn a_stolen_key_loses_the_connections_it_has_once_its_identity_is_revoked() {
    for (alpn, instance) in [(&b"http/1.1"[..], None), (b"http/1.1", Some("w-1"))] {
        let pair = Pair::new();
        let (mut mesh, stock) = (pair.dial(alpn), service("stock.default.east"));
        assert!(is_answered(&mut mesh));
        let trust = pair.east.credentials(&stock, "s-1", &[&pair.west]);
        for other in [("web", Some("w-2")), ("we", None)] {
            pair.callee.commands.send(Command::Credentials(revoking(&trust, other.0, other.1)));
            assert!(is_answered(&mut mesh), "revoked was {other:?}");
        }
        pair.callee.commands.send(Command::Credentials(revoking(&trust, "web", instance)));
        assert!(!is_answered(&mut mesh), "it still calls");
        assert!(!is_answered(&mut pair.dial(alpn)), "it calls on a new connection");
        pair.callee.commands.send(Command::Credentials(trust));
        assert!(is_answered(&mut pair.dial(alpn)), "restored, it may not call");
    }
}

#[test]
fn a_root_that_is_trusted_no_more_loses_the_connections_that_it_signed() {
    let pair = Pair::new();
    let trust_domain = pair.west.trust_domain.clone();
    let authority = Authority::create(&trust_domain, &label("west"), sim::wall()).unwrap();
    let next = Network { authority, trust_domain };
    let stock = service("stock.default.east");
    let trust = pair.east.credentials(&stock, "s-1", &[]);
    let trusting = |revision, west: &[&Network]| {
        let roots = west.iter().map(|of| of.authority.root_der().clone()).collect();
        let west = TrustBundle::new(label("west"), next.trust_domain.clone(), roots).unwrap();
        let bundles = trust.bundles().iter().cloned().chain([west]).collect::<Vec<_>>();
        let bundles = TrustBundles::new(revision, bundles).unwrap();
        Command::Credentials(Arc::new(trust.with_bundles(bundles).unwrap()))
    };
    pair.callee.commands.send(trusting(2, &[&pair.west, &next]));
    let mut old = pair.dial(b"http/1.1");
    let caller = next.credentials_for(LIFE, &service("web"), "w-1", &[&pair.east]);
    let pair = Pair { caller, ..pair };
    let mut new = pair.dial(b"http/1.1");
    assert!(is_answered(&mut old) && is_answered(&mut new));
    pair.callee.commands.send(trusting(3, &[&next]));
    assert!(!is_answered(&mut old), "it still calls");
    assert!(is_answered(&mut new), "one of the root that stays does not");
}

#[test]
fn a_stolen_key_whose_handshake_is_under_way_is_refused_once_its_identity_is_revoked() {
    let pair = Pair::new();
    let stock = service("stock.default.east");
    let mut mesh = pair.dial(b"http/1.1");
    // The callee's part of the handshake is done; the caller's certificate is not shown yet.
    mesh.conn.write_tls(&mut mesh.sock).unwrap();
    until("the callee's answer", || mesh.sock.has_arrived());
    let trust = pair.east.credentials(&stock, "s-1", &[&pair.west]);
    pair.callee.commands.send(Command::Credentials(revoking(&trust, "web", None)));
    assert!(!is_answered(&mut mesh), "a handshake under an older trust is enough");
}

/// stock and web, whose sidecars are both in west.
struct Neighbours {
    callee: Running,
    caller: Running,
    of_web: Arc<Credentials>,
}

impl Neighbours {
    /// web calls through this listener, with a certificate that is valid for [`LIFE`]; stock's app speaks
    /// `protocol`.
    fn new(listener: ListenerKind, app: SocketAddr, protocol: AppProtocol) -> Self {
        let west = Network::new("west");
        let (stock, web) = (service("stock"), service("web"));
        let app = AppTarget::at(app, protocol);
        let of_stock = west.credentials(&stock, "s-1", &[]);
        let callee =
            Running::start(stock.clone(), of_stock, &[ListenerKind::Inbound], Some(app), None);
        let of_web = west.credentials_for(LIFE, &web, "w-1", &[]);
        let caller = Running::start(web, of_web.clone(), &[listener], None, None);
        let endpoints = [Endpoint::new(label("s-1"), callee.addresses[0])].into();
        let trust_domain = west.trust_domain;
        caller.send_state(
            &stock,
            ServiceState::Local { unready: [].into(), endpoints, protocol, trust_domain },
        );
        Self { callee, caller, of_web }
    }

    fn over_http() -> Self {
        Self::new(ListenerKind::HttpApi, start_app(), AppProtocol::Http)
    }

    /// The answer to a call by the HTTP API.
    fn call(&self) -> String {
        let mut api = connect(self.caller.addresses[0]);
        let request =
            b"GET /v1.0/invoke/stock/method/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        api.write_all(request).unwrap();
        let mut answer = Vec::new();
        let _ = api.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// One dial of web has failed, and without a request it makes no other one.
    #[track_caller]
    fn check_at_rest(&self) {
        let metrics = &self.caller.metrics;
        let dials = metrics.dials.value();
        advance(Duration::from_secs(5));
        assert_eq!((metrics.dials.value(), metrics.dial_failures.value()), (dials, 1));
    }

    fn times_refused(&self) -> usize {
        self.caller.around.certificate_refused.load(Ordering::SeqCst)
    }
}

#[test]
fn a_stolen_key_serves_no_caller_once_its_identity_is_revoked() {
    let pair = Neighbours::over_http();
    let before = pair.call();
    assert!(before.starts_with("HTTP/1.1 200"), "{before}");
    let revoked = revoking(&pair.of_web, "stock", Some("s-1"));
    pair.caller.commands.send(Command::Credentials(revoked));
    let after = pair.call();
    assert!(after.starts_with("HTTP/1.1 503") && after.contains("ERR_IDENTITY_REVOKED"), "{after}");
    pair.caller.commands.send(Command::Credentials(pair.of_web.clone()));
    advance(Duration::from_secs(10));
    let restored = pair.call();
    assert!(restored.starts_with("HTTP/1.1 200"), "{restored}");
}

/// The harm: a sidecar whose clock is behind calls no service until it would renew its certificate anyway.
#[test]
fn a_certificate_that_a_peer_refuses_as_ended_is_to_be_renewed_and_another_is_not() {
    let pair = Neighbours::over_http();
    let before = pair.call();
    assert!(before.starts_with("HTTP/1.1 200") && pair.times_refused() == 0, "{before}");
    advance(LIFE + LAST);
    advance(SWEEP);
    let ended = pair.call();
    assert!(ended.starts_with("HTTP/1.1 503"), "{ended}");
    assert_eq!(pair.times_refused(), 1, "{ended}");
    pair.check_at_rest();
    // A peer that does not trust its authority refuses it in the same place, and would refuse the next.
    let pair = Neighbours::over_http();
    let of_stock = Network::new("west").credentials(&service("stock"), "s-1", &[]);
    pair.callee.commands.send(Command::Credentials(of_stock));
    let refused = pair.call();
    assert!(refused.starts_with("HTTP/1.1 503") && pair.times_refused() == 0, "{refused}");
    pair.check_at_rest();
}

#[test]
fn a_caller_whose_certificate_has_ended_is_not_served_over_http1() {
    let pair = Pair::new();
    let mut mesh = pair.dial(b"http/1.1");
    let begun = now();
    while is_answered(&mut mesh) {
        advance(Duration::from_secs(1));
    }
    assert_ends(now() - begun);
}

#[test]
fn a_caller_whose_certificate_has_ended_begins_no_new_streams() {
    let pair = Pair::new();
    let mut mesh = pair.dial(b"h2");
    let mut out = Vec::new();
    let mut codec = h2::Connection::client(h2::Config::default(), &mut out);
    out.extend_from_slice(SETTINGS_ACK);
    // One that never ends keeps the connection in use; GOAWAY is not heeded.
    open_stream(1, "/stuck", &mut codec, &mut out);
    let mut frames = Vec::new();
    let begun = now();
    for stream in (3..).step_by(2) {
        open_stream(stream, "/x", &mut codec, &mut out);
        mesh.write_all(&out).unwrap();
        mesh.flush().unwrap();
        out.clear();
        if !is_served(stream, &mut mesh, &mut frames) {
            break;
        }
        advance(LAST * 3 / 4);
    }
    assert_ends(now() - begun);
}

#[track_caller]
fn assert_ends(after: Duration) {
    assert!((LIFE - LAST - SWEEP..LIFE).contains(&after), "{after:?}");
}

/// HEADERS made by a codec of its own, so that a GOAWAY stops nothing.
fn open_stream(stream: u32, path: &str, codec: &mut h2::Connection, out: &mut Vec<u8>) {
    let head = tollway_http::RequestHead {
        authority: b"stock.default.east.mesh".to_vec(),
        path: path.as_bytes().to_vec(),
        ..tollway_http::RequestHead::default()
    };
    let id = codec.send_request(&head, None, true, out).unwrap();
    assert_eq!(id.0, stream);
}

/// Reads the frames that have come: whether HEADERS of `stream` are among them.
fn is_served(stream: u32, mesh: &mut Mesh, frames: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    loop {
        while let Some((head, _)) = frames.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, on) = (head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
            if frames.len() < 9 + length {
                break;
            }
            frames.drain(..9 + length);
            if kind == 1 && on == stream {
                return true;
            }
        }
        if !mesh.sock.has_arrived() {
            return false;
        }
        match mesh.read(&mut buffer) {
            Ok(count) if count > 0 => frames.extend_from_slice(&buffer[..count]),
            Ok(_) | Err(_) => return false,
        }
    }
}

/// The harm: bytes pass long after the right to send them has ended.
#[test]
fn a_relayed_connection_ends_with_the_certificate_of_its_peer() {
    const CONNECT: &str = "CONNECT stock.mesh:80 HTTP/1.1\r\nhost: stock.mesh:80\r\n\r\n";
    // As a WebSocket begins.
    const UPGRADE: &str = "GET /upgrade HTTP/1.1\r\nhost: stock.mesh\r\nconnection: upgrade\r\n\
                           upgrade: echo\r\n\r\n";
    let port = ListenerKind::Tcp(service("stock"));
    for (listener, protocol, opening, status) in [
        (port, AppProtocol::Tcp, "", ""),
        (ListenerKind::Outbound, AppProtocol::Tcp, CONNECT, "HTTP/1.1 200"),
        (ListenerKind::Outbound, AppProtocol::Http, UPGRADE, "HTTP/1.1 101"),
    ] {
        let app = if protocol == AppProtocol::Tcp { listen_with(echo) } else { start_app() };
        let pair = Neighbours::new(listener, app, protocol);
        let mut stream = connect(pair.caller.addresses[0]);
        let begun = now();
        if !opening.is_empty() {
            let head = talk(&mut stream, opening.as_bytes(), b"\r\n\r\n");
            assert!(head.starts_with(status), "{head}");
        }
        let mut last = begun;
        while is_echoed(&mut stream) {
            last = now();
            advance(LAST * 3 / 4);
        }
        assert!(last > begun, "{opening}: nothing passed at all");
        assert_ends(now() - begun);
        assert_eq!(pair.callee.metrics.request_failures.value(), 1, "{opening}: it is counted");
    }
}

/// Whether bytes come back; false if the connection is gone.
fn is_echoed(stream: &mut Stream) -> bool {
    const BYTES: &[u8] = b"still here";
    let mut back = [0; BYTES.len()];
    stream.write_all(BYTES).is_ok() && stream.read_exact(&mut back).is_ok() && back == BYTES
}

/// An app that sends back what it gets as it comes.
fn echo(peer: Peer) {
    spawn(async move {
        let (mut read, mut write) = tokio::io::split(peer);
        // It ends with the connection.
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
}

/// The harm: who has the key of a gateway calls every app without policies.
#[test]
fn a_part_of_the_mesh_calls_no_app() {
    let network = Network::new("west");
    let stock = service("stock");
    let app = AppTarget::at(start_app(), AppProtocol::Http);
    let credentials = network.credentials(&stock, "s-1", &[]);
    let callee =
        Running::start(stock.clone(), credentials, &[ListenerKind::Inbound], Some(app), None);
    let of_web = network.credentials(&service("web"), "w-1", &[]);
    for (caller, answers) in [(network.gateway_credentials(), false), (of_web, true)] {
        let expected = Expected::service(&stock, &network.trust_domain);
        let config = client_config(&caller, &expected, &[b"http/1.1"]).unwrap();
        let tls = rustls::ClientConnection::new(config, expected.server_name().unwrap()).unwrap();
        let mut mesh = StreamOwned::new(tls, connect(callee.addresses[0]));
        assert_eq!(is_answered(&mut mesh), answers);
    }
    assert_eq!(callee.metrics.inbound_requests.value(), 1);
    assert_eq!(callee.metrics.policy_denials.value(), 1);
}
