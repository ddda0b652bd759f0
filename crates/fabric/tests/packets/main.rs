//! Frames through the programs, byte for byte: the same cases for XDP and for tc.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod frames;
mod programs;
mod senders;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_fabric::layout::{Address, Counters, Link, Neighbour, Total};

use crate::frames::{
    Mac, Outer, VXLAN_PORT, arp, ethernet, guest_frame, guest_packet, ip4, ip6, mac_option,
    neighbour_message, solicited_group,
};
use crate::programs::{Done, Kind, Loaded, OWN_IP4, OWN_IP6, OWN_MAC, settings};

const VNI: u32 = 0x00ab_cdef;
const SENDER_MAC: Mac = [2, 0, 0, 0, 0, 2];
const HOST_MAC: Mac = [2, 0, 0, 0, 0, 3];
const GUEST_A: Mac = [0x0a, 0, 0, 0, 0, 1];
const GUEST_B: Mac = [0x0a, 0, 0, 0, 0, 2];
const ROUTER: Mac = [0x0a, 0, 0, 0, 0, 0xfe];
const EVERYBODY: Mac = [0xff; 6];
const NOBODY: Mac = [0; 6];
const A4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const A6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// The outer network's family; both carry both inner families.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Under {
    Ip4,
    Ip6,
}

impl Under {
    fn own(self) -> IpAddr {
        match self {
            Self::Ip4 => OWN_IP4.into(),
            Self::Ip6 => OWN_IP6.into(),
        }
    }

    fn sender(self) -> IpAddr {
        match self {
            Self::Ip4 => Ipv4Addr::new(192, 0, 2, 2).into(),
            Self::Ip6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2).into(),
        }
    }

    fn host(self) -> IpAddr {
        match self {
            Self::Ip4 => Ipv4Addr::new(192, 0, 2, 3).into(),
            Self::Ip6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 3).into(),
        }
    }

    /// From the sender to the forwarder.
    fn question(self) -> Outer {
        Outer {
            to_mac: OWN_MAC,
            from_mac: SENDER_MAC,
            to: self.own(),
            from: self.sender(),
            hops: 57,
            from_port: 54_321,
            to_port: VXLAN_PORT,
            summed: self == Self::Ip6,
            fragment: 0,
            vni: VNI,
            vxlan_flags: 0x08,
        }
    }

    /// From the forwarder to the neighbour's host.
    fn forwarded(self) -> Outer {
        Outer {
            to_mac: HOST_MAC,
            from_mac: OWN_MAC,
            to: self.host(),
            from: self.own(),
            hops: 56,
            ..self.question()
        }
    }

    /// From the forwarder back to the sender.
    fn answer(self) -> Outer {
        Outer {
            to_mac: SENDER_MAC,
            from_mac: OWN_MAC,
            to: self.sender(),
            from: self.own(),
            hops: 64,
            ..self.question()
        }
    }
}

/// Runs `body` with every program, under every outer family, with B a known neighbour.
fn everywhere(body: impl Fn(&mut Loaded, Under)) {
    for kind in [Kind::Xdp, Kind::Tc] {
        for under in [Under::Ip4, Under::Ip6] {
            let Some(mut loaded) = Loaded::new(kind, &settings()) else {
                tollway_testkit::skip!("programs may not be loaded here: it needs root");
            };
            let neighbour = Neighbour::new(GUEST_B, under.host(), HOST_MAC, 1);
            loaded.teach(VNI, B4.into(), neighbour);
            loaded.teach(VNI, B6.into(), neighbour);
            eprintln!("{kind:?} under {under:?}");
            body(&mut loaded, under);
        }
    }
}

/// `frame` is dropped, and counted as `why`.
fn check_drop(loaded: &mut Loaded, frame: &[u8], why: Total) {
    let before = loaded.total(why);
    let (done, _) = loaded.run(frame);
    assert_eq!((done, loaded.total(why) - before), (Done::Drop, 1), "{why:?}: {frame:02x?}");
}

