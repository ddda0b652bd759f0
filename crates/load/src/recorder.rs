//! The outcome of every request: counts, latencies, lateness, errors by kind, a point a second.
//!
//! Memory does not grow with the run, except for one point per second up to a limit. A request
//! belongs to the window in which it was meant to start; the warm-up's requests are sent like
//! the others and appear nowhere here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tollway_http::h2::ErrorCode;
use tollway_record::client_limit::late_threshold_ns;
use tollway_record::histogram::{SAMPLES_BEYOND, samples_beyond};
use tollway_record::tls::TlsFacts;
use tollway_record::traffic::{Bytes, Lateness, SeriesPoint};
use tollway_record::{EncodedHistogram, Histogram, Traffic};

use crate::options::Keep;
use crate::tls::{Handshake, Handshakes};

/// Length of one point of the series.
const POINT_NS: u64 = 1_000_000_000;
/// Most points, a day of them; a longer run has none for the rest.
const MAX_POINTS: usize = 86_400;
/// Longest latency that a point resolves, in ns.
const POINT_LONGEST_NS: u64 = 60_000_000_000;
/// A point's percentiles are exact to 1 %: its histogram is cleared every second and must be small.
const POINT_DIGITS: u8 = 2;
/// The largest status code that gRPC defines.
const MAX_GRPC_STATUS: u32 = 16;

/// One request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// When it was meant to start, in ns on the run's clock.
    pub(crate) intended_ns: u64,
    /// How long it waited for a free slot; 0 if it had one at once.
    pub(crate) blocked_ns: u64,
    /// When it was sent.
    pub(crate) sent_ns: u64,
    /// When all of it was with the kernel; 0 before.
    pub(crate) written_ns: u64,
    /// When the first byte of its answer came; 0 before.
    pub(crate) answered_ns: u64,
    /// False during the warm-up.
    pub(crate) measured: bool,
}

impl Call {
    /// One that is to be sent, now at the earliest.
    pub(crate) fn new(intended_ns: u64, blocked_ns: u64, measured: bool) -> Self {
        Self { intended_ns, blocked_ns, sent_ns: 0, written_ns: 0, answered_ns: 0, measured }
    }
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// No connection to send it on.
    Connect,
    /// The TLS handshake of its connection failed.
    Tls,
    /// The connection ended in order before the answer did.
    Closed,
    /// The connection broke.
    Broken,
    /// No complete answer within the request's time.
    Timeout,
    /// The answer broke the protocol.
    Protocol,
    /// A complete answer, not the one expected.
    Body,
    Status(u16),
    /// The peer ended the HTTP/2 stream with an error.
    Reset(u32),
    /// A trailer `grpc-status` other than 0.
    Grpc(u32),
    /// Of a timer or reminder: it did not fire.
    Missed,
    /// It fired, and its actor could not write state.
    State,
}

impl Failure {
    /// The word in `errors_by_kind`. What a peer chooses freely is folded into a bounded set.
    pub(crate) fn kind(self) -> Cow<'static, str> {
        match self {
            Self::Connect => "connect".into(),
            Self::Tls => "tls".into(),
            Self::Closed => "closed".into(),
            Self::Broken => "broken".into(),
            Self::Timeout => "timeout".into(),
            Self::Protocol => "protocol".into(),
            Self::Body => "body".into(),
            Self::Status(status) => format!("status-{status}").into(),
            Self::Reset(code) => match ErrorCode(code).name() {
                Some(name) => format!("reset-{}", name.to_lowercase().replace('_', "-")).into(),
                None => "reset-other".into(),
            },
            Self::Grpc(status) if status <= MAX_GRPC_STATUS => format!("grpc-{status}").into(),
            Self::Grpc(_) => "grpc-other".into(),
            Self::Missed => "missed".into(),
            Self::State => "state".into(),
        }
    }

    /// One representative of all values of a kind.
    fn folded(self) -> Self {
        match self {
            Self::Reset(code) if ErrorCode(code).name().is_none() => Self::Reset(u32::MAX),
            Self::Grpc(status) => Self::Grpc(status.min(MAX_GRPC_STATUS + 1)),
            Self::Connect
            | Self::Tls
            | Self::Closed
            | Self::Broken
            | Self::Timeout
            | Self::Protocol
            | Self::Body
            | Self::Status(_)
            | Self::Reset(_)
            | Self::Missed
            | Self::State => self,
        }
    }
}

