//! `tollway lab link`: the process that is one emulated link.
//!
//! It gets the two networks as inherited descriptors, makes a TUN device in each and forwards
//! until SIGTERM. A process of its own so that its CPU time is not taken for the subject's, and
//! a crash breaks only the link.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollway_net::link::{Link, LinkCounts, LinkError, Shape};
use tollway_net::netns::{NetNs, NetnsError};
use tollway_net::tun::{Tun, TunConfig, TunError};

use crate::cancel::Cancel;
use tollway_net::ports_file::{self as ports, Ports, PortsError};

/// Packets the kernel holds for the link before it drops, as on a fast router's port.
const QUEUE_PACKETS: u32 = 10_000;
/// Ethernet's.
const MTU_BYTES: u16 = 1_500;
/// How often the link is checked for a device that failed.
const HEALTH_INTERVAL: Duration = Duration::from_millis(500);

/// One link. Times are for one direction.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct LinkArgs {
    /// Inherited descriptor of the left network's namespace.
    #[arg(long)]
    pub left_fd: RawFd,
    /// Inherited descriptor of the right network's namespace.
    #[arg(long)]
    pub right_fd: RawFd,
    /// Address of the left end; the right network routes it over the link.
    #[arg(long)]
    pub left_address: Ipv4Addr,
    /// Address of the right end; the left network routes it over the link.
    #[arg(long)]
    pub right_address: Ipv4Addr,
    /// Name of the device in the left network.
    #[arg(long)]
    pub left_device: String,
    /// Name of the device in the right network.
    #[arg(long)]
    pub right_device: String,
    /// One-way delay, microseconds.
    #[arg(long)]
    pub delay_us: u64,
    /// The delay varies by up to this, in both directions, microseconds.
    #[arg(long, default_value_t = 0)]
    pub jitter_us: u64,
    /// Bits per second; unlimited when left out.
    #[arg(long)]
    pub rate_bps: Option<u64>,
    /// With a rate: longest wait of a packet before it is dropped, microseconds.
    #[arg(long, default_value_t = 100_000)]
    pub queue_us: u64,
    /// Share of packets lost, 0 to 1.
    #[arg(long, default_value_t = 0.0)]
    pub loss: f64,
    /// Seed of jitter and loss.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Written when the link carries packets: {"left": "address:0", "right": "address:0"}.
    #[arg(long)]
    pub ports_file: PathBuf,
    /// Written at the end: what the link did, as JSON.
    #[arg(long)]
    pub counts_file: PathBuf,
}

/// Why the link process ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum LinkCommandError {
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error(transparent)]
    Tun(#[from] TunError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Ports(#[from] PortsError),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error("cannot write {path}")]
    Counts { path: PathBuf, source: io::Error },
    #[error("the link stopped forwarding by itself")]
    Stopped,
}

/// What a link did, by direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkReport {
    pub left_to_right: DirectionReport,
    pub right_to_left: DirectionReport,
}

/// Packets of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DirectionReport {
    pub delivered_packets: u64,
    pub delivered_bytes: u64,
    pub lost_packets: u64,
    pub overflowed_packets: u64,
    pub refused_packets: u64,
}

impl LinkArgs {
    /// The arguments as [`clap`] reads them back.
    #[must_use]
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec![
            ("--left-fd", self.left_fd.to_string()),
            ("--right-fd", self.right_fd.to_string()),
            ("--left-address", self.left_address.to_string()),
            ("--right-address", self.right_address.to_string()),
            ("--left-device", self.left_device.clone()),
            ("--right-device", self.right_device.clone()),
            ("--delay-us", self.delay_us.to_string()),
            ("--jitter-us", self.jitter_us.to_string()),
            ("--queue-us", self.queue_us.to_string()),
            ("--loss", self.loss.to_string()),
            ("--seed", self.seed.to_string()),
            ("--ports-file", self.ports_file.to_string_lossy().into_owned()),
            ("--counts-file", self.counts_file.to_string_lossy().into_owned()),
        ];
        args.extend(self.rate_bps.map(|rate| ("--rate-bps", rate.to_string())));
        args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Both directions do the same; each rolls its own dice.
    fn shape(&self, direction: u64) -> Shape {
        Shape {
            delay: Duration::from_micros(self.delay_us),
            jitter: Duration::from_micros(self.jitter_us),
            rate_bits_per_s: self.rate_bps,
            queue: Duration::from_micros(self.queue_us),
            loss: self.loss,
            largest_bytes: None,
            seed: self.seed.wrapping_mul(2).wrapping_add(direction),
        }
    }
}

