//! Frames of virtual networks through the programs of the fabric, in the kernel, beside a reader
//! of another project. XDP and tc must do the same with a frame.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use aya::maps::MapData;
use aya::programs::ProgramError;
use aya::{TestRun, TestRunOptions};
use tollway_fabric::layout::{Address, Mac, Neighbour, Settings, SourceCheck, Total};
use tollway_fabric::{Counts, LoadError, Programs, batch};

use self::reading::{Guest, Question, Tunnel, claimed_source, destination, guest, tunnel};

mod reading;

const OWN_MAC: Mac = [2, 0, 0, 0, 0, 1];
const OWN_IP4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OWN_IP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const PORT: u16 = 4789;
const VNI: u32 = 0x00ab_cdef;
/// The kernel runs a program on no shorter frame.
const LEAST_BYTES: usize = 14;
const CHECKS: [SourceCheck; 3] = [SourceCheck::Off, SourceCheck::Known, SourceCheck::Strict];

/// Any bytes as a frame; the first chooses how sources are checked.
pub(crate) fn run(data: &[u8]) {
    thread_local! {
        static FABRIC: RefCell<Option<Vec<[Loaded; 2]>>> = RefCell::new(load());
    }
    FABRIC.with_borrow_mut(|fabric| {
        let (Some(fabric), Some((first, frame))) = (fabric, data.split_first()) else { return };
        if frame.len() < LEAST_BYTES {
            return;
        }
        let choice = usize::from(*first) % CHECKS.len();
        let [xdp, tc] = &mut fabric[choice];
        let done = xdp.run(frame).expect("XDP runs on any frame");
        if let Some(by_tc) = tc.run(frame) {
            assert_eq!(by_tc, done, "tc does something else than XDP");
        }
        check(CHECKS[choice], frame, &done);
    });
}

/// Whether programs may be loaded here, which takes root.
#[must_use]
pub fn may_load() -> bool {
    !matches!(Loaded::new(Hook::Xdp, SourceCheck::Off), Err(LoadError::NotPermitted { .. }))
}

fn load() -> Option<Vec<[Loaded; 2]>> {
    let both = |check| Ok([Loaded::new(Hook::Xdp, check)?, Loaded::new(Hook::Tc, check)?]);
    match CHECKS.into_iter().map(both).collect() {
        Ok(loaded) => Some(loaded),
        Err(LoadError::NotPermitted { .. }) => None,
        Err(error) => panic!("the programs do not load: {error}"),
    }
}

/// Guests on hosts of either family. Those that send live at the senders of the seeds.
fn neighbours() -> BTreeMap<IpAddr, Neighbour> {
    let host4 = |n| IpAddr::from(Ipv4Addr::new(192, 0, 2, n));
    let host6 = |n| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n));
    let mut all = BTreeMap::new();
    for (n, host) in [(1, host4(2)), (2, host4(3)), (3, host6(3)), (9, host6(2))] {
        let neighbour =
            Neighbour::new([0x0a, 0, 0, 0, 0, n], host, [2, 0, 0, 0, 1, n], u64::from(n));
        all.insert(Ipv4Addr::new(10, 0, 0, n).into(), neighbour);
        all.insert(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into(), neighbour);
    }
    all
}

#[derive(Clone, Copy)]
enum Hook {
    Xdp,
    Tc,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    Drop,
    /// Leaves by the device that it came in.
    Return,
}

#[derive(Debug, PartialEq, Eq)]
struct Done {
    verdict: Verdict,
    /// What was counted. How a miss is reported depends on the frames before.
    counted: Vec<Total>,
    frame: Vec<u8>,
}

struct Loaded {
    hook: Hook,
    programs: Programs,
    counts: Counts,
    _table: MapData,
}

impl Loaded {
    fn new(hook: Hook, check: SourceCheck) -> Result<Self, LoadError> {
        let settings = Settings::new(OWN_MAC, PORT, OWN_IP4, OWN_IP6).with_source_check(check);
        let mut programs = Programs::load(&settings, 100, None)?;
        let table = programs.neighbours()?;
        let counts = programs.counts()?;
        match hook {
            Hook::Xdp => drop(programs.xdp()?),
            Hook::Tc => drop(programs.tc()?),
        }
        for (ip, neighbour) in neighbours() {
            batch::update(table.fd().as_fd(), &[Address::new(VNI, ip)], &[neighbour])
                .expect("the table takes it");
        }
        Ok(Self { hook, programs, counts, _table: table })
    }