/// `frame` is left to the kernel as it is.
fn check_pass(loaded: &mut Loaded, frame: &[u8]) {
    let (done, out) = loaded.run(frame);
    assert_eq!((done, hex(&out)), (Done::Pass, hex(frame)));
}

fn check_return(loaded: &mut Loaded, frame: &[u8], expected: &[u8]) {
    let (done, out) = loaded.run(frame);
    assert_eq!((done, hex(&out)), (Done::Return, hex(expected)));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn guests() -> [(IpAddr, IpAddr); 2] {
    [(A4.into(), B4.into()), (A6.into(), B6.into())]
}

#[test]
fn frame_to_a_neighbour_goes_to_its_host() {
    everywhere(|loaded, under| {
        for (from, to) in guests() {
            for summed in [false, true] {
                let inner = guest_frame(GUEST_B, GUEST_A, from, to, 9);
                let question = Outer { summed, ..under.question() }.around(&inner);
                let expected = Outer { summed, ..under.forwarded() }.around(&inner);
                check_return(loaded, &question, &expected);
            }
        }
    });
}

#[test]
fn frame_to_a_router_loses_a_hop_and_gets_the_neighbours_address() {
    everywhere(|loaded, under| {
        for (from, to) in guests() {
            for summed in [false, true] {
                let inner = guest_frame(ROUTER, GUEST_A, from, to, 9);
                let routed = guest_frame(GUEST_B, GUEST_A, from, to, 8);
                let question = Outer { summed, ..under.question() }.around(&inner);
                let expected = Outer { summed, ..under.forwarded() }.around(&routed);
                check_return(loaded, &question, &expected);
            }
        }
    });
}

#[test]
fn every_checksum_stays_right() {
    everywhere(|loaded, under| {
        // Sums that come to 0 and to 0xffff are among so many.
        for port in 0..=u16::MAX {
            if port % 13 != 0 {
                continue;
            }
            let inner = guest_frame(ROUTER, GUEST_A, A4.into(), B4.into(), 9);
            let routed = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 8);
            let question = Outer { summed: true, from_port: port, ..under.question() };
            let expected = Outer { summed: true, from_port: port, ..under.forwarded() };
            check_return(loaded, &question.around(&inner), &expected.around(&routed));
        }
    });
}

#[test]
fn last_hop_is_dropped_outside_and_inside() {
    everywhere(|loaded, under| {
        for (from, to) in guests() {
            for hops in [0, 1] {
                let inner = guest_frame(GUEST_B, GUEST_A, from, to, 9);
                let spent = Outer { hops, ..under.question() }.around(&inner);
                check_drop(loaded, &spent, Total::Expired);
                let inner = guest_frame(ROUTER, GUEST_A, from, to, hops);
                check_drop(loaded, &under.question().around(&inner), Total::Expired);
                // A switch does not read it.
                let inner = guest_frame(GUEST_B, GUEST_A, from, to, hops);
                let expected = under.forwarded().around(&inner);
                check_return(loaded, &under.question().around(&inner), &expected);
            }
        }
    });
}

#[test]
fn inner_fragments_are_forwarded_and_outer_ones_passed() {
    everywhere(|loaded, under| {
        for fragment in [0x2000, 0x00b9, 0x20b9] {
            let inner =
                guest_packet(GUEST_B, GUEST_A, A4.into(), B4.into(), 9, fragment, &[7; 100]);
            let expected = under.forwarded().around(&inner);
            check_return(loaded, &under.question().around(&inner), &expected);
            if under == Under::Ip4 {
                let before = loaded.total(Total::OuterFragment);
                check_pass(loaded, &Outer { fragment, ..under.question() }.around(&inner));
                assert_eq!(loaded.total(Total::OuterFragment), before + 1);
            }
        }
    });
}

