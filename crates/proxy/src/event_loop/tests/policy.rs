//! The inbound listener before the policies are known.

use rustls::StreamOwned;
use tollway_identity::{Expected, client_config};

use super::*;

#[test]
fn no_request_is_admitted_before_the_policies_are_known() {
    let (west, east) = (Network::new("west"), Network::new("east"));
    let (web, stock) = (service("web"), service("stock.default.east"));
    let app = AppTarget::at(start_app(), AppProtocol::Http);
    let callee = Running::start_without_policies(
        None,
        (Limits::default(), patient()),
        stock.clone(),
        east.credentials(&stock, "s-1", &[&west]),
        &[ListenerKind::Inbound],
        Some(app),
        None,
    );
    let expected = Expected::service(&stock, &east.trust_domain);
    let caller = west.credentials(&web, "w-1", &[&east]);
    let config = client_config(&caller, &expected, &[b"http/1.1"]).unwrap();
    let tls = rustls::ClientConnection::new(config, expected.server_name().unwrap()).unwrap();
    let mut mesh = StreamOwned::new(tls, connect(callee.addresses[0]));
    let mut ask = || {
        mesh.write_all(b"GET /x HTTP/1.1\r\nhost: stock.default.east.mesh\r\n\r\n").unwrap();
        let mut buffer = [0; 4096];
        let count = mesh.read(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    };

    let answer = ask();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("ERR_POLICY_UNKNOWN"), "{answer}");
    // Its app has seen nothing of it: the caller's sidecar may ask another replica.
    assert!(answer.contains("x-tollway-unprocessed: 1\r\n"), "{answer}");

    callee.send_no_policies(stock);
    let answer = ask();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
