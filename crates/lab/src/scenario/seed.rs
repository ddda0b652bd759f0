//! Published figures as a scenario file gives them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;
use tollway_record::record::{FigureUnit, SeedValue};

/// Figures that others published for the same question.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedSpec {
    /// Where, and of what.
    pub title: String,
    /// How they were measured, and what is known to be wrong with them.
    #[serde(default)]
    pub notes: Vec<String>,
    pub figures: Vec<FigureSpec>,
}

/// One published figure and where today's is found.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureSpec {
    pub what: String,
    /// Of the published values.
    pub unit: FigureUnit,
    /// By what was measured.
    pub published: BTreeMap<String, SeedValue>,
    /// Name of a case, of a step `CASE-RATE`.
    pub case: Spanned<String>,
    /// The first network when left out.
    #[serde(default)]
    pub network: Option<Spanned<String>>,
    pub metric: FigureMetric,
    /// For `cpu` and `memory`: one role's; all of the subject's when left out.
    #[serde(default)]
    pub process: Option<String>,
    /// The subjects of the published figures; all of the case when left out.
    #[serde(default)]
    pub subjects: Option<Vec<Spanned<String>>>,
}

/// Which figure of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureMetric {
    LatencyMean,
    LatencyP50,
    LatencyP75,
    LatencyP90,
    LatencyP99,
    LatencyP999,
    LatencyMax,
    /// The same over `direct`: the mean's difference, or a difference of two quantiles.
    AddedMean,
    AddedP50,
    AddedP75,
    AddedP90,
    AddedP99,
    /// Of a TLS handshake, as the caller sees it.
    HandshakeMean,
    Rate,
    /// Payload received and sent, bits per second.
    Throughput,
    /// Processors used by the subject's processes.
    Cpu,
    /// Resident memory of the subject's processes.
    Memory,
}

impl FigureMetric {
    /// Whether the unit can count it.
    #[must_use]
    pub fn fits(self, unit: FigureUnit) -> bool {
        use FigureUnit as Unit;
        match self {
            Self::Rate => matches!(unit, Unit::RequestsPerSecond | Unit::OfDirect),
            Self::Throughput => matches!(unit, Unit::MegabitsPerSecond | Unit::OfDirect),
            Self::Cpu => unit == Unit::Millicores,
            Self::Memory => unit == Unit::Mebibytes,
            Self::LatencyMean
            | Self::LatencyP50
            | Self::LatencyP75
            | Self::LatencyP90
            | Self::LatencyP99
            | Self::LatencyP999
            | Self::LatencyMax
            | Self::AddedMean
            | Self::AddedP50
            | Self::AddedP75
            | Self::AddedP90
            | Self::AddedP99
            | Self::HandshakeMean => matches!(unit, Unit::Microseconds | Unit::Milliseconds),
        }
    }
}
