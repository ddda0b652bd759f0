//! Two hosts with kernel VXLAN tunnels and a forwarder between them, each in a network namespace:
//! ARP, neighbour discovery, ping, and TCP with payload, in every mode, over a restart too.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod lab;

use std::time::Duration;

use tollway_fabric::layout::{Address, Neighbour, Total};
use tollway_fabric::{Changes, Mode, Table};
use tollway_testkit::tunnels::{Side, VNI};

use crate::lab::Lab;

/// What a lab can do in one mode.
fn check(mode: Mode) {
    let Some(lab) = Lab::new(mode.word()) else {
        tollway_testkit::skip!("it needs root, network namespaces and the right to load programs");
    };
    let mut forwarder = lab.open(Some(mode));
    assert!(forwarder.ports.iter().all(|port| port.attached.mode == mode));
    lab.teach(&mut forwarder);
    lab.tunnels.ping(Side::A, "10.0.0.2");
    lab.tunnels.ping(Side::B, "10.0.0.1");
    lab.tunnels.ping(Side::A, "fd00::2");
    lab.tunnels.transfer("10.0.0.2");
    lab.tunnels.transfer("fd00::2");
    let count = |total| {
        let totals = forwarder.counts.totals().unwrap();
        totals.iter().find(|(found, _)| *found == total).unwrap().1
    };
    assert!(count(Total::AnsweredArp) >= 2, "both sides have asked");
    assert!(count(Total::AnsweredNd) >= 1);
    assert!(count(Total::Forwarded) > 100);
    let networks = forwarder.counts.networks().unwrap();
    assert!(networks.iter().any(|(vni, found)| *vni == VNI && found.forwarded_packets > 100));
}

#[test]
fn hosts_reach_each_other_through_native_xdp() {
    check(Mode::Native);
}

#[test]
fn hosts_reach_each_other_through_generic_xdp() {
    check(Mode::Generic);
}

#[test]
fn hosts_reach_each_other_through_tc() {
    check(Mode::Tc);
}

#[test]
fn without_a_mode_a_virtual_cable_gets_tc() {
    let Some(lab) = Lab::new("default") else {
        tollway_testkit::skip!("it needs root, network namespaces and the right to load programs");
    };
    let forwarder = lab.open(None);
    assert!(forwarder.ports.iter().all(|port| port.attached.mode == Mode::Tc));
}

#[test]
fn restart_loses_neither_neighbours_nor_packets() {
    tollway_testkit::slow!();
    for mode in Mode::ALL {
        let Some(lab) = Lab::new(&format!("again-{mode}")) else {
            tollway_testkit::skip!(
                "it needs root, network namespaces and the right to load programs"
            );
        };
        let mut forwarder = lab.open(Some(mode));
        lab.teach(&mut forwarder);
        lab.tunnels.ping(Side::A, "10.0.0.2");
        let pinging = lab.tunnels.ping_on(Side::A, "10.0.0.2", 300, Duration::from_millis(5));
        for _ in 0..3 {
            // There is no reader for a moment; then another takes over.
            drop(forwarder);
            std::thread::sleep(Duration::from_millis(100));
            forwarder = lab.open(Some(mode));
            assert!(forwarder.ports.iter().all(|port| port.attached.replaced), "{mode}");
            let key = Address::new(VNI, "10.0.0.2".parse().unwrap());
            assert!(forwarder.table.look_up(&key).unwrap().is_some());
        }
        assert_eq!(pinging.answers(), 300, "{mode}");
    }
}

#[test]
fn mode_is_changed_while_packets_flow() {
    let Some(lab) = Lab::new("change") else {
        tollway_testkit::skip!("it needs root, network namespaces and the right to load programs");
    };
    let mut forwarder = lab.open(Some(Mode::Tc));
    lab.teach(&mut forwarder);
    for mode in [Mode::Native, Mode::Tc, Mode::Generic, Mode::Native] {
        drop(forwarder);
        forwarder = lab.open(Some(mode));
        lab.tunnels.ping(Side::A, "10.0.0.2");
        assert_eq!(lab.links(), [("ga", mode), ("gb", mode)]);
    }
}

#[test]
fn miss_is_reported_and_its_neighbour_used_once_it_is_there() {
    let Some(lab) = Lab::new("miss") else {
        tollway_testkit::skip!("it needs root, network namespaces and the right to load programs");
    };
    let mut forwarder = lab.open(Some(Mode::Tc));
    let pinging = lab.tunnels.ping_on(Side::A, "10.0.0.2", 20, Duration::from_millis(200));
    let wanted = Address::new(VNI, "10.0.0.2".parse().unwrap());
    tollway_testkit::retry_until(Duration::from_secs(10), "a report of the miss", || {
        let report = forwarder.misses.next()?;
        (Address::from_report(&report) == Some(wanted)).then_some(())
    })
    .unwrap();
    lab.teach(&mut forwarder);
    assert!(pinging.answers() > 0);
}

#[test]
fn neighbour_that_moved_is_reached_where_it_is() {
    let Some(lab) = Lab::new("move") else {
        tollway_testkit::skip!("it needs root, network namespaces and the right to load programs");
    };
    let mut forwarder = lab.open(Some(Mode::Native));
    lab.teach(&mut forwarder);
    let key = Address::new(VNI, "10.0.0.2".parse().unwrap());
    let there = forwarder.table.look_up(&key).unwrap().unwrap();
    let mut astray = Changes::default();
    astray.put(key, Neighbour::new(there.mac, "10.2.0.77".parse().unwrap(), [2; 6], 9));
    forwarder.table.update(&astray.keys, &astray.values).unwrap();
    assert_eq!(
        lab.tunnels.ping_on(Side::A, "10.0.0.2", 2, Duration::from_millis(200)).answers(),
        0
    );
    forwarder.table.update(&[key], &[there]).unwrap();
    lab.tunnels.ping(Side::A, "10.0.0.2");
}