#[test]
fn arp_is_answered_from_the_table() {
    everywhere(|loaded, under| {
        for summed in [false, true] {
            // To everybody, and to the owner alone, as those ask who know it already.
            for to in [EVERYBODY, GUEST_B] {
                let asked = arp((to, GUEST_A), 1, (GUEST_A, A4), (NOBODY, B4));
                let answer = arp((GUEST_A, GUEST_B), 2, (GUEST_B, B4), (GUEST_A, A4));
                let question = Outer { summed, ..under.question() }.around(&asked);
                let keeps_sum = summed && under == Under::Ip6;
                let expected = Outer { summed: keeps_sum, ..under.answer() }.around(&answer);
                check_return(loaded, &question, &expected);
            }
        }
        assert_eq!(loaded.total(Total::AnsweredArp), 4);
    });
}

#[test]
fn arp_probe_for_a_duplicate_is_answered_but_not_to_the_owner() {
    everywhere(|loaded, under| {
        let none = Ipv4Addr::UNSPECIFIED;
        let probe = arp((EVERYBODY, GUEST_A), 1, (GUEST_A, none), (NOBODY, B4));
        let answer = arp((GUEST_A, GUEST_B), 2, (GUEST_B, B4), (GUEST_A, none));
        let question = Outer { summed: false, ..under.question() }.around(&probe);
        let expected = Outer { summed: false, ..under.answer() }.around(&answer);
        check_return(loaded, &question, &expected);
        let own = arp((EVERYBODY, GUEST_B), 1, (GUEST_B, none), (NOBODY, B4));
        check_drop(loaded, &under.question().around(&own), Total::Flood);
    });
}

#[test]
fn arp_that_asks_nothing_is_dropped() {
    everywhere(|loaded, under| {
        let announcement = arp((EVERYBODY, GUEST_A), 1, (GUEST_A, B4), (NOBODY, B4));
        let reply = arp((GUEST_A, GUEST_B), 2, (GUEST_B, B4), (GUEST_A, A4));
        for message in [announcement, reply] {
            check_drop(loaded, &under.question().around(&message), Total::Flood);
        }
        for (byte, value) in [(14, 9), (16, 9), (18, 9), (19, 9)] {
            let mut broken = arp((EVERYBODY, GUEST_A), 1, (GUEST_A, A4), (NOBODY, B4));
            broken[byte] = value;
            check_drop(loaded, &under.question().around(&broken), Total::Malformed);
        }
    });
}

#[test]
fn solicitation_is_answered_whatever_options_it_has() {
    everywhere(|loaded, under| {
        let (group_mac, group) = solicited_group(B6);
        let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
        let source = mac_option(1, GUEST_A);
        let options = [vec![], source.clone(), [&source[..], &nonce].concat()];
        for (to_mac, to) in [(group_mac, group), (GUEST_B, B6)] {
            for options in &options {
                for summed in [false, true] {
                    let asked = neighbour_message((to_mac, GUEST_A), (A6, to), 135, 0, B6, options);
                    let answer = neighbour_message(
                        (GUEST_A, GUEST_B),
                        (B6, A6),
                        136,
                        0x6000_0000,
                        B6,
                        &mac_option(2, GUEST_B),
                    );
                    let question = Outer { summed, ..under.question() }.around(&asked);
                    let keeps_sum = summed && under == Under::Ip6;
                    let expected = Outer { summed: keeps_sum, ..under.answer() }.around(&answer);
                    check_return(loaded, &question, &expected);
                }
            }
        }
        assert_eq!(loaded.counters(VNI).unwrap().answered, 12);
    });
}

#[test]
fn search_for_a_duplicate_is_answered_to_all_nodes_but_not_to_the_owner() {
    everywhere(|loaded, under| {
        let (group_mac, group) = solicited_group(B6);
        let none = Ipv6Addr::UNSPECIFIED;
        let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
        let all_nodes: Ipv6Addr = "ff02::1".parse().unwrap();
        for options in [&[][..], &nonce] {
            let ask =
                |from| neighbour_message((group_mac, from), (none, group), 135, 0, B6, options);
            let answer = neighbour_message(
                ([0x33, 0x33, 0, 0, 0, 1], GUEST_B),
                (B6, all_nodes),
                136,
                0x2000_0000,
                B6,
                &mac_option(2, GUEST_B),
            );
            let expected = under.answer().around(&answer);
            check_return(loaded, &under.question().around(&ask(GUEST_A)), &expected);
            check_drop(loaded, &under.question().around(&ask(GUEST_B)), Total::Flood);
        }
    });
}

