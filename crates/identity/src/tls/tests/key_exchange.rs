//! How two members agree on keys: by a hybrid, unless one of them is classical.

use rustls::{HandshakeKind, NamedGroup};

use super::world::{H2, World, shake};
use crate::tls::{KeyExchange, ServerNameRead, ServerNameReader, client_config, server_config};

/// The harm: what is recorded today is read by a computer that breaks X25519.
#[test]
fn members_agree_on_hybrid_keys_unless_one_is_classical() {
    use KeyExchange::{Classical, Hybrid};
    let world = World::new();
    assert_eq!(KeyExchange::default(), Hybrid);
    for (caller, callee, group) in [
        (Hybrid, Hybrid, NamedGroup::X25519MLKEM768),
        (Hybrid, Classical, NamedGroup::X25519),
        (Classical, Hybrid, NamedGroup::X25519),
        (Classical, Classical, NamedGroup::X25519),
    ] {
        let orders = world.workload("orders").with_key_exchange(caller);
        let stock = world.workload("stock").with_key_exchange(callee);
        let expected = world.expected("stock");
        let client = client_config(&orders, &expected, H2).unwrap();
        let server = server_config(&stock, H2).unwrap();
        // The second one resumes the first.
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let name = expected.server_name().unwrap();
            let outcome = shake(&client, &server, name).established();
            let agreed = outcome.client_connection.negotiated_key_exchange_group().unwrap();
            assert_eq!(agreed.name(), group, "{caller:?} {callee:?} {kind:?}");
            assert_eq!(outcome.kind(), kind, "{caller:?} {callee:?}");
        }
    }
}

#[test]
fn a_gateway_reads_a_long_hello_wherever_it_is_cut() {
    let world = World::new();
    let expected = world.expected("stock");
    let config = client_config(&world.workload("orders"), &expected, H2).unwrap();
    let name = expected.server_name().unwrap();
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    assert!(hello.len() > 1400, "{} bytes: it takes more than one packet", hello.len());
    let named = ServerNameRead::Named(expected.dns_san.clone());
    for cut in 1..hello.len() {
        let mut reader = ServerNameReader::default();
        assert_eq!(reader.take(&hello[..cut]), ServerNameRead::Partial, "{cut}");
        assert_eq!(reader.take(&hello[cut..]), named, "{cut}");
    }
    let mut reader = ServerNameReader::default();
    let (last, before) = hello.split_last().unwrap();
    for (at, byte) in before.iter().enumerate() {
        assert_eq!(reader.take(&[*byte]), ServerNameRead::Partial, "{at}");
    }
    assert_eq!(reader.take(&[*last]), named);
}
