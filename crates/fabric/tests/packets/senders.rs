//! What a sender can do to others: speak for guests of other hosts, and use up the reports of misses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_fabric::layout::{
    Address, NETWORK_MISSES_MAX, Neighbour, SENDER_MISSES_MAX, Settings, SourceCheck, Total,
};

use crate::frames::{Outer, arp, guest_frame, mac_option, neighbour_message, solicited_group};
use crate::programs::{Done, Kind, Loaded, settings};
use crate::{
    A4, A6, B4, B6, EVERYBODY, GUEST_A, GUEST_B, HOST_MAC, NOBODY, SENDER_MAC, Under, VNI,
    check_drop, guests,
};

/// Of which no guest is in the table.
const C4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
const C6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);

/// Runs `body` with every program, under every outer family: A lives at the sender, B at the host.
fn everywhere(settings: &Settings, body: impl Fn(&mut Loaded, Under)) {
    for kind in [Kind::Xdp, Kind::Tc] {
        for under in [Under::Ip4, Under::Ip6] {
            let Some(mut loaded) = Loaded::new(kind, settings) else {
                tollway_testkit::skip!("programs may not be loaded here: it needs root");
            };
            let a = Neighbour::new(GUEST_A, under.sender(), SENDER_MAC, 1);
            let b = Neighbour::new(GUEST_B, under.host(), HOST_MAC, 1);
            for (of_a, of_b) in guests() {
                loaded.teach(VNI, of_a, a);
                loaded.teach(VNI, of_b, b);
            }
            eprintln!("{kind:?} under {under:?}");
            body(&mut loaded, under);
        }
    }
}

/// Each kind of packet that has a source: data, ARP and solicitations, for `to4` and `to6`.
fn packets(from4: Ipv4Addr, from6: Ipv6Addr, to4: Ipv4Addr, to6: Ipv6Addr) -> [Vec<u8>; 4] {
    let (group_mac, group) = solicited_group(to6);
    [
        guest_frame(GUEST_B, GUEST_A, from4.into(), to4.into(), 9),
        guest_frame(GUEST_B, GUEST_A, from6.into(), to6.into(), 9),
        arp((EVERYBODY, GUEST_A), 1, (GUEST_A, from4), (NOBODY, to4)),
        neighbour_message(
            (group_mac, GUEST_A),
            (from6, group),
            135,
            0,
            to6,
            &mac_option(1, GUEST_A),
        ),
    ]
}

fn stranger(under: Under) -> IpAddr {
    match under {
        Under::Ip4 => "192.0.2.66".parse().unwrap(),
        Under::Ip6 => "2001:db8::66".parse().unwrap(),
    }
}

fn check_answered(loaded: &mut Loaded, frame: &[u8]) {
    assert_eq!(loaded.run(frame).0, Done::Return, "{frame:02x?}");
}

#[test]
fn a_host_cannot_send_in_the_name_of_anothers_guest() {
    for check in [SourceCheck::Known, SourceCheck::Strict] {
        everywhere(&settings().with_source_check(check), |loaded, under| {
            let forged = Outer { from: stranger(under), ..under.question() };
            for inner in packets(A4, A6, B4, B6) {
                check_answered(loaded, &under.question().around(&inner));
                check_drop(loaded, &forged.around(&inner), Total::SourceForeign);
            }
            // Nor does it cause look-ups in that name.
            for inner in packets(A4, A6, Ipv4Addr::new(10, 9, 9, 9), "fd00::9".parse().unwrap()) {
                check_drop(loaded, &forged.around(&inner), Total::SourceForeign);
            }
            assert_eq!(loaded.missed(), []);
            assert_eq!(loaded.counters(VNI).unwrap().dropped, 8);
            // In another network the same address is another guest.
            loaded.teach(5, B4.into(), Neighbour::new(GUEST_B, under.host(), HOST_MAC, 1));
            loaded.teach(5, A4.into(), Neighbour::new(GUEST_A, stranger(under), SENDER_MAC, 1));
            let inner = guest_frame(GUEST_B, GUEST_A, A4.into(), B4.into(), 9);
            check_answered(loaded, &Outer { vni: 5, ..forged }.around(&inner));
        });
    }
}