    fn totals(&self) -> Vec<(Total, u64)> {
        self.counts.totals().expect("they can be read")
    }

    /// `None` where the kernel does not run the program: for tc on less than a whole IP header.
    fn run(&mut self, frame: &[u8]) -> Option<Done> {
        let before = self.totals();
        let mut out = vec![0; frame.len() + 256];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::new()
        };
        let (result, verdict) = match self.hook {
            Hook::Xdp => {
                let program = self.programs.xdp().expect("it is loaded");
                let result = program.test_run(options).expect("it runs");
                let verdict = match result.return_value {
                    1 => Verdict::Drop,
                    2 => Verdict::Pass,
                    3 => Verdict::Return,
                    other => panic!("XDP has no use for {other}"),
                };
                (result, verdict)
            }
            Hook::Tc => {
                let program = self.programs.tc().expect("it is loaded");
                let result = match program.test_run(options) {
                    Err(ProgramError::SyscallError(refused)) if is_too_short(&refused.io_error) => {
                        return None;
                    }
                    result => result.expect("it runs"),
                };
                let verdict = match result.return_value {
                    u32::MAX => Verdict::Pass,
                    2 => Verdict::Drop,
                    7 => Verdict::Return,
                    other => panic!("tc has no use for {other}"),
                };
                (result, verdict)
            }
        };
        out.truncate(result.data_size_out as usize);
        let mut counted = Vec::new();
        for ((total, before), (_, after)) in before.into_iter().zip(self.totals()) {
            assert!(after - before <= 1, "{total:?} is counted twice");
            if after > before && !matches!(total, Total::MissUnreported | Total::MissLimited) {
                counted.push(total);
            }
        }
        Some(Done { verdict, counted, frame: out })
    }
}

fn is_too_short(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::InvalidInput
}

fn check(check: SourceCheck, frame: &[u8], done: &Done) {
    let asked = tunnel(frame).filter(|asked| {
        let own = [IpAddr::from(OWN_IP4), OWN_IP6.into()];
        asked.to_mac == OWN_MAC && own.contains(&asked.to) && asked.to_port == PORT
    });
    let mut counted = done.counted.clone();
    let is_unverified = counted.contains(&Total::SourceUnverified);
    counted.retain(|total| *total != Total::SourceUnverified);
    match done.verdict {
        Verdict::Pass => {
            assert_eq!(done.frame, frame, "the kernel gets another frame");
            assert!(matches!(counted[..], [] | [Total::OuterFragment]), "{counted:?}");
            assert!(asked.is_none(), "VXLAN to this forwarder is not taken: {asked:?}");
        }
        Verdict::Drop => {
            let [why] = counted[..] else { panic!("dropped, and counted as {counted:?}") };
            assert!(is_reason(why), "dropped, and counted as {why:?}");
            if let Some(asked) = &asked {
                check_drop(check, asked, why);
            }
        }
        Verdict::Return => {
            let asked = asked.expect("nothing but VXLAN to this forwarder leaves");
            let sent = tunnel(&done.frame).expect("what leaves is VXLAN");
            assert!(check != SourceCheck::Strict || !is_unverified);
            check_source(check, &asked);
            assert_eq!((sent.vni, sent.from, sent.from_mac), (asked.vni, asked.to, OWN_MAC));
            assert_eq!((sent.from_port, sent.to_port), (asked.from_port, asked.to_port));
            match counted[..] {
                [Total::Forwarded] => check_forwarded(&asked, &sent),
                [Total::AnsweredArp | Total::AnsweredNd] => check_answer(&asked, &sent),
                _ => panic!("it leaves, and is counted as {counted:?}"),
            }
            assert!(!asked.is_ip_sum_right || sent.is_ip_sum_right, "the outer checksum is off");
            assert!(!asked.is_udp_sum_right || sent.is_udp_sum_right, "the UDP checksum is off");
        }
    }
}

fn is_reason(total: Total) -> bool {
    matches!(
        total,
        Total::Missed
            | Total::Malformed
            | Total::Unsupported
            | Total::Flood
            | Total::Expired
            | Total::NoLink
            | Total::SourceForeign
            | Total::SourceUnknown
    )
}

fn lives_at(vni: u32, ip: IpAddr) -> Option<Neighbour> {
    neighbours().get(&ip).filter(|_| vni == VNI).copied()
}

