//! Series by a name and a mark, and distributions in Dapr's buckets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::page::{Kind, Metric, Page};
use super::SERIES;
use super::rules::{LabelRules, Rules};

/// The name of what has no series of its own.
pub(super) const OTHER: &str = "other";
/// Its status, which no protocol has.
pub(super) const OTHER_STATUS: u16 = u16::MAX;

/// Upper bounds of latencies, in milliseconds.
static LATENCIES: [f64; 34] = [
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 16.0, 20.0, 25.0, 30.0, 40.0, 50.0, 65.0, 80.0,
    100.0, 130.0, 160.0, 200.0, 250.0, 300.0, 400.0, 500.0, 650.0, 800.0, 1e3, 2e3, 5e3, 1e4, 2e4,
    5e4, 1e5,
];
/// Upper bounds of the buckets for sizes, in bytes: 1 KiB to 4 GiB.
static SIZES: [f64; 13] = [
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

/// What distinguishes the rows of one name.
pub(super) trait Mark: Copy + PartialEq {
    /// That of what has no series of its own.
    const OTHER: Self;
}

impl Mark for u16 {
    const OTHER: Self = OTHER_STATUS;
}

/// What is counted by a name and a mark, such as a status.
#[derive(Clone, Debug)]
pub(super) struct Table<M, V> {
    /// Where the rows of a name are.
    names: BTreeMap<Box<str>, usize>,
    rows: Vec<Vec<(M, V)>>,
    count: usize,
}

impl<M, V> Default for Table<M, V> {
    fn default() -> Self {
        Self { names: BTreeMap::new(), rows: Vec::new(), count: 0 }
    }
}

impl<M: Mark, V> Table<M, V> {
    /// The row of a name and a mark, made by `new` if there is none. Beyond [`SERIES`] rows that of all
    /// other names with the mark, and beyond as many again that of all others.
    pub(super) fn at(&mut self, name: &str, mark: M, new: impl FnOnce() -> V) -> &mut V {
        let (name, mark) = if self.count < SERIES || self.has(name, mark) {
            (name, mark)
        } else if self.count < 2 * SERIES || self.has(OTHER, mark) {
            (OTHER, mark)
        } else {
            (OTHER, M::OTHER)
        };
        let at = self.names.get(name).copied().unwrap_or(self.rows.len());
        if at == self.rows.len() {
            self.names.insert(name.into(), at);
            self.rows.push(Vec::new());
        }
        let rows = &mut self.rows[at];
        let at = rows.iter().position(|(known, _)| *known == mark).unwrap_or(rows.len());
        if at == rows.len() {
            rows.push((mark, new()));
            self.count += 1;
        }
        &mut rows[at].1
    }

    fn has(&self, name: &str, mark: M) -> bool {
        let rows = self.names.get(name).map(|at| &self.rows[*at]);
        rows.is_some_and(|rows| rows.iter().any(|(known, _)| *known == mark))
    }

    /// Every row, in the order of the names.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&str, M, &V)> {
        self.names.iter().flat_map(|(name, at)| {
            self.rows[*at].iter().map(|(mark, value)| (name.as_ref(), *mark, value))
        })
    }
}

/// What is counted by a name alone; beyond [`SERIES`] names, of all others.
pub(super) fn entry<'a, V: Default>(rows: &'a mut BTreeMap<Box<str>, V>, name: &str) -> &'a mut V {
    entry_or(rows, name, V::default)
}

/// The same of values that `new` makes.
pub(super) fn entry_or<'a, V>(
    rows: &'a mut BTreeMap<Box<str>, V>,
    name: &str,
    new: impl FnOnce() -> V,
) -> &'a mut V {
    let name = if rows.len() >= SERIES && !rows.contains_key(name) { OTHER } else { name };
    rows.entry(name.into()).or_insert_with(new)
}

/// The upper bounds of the buckets in use.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    latencies: Arc<[f64]>,
    sizes: Arc<[f64]>,
}

impl Default for Bounds {
    /// Dapr's.
    fn default() -> Self {
        Self { latencies: LATENCIES.as_slice().into(), sizes: SIZES.as_slice().into() }
    }
}

impl Bounds {
    /// With these bounds for latencies, in milliseconds; Dapr's without any.
    ///
    /// # Errors
    /// Why they cannot be.
    pub(super) fn of_latencies(latencies: &[i64]) -> Result<Self, String> {
        if latencies.is_empty() {
            return Ok(Self::default());
        }
        let mut own = latencies.to_vec();
        own.sort_unstable();
        own.dedup();
        if let Some(below) = own.first().filter(|least| **least < 0) {
            return Err(format!("a bucket ends at {below}, and no latency is below 0"));
        }
        // Dapr leaves out a bucket for nothing.
        own.retain(|bound| *bound > 0);
        // Far below where whole numbers end.
        let latencies = own.into_iter().map(|bound| bound as f64).collect();
        Ok(Self { latencies, ..Self::default() })
    }

    pub(super) fn latency(&self) -> Histogram {
        Histogram::new(&self.latencies)
    }

    pub(super) fn size(&self) -> Histogram {
        Histogram::new(&self.sizes)
    }
}

/// Values in buckets.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bounds: Arc<[f64]>,
    counts: Box<[u64]>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &Arc<[f64]>) -> Self {
        let counts = vec![0; bounds.len() + 1].into();
        Self { bounds: Arc::clone(bounds), counts, sum: 0.0 }
    }

    pub(super) fn note(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        self.sum += value;
    }

    /// Adds another histogram with the same bounds.
    fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        self.sum += other.sum;
    }

    fn add_to(&self, page: &mut Page, metric: &'static Metric, labels: &[(&'static str, &str)]) {
        let mut below = 0;
        let counts = self.counts.iter().map(|count| {
            below += count;
            below
        });
        let counts: Vec<u64> = counts.collect();
        page.family(metric).histogram(labels, &self.bounds, &counts, self.sum);
    }
}

