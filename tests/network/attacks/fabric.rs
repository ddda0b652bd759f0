//! Packets of a host that is not to be believed, at a forwarder between two hosts.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use tollway_testkit::tunnels::{GUESTS, Guest, Side, VNI};
use tollway_testkit::{Process, cpu_time};

use super::clock::{cores, cpu, resident};
use super::world::{Calls, Newcomers};
use super::{Extent, Row};
use crate::fabric::NOT_PERMITTED;
use crate::fabric::parts::Fabric;

#[path = "../../../crates/fabric/tests/packets/frames.rs"]
#[allow(dead_code, reason = "what other tests make of it is theirs")]
mod frames;

pub(crate) const FORGED: &str = "packets in another guest's name";
pub(crate) const SCAN: &str = "a scan of addresses that do not exist";

/// A guest of host A, in whose name host B sends.
const TRUSTED: Guest = Guest { ip: "10.0.0.7", mac: [0x0a, 0, 0, 0, 0, 7], ..GUESTS[0] };
const EVERY: Duration = Duration::from_millis(50);

struct Lab {
    fabric: Fabric,
    agent: Process,
    /// At host A's guest.
    socket: UdpSocket,
    /// At host B.
    sender: UdpSocket,
}

impl Lab {
    fn start(name: &str) -> Result<Self, String> {
        let fabric = Fabric::start(name).ok_or(NOT_PERMITTED)?;
        let journal = fabric.files.path().join("journal");
        let agent = fabric.agent(journal.to_str().unwrap(), &[]);
        fabric.teach_of(&[&GUESTS[..], &[TRUSTED]].concat());
        fabric.settled();
        fabric.tunnels.ping(Side::A, GUESTS[2].ip);
        let guest: Ipv4Addr = GUESTS[0].ip.parse().unwrap();
        let at = |side: Side, ip: Ipv4Addr| {
            let bound = fabric.tunnels.namespace(side).run(|| UdpSocket::bind((ip, 0)));
            bound.unwrap().unwrap()
        };
        let (socket, sender) = (at(Side::A, guest), at(Side::B, "10.2.0.2".parse().unwrap()));
        socket.set_nonblocking(true).unwrap();
        Ok(Self { fabric, agent, socket, sender })
    }

    /// A packet of host B with an inner source of its own choice, as any program there sends it.
    fn forge(&self, from: &Guest, to: Ipv4Addr) {
        let source: Ipv4Addr = from.ip.parse().unwrap();
        let port = self.socket.local_addr().unwrap().port();
        let datagram = frames::udp(source.into(), to.into(), 9, port, b"?", true);
        let (mac, own) = (GUESTS[0].mac, GUESTS[2].mac);
        let inner = frames::guest_packet(mac, own, source.into(), to.into(), 9, 0, &datagram);
        let packet = [&[0x08, 0, 0, 0][..], &(VNI << 8).to_be_bytes(), &inner].concat();
        self.sender.send_to(&packet, "10.2.0.1:4789").unwrap();
    }

    /// What has come, by its source.
    fn received(&self, from: &Guest) -> usize {
        let (mut bytes, mut count) = ([0; 64], 0);
        let from: Ipv4Addr = from.ip.parse().unwrap();
        while let Ok((_, source)) = self.socket.recv_from(&mut bytes) {
            count += usize::from(source.ip() == from);
        }
        count
    }

    fn packets(&self, outcome: &str) -> u64 {
        self.fabric.status()["packets"][outcome].as_u64().unwrap_or_default()
    }

    /// Echoes between the guests for so long, and what is done meanwhile.
    fn echoes<T>(&self, time: Duration, meanwhile: impl FnOnce() -> T) -> (Calls, T) {
        let sent = u32::try_from(time.as_millis() / EVERY.as_millis()).unwrap();
        let pinging = self.fabric.tunnels.ping_on(Side::A, GUESTS[2].ip, sent, EVERY);
        let done = meanwhile();
        let answers = pinging.answers() as u64;
        (Calls { sent: sent.into(), lost: u64::from(sent) - answers, p99_ms: None }, done)
    }

