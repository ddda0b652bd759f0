//! The result record `tollway.lab/1`: one JSON document per experiment, and how it is read.
//!
//! Readers ignore unknown fields, since later minor versions add some; writers are held to
//! `schema/tollway-lab-1.schema.json`, which is closed. Units are part of field names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::traffic::Traffic;

mod fabric;
mod particulars;
mod seed;
mod surroundings;
mod words;

pub use fabric::{FabricBlock, FabricConditions, FabricRow, StageFigure};
pub use particulars::Particulars;
pub use seed::{SeedFigure, SeedTable, SeedValue};
pub use surroundings::{CostPoint, IdleUsage, Limits, Noise, Throttling};
pub use words::{
    Arrival, FigureUnit, IntervalMethod, Layout, LinkKind, Metric, Protocol, Question, Tls,
    Topology, Verdict,
};

/// The format's name and version.
pub const SCHEMA: &str = "tollway.lab/1";

/// Longest record that is read, in bytes.
pub const RECORD_LIMIT_BYTES: usize = 256 << 20;

/// One experiment: what was measured, on what, and the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    pub scenario: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// The whole experiment, start-up included.
    #[serde(default)]
    pub duration_s: f64,
    /// How the experiment was started.
    #[serde(default)]
    pub command_line: Vec<String>,
    pub machine: Machine,
    /// The scenario's parameters; names have units. `seed` is always among them.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_json::Value>,
    pub subjects: Vec<Subject>,
    pub rows: Vec<Row>,
    /// Results of neighbours of the fabric, which an experiment has in place of rows or in
    /// addition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fabric: Vec<FabricRow>,
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
    /// What a reader must know to read the numbers rightly.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Doubts about this very run: limits, misses, throttling.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// What was left out here and why.
    #[serde(default)]
    pub not_measured: Vec<String>,
    /// What the subjects' processes use without load.
    #[serde(default)]
    pub idle: Vec<IdleUsage>,
    /// Published figures of the study that the scenario repeats, and today's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed_table: Option<SeedTable>,
}

/// Where the experiment ran. What could not be found out is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Distribution and version.
    pub os: String,
    pub kernel: String,
    pub arch: String,
    #[serde(default)]
    pub cpu_model: Option<String>,
    pub cpus: u32,
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Hypervisor or container the machine is inside of.
    #[serde(default)]
    pub virtualization: Option<String>,
    #[serde(default)]
    pub cpu_governor: Option<String>,
    #[serde(default)]
    pub congestion_control: Option<String>,
    /// Time the hypervisor took away during the experiment, of all CPU time, 0 to 1.
    #[serde(default)]
    pub steal_fraction: Option<f64>,
    /// Anything else worth keeping (`load_average_1m`, `psi_cpu_some_us`, …).
    #[serde(default)]
    pub details: BTreeMap<String, String>,
}

/// Something that was measured, and what it was made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The bare name: `direct`, `tollway`, `haproxy`.
    pub name: String,
    /// What it was made of: `sidecar–gateway–sidecar`, `plain`.
    #[serde(default)]
    pub variant: String,
    #[serde(default)]
    pub version: String,
    /// Configuration of each process by name: command line or file.
    #[serde(default)]
    pub config: BTreeMap<String, String>,
}

/// One cell of the experiment's plan: a subject under one set of conditions, over all blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    #[serde(flatten)]
    pub conditions: Conditions,
    #[serde(flatten)]
    pub traffic: Traffic,
    #[serde(flatten)]
    pub cost: Cost,
    #[serde(flatten)]
    pub particulars: Particulars,
    /// In order of `block`.
    pub blocks: Vec<Block>,
    /// Runs that foreign load disturbed and that were repeated: recorded, and counted nowhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<Block>,
}

/// What was held fixed in a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Unique in the record: `other-region/http1/tollway`.
    pub id: String,
    /// The scenario's case; rows of one case differ in subject, layout and topology alone.
    #[serde(default)]
    pub case: String,
    /// The subject's bare name.
    pub subject: String,
    /// What it was made of, and after a comma the name of a variant that is not the usual one:
    /// `sidecar–sidecar`, `sidecar–sidecar, traced-1`.
    #[serde(default)]
    pub variant: String,
    pub protocol: Protocol,
    pub tls: Tls,
    /// Proxies between the caller and the callee.
    pub hops: u32,
    pub topology: Topology,
    pub layout: Layout,
    pub arrival: Arrival,
    /// Connections the load generator held open.
    pub connections: u32,
    /// Requests (or messages) under way at once on one of them, at most; absent where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight_per_connection: Option<u32>,
    pub payload_bytes: u64,
    /// The link between the networks; absent within one network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// What each process of the subject may use; absent when unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// The emulated or real link between two networks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    pub kind: LinkKind,
    /// Requested round trip; absent on a real network.
    #[serde(default)]
    pub rtt_asked_us: Option<f64>,
    pub rtt_measured_us: RttUs,
    #[serde(default)]
    pub jitter_us: f64,
    #[serde(default)]
    pub loss_pct: f64,
    /// Bits per second; absent when unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
}

/// Round-trip times of `n` probes, in microseconds. Probes are few: the median is the middle
/// probe, without the rule of 100 samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RttUs {
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub max: f64,
    pub n: u64,
}