/// A page on which series get the labels that rules make of theirs. Series that get the same are one.
pub(super) struct Sheet<'a> {
    page: &'a mut Page,
    rules: &'a Rules,
    merged: BTreeMap<&'static str, Merged>,
}

/// The series of one metric with rules.
struct Merged {
    metric: &'static Metric,
    rules: Vec<LabelRules>,
    counts: BTreeMap<Vec<String>, u64>,
    histograms: BTreeMap<Vec<String>, Histogram>,
}

impl<'a> Sheet<'a> {
    pub(super) fn new(page: &'a mut Page, rules: &'a Rules) -> Self {
        Self { page, rules, merged: BTreeMap::new() }
    }

    /// One sample; the values of its labels are in the metric's order.
    pub(super) fn sample(&mut self, metric: &'static Metric, values: &[&str], value: u64) {
        match self.merged(metric) {
            None => self.page.family(metric).sample(&labels(metric, values), value),
            Some(merged) => {
                let count = merged.counts.entry(merged.labels(values)).or_default();
                // Of a gauge the last one counts.
                let is_gauge = metric.kind == Kind::Gauge;
                *count = if is_gauge { value } else { *count + value };
            }
        }
    }

    /// One distribution.
    pub(super) fn histogram(&mut self, metric: &'static Metric, values: &[&str], of: &Histogram) {
        match self.merged(metric) {
            None => of.add_to(self.page, metric, &labels(metric, values)),
            Some(merged) => {
                let values = merged.labels(values);
                let sum =
                    merged.histograms.entry(values).or_insert_with(|| Histogram::new(&of.bounds));
                sum.add(of);
            }
        }
    }

    /// Writes what was merged.
    pub(super) fn finish(self) {
        for Merged { metric, counts, histograms, .. } in self.merged.into_values() {
            for (values, count) in &counts {
                self.page.family(metric).sample(&labels(metric, &texts(values)), count);
            }
            for (values, of) in &histograms {
                of.add_to(self.page, metric, &labels(metric, &texts(values)));
            }
        }
    }

    fn merged(&mut self, metric: &'static Metric) -> Option<&mut Merged> {
        if !self.rules.concern(metric) {
            return None;
        }
        // Those of a path were applied when it was counted.
        let of = |label: &&'static str| match *label {
            "path" => LabelRules::default(),
            label => self.rules.of(metric, label),
        };
        Some(self.merged.entry(metric.name).or_insert_with(|| Merged {
            metric,
            rules: metric.labels.iter().map(of).collect(),
            counts: BTreeMap::new(),
            histograms: BTreeMap::new(),
        }))
    }
}

impl Merged {
    fn labels(&self, values: &[&str]) -> Vec<String> {
        values.iter().zip(&self.rules).map(|(value, rules)| rules.apply(value).into()).collect()
    }
}

fn texts(values: &[String]) -> Vec<&str> {
    values.iter().map(String::as_str).collect()
}

/// The labels of a metric with these values, in their order.
fn labels<'a>(metric: &'static Metric, values: &[&'a str]) -> Vec<(&'static str, &'a str)> {
    metric.labels.iter().copied().zip(values.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::dapr::LabelRule;
    use crate::metrics::names;

    #[test]
    fn a14_buckets_are_sorted_and_none_ends_at_nothing() {
        let bounds = |list: &[i64]| Bounds::of_latencies(list).map(|of| of.latencies.to_vec());
        assert_eq!(bounds(&[500, 5, 0, 50, 5]).unwrap(), [5.0, 50.0, 500.0]);
        assert_eq!(bounds(&[]).unwrap(), LATENCIES);
        assert_eq!(bounds(&[0]).unwrap(), [0.0; 0]);
        assert!(bounds(&[5, -1]).unwrap_err().contains("ends at -1"));
    }

    #[test]
    fn a14_series_that_get_the_same_labels_are_one() {
        let rule = LabelRule {
            metric: "dapr_http_healthprobes_completed_count".to_owned(),
            label: "status".to_owned(),
            replaced: vec![("2xx".to_owned(), "^2..$".to_owned())],
        };
        let of_latency =
            LabelRule { metric: "http/healthprobes/roundtrip/latency".to_owned(), ..rule.clone() };
        let rules = Rules::compile(&[rule, of_latency]).unwrap();
        let mut page = Page::default();
        let mut sheet = Sheet::new(&mut page, &rules);
        let mut took = Bounds::default().latency();
        took.note(1.5);
        for (status, count) in [("200", 2), ("204", 3), ("500", 4)] {
            sheet.sample(&names::DAPR_HTTP_PROBES, &["a", status], count);
            sheet.histogram(&names::DAPR_HTTP_PROBE_LATENCY, &["a", status], &took);
        }
        sheet.finish();
        let text = page.into_text();
        let count = "dapr_http_healthprobes_completed_count{app_id=\"a\",status=";
        assert!(text.contains(&format!("{count}\"2xx\"}} 5\n")), "{text}");
        assert!(text.contains(&format!("{count}\"500\"}} 4\n")), "{text}");
        let sum = "dapr_http_healthprobes_roundtrip_latency_sum{app_id=\"a\",status=\"2xx\"} 3\n";
        assert!(text.contains(sum), "{text}");
    }
}
