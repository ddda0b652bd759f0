//! Raw TCP throughput: as many bytes as go, over some connections, in one or both directions.
//!
//! A blocking thread for each connection moves the bytes and counts them. This thread reads all
//! counters and the kernel's figures of each connection at the end of every interval, on one clock.
//! The other end is `tollway echo --tcp`, which sends its own totals at the end.

mod stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_net::{TcpInfo, tcp_info};
use tollway_record::RunResult;
use tollway_record::record::{Arrival, Protocol};
use tollway_record::run::Generator;
use tollway_record::throughput::{
    Direction, Flow, Interval, PeerTotal, RttRange, StreamSample, StreamTotal, Throughput,
};
use tollway_record::traffic::{Bytes, Traffic};

use self::stream::{Ended, Stream};
use crate::cost::{process_cpu, resident_bytes};
use crate::error::LoadError;
use crate::options::Target;
use tollway_echo::Stop;
use tollway_echo::bulk::Mode;

/// Most connections of a throughput run: each has a thread.
pub const MAX_STREAMS: usize = 128;
/// Most intervals, a day of seconds; a longer run has longer ones.
const MAX_INTERVALS: u32 = 86_400;
/// Longest single write or read.
const MAX_WRITE_BYTES: usize = 16 << 20;
/// Interval at which a stop and the end of all connections are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A throughput run.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    pub target: Target,
    pub connect_to: Option<SocketAddr>,
    pub direction: Direction,
    /// Connections in each direction.
    pub streams: usize,
    pub lasting: Duration,
    /// Time before the window, counted and marked.
    pub warmup: Duration,
    pub interval: Duration,
    /// Bytes given to the kernel or taken from it at a time.
    pub write_bytes: usize,
    /// Kept in the result as it is.
    pub command_line: Vec<String>,
}

impl TcpOptions {
    /// 10 s of sending on one connection after 1 s of warm-up, reported every second.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            connect_to: None,
            direction: Direction::Send,
            streams: 1,
            lasting: Duration::from_secs(10),
            warmup: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            write_bytes: 128 * 1024,
            command_line: Vec::new(),
        }
    }

    fn check(&self) -> Result<(), LoadError> {
        let within = |name, given: u64, least: u64, most: u64| {
            if (least..=most).contains(&given) {
                return Ok(());
            }
            Err(LoadError::Bounds { name, given, least, most })
        };
        within("the number of streams", self.streams as u64, 1, MAX_STREAMS as u64)?;
        within("the write's size in bytes", self.write_bytes as u64, 1, MAX_WRITE_BYTES as u64)?;
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        within("the interval in ms", millis(self.interval), 10, 3_600_000)
    }
}

/// Moves bytes by `options`; `report` is called for each interval, on this thread.
///
/// # Errors
/// [`LoadError`] when the options are out of bounds, or a connection cannot be opened or meets
/// a server that is not `tollway echo --tcp`.
pub fn run_tcp(
    options: &TcpOptions,
    report: &mut dyn FnMut(&Interval),
    stop: &Stop,
) -> Result<RunResult, LoadError> {
    options.check()?;
    let address = options.target.address(options.connect_to)?;
    let streams = open(options, address)?;
    let started_at = OffsetDateTime::now_utc()
        .format(&Rfc3339)
        .expect("RFC 3339 has a form for every year of the system's clock");
    let threads: Vec<_> = streams.iter().map(Stream::start).collect();
    let mut meter = Meter::new(options, &streams);
    meter.run(report, stop, &threads);
    streams.iter().for_each(|stream| stream.end());
    let ended = threads.into_iter().map(join).collect::<Vec<_>>();
    Ok(meter.result(options, started_at, &ended))
}

fn open(options: &TcpOptions, address: SocketAddr) -> Result<Vec<Arc<Stream>>, LoadError> {
    let modes: &[Mode] = match options.direction {
        Direction::Send => &[Mode::Discard],
        Direction::Receive => &[Mode::Source],
        Direction::Both => &[Mode::Discard, Mode::Source],
    };
    let mut streams = Vec::new();
    for mode in modes {
        for _ in 0..options.streams {
            streams.push(Arc::new(Stream::open(address, *mode, options.write_bytes)?));
        }
    }
    Ok(streams)
}

