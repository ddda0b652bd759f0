use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig,
    SupportedProtocolVersion,
};

use super::*;

type Configs = (Arc<ClientConfig>, Arc<ServerConfig>);

fn configs(version: &'static SupportedProtocolVersion) -> Configs {
    let issued = rcgen::generate_simple_self_signed(["b.test".to_owned()]).unwrap();
    let certificate = issued.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(issued.signing_key.serialize_der().into());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(default_provider());
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    (Arc::new(client), Arc::new(server))
}

/// One side, with what it has received and what it has to send.
struct End {
    tls: Tls,
    plain: Vec<u8>,
    wire: Vec<u8>,
}

impl End {
    fn new(tls: impl Into<Tls>) -> Self {
        Self { tls: tls.into(), plain: Vec::new(), wire: Vec::new() }
    }

    fn client(config: &Arc<ClientConfig>) -> Self {
        let name = "b.test".try_into().unwrap();
        let mut end = Self::new(UnbufferedClientConnection::new(Arc::clone(config), name).unwrap());
        end.send(b"", false);
        end
    }

    fn server(config: &Arc<ServerConfig>) -> Self {
        Self::new(UnbufferedServerConnection::new(Arc::clone(config)).unwrap())
    }

    fn send(&mut self, out: &[u8], close: bool) {
        self.tls.encrypt(out, close, &mut self.wire).unwrap();
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut raw = self.tls.kept().to_vec();
        raw.extend_from_slice(bytes);
        self.tls.decrypt(&mut raw, &mut self.plain, &mut self.wire)
    }
}

/// Carries what `from` has to send, `step` bytes at a time.
fn carry(from: &mut End, to: &mut End, step: usize) {
    for bytes in std::mem::take(&mut from.wire).chunks(step) {
        to.feed(bytes).unwrap();
    }
}

fn shake(client: &mut End, server: &mut End, step: usize) {
    while !client.wire.is_empty() || !server.wire.is_empty() {
        carry(client, server, step);
        carry(server, client, step);
    }
    assert!(!client.tls.is_handshaking() && !server.tls.is_handshaking());
}

fn shaken(configs: &Configs) -> (End, End) {
    let (mut client, mut server) = (End::client(&configs.0), End::server(&configs.1));
    shake(&mut client, &mut server, usize::MAX);
    (client, server)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect()
}

/// How many records `wire` has, the last of them whole.
fn records(mut wire: &[u8]) -> usize {
    let mut count = 0;
    while !wire.is_empty() {
        let length = usize::from(u16::from_be_bytes([wire[3], wire[4]]));
        wire = &wire[5 + length..];
        count += 1;
    }
    count
}

#[test]
fn bytes_pass_both_ways_wherever_they_are_cut() {
    for version in [&TLS12, &TLS13] {
        let configs = configs(version);
        for step in [1, 7, 4_096, 60_000] {
            let (mut client, mut server) = (End::client(&configs.0), End::server(&configs.1));
            shake(&mut client, &mut server, step);
            assert_eq!(client.tls.protocol_version(), Some(version.version));
            let (asked, reported) = (pattern(40_000), pattern(70_001));
            for part in asked.chunks(9_000) {
                client.send(part, false);
            }
            server.send(&reported, true);
            assert!(!client.tls.peer_closed());
            carry(&mut client, &mut server, step);
            carry(&mut server, &mut client, step);
            assert!(server.plain == asked && client.plain == reported, "cut at {step}");
            assert!(client.tls.peer_closed() && !server.tls.peer_closed());
            client.send(b"late", true);
            carry(&mut client, &mut server, step);
            assert!(server.plain.ends_with(b"late") && server.tls.peer_closed());
            assert_eq!((client.tls.kept.capacity(), server.tls.kept.capacity()), (0, 0));
        }
    }
}

#[test]
fn bytes_are_kept_only_while_their_record_is_incomplete() {
    let (mut client, mut server) = shaken(&configs(&TLS13));
    client.send(b"whole", false);
    client.send(b"begun", false);
    let wire = std::mem::take(&mut client.wire);
    let (begun, rest) = wire.split_at(wire.len() - 1);
    server.feed(begun).unwrap();
    assert_eq!(server.plain, b"whole");
    assert_eq!(server.tls.kept().len(), begun.len() / 2);
    server.send(b"an answer in between", false);
    carry(&mut server, &mut client, usize::MAX);
    assert_eq!(client.plain, b"an answer in between");
    server.feed(rest).unwrap();
    assert_eq!(server.plain, b"wholebegun");
    assert_eq!(server.tls.kept.capacity(), 0);
}

#[test]
fn a_session_goes_on_in_the_next_connection() {
    for version in [&TLS12, &TLS13] {
        let configs = configs(version);
        let (first, _) = shaken(&configs);
        assert_eq!(first.tls.handshake_kind(), Some(HandshakeKind::Full));
        let (second, server) = shaken(&configs);
        assert_eq!(second.tls.handshake_kind(), Some(HandshakeKind::Resumed));
        assert_eq!(server.tls.handshake_kind(), Some(HandshakeKind::Resumed));
    }
}

