//! How members agree on the keys of their connections: by a hybrid, which keeps what is recorded from
//! computers to come, unless one of the two is set to do without.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, NamedGroup};
use tollway_testkit::Process;
use tollway_tests::network::{Network, PATIENCE, until_status};
use tollway_tests::tls_client::dial;

const CLASSICAL: &str = "--classical-key-exchange";

/// The group that the server at an address takes of a client that offers both.
fn group(address: SocketAddr, (config, name): (Arc<ClientConfig>, String)) -> NamedGroup {
    let mut tls = ClientConnection::new(config, name.try_into().unwrap()).unwrap();
    let mut socket = dial(address, PATIENCE);
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).unwrap();
    }
    tls.negotiated_key_exchange_group().unwrap().name()
}

#[test]
fn a_member_or_a_control_plane_with_classical_keys_agrees_on_them_with_all_others() {
    let (usual, without) = (NamedGroup::X25519MLKEM768, NamedGroup::X25519);
    for (option, of_control) in [(None, usual), (Some(CLASSICAL), without)] {
        let west = Network::start_with("west", option.as_slice());
        let at_control = group(west.control_address(), west.client_of_control("web"));
        assert_eq!(at_control, of_control, "{option:?}");
        let echo = tollway_tests::load_command::Echo::start(&[]);
        let port = echo.http().port().to_string();
        let hybrid = west.sidecar("stock", &["--app-port", &port]);
        let classical = west.sidecar("late", &["--app-port", &port, CLASSICAL]);
        let inbound = |sidecar: &Process| sidecar.port("inbound").unwrap();
        for (name, sidecar, expected) in [("stock", &hybrid, usual), ("late", &classical, without)]
        {
            let found = group(inbound(sidecar), west.client("web", name, b"h2"));
            assert_eq!(found, expected, "{name}");
        }
        for (caller, callee) in [(&hybrid, "late"), (&classical, "stock")] {
            let call = format!(
                "GET /v1.0/invoke/{callee}/method/echo HTTP/1.1\r\nhost: localhost\r\n\r\n"
            );
            until_status(caller.port("http").unwrap(), &call, 200);
        }
    }
}