    /// `attack` beside echoes: what was sent, what came of it, and what is wrong with that.
    fn weigh(
        &self,
        (name, extent): (&'static str, &Extent),
        attack: impl FnOnce(&Self) -> (String, String, Vec<String>),
    ) -> Row {
        let ours = [&self.fabric.control, &self.agent];
        let began = (Instant::now(), cpu(&ours));
        let (calm, ()) = self.echoes(extent.time / 2, || ());
        let (calm_cores, before_bytes) = (cores(&ours, began), resident(&ours));
        let began = (Instant::now(), cpu(&ours));
        let own = cpu_time(std::process::id()).unwrap();
        let (beside, (sent, got, mut wrong)) = self.echoes(extent.time, || attack(self));
        let own = (cpu_time(std::process::id()).unwrap() - own).as_secs_f64();
        let cores = cores(&ours, began);
        let attacker_cores = own / began.0.elapsed().as_secs_f64();
        let (after, ()) = self.echoes(extent.time / 2, || ());
        for calls in [&beside, &after] {
            if calls.lost > 0 {
                wrong.push(format!("{} echoes were lost", calls.lost));
            }
        }
        Row {
            attack: name,
            attacker: "host with guests",
            sent,
            got,
            attacker_cores,
            calm_cores,
            cores,
            before_bytes,
            most_bytes: resident(&ours).max(before_bytes),
            calm,
            beside,
            after,
            newcomers: Newcomers::default(),
            wrong,
        }
    }
}

pub(crate) fn forged(extent: &Extent) -> Result<Row, String> {
    let lab = Lab::start("forged")?;
    Ok(lab.weigh((FORGED, extent), |lab| {
        let guest: Ipv4Addr = GUESTS[0].ip.parse().unwrap();
        let (began, mut sent, mut arrived) = (Instant::now(), 0, 0);
        while began.elapsed() < extent.time {
            lab.forge(&TRUSTED, guest);
            sent += 1;
            arrived += lab.received(&TRUSTED);
            std::thread::sleep(Duration::from_micros(500));
        }
        // The same packets under its own name arrive, so these are good ones.
        std::thread::sleep(EVERY);
        arrived += lab.received(&TRUSTED);
        lab.forge(&GUESTS[2], guest);
        std::thread::sleep(EVERY * 4);
        let own = lab.received(&GUESTS[2]);
        let dropped = lab.packets("source_foreign");
        let mut wrong = Vec::new();
        if arrived > 0 {
            wrong.push(format!("{arrived} packets arrive in another guest's name"));
        }
        if own != 1 {
            wrong.push(format!("{own} packets of its own arrive"));
        }
        let got = format!("{arrived} arrive; {dropped} are counted as source_foreign");
        (format!("{sent} VXLAN packets"), got, wrong)
    }))
}

pub(crate) fn scan(extent: &Extent) -> Result<Row, String> {
    let lab = Lab::start("scan")?;
    Ok(lab.weigh((SCAN, extent), |lab| {
        let (began, mut sent) = (Instant::now(), 0_u32);
        while began.elapsed() < extent.time {
            for _ in 0..50 {
                lab.forge(&GUESTS[2], Ipv4Addr::from(0x0a01_0000 + sent));
                sent += 1;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let (missed, limited) = (lab.packets("missed"), lab.packets("miss_limited"));
        let mut wrong = Vec::new();
        // 64 a second, and a second's worth at the beginning.
        let most = 64.0 * (began.elapsed().as_secs_f64() + 2.0);
        let reported = missed.saturating_sub(limited);
        if reported as f64 > most {
            wrong.push(format!("{reported} misses are reported"));
        }
        let got = format!("{reported} are looked up, {limited} are not");
        (format!("{sent} packets to as many addresses"), got, wrong)
    }))
}