#[test]
fn solicitation_that_breaks_the_rules_is_dropped() {
    everywhere(|loaded, under| {
        let (group_mac, group) = solicited_group(B6);
        let none = Ipv6Addr::UNSPECIFIED;
        let ask = |way, target, options: &[u8]| {
            neighbour_message((group_mac, GUEST_A), way, 135, 0, target, options)
        };
        let source = mac_option(1, GUEST_A);
        let mut hop_limit = ask((A6, group), B6, &source);
        hop_limit[14 + 7] = 254;
        let mut checksum = ask((A6, group), B6, &source);
        checksum[14 + 40 + 2] ^= 1;
        let mut code = ask((A6, group), B6, &source);
        code[14 + 40 + 1] = 1;
        let cases = [
            hop_limit,
            checksum,
            code,
            ask((A6, group), group, &source),
            // Options: of no length, longer than the message, not in units, too many.
            ask((A6, group), B6, &[1, 0, 0, 0, 0, 0, 0, 0]),
            ask((A6, group), B6, &[1, 2, 0, 0, 0, 0, 0, 0]),
            ask((A6, group), B6, &[1, 1, 0, 0]),
            ask((A6, group), B6, &[1; 48]),
            // Without an address of one's own: with the option, or not to the group.
            ask((none, group), B6, &source),
            ask((none, B6), B6, &[]),
        ];
        for case in cases {
            check_drop(loaded, &under.question().around(&case), Total::Malformed);
        }
        // Truncated, with matching lengths.
        let short = ethernet(group_mac, GUEST_A, 0x86dd, &ip6(A6, group, 58, 255, &[135, 0, 0, 0]));
        check_drop(loaded, &under.question().around(&short), Total::Malformed);
    });
}

#[test]
fn unknown_address_is_reported_once() {
    everywhere(|loaded, under| {
        let (stranger4, stranger6): (Ipv4Addr, Ipv6Addr) =
            ("10.9.9.9".parse().unwrap(), "fd00::9".parse().unwrap());
        let (group_mac, group) = solicited_group(stranger6);
        let source = mac_option(1, GUEST_A);
        let cases: [(Vec<u8>, IpAddr); 4] = [
            (guest_frame(GUEST_B, GUEST_A, A4.into(), stranger4.into(), 9), stranger4.into()),
            (guest_frame(GUEST_B, GUEST_A, A6.into(), stranger6.into(), 9), stranger6.into()),
            (arp((EVERYBODY, GUEST_A), 1, (GUEST_A, A4), (NOBODY, stranger4)), stranger4.into()),
            (
                neighbour_message((group_mac, GUEST_A), (A6, group), 135, 0, stranger6, &source),
                stranger6.into(),
            ),
        ];
        let mut reports = Vec::new();
        for (place, (inner, _)) in cases.iter().enumerate() {
            for _ in 0..3 {
                check_drop(loaded, &under.question().around(inner), Total::Missed);
            }
            reports.extend(loaded.missed());
            assert_eq!(reports.len(), (place + 1).min(2), "reported once for each address");
        }
        let addresses = cases.map(|(_, address)| Address::new(VNI, address));
        assert_eq!(reports, addresses[..2]);
        // The same address in another network is another one.
        let other = Outer { vni: 1, ..under.question() };
        let known = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 9);
        check_drop(loaded, &other.around(&known), Total::Missed);
        assert_eq!(loaded.missed(), [Address::new(1, B4.into())]);
    });
}

