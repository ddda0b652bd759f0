//! Addresses that lead inside, stated by those who may not: a workload with any token, and the
//! operator of a joined network.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::net::SocketAddr;

use support::{Joined, Member, Network, Registration, Relay, Watch};
use tokio_stream::wrappers::ReceiverStream;
use tollway_control::Options;
use tollway_identity::{Expected, client_config};
use tollway_model::ErrorCode;
use tollway_wire::v1;
use tollway_wire::v1::register_request::Request as Announce;
use tollway_wire::v1::registry_client::RegistryClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// What the control plane answers to a registration over `channel`.
async fn register(channel: Channel, announcement: Announce) -> Result<(), Status> {
    let (requests, outgoing) = tokio::sync::mpsc::channel(1);
    let request = v1::RegisterRequest { request: Some(announcement) };
    requests.send(request).await.unwrap();
    let mut client = RegistryClient::new(channel);
    let mut answers = client.register(ReceiverStream::new(outgoing)).await?.into_inner();
    answers.message().await.map(|answer| assert!(answer.is_some()))
}

fn at(member: &Member, address: &str) -> Announce {
    let address: SocketAddr = address.parse().unwrap();
    let workload = support::workload(member, 1, true);
    Announce::Workload(v1::Workload { address: Some(address.into()), ..workload })
}

#[track_caller]
fn check_refused(refused: Result<(), Status>, texts: &[&str]) {
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    assert_eq!(tollway_wire::code_of(&refused), Some(ErrorCode::AddressRefused));
    assert_eq!(ErrorCode::AddressRefused.word(), "ERR_ADDRESS_REFUSED");
    for text in texts {
        assert!(refused.message().contains(text), "{refused:?} lacks {text}");
    }
}

#[tokio::test]
async fn a_workload_cannot_lead_the_gateway_to_an_address_inside() {
    let mut west = Network::start("west").await;
    let evil = west.member("evil.lowly", "pivot").await;
    for address in [
        "10.0.0.5:6379",
        "192.0.2.9:50002",
        "169.254.169.254:80",
        "[fd00::1]:6379",
        "[64:ff9b::10.0.0.5]:6379",
        "[2002:a00:5::1]:6379",
    ] {
        let refused = register(evil.channel().await, at(&evil, address)).await;
        check_refused(refused, &["127.0.0.1", "--advertise", "--workload-addresses"]);
    }
    for address in
        ["0.0.0.0:6379", "[::]:6379", "[::ffff:0.0.0.0]:1", "224.0.0.1:80", "[ff02::1]:1"]
    {
        let refused = register(evil.channel().await, at(&evil, address)).await;
        check_refused(refused, &["not the address of one host"]);
    }
    assert!(west.admin.services().await.unwrap().services.is_empty());
    // Its own machine, whatever the family of the address.
    for address in ["127.0.0.1:50002", "127.0.0.9:50002", "[::1]:50002"] {
        register(evil.channel().await, at(&evil, address)).await.unwrap();
    }
}

#[tokio::test]
async fn an_operator_may_name_where_workloads_are() {
    let allow = |options: &mut Options| {
        options.workload_addresses = vec!["10.0.0.0/24".parse().unwrap()];
    };
    let mut west = Network::start_with("west", allow).await;
    let stock = west.member("stock", "a").await;
    register(stock.channel().await, at(&stock, "10.0.0.5:50002")).await.unwrap();
    let refused = register(stock.channel().await, at(&stock, "10.0.1.5:50002")).await;
    check_refused(refused, &["--workload-addresses 10.0.1.5/32"]);
}

/// The peer of such a connection is the gateway, which may be on the control plane's machine.
#[tokio::test]
async fn a_registration_through_a_gateway_does_not_state_the_gateways_machine() {
    let mut west = Network::start("west").await;
    let evil = west.member("evil", "pivot").await;
    let relay = Relay::start(west.address).await;
    let own = evil.credentials.spiffe_id();
    let expected = Expected::control(&support::label("west"), &own.trust_domain);
    let config = client_config(&evil.credentials, &expected, support::ALPN).unwrap();
    let name = expected.server_name().unwrap();
    let channel = support::connect(relay.address, name, config).await.unwrap();
    let refused = register(channel, at(&evil, "127.0.0.1:6379")).await;
    check_refused(refused, &["through a gateway", "--workload-addresses 127.0.0.1/32"]);
}

#[tokio::test]
async fn a_gateway_states_addresses_of_hosts() {
    let mut west = Network::start("west").await;
    let gateway = west.gateway("gateway-1").await;
    let announce = |outside: &str, inside: Option<&str>| {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap().into();
        let inside = inside.map(address).into_iter().collect();
        let outside = vec![address(outside)];
        let instance = "gateway-1".into();
        Announce::Gateway(v1::Gateway { instance, outside, inside, ..Default::default() })
    };
    for (outside, inside) in [("0.0.0.0:1", None), ("192.0.2.1:1", Some("[ff02::1]:1"))] {
        let refused = register(gateway.channel().await, announce(outside, inside)).await;
        check_refused(refused, &["not the address of one host"]);
    }
    // What the operator's NAT makes of it.
    let taken = announce("192.0.2.1:15443", Some("10.0.0.9:15444"));
    register(gateway.channel().await, taken).await.unwrap();
}

