//! What one load run emits: the contract between `tollway load --json` and the lab.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::client_limit;
use crate::histogram::HistogramError;
use crate::record::{Arrival, Protocol, Tls};
use crate::search::SearchResult;
use crate::threshold::{Judgement, Threshold};
use crate::throughput::Throughput;
use crate::tls::TlsFacts;
use crate::traffic::{LatencyUs, Traffic};

/// The format's name and version.
pub const RUN_SCHEMA: &str = "tollway.load/1";

/// Result of one load run: one process, fresh connections, one warm-up, one measured window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`RUN_SCHEMA`].
    pub schema: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub target: String,
    pub protocol: Protocol,
    pub tls: Tls,
    pub arrival: Arrival,
    /// What TLS connections agreed on; absent without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_facts: Option<TlsFacts>,
    /// Requests after which a connection is closed and another one opened; absent if connections
    /// stay open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_connection: Option<u64>,
    /// Requests in flight at once on one connection.
    #[serde(default = "one")]
    pub streams: u32,
    /// Connections held open during the window.
    pub connections: u32,
    /// Most requests in flight at once that were allowed; absent when unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight_limit: Option<u64>,
    pub payload_bytes: u64,
    /// Load before the window, not measured.
    pub warm_up_s: f64,
    /// Seed of the arrivals and the payload.
    pub seed: u64,
    #[serde(default)]
    pub command_line: Vec<String>,
    /// How the rate changed within the window; empty if it was constant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Over the whole run: of steps merged, of a search the last trial that held.
    #[serde(flatten)]
    pub traffic: Traffic,
    pub generator: Generator,
    /// Windows at one rate each, in order; empty unless the run was of steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchResult>,
    /// The conditions under which the run counts as failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<ThresholdResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming: Option<Streaming>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
}

/// One stretch of a moving rate: evenly from the rate before it to `to_rps`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    pub lasting_s: f64,
    pub to_rps: f64,
}

/// One window of a run of steps, after a warm-up at its own rate, on connections of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    #[serde(flatten)]
    pub traffic: Traffic,
    pub generator: Generator,
}

/// A condition of `--fail-if` and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThresholdResult {
    #[serde(flatten)]
    pub judgement: Judgement,
    /// It is true, or nothing was measured that could have been otherwise.
    pub missed: bool,
}

/// Figures of streams of messages, in addition to the latencies, which are of messages there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Streaming {
    /// `push`, `bidi`, `client` or `server`.
    pub kind: String,
    /// Streams at once, on all connections.
    pub streams: u64,
    /// Messages of one stream.
    pub messages_per_stream: u64,
    pub message_bytes: u64,
    /// Messages of one stream that may wait for their acknowledgement.
    pub in_flight: u64,
    /// What the receiver of the messages lets one stream send ahead, where it was set here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
    /// Streams that came to their end.
    pub completed: u64,
    /// Streams that did not.
    pub failed: u64,
    pub messages_per_s: f64,
    /// Of messages, without their frames.
    pub message_bytes_per_s: f64,
    /// From the start of a stream to its first message or acknowledgement.
    pub first_message_us: LatencyUs,
    /// From the start of a stream to its end.
    pub stream_us: LatencyUs,
}

impl Default for RunResult {
    /// A closed loop of HTTP/1.1 that has sent nothing.
    fn default() -> Self {
        Self {
            schema: RUN_SCHEMA.to_owned(),
            started_at: String::new(),
            target: String::new(),
            protocol: Protocol::Http1,
            tls: Tls::Plain,
            tls_facts: None,
            requests_per_connection: None,
            streams: 1,
            arrival: Arrival::Closed,
            connections: 0,
            in_flight_limit: None,
            payload_bytes: 0,
            warm_up_s: 0.0,
            seed: 0,
            command_line: Vec::new(),
            stages: Vec::new(),
            traffic: Traffic::default(),
            generator: Generator::default(),
            steps: Vec::new(),
            search: None,
            thresholds: Vec::new(),
            streaming: None,
            throughput: None,
        }
    }
}

fn one() -> u32 {
    1
}

