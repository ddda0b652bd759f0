//! Callers refused at every inbound listener, at which end and for which reason: sidecar, gateway
//! in front of a sidecar, control plane, and control plane behind a gateway (peering).

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, version};
use tollway_identity::AnyCertificate;
use tollway_testkit::{End, RawClient, TlsRelay, retry_until};
use tollway_wire::v1;
use tollway_wire::v1::peering_client::PeeringClient;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::listeners::forged::{Forge, Stranger, foreigner, strangers};
use crate::listeners::tls_listener::{H2, HTTP1, TlsListener, West, count};
use tollway_tests::network::{CONTROL, Network, PATIENCE, STOCK, metric, tollway, until_status};
use tollway_tests::pki::showing;
use tollway_tests::scripted_app::{App, Script};
use tollway_tests::tls_client::{Impostor, Takeover, call, dial, trusting};

#[test]
fn callers_with_a_wrong_certificate_are_refused_at_every_listener() {
    let west = West::start();
    let mut callers = strangers("web", &west.network.authority());
    callers.push(Stranger {
        name: "a network that is not joined",
        shown: foreigner("web"),
        reason: "belongs to the trust domain north.tollway, which is not known here",
    });
    for listener in west.listeners() {
        let accepted = listener.call(west.honest("web", &listener));
        assert!(accepted.is_ok(), "an honest caller at the {}: {accepted:?}", listener.name);
        for Stranger { name, shown, reason } in &callers {
            let before = count(&listener.judge.log(), reason);
            let answer = listener.call(trusting(Some(Arc::clone(shown)), listener.alpn));
            let reported =
                answer.expect_err(&format!("{name} was accepted at the {}", listener.name));
            // What the caller had sent by then the listener leaves unread, so that a reset may overtake
            // the alert; why it was refused the listener's own log has in any case.
            let is_refusal =
                reported.contains("received fatal alert") || reported.contains("Connection reset");
            assert!(is_refusal, "{name} at the {}: {reported}", listener.name);
            listener.check_log(name, reason, before);
        }
        let accepted = listener.call(west.honest("web", &listener));
        assert!(accepted.is_ok(), "an honest caller after all: {accepted:?}");
    }
    assert!(metric(&west.stock, "tollway_tls_handshake_failures_total") >= 16);
}

#[test]
fn callers_without_a_certificate_are_refused_or_may_only_join() {
    let west = West::start();
    for listener in &west.listeners()[..2] {
        let reported = listener.call(trusting(None, listener.alpn)).unwrap_err();
        assert!(reported.contains("demands a certificate"), "{}: {reported}", listener.name);
        listener.check_log("nobody", "peer sent no certificates", 0);
    }
    for listener in &west.listeners()[2..] {
        let refused = follow(&west, listener, trusting(None, H2));
        assert_eq!(refused.code(), Code::Unauthenticated, "{}: {refused}", listener.name);
        assert!(refused.message().contains("this needs a certificate"), "{refused}");
    }
}

#[test]
fn plain_text_is_refused_at_every_listener() {
    let west = West::start();
    for listener in west.listeners() {
        for text in ["GET / HTTP/1.1\r\nhost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\0"]
        {
            // Longer than any record header, so that no reader waits for the rest of one.
            let padded = format!("{text}{}", "\r\n".repeat(32));
            let answer = RawClient::exchange(listener.address, padded, PATIENCE).unwrap();
            assert_ne!(answer.end, End::TimedOut, "{text:?} at the {}", listener.name);
            // At most an alert: 21 is its record type.
            let is_alert = answer.bytes.first().is_none_or(|first| *first == 21);
            assert!(is_alert && answer.bytes.len() <= 7, "{}: {answer:?}", listener.name);
        }
    }
}

