//! Two networks, each with a control plane, joined through relays in place of gateways.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::time::Duration;

use support::{Joined, Network, Registration, Relay, Watch, label, name};
use tollway_model::ProbeSecret;
use tollway_wire::v1;

#[tokio::test]
async fn a_service_is_seen_from_the_other_network_as_a_number() {
    let mut nets = Joined::start().await;
    let caller = nets.west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "unknown service").await;
    let (one, two) =
        (nets.east.member("stock", "one").await, nets.east.member("stock", "two").await);
    let first = Registration::workload(&one, 1).await.keep_alive();
    watch.until("stock.default.east", "remote x1 via 1").await;
    let second = Registration::workload(&two, 2).await.keep_alive();
    watch.until("stock.default.east", "remote x2 via 1").await;
    drop(first);
    watch.until("stock.default.east", "remote x1 via 1").await;
    drop(second);
    watch.until("stock.default.east", "unknown service").await;
}

#[tokio::test]
async fn joining_is_one_command_on_each_side_and_works_both_ways() {
    let mut nets = Joined::start().await;
    let stock = nets.west.member("stock", "a").await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let caller = nets.east.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock"]).await;
    watch.until("stock", "remote x1 via 1").await;
    let east_sees = nets.east.admin.joins().await.unwrap();
    let west_sees = nets.west.admin.joins().await.unwrap();
    assert_eq!(east_sees[0].network, "west");
    assert_eq!((&*west_sees[0].network, west_sees[0].reachable), ("east", true));
}

#[tokio::test]
async fn networks_that_join_one_at_the_same_moment_are_all_joined() {
    let mut hub = Network::start("hub").await;
    let (_relay, _gateway) = hub.open_gateway().await;
    let mut others = Vec::new();
    for name in ["one", "two", "three", "four"] {
        let mut network = Network::start(name).await;
        let gateway = network.open_gateway().await;
        let bundle = hub.admin.export_join(0).await.unwrap();
        others.push((network, gateway, bundle));
    }
    let mut joining = Vec::new();
    for (mut network, gateway, bundle) in others {
        joining.push(tokio::spawn(async move {
            network.admin.accept_join(bundle).await.unwrap();
            (network, gateway)
        }));
    }
    let mut joined = Vec::new();
    for joining in joining {
        joined.push(joining.await.unwrap());
    }
    let known = hub.admin.joins().await.unwrap();
    assert_eq!(known.len(), 4, "{known:?}");
}

#[tokio::test]
async fn networks_that_accept_each_other_are_joined_once() {
    let (mut east, mut west) = (Network::start("east").await, Network::start("west").await);
    let (_east_relay, _east_gateway) = east.open_gateway().await;
    let (_west_relay, _west_gateway) = west.open_gateway().await;
    let of_east = east.admin.export_join(0).await.unwrap();
    let of_west = west.admin.export_join(0).await.unwrap();
    let (in_west, in_east) =
        tokio::join!(west.admin.accept_join(of_east), east.admin.accept_join(of_west));
    in_west.unwrap();
    in_east.unwrap();
    assert_eq!(west.admin.joins().await.unwrap().len(), 1);
    assert_eq!(east.admin.joins().await.unwrap().len(), 1);
}

#[tokio::test]
async fn trust_reaches_data_planes_when_networks_join_and_part() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "unknown network").await;
    watch.until_quiet().await;
    let domains = |watch: &Watch| {
        let trust = watch.trust.as_ref().unwrap();
        trust.bundles.iter().map(|b| b.trust_domain.clone()).collect::<Vec<_>>()
    };
    assert_eq!(domains(&watch), ["west.tollway"]);
    let before = watch.trust.as_ref().unwrap().revision;

    let mut east = Network::start("east").await;
    let (_east_relay, _east_gateway) = east.open_gateway().await;
    let (_west_relay, _west_gateway) = west.open_gateway().await;
    let bundle = east.admin.export_join(0).await.unwrap();
    west.admin.accept_join(bundle).await.unwrap();
    watch.until("stock.default.east", "unknown service").await;
    assert_eq!(domains(&watch), ["west.tollway", "east.tollway"]);
    assert!(watch.trust.as_ref().unwrap().revision > before);

    west.admin.remove_join("east").await.unwrap();
    watch.until("stock.default.east", "unknown network").await;
    watch.until_quiet().await;
    assert_eq!(domains(&watch), ["west.tollway"]);
    assert!(west.admin.joins().await.unwrap().is_empty());
    let refused = west.admin.remove_join("east").await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the network east is not joined; `tollway join list` shows those that are"
    );
}

