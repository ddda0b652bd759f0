//! A throughput run over plain TCP: bytes by stream and interval, and the kernel's figures of each
//! connection. A rate is always eight times the bytes over the seconds of one clock.

use serde::{Deserialize, Serialize};

use crate::traffic::SeriesPoint;

/// The direction of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From here to the target.
    Send,
    /// From the target to here.
    Receive,
    /// Both at once, each on connections of its own.
    Both,
}

/// One throughput run. The measured window begins after the warm-up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Throughput {
    pub direction: Direction,
    /// Bytes offered to the kernel at a time.
    pub write_bytes: u64,
    /// Over the window, as counted here; absent if nothing went in that direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Flow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Flow>,
    pub streams: Vec<StreamTotal>,
    /// In order of time; warm-up included and marked.
    pub intervals: Vec<Interval>,
}

/// A run of raw throughput without its single connections and intervals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThroughputTotals {
    pub direction: Direction,
    /// Connections, of both directions together.
    pub streams: u32,
    /// As counted at the caller; absent if nothing went in that direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Flow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Flow>,
    /// Segments that the caller's side sent again.
    pub retransmits: u64,
    /// The caller's kernel's estimates; `mean` over connections.
    pub rtt_us: RttRange,
    /// Of the caller's side: `cubic`, `bbr`.
    pub congestion_control: String,
}

impl From<&Throughput> for ThroughputTotals {
    fn from(run: &Throughput) -> Self {
        let streams = &run.streams;
        Self {
            direction: run.direction,
            streams: u32::try_from(streams.len()).unwrap_or(u32::MAX),
            sent: run.sent,
            received: run.received,
            retransmits: streams.iter().map(|s| s.retransmits).fold(0, u64::saturating_add),
            rtt_us: RttRange::over(streams.iter().map(|stream| stream.rtt_us)),
            congestion_control: streams
                .first()
                .map(|stream| stream.congestion_control.clone())
                .unwrap_or_default(),
        }
    }
}

impl Throughput {
    /// Bytes of each interval of the window, in both directions together.
    #[must_use]
    pub fn series(&self) -> Vec<SeriesPoint> {
        let measured = || self.intervals.iter().filter(|interval| !interval.omitted);
        let begin_s = measured().next().map_or(0.0, |first| first.start_s);
        let point = |interval: &Interval| SeriesPoint {
            t_s: interval.end_s - begin_s,
            bits_per_s: Some(interval.sum(true).bits_per_s + interval.sum(false).bits_per_s),
            ..SeriesPoint::default()
        };
        measured().map(point).collect()
    }
}

impl RttRange {
    /// Of several connections or runs; those without an estimate are passed over.
    #[must_use]
    pub fn over(ranges: impl Iterator<Item = Self>) -> Self {
        let known: Vec<Self> = ranges.filter(|range| range.max > 0).collect();
        Self {
            min: known.iter().map(|range| range.min).min().unwrap_or(0),
            mean: known.iter().map(|range| range.mean).sum::<f64>() / known.len().max(1) as f64,
            max: known.iter().map(|range| range.max).max().unwrap_or(0),
        }
    }
}

/// Bytes of some time and the rate that they make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    pub bytes: u64,
    pub duration_s: f64,
    pub bits_per_s: f64,
}

impl Flow {
    /// `bytes` in `duration_s` seconds.
    #[must_use]
    pub fn new(bytes: u64, duration_s: f64) -> Self {
        let bits_per_s = if duration_s > 0.0 { 8.0 * bytes as f64 / duration_s } else { 0.0 };
        Self { bytes, duration_s, bits_per_s }
    }
}

/// One connection over the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamTotal {
    /// From 1.
    pub stream: u32,
    /// Whether the bytes went from here to the target.
    pub sends: bool,
    pub local: String,
    pub remote: String,
    pub congestion_control: String,
    #[serde(flatten)]
    pub flow: Flow,
    /// Segments of this side; only a sender has any.
    pub retransmits: u64,
    pub max_cwnd_bytes: u64,
    pub rtt_us: RttRange,
    /// What the other end counted, from its first byte to its last, the warm-up included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerTotal>,
}

/// Round trips that the kernel estimated, one sample per interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RttRange {
    pub min: u64,
    pub mean: f64,
    pub max: u64,
}

/// The other end's own account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerTotal {
    #[serde(flatten)]
    pub flow: Flow,
    /// Processor time of its thread.
    pub cpu_us: f64,
}

/// All connections over one stretch of time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Since the connections were open; the warm-up is part of this time.
    pub start_s: f64,
    pub end_s: f64,
    /// Part of the warm-up, and of no total.
    pub omitted: bool,
    pub streams: Vec<StreamSample>,
}

/// One connection over one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamSample {
    pub stream: u32,
    pub sends: bool,
    #[serde(flatten)]
    pub flow: Flow,
    /// Within the interval.
    pub retransmits: u64,
    pub cwnd_bytes: u64,
    pub rtt_us: u64,
    pub rttvar_us: u64,
    pub pmtu_bytes: u64,
}

impl Interval {
    /// All its streams of one direction together.
    #[must_use]
    pub fn sum(&self, sends: bool) -> Flow {
        let streams = self.streams.iter().filter(|sample| sample.sends == sends);
        Flow::new(streams.map(|sample| sample.flow.bytes).sum(), self.end_s - self.start_s)
    }

    /// Segments sent again, of all its streams.
    #[must_use]
    pub fn retransmits(&self) -> u64 {
        self.streams.iter().map(|sample| sample.retransmits).sum()
    }
}
