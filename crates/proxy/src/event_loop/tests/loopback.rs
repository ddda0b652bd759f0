//! Connections to what the process serves itself.

use crate::upstream::{pools, scale};

use super::pooled::event_loop_of_web;
use super::*;

/// As when one that idled has ended: another is made for the next request, and not before.
#[test]
fn a_connection_within_the_process_is_not_made_without_a_request() {
    let network = Network::new("west");
    let mut event_loop = event_loop_of_web(&network);
    for destination in [Destination::Api, Destination::Callback, Destination::Actors] {
        let EventLoop { cx, conns, plane, .. } = &mut event_loop;
        let upstreams = &mut plane.upstreams;
        scale::scale(cx, conns, upstreams, None, &destination);
        assert_eq!(pools::pool(cx, upstreams, &destination).made(), 0, "{destination:?}");
    }
}

/// An upgrade may be declined, and what this process answers is never left.
#[test]
fn a_request_to_the_own_api_goes_to_no_app_for_the_upgrade_it_offers() {
    let network = Network::new("west");
    let app = AppTarget::at(start_app(), AppProtocol::Http);
    let credentials = network.credentials(&service("stock"), "s-0", &[]);
    let sidecar =
        Running::start(service("stock"), credentials, &[ListenerKind::HttpApi], Some(app), None);
    let request = "GET /v1.0/metadata HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n\
                   upgrade: echo\r\n\r\n";
    let answer = talk(&mut connect(sidecar.addresses[0]), request.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    assert!(answer.contains("ERR_NOT_SERVED") && answer.contains("no API of its own"), "{answer}");
}
