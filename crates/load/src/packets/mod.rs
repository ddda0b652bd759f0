//! Packets of VXLAN by the million, made in the kernel and counted where they come out: what a
//! forwarder is loaded with.
//!
//! A socket cannot send as many as a forwarder passes on. So a program of XDP writes them, run by
//! `BPF_PROG_TEST_RUN` with live frames (Linux 5.18), and they leave by the device as those of a
//! driver's XDP do. Its C source is in `bpf/`.

mod count;
mod head;
mod programs;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_net::device::{Device, DeviceError};
use tollway_net::netns::NetnsError;
use tollway_record::RunResult;
use tollway_record::record::{Arrival, Protocol};
use tollway_record::traffic::{Bytes, Traffic};

pub use self::head::{HEAD_BYTES, Outer};

use self::count::Counting;
use self::programs::Programs;
use crate::clock::Clock;
use crate::cost::Cost;
use crate::progress::{Phase, Progress, Watch};

/// Longest frame that is made, in bytes: that of a usual Ethernet.
pub const MAX_FRAME_BYTES: usize = 1514;
/// Made at a time: first, and then as many as take about so long.
const FIRST_BURST: u32 = 1 << 14;
const BURST_TIME: Duration = Duration::from_millis(100);
const MOST_IN_BURST: u32 = 1 << 22;
/// Handed to the device at a time.
const BATCH: u32 = 64;
/// Between two reports of the progress.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// At the end of the window, packets in transit have arrived when none came for this long.
const SETTLED: Duration = Duration::from_millis(20);
const SETTLED_AT_THE_LATEST: Duration = Duration::from_secs(2);
/// What failed, of packets that did not come out.
const LOST: &str = "lost";

/// What to make, and where to count it.
#[derive(Clone, Debug)]
pub struct PacketOptions {
    /// The device that they leave by, in this process's network namespace. What is at its other
    /// end must take frames of XDP.
    pub device: String,
    pub outer: Outer,
    /// Neighbours that they go to: of the first round of [`crate::neighbours::Population`], each
    /// with the same probability.
    pub flows: u32,
    /// Length of a frame as the device sends it, without its checksum.
    pub frame_bytes: usize,
    pub counter: Counter,
    pub lasting: Duration,
    pub warm_up: Duration,
    /// Kept in the result as it is.
    pub command_line: Vec<String>,
}

/// Where packets are counted and taken away.
#[derive(Clone, Debug)]
pub struct Counter {
    pub device: String,
    /// A file of the network namespace that the device is in; this process's where there is none.
    pub namespace: Option<PathBuf>,
    pub by: CountBy,
}

/// What counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountBy {
    /// A program of XDP in the driver.
    Xdp,
    /// As `Xdp`, in the place of the program that this pinned link holds there, which only lets
    /// packets pass; afterwards another one does so.
    XdpInPlaceOf(PathBuf),
    /// A program of tc at the device's entrance.
    Tc,
}

