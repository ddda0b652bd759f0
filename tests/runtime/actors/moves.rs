//! Hosts come and go: calls wait for as long as that takes, and no turn overlaps another.

use std::time::{Duration, Instant};

use super::app::{Log, check_one_at_a_time, turns_of};
use super::callers::{Callers, Waited};
use super::{CONFIG, Replica, invoke, until_hosted};
use tollway_tests::mesh::{Mesh, Network, PATIENCE};

async fn start(network: &Network, name: &str, log: &Log) -> Replica {
    Replica::start(network, "cart", name, CONFIG, log).await
}

/// Waits until a host has had a turn of any actor.
async fn until_turn_at(log: &Log, replica: &str) {
    let began = Instant::now();
    while !super::app::turns(log).iter().any(|turn| turn.replica == replica) {
        assert!(began.elapsed() < PATIENCE, "the host {replica} has had no turn");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_fails_while_hosts_come_and_go_in_good_order() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let mut hosts = vec![start(&mesh.west, "0", &log).await];
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Cart/0").await;
    let callers = Callers::start(caller.http(), "Cart", 16);
    for round in 1..5 {
        hosts.push(start(&mesh.west, &round.to_string(), &log).await);
        until_turn_at(&log, &round.to_string()).await;
        if round % 2 == 0 {
            let mut leaving = hosts.remove(0);
            tokio::task::block_in_place(|| leaving.sidecar.process.terminate(PATIENCE).unwrap());
        }
    }
    let Waited { longest, answers, .. } = callers.end().await;
    eprintln!("the longest call took {longest:?}");
    assert!(answers.keys().all(String::is_empty), "{answers:#?}");
    check_one_at_a_time(&log);
    let replicas: std::collections::BTreeSet<String> =
        super::app::turns(&log).iter().map(|turn| turn.replica.clone()).collect();
    assert!(replicas.len() >= 4, "{replicas:?}");
    assert!(!turns_of(&log, "Cart/0", "").is_empty(), "actors that move are let go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn actors_of_a_host_that_crashes_go_on_elsewhere() {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let mut one = start(&mesh.west, "one", &log).await;
    let _two = start(&mesh.west, "two", &log).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Cart/0").await;
    let callers = Callers::start(caller.http(), "Cart", 16);
    until_turn_at(&log, "one").await;
    until_turn_at(&log, "two").await;
    callers.end().await;
    let began = Instant::now();
    one.sidecar.process.kill().unwrap();
    for id in 0..20 {
        let (status, text) = invoke(caller.http(), &format!("Cart/{id}"), "hello", "").await;
        assert_eq!((status, text.as_str()), (200, "two: "));
    }
    eprintln!("all answered {:?} after the crash", began.elapsed());
    check_one_at_a_time(&log);
}
