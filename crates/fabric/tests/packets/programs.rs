//! The programs in the kernel, run on single frames (BPF_PROG_TEST_RUN), XDP and tc side by side.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use aya::maps::{MapData, RingBuf};
use aya::{TestRun, TestRunOptions};
use tollway_fabric::layout::{Address, Counters, Link, Neighbour, Settings, Total};
use tollway_fabric::{Counts, LoadError, Programs, batch, link_key};

use crate::frames::{Mac, VXLAN_PORT};

pub(crate) const OWN_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub(crate) const OWN_IP4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub(crate) const OWN_IP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// What is done with a frame.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Done {
    Pass,
    Drop,
    /// Leaves by the device it came in.
    Return,
    /// Leaves by another.
    Redirect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Xdp,
    Tc,
}

/// A program with tables of its own, which nothing is attached to.
pub(crate) struct Loaded {
    kind: Kind,
    programs: Programs,
    table: MapData,
    misses: RingBuf<MapData>,
    counts: Counts,
}

impl Loaded {
    /// `None` where the kernel does not let us.
    pub(crate) fn new(kind: Kind, settings: &Settings) -> Option<Self> {
        let mut programs = match Programs::load(settings, 1000, None) {
            Err(LoadError::NotPermitted { .. }) => return None,
            other => other.unwrap(),
        };
        let table = programs.neighbours().unwrap();
        let misses = programs.misses().unwrap();
        let counts = programs.counts().unwrap();
        match kind {
            Kind::Xdp => drop(programs.xdp().unwrap().fd().unwrap()),
            Kind::Tc => drop(programs.tc().unwrap().fd().unwrap()),
        }
        Some(Self { kind, programs, table, misses, counts })
    }

    pub(crate) fn teach(&self, vni: u32, ip: IpAddr, neighbour: Neighbour) {
        batch::update(self.table.fd().as_fd(), &[Address::new(vni, ip)], &[neighbour]).unwrap();
    }

    pub(crate) fn add_link(&mut self, network: IpAddr, prefix_bits: u8, link: Link) {
        let mut links = self.programs.links().unwrap();
        links.insert(&link_key(network, prefix_bits), link, 0).unwrap();
    }

    /// What is done with a frame, and the frame then.
    pub(crate) fn run(&mut self, frame: &[u8]) -> (Done, Vec<u8>) {
        let mut out = vec![0; 2048];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::new()
        };
        let (result, done) = match self.kind {
            Kind::Xdp => {
                let result = self.programs.xdp().unwrap().test_run(options).unwrap();
                let done = match result.return_value {
                    1 => Done::Drop,
                    2 => Done::Pass,
                    3 => Done::Return,
                    4 => Done::Redirect,
                    other => panic!("XDP does not know {other}"),
                };
                (result, done)
            }
            Kind::Tc => {
                let result = self.programs.tc().unwrap().test_run(options).unwrap();
                let done = match result.return_value {
                    u32::MAX => Done::Pass,
                    2 => Done::Drop,
                    7 => Done::Return,
                    other => panic!("tc does not know {other}"),
                };
                (result, done)
            }
        };
        out.truncate(result.data_size_out as usize);
        (done, out)
    }

    /// Keys reported as missed since the last call.
    pub(crate) fn missed(&mut self) -> Vec<Address> {
        std::iter::from_fn(|| self.misses.next().and_then(|item| Address::from_report(&item)))
            .collect()
    }

    pub(crate) fn total(&self, total: Total) -> u64 {
        let totals = self.counts.totals().unwrap();
        totals.into_iter().find(|(found, _)| *found == total).unwrap().1
    }

    pub(crate) fn counters(&self, vni: u32) -> Option<Counters> {
        let networks = self.counts.networks().unwrap();
        networks.into_iter().find(|(found, _)| *found == vni).map(|(_, counters)| counters)
    }
}

pub(crate) fn settings() -> Settings {
    Settings::new(OWN_MAC, VXLAN_PORT, OWN_IP4, OWN_IP6)
}