#[test]
fn callees_refuse_names_that_are_not_their_own() {
    let west = West::start();
    for listener in [&west.listeners()[0], &west.listeners()[2]] {
        for name in [
            "orders.default.west.mesh",
            "stock.default.east.mesh",
            "control.east.mesh",
            "other.stock.default.west.mesh",
            "example.org",
        ] {
            let reported = listener.call_as(name, west.honest_for_any(listener)).unwrap_err();
            let says = "does not have the name that was dialled";
            assert!(reported.contains(says), "{name} at the {}: {reported}", listener.name);
        }
        let mut nameless = (*west.honest_for_any(listener)).clone();
        nameless.enable_sni = false;
        assert!(listener.call(Arc::new(nameless)).is_err(), "no name at the {}", listener.name);
        assert!(listener.call(west.honest("web", listener)).is_ok());
    }
}

/// The harm: a workload speaks to an app past what its sidecar reads and rewrites: in another protocol, or
/// through a tunnel.
#[test]
fn an_app_of_http_is_reached_by_no_other_protocol() {
    const FORGED: &str = "spiffe://west.tollway/ns/default/admin";
    let west = West::start();
    let listener = &west.listeners()[0];
    let send = |config: Arc<ClientConfig>, request: &str| {
        call(dial(listener.address, PATIENCE), STOCK, config, request.as_bytes())
    };
    let with = |alpn: &[&[u8]]| {
        let mut config = (*west.honest_for_any(listener)).clone();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    };
    let raw = format!("GET /raw HTTP/1.1\r\nhost: x\r\nx-tollway-caller: {FORGED}\r\n\r\n");
    for alpn in [&b"tollway-tcp/1"[..], b"http/1.0", b"foo"] {
        let answer = send(with(&[alpn]), &raw);
        assert!(answer.is_err(), "{}: {answer:?}", alpn.escape_ascii());
    }
    let answer = send(with(&[H2]), &raw);
    assert!(!answer.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1")), "no HTTP/1.1 in HTTP/2");
    assert!(!west.app.was_sent("/raw"), "it reaches the app");
    let shown = Forge::workload("web", "west").sign(&west.network.authority());
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&version::TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(AnyCertificate::new(&default_provider()));
    let old = Arc::new(showing(builder, Some(shown), HTTP1));
    assert!(send(old, &raw).is_err(), "TLS 1.2 is accepted");
    assert!(!west.app.was_sent("/raw"), "it reaches the app");
    let config = || with(&[HTTP1]);
    for head in [
        "CONNECT web:80 HTTP/1.1\r\nhost: web:80\r\n\r\n",
        "CONNECT stock.default.west.mesh:80 HTTP/1.1\r\nhost: stock.default.west.mesh:80\r\n\r\n",
        "GET /h2c HTTP/1.1\r\nhost: stock.default.west.mesh\r\nconnection: upgrade, http2-settings\r\n\
         upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let answer = send(config(), &format!("{head}behind it {FORGED}"));
        let answer = String::from_utf8_lossy(&answer.unwrap_or_default()).into_owned();
        assert!(!answer.starts_with("HTTP/1.1 101"), "{head}: {answer}");
        assert!(!answer.starts_with("HTTP/1.1 200") || head.contains("/h2c"), "{head}: {answer}");
        assert!(!west.app.was_sent("behind it"), "{head} makes a tunnel");
    }
    assert!(!west.app.was_sent(FORGED), "the app reads a forged caller");
    assert!(send(config(), "GET /own HTTP/1.1\r\nhost: stock.default.west.mesh\r\n\r\n").is_ok());
    assert!(west.app.was_sent("/own"));
}

/// Calls the peering service as a control plane of a joined network would.
fn follow(west: &West, listener: &TlsListener<'_>, config: Arc<ClientConfig>) -> tonic::Status {
    let relay = TlsRelay::start(listener.address, CONTROL, config).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", relay.address())).unwrap();
        let mut client = PeeringClient::new(endpoint.connect().await.unwrap());
        let request = v1::FollowRequest { request: None };
        client.follow(tokio_stream::once(request)).await
    });
    match answer {
        Ok(_) => panic!("{} lets anybody follow {}", listener.name, west.network.name),
        Err(status) => status,
    }
}

