//! Registry and discovery of one network, over real connections.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::time::Duration;

use support::{Network, Registration, Watch, label, name, subscribed};
use tollway_wire::v1;
use tollway_wire::v1::register_request::Request as Announce;
use tonic::Code;

#[tokio::test]
async fn an_unknown_service_is_answered_at_once_and_sent_when_it_appears() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock", "x.default.nowhere"]).await;
    watch.until("stock", "unknown service").await;
    watch.until("x.default.nowhere", "unknown network").await;

    let stock = west.member("stock", "a").await;
    let mut registration = Registration::open(&stock).await.unwrap();
    registration.set_ready(&stock, 1000, false).await;
    watch.until("stock", "none ready").await;
    registration.set_ready(&stock, 1000, true).await;
    watch.until("stock", "local [1000]").await;
    registration.deregister().await;
    watch.until("stock", "unknown service").await;
}

#[tokio::test]
async fn a_broken_connection_takes_the_workload_away_after_the_grace() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let (one, two) = (west.member("stock", "one").await, west.member("stock", "two").await);
    let first = Registration::workload(&one, 1).await.keep_alive();
    let second = Registration::workload(&two, 2).await.keep_alive();
    let mut watch = Watch::services(&caller, &["stock"]).await;
    watch.until("stock", "local [1, 2]").await;
    drop(second);
    watch.until("stock", "local [1]").await;
    drop(first);
    watch.until("stock", "unknown service").await;
}

#[tokio::test]
async fn a_workload_that_comes_back_within_the_grace_was_never_away() {
    let mut west = Network::start_with("west", |options| {
        options.timing.grace = Duration::from_millis(700);
    })
    .await;
    let caller = west.member("caller", "a").await;
    let stock = west.member("stock", "a").await;
    let first = Registration::workload(&stock, 1).await;
    let mut watch = Watch::services(&caller, &["stock"]).await;
    watch.until("stock", "local [1]").await;
    drop(first);
    let _second = Registration::workload(&stock, 1).await.keep_alive();
    let later = tokio::time::Instant::now() + Duration::from_secs(2);
    while tokio::time::Instant::now() < later {
        watch.next().await.unwrap();
    }
    assert_eq!(watch.known[&name("stock")], "local [1]");
    assert!(!watch.log.iter().any(|line| line.contains("unknown service")), "{:?}", watch.log);
}

#[tokio::test]
async fn a_silent_workload_ends_with_its_lease() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let stock = west.member("stock", "a").await;
    let silent = Registration::workload(&stock, 1).await;
    let began = tokio::time::Instant::now();
    let mut watch = Watch::services(&caller, &["stock"]).await;
    watch.until("stock", "local [1]").await;
    watch.until("stock", "unknown service").await;
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    drop(silent);
}

#[tokio::test]
async fn a_workload_that_changes_again_and_again_outlives_its_lease() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let stock = west.member("stock", "a").await;
    let mut changing = Registration::workload(&stock, 1).await;
    let mut watch = Watch::services(&caller, &["stock"]).await;
    watch.until("stock", "local [1]").await;
    // Two and a half times as long as the lease lasts, with nothing but changes.
    for port in 2..12 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        changing.set_ready(&stock, port, true).await;
    }
    watch.until("stock", "local [11]").await;
    assert!(!watch.log.iter().any(|line| line.contains("unknown service")), "{:?}", watch.log);
}

#[tokio::test]
async fn a_resumed_stream_sends_only_changes() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let (stock, orders) = (west.member("stock", "a").await, west.member("orders", "a").await);
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let mut order = Registration::workload(&orders, 2).await;
    let names = ["stock", "orders", "nobody"];
    let mut watch = Watch::services(&caller, &names).await;
    watch.until("stock", "local [1]").await;
    watch.until_quiet().await;
    let revision = watch.revision;
    drop(watch);

    order.set_ready(&orders, 3, true).await;
    let _order = order.keep_alive();
    let mut resumed = Watch::open(&caller, subscribed(revision, &names)).await.unwrap();
    resumed.until("orders", "local [3]").await;
    resumed.until_quiet().await;
    assert_eq!(resumed.log, ["orders local [3]"]);
}