#[test]
fn missed_address_is_reported_again_after_its_quiet_time() {
    let Some(mut loaded) = Loaded::new(Kind::Xdp, &settings().with_quiet_ms(0)) else {
        tollway_testkit::skip!("programs may not be loaded here: it needs root");
    };
    let inner = guest_frame(GUEST_B, GUEST_A, A4.into(), "10.9.9.9".parse().unwrap(), 9);
    for _ in 0..3 {
        check_drop(&mut loaded, &Under::Ip4.question().around(&inner), Total::Missed);
    }
    assert_eq!(loaded.missed().len(), 3);
}

#[test]
fn flood_of_misses_fills_the_ring_and_no_more() {
    let Some(mut loaded) = Loaded::new(Kind::Xdp, &settings().with_misses(0, 0)) else {
        tollway_testkit::skip!("programs may not be loaded here: it needs root");
    };
    for number in 0..20_000u32 {
        let to = Ipv4Addr::from(0x0b00_0000 + number);
        let inner = guest_frame(GUEST_B, GUEST_A, A4.into(), to.into(), 9);
        check_drop(&mut loaded, &Under::Ip4.question().around(&inner), Total::Missed);
    }
    let reported = loaded.missed().len() as u64;
    assert!((1000..20_000).contains(&reported), "{reported}");
    assert_eq!(reported + loaded.total(Total::MissUnreported), 20_000);
}

#[test]
fn what_is_not_for_the_forwarder_is_passed_untouched() {
    everywhere(|loaded, under| {
        let inner = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 9);
        let stranger: IpAddr = match under {
            Under::Ip4 => "192.0.2.77".parse().unwrap(),
            Under::Ip6 => "2001:db8::77".parse().unwrap(),
        };
        let cases = [
            Outer { to_mac: HOST_MAC, ..under.question() },
            Outer { to_mac: EVERYBODY, ..under.question() },
            Outer { to: stranger, ..under.question() },
            Outer { to_port: VXLAN_PORT + 1, ..under.question() },
            Outer { to_port: 53, from_port: VXLAN_PORT, ..under.question() },
        ];
        for outer in cases {
            check_pass(loaded, &outer.around(&inner));
        }
        // TCP, header options, and another protocol altogether.
        let mut tcp = under.question().around(&inner);
        tcp[if under == Under::Ip4 { 14 + 9 } else { 14 + 6 }] = 6;
        check_pass(loaded, &tcp);
        if under == Under::Ip4 {
            let mut options = under.question().around(&inner);
            options[14] = 0x46;
            check_pass(loaded, &options);
        }
        check_pass(loaded, &arp((OWN_MAC, SENDER_MAC), 1, (SENDER_MAC, A4), (NOBODY, OWN_IP4)));
        check_pass(
            loaded,
            &ethernet(OWN_MAC, SENDER_MAC, 0x8100, &under.question().around(&inner)),
        );
        assert_eq!(loaded.counters(VNI), None, "nothing of this was counted");
    });
}

#[test]
fn what_cannot_be_forwarded_is_dropped_with_the_reason() {
    everywhere(|loaded, under| {
        let good = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 9);
        let unflagged = Outer { vxlan_flags: 0, ..under.question() }.around(&good);
        check_drop(loaded, &unflagged, Total::Malformed);
        let tagged = ethernet(GUEST_B, GUEST_A, 0x8100, &good);
        check_drop(loaded, &under.question().around(&tagged), Total::Unsupported);
        for group in ["224.0.0.1", "239.1.2.3", "255.255.255.255", "ff02::2"] {
            let group: IpAddr = group.parse().unwrap();
            let from: IpAddr = if group.is_ipv4() { A4.into() } else { A6.into() };
            let inner = guest_frame(EVERYBODY, GUEST_A, from, group, 9);
            check_drop(loaded, &under.question().around(&inner), Total::Flood);
        }
        let mut version = good.clone();
        version[14] = 0x65;
        check_drop(loaded, &under.question().around(&version), Total::Unsupported);
        let mut header = good.clone();
        header[14] = 0x44;
        check_drop(loaded, &under.question().around(&header), Total::Malformed);
        // Inner lengths beyond the datagram.
        for (from, to) in guests() {
            let mut long = guest_frame(GUEST_B, GUEST_A, from, to, 9);
            long[if from.is_ipv4() { 14 + 3 } else { 14 + 5 }] += 1;
            check_drop(loaded, &under.question().around(&long), Total::Malformed);
        }
        let mut short = good;
        short[14 + 3] = 19;
        check_drop(loaded, &under.question().around(&short), Total::Malformed);
    });
}

