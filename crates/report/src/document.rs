//! A result file of any kind that is read here: an experiment, a load run, a file of Fortio's.

use serde::Deserialize;
use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_record::fortio::{self, FortioError};
use tollway_record::record::{Record, Row, SCHEMA};
use tollway_record::run::{RUN_SCHEMA, RunError, RunResult};
use tollway_record::{HistogramError, RecordError, Traffic};

use crate::contents;
use crate::plot::{Course, Sample};

/// The id of the one row of a file that holds one run.
pub(crate) const ONLY_ROW: &str = "run";

/// A file's contents.
pub(crate) enum Document {
    Experiment(Box<Record>),
    Run(Box<RunFile>),
}

/// One load run.
pub(crate) struct RunFile {
    /// What the run was called by who made it; may be empty.
    pub(crate) label: String,
    pub(crate) kind: Kind,
    pub(crate) run: RunResult,
    /// Its latencies count from the send; it has no others.
    pub(crate) from_send: bool,
    /// The times of what failed were among the others in the file.
    pub(crate) failures_mixed: bool,
}

/// The program that wrote a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Experiment,
    Load,
    Fortio,
}

/// Why a file cannot be shown.
#[derive(Debug, Error)]
pub(crate) enum DocumentError {
    #[error("it is not JSON")]
    Json(#[source] serde_json::Error),
    #[error(
        "it has neither a `schema`, as experiments (`tollway lab run --json`) and runs (`tollway \
         load --json`) have, nor a `RunType`, as files of Fortio have"
    )]
    Unknown,
    #[error("its schema is {0:?}; this version reads {SCHEMA} and {RUN_SCHEMA}")]
    Schema(String),
    #[error("the experiment cannot be read")]
    Experiment(#[source] RecordError),
    #[error("the run cannot be read")]
    Run(#[source] RunError),
    #[error("the file of Fortio cannot be read")]
    Fortio(#[source] FortioError),
}

#[derive(Deserialize)]
struct Envelope {
    schema: Option<String>,
    #[serde(rename = "RunType")]
    run_type: Option<serde::de::IgnoredAny>,
    /// Nighthawk's output in Fortio's format has no kind.
    #[serde(rename = "DurationHistogram")]
    durations: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// # Errors
    /// [`DocumentError`] when the text is of no kind that is read here, or broken.
    pub(crate) fn from_json(text: &str) -> Result<Self, DocumentError> {
        let envelope: Envelope = serde_json::from_str(text).map_err(DocumentError::Json)?;
        if envelope.run_type.is_some() || envelope.durations.is_some() {
            let imported = fortio::read(text).map_err(DocumentError::Fortio)?;
            return Ok(Self::Run(Box::new(RunFile {
                label: imported.labels,
                kind: Kind::Fortio,
                run: imported.run,
                from_send: imported.from_send,
                failures_mixed: imported.failures_mixed,
            })));
        }
        match envelope.schema.as_deref() {
            Some(SCHEMA) => Record::from_json(text)
                .map(|record| Self::Experiment(Box::new(record)))
                .map_err(DocumentError::Experiment),
            Some(RUN_SCHEMA) => {
                let run = RunResult::from_json(text).map_err(DocumentError::Run)?;
                let (label, kind) = (String::new(), Kind::Load);
                Ok(Self::Run(Box::new(RunFile {
                    label,
                    kind,
                    run,
                    from_send: false,
                    failures_mixed: false,
                })))
            }
            Some(other) => Err(DocumentError::Schema(contents::clipped(other))),
            None => Err(DocumentError::Unknown),
        }
    }

    /// A run as the one row that it is.
    pub(crate) fn part_of(file: &RunFile) -> Part<'_> {
        Part::of_run(file)
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Experiment(_) => Kind::Experiment,
            Self::Run(file) => file.kind,
        }
    }

    /// What it is called: the scenario, or the label, or what was called.
    pub(crate) fn label(&self) -> &str {
        match self {
            Self::Experiment(record) => &record.scenario,
            Self::Run(file) if file.label.is_empty() => &file.run.target,
            Self::Run(file) => &file.label,
        }
    }

    pub(crate) fn started_at(&self) -> &str {
        match self {
            Self::Experiment(record) => &record.started_at,
            Self::Run(file) => &file.run.started_at,
        }
    }

    /// Its rows, grouped as they belong together; a run is one row.
    pub(crate) fn groups(&self) -> Vec<Vec<Part<'_>>> {
        match self {
            Self::Run(file) => vec![vec![Part::of_run(file)]],
            Self::Experiment(record) => contents::groups(record)
                .iter()
                .map(|group| {
                    group.rows.iter().map(|named| Part::of_row(named.row, &named.name)).collect()
                })
                .collect(),
        }
    }
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Experiment => "experiment",
            Self::Load => "load run",
            Self::Fortio => "Fortio run",
        }
    }
}