#[tokio::test]
async fn a_lost_network_is_withdrawn_and_comes_back_by_itself() {
    let mut nets = Joined::start().await;
    let stock = nets.east.member("stock", "a").await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let caller = nets.west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;

    nets.east_relay.cut();
    let cut = tokio::time::Instant::now();
    watch.until("stock.default.east", "unreachable network").await;
    assert!(cut.elapsed() >= Duration::from_millis(700), "{:?}", cut.elapsed());
    let joins = nets.west.admin.joins().await.unwrap();
    assert!(!joins[0].reachable);
    assert!(!joins[0].last_error.is_empty());

    nets.east_relay.restore(nets.east.address);
    watch.until("stock.default.east", "remote x1 via 1").await;
    // First the route was there, then the control plane answered.
    let back = tokio::time::Instant::now();
    while !nets.west.admin.joins().await.unwrap()[0].last_error.is_empty() {
        assert!(back.elapsed() < support::PATIENCE, "it is not heard");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_network_without_its_control_plane_stays_while_its_gateways_answer() {
    let Joined { mut east, mut west, east_relay, west_relay, gateways } = Joined::start().await;
    let stock = east.member("stock", "a").await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;

    // The control plane goes, and what answers at its gateway is the gateway alone.
    let secrets = east_relay.probe_secrets();
    let (_dir, _options, _address) = east.stop().await;
    east_relay.restore(gateway_alone(secrets.clone()).await);
    let away = tokio::time::Instant::now();
    while west.admin.joins().await.unwrap()[0].last_error.is_empty() {
        assert!(away.elapsed() < support::PATIENCE, "nobody noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Without an answer of the gateway the network is lost within this time.
    tokio::time::sleep(support::timing().unreachable_after * 2).await;
    let joins = west.admin.joins().await.unwrap();
    assert!(joins[0].reachable, "{}", joins[0].last_error);

    // The gateway goes too: now the network is lost, and only now.
    east_relay.cut();
    watch.until("stock.default.east", "unreachable network").await;
    assert!(!west.admin.joins().await.unwrap()[0].reachable);
    assert!(away.elapsed() >= support::timing().unreachable_after * 3, "{:?}", watch.log);

    // It comes back before its control plane does.
    east_relay.restore(gateway_alone(secrets.clone()).await);
    watch.until("stock.default.east", "remote x1 via 1").await;
    drop((west_relay, gateways));
}

/// A gateway that can only answer probes.
async fn gateway_alone(secrets: Vec<ProbeSecret>) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let secrets = secrets.clone();
            tokio::spawn(async move {
                let mut hello = [0; 4096];
                let length = stream.read(&mut hello).await.unwrap();
                // Connections to the control plane lead nowhere.
                if let Some(answer) = support::answer_probe(&hello[..length], &secrets) {
                    stream.write_all(&answer).await.unwrap();
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn what_happened_while_a_network_was_away_is_caught_up() {
    let mut nets = Joined::start().await;
    let (stock, orders) =
        (nets.east.member("stock", "a").await, nets.east.member("orders", "a").await);
    let stock_registration = Registration::workload(&stock, 1).await.keep_alive();
    let caller = nets.west.member("caller", "a").await;
    let both = ["stock.default.east", "orders.default.east"];
    let mut watch = Watch::services(&caller, &both).await;
    watch.until(both[0], "remote x1 via 1").await;
    watch.until(both[1], "unknown service").await;
    nets.east_relay.cut();
    watch.until(both[0], "unreachable network").await;
    drop(stock_registration);
    let _orders = Registration::workload(&orders, 2).await.keep_alive();
    nets.east_relay.restore(nets.east.address);
    watch.until(both[1], "remote x1 via 1").await;
    watch.until(both[0], "unknown service").await;
}

#[tokio::test]
async fn a_restarted_control_plane_still_knows_its_peers() {
    let Joined { mut east, mut west, east_relay, west_relay, gateways } = Joined::start().await;
    let stock = east.member("stock", "a").await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;

    // The accepting side: what it knew is served at once, and goes on.
    let west = west.restart().await;
    while watch.next().await.is_ok() {}
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;
    assert!(!watch.log.iter().any(|line| line.contains("unknown")), "{:?}", watch.log);

    // The exporting side: its registry survives, and its updates continue.
    let mut east = east.restart().await;
    let stock = Registration::workload(&stock, 1).await.keep_alive();
    let other = east.member("stock", "b").await;
    let _other = Registration::workload(&other, 2).await.keep_alive();
    watch.until("stock.default.east", "remote x2 via 1").await;
    drop(stock);
    watch.until("stock.default.east", "remote x1 via 1").await;
    drop((west, east_relay, west_relay, gateways));
}

#[tokio::test]
async fn a_gateway_of_a_network_that_calls_directly_is_sent_no_address_of_joined_ones() {
    let mut nets = Joined::start().await;
    let gateway = nets.west.gateway("other").await;
    let mut watch = whole_network(&gateway).await;
    until_network(&mut watch, "0 gateways, reachable true").await;
    nets.west.admin.remove_join("east").await.unwrap();
    until_network(&mut watch, "removed").await;
}

async fn whole_network(gateway: &support::Member) -> Watch {
    let open = v1::Open { scope: v1::open::Scope::Network.into(), ..v1::Open::default() };
    Watch::open(gateway, open).await.unwrap()
}

async fn until_network(watch: &mut Watch, state: &str) {
    while watch.networks.get("east").map(String::as_str) != Some(state) {
        watch.next().await.unwrap();
    }
}

#[tokio::test]
async fn with_remote_calls_by_gateway_everything_goes_through_the_own_one() {
    let mut east = Network::start("east").await;
    let (east_relay, _east_gateway) = east.open_gateway().await;
    let mut west =
        Network::start_with("west", |o| o.remote_calls = tollway_control::RemoteCalls::Gateway)
            .await;
    // West's gateway: inside it leads to east, as a real one does for east's server names.
    let through = Relay::beside(&east_relay, east.address).await;
    let ingress = Relay::start(west.address).await;
    let member = west.gateway("gateway-1").await;
    let mut registration = Registration::open(&member).await.unwrap();
    let gateway = v1::Gateway {
        instance: "gateway-1".into(),
        outside: vec![ingress.address.into()],
        inside: vec![through.address.into()],
        ..Default::default()
    };
    registration.send(v1::register_request::Request::Gateway(gateway)).await;
    registration.registered().await.unwrap();
    let _registration = registration.keep_alive();
    let bundle = east.admin.export_join(0).await.unwrap();
    west.admin.accept_join(bundle).await.unwrap();
    let stock = east.member("stock", "a").await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;
    let mut gateway = whole_network(&member).await;
    until_network(&mut gateway, "1 gateways, reachable true").await;
    through.cut();
    watch.until("stock.default.east", "unreachable network").await;
    assert_eq!(name("stock.default.east").network, label("east"));
}

#[tokio::test]
async fn links_outlive_the_certificates_they_were_opened_with() {
    let short = |options: &mut tollway_control::Options| {
        options.certificate_ttl = tollway_identity::SHORTEST_TTL;
    };
    let mut nets = Joined::start_with(short).await;
    let stock = nets.east.member("stock", "a").await;
    let mut registration = Registration::workload(&stock, 1).await.keep_alive();
    let began = tokio::time::Instant::now();
    let caller = nets.west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;
    while began.elapsed() < tollway_identity::SHORTEST_TTL * 3 / 2 {
        // Data planes renew in time; these do it by a new certificate every third of a life.
        tokio::time::sleep(tollway_identity::SHORTEST_TTL / 3).await;
        let stock = nets.east.member("stock", "a").await;
        registration = {
            let next = Registration::workload(&stock, 1).await.keep_alive();
            drop(registration);
            next
        };
        let caller = nets.west.member("caller", "a").await;
        let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
        watch.until("stock.default.east", "remote x1 via 1").await;
        let unreachable = watch.log.iter().any(|line| line.contains("unreachable"));
        assert!(!unreachable, "{:?}", watch.log);
    }
    drop(registration);
}

#[tokio::test]
async fn joining_again_takes_over_gateways_that_moved() {
    let mut nets = Joined::start().await;
    let stock = nets.east.member("stock", "a").await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let caller = nets.west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;
    nets.east_relay.cut();
    nets.west_relay.cut();
    watch.until("stock.default.east", "unreachable network").await;
    let (_moved, _gateway) = nets.east.open_gateway().await;
    let bundle = nets.east.admin.export_join(0).await.unwrap();
    nets.west.admin.accept_join(bundle).await.unwrap();
    watch.until("stock.default.east", "remote x1 via 1").await;
}

#[tokio::test]
async fn a_gateway_that_moved_is_found_by_the_network_it_can_still_call() {
    let mut nets = Joined::that_may_move().await;
    let stock = nets.east.member("stock", "a").await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let caller = nets.west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;
    nets.east_relay.cut();
    watch.until("stock.default.east", "unreachable network").await;
    let (moved, _gateway) = nets.east.open_gateway().await;
    watch.until("stock.default.east", "remote x1 via 1").await;
    let joins = nets.west.admin.joins().await.unwrap();
    assert_eq!(joins[0].gateways, [moved.address.into()]);
}

#[tokio::test]
async fn what_went_unseen_is_gone_after_the_full_state() {
    let Joined { mut east, mut west, east_relay, west_relay, gateways } = Joined::start().await;
    let (stock, orders) = (east.member("stock", "a").await, east.member("orders", "a").await);
    let stock_registration = Registration::workload(&stock, 1).await.keep_alive();
    let _orders = Registration::workload(&orders, 2).await.keep_alive();
    let caller = west.member("caller", "a").await;
    let both = ["stock.default.east", "orders.default.east"];
    let mut watch = Watch::services(&caller, &both).await;
    watch.until(both[0], "remote x1 via 1").await;
    watch.until(both[1], "remote x1 via 1").await;
    east_relay.cut();
    watch.until(both[0], "unreachable network").await;
    stock_registration.deregister().await;
    // A restarted control plane does not know what it sent before: it sends everything.
    let east = east.restart().await;
    let _orders = Registration::workload(&orders, 2).await.keep_alive();
    east_relay.restore(east.address);
    watch.until(both[1], "remote x1 via 1").await;
    watch.until(both[0], "unknown service").await;
    assert_eq!(west.admin.joins().await.unwrap()[0].services, 1);
    drop((east, west_relay, gateways));
}