#[test]
fn outer_lengths_that_disagree_are_malformed() {
    everywhere(|loaded, under| {
        let inner = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 9);
        let ip_bytes = if under == Under::Ip4 { 20 } else { 40 };
        let length_at = if under == Under::Ip4 { 14 + 3 } else { 14 + 5 };
        for (at, change) in
            [(length_at, 1), (length_at, -1), (14 + ip_bytes + 5, 1), (14 + ip_bytes + 5, -1)]
        {
            let mut frame = under.question().around(&inner);
            frame[at] = frame[at].wrapping_add_signed(change);
            check_drop(loaded, &frame, Total::Malformed);
        }
        // Bytes after the packet, as drivers add to short frames, are no fault.
        let padded = [under.question().around(&inner), vec![0; 9]].concat();
        let expected = [under.forwarded().around(&inner), vec![0; 9]].concat();
        check_return(loaded, &padded, &expected);
    });
}

#[test]
fn frame_cut_anywhere_is_passed_or_dropped_and_never_sent() {
    everywhere(|loaded, under| {
        let (group_mac, group) = solicited_group(B6);
        let source = mac_option(1, GUEST_A);
        let whole = [
            guest_frame(ROUTER, GUEST_A, A4.into(), B4.into(), 9),
            guest_frame(ROUTER, GUEST_A, A6.into(), B6.into(), 9),
            arp((EVERYBODY, GUEST_A), 1, (GUEST_A, A4), (NOBODY, B4)),
            neighbour_message((group_mac, GUEST_A), (A6, group), 135, 0, B6, &source),
        ];
        for inner in whole {
            let frame = under.question().around(&inner);
            // Less than an Ethernet and an IP header the kernel does not run programs on.
            for length in 14 + 40..frame.len() {
                let (done, _) = loaded.run(&frame[..length]);
                assert!(matches!(done, Done::Pass | Done::Drop), "{length}: {done:?}");
            }
            // Cut within, with outer lengths that agree.
            for length in 0..inner.len() {
                let (done, _) = loaded.run(&under.question().around(&inner[..length]));
                assert_eq!(done, Done::Drop, "{length} of {inner:02x?}");
            }
        }
    });
}

#[test]
fn any_byte_may_be_anything() {
    everywhere(|loaded, under| {
        let (group_mac, group) = solicited_group(B6);
        let source = mac_option(1, GUEST_A);
        let whole = [
            guest_frame(ROUTER, GUEST_A, A4.into(), B4.into(), 9),
            arp((EVERYBODY, GUEST_A), 1, (GUEST_A, A4), (NOBODY, B4)),
            neighbour_message((group_mac, GUEST_A), (A6, group), 135, 0, B6, &source),
        ];
        for inner in whole {
            let frame = under.question().around(&inner);
            for at in 0..frame.len() {
                for value in [0, 1, 0x45, 0x7f, 0x80, 0xff] {
                    let mut broken = frame.clone();
                    broken[at] = value;
                    // The kernel refuses to run some; none leaves with another length than it may.
                    let (done, out) = loaded.run(&broken);
                    if done == Done::Return {
                        assert!(out.len() == frame.len() || out.len() == frame.len() + 8);
                    }
                }
            }
        }
    });
}

#[test]
fn host_of_the_other_family_cannot_be_reached() {
    everywhere(|loaded, under| {
        let host = if under == Under::Ip4 { Under::Ip6.host() } else { Under::Ip4.host() };
        loaded.teach(VNI, B4.into(), Neighbour::new(GUEST_B, host, HOST_MAC, 2));
        let inner = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 9);
        check_drop(loaded, &under.question().around(&inner), Total::NoLink);
    });
}