fn join(thread: JoinHandle<Ended>) -> Ended {
    // A thread that panicked has printed it; its bytes until then count.
    thread.join().unwrap_or_default()
}

/// Looks at the counters in step with the clock.
struct Meter {
    streams: Vec<Arc<Stream>>,
    interval: Duration,
    warmup: Duration,
    lasting: Duration,
    began: Instant,
    /// At the end of the last interval.
    last_at: Duration,
    last: Vec<Counters>,
    /// At the end of the warm-up.
    window: Option<(Duration, Vec<Counters>, Duration)>,
    cpu_at_end: Duration,
    intervals: Vec<Interval>,
}

/// One connection at one moment.
#[derive(Clone, Copy, Default)]
struct Counters {
    bytes: u64,
    info: TcpInfo,
}

impl Meter {
    fn new(options: &TcpOptions, streams: &[Arc<Stream>]) -> Self {
        let whole = options.warmup + options.lasting;
        Self {
            streams: streams.to_vec(),
            interval: options.interval.max(whole / MAX_INTERVALS),
            warmup: options.warmup,
            lasting: options.lasting,
            began: Instant::now(),
            last_at: Duration::ZERO,
            last: vec![Counters::default(); streams.len()],
            window: None,
            cpu_at_end: Duration::ZERO,
            intervals: Vec::new(),
        }
    }

    fn run(
        &mut self,
        report: &mut dyn FnMut(&Interval),
        stop: &Stop,
        threads: &[JoinHandle<Ended>],
    ) {
        self.began = Instant::now();
        let end = self.warmup + self.lasting;
        self.begin_window_when_due();
        while self.last_at < end {
            let border = if self.window.is_some() { end } else { self.warmup };
            let is_over =
                self.sleep_until((self.last_at + self.interval).min(border), stop, threads);
            self.report_interval(report);
            self.begin_window_when_due();
            if is_over {
                break;
            }
        }
        self.cpu_at_end = process_cpu();
    }

    /// Says whether the run ends here.
    fn sleep_until(&self, due: Duration, stop: &Stop, threads: &[JoinHandle<Ended>]) -> bool {
        loop {
            let rest = due.saturating_sub(self.began.elapsed());
            if rest.is_zero() {
                return false;
            }
            if stop.is_requested() || threads.iter().all(JoinHandle::is_finished) {
                return true;
            }
            std::thread::sleep(rest.min(LOOK_EVERY));
        }
    }

    fn report_interval(&mut self, report: &mut dyn FnMut(&Interval)) {
        let readings: Vec<_> = self.streams.iter().map(|stream| stream.counters()).collect();
        let now = self.began.elapsed();
        let length_s = (now - self.last_at).as_secs_f64();
        let samples = self.streams.iter().zip(readings.iter().zip(&self.last)).zip(1..).map(
            |((stream, (counters, before)), number)| StreamSample {
                stream: number,
                sends: stream.sends(),
                flow: Flow::new(counters.bytes - before.bytes, length_s),
                retransmits: counters.info.retransmits.saturating_sub(before.info.retransmits),
                cwnd_bytes: counters.info.cwnd_bytes,
                rtt_us: counters.info.rtt_us,
                rttvar_us: counters.info.rttvar_us,
                pmtu_bytes: counters.info.pmtu_bytes,
            },
        );
        let interval = Interval {
            start_s: self.last_at.as_secs_f64(),
            end_s: self.last_at.as_secs_f64() + length_s,
            omitted: self.window.is_none(),
            streams: samples.collect(),
        };
        report(&interval);
        self.intervals.push(interval);
        self.last = readings;
        self.last_at = now;
    }

    fn begin_window_when_due(&mut self) {
        if self.window.is_none() && self.last_at >= self.warmup {
            self.window = Some((self.last_at, self.last.clone(), process_cpu()));
        }
    }