#[tokio::test]
async fn streams_resume_without_a_gap_after_a_restart() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let (stock, orders) = (west.member("stock", "a").await, west.member("orders", "a").await);
    let stock_registration = Registration::workload(&stock, 1).await;
    let order_registration = Registration::workload(&orders, 2).await;
    let names = ["stock", "orders"];
    let mut watch = Watch::services(&caller, &names).await;
    watch.until("stock", "local [1]").await;
    watch.until("orders", "local [2]").await;
    let revision = watch.revision;
    let west = west.restart().await;
    while watch.next().await.is_ok() {}

    // The workloads outlive the control plane; stock comes back elsewhere, orders never.
    let mut resumed = Watch::open(&caller, subscribed(revision, &names)).await.unwrap();
    let mut again = Registration::open(&stock).await.unwrap();
    again.set_ready(&stock, 7, true).await;
    let _again = again.keep_alive();
    resumed.until("stock", "local [7]").await;
    resumed.until("orders", "unknown service").await;
    assert!(resumed.revision > revision);
    drop((stock_registration, order_registration, west));
}

#[tokio::test]
async fn what_changed_before_a_restart_is_sent_after_it() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let (stock, orders) = (west.member("stock", "a").await, west.member("orders", "a").await);
    let mut stock_registration = Registration::workload(&stock, 1).await;
    let order_registration = Registration::workload(&orders, 2).await.keep_alive();
    let names = ["stock", "orders"];
    let mut watch = Watch::services(&caller, &names).await;
    watch.until("stock", "local [1]").await;
    watch.until("orders", "local [2]").await;
    let revision = watch.revision;
    drop(watch);
    stock_registration.set_ready(&stock, 9, false).await;
    order_registration.deregister().await;
    let west = west.restart().await;
    let mut resumed = Watch::open(&caller, subscribed(revision, &names)).await.unwrap();
    resumed.until("stock", "none ready").await;
    resumed.until("orders", "unknown service").await;
    drop((west, stock_registration));
}

#[tokio::test]
async fn no_change_is_lost_between_list_and_watch() {
    let mut west = Network::start("west").await;
    let stock = west.member("stock", "a").await;
    let mut registration = Registration::workload(&stock, 1).await;
    let writer = tokio::spawn(async move {
        for port in 1..=300 {
            registration.set_ready(&stock, port, port % 3 != 0).await;
        }
        registration.set_ready(&stock, 999, true).await;
        registration.keep_alive()
    });
    // Streams that open at any moment all end with the last state.
    let mut watches = Vec::new();
    while !writer.is_finished() {
        let caller = west.member("caller", &format!("a{}", watches.len())).await;
        watches.push(Watch::services(&caller, &["stock"]).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let _alive = writer.await.unwrap();
    assert!(watches.len() > 1);
    for mut watch in watches {
        watch.until("stock", "local [999]").await;
    }
}

#[tokio::test]
async fn a_data_plane_that_comes_again_takes_the_place_of_its_oldest_stream() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        let mut watch = Watch::services(&caller, &["stock"]).await;
        watch.until("stock", "unknown service").await;
        watches.push(watch);
    }
    let ended = loop {
        if let Err(status) = watches[0].next().await {
            break status;
        }
    };
    assert_eq!(ended.code(), Code::Aborted, "{ended:?}");
    let stock = west.member("stock", "a").await;
    let _alive = Registration::workload(&stock, 1).await.keep_alive();
    for watch in &mut watches[1..] {
        watch.until("stock", "local [1]").await;
    }
}

#[tokio::test]
async fn a_stream_that_was_not_read_gets_the_present_and_not_the_past() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let stock = west.member("stock", "a").await;
    let mut registration = Registration::workload(&stock, 1).await;
    let mut idle = Watch::services(&caller, &["stock"]).await;
    idle.until("stock", "local [1]").await;
    for port in 1..=400 {
        registration.set_ready(&stock, port, true).await;
    }
    let _alive = registration.keep_alive();
    idle.until("stock", "local [400]").await;
    assert!(idle.log.len() < 400, "changes were not merged: {}", idle.log.len());
}

#[tokio::test]
async fn unsubscribing_ends_the_updates() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let (stock, orders) = (west.member("stock", "a").await, west.member("orders", "a").await);
    let mut watch = Watch::services(&caller, &["stock", "orders"]).await;
    watch.until("orders", "unknown service").await;
    watch.until("stock", "unknown service").await;
    watch.unsubscribe(&["stock"]).await;
    watch.until_quiet().await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let _orders = Registration::workload(&orders, 2).await.keep_alive();
    watch.until("orders", "local [2]").await;
    watch.until_quiet().await;
    assert_eq!(watch.known[&name("stock")], "unknown service");
}

