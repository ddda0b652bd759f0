//! What a handshake between two members costs with hybrid keys and without, in memory, both ends
//! together: blocks in turns, and the ratio of their medians.
//!
//! `cargo bench -p tollway-identity --bench handshakes`

#![allow(clippy::unwrap_used, reason = "a bench that cannot run must say why and stop")]

use std::time::{Duration, Instant, SystemTime};

use rustls::{ClientConnection, ServerConnection};
use tollway_identity::{
    Authority, Credentials, Expected, IssueRequest, KeyExchange, KeyPair, TrustBundle,
    TrustBundles, client_config, server_config,
};
use tollway_model::{Label, ServiceName, TrustDomain};

const BLOCKS: usize = 30;
const HANDSHAKES: u32 = 100;
const ALPN: &[&[u8]] = &[b"h2"];

fn main() {
    let network = Label::new("west").unwrap();
    let domain = TrustDomain::default_for(&network);
    let authority = Authority::create(&domain, &network, SystemTime::now()).unwrap();
    let ends = [KeyExchange::Hybrid, KeyExchange::Classical]
        .map(|kind| (member(&authority, "orders", kind), member(&authority, "stock", kind)));
    let expected = Expected::service(&service("stock"), &domain);
    for is_resumed in [false, true] {
        let mut spent = [Vec::new(), Vec::new()];
        for _ in 0..BLOCKS {
            for ((orders, stock), spent) in ends.iter().zip(&mut spent) {
                spent.push(block(orders, stock, &expected, is_resumed));
            }
        }
        let [hybrid, classical] = spent.map(median);
        println!(
            "{}: hybrid {:.0} us, X25519 alone {:.0} us, ratio {:.3} (medians of {BLOCKS} blocks)",
            if is_resumed { "resumed" } else { "full" },
            hybrid * 1e6,
            classical * 1e6,
            hybrid / classical
        );
    }
}

/// Seconds for one handshake.
fn block(orders: &Credentials, stock: &Credentials, expected: &Expected, is_resumed: bool) -> f64 {
    let server = server_config(stock, ALPN).unwrap();
    let mut client = client_config(orders, expected, ALPN).unwrap();
    let shake = |client: &std::sync::Arc<rustls::ClientConfig>| {
        let name = expected.server_name().unwrap();
        let mut client = ClientConnection::new(client.clone(), name).unwrap();
        let mut server = ServerConnection::new(server.clone()).unwrap();
        let start = Instant::now();
        let mut bytes = Vec::new();
        while client.wants_write() || server.wants_write() {
            bytes.clear();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            feed(&bytes, |from| server.read_tls(from));
            server.process_new_packets().unwrap();
            bytes.clear();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            feed(&bytes, |from| client.read_tls(from));
            client.process_new_packets().unwrap();
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        let kind = client.handshake_kind().unwrap();
        (start.elapsed(), kind == rustls::HandshakeKind::Resumed)
    };
    shake(&client);
    let mut spent = Duration::ZERO;
    for _ in 0..HANDSHAKES {
        if !is_resumed {
            // A new configuration has no session to resume.
            client = client_config(orders, expected, ALPN).unwrap();
        }
        let (took, was_resumed) = shake(&client);
        assert_eq!(was_resumed, is_resumed);
        spent += took;
    }
    spent.as_secs_f64() / f64::from(HANDSHAKES)
}

fn feed(mut from: &[u8], mut read: impl FnMut(&mut &[u8]) -> std::io::Result<usize>) {
    while !from.is_empty() {
        read(&mut from).unwrap();
    }
}

fn service(app: &str) -> ServiceName {
    let label = |text| Label::new(text).unwrap();
    ServiceName { app: label(app), namespace: label("default"), network: label("west") }
}

fn member(authority: &Authority, app: &str, key_exchange: KeyExchange) -> Credentials {
    let key = KeyPair::generate().unwrap();
    let request = IssueRequest {
        csr_der: key.csr_der().unwrap(),
        service: service(app),
        instance: Label::new("i-1").unwrap(),
        ttl: Duration::from_secs(3600),
    };
    let issued = authority.issue(&request, SystemTime::now()).unwrap();
    let roots = vec![authority.root_der().clone()];
    let bundle =
        TrustBundle::new(authority.network().clone(), authority.trust_domain().clone(), roots);
    let bundles = TrustBundles::new(1, [bundle.unwrap()]).unwrap();
    Credentials::new(&key, issued.chain, bundles).unwrap().with_key_exchange(key_exchange)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