#[test]
fn sources_are_not_checked_when_that_is_off() {
    everywhere(&settings().with_source_check(SourceCheck::Off), |loaded, under| {
        let forged = Outer { from: stranger(under), ..under.question() };
        for inner in packets(A4, A6, B4, B6) {
            check_answered(loaded, &forged.around(&inner));
        }
        assert_eq!(loaded.total(Total::SourceUnverified), 0);
    });
}

#[test]
fn a_source_without_an_entry_passes_and_is_counted() {
    everywhere(&settings(), |loaded, under| {
        for inner in packets(C4, C6, B4, B6) {
            check_answered(loaded, &under.question().around(&inner));
        }
        assert_eq!(loaded.total(Total::SourceUnverified), 4);
    });
}

#[test]
fn an_invented_source_is_dropped_when_the_check_is_strict() {
    everywhere(&settings().with_source_check(SourceCheck::Strict), |loaded, under| {
        for inner in packets(C4, C6, B4, B6) {
            check_drop(loaded, &under.question().around(&inner), Total::SourceUnknown);
        }
    });
}

#[test]
fn a_question_that_claims_no_source_is_answered_whatever_the_check() {
    for check in [SourceCheck::Known, SourceCheck::Strict] {
        everywhere(&settings().with_source_check(check), |loaded, under| {
            let (group_mac, group) = solicited_group(B6);
            let none = Ipv6Addr::UNSPECIFIED;
            let probe =
                arp((EVERYBODY, GUEST_A), 1, (GUEST_A, Ipv4Addr::UNSPECIFIED), (NOBODY, B4));
            let search = neighbour_message((group_mac, GUEST_A), (none, group), 135, 0, B6, &[]);
            for inner in [probe, search] {
                check_answered(loaded, &under.question().around(&inner));
            }
        });
    }
}

/// Packets for `count` addresses that do not exist, each with the source that `source` gives for
/// its number: how many reports come of them at most, if one sender has sent them all.
fn scan(
    loaded: &mut Loaded,
    outer: &Outer,
    count: u16,
    source: impl Fn(u16) -> Ipv6Addr,
) -> (usize, usize) {
    let start = std::time::Instant::now();
    for number in 0..count {
        let to = Ipv6Addr::new(0xfd00, 0, 0, 7, 0, 0, outer.vni as u16, number);
        let inner = guest_frame(GUEST_B, GUEST_A, source(number).into(), to.into(), 9);
        check_drop(loaded, &outer.around(&inner), Total::Missed);
    }
    let seconds = start.elapsed().as_secs() as usize + 1;
    (loaded.missed().len(), (1 + seconds) * SENDER_MISSES_MAX as usize)
}

/// That a miss of a packet from `source` is reported.
#[track_caller]
fn check_reported(loaded: &mut Loaded, outer: &Outer, source: IpAddr) {
    let to: IpAddr = match source {
        IpAddr::V4(_) => "10.9.9.9".parse().unwrap(),
        IpAddr::V6(_) => "fd00::9".parse().unwrap(),
    };
    let inner = guest_frame(GUEST_B, GUEST_A, source, to, 9);
    check_drop(loaded, &outer.around(&inner), Total::Missed);
    assert_eq!(loaded.missed(), [Address::new(outer.vni, to)]);
}

#[test]
fn a_guest_that_scans_a_network_does_not_take_the_reports_of_others() {
    for check in [SourceCheck::Off, SourceCheck::Known, SourceCheck::Strict] {
        everywhere(&settings().with_source_check(check), |loaded, under| {
            let (reported, most) = scan(loaded, &under.question(), 2000, |_| A6);
            assert!((1..=most).contains(&reported), "{reported} of {most}");
            assert!(loaded.total(Total::MissLimited) >= 2000 - most as u64);
            // Another guest of the same host, and one of another host.
            let neighbour = Neighbour::new(GUEST_A, under.sender(), SENDER_MAC, 1);
            loaded.teach(VNI, C6.into(), neighbour);
            check_reported(loaded, &under.question(), C6.into());
            let other = Outer { from: under.host(), ..under.question() };
            check_reported(loaded, &other, B4.into());
        });
    }
}

