//! Refused callers, and the reason in each refusal.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::time::Duration;

use support::{
    Joined, KeepAliveTask, Network, Registration, Watch, bootstrap, enroll, issue, label,
    subscribed, workload,
};
use tollway_control::{BundleError, ControlPlane, JoinBundle, Options, StartError};
use tollway_identity::JoinToken;
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::identity_client::IdentityClient;
use tollway_wire::v1::peering_client::PeeringClient;
use tollway_wire::v1::register_request::Request as Announce;
use tonic::Code;

#[tokio::test]
async fn a_token_that_was_never_made_is_refused() {
    let mut west = Network::start("west").await;
    let known = west.token(Scope::Any(v1::AnyWorkload {})).await;
    // Same network and root, other id and secret.
    let root = west_root(&mut west).await;
    let forged = JoinToken::generate(&label("west"), &root).unwrap();
    assert_eq!(forged.pin(), known.pin());
    let refused = enroll(west.address, &forged, &west.own("stock"), "a").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(
        refused.message(),
        "the join token is not known here; make a new one with `tollway token create`"
    );
}

#[tokio::test]
async fn an_oversized_message_is_not_read() {
    let mut west = Network::start("west").await;
    let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
    let mut client = IdentityClient::new(bootstrap(west.address, &token).await);
    let token = "x".repeat(64 << 10);
    let refused =
        client.check(v1::CheckRequest { token, ..v1::CheckRequest::default() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
}

#[tokio::test]
async fn a_token_with_another_secret_is_refused() {
    let mut west = Network::start("west").await;
    let parts =
        |token: &JoinToken| token.to_string().split('.').map(str::to_owned).collect::<Vec<_>>();
    let (one, two) = (
        west.token(Scope::Any(v1::AnyWorkload {})).await,
        west.token(Scope::Any(v1::AnyWorkload {})).await,
    );
    let mut mixed = parts(&one);
    mixed[3].clone_from(&parts(&two)[3]);
    let mixed: JoinToken = mixed.join(".").parse().unwrap();
    let refused = enroll(west.address, &mixed, &west.own("stock"), "a").await.unwrap_err();
    assert_eq!(
        refused.message(),
        "the join token is not known here; make a new one with `tollway token create`"
    );
}

#[tokio::test]
async fn an_expired_token_is_refused() {
    let mut west = Network::start("west").await;
    let lasting = west.token(Scope::Any(v1::AnyWorkload {})).await;
    enroll(west.address, &lasting, &west.own("stock"), "a").await.unwrap();
    let request = v1::CreateTokenRequest {
        scope: Some(Scope::Any(v1::AnyWorkload {})),
        ttl_ms: 1,
        uses: None,
    };
    let created = west.admin.create_token(request).await.unwrap();
    support::until_unix_ms(created.expires_at_unix_ms).await;
    let token: JoinToken = created.token.parse().unwrap();
    let refused = enroll(west.address, &token, &west.own("stock"), "a").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().starts_with("the join token expired "), "{refused:?}");
}

#[tokio::test]
async fn a_token_is_good_for_its_scope_only() {
    let mut west = Network::start("west").await;
    let scope = v1::AppScope { namespace: "shop".into(), app: "stock".into() };
    let token = west.token(Scope::App(scope)).await;
    enroll(west.address, &token, &west.own("stock.shop"), "a").await.unwrap();
    for other in ["orders.shop", "stock", "gateway.tollway", "control.tollway"] {
        let service = west.own(other);
        let refused = enroll(west.address, &token, &service, "a").await.unwrap_err();
        assert_eq!(
            refused.message(),
            format!(
                "the join token is not good for {service}; make one that is with `tollway token create`"
            )
        );
    }
    let any = west.token(Scope::Any(v1::AnyWorkload {})).await;
    assert!(enroll(west.address, &any, &west.own("gateway.tollway"), "g").await.is_err());
    let foreign = enroll(west.address, &any, &support::name("stock.shop.east"), "a").await;
    assert!(foreign.unwrap_err().message().contains("issues names of the network west only"));
}

#[tokio::test]
async fn a_certificate_renews_itself_and_nothing_else() {
    let mut west = Network::start("west").await;
    let stock = west.member("stock", "a").await;
    let channel = stock.channel().await;
    let renewed = issue(channel.clone(), &west.own("stock"), "a", String::new()).await.unwrap();
    assert_eq!(renewed.spiffe_id(), stock.credentials.spiffe_id());
    for (service, instance) in [("orders", "a"), ("stock", "b"), ("gateway.tollway", "a")] {
        let refused =
            issue(channel.clone(), &west.own(service), instance, String::new()).await.unwrap_err();
        assert!(refused.message().contains("renews only itself"), "{refused:?}");
    }
    let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
    let nobody = bootstrap(west.address, &token).await;
    let refused = issue(nobody, &west.own("stock"), "a", String::new()).await.unwrap_err();
    assert_eq!(refused.message(), "neither a token nor a certificate was shown");
}

#[tokio::test]
async fn a_workload_registers_only_its_own_name() {
    let mut west = Network::start("west").await;
    let (stock, orders) = (west.member("stock", "a").await, west.member("orders", "a").await);
    let mut registration = Registration::open(&stock).await.unwrap();
    registration.send(Announce::Workload(workload(&orders, 1, true))).await;
    let refused = registration.registered().await.unwrap_err();
    assert_eq!(
        refused.message(),
        "stock.default.west (instance a) may not register orders.default.west (instance a)"
    );
    let mut registration = Registration::open(&stock).await.unwrap();
    let other = v1::Workload { instance: "b".into(), ..workload(&stock, 1, true) };
    registration.send(Announce::Workload(other)).await;
    let refused = registration.registered().await.unwrap_err();
    assert!(refused.message().contains("may not register"), "{refused:?}");
    let mut registration = Registration::open(&stock).await.unwrap();
    let gateway = v1::Gateway {
        instance: "a".into(),
        outside: vec![west.address.into()],
        inside: vec![west.address.into()],
        ..Default::default()
    };
    registration.send(Announce::Gateway(gateway)).await;
    let refused = registration.registered().await.unwrap_err();
    assert!(refused.message().contains("may not register as a gateway"), "{refused:?}");
    assert!(west.admin.services().await.unwrap().services.is_empty());
}

#[tokio::test]
async fn a_sidecar_does_not_see_the_whole_network() {
    let mut west = Network::start("west").await;
    let stock = west.member("stock", "a").await;
    let open = v1::Open { scope: v1::open::Scope::Network.into(), ..v1::Open::default() };
    let mut watch = Watch::open(&stock, open).await.unwrap();
    let refused = watch.next().await.unwrap_err();
    assert_eq!(
        refused.message(),
        "only a gateway may watch the whole network, and this is stock.default.west"
    );
}

#[tokio::test]
async fn without_a_certificate_nothing_but_joining_is_possible() {
    let mut west = Network::start("west").await;
    let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
    let channel = bootstrap(west.address, &token).await;
    let (_requests, outgoing) = tokio::sync::mpsc::channel::<v1::WatchRequest>(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let mut client = v1::discovery_client::DiscoveryClient::new(channel.clone());
    let refused = client.watch(outgoing).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
    let (_requests, outgoing) = tokio::sync::mpsc::channel::<v1::FollowRequest>(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let refused = PeeringClient::new(channel).follow(outgoing).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused:?}");
}

#[tokio::test]
async fn a_workload_of_a_joined_network_has_no_business_here() {
    let mut nets = Joined::start().await;
    let stranger = nets.east.member("stock", "a").await;
    // Its own control plane trusts west by now, so it can verify west's control plane.
    let fresh = nets.east.member("stock", "a").await;
    let network = label("west");
    let domain = tollway_model::TrustDomain::default_for(&network);
    let expected = tollway_identity::Expected::control(&network, &domain);
    let config =
        tollway_identity::client_config(&fresh.credentials, &expected, support::ALPN).unwrap();
    let channel =
        support::connect(nets.west.address, expected.server_name().unwrap(), config).await.unwrap();
    let mut client = v1::discovery_client::DiscoveryClient::new(channel.clone());
    let (_requests, outgoing) = tokio::sync::mpsc::channel::<v1::WatchRequest>(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let refused = client.watch(outgoing).await.unwrap_err();
    // Its connection was closed after the handshake: no service of west has seen it.
    assert_eq!(refused.message(), "transport error", "{refused:?}");
    let (_requests, outgoing) = tokio::sync::mpsc::channel::<v1::FollowRequest>(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let refused = PeeringClient::new(channel).follow(outgoing).await.unwrap_err();
    assert_ne!(refused.code(), Code::PermissionDenied, "{refused:?}");
    drop(stranger);
}

#[tokio::test]
async fn a_certificate_of_a_network_that_is_not_joined_ends_at_the_handshake() {
    let mut east = Network::start("east").await;
    let mut west = Network::start("west").await;
    let mut stranger = east.member("stock", "a").await;
    stranger.address = west.address;
    // East's control plane is expected there and west's answers: refused by the dialler. In the
    // other direction the outsider expects west, whose roots it does not have.
    assert!(stranger.try_channel().await.is_err());
    let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
    assert!(enroll(west.address, &token, &west.own("stock"), "a").await.is_ok());
}

#[tokio::test]
async fn a_tampered_bundle_is_refused() {
    let mut nets = two_networks().await;
    let bundle = nets.east.admin.export_join(0).await.unwrap();
    let text = String::from_utf8(bundle.clone()).unwrap();
    let gateway = nets.east_relay.address.to_string();
    assert!(text.contains(&gateway));
    let tampered = text.replace(&gateway, "127.0.0.1:9");
    let refused = nets.west.admin.accept_join(tampered.into_bytes()).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the bundle is refused: the bundle was changed after it was signed; export it again and copy it whole"
    );
    assert!(nets.west.admin.joins().await.unwrap().is_empty());
    nets.west.admin.accept_join(bundle).await.unwrap();
}

#[tokio::test]
async fn a_join_secret_admits_one_network_once() {
    let mut nets = two_networks().await;
    let bundle = nets.east.admin.export_join(0).await.unwrap();
    nets.west.admin.accept_join(bundle.clone()).await.unwrap();
    // The same network again changes nothing.
    nets.west.admin.accept_join(bundle.clone()).await.unwrap();
    let mut north = Network::start("north").await;
    let (_relay, _gateway) = north.open_gateway().await;
    let refused = north.admin.accept_join(bundle).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "east refused: the join secret was used already; export a bundle for each network"
    );
    assert!(north.admin.joins().await.unwrap().is_empty());
    assert_eq!(nets.east.admin.joins().await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_expired_bundle_is_refused() {
    let mut nets = two_networks().await;
    let bundle = nets.east.admin.export_join(1).await.unwrap();
    let file: serde_json::Value = serde_json::from_slice(&bundle).unwrap();
    support::until_unix_ms(file["expires_at_unix_ms"].as_u64().unwrap()).await;
    let refused = nets.west.admin.accept_join(bundle).await.unwrap_err().to_string();
    assert!(refused.starts_with("the bundle is refused: the bundle expired "), "{refused}");
}

#[tokio::test]
async fn networks_with_the_same_name_do_not_join() {
    let mut east = Network::start("east").await;
    let (_relay, _gateway) = east.open_gateway().await;
    let bundle = east.admin.export_join(0).await.unwrap();
    let own = east.admin.accept_join(bundle.clone()).await.unwrap_err();
    assert_eq!(
        own.to_string(),
        "the bundle is this network's own (east); accept it in the other network"
    );
    let mut other_east = Network::start("east").await;
    let (_other_relay, _other_gateway) = other_east.open_gateway().await;
    let same_name = other_east.admin.accept_join(bundle.clone()).await.unwrap_err().to_string();
    assert!(same_name.contains("is called like this one"), "{same_name}");
    let mut thief = Network::start_with("west", |options| {
        options.trust_domain = tollway_model::TrustDomain::new("east.tollway").unwrap();
    })
    .await;
    let (_thief_relay, _thief_gateway) = thief.open_gateway().await;
    let same_domain = thief.admin.accept_join(bundle).await.unwrap_err().to_string();
    assert!(same_domain.contains("a trust domain has one network"), "{same_domain}");
}

#[tokio::test]
async fn a_network_without_a_gateway_cannot_join() {
    let mut east = Network::start("east").await;
    let refused = east.admin.export_join(0).await.unwrap_err().to_string();
    assert!(refused.starts_with("no gateway is registered"), "{refused}");
}

#[tokio::test]
async fn a_network_that_was_removed_is_refused_from_then_on() {
    let mut nets = Joined::start().await;
    nets.east.admin.remove_join("west").await.unwrap();
    let deadline = tokio::time::Instant::now() + support::PATIENCE;
    loop {
        let joins = nets.west.admin.joins().await.unwrap();
        if !joins[0].reachable && !joins[0].last_error.is_empty() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{joins:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_store_of_another_network_is_refused() {
    let west = Network::start("west").await;
    let (dir, options, _) = west.stop().await;
    let mut other = Options::new(options.store.clone(), label("east"));
    other.listen = "127.0.0.1:0".parse().unwrap();
    let Err(StartError::Foreign { .. }) = ControlPlane::bind(other).await else {
        panic!("east must not take over west's authority")
    };
    drop(dir);
}

#[tokio::test]
async fn what_is_secret_is_readable_by_the_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let west = Network::start("west").await;
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(west.store()), 0o700);
    assert_eq!(mode(&west.store().join("tollway.store")), 0o600);
    assert_eq!(mode(&west.store().join("admin.sock")), 0o600);
}

#[tokio::test]
async fn a_stream_ends_with_the_certificate_it_was_opened_with() {
    let mut west = Network::start_with("west", |options| {
        options.certificate_ttl = tollway_identity::SHORTEST_TTL;
        options.renewal_grace = Duration::ZERO;
    })
    .await;
    let stock = west.member("stock", "a").await;
    let channel = stock.channel().await;
    let mut watch = Watch::open(&stock, subscribed(0, &["stock"])).await.unwrap();
    let refused = loop {
        if let Err(status) = watch.next().await {
            break status;
        }
    };
    assert_eq!(
        refused.message(),
        "the certificate of this connection has ended; connect with a new one"
    );
    assert!(stock.try_channel().await.is_err() || expired_at_first_call(&stock).await);
    let refused = issue(channel, &west.own("stock"), "a", String::new()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "a connection made before: {refused:?}");
}

/// With TLS 1.3 the dialler may finish before the other side has checked its certificate.
async fn expired_at_first_call(member: &support::Member) -> bool {
    let Ok(channel) = member.try_channel().await else { return true };
    let service = member.credentials.service().clone();
    issue(channel, &service, "a", String::new()).await.is_err()
}

struct Two {
    east: Network,
    west: Network,
    east_relay: support::Relay,
    _kept: (support::Relay, KeepAliveTask, KeepAliveTask),
}

/// East and west with a gateway each, not joined.
async fn two_networks() -> Two {
    let (mut east, mut west) = (Network::start("east").await, Network::start("west").await);
    let (east_relay, east_gateway) = east.open_gateway().await;
    let (west_relay, west_gateway) = west.open_gateway().await;
    Two { east, west, east_relay, _kept: (west_relay, east_gateway, west_gateway) }
}

/// The root of a network, from its bundle.
async fn west_root(west: &mut Network) -> Vec<u8> {
    let (_relay, _gateway) = west.open_gateway().await;
    let bundle = west.admin.export_join(0).await.unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now_unix_ms = u64::try_from(now.as_millis()).unwrap();
    let read: Result<JoinBundle, BundleError> = JoinBundle::verify(&bundle, now_unix_ms);
    read.unwrap().roots[0].to_vec()
}