#[tokio::test]
async fn a_gateway_knows_the_whole_network() {
    let mut west = Network::start("west").await;
    let stock = west.member("stock", "a").await;
    let _stock = Registration::workload(&stock, 1).await.keep_alive();
    let gateway = west.gateway("g").await;
    let whole = |revision| v1::Open {
        scope: v1::open::Scope::Network.into(),
        revision,
        ..v1::Open::default()
    };
    let mut watch = Watch::open(&gateway, whole(0)).await.unwrap();
    let first = watch.next().await.unwrap();
    assert!(first.snapshot_start && first.snapshot_end);
    watch.until("stock", "local [1]").await;
    let orders = west.member("orders", "a").await;
    let registration = Registration::workload(&orders, 2).await.keep_alive();
    watch.until("orders", "local [2]").await;
    let revision = watch.revision;
    drop(watch);
    registration.deregister().await;
    let mut resumed = Watch::open(&gateway, whole(revision)).await.unwrap();
    resumed.until("orders", "unknown service").await;
    resumed.until_quiet().await;
    assert_eq!(resumed.log, ["orders unknown service"]);
}

#[tokio::test]
async fn ten_thousand_subscriptions_are_served_and_one_more_is_refused() {
    let mut west = Network::start("west").await;
    let caller = west.member("caller", "a").await;
    let limit = tollway_wire::SUBSCRIPTIONS_PER_STREAM_LIMIT;
    let names: Vec<String> = (0..limit).map(|n| format!("app-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut watch = Watch::services(&caller, &names).await;
    while watch.known.len() < limit {
        watch.next().await.unwrap();
    }
    watch.subscribe(&["one-more"]).await;
    let refused = loop {
        if let Err(status) = watch.next().await {
            break status;
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
}

#[tokio::test]
async fn a_keep_alive_without_an_announcement_is_refused() {
    let mut west = Network::start("west").await;
    let stock = west.member("stock", "a").await;
    let mut registration = Registration::open(&stock).await.unwrap();
    registration.send(Announce::KeepAlive(v1::KeepAlive {})).await;
    let refused = registration.answer().await.unwrap_err();
    assert_eq!(refused.message(), "announce something before keeping it alive");
}

#[tokio::test]
async fn a_workload_that_reconnects_within_the_grace_changes_no_revision() {
    let mut west = Network::start("west").await;
    let stock = west.member("stock", "a").await;
    let first = Registration::workload(&stock, 1).await.keep_alive();
    let before = west.admin.services().await.unwrap();
    // The connection breaks, and the workload is back on another one before the grace ends.
    drop(first);
    let second = Registration::workload(&stock, 1).await.keep_alive();
    // The grace of the first ends within this time, and nothing follows from that.
    tokio::time::sleep(support::timing().grace * 2).await;
    let after = west.admin.services().await.unwrap();
    assert_eq!(before.revision, after.revision, "something was written");
    assert_eq!(after.services[0].ready_replicas, 1);
    // What it took over is its own now: it ends with it.
    drop(second);
    let gone = tokio::time::Instant::now();
    while !west.admin.services().await.unwrap().services.is_empty() {
        assert!(gone.elapsed() < support::PATIENCE, "it never went");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_operator_sees_services_and_gateways() {
    let mut west = Network::start("west").await;
    let (_relay, _gateway) = west.open_gateway().await;
    let (one, two) = (west.member("stock", "one").await, west.member("stock", "two").await);
    let mut first = Registration::workload(&one, 1).await;
    first.set_ready(&one, 1, false).await;
    let _second = Registration::workload(&two, 2).await;
    let listed = west.admin.services().await.unwrap();
    let [status] = &listed.services[..] else { panic!("{listed:?}") };
    assert_eq!((status.ready_replicas, status.workloads, status.reachable), (1, 2, true));
    assert_eq!(status.service.as_ref().unwrap().app, "stock");
    let gateways = west.admin.gateways().await.unwrap();
    assert_eq!(gateways[0].instance, "gateway-1");
    assert_eq!(label(&gateways[0].instance), label("GATEWAY-1"));
}