/// Has east state further gateways, and waits until west has heard of it.
async fn state_gateways(nets: &mut Joined, places: &[&str]) {
    let mut held = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let instance = format!("further-{index}");
        let member = nets.east.gateway(&instance).await;
        let mut registration = Registration::open(&member).await.unwrap();
        let outside = vec![place.parse::<SocketAddr>().unwrap().into()];
        let gateway = v1::Gateway { instance, outside, ..Default::default() };
        registration.send(Announce::Gateway(gateway)).await;
        registration.registered().await.unwrap();
        held.push(registration.keep_alive());
    }
    // What is stated later is taken later.
    let stock = nets.east.member("stock", "a").await;
    held.push(Registration::workload(&stock, 1).await.keep_alive());
    let caller = nets.west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    let via = nets.west.admin.joins().await.unwrap()[0].gateways.len();
    while watch.known.values().all(|state| !state.starts_with("remote x1")) {
        watch.next().await.unwrap();
    }
    drop(held);
    assert!(via > 0);
}

fn places(joins: &[v1::JoinStatus]) -> Vec<SocketAddr> {
    let read = |address| tollway_wire::address(Some(address), "gateways").unwrap();
    joins[0].gateways.iter().map(read).collect()
}

#[tokio::test]
async fn a_joined_network_cannot_move_its_gateways_unless_it_may() {
    let mut nets = Joined::start().await;
    state_gateways(&mut nets, &["127.0.0.1:6379", "203.0.113.7:15443"]).await;
    let joins = nets.west.admin.joins().await.unwrap();
    assert_eq!(places(&joins), [nets.east_relay.address]);
    assert!(!joins[0].follow_gateways);
    // The other side has accepted no bundle; what was presented stays there, too.
    assert_eq!(places(&nets.east.admin.joins().await.unwrap()), [nets.west_relay.address]);
}

#[tokio::test]
async fn a_joined_network_that_may_move_its_gateways_does_not_move_them_inside() {
    let mut east = Network::start("east").await;
    let mut west = Network::start_with("west", |options| options.peer_addresses = Vec::new()).await;
    let (east_relay, east_gateway) = east.open_gateway().await;
    let (west_relay, west_gateway) = west.open_gateway().await;
    let bundle = east.admin.export_join(0).await.unwrap();
    let accept = v1::AcceptJoinRequest { bundle, follow_gateways: true };
    west.admin.accept_join_with(accept).await.unwrap();
    let gateways = (east_gateway, west_gateway);
    let mut nets = Joined { east, west, east_relay, west_relay, gateways };
    let inside = ["127.0.0.1:6379", "10.0.0.5:6379", "169.254.169.254:80", "203.0.113.7:15443"];
    state_gateways(&mut nets, &inside).await;
    let joins = nets.west.admin.joins().await.unwrap();
    // The operator's own bundle was on loopback: that one stays.
    let mut expected = vec![nets.east_relay.address, "203.0.113.7:15443".parse().unwrap()];
    let mut known = places(&joins);
    expected.sort_unstable();
    known.sort_unstable();
    assert_eq!(known, expected);
    assert!(joins[0].follow_gateways);
}

#[tokio::test]
async fn a_network_that_presents_its_bundle_does_not_lead_inside() {
    let mut east = Network::start_with("east", |options| options.peer_addresses = Vec::new()).await;
    let mut west = Network::start("west").await;
    let (_east_relay, _east_gateway) = east.open_gateway().await;
    let (_west_relay, _west_gateway) = west.open_gateway().await;
    let bundle = east.admin.export_join(0).await.unwrap();
    let refused = west.admin.accept_join(bundle).await.unwrap_err().to_string();
    assert!(refused.contains("is a loopback address"), "{refused}");
    assert!(refused.contains("--peer-addresses 127.0.0.0/8"), "{refused}");
    assert!(east.admin.joins().await.unwrap().is_empty());
    assert!(west.admin.joins().await.unwrap().is_empty());
}

/// A bundle that names this address as the gateway of east.
async fn bundle_with(east: &mut Network, address: SocketAddr) -> Vec<u8> {
    let member = east.gateway("gateway-1").await;
    let mut registration = Registration::open(&member).await.unwrap();
    let outside = vec![address.into()];
    let gateway = v1::Gateway { instance: "gateway-1".into(), outside, ..Default::default() };
    registration.send(Announce::Gateway(gateway)).await;
    registration.registered().await.unwrap();
    let _gateway = registration.keep_alive();
    east.admin.export_join(0).await.unwrap()
}

#[tokio::test]
async fn a_bundle_does_not_name_the_own_gateway() {
    let mut east = Network::start("east").await;
    let mut west = Network::start("west").await;
    let (west_relay, _west_gateway) = west.open_gateway().await;
    let bundle = bundle_with(&mut east, west_relay.address).await;
    let refused = west.admin.accept_join(bundle).await.unwrap_err().to_string();
    assert!(refused.contains("is an address of this network itself"), "{refused}");
}

/// The harm: who makes the bundle has this network's gateways and sidecars connect to what only this
/// machine reaches, or to the metadata server of its cloud.
#[tokio::test]
async fn a_bundle_leads_neither_to_the_own_machine_nor_to_its_link() {
    let mut east = Network::start("east").await;
    let elsewhere = |options: &mut Options| {
        options.listen = "0.0.0.0:0".parse().unwrap();
        options.peer_addresses = Vec::new();
    };
    let mut west = Network::start_with("west", elsewhere).await;
    let (_relay, _gateway) = west.open_gateway().await;
    for (address, kind, range) in [
        ("127.0.0.1:6379", "a loopback address", "127.0.0.0/8"),
        ("[::1]:6379", "a loopback address", "::1/128"),
        ("169.254.169.254:80", "a link-local address", "169.254.169.254/32"),
    ] {
        let bundle = bundle_with(&mut east, address.parse().unwrap()).await;
        let refused = west.admin.accept_join(bundle).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "a gateway of the network east is refused: {address} is {kind}; if that is meant, start the control plane that refuses it with --peer-addresses {range}"
            )
        );
        assert!(west.admin.joins().await.unwrap().is_empty());
    }
}