/// A row of an experiment, or a run.
#[derive(Clone)]
pub(crate) struct Part<'a> {
    pub(crate) id: &'a str,
    /// What it is called among its neighbours; empty for a run.
    pub(crate) name: String,
    pub(crate) traffic: &'a Traffic,
    pub(crate) connections: u32,
    pub(crate) protocol: &'static str,
    row: Option<&'a Row>,
}

impl<'a> Part<'a> {
    fn of_row(row: &'a Row, name: &str) -> Self {
        Self {
            id: &row.conditions.id,
            name: name.to_owned(),
            traffic: &row.traffic,
            connections: row.conditions.connections,
            protocol: contents::protocol(row.conditions.protocol),
            row: Some(row),
        }
    }

    fn of_run(file: &'a RunFile) -> Self {
        Self {
            id: ONLY_ROW,
            name: String::new(),
            traffic: &file.run.traffic,
            connections: file.run.connections,
            protocol: contents::protocol(file.run.protocol),
            row: None,
        }
    }

    /// Response times under that name.
    ///
    /// # Errors
    /// [`HistogramError`] when a histogram is damaged.
    pub(crate) fn sample(&self, name: &str, colour: usize) -> Result<Sample, HistogramError> {
        let blocks = self.row.map_or(&[][..], |row| &row.blocks);
        let parts = blocks.iter().map(|block| block.traffic.latencies());
        Ok(Sample {
            name: name.to_owned(),
            colour,
            whole: self.traffic.latencies()?,
            parts: parts.collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn course(&self, name: &str, colour: usize) -> Course {
        let costs = self.row.map_or(&[][..], |row| &row.cost.cost_series);
        Course::of(name, colour, self.traffic, costs)
    }

    /// Mean response times of the blocks; none for a run.
    pub(crate) fn block_means_us(&self) -> Vec<f64> {
        let blocks = self.row.map_or(&[][..], |row| &row.blocks);
        blocks.iter().filter_map(|block| block.traffic.latency_us.mean).collect()
    }
}

/// Seconds since 1970 of an RFC 3339 time.
pub(crate) fn unix_s(rfc3339: &str) -> Option<f64> {
    let at = OffsetDateTime::parse(rfc3339, &Rfc3339).ok()?;
    Some(at.unix_timestamp() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_document_is_refused_with_the_reason() {
        let check = |text: &str, reason: &str| {
            let error = Document::from_json(text).err().unwrap();
            let text = tollway_model::chain(&error);
            assert!(text.contains(reason), "{text}");
        };
        check("", "it is not JSON: EOF");
        check("{}", "neither a `schema`");
        check(r#"{"schema":"other/1"}"#, "\"other/1\"");
        check(r#"{"schema":"tollway.lab/1"}"#, "missing field `scenario`");
        check(r#"{"schema":"tollway.load/1"}"#, "missing field `started_at`");
        check(r#"{"RunType":"HTTP"}"#, "no DurationHistogram");
    }

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(unix_s("1970-01-02T00:00:00Z"), Some(86_400.0));
        assert_eq!(unix_s("1970-01-02T01:00:00.5+01:00"), Some(86_400.0));
        assert_eq!(unix_s("yesterday"), None);
    }
}