#[test]
fn each_network_has_its_counters() {
    everywhere(|loaded, under| {
        let known = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 9);
        let unknown = guest_frame(GUEST_B, GUEST_A, A4.into(), "10.9.9.9".parse().unwrap(), 9);
        let ask = arp((EVERYBODY, GUEST_A), 1, (GUEST_A, A4), (NOBODY, B4));
        loaded.teach(5, B4.into(), Neighbour::new(GUEST_B, under.host(), HOST_MAC, 1));
        for inner in [&known, &known, &unknown, &ask] {
            loaded.run(&under.question().around(inner));
        }
        loaded.run(&Outer { hops: 1, ..under.question() }.around(&known));
        loaded.run(&Outer { vni: 5, ..under.question() }.around(&known));
        loaded.run(&Outer { vni: 6, ..under.question() }.around(&known));
        let expected = Counters {
            forwarded_packets: 2,
            forwarded_bytes: 2 * known.len() as u64,
            answered: 1,
            missed: 1,
            dropped: 1,
        };
        assert_eq!(loaded.counters(VNI), Some(expected));
        assert_eq!(loaded.counters(5).unwrap().forwarded_packets, 1);
        assert_eq!(loaded.counters(6), None, "strangers get no counters");
        assert_eq!(loaded.total(Total::Forwarded), 3);
        assert_eq!(loaded.total(Total::Missed), 2);
    });
}

#[test]
fn with_several_devices_the_hosts_network_decides() {
    const EXIT_MAC: Mac = [2, 0, 0, 0, 0, 9];
    for kind in [Kind::Xdp, Kind::Tc] {
        for under in [Under::Ip4, Under::Ip6] {
            let Some(mut loaded) = Loaded::new(kind, &settings().with_several_devices()) else {
                tollway_testkit::skip!("programs may not be loaded here: it needs root");
            };
            let (network, bits, own): (IpAddr, u8, IpAddr) = match under {
                Under::Ip4 => ("192.0.2.0".parse().unwrap(), 24, "192.0.2.200".parse().unwrap()),
                Under::Ip6 => ("2001:db8::".parse().unwrap(), 64, "2001:db8::c8".parse().unwrap()),
            };
            loaded.add_link(network, bits, Link::new(7, 200, EXIT_MAC, own));
            let there = Neighbour::new(GUEST_B, under.host(), HOST_MAC, 1);
            loaded.teach(VNI, B4.into(), there);
            let inner = guest_frame(ROUTER, GUEST_A, A4.into(), B4.into(), 9);
            let routed = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 8);
            let (done, out) = loaded.run(&under.question().around(&inner));
            let expected = Outer { from: own, from_mac: EXIT_MAC, ..under.forwarded() };
            let leaves = if kind == Kind::Xdp { Done::Redirect } else { Done::Return };
            assert_eq!((done, hex(&out)), (leaves, hex(&expected.around(&routed))));
            let big = guest_packet(GUEST_B, GUEST_A, A4.into(), B4.into(), 9, 0, &[7; 200]);
            check_drop(&mut loaded, &under.question().around(&big), Total::TooBig);
            let far: IpAddr = match under {
                Under::Ip4 => "198.51.100.1".parse().unwrap(),
                Under::Ip6 => "2001:db9::1".parse().unwrap(),
            };
            loaded.teach(VNI, B4.into(), Neighbour::new(GUEST_B, far, HOST_MAC, 2));
            check_drop(&mut loaded, &under.question().around(&inner), Total::NoLink);
        }
    }
}

#[test]
fn header_options_inside_are_forwarded() {
    everywhere(|loaded, under| {
        // An inner IPv4 header of 24 bytes, a record route that is none.
        let mut packet = ip4(A4, B4, 17, 9, 0, &[1, 1, 1, 0, 9, 9, 9, 9]);
        packet[0] = 0x46;
        let inner = ethernet(GUEST_B, GUEST_A, 0x0800, &packet);
        let expected = under.forwarded().around(&inner);
        check_return(loaded, &under.question().around(&inner), &expected);
    });
}