/// The numbers of one run.
pub(crate) struct Recorder {
    start_ns: u64,
    /// `u64::MAX` while it is not known.
    end_ns: u64,
    requested_rps: Option<f64>,
    response: Histogram,
    service: Histogram,
    failed: Histogram,
    phases: Phases,
    /// `None` until the first TLS connection.
    handshakes: Option<Handshakes>,
    requests: u64,
    /// Of `requests`, those sent before the window ended.
    in_time: u64,
    errors: BTreeMap<Failure, u64>,
    unfinished: u64,
    dropped: u64,
    lateness: Latenesses,
    bytes: Bytes,
    series: Series,
    keeps_phases: bool,
}

impl Recorder {
    /// Nothing is measured before [`Self::begin_window`].
    pub(crate) fn new(requested_rps: Option<f64>, keep: Keep) -> Self {
        Self {
            start_ns: u64::MAX,
            end_ns: u64::MAX,
            requested_rps,
            response: Histogram::new(),
            service: Histogram::new(),
            failed: Histogram::new(),
            phases: Phases::new(),
            handshakes: None,
            requests: 0,
            in_time: 0,
            errors: BTreeMap::new(),
            unfinished: 0,
            dropped: 0,
            lateness: Latenesses::new(late_threshold_ns(requested_rps.unwrap_or(0.0))),
            bytes: Bytes::default(),
            series: Series::new(keep.seconds),
            keeps_phases: keep.phases,
        }
    }

    /// The window starts at `start_ns`.
    pub(crate) fn begin_window(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        self.series.start_ns = start_ns;
    }

    /// The window ends at `end_ns`; what is sent later does not count as achieved.
    pub(crate) fn end_window(&mut self, end_ns: u64) {
        self.end_ns = end_ns.max(self.start_ns);
    }

    /// A planned request was released at `now_ns`, which is `late_ns` after its intended start.
    pub(crate) fn released(&mut self, now_ns: u64, late_ns: u64) {
        self.lateness.record(late_ns);
        self.series.released(now_ns, late_ns);
    }

    pub(crate) fn dropped(&mut self) {
        self.dropped += 1;
    }

    /// A connection was opened.
    pub(crate) fn connected(&mut self, took_ns: u64) {
        self.phases.connecting.record(took_ns);
    }

    /// A connection's TLS handshake is over.
    pub(crate) fn secured(&mut self, tls: &rustls::CommonState, handshake: &Handshake) {
        self.handshakes.get_or_insert_with(Handshakes::new).done(tls, handshake);
    }

    /// What TLS connections agreed on; `None` without TLS.
    pub(crate) fn tls_facts(&self) -> Option<TlsFacts> {
        self.handshakes.as_ref().and_then(Handshakes::facts)
    }

    /// Whether the window has begun and not ended.
    pub(crate) fn is_measuring(&self, now_ns: u64) -> bool {
        self.in_window(now_ns)
    }

    pub(crate) fn succeeded(&mut self, call: &Call, done_ns: u64) {
        if !call.measured {
            return;
        }
        let response_ns = done_ns.saturating_sub(call.intended_ns);
        self.response.record(response_ns);
        self.service.record(done_ns.saturating_sub(call.sent_ns));
        self.phases.record(call, done_ns);
        self.requests += 1;
        self.in_time += u64::from(call.sent_ns < self.end_ns);
        self.series.record(done_ns, response_ns);
    }

    pub(crate) fn failed(&mut self, call: &Call, done_ns: u64, failure: Failure) {
        if !call.measured {
            return;
        }
        self.failed.record(done_ns.saturating_sub(call.intended_ns));
        *self.errors.entry(failure.folded()).or_default() += 1;
    }

    /// `count` requests of the window had no outcome when the drain ended.
    pub(crate) fn unfinished(&mut self, count: u64) {
        self.unfinished += count;
    }

    /// Bytes given to the kernel at `now_ns`.
    pub(crate) fn sent(&mut self, now_ns: u64, bytes: usize) {
        if self.in_window(now_ns) {
            self.bytes.sent += bytes as u64;
        }
    }

    /// Bytes taken from the kernel at `now_ns`.
    pub(crate) fn received(&mut self, now_ns: u64, bytes: usize) {
        if self.in_window(now_ns) {
            self.bytes.received += bytes as u64;
        }
    }

    fn in_window(&self, now_ns: u64) -> bool {
        (self.start_ns..self.end_ns).contains(&now_ns)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.values().sum()
    }