/// Why no packets are made or counted.
#[derive(Debug, thiserror::Error)]
pub enum PacketsError {
    #[error("a frame has {HEAD_BYTES} to {MAX_FRAME_BYTES} bytes, not {frame_bytes}")]
    FrameLength { frame_bytes: usize },
    #[error("packets go to at least one neighbour")]
    NoFlow,
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cannot open the network namespace {}", path.display())]
    OpenNamespace { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error(
        "the kernel does not take the programs that make packets and count them; they need Linux \
         5.18, and root or the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Load { source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cannot count packets on {device}")]
    Attach { device: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the kernel made no packets for {device}")]
    Make { device: String, source: io::Error },
    #[error("cannot read how many packets came out")]
    Read { source: Box<dyn std::error::Error + Send + Sync> },
}

/// Makes packets for as long as the options set, as fast as one processor can, and returns how many
/// came out. Those that did not are its errors. There are no latencies. The window is the time in
/// which packets were made, in bursts; the kernel's pauses between bursts are not part of it.
///
/// # Errors
/// [`PacketsError`]: a device that is not there, or a kernel that does not let us.
pub fn run_packets(
    options: &PacketOptions,
    watch: &mut Watch<'_>,
) -> Result<RunResult, PacketsError> {
    if !(HEAD_BYTES..=MAX_FRAME_BYTES).contains(&options.frame_bytes) {
        return Err(PacketsError::FrameLength { frame_bytes: options.frame_bytes });
    }
    if options.flows == 0 {
        return Err(PacketsError::NoFlow);
    }
    let started_at = OffsetDateTime::from(SystemTime::now());
    let device = Device::open(&options.device)?;
    let plan = head::plan(&device, &options.outer, options.flows, options.frame_bytes);
    let mut programs = Programs::load(plan)?;
    let counting = Counting::start(&mut programs, &options.counter)?;
    let window = measure(options, &mut programs, watch);
    // Also when the window was not to be had.
    counting.end(&mut programs);
    let Window { traffic, cost } = window?;
    Ok(RunResult {
        started_at: started_at.format(&Rfc3339).unwrap_or_default(),
        target: format!("{} → {}", options.device, options.counter.device),
        protocol: Protocol::Vxlan,
        arrival: Arrival::Packets,
        payload_bytes: options.frame_bytes as u64,
        warm_up_s: options.warm_up.as_secs_f64(),
        command_line: options.command_line.clone(),
        traffic,
        generator: cost.generator(),
        ..RunResult::default()
    })
}

struct Window {
    traffic: Traffic,
    cost: Cost,
}

fn measure(
    options: &PacketOptions,
    programs: &mut Programs,
    watch: &mut Watch<'_>,
) -> Result<Window, PacketsError> {
    let frame = vec![0; options.frame_bytes];
    let failed = |source| PacketsError::Make { device: options.device.clone(), source };
    let (clock, begun) = (Clock::start(), Instant::now());
    let mut burst = FIRST_BURST;
    while begun.elapsed() < options.warm_up && !watch.stop.is_requested() {
        let took = programs.make(&frame, burst, BATCH).map_err(failed)?;
        burst = next_burst(burst, took);
    }
    let before = settle(programs)?;
    let (mut cost, start_ns) = (Cost::default(), clock.now_ns());
    cost.note(start_ns, start_ns, None);
    let (mut sent, mut took) = (0u64, Duration::ZERO);
    let mut reported = Instant::now();
    while took < options.lasting && !watch.stop.is_requested() {
        took += programs.make(&frame, burst, BATCH).map_err(failed)?;
        sent += u64::from(burst);
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            let progress = Progress {
                phase: Phase::Window,
                elapsed: begun.elapsed(),
                requests: programs.arrived()?.saturating_sub(before),
                errors: 0,
                in_flight: 0,
                waiting: 0,
                last_second: None,
                part: None,
            };
            (watch.report)(&progress);
        }
    }
    let (duration_s, end_ns) = (took.as_secs_f64(), clock.now_ns());
    cost.note(end_ns, start_ns, Some(end_ns));
    let arrived = settle(programs)?.saturating_sub(before).min(sent);
    let lost = sent - arrived;
    let mut traffic = Traffic {
        achieved_rps: if duration_s > 0.0 { arrived as f64 / duration_s } else { 0.0 },
        duration_s,
        requests: arrived,
        errors: lost,
        bytes: Bytes {
            sent: sent * options.frame_bytes as u64,
            received: arrived * options.frame_bytes as u64,
        },
        ..Traffic::default()
    };
    if lost > 0 {
        traffic.errors_by_kind.insert(LOST.to_owned(), lost);
    }
    Ok(Window { traffic, cost })
}

/// As many as take about [`BURST_TIME`], when `packets` took so long.
fn next_burst(packets: u32, took: Duration) -> u32 {
    let bursts = BURST_TIME.div_duration_f64(took.max(Duration::from_nanos(1)));
    ((f64::from(packets) * bursts) as u32).clamp(BATCH, MOST_IN_BURST)
}

/// How many have come out once no more do.
fn settle(programs: &Programs) -> Result<u64, PacketsError> {
    let begun = Instant::now();
    let mut arrived = programs.arrived()?;
    loop {
        std::thread::sleep(SETTLED);
        let now = programs.arrived()?;
        if now == arrived || begun.elapsed() > SETTLED_AT_THE_LATEST {
            return Ok(now);
        }
        arrived = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_has_as_many_packets_as_take_its_time() {
        assert_eq!(next_burst(1_000, Duration::from_millis(1)), 100_000);
        assert_eq!(next_burst(1_000_000, Duration::from_secs(2)), 50_000);
        assert_eq!(next_burst(1_000, Duration::ZERO), MOST_IN_BURST);
        assert_eq!(next_burst(64, Duration::from_secs(9)), BATCH);
    }
}