/// A whole packet to a guest in the table is dropped for its source or its hops alone.
fn check_drop(check: SourceCheck, asked: &Tunnel, why: Total) {
    let Some(Guest::Packet { to, hops, is_whole: true, solicits, .. }) = guest(&asked.inner) else {
        return;
    };
    let Some(neighbour) = lives_at(asked.vni, to).filter(|_| asked.is_whole) else { return };
    if why == Total::Expired {
        assert!(asked.hops <= 1 || hops <= 1);
    } else if why == Total::NoLink {
        assert_ne!(neighbour.host_ip().is_ipv4(), asked.to.is_ipv4());
    } else if matches!(why, Total::SourceForeign | Total::SourceUnknown) {
        let from = claimed_source(&asked.inner).expect("a packet names its source");
        let home = lives_at(asked.vni, from).map(|source| source.host_ip());
        assert_ne!(home, Some(asked.from), "a guest at home is refused");
        assert_eq!(home.is_some(), why == Total::SourceForeign);
        assert!(check != SourceCheck::Off);
    } else {
        // Solicitations may go to the address itself.
        assert!(solicits, "a packet to a known guest is dropped as {why:?}");
    }
}

fn check_source(check: SourceCheck, asked: &Tunnel) {
    let Some(from) = claimed_source(&asked.inner) else { return };
    let home = lives_at(asked.vni, from).map(|source| source.host_ip());
    match check {
        SourceCheck::Off => {}
        SourceCheck::Known => assert!(home.is_none_or(|home| home == asked.from)),
        SourceCheck::Strict => assert_eq!(home, Some(asked.from)),
    }
}

fn check_forwarded(asked: &Tunnel, sent: &Tunnel) {
    let to = destination(&asked.inner).expect("only packets are forwarded");
    let neighbour = lives_at(asked.vni, to).expect("only to guests in the table");
    assert_eq!((sent.to, sent.to_mac), (neighbour.host_ip(), neighbour.host_mac));
    assert_eq!(sent.hops + 1, asked.hops);
    let mut expected = asked.inner.clone();
    if expected[..6] != neighbour.mac {
        expected[..6].copy_from_slice(&neighbour.mac);
        let hops = if to.is_ipv4() { 14 + 8 } else { 14 + 7 };
        expected[hops] -= 1;
        assert!(expected[hops] > 0, "a packet without hops is forwarded");
        if to.is_ipv4() {
            let sum = 14 + 10..14 + 12;
            expected[sum.clone()].copy_from_slice(&sent.inner[sum]);
            let [before, after] = [&asked.inner, &sent.inner].map(|frame| reading::ip4_sum(frame));
            assert!(!before || after, "the inner checksum is off");
        }
    }
    assert_eq!(sent.inner, expected, "more is changed than the way");
}

fn check_answer(asked: &Tunnel, sent: &Tunnel) {
    assert_eq!((sent.to, sent.to_mac, sent.hops), (asked.from, asked.from_mac, 64));
    let read = guest(&asked.inner).and_then(|read| read.question());
    let Question { about, from } = read.expect("only questions are answered");
    let owner = lives_at(asked.vni, about).expect("only for guests in the table");
    let answer = guest(&sent.inner).and_then(|read| read.answer()).expect("it is an answer");
    assert_eq!((answer.about, answer.mac), (about, owner.mac));
    assert_eq!(sent.inner[6..12], owner.mac, "the owner answers");
    match from {
        Some(from) => assert_eq!((answer.to, &sent.inner[..6]), (from, &asked.inner[6..12])),
        // To the group of all nodes.
        None => assert_eq!(sent.inner[..6], [0x33, 0x33, 0, 0, 0, 1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corpus is not all refusals.
    #[test]
    fn the_inputs_of_frames_reach_every_outcome() {
        let Some(mut fabric) = load() else {
            println!("skipped: programs may not be loaded here: it needs root");
            return;
        };
        let mut reached = Vec::new();
        for entry in std::fs::read_dir("corpus/frames").unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            if let [first, frame @ ..] = &bytes[..]
                && frame.len() >= LEAST_BYTES
            {
                let [xdp, _] = &mut fabric[usize::from(*first) % CHECKS.len()];
                reached.extend(xdp.run(frame).unwrap().counted);
            }
        }
        let all = [Total::Forwarded, Total::AnsweredArp, Total::AnsweredNd, Total::Missed];
        let refusals = [Total::SourceForeign, Total::SourceUnknown, Total::Expired, Total::NoLink];
        for total in all.into_iter().chain(refusals) {
            assert!(reached.contains(&total), "{total:?}");
        }
    }
}