    /// The last complete second.
    pub(crate) fn last_point(&mut self, now_ns: u64) -> Option<SeriesPoint> {
        self.series.roll(now_ns);
        self.series.points.last().copied()
    }

    /// The result's numbers; the client-limited verdict is the caller's to add.
    pub(crate) fn finish(mut self) -> Traffic {
        let duration_s = self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9;
        self.series.roll(self.end_ns);
        // Answers of the drain closed points beyond the window.
        self.series.points.retain(|point| point.t_s <= duration_s);
        let mut traffic = Traffic {
            requested_rps: self.requested_rps,
            achieved_rps: if duration_s > 0.0 { self.in_time as f64 / duration_s } else { 0.0 },
            duration_s,
            requests: self.requests,
            errors: self.errors(),
            unfinished: self.unfinished,
            dropped: self.dropped,
            lateness: self.requested_rps.map(|_| self.lateness.summary()),
            bytes: self.bytes,
            second_histograms: self.series.take_seconds(),
            series: self.series.points,
            ..Traffic::default()
        };
        for (failure, count) in &self.errors {
            *traffic.errors_by_kind.entry(failure.kind().into_owned()).or_default() += count;
        }
        for (name, phase) in self.phases.named() {
            if phase.n() > 0 {
                traffic.set_phase(name, phase, self.keeps_phases);
            }
        }
        for (name, handshakes) in self.handshakes.iter().flat_map(Handshakes::times) {
            traffic.set_phase(name, &handshakes, self.keeps_phases);
        }
        traffic.set_failures(&self.failed);
        traffic.set_latencies(&self.response);
        traffic.set_services(&self.service);
        traffic
    }
}

/// What the time of requests and connections went into.
struct Phases {
    blocked: Histogram,
    connecting: Histogram,
    sending: Histogram,
    waiting: Histogram,
    receiving: Histogram,
}

impl Phases {
    fn new() -> Self {
        Self {
            blocked: Histogram::new(),
            connecting: Histogram::new(),
            sending: Histogram::new(),
            waiting: Histogram::new(),
            receiving: Histogram::new(),
        }
    }

    /// The parts of a request's service time add up to it.
    fn record(&mut self, call: &Call, done_ns: u64) {
        if call.blocked_ns > 0 {
            self.blocked.record(call.blocked_ns);
        }
        // An answer may begin before the request has ended.
        let answered_ns = call.answered_ns.clamp(call.sent_ns, done_ns.max(call.sent_ns));
        let written_ns = call.written_ns.clamp(call.sent_ns, answered_ns);
        self.sending.record(written_ns - call.sent_ns);
        self.waiting.record(answered_ns - written_ns);
        self.receiving.record(done_ns.saturating_sub(answered_ns));
    }

    fn named(&self) -> [(&'static str, &Histogram); 5] {
        [
            ("blocked", &self.blocked),
            ("connecting", &self.connecting),
            ("sending", &self.sending),
            ("waiting", &self.waiting),
            ("receiving", &self.receiving),
        ]
    }
}

/// How late the generator itself was.
struct Latenesses {
    histogram: Histogram,
    threshold_ns: u64,
    late: u64,
}

impl Latenesses {
    fn new(threshold_ns: u64) -> Self {
        Self { histogram: Histogram::new(), threshold_ns, late: 0 }
    }

    fn record(&mut self, late_ns: u64) {
        self.histogram.record(late_ns);
        self.late += u64::from(late_ns > self.threshold_ns);
    }

    fn summary(&self) -> Lateness {
        let n = self.histogram.n();
        Lateness {
            p50_us: self.histogram.raw_quantile_ns(0.50) as f64 / 1e3,
            p99_us: self.histogram.raw_quantile_ns(0.99) as f64 / 1e3,
            max_us: self.histogram.max_ns().unwrap_or(0) as f64 / 1e3,
            late_sends: self.late,
            late_fraction: if n > 0 { self.late as f64 / n as f64 } else { 0.0 },
        }
    }
}

/// One point for each second of the window, by the time of the answer.
struct Series {
    start_ns: u64,
    points: Vec<SeriesPoint>,
    current: hdrhistogram::Histogram<u64>,
    /// Of the sends since the last point; `None` while there was none.
    latest_ns: Option<u64>,
    /// The histograms of past seconds, and the current one's, if they are recorded.
    per_second: Option<(Vec<EncodedHistogram>, Histogram)>,
}

impl Series {
    fn new(keep_seconds: bool) -> Self {
        let current =
            hdrhistogram::Histogram::new_with_bounds(1_000, POINT_LONGEST_NS, POINT_DIGITS)
                .expect("constant bounds that the library accepts");
        let per_second = keep_seconds.then(|| (Vec::new(), Histogram::new()));
        Self { start_ns: u64::MAX, points: Vec::new(), current, latest_ns: None, per_second }
    }