/// Processor time and memory of the subject's processes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// User and system time by process, per successful request.
    #[serde(default)]
    pub cpu_us_per_request: BTreeMap<String, f64>,
    /// Busy time of all the machine's processors, load generator included, per successful request.
    #[serde(default)]
    pub machine_cpu_us_per_request: Option<f64>,
    /// Of a flow: user and system time by process, per megabyte (1,000,000 bytes) that moved.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_us_per_megabyte: BTreeMap<String, f64>,
    /// Of a flow: busy time of all the machine's processors, load generator included, per megabyte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_cpu_us_per_megabyte: Option<f64>,
    /// Largest resident set by process.
    #[serde(default)]
    pub rss_bytes: BTreeMap<String, u64>,
    /// Time the subject's cgroups were held back by their CPU quota; absent without cgroups.
    #[serde(default)]
    pub throttled_us: Option<u64>,
    /// The same by process, with how often; empty without quotas.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub throttling: BTreeMap<String, Throttling>,
    #[serde(default)]
    pub tcp: Tcp,
    /// Use over time, in order; in a row the blocks' one after the other. Empty where the window
    /// was too short for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cost_series: Vec<CostPoint>,
}

/// The kernel's figures of the generator's connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmitted_segments: Option<u64>,
    /// Smoothed round trip, mean over connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<f64>,
}

/// One interleaved round: the subject's part in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Number of the round, from 0; rows of the same round are compared with each other.
    pub block: u32,
    /// Place of this run among the runs of the round, from 0.
    pub position: u32,
    #[serde(flatten)]
    pub traffic: Traffic,
    #[serde(flatten)]
    pub cost: Cost,
    #[serde(flatten)]
    pub particulars: Particulars,
    /// Time of a fixed amount of work right before the run: the machine's speed then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_us: Option<f64>,
    /// Time the hypervisor took away during the run, of all CPU time, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_fraction: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
    /// Why the run is outside the noise gate; empty when it is not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside_gate: Vec<String>,
}

/// One row against another in one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Id of the row that is judged.
    pub row: String,
    /// Id of the row it is compared with.
    pub baseline_row: String,
    pub question: Question,
    pub metric: Metric,
    /// Row over baseline; absent when the baseline is 0.
    pub ratio: Option<f64>,
    pub ratio_ci95: Option<[f64; 2]>,
    /// Row minus baseline.
    pub difference_us: f64,
    pub difference_ci95_us: Option<[f64; 2]>,
    /// Differences within this many percent count as the same.
    pub margin_pct: f64,
    pub verdict: Verdict,
    /// How the intervals were made; absent when there are none.
    pub method: Option<IntervalMethod>,
    /// Blocks in which both rows have a run.
    pub blocks: u32,
}

/// Why a text is not a record.
#[derive(Debug, Error)]
pub enum RecordError {
    #[error("the record is {length} bytes long; at most {RECORD_LIMIT_BYTES} are read")]
    TooLong { length: usize },
    #[error("the record is not JSON of {SCHEMA}")]
    Json(#[source] serde_json::Error),
    #[error("the record is {found:?}; this version reads {SCHEMA}")]
    Schema { found: String },
    #[error("the record has two rows with the id {id:?}")]
    RowTwice { id: String },
}

impl Record {
    /// Reads the JSON text of a record. Unknown fields are ignored, another schema is refused.
    ///
    /// # Errors
    /// [`RecordError`] when the text is not JSON, lacks a field, is of another schema or names
    /// two rows alike.
    pub fn from_json(text: &str) -> Result<Self, RecordError> {
        if text.len() > RECORD_LIMIT_BYTES {
            return Err(RecordError::TooLong { length: text.len() });
        }
        let found = schema_of(text).map_err(RecordError::Json)?;
        if found != SCHEMA {
            return Err(RecordError::Schema { found });
        }
        let record: Self = serde_json::from_str(text).map_err(RecordError::Json)?;
        let mut ids: Vec<_> = record.rows.iter().map(|row| &row.conditions.id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(RecordError::RowTwice { id: pair[0].clone() }),
            None => Ok(record),
        }
    }

    /// The JSON text, on several lines.
    ///
    /// # Panics
    /// Never: every map key is a string.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain fields with string keys")
    }

    /// The row of that id.
    #[must_use]
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.conditions.id == id)
    }
}

impl Row {
    /// Whether it moved bytes without requests.
    #[must_use]
    pub fn is_flow(&self) -> bool {
        self.conditions.arrival == Arrival::Flow
    }

    /// Whether it sent packets in one direction, counted where they come out.
    #[must_use]
    pub fn is_packets(&self) -> bool {
        self.conditions.arrival == Arrival::Packets
    }

    /// Whether it has no requests, and so neither answers nor latencies.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.is_flow() || self.is_packets()
    }

    /// Whether nothing came of it: no answer, or of a flow no byte.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        if self.is_flow() { self.traffic.bytes.total() == 0 } else { self.traffic.requests == 0 }
    }
}

impl Conditions {
    /// The subject as scenarios name it, with its variant where it is not the usual one:
    /// `tollway`, `tollway:traced-1`.
    #[must_use]
    pub fn label(&self) -> String {
        let is_of_names =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        match self.variant.rsplit_once(", ") {
            Some((_, name)) if !name.is_empty() && name.chars().all(is_of_names) => {
                format!("{}:{name}", self.subject)
            }
            _ => self.subject.clone(),
        }
    }
}

impl RttUs {
    /// Summary of probes in microseconds; `None` without probes.
    #[must_use]
    pub fn from_probes(probes_us: &[f64]) -> Option<Self> {
        let mut sorted = probes_us.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |fraction: f64| sorted[((sorted.len() - 1) as f64 * fraction).round() as usize];
        (!sorted.is_empty()).then(|| Self {
            min: at(0.0),
            p50: at(0.5),
            p90: at(0.9),
            max: at(1.0),
            n: sorted.len() as u64,
        })
    }
}

/// The `schema` of a JSON document, before the rest is understood.
pub(crate) fn schema_of(text: &str) -> Result<String, serde_json::Error> {
    #[derive(Deserialize)]
    struct Envelope {
        schema: String,
    }
    serde_json::from_str::<Envelope>(text).map(|envelope| envelope.schema)
}