    fn result(self, options: &TcpOptions, started_at: String, ended: &[Ended]) -> RunResult {
        let (from, before, cpu) =
            self.window.clone().unwrap_or((self.last_at, self.last.clone(), self.cpu_at_end));
        let duration_s = (self.last_at - from).as_secs_f64();
        let totals: Vec<_> = (0..self.streams.len())
            .map(|index| self.total(index, &before[index], duration_s, &ended[index]))
            .collect();
        let sum = |sends: bool| {
            let of = || totals.iter().filter(|total| total.sends == sends);
            let bytes = of().map(|total| total.flow.bytes).sum();
            of().next().map(|_| Flow::new(bytes, duration_s))
        };
        let (sent, received) = (sum(true), sum(false));
        let count = |flow: Option<Flow>| flow.map_or(0, |flow| flow.bytes);
        let failures = ended.iter().filter(|ended| ended.broke).count() as u64;
        let mut traffic = Traffic {
            duration_s,
            errors: failures,
            bytes: Bytes { sent: count(sent), received: count(received) },
            ..Traffic::default()
        };
        if failures > 0 {
            traffic.errors_by_kind.insert("broken".to_owned(), failures);
        }
        let busiest = ended.iter().map(|ended| ended.busy_fraction).fold(0.0, f64::max);
        let mut result = RunResult {
            started_at,
            target: options.target.url.clone(),
            protocol: Protocol::Tcp,
            arrival: Arrival::Closed,
            connections: u32::try_from(self.streams.len()).unwrap_or(u32::MAX),
            payload_bytes: options.write_bytes as u64,
            warm_up_s: from.as_secs_f64(),
            command_line: options.command_line.clone(),
            traffic,
            generator: Generator {
                threads: u32::try_from(self.streams.len()).unwrap_or(u32::MAX),
                cpu_us: self.cpu_at_end.saturating_sub(cpu).as_secs_f64() * 1e6,
                busiest_thread_fraction: busiest.min(1.0),
                rss_bytes: resident_bytes(),
            },
            throughput: Some(Throughput {
                direction: options.direction,
                write_bytes: options.write_bytes as u64,
                sent,
                received,
                streams: totals,
                intervals: self.intervals,
            }),
            ..RunResult::default()
        };
        result.judge_client();
        result
    }

    fn total(
        &self,
        index: usize,
        before: &Counters,
        duration_s: f64,
        ended: &Ended,
    ) -> StreamTotal {
        let stream = &self.streams[index];
        let last = &self.last[index];
        let measured = self.intervals.iter().filter(|interval| !interval.omitted);
        let samples: Vec<_> = measured.filter_map(|interval| interval.streams.get(index)).collect();
        let rtts = || samples.iter().map(|sample| sample.rtt_us);
        let account = ended.account.map(|account| PeerTotal {
            flow: Flow::new(account.bytes, account.ns as f64 / 1e9),
            cpu_us: account.cpu_ns as f64 / 1e3,
        });
        StreamTotal {
            stream: u32::try_from(index + 1).unwrap_or(u32::MAX),
            sends: stream.sends(),
            local: stream.local().to_string(),
            remote: stream.remote().to_string(),
            congestion_control: stream.congestion_control(),
            flow: Flow::new(last.bytes - before.bytes, duration_s),
            retransmits: last.info.retransmits.saturating_sub(before.info.retransmits),
            max_cwnd_bytes: samples.iter().map(|sample| sample.cwnd_bytes).max().unwrap_or(0),
            rtt_us: RttRange {
                min: rtts().min().unwrap_or(0),
                mean: rtts().sum::<u64>() as f64 / samples.len().max(1) as f64,
                max: rtts().max().unwrap_or(0),
            },
            peer: account,
        }
    }
}

impl Stream {
    fn counters(&self) -> Counters {
        // A connection that is gone has no state any more; its bytes still count.
        Counters { bytes: self.bytes(), info: tcp_info(self.socket()).unwrap_or_default() }
    }
}