#[test]
fn peering_takes_no_workload_for_a_control_plane() {
    let west = West::start();
    for listener in &west.listeners()[2..] {
        let refused = follow(&west, listener, west.honest("web", listener));
        assert_eq!(refused.code(), Code::PermissionDenied, "{}: {refused}", listener.name);
        let says = "this is for control planes of joined networks; the certificate is \
                    spiffe://west.tollway/ns/default/web";
        assert!(refused.message().contains(says), "{refused}");
        // The name alone makes no control plane: its identity is not the one.
        let mut named = Forge::workload("web", "west");
        named.dns.push(CONTROL.to_owned());
        let shown = named.sign(&west.network.authority());
        let reported = listener.call(trusting(Some(shown), H2)).unwrap_err();
        assert!(reported.contains("names are not acceptable"), "{}: {reported}", listener.name);
    }
}

/// Calls `stock.default.west` through `api` until the answer names the reason.
#[track_caller]
fn check_not_taken_in(api: SocketAddr, who: &str, reason: &str) {
    let request = "GET /v1.0/invoke/stock.default.west/method/x HTTP/1.1\r\nhost: localhost\r\n\
                   connection: close\r\n\r\n";
    let mut last = String::new();
    let said = retry_until(PATIENCE, reason, || {
        last = RawClient::exchange(api, request, PATIENCE).unwrap().text();
        assert!(!last.contains("TAKEN IN"), "{who} was believed: {last}");
        last.contains(reason).then_some(())
    });
    assert!(said.is_ok(), "{who}: no `{reason}` in {last}");
    assert!(last.starts_with("HTTP/1.1 503 "), "{who}: {last}");
}

/// The impostor has the workload's address: directly, and behind the network's gateway.
#[test]
fn callees_with_a_wrong_certificate_are_not_called() {
    let west = Network::start("west");
    let east = Network::start("east");
    let (_west_gateway, _east_gateway) = (west.gateway(), east.gateway());
    east.join(&west);
    let app = App::start(Script::new());
    let impostor = Impostor::start(H2);
    let place = impostor.address.to_string();
    let _stock = west.sidecar("stock", &["--app-port", &app.port(), "--advertise", &place]);
    let (near, far) = (west.sidecar("web", &[]), east.sidecar("web", &[]));
    let authority = west.authority();
    let mut callees = strangers("stock", &authority);
    callees.push(Stranger {
        name: "another app",
        shown: Forge::workload("evil", "west").sign(&authority),
        reason: "the peer is spiffe://west.tollway/ns/default/evil, \
                 expected was spiffe://west.tollway/ns/default/stock",
    });
    callees.push(Stranger {
        name: "another app under this name",
        shown: {
            let mut forge = Forge::workload("evil", "west");
            forge.dns.push(STOCK.to_owned());
            forge.sign(&authority)
        },
        reason: "may not carry the name `stock.default.west.mesh`",
    });
    callees.push(Stranger {
        name: "a network that is not joined",
        shown: foreigner("stock"),
        reason: "the peer is spiffe://north.tollway/ns/default/stock",
    });
    for Stranger { name, shown, reason } in callees {
        impostor.show(Some(shown));
        for caller in [&near, &far] {
            check_not_taken_in(caller.port("http").unwrap(), name, reason);
        }
    }
    impostor.show(None);
    for (caller, reason) in [(&near, "TLS failed"), (&far, "ERR_GATEWAY_UPSTREAM")] {
        check_not_taken_in(caller.port("http").unwrap(), "plain text", reason);
    }
    // An honest one in its place is called: nothing but the certificates was wrong before.
    impostor.show(Some(Forge::workload("stock", "west").sign(&authority)));
    for caller in [&near, &far] {
        let request = "GET /v1.0/invoke/stock.default.west/method/x HTTP/1.1\r\n\
                       host: localhost\r\n\r\n";
        // It has no HTTP/2, which shows after the handshake.
        until_status(caller.port("http").unwrap(), request, 502);
    }
}