/// What the generator itself cost over the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    pub threads: u32,
    /// User and system time of the process.
    pub cpu_us: f64,
    /// CPU time of the busiest load thread over the window's length, 0 to 1.
    pub busiest_thread_fraction: f64,
    pub rss_bytes: u64,
}

/// Why the text is not a run's result.
#[derive(Debug, Error)]
pub enum RunError {
    #[error("the run's result is not JSON of {RUN_SCHEMA}")]
    Json(#[source] serde_json::Error),
    #[error("the run's result is {found:?}; this version reads {RUN_SCHEMA}")]
    Schema { found: String },
}

impl RunResult {
    /// Sets `client_limited` and its reasons from the other fields.
    pub fn judge_client(&mut self) {
        self.traffic.client_limits = client_limit::limits_of_run(self);
        self.traffic.client_limited = !self.traffic.client_limits.is_empty();
    }

    /// Checks the conditions under which the run counts as failed, and stores their results;
    /// returns whether one is met.
    ///
    /// # Errors
    /// [`HistogramError`] when a histogram of the result is damaged.
    pub fn judge_thresholds(&mut self, fail_if: &[Threshold]) -> Result<bool, HistogramError> {
        for threshold in fail_if {
            let judgement = threshold.judge(self)?;
            let missed = judgement.fired || judgement.value.is_none();
            self.thresholds.push(ThresholdResult { judgement, missed });
        }
        Ok(self.thresholds.iter().any(|threshold| threshold.missed))
    }

    /// Reads the JSON text of one run. Unknown fields are ignored, another schema is refused.
    ///
    /// # Errors
    /// [`RunError`] when the text is not JSON, lacks a field or is of another schema.
    pub fn from_json(text: &str) -> Result<Self, RunError> {
        let found = crate::record::schema_of(text).map_err(RunError::Json)?;
        if found != RUN_SCHEMA {
            return Err(RunError::Schema { found });
        }
        serde_json::from_str(text).map_err(RunError::Json)
    }

    /// The JSON text, on several lines.
    ///
    /// # Panics
    /// Never: every map key is a string.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain fields with string keys")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::histogram::Histogram;

    #[test]
    fn a_result_with_every_part_comes_back_from_its_text() {
        let mut latencies = Histogram::new();
        latencies.record_n(1_000_000, 500);
        let mut run = run_of(&latencies);
        run.stages = vec![Stage { lasting_s: 10.0, to_rps: 100.0 }];
        run.steps = vec![Step { traffic: run.traffic.clone(), generator: run.generator }];
        run.streaming = Some(Streaming { kind: "push".into(), ..Streaming::default() });
        run.search = Some(SearchResult {
            slo: vec!["p99<10ms".into()],
            held_rps: Some(10.0),
            missed_rps: None,
            client_limited: false,
            complete: true,
            trials: Vec::new(),
        });
        let fail_if = ["p99>5ms".parse().unwrap(), "tls_p99>1ms".parse().unwrap()];
        assert!(run.judge_thresholds(&fail_if).unwrap(), "nothing measured is missed");
        let missed: Vec<_> = run.thresholds.iter().map(|threshold| threshold.missed).collect();
        assert_eq!(missed, [false, true]);
        assert_eq!(RunResult::from_json(&run.to_json()).unwrap(), run);
    }

    #[test]
    fn a_result_without_the_parts_that_came_later_is_read() {
        let text = run_of(&Histogram::new()).to_json();
        for part in ["stages", "steps", "search", "thresholds", "streaming", "throughput"] {
            assert!(!text.contains(&format!("\"{part}\"")), "{part} is written though empty");
        }
        assert!(RunResult::from_json(&text).is_ok());
    }

    /// A run that saw just these response times.
    pub(crate) fn run_of(latencies: &Histogram) -> RunResult {
        let mut run = RunResult { connections: 1, ..RunResult::default() };
        run.traffic.requests = latencies.n();
        run.traffic.duration_s = 1.0;
        run.traffic.set_latencies(latencies);
        run.traffic.set_services(latencies);
        run
    }
}
