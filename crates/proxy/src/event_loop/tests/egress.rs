//! Connections out of the mesh under egress: intercepted ones, and tunnels of the outbound port.

use std::net::IpAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tollway_model::egress::{BeginTls, EgressHost};
use tollway_model::{Egress, EgressDefault, Mode, ObjectName};
use tollway_routing::EgressRules;

use super::intercepted::{Site, is_reset};
use super::sim::listen_at;
use super::*;

const API: &str = "203.0.113.7:443";
const WEB: &str = "203.0.113.7:80";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn host(text: &str, port: u16) -> EgressHost {
    EgressHost { host: text.parse().unwrap(), port: Some(port), tls: None }
}

fn rules(by_default: EgressDefault, mode: Mode, hosts: Vec<EgressHost>) -> EgressRules {
    let name = ObjectName::new("default", "e").unwrap();
    EgressRules::new(by_default, vec![Arc::new(Egress { name, mode, from: Vec::new(), hosts })])
}

fn closed(hosts: Vec<EgressHost>) -> EgressRules {
    rules(EgressDefault::Closed, Mode::Enforce, hosts)
}

/// The bytes of a DNS message by which a server gives `name` an address.
fn answer(name: &str, address: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend_from_slice(&[0, 0, 1, 0, 1, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
    bytes.extend_from_slice(&address);
    bytes
}

/// A server that greets, and then sends back what it gets.
fn greet_at(text: &str) {
    listen_at(address(text), |mut peer| {
        spawn(async move {
            peer.write_all(b"greeting").await.unwrap();
            let mut buffer = [0; 4096];
            while let Ok(count) = peer.read(&mut buffer).await {
                if count == 0 || peer.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        });
    });
}

fn site(rules: EgressRules) -> Site {
    let site = Site::new(AppProtocol::Http, start_app());
    site.caller.send_egress(rules);
    site
}

/// Allowed, by default, refused, refused in shadow mode.
fn counts(site: &Site) -> [u64; 4] {
    site.caller.egress.counts()
}

fn greeting(stream: &mut Stream) -> String {
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting).unwrap();
    String::from_utf8_lossy(&greeting).into_owned()
}

/// What a ClientHello for this name is on the wire.
fn client_hello(name: &str) -> Vec<u8> {
    let config = tollway_identity::public_config(rustls::RootCertStore::empty(), &[b"h2"], None);
    let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config.unwrap()), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_closed_network_lets_intercepted_connections_to_allowed_addresses_pass() {
    let site = site(closed(vec![host("203.0.113.0/24", 443)]));
    greet_at(API);
    greet_at(WEB);
    let mut stream = site.dial(Some(address(API)));
    assert_eq!(greeting(&mut stream), "greeting");
    assert!(is_reset(site.dial(Some(address(WEB)))));
    assert!(is_reset(site.dial(Some(address("198.51.100.7:443")))));
    assert_eq!(counts(&site), [1, 0, 2, 0]);
    assert_eq!(site.caller.metrics.intercepted.refused.value(), 2);
}

/// The attack: an app connects to an address of its own and names an allowed host.
#[test]
fn a_forged_name_does_not_open_another_address() {
    let site = site(closed(vec![host("api.example", 443)]));
    greet_at(API);
    greet_at("203.0.113.66:443");
    site.names.note_answer(&answer("api.example", [203, 0, 113, 7]), now());
    site.names.note_answer(&answer("evil.example", [203, 0, 113, 66]), now());
    site.names.note_answer(&answer("shared.example", [203, 0, 113, 7]), now());
    let hello = client_hello("api.example");
    let evil = site.dial(Some(address("203.0.113.66:443")));
    assert!(is_reset(evil), "no allowed name has the address");
    // The right address and the right name.
    let mut stream = site.dial(Some(address(API)));
    assert_eq!(greeting(&mut stream), "greeting", "a server that speaks first does not wait");
    let (first, rest) = hello.split_at(7);
    stream.write_all(first).unwrap();
    advance(SWEEP);
    stream.write_all(rest).unwrap();
    let mut back = vec![0; hello.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == hello);
    // The address is shared, and the other name is not allowed; nor is one that no answer had.
    for name in ["shared.example", "unknown.example"] {
        let mut stream = site.dial(Some(address(API)));
        assert_eq!(greeting(&mut stream), "greeting");
        stream.write_all(&client_hello(name)).unwrap();
        assert!(is_reset(stream), "{name}");
    }
    // Bytes of a protocol that names no host.
    let mut stream = site.dial(Some(address(API)));
    assert_eq!(greeting(&mut stream), "greeting");
    stream.write_all(b"USER me\r\n").unwrap();
    let mut back = [0; 9];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(counts(&site), [2, 0, 3, 0]);
}

#[test]
fn connections_end_that_changed_rules_refuse() {
    let site = site(closed(vec![host("203.0.113.0/24", 443), host("api.example", 443)]));
    greet_at(API);
    let mut stream = site.dial(Some(address(API)));
    assert_eq!(greeting(&mut stream), "greeting");
    site.names.note_answer(&answer("api.example", [203, 0, 113, 7]), now());
    let mut named = site.dial(Some(address(API)));
    assert_eq!(greeting(&mut named), "greeting");
    site.caller.send_egress(closed(vec![host("api.example", 443)]));
    assert!(is_reset(stream));
    named.write_all(b"still here").unwrap();
    let mut back = [0; 10];
    named.read_exact(&mut back).unwrap();
    site.caller.send_egress(closed(vec![host("other.example", 443)]));
    assert!(is_reset(named));
}

/// `EgressUnknown`: until the rules are known a connection waits, and so does a tunnel not.
#[test]
fn nothing_passes_before_the_rules_are_known() {
    let site = Site::without_egress(AppProtocol::Http, start_app());
    greet_at(API);
    let mut stream = site.dial(Some(address(API)));
    advance(SWEEP);
    let mut tunnel = connect(site.caller.addresses[1]);
    let refused =
        talk(&mut tunnel, b"CONNECT api.example:443 HTTP/1.1\r\nhost: api.example\r\n\r\n", b"}");
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("ERR_EGRESS_UNKNOWN"), "{refused}");
    site.caller.send_egress(EgressRules::default());
    assert_eq!(greeting(&mut stream), "greeting");
    assert_eq!(counts(&site), [0, 1, 0, 0]);
}

#[test]
fn in_shadow_mode_everything_passes_and_is_counted() {
    let hosts = || vec![host("203.0.113.7", 443)];
    greet_at(API);
    greet_at(WEB);
    let shadow = rules(EgressDefault::Open, Mode::Shadow, hosts());
    let by_default = rules(EgressDefault::Shadow, Mode::Enforce, hosts());
    for (rules, expected) in [(shadow, [0, 1, 0, 1]), (by_default, [1, 0, 0, 1])] {
        let site = site(rules);
        for text in [API, WEB] {
            assert_eq!(greeting(&mut site.dial(Some(address(text)))), "greeting");
        }
        assert_eq!(counts(&site), expected);
    }
}

/// `EgressRefused`.
#[test]
fn the_outbound_port_opens_tunnels_to_allowed_hosts_alone() {
    let site = site(closed(vec![host("api.example", 443), host("203.0.113.7", 80)]));
    greet_at(API);
    greet_at(WEB);
    let connect_to = |authority: &str| {
        let mut stream = connect(site.caller.addresses[1]);
        let head = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut by_address = connect_to(WEB);
    let opened = talk(&mut by_address, b"", b"greeting");
    assert_eq!(opened, "HTTP/1.1 200 OK\r\n\r\ngreeting");
    for authority in ["evil.example:443", "api.example:80", "203.0.113.7:443", "127.0.0.1:80"] {
        let refused = talk(&mut connect_to(authority), b"", b"}");
        assert!(refused.starts_with("HTTP/1.1 403"), "{authority}: {refused}");
        assert!(refused.contains("ERR_EGRESS_REFUSED") && refused.contains(authority), "{refused}");
    }
    // Its addresses are looked for once, and those of this machine are none.
    let name = HostName::read("api.example").unwrap();
    let (mut first, mut second) = (connect_to("api.example:443"), connect_to("API.example.:443"));
    until("a question for the name", || !site.caller.around.wanted.lock().unwrap().is_empty());
    assert_eq!(*site.caller.around.wanted.lock().unwrap(), std::slice::from_ref(&name));
    let found: Vec<IpAddr> = vec![[127, 0, 0, 1].into(), [203, 0, 113, 7].into()];
    site.caller.commands.send(Command::Addresses(name.clone(), Ok(found)));
    for stream in [&mut first, &mut second] {
        let opened = talk(stream, b"", b"greeting");
        assert_eq!(opened, "HTTP/1.1 200 OK\r\n\r\ngreeting");
    }
    // The name that the bytes show is that of the tunnel.
    first.write_all(&client_hello("evil.example")).unwrap();
    assert!(is_reset(first));
    second.write_all(&client_hello("api.example")).unwrap();
    assert_eq!(second.read(&mut [0; 1]).unwrap(), 1);
    for found in [Ok(vec![[169, 254, 169, 254].into()]), Err("it is not known".to_owned())] {
        let mut third = connect_to("api.example:443");
        advance(SWEEP);
        site.caller.commands.send(Command::Addresses(name.clone(), found));
        let refused = talk(&mut third, b"", b"}");
        assert!(refused.contains("ERR_UNREACHABLE"), "{refused}");
    }
}

#[test]
fn without_an_egress_the_outbound_port_takes_services_alone() {
    let site = site(EgressRules::default());
    let requests = [
        &b"CONNECT api.example:443 HTTP/1.1\r\nhost: api.example\r\n\r\n"[..],
        b"GET http://api.example/ HTTP/1.1\r\nhost: api.example\r\n\r\n",
    ];
    for request in requests {
        let refused = talk(&mut connect(site.caller.addresses[1]), request, b"}");
        assert!(refused.contains("ERR_BAD_NAME"), "{refused}");
    }
    assert!(site.caller.around.wanted.lock().unwrap().is_empty());
    assert_eq!(counts(&site), [0; 4]);
}

/// The attack: the first request on a connection names an allowed host, and a later one another.
#[test]
fn each_request_on_a_plain_connection_is_judged() {
    let site = site(closed(vec![host("api.example", 80), host("www.example", 80)]));
    greet_at(WEB);
    for name in ["api.example", "www.example", "evil.example"] {
        site.names.note_answer(&answer(name, [203, 0, 113, 7]), now());
    }
    let request =
        |name: &str| format!("POST / HTTP/1.1\r\nhost: {name}\r\ncontent-length: 4\r\n\r\nbody");
    let back = |stream: &mut Stream, sent: &str| {
        let mut back = vec![0; sent.len()];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(String::from_utf8_lossy(&back), sent);
    };
    let open = || {
        let mut stream = site.dial(Some(address(WEB)));
        assert_eq!(greeting(&mut stream), "greeting");
        stream
    };
    // In one piece, and byte by byte.
    let mut stream = open();
    let both = request("api.example") + &request("www.example");
    stream.write_all(both.as_bytes()).unwrap();
    back(&mut stream, &both);
    for byte in request("api.example").as_bytes() {
        stream.write_all(std::slice::from_ref(byte)).unwrap();
    }
    back(&mut stream, &request("api.example"));
    stream.write_all(request("evil.example").as_bytes()).unwrap();
    assert!(is_reset(stream));
    assert_eq!(counts(&site), [3, 0, 1, 0]);
    // What is left when the app ends its side is passed on, but for the beginning of a request.
    let mut stream = open();
    stream.write_all((request("api.example") + "GET / HT").as_bytes()).unwrap();
    stream.finish();
    back(&mut stream, &request("api.example"));
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    // A request that is none of its own after another one.
    let mut stream = open();
    stream.write_all((request("api.example") + "USER me\r\n").as_bytes()).unwrap();
    assert!(is_reset(stream));
    // The rules that hold when it comes count.
    let mut stream = open();
    stream.write_all(request("api.example").as_bytes()).unwrap();
    back(&mut stream, &request("api.example"));
    site.caller.send_egress(closed(vec![host("www.example", 80)]));
    assert!(is_reset(stream));
}

/// A TLS server of `name` that sends back what it gets, and the authority of its certificate.
fn serve_tls(text: &str, name: &str) -> String {
    let certified = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key.into())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    listen_at(address(text), move |peer| {
        let acceptor = acceptor.clone();
        spawn(async move {
            let Ok(mut stream) = acceptor.accept(peer).await else { return };
            let agreed = stream.get_ref().1.alpn_protocol().unwrap_or_default().to_vec();
            stream.write_all(&agreed).await.unwrap();
            let mut buffer = [0; 4096];
            while let Ok(count) = stream.read(&mut buffer).await {
                if count == 0 || stream.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        });
    });
    certified.cert.pem()
}

#[test]
fn tls_is_begun_for_plain_requests_and_the_host_is_verified() {
    let pem = serve_tls(API, "api.example");
    let begin = |text: &str, pem: &str| {
        let tls = BeginTls { plain_port: 80, authorities: Some(pem.into()) };
        EgressHost { host: text.parse().unwrap(), port: None, tls: Some(tls) }
    };
    let request = b"GET / HTTP/1.1\r\nhost: api.example\r\n\r\n";
    for by_default in [EgressDefault::Open, EgressDefault::Closed] {
        let hosts = vec![begin("api.example", &pem), begin("other.example", &pem)];
        let site = site(rules(by_default, Mode::Enforce, hosts));
        site.names.note_answer(&answer("api.example", [203, 0, 113, 7]), now());
        site.names.note_answer(&answer("other.example", [203, 0, 113, 7]), now());
        let mut stream = site.dial(Some(address(WEB)));
        let got = talk(&mut stream, request, b"host: api.example\r\n\r\n");
        assert_eq!(got.as_bytes(), [b"http/1.1", &request[..]].concat());
        let got = talk(&mut stream, request, b"host: api.example\r\n\r\n");
        assert_eq!(got.as_bytes(), request);
        // The connection is one to this host.
        stream.write_all(b"GET / HTTP/1.1\r\nhost: other.example\r\n\r\n").unwrap();
        assert!(is_reset(stream));
        // The server is not the one of that name.
        let mut stream = site.dial(Some(address(WEB)));
        stream.write_all(b"GET / HTTP/1.1\r\nhost: other.example\r\n\r\n").unwrap();
        assert!(is_reset(stream));
        // A tunnel to the plain port.
        let mut tunnel = connect(site.caller.addresses[1]);
        tunnel.write_all(b"CONNECT api.example:80 HTTP/1.1\r\nhost: api.example\r\n\r\n").unwrap();
        advance(SWEEP);
        let name = HostName::read("api.example").unwrap();
        let found = Ok(vec![[203, 0, 113, 7].into()]);
        site.caller.commands.send(Command::Addresses(name, found));
        talk(&mut tunnel, b"", b"200 OK\r\n\r\n");
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        assert!(talk(&mut tunnel, preface, b"SM\r\n\r\n").starts_with("h2PRI"));
    }
    // No authority vouches for the certificate.
    let foreign = serve_tls("203.0.113.9:443", "foreign.example");
    let site = site(closed(vec![begin("api.example", &foreign)]));
    site.names.note_answer(&answer("api.example", [203, 0, 113, 7]), now());
    let mut stream = site.dial(Some(address(WEB)));
    stream.write_all(request).unwrap();
    assert!(is_reset(stream));
}