/// Forwards until SIGTERM or SIGINT, then writes the counts.
pub fn run_link(args: &LinkArgs) -> Result<(), LinkCommandError> {
    let stop = Cancel::on_signals().map_err(LinkCommandError::Signals)?;
    go_first();
    let link = open_link(args)?;
    let end = |address: Ipv4Addr| (address, 0).into();
    let ports = Ports::from([
        ("left".to_owned(), end(args.left_address)),
        ("right".to_owned(), end(args.right_address)),
    ]);
    ports::write(&args.ports_file, &ports)?;
    while stop.sleep(HEALTH_INTERVAL).is_ok() {
        if !link.is_running() {
            return Err(link.stop().err().map_or(LinkCommandError::Stopped, Into::into));
        }
    }
    let [left_to_right, right_to_left] = link.stop()?.map(report_of);
    write_report(args, LinkReport { left_to_right, right_to_left })
}

/// A wire does not wait for a processor: where the lab may, its links go before other processes,
/// or the delay would grow with the load of the machine. Threads started later inherit it.
pub(crate) fn go_first() {
    const HIGHEST_NICE: i32 = -20;
    // Without the right to it the link is less exact under load, which its measured round trip
    // then shows.
    let _ = rustix::process::setpriority_process(None, HIGHEST_NICE);
}

fn open_link(args: &LinkArgs) -> Result<Link, LinkCommandError> {
    let (forth, back) = (args.shape(0), args.shape(1));
    let left = NetNs::from_inherited("left", args.left_fd)?;
    let right = NetNs::from_inherited("right", args.right_fd)?;
    let config = |name: &str, local, peer| TunConfig {
        name: name.into(),
        local,
        peer,
        mtu: MTU_BYTES,
        queue_packets: QUEUE_PACKETS,
        offload: forth.wants_offload(),
    };
    let left_end = config(&args.left_device, args.left_address, args.right_address);
    let right_end = config(&args.right_device, args.right_address, args.left_address);
    let a = left.run(|| Tun::open(&left_end))??;
    let b = right.run(|| Tun::open(&right_end))??;
    Ok(Link::start(a, b, forth, back)?)
}

fn report_of(counts: LinkCounts) -> DirectionReport {
    DirectionReport {
        delivered_packets: counts.delivered,
        delivered_bytes: counts.delivered_bytes,
        lost_packets: counts.lost,
        overflowed_packets: counts.overflowed,
        refused_packets: counts.refused,
    }
}

fn write_report(args: &LinkArgs, report: LinkReport) -> Result<(), LinkCommandError> {
    let path = &args.counts_file;
    let failed = |source| LinkCommandError::Counts { path: path.clone(), source };
    let text = serde_json::to_string(&report).map_err(|error| failed(error.into()))?;
    std::fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        link: LinkArgs,
    }

    #[test]
    fn arguments_survive_the_command_line() {
        let plain = LinkArgs {
            left_fd: 7,
            right_fd: 9,
            left_address: Ipv4Addr::new(10, 201, 0, 1),
            right_address: Ipv4Addr::new(10, 201, 0, 2),
            left_device: "to-far".into(),
            right_device: "to-west".into(),
            delay_us: 69_000,
            jitter_us: 5,
            rate_bps: None,
            queue_us: 20_000,
            loss: 0.001,
            seed: u64::MAX,
            ports_file: "/tmp/p".into(),
            counts_file: "/tmp/c".into(),
        };
        let limited = LinkArgs { rate_bps: Some(1_000_000_000), ..plain.clone() };
        for args in [plain, limited] {
            let words = std::iter::once("link".to_owned()).chain(args.to_args());
            assert_eq!(Cli::try_parse_from(words).unwrap().link, args);
        }
    }
}
