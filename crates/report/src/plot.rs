//! Charts as values: lines over a common x, with units. [`svg`] draws them; the page's script reads
//! their figures out.

mod distribution;
mod draw;
mod ladder;
mod percentiles;
mod series;
mod throughput;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tollway_record::Histogram;

use crate::figures;

pub(crate) use distribution::distribution;
pub(crate) use draw::{nice_step, svg, tick};
pub(crate) use ladder::{Climb, ladder};
pub(crate) use percentiles::percentiles;
pub(crate) use series::{Course, courses};
pub(crate) use throughput::throughput;

/// Colours of lines; with more lines than that, dashes distinguish them.
pub(crate) const COLOURS: usize = 8;

/// More subjects than this are not drawn in one chart; its tables have them all.
pub(crate) const SAMPLES_LIMIT: usize = 24;

/// A range of values wider than this factor gets a logarithmic axis.
const LOG_FROM_FACTOR: f64 = 12.0;

/// One chart.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Plot {
    pub(crate) kind: Kind,
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// Ascending.
    #[serde(serialize_with = "write_xs")]
    pub(crate) xs: Vec<f64>,
    pub(crate) lines: Vec<Line>,
    /// Where something begins, such as the next block: upright rules, in units of x.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) marks: Vec<f64>,
}

/// What a chart shows, and so how its lines run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Percentiles,
    /// Steps: `ys` of an x hold until the next x.
    Distribution,
    Series,
    /// Each x is a result of its own, marked by a dot; a line spans what is absent between.
    Points,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) log: bool,
    /// Where a linear axis starts; absent: chosen by the values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<f64>,
    /// Where a linear axis ends at the earliest; absent: with the last value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<f64>,
}

/// What an axis counts, and so how its ticks are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// −log₁₀(1 − p): every nine takes the same width.
    Nines,
    /// Microseconds, shown as µs, ms or s.
    Us,
    /// Seconds.
    S,
    /// Seconds since 1970, shown as dates.
    Date,
    /// Per second.
    Rps,
    /// Percent.
    Pct,
    /// Megabits per second.
    Mbit,
    /// A number of things.
    Count,
}

/// One line; `None` leaves a gap.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Lines of one name are shown, hidden and named together.
    pub(crate) name: String,
    pub(crate) colour: usize,
    pub(crate) weight: Weight,
    /// Dashed: fewer samples than a figure needs.
    pub(crate) dashed: bool,
    pub(crate) ys: Vec<Option<f64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Weight {
    Bold,
    Thin,
    /// One of several behind a bold one.
    Faint,
}

/// An entry of the legend.
pub(crate) struct Key<'a> {
    pub(crate) name: &'a str,
    pub(crate) colour: usize,
    /// Its line is thin, and so dashed.
    pub(crate) thin: bool,
}

/// Response times to be drawn under one name.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) colour: usize,
    pub(crate) whole: Histogram,
    /// What the whole was merged from; none where it was one run.
    pub(crate) parts: Vec<Histogram>,
}

impl Plot {
    /// The text for readers who do not see the drawing.
    pub(crate) fn description(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for line in &self.lines {
            if !names.contains(&line.name.as_str()) {
                names.push(&line.name);
            }
        }
        format!("{} over {}: {}.", self.y.label, self.x.label, names.join(", "))
    }

    /// Names of the lines, each once, in order of colour.
    pub(crate) fn keys(&self) -> Vec<Key<'_>> {
        let mut keys: Vec<Key<'_>> = Vec::new();
        for line in &self.lines {
            if !keys.iter().any(|key| key.name == line.name) {
                let (name, colour, thin) = (&line.name, line.colour, line.weight == Weight::Thin);
                keys.push(Key { name, colour, thin });
            }
        }
        keys.sort_by_key(|key| key.colour);
        keys
    }

    /// Smallest and largest y.
    fn range(&self) -> Option<(f64, f64)> {
        let values = || self.lines.iter().flat_map(|line| line.ys.iter().flatten().copied());
        Some((values().reduce(f64::min)?, values().reduce(f64::max)?))
    }
}

impl Axis {
    pub(crate) fn linear(label: &str, unit: Unit) -> Self {
        Self { label: label.to_owned(), unit, log: false, from: None, to: None }
    }

    pub(crate) fn from_zero(label: &str, unit: Unit) -> Self {
        Self { from: Some(0.0), ..Self::linear(label, unit) }
    }

    /// An axis of response times over these values: logarithmic where they are far apart.
    fn of_times(label: &str, lo_us: f64, hi_us: f64) -> Self {
        let log = lo_us > 0.0 && hi_us / lo_us > LOG_FROM_FACTOR;
        // Close curves far from zero would be one flat line: the axis then starts below them.
        let from = (!log && hi_us >= lo_us * 1.5).then_some(0.0);
        Self { log, from, ..Self::linear(label, Unit::Us) }
    }
}

/// Without the absent figures at both ends; `from` counts those before the first.
impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let from = self.ys.iter().take_while(|y| y.is_none()).count();
        let until = self.ys.iter().rposition(Option::is_some).map_or(from, |last| last + 1);
        let ys: Vec<_> = self.ys[from..until].iter().map(|y| y.map(short)).collect();
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("name", &self.name)?;
        line.serialize_entry("colour", &self.colour)?;
        line.serialize_entry("weight", &self.weight)?;
        if self.dashed {
            line.serialize_entry("dashed", &true)?;
        }
        if from > 0 {
            line.serialize_entry("from", &from)?;
        }
        line.serialize_entry("ys", &ys)?;
        line.end()
    }
}

fn write_xs<S: Serializer>(xs: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(xs.iter().copied().map(short))
}

/// Whole numbers without a fraction of zero.
fn short(value: f64) -> serde_json::Number {
    const EXACT: f64 = 1e15;
    let whole = (value.fract() == 0.0 && value.abs() < EXACT).then(|| (value as i64).into());
    whole.or_else(|| serde_json::Number::from_f64(value)).unwrap_or_else(|| 0.into())
}

/// Five significant digits: what a histogram resolves, and a third of the bytes.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// A figure with its unit, as at a tick.
fn shown(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Us => figures::time(value),
        Unit::Pct => format!("{} %", tick(value)),
        Unit::S => format!("{} s", tick(value)),
        Unit::Mbit => format!("{} Mbit/s", tick(value)),
        Unit::Rps | Unit::Nines | Unit::Date | Unit::Count => tick(value),
    }
}
