//! Published figures that a scenario repeats, with those of the record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::FigureUnit;

/// Figures that others published, and the same figures of this record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SeedTable {
    /// Where they were published.
    pub title: String,
    /// How they were measured, and what is known to be wrong with them.
    #[serde(default)]
    pub notes: Vec<String>,
    pub figures: Vec<SeedFigure>,
}

/// One published figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeedFigure {
    /// The figure, such as "HTTP, added to p90".
    pub what: String,
    pub unit: FigureUnit,
    /// As published, by what was measured; in `unit`.
    pub seed: BTreeMap<String, SeedValue>,
    /// The same today, by subject (with its variant after a colon); in `unit`.
    pub today: BTreeMap<String, f64>,
}

/// A published number, or the range of several runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SeedValue {
    One(f64),
    Range([f64; 2]),
}
