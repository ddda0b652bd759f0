//! Series by a name and a status, and distributions in Dapr's buckets.

use std::collections::BTreeMap;

use super::super::page::{Metric, Page};
use super::SERIES;

/// The name of what found no place of its own.
pub(super) const OTHER: &str = "other";
/// Its status, which no protocol has.
pub(super) const OTHER_STATUS: u16 = u16::MAX;

/// Upper bounds of latencies, in milliseconds.
pub(super) static LATENCIES: [f64; 34] = [
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0, 30.0, 40.0, 50.0, 65.0, 80.0,
    100.0, 130.0, 160.0, 200.0, 250.0, 300.0, 400.0, 500.0, 650.0, 800.0, 1e3, 2e3, 5e3, 1e4, 2e4,
    5e4, 1e5,
];
/// Upper bounds of the buckets for sizes, in bytes: 1 KiB to 4 GiB.
pub(super) static SIZES: [f64; 13] = [
    1024.0,
    2048.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
    4_294_967_296.0,
];

/// What is counted by a name and a status.
#[derive(Clone, Debug)]
pub(super) struct Table<V> {
    rows: BTreeMap<Box<str>, Vec<(u16, V)>>,
    count: usize,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), count: 0 }
    }
}

impl<V: Default> Table<V> {
    /// The row of a name and a status; beyond [`SERIES`] of them, that of all others.
    pub(super) fn at(&mut self, name: &str, status: u16) -> &mut V {
        let is_known = |row: &Vec<(u16, V)>| row.iter().any(|(known, _)| *known == status);
        let is_new = !self.rows.get(name).is_some_and(is_known);
        let (name, status) =
            if is_new && self.count >= SERIES { (OTHER, OTHER_STATUS) } else { (name, status) };
        if !self.rows.contains_key(name) {
            self.rows.insert(name.into(), Vec::new());
        }
        let row = self.rows.entry(name.into()).or_default();
        let at = row.iter().position(|(known, _)| *known == status).unwrap_or(row.len());
        if at == row.len() {
            row.push((status, V::default()));
            self.count += 1;
        }
        &mut row[at].1
    }

    /// Every row, in the order of the names.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&str, u16, &V)> {
        self.rows.iter().flat_map(|(name, row)| {
            row.iter().map(|(status, value)| (name.as_ref(), *status, value))
        })
    }
}

/// What is counted by a name alone; beyond [`SERIES`] names, of all others.
pub(super) fn entry<'a, V: Default>(rows: &'a mut BTreeMap<Box<str>, V>, name: &str) -> &'a mut V {
    let name = if rows.len() >= SERIES && !rows.contains_key(name) { OTHER } else { name };
    if !rows.contains_key(name) {
        rows.insert(name.into(), V::default());
    }
    rows.entry(name.into()).or_default()
}

/// Values in buckets.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    counts: Box<[u64]>,
    sum: f64,
}

impl Default for Histogram {
    /// Of latencies.
    fn default() -> Self {
        Self::new(&LATENCIES)
    }
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1].into(), sum: 0.0 }
    }

    pub(super) fn note(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    /// Adds another histogram with the same bounds.
    pub(super) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        self.sum += other.sum;
    }
}

/// The labels of a metric with these values, in their order.
pub(super) fn label_of<'a>(
    metric: &'static Metric,
    values: &[&'a str],
) -> Vec<(&'static str, &'a str)> {
    metric.labels.iter().copied().zip(values.iter().copied()).collect()
}

pub(super) fn add_histogram(
    page: &mut Page,
    metric: &'static Metric,
    values: &[&str],
    histogram: &Histogram,
) {
    let mut below = 0;
    let counts: Vec<u64> = histogram
        .counts
        .iter()
        .map(|count| {
            below += count;
            below
        })
        .collect();
    let labels = label_of(metric, values);
    page.family(metric).histogram(&labels, histogram.bounds, &counts, histogram.sum);
}