#[test]
fn sources_that_a_guest_invents_have_one_share_together() {
    for check in [SourceCheck::Off, SourceCheck::Known] {
        everywhere(&settings().with_source_check(check), |loaded, under| {
            let invented = |number| Ipv6Addr::new(0xfd00, 0, 0, 8, 0, 0, 0, number);
            let (reported, most) = scan(loaded, &under.question(), 2000, invented);
            assert!((1..=most).contains(&reported), "{reported} of {most}");
            // Its network invented too.
            let network = Outer { vni: 77, ..under.question() };
            let (reported, most) = scan(loaded, &network, 500, invented);
            assert!(reported <= most, "{reported} of {most}");
            // Guests that do live there, and unknown ones of other hosts, have their own.
            check_reported(loaded, &under.question(), A4.into());
            let other = Outer { from: stranger(under), ..under.question() };
            check_reported(loaded, &other, C6.into());
        });
    }
}

#[test]
fn guests_of_one_network_do_not_take_the_reports_of_another() {
    const OF_NETWORK: u32 = 100;
    let settings = settings().with_misses(SENDER_MISSES_MAX, OF_NETWORK);
    everywhere(&settings, |loaded, under| {
        let neighbour = Neighbour::new(GUEST_A, under.sender(), SENDER_MAC, 1);
        let guest = |number: u16| Ipv6Addr::new(0xfd00, 0, 0, 9, 0, 0, 0, number % 50);
        (0..50).for_each(|number| loaded.teach(VNI, guest(number).into(), neighbour));
        let start = std::time::Instant::now();
        let (reported, _) = scan(loaded, &under.question(), 2000, guest);
        let most = (start.elapsed().as_secs() as usize + 2) * OF_NETWORK as usize;
        assert!((1..=most).contains(&reported), "{reported} of {most}");
        loaded.teach(5, A4.into(), neighbour);
        check_reported(loaded, &Outer { vni: 5, ..under.question() }, A4.into());
    });
}

#[test]
fn hosts_that_invent_everything_leave_reports_to_guests_of_their_own_host() {
    everywhere(&settings(), |loaded, under| {
        let start = std::time::Instant::now();
        let mut reported = 0;
        for number in 0..5 * NETWORK_MISSES_MAX as u16 {
            let from: IpAddr = match under {
                Under::Ip4 => Ipv4Addr::from(0xc612_0000 + u32::from(number)).into(),
                Under::Ip6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 5, 0, 0, 0, number).into(),
            };
            let outer = Outer { from, vni: u32::from(number), ..under.question() };
            let inner = guest_frame(GUEST_B, GUEST_A, C4.into(), B4.into(), 9);
            check_drop(loaded, &outer.around(&inner), Total::Missed);
            reported += loaded.missed().len();
        }
        let most = (start.elapsed().as_secs() as usize + 2) * NETWORK_MISSES_MAX as usize;
        assert!((1..=most).contains(&reported), "{reported} of {most}");
        check_reported(loaded, &under.question(), A4.into());
    });
}

#[test]
fn a_sender_that_stops_has_its_share_again() {
    everywhere(&settings().with_misses(1000, 1000), |loaded, under| {
        scan(loaded, &under.question(), 3000, |_| A6);
        // A thousandth of a second gives one back.
        tollway_testkit::retry_until(std::time::Duration::from_secs(20), "a report", || {
            let inner = guest_frame(GUEST_B, GUEST_A, A4.into(), C4.into(), 9);
            loaded.run(&under.question().around(&inner));
            loaded.missed().pop()
        })
        .unwrap();
    });
}