#[test]
fn control_planes_with_a_wrong_certificate_are_not_believed() {
    let (west, east) = (Network::start("west"), Network::start("east"));
    let impostor = Impostor::start(H2);
    let place = impostor.address.to_string();
    let authority = west.authority();
    let control = || {
        let mut forge = Forge::workload("control", "west");
        forge.uris = vec!["spiffe://west.tollway/ns/tollway/control".into()];
        forge.dns = vec![CONTROL.into(), "control.tollway.west.mesh".into()];
        forge
    };
    // By a workload with a token.
    impostor.show(Some(control().sign(&authority)));
    let token = String::from_utf8(west.command(&["token", "create"], b"")).unwrap();
    let mut sidecar = tollway()
        .env("TOLLWAY_TOKEN", token.trim())
        .args(["sidecar", "--app-id", "web", "--control", &place])
        .args(["--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
        .args(["--outbound-listen", "127.0.0.1:0", "--inbound-listen", "127.0.0.1:0"])
        .args(["--admin-listen", "127.0.0.1:0"])
        .start()
        .unwrap();
    assert!(!sidecar.wait(PATIENCE).unwrap().success());
    let log = sidecar.log();
    assert!(log.contains("is not to be trusted"), "{log}");
    assert!(log.contains("the join token names another root"), "{log}");
    // By the control plane of a network that joins: the bundle leads to the impostor.
    let _gateways = (west.gateway_at(&place), east.gateway());
    let bundle = west.join_bundle();
    let another_root = "the join token names another root";
    for (who, shown, reason) in [
        ("a workload", Forge::workload("web", "west").sign(&authority), another_root),
        ("not joined", foreigner("control"), another_root),
        ("rootless", control().sign(&authority), another_root),
    ] {
        impostor.show(Some(shown));
        let reported = east.failing_command(&["join", "accept", "-"], &bundle);
        assert!(reported.contains(reason), "{who}: {reported}");
        assert!(reported.contains(&place), "{who}: {reported}");
    }
    assert_eq!(east.command(&["join", "list", "--json"], b""), b"[]\n");
}

/// After the join no token helps any more: the joined network's root decides.
#[test]
fn an_impostor_at_a_joined_networks_gateway_is_not_followed() {
    let (west, east) = (Network::start("west"), Network::start("east"));
    let way = Takeover::start();
    let gateways = (west.gateway_at(&way.address.to_string()), east.gateway());
    way.lead_to(gateways.0.port("gateway").unwrap());
    east.join(&west);
    let reachable = |expected: bool| {
        retry_until(PATIENCE, "the state of the link", || {
            let joins = east.command(&["join", "list", "--json"], b"");
            let joins: serde_json::Value = serde_json::from_slice(&joins).unwrap();
            (joins[0]["reachable"] == expected).then_some(())
        })
        .unwrap();
    };
    reachable(true);
    let impostor = Impostor::start(H2);
    let authority = west.authority();
    let mut shown = strangers("control", &authority);
    shown.push(Stranger {
        name: "a workload",
        shown: Forge::workload("web", "west").sign(&authority),
        reason: "the peer is spiffe://west.tollway/ns/default/web",
    });
    shown.retain(|stranger| matches!(stranger.name, "a workload" | "two identities"));
    shown.push(Stranger {
        name: "a network that is not joined",
        shown: foreigner("control"),
        reason: "the peer is spiffe://north.tollway/ns/default/control",
    });
    for Stranger { name, shown, reason } in shown {
        impostor.show(Some(shown));
        way.lead_to(impostor.address);
        let said =
            retry_until(PATIENCE, name, || east.control.log().contains(reason).then_some(()));
        assert!(said.is_ok(), "{name}: no `{reason}` in\n{}", east.control.log());
    }
    reachable(false);
    way.lead_to(gateways.0.port("gateway").unwrap());
    reachable(true);
}
