//! `tollway load packets`.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tollway_echo::Stop;
use tollway_load::neighbours::MAX_NEIGHBOURS;
use tollway_load::packets::{
    CountBy, Counter, HEAD_BYTES, MAX_FRAME_BYTES, Outer, PacketOptions, run_packets,
};
use tollway_model::Mac;

use super::duration::duration;
use super::progress::run_and_report;
use super::result_output::OutputArgs;

// In three lines, for narrow terminals: clap does not break a usage.
#[derive(Args)]
#[command(override_usage = "tollway load packets [OPTIONS] --device <NAME>\n       \
    --to-mac <MAC> --from <IP> --to <IP>\n       --count-at <NAME>")]
pub(super) struct PacketsArgs {
    /// The device that they leave by; the device at its other end must take XDP frames.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// The hardware address that frames go to.
    #[arg(long, value_name = "MAC")]
    to_mac: Mac,
    /// The host that packets come from.
    #[arg(long, value_name = "IP")]
    from: Ipv4Addr,
    /// The host that packets go to: the forwarder.
    #[arg(long, value_name = "IP")]
    to: Ipv4Addr,
    /// The virtual network of the neighbours that they are for.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(..1 << 24))]
    vni: u32,
    /// How many neighbours they are for, at random: those that `tollway load neighbours write`
    /// wrote first.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=MAX_NEIGHBOURS as i64)
    )]
    flows: u32,
    /// Bytes of a frame, its headers included.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 114,
        value_parser = clap::value_parser!(u16).range(HEAD_BYTES as i64..=MAX_FRAME_BYTES as i64)
    )]
    size: u16,
    /// The device that they come out at, where they are counted and taken away.
    #[arg(long, value_name = "NAME")]
    count_at: String,
    /// The network namespace of that device, as a file; without it the own one.
    #[arg(long, value_name = "FILE")]
    count_in: Option<PathBuf>,
    /// What counts them there.
    #[arg(long, value_enum, default_value_t = By::Xdp)]
    count_by: By,
    /// A pinned link of XDP on that device whose program only lets packets pass: the program
    /// that counts takes its place.
    #[arg(hide_short_help = true, long, value_name = "PIN")]
    in_place_of: Option<PathBuf>,
    /// How long to measure.
    #[arg(short = 'z', long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    duration: Duration,
    /// Load before the measured time.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    warm_up: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

/// A kind of program.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// XDP in the driver.
    Xdp,
    /// tc, at the device's entrance.
    Tc,
}

pub(super) fn run(args: &PacketsArgs, stop: Stop) -> Result<ExitCode> {
    args.output.check_packets()?;
    let by = match (&args.in_place_of, args.count_by) {
        (Some(pin), _) => CountBy::XdpInPlaceOf(pin.clone()),
        (None, By::Xdp) => CountBy::Xdp,
        (None, By::Tc) => CountBy::Tc,
    };
    let options = PacketOptions {
        device: args.device.clone(),
        outer: Outer { to_mac: args.to_mac.octets(), from: args.from, to: args.to, vni: args.vni },
        flows: args.flows,
        frame_bytes: args.size.into(),
        counter: Counter { device: args.count_at.clone(), namespace: args.count_in.clone(), by },
        lasting: args.duration,
        warm_up: args.warm_up,
        command_line: std::env::args().collect(),
    };
    run_and_report(&args.output, stop, |watch| Ok(run_packets(&options, watch)?))
}