    fn record(&mut self, done_ns: u64, latency_ns: u64) {
        self.roll(done_ns);
        self.current.saturating_record(latency_ns);
        if let Some((_, current)) = &mut self.per_second {
            current.record(latency_ns);
        }
    }

    fn released(&mut self, now_ns: u64, late_ns: u64) {
        self.roll(now_ns);
        self.latest_ns = self.latest_ns.max(Some(late_ns));
    }

    /// One histogram for each second until the last answer.
    fn take_seconds(&mut self) -> Vec<EncodedHistogram> {
        let Some((mut seconds, last)) = self.per_second.take() else { return Vec::new() };
        if last.n() > 0 {
            seconds.push(last.encode());
        }
        seconds
    }

    /// Closes every point that ended at `now_ns`.
    fn roll(&mut self, now_ns: u64) {
        while self.points.len() < MAX_POINTS {
            let index = self.points.len() as u64 + 1;
            if now_ns < self.start_ns.saturating_add(index * POINT_NS) {
                return;
            }
            let n = self.current.len();
            let quantile = |q| {
                (samples_beyond(n, q) >= SAMPLES_BEYOND)
                    .then(|| self.current.value_at_quantile(q) as f64 / 1e3)
            };
            self.points.push(SeriesPoint {
                t_s: (index * POINT_NS) as f64 / 1e9,
                rps: n as f64 * 1e9 / POINT_NS as f64,
                p50: quantile(0.50),
                p99: quantile(0.99),
                lateness_us: self.latest_ns.take().map(|late_ns| late_ns as f64 / 1e3),
                bits_per_s: None,
            });
            self.current.reset();
            if let Some((seconds, current)) = &mut self.per_second {
                seconds.push(current.encode());
                current.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn response_time_counts_the_wait_and_service_time_does_not() {
        let mut recorder = recorder(0, Some(100.0));
        let call = call(10 * MS, 40 * MS, true);
        recorder.succeeded(&call, 45 * MS);
        recorder.end_window(1_000 * MS);
        let traffic = recorder.finish();
        assert_eq!(traffic.latency_us.max, Some(35_000.0));
        assert_eq!(traffic.service_us.max, Some(5_000.0));
        assert_eq!((traffic.requests, traffic.achieved_rps), (1, 1.0));
    }

    #[test]
    fn the_warm_up_leaves_no_trace() {
        let mut recorder = recorder(1_000 * MS, None);
        let call = call(5, 5, false);
        recorder.succeeded(&call, 10);
        recorder.failed(&call, 10, Failure::Timeout);
        recorder.received(10, 100);
        recorder.end_window(2_000 * MS);
        let traffic = recorder.finish();
        assert_eq!((traffic.scheduled(), traffic.bytes), (0, Bytes::default()));
        assert_eq!(traffic.error_latency_us, None);
    }

    #[test]
    fn what_is_sent_after_the_window_is_an_answer_and_not_achieved() {
        let mut recorder = recorder(0, Some(2.0));
        recorder.end_window(1_000 * MS);
        for sent_ms in [10, 1_500] {
            let call = call(5 * MS, sent_ms * MS, true);
            recorder.succeeded(&call, (sent_ms + 1) * MS);
        }
        let traffic = recorder.finish();
        assert_eq!((traffic.requests, traffic.achieved_rps), (2, 1.0));
    }

    #[test]
    fn errors_are_kept_apart_by_kind() {
        let mut recorder = recorder(0, None);
        let call = call(0, 0, true);
        for failure in [
            Failure::Status(503),
            Failure::Status(503),
            Failure::Grpc(14),
            Failure::Grpc(77),
            Failure::Grpc(4_000_000),
            Failure::Reset(7),
            Failure::Reset(0xffff),
        ] {
            recorder.failed(&call, MS, failure);
        }
        recorder.end_window(1_000 * MS);
        let traffic = recorder.finish();
        let kinds: Vec<_> = traffic.errors_by_kind.iter().map(|(k, n)| (k.as_str(), *n)).collect();
        assert_eq!(
            kinds,
            [
                ("grpc-14", 1),
                ("grpc-other", 2),
                ("reset-other", 1),
                ("reset-refused-stream", 1),
                ("status-503", 2)
            ]
        );
        assert_eq!((traffic.errors, traffic.latency_us.n), (7, 0));
    }

    #[test]
    fn every_second_of_the_window_has_a_point() {
        let mut recorder = recorder(1_000 * MS, Some(300.0));
        for at in 0..300 {
            let at_ns = (2_000 + at) * MS;
            let call = call(at_ns, at_ns, true);
            recorder.succeeded(&call, at_ns + 2 * MS);
        }
        recorder.end_window(4_000 * MS);
        let series = recorder.finish().series;
        let rates: Vec<_> = series.iter().map(|point| (point.t_s, point.rps)).collect();
        assert_eq!(rates, [(1.0, 0.0), (2.0, 300.0), (3.0, 0.0)]);
        let p50 = series[1].p50.unwrap();
        assert!((p50 - 2_000.0).abs() < 20.0, "{p50}");
        assert_eq!(series[1].p99, None, "three samples beyond are too few");
    }

    #[test]
    fn kept_seconds_hold_every_answer_also_those_of_the_drain() {
        let mut recorder = Recorder::new(Some(1_000.0), Keep { seconds: true, phases: true });
        recorder.begin_window(0);
        recorder.end_window(1_500 * MS);
        for at in 0..30 {
            let at_ns = at * 100 * MS;
            let call = call(at_ns, at_ns, true);
            recorder.succeeded(&call, at_ns + MS);
        }
        let traffic = recorder.finish();
        let seconds = traffic.second_histograms.iter().map(|second| second.decode().unwrap().n());
        assert_eq!(seconds.collect::<Vec<_>>(), [10, 10, 10]);
        assert_eq!(traffic.latencies().unwrap().n(), 30);
    }

    #[test]
    fn lateness_is_judged_by_the_threshold() {
        let mut recorder = recorder(0, Some(1_000.0));
        for late_ns in [10, 20, MS, MS + 1] {
            recorder.released(0, late_ns);
        }
        recorder.end_window(MS);
        let lateness = recorder.finish().lateness.unwrap();
        assert_eq!((lateness.late_sends, lateness.late_fraction), (1, 0.25));
    }

    #[test]
    fn each_second_has_its_own_largest_lateness() {
        let mut recorder = recorder(0, Some(1.0));
        for (at_ms, late_ms) in [(100, 3), (900, 1), (1_000, 2), (3_500, 4)] {
            recorder.released(at_ms * MS, late_ms * MS);
        }
        recorder.end_window(4_000 * MS);
        let series = recorder.finish().series;
        let lateness: Vec<_> = series.iter().map(|point| point.lateness_us).collect();
        assert_eq!(lateness, [Some(3_000.0), Some(2_000.0), None, Some(4_000.0)]);
    }

    fn call(intended_ns: u64, sent_ns: u64, measured: bool) -> Call {
        Call { sent_ns, ..Call::new(intended_ns, 0, measured) }
    }

    #[test]
    fn phases_add_up_to_the_service_time() {
        let mut recorder = recorder(0, Some(1.0));
        let call = Call {
            blocked_ns: 3 * MS,
            written_ns: 12 * MS,
            answered_ns: 15 * MS,
            ..call(5 * MS, 10 * MS, true)
        };
        recorder.succeeded(&call, 20 * MS);
        // An answer that began while its request was still being sent.
        let early = Call { written_ns: 0, answered_ns: 11 * MS, ..call };
        recorder.succeeded(&Call { blocked_ns: 0, written_ns: 19 * MS, ..early }, 20 * MS);
        recorder.end_window(1_000 * MS);
        let traffic = recorder.finish();
        let phase = |name: &str| (traffic.phases_us[name].max.unwrap(), traffic.phases_us[name].n);
        assert_eq!(phase("blocked"), (3_000.0, 1));
        assert_eq!(phase("sending"), (2_000.0, 2));
        assert_eq!(phase("waiting"), (3_000.0, 2));
        assert_eq!(phase("receiving"), (9_000.0, 2));
    }

    fn recorder(start_ns: u64, requested_rps: Option<f64>) -> Recorder {
        let mut recorder = Recorder::new(requested_rps, Keep::default());
        recorder.begin_window(start_ns);
        recorder
    }
}
