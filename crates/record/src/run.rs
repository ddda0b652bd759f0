//! What one load run emits: the contract between `tollway load --json` and the lab.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::client_limit;
use crate::record::{Arrival, Protocol, Tls};
use crate::traffic::Traffic;

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
    #[serde(flatten)]
    pub traffic: Traffic,
    pub generator: Generator,
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