#[test]
fn a_peer_that_changes_its_keys_is_answered_with_new_ones() {
    let (config, server) = configs(&TLS13);
    let mut server = End::server(&server);
    let mut client = ClientConnection::new(config, "b.test".try_into().unwrap()).unwrap();
    let exchange = |client: &mut ClientConnection, server: &mut End| {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        server.feed(&wire).unwrap();
        let answer = std::mem::take(&mut server.wire);
        let mut rest = &answer[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
        }
        records(&answer)
    };
    while client.is_handshaking() {
        exchange(&mut client, &mut server);
    }
    exchange(&mut client, &mut server);
    for round in 1..=3 {
        client.refresh_traffic_keys().unwrap();
        std::io::Write::write_all(&mut client.writer(), b"new").unwrap();
        assert_eq!(exchange(&mut client, &mut server), 0, "the answer waits for data");
        assert_eq!(server.plain, b"new".repeat(round));
        server.send(b"also new", false);
        assert_eq!(exchange(&mut client, &mut server), 2, "new keys, and data under them");
        let mut got = [0; 8];
        std::io::Read::read_exact(&mut client.reader(), &mut got).unwrap();
        assert_eq!(&got, b"also new");
    }
}

#[test]
fn what_follows_the_peers_end_does_not_count() {
    let (mut client, mut server) = shaken(&configs(&TLS13));
    client.send(b"last", true);
    client.wire.extend_from_slice(b"this is no record");
    carry(&mut client, &mut server, usize::MAX);
    assert_eq!(server.plain, b"last");
    assert!(server.tls.peer_closed() && server.tls.kept().is_empty());
    server.send(b"still heard", true);
    carry(&mut server, &mut client, usize::MAX);
    assert_eq!(client.plain, b"still heard");
}

/// A hello as two records.
fn in_two_records(hello: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let record = |part: &[u8]| {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&hello[..3], &length, part].concat()
    };
    let (begun, rest) = hello[5..].split_at(50);
    (record(begun), record(rest))
}

/// The session holds an offset in the retained bytes, and uses it in any call.
#[test]
fn sending_within_a_handshake_message_does_not_lose_its_beginning() {
    let (client, server) = configs(&TLS13);
    let (mut client, mut server) = (End::client(&client), End::server(&server));
    let (begun, rest) = in_two_records(&std::mem::take(&mut client.wire));
    server.feed(&begun).unwrap();
    assert!(!server.tls.kept().is_empty());
    server.send(b"", false);
    server.feed(&rest).unwrap();
    shake(&mut client, &mut server, usize::MAX);
}

#[test]
fn an_alert_can_be_sent_within_a_handshake_message() {
    let (client, server) = configs(&TLS13);
    let (mut client, mut server) = (End::client(&client), End::server(&server));
    let (begun, _) = in_two_records(&std::mem::take(&mut client.wire));
    server.feed(&begun).unwrap();
    assert_eq!(server.feed(b"no record"), Err(InvalidMessage::InvalidContentType.into()));
    server.tls.alert(&mut server.wire);
    let reported = std::mem::take(&mut server.wire);
    assert_eq!(client.feed(&reported), Err(Error::AlertReceived(AlertDescription::DecodeError)));
}

#[test]
fn a_handshake_message_that_does_not_end_is_refused() {
    let (_, server) = configs(&TLS13);
    let mut server = End::server(&server);
    // The head of a hello of 60,000 bytes, then a byte of it in each record.
    let mut sent = vec![22, 3, 1, 0, 4, 1, 0, 0xea, 0x60];
    sent.extend([22, 3, 1, 0, 1, 0].repeat(20_000));
    let refused = sent.chunks(1_000).find_map(|bytes| {
        assert!(server.tls.kept().len() <= KEPT_BYTES_MAX);
        server.feed(bytes).err()
    });
    assert_eq!(refused, Some(InvalidMessage::HandshakePayloadTooLarge.into()));
}

#[test]
fn a_hello_that_stops_short_takes_no_more_room_than_its_bytes() {
    let hello = tollway_testkit::begun_hello(KEPT_BYTES_MAX);
    for version in [&TLS12, &TLS13] {
        let (_, config) = configs(version);
        for step in [700, 16 * 1024, 40_000, usize::MAX] {
            let mut server = End::server(&config);
            for bytes in hello.chunks(step) {
                server.feed(bytes).unwrap();
                let kept = &server.tls.kept;
                assert_eq!(kept.capacity(), kept.len(), "in steps of {step}");
            }
            assert_eq!(server.tls.kept.len(), KEPT_BYTES_MAX, "all of it is kept");
            assert!(server.wire.is_empty() && server.plain.is_empty());
            assert_eq!(server.feed(&[0]), Err(InvalidMessage::HandshakePayloadTooLarge.into()));
        }
    }
}

#[test]
fn the_peer_gets_an_alert_for_bytes_that_were_refused() {
    let (mut client, mut server) = shaken(&configs(&TLS13));
    client.send(&pattern(500), false);
    let middle = client.wire.len() / 2;
    client.wire[middle] ^= 1;
    let (begun, rest) = client.wire.split_at(middle + 10);
    server.feed(begun).unwrap();
    assert_eq!(server.feed(rest), Err(Error::DecryptError));
    assert!(server.wire.is_empty() && server.plain.is_empty());
    server.tls.alert(&mut server.wire);
    let reported = std::mem::take(&mut server.wire);
    assert_eq!(client.feed(&reported), Err(Error::AlertReceived(AlertDescription::BadRecordMac)));
}
