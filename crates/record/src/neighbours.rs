//! What runs of `tollway load neighbours` emit: the contract between them and the lab.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The format's name and version.
pub const NEIGHBOURS_SCHEMA: &str = "tollway.load-neighbours/1";

/// Longest result that is read, in bytes.
pub const NEIGHBOURS_LIMIT_BYTES: usize = 64 << 20;

/// How far neighbours have come, in their order. Each counts from the beginning of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The writer has handed over the last of them.
    Written,
    /// The control plane has answered the last write: all are on its disk.
    Durable,
    /// The control plane has handed the last of them to the agent's connection.
    Sent,
    /// The agent has the last of them.
    Received,
    /// The kernel's table has taken the last of them.
    Programmed,
    /// The last of them was read in the kernel's table.
    Total,
}

/// What a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// Took the whole group, as an agent, into a table of the kernel.
    List,
    /// Wrote neighbours, as an operator.
    Write,
}

/// Result of one run: the same done `rounds` times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeighbourRun {
    /// [`NEIGHBOURS_SCHEMA`].
    pub schema: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub doing: Doing,
    pub group: String,
    /// Neighbours of one round.
    pub entries: u64,
    pub rounds: Vec<Round>,
    /// The most memory that the process held while it measured.
    pub peak_rss_bytes: u64,
    #[serde(default)]
    pub command_line: Vec<String>,
}

/// One round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// CLOCK_MONOTONIC at its beginning.
    pub began_ns: u64,
    /// When stages were over that this process saw, microseconds since the beginning.
    pub stages_us: BTreeMap<Stage, f64>,
    /// Processor time of this process meanwhile.
    pub cpu_us: f64,
    /// Of the last transaction; an agent that holds it holds all of the round.
    pub revision: u64,
    /// Of a writer, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<Write>,
}

/// One request of a writer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// When it was handed over, since the beginning of the round.
    pub handed_us: f64,
    pub entries: u64,
    /// That wrote it.
    pub revision: u64,
}

/// Why a text is not a result.
#[derive(Debug, Error)]
pub enum NeighbourRunError {
    #[error("the result is {length} bytes long; at most {NEIGHBOURS_LIMIT_BYTES} are read")]
    TooLong { length: usize },
    #[error("the result is not JSON of {NEIGHBOURS_SCHEMA}")]
    Json(#[source] serde_json::Error),
    #[error("the result is {found:?}; this version reads {NEIGHBOURS_SCHEMA}")]
    Schema { found: String },
}

impl Stage {
    /// All, in their order.
    pub const ALL: [Self; 6] =
        [Self::Written, Self::Durable, Self::Sent, Self::Received, Self::Programmed, Self::Total];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Durable => "durable",
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Programmed => "programmed",
            Self::Total => "total",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl NeighbourRun {
    /// Reads the JSON text of a result.
    ///
    /// # Errors
    /// [`NeighbourRunError`].
    pub fn from_json(text: &str) -> Result<Self, NeighbourRunError> {
        if text.len() > NEIGHBOURS_LIMIT_BYTES {
            return Err(NeighbourRunError::TooLong { length: text.len() });
        }
        let found = crate::record::schema_of(text).map_err(NeighbourRunError::Json)?;
        if found != NEIGHBOURS_SCHEMA {
            return Err(NeighbourRunError::Schema { found });
        }
        serde_json::from_str(text).map_err(NeighbourRunError::Json)
    }

    /// The JSON text, on one line.
    ///
    /// # Panics
    /// Never: every map key is a word.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain fields with words as keys")
    }
}

impl Round {
    /// Microseconds from the beginning to a moment of the same clock.
    #[must_use]
    pub fn since_us(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.began_ns) as f64 / 1e3
    }
}

/// The middle of some figures, or the mean of the two in the middle; `None` without any.
#[must_use]
pub fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) =
        (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let round = Round {
            began_ns: 5_000,
            stages_us: [(Stage::Durable, 2.5)].into(),
            writes: vec![Write { handed_us: 1.0, entries: 3, revision: 9 }],
            ..Round::default()
        };
        let run = NeighbourRun {
            schema: NEIGHBOURS_SCHEMA.into(),
            started_at: "2026-11-22T00:00:00Z".into(),
            doing: Doing::Write,
            group: "racks".into(),
            entries: 3,
            rounds: vec![round],
            peak_rss_bytes: 1,
            command_line: Vec::new(),
        };
        assert_eq!(NeighbourRun::from_json(&run.to_json()).unwrap(), run);
        assert_eq!(run.rounds[0].since_us(7_500), 2.5);
        let other = run.to_json().replace("neighbours/1", "neighbours/2");
        let refused = NeighbourRun::from_json(&other).unwrap_err().to_string();
        assert!(refused.contains("this version reads tollway.load-neighbours/1"), "{refused}");
    }

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
    }
}
