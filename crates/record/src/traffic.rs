//! What a load generator measured on the wire: counts, rates, latencies. A run's result, a block
//! and a row of a record have these fields; rows merge their blocks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::client_limit::ClientLimit;
use crate::histogram::{EncodedHistogram, Histogram, HistogramError};

/// Counts and latencies of one measured window. A request belongs to the window in which it was
/// intended to start; the window's end is followed by a bounded drain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Offered rate; absent in closed loop.
    pub requested_rps: Option<f64>,
    /// Successful requests per second of the window, counting those sent before it ended.
    pub achieved_rps: f64,
    pub duration_s: f64,
    /// Requests answered with success. Only these are in the latencies.
    pub requests: u64,
    /// Requests that failed: no answer, a wrong answer, a status that is not success.
    pub errors: u64,
    /// `errors` by what went wrong (`connect`, `timeout`, `status-503`, `grpc-14`, …).
    #[serde(default)]
    pub errors_by_kind: BTreeMap<String, u64>,
    /// Requests still in flight when the drain ended; neither requests nor errors.
    #[serde(default)]
    pub unfinished: u64,
    /// Requests never sent, because the cap on requests in flight was reached.
    #[serde(default)]
    pub dropped: u64,
    /// How late requests were sent; absent in closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
    pub client_limited: bool,
    /// Why `client_limited` is set.
    #[serde(default)]
    pub client_limits: Vec<ClientLimit>,
    pub bytes: Bytes,
    /// Response time: from the intended start to the last byte of the answer.
    pub latency_us: LatencyUs,
    /// Service time: from the send to the last byte of the answer.
    pub service_us: LatencyUs,
    /// Time to failure of `errors`, separate because fast errors would improve latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_latency_us: Option<LatencyUs>,
    /// Of `error_latency_us`; empty without errors, and in what older versions wrote.
    #[serde(default, skip_serializing_if = "EncodedHistogram::is_empty")]
    pub error_histogram: EncodedHistogram,
    /// What time went into, each phase over the requests (or connections) that had it: `blocked`
    /// (waiting for a free connection), `connecting`, `tls_handshaking`, `sending`, `waiting` (to
    /// the first byte), `receiving`.
    #[serde(default)]
    pub phases_us: BTreeMap<String, LatencyUs>,
    /// Of `phases_us`; empty unless the run records them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub phase_histograms: BTreeMap<String, EncodedHistogram>,
    #[serde(default)]
    pub series: Vec<SeriesPoint>,
    /// Of `latency_us`, one for each second from the window's beginning until the last answer, by
    /// the time of the answer; empty unless the run records them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub second_histograms: Vec<EncodedHistogram>,
    /// Of `latency_us`.
    pub histogram: EncodedHistogram,
    /// Of `service_us`.
    #[serde(default)]
    pub service_histogram: EncodedHistogram,
}

/// Latencies in microseconds. Percentiles with fewer than 100 samples beyond them are absent
/// (null in JSON).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyUs {
    pub mean: Option<f64>,
    pub p50: Option<f64>,
    pub p75: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub p999: Option<f64>,
    pub max: Option<f64>,
    pub n: u64,
}

/// How much later than intended requests were sent (open loop only).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// Sends later than [`crate::client_limit::late_threshold_ns`].
    pub late_sends: u64,
    /// `late_sends` of all sends.
    pub late_fraction: f64,
}

/// Payload and framing as the generator wrote and read it, before TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    pub sent: u64,
    pub received: u64,
}

/// One second (or the interval chosen) of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SeriesPoint {
    /// End of the interval, seconds after the window began.
    pub t_s: f64,
    pub rps: f64,
    /// Microseconds; absent with fewer than 100 samples beyond it.
    pub p50: Option<f64>,
    /// Microseconds; absent with fewer than 100 samples beyond it.
    pub p99: Option<f64>,
    /// The latest send, by how much it came after its intended start; absent in closed loop and
    /// where nothing was to be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness_us: Option<f64>,
    /// Of a flow, in both directions together; absent for requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits_per_s: Option<f64>,
}

impl Bytes {
    /// In both directions together (at most `u64::MAX`: a record that was read may hold any
    /// figures).
    #[must_use]
    pub fn total(self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

impl Traffic {
    /// The histogram of response times, with the summary's exact mean and maximum.
    ///
    /// # Errors
    /// [`HistogramError`] when the text is damaged.
    pub fn latencies(&self) -> Result<Histogram, HistogramError> {
        self.histogram.decode_with(&self.latency_us)
    }

    /// The histogram of service times, with the summary's exact mean and maximum.
    ///
    /// # Errors
    /// [`HistogramError`] when the text is damaged.
    pub fn services(&self) -> Result<Histogram, HistogramError> {
        self.service_histogram.decode_with(&self.service_us)
    }

    /// The histogram of times to failure. Where only their summary is known, all lie at its mean.
    ///
    /// # Errors
    /// [`HistogramError`] when the text is damaged.
    pub fn failures(&self) -> Result<Histogram, HistogramError> {
        let summary = self.error_latency_us.unwrap_or_default();
        let mut failures = self.error_histogram.decode_with(&summary)?;
        if failures.n() == 0 {
            failures.record_n((summary.mean.unwrap_or(0.0) * 1e3).round() as u64, summary.n);
        }
        Ok(failures)
    }

    /// The histogram of a phase; `None` if there is only its summary. For a phase that no request
    /// had it is empty.
    ///
    /// # Errors
    /// [`HistogramError`] when the text is damaged.
    pub fn phase(&self, name: &str) -> Result<Option<Histogram>, HistogramError> {
        match (self.phases_us.get(name), self.phase_histograms.get(name)) {
            (Some(summary), Some(histogram)) => histogram.decode_with(summary).map(Some),
            (Some(_), None) => Ok(None),
            (None, _) => Ok(Some(Histogram::new())),
        }
    }

    /// Sets the summary of a phase, and with `keep` its histogram.
    pub fn set_phase(&mut self, name: &str, phase: &Histogram, keep: bool) {
        self.phases_us.insert(name.to_owned(), phase.summary());
        if keep {
            self.phase_histograms.insert(name.to_owned(), phase.encode());
        }
    }

    /// Sets histogram and summary of the times to failure together.
    pub fn set_failures(&mut self, failures: &Histogram) {
        self.error_latency_us = (failures.n() > 0).then(|| failures.summary());
        self.error_histogram = failures.encode();
    }

    /// Sets histogram and summary of the response times together.
    pub fn set_latencies(&mut self, latencies: &Histogram) {
        self.latency_us = latencies.summary();
        self.histogram = latencies.encode();
    }

    /// Sets histogram and summary of the service times together.
    pub fn set_services(&mut self, services: &Histogram) {
        self.service_us = services.summary();
        self.service_histogram = services.encode();
    }

    /// Requests of the window with any outcome (at most `u64::MAX`: a record that was read may hold
    /// any figures).
    #[must_use]
    pub fn scheduled(&self) -> u64 {
        [self.errors, self.unfinished, self.dropped]
            .into_iter()
            .fold(self.requests, u64::saturating_add)
    }
}
