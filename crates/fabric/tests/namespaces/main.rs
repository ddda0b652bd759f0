//! Two hosts with kernel VXLAN tunnels and a forwarder between them, each in a network namespace:
//! ARP, neighbour discovery, ping, and TCP with payload, in every mode, over a restart too.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "../packets/frames.rs"]
#[allow(dead_code, reason = "what other tests make of it is theirs")]
mod frames;
mod lab;

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use tollway_fabric::layout::{Address, Neighbour, SourceCheck, Total};
use tollway_fabric::{Changes, Forwarder, Mode, Table};
use tollway_testkit::tunnels::{GUESTS, Side, VNI};

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
    let count = |total| count_of(&forwarder, total);
    assert!(count(Total::AnsweredArp) >= 2, "both sides have asked");
    assert!(count(Total::AnsweredNd) >= 1);
    assert!(count(Total::Forwarded) > 100);
    let networks = forwarder.counts.networks().unwrap();
    assert!(networks.iter().any(|(vni, found)| *vni == VNI && found.forwarded_packets > 100));
}

fn count_of(forwarder: &Forwarder, total: Total) -> u64 {
    let totals = forwarder.counts.totals().unwrap();
    totals.iter().find(|(found, _)| *found == total).unwrap().1
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

/// A socket of host B, from which any program there sends what it likes.
fn socket_of_b(lab: &Lab) -> UdpSocket {
    lab.tunnels.namespace(Side::B).run(|| UdpSocket::bind("10.2.0.2:0")).unwrap().unwrap()
}

/// Sends a packet of host B to the guest of A, with an inner source of the sender's choice.
fn forge(from: &UdpSocket, source: Ipv4Addr, to: Ipv4Addr, port: u16, text: &[u8]) {
    let [guest, _, other, _] = GUESTS;
    let datagram = frames::udp(source.into(), to.into(), 9, port, text, true);
    let inner =
        frames::guest_packet(guest.mac, other.mac, source.into(), to.into(), 9, 0, &datagram);
    let packet = [&[0x08, 0, 0, 0][..], &(VNI << 8).to_be_bytes(), &inner].concat();
    from.send_to(&packet, "10.2.0.1:4789").unwrap();
}

#[test]
fn a_guest_does_not_get_what_a_host_forges_in_anothers_name() {
    let Some(lab) = Lab::new("forge") else {
        tollway_testkit::skip!("it needs root, network namespaces and the right to load programs");
    };
    const TRUSTED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
    let (guest, own): (Ipv4Addr, Ipv4Addr) =
        (GUESTS[0].ip.parse().unwrap(), GUESTS[2].ip.parse().unwrap());
    let listen = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((guest, 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(socket)
    };
    let socket = lab.tunnels.namespace(Side::A).run(listen).unwrap().unwrap();
    let port = socket.local_addr().unwrap().port();
    let receive = || {
        let mut bytes = [0; 64];
        let (length, from) = socket.recv_from(&mut bytes).unwrap();
        (String::from_utf8_lossy(&bytes[..length]).into_owned(), from.ip())
    };
    let b = socket_of_b(&lab);
    // Without the check it arrives, so the packet is a good one.
    let mut forwarder = lab.open_with(SourceCheck::Off);
    lab.teach(&mut forwarder);
    let mut known = Changes::default();
    let host_ip: IpAddr = GUESTS[0].host_ip.parse().unwrap();
    let trusted = Neighbour::new([0x0a, 0, 0, 0, 0, 7], host_ip, GUESTS[0].host_mac, 1);
    known.put(Address::new(VNI, TRUSTED.into()), trusted);
    forwarder.table.update(&known.keys, &known.values).unwrap();
    forge(&b, TRUSTED, guest, port, b"forged");
    assert_eq!(receive(), ("forged".to_owned(), TRUSTED.into()));
    drop(forwarder);
    // With it what B's own guest has sent comes first, though it was sent later.
    let forwarder = lab.open_with(SourceCheck::Known);
    let before = count_of(&forwarder, Total::SourceForeign);
    forge(&b, TRUSTED, guest, port, b"forged");
    forge(&b, own, guest, port, b"own");
    assert_eq!(receive(), ("own".to_owned(), own.into()));
    assert_eq!(count_of(&forwarder, Total::SourceForeign) - before, 1);
}

#[test]
fn a_guest_is_found_while_another_scans_its_network() {
    let Some(lab) = Lab::new("scan") else {
        tollway_testkit::skip!("it needs root, network namespaces and the right to load programs");
    };
    let mut forwarder = lab.open(None);
    lab.teach(&mut forwarder);
    // B scans, with as many addresses as the ring has space for and more.
    let own: Ipv4Addr = GUESTS[2].ip.parse().unwrap();
    let b = socket_of_b(&lab);
    for number in 0..12_000u32 {
        forge(&b, own, Ipv4Addr::from(0x0a01_0000 + number), 9, b"?");
    }
    let pinging = lab.tunnels.ping_on(Side::A, "10.0.0.77", 20, Duration::from_millis(200));
    let wanted = Address::new(VNI, "10.0.0.77".parse().unwrap());
    let mut reports = 0;
    tollway_testkit::retry_until(Duration::from_secs(20), "a report of the guest's miss", || {
        // All that is there: a share a second is more than one report an attempt.
        let mut found = std::iter::from_fn(|| {
            forwarder.misses.next().map(|report| Address::from_report(&report))
        });
        found.by_ref().inspect(|_| reports += 1).any(|found| found == Some(wanted)).then_some(())
    })
    .unwrap();
    assert!(reports < 4000, "{reports}");
    assert!(count_of(&forwarder, Total::MissLimited) > 0);
    drop(pinging);
}
