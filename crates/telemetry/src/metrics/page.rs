//! The page that Prometheus scrapes, in its text format 0.0.4.

use std::collections::HashSet;
use std::fmt::{Display, Write};

use super::durations::Durations;

/// What a metric is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows, but for a restart of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Durations in buckets.
    Histogram,
}

impl Kind {
    /// The word of the text format.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What is known of a metric before it has a value. All of them are in [`super::METRICS`].
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    /// Names of its labels; the values of each are of a bounded set.
    pub labels: &'static [&'static str],
    /// Which parts have it on their page.
    pub parts: &'static [super::Part],
    pub help: &'static str,
}

/// Labels of one sample.
pub(super) type Labels<'a> = [(&'static str, &'a str)];

/// A page in the making.
#[derive(Debug)]
pub struct Page {
    text: String,
    /// The metrics that were begun.
    begun: HashSet<&'static str>,
}

impl Default for Page {
    fn default() -> Self {
        Self { text: String::with_capacity(8 * 1024), begun: HashSet::new() }
    }
}

impl Page {
    /// A metric without labels.
    pub fn single(&mut self, metric: &'static Metric, value: impl Display) {
        self.family(metric).sample(&[], value);
    }

    /// Begins a metric; its samples follow. A page has each metric once.
    pub fn family(&mut self, metric: &'static Metric) -> Family<'_> {
        if self.begun.insert(metric.name) {
            // Here and below: writing into a string does not fail.
            let _ = writeln!(self.text, "# HELP {} {}", metric.name, metric.help);
            let _ = writeln!(self.text, "# TYPE {} {}", metric.name, metric.kind.word());
        }
        Family { page: self, metric }
    }

    /// The sum of several histograms, as one series of `metric`.
    pub fn durations(
        &mut self,
        metric: &'static Metric,
        labels: &[(&'static str, &str)],
        several: &[&Durations],
    ) {
        Durations::add_to(self, metric, labels, several);
    }

    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, name: &str, suffix: &str, labels: &Labels<'_>, value: impl Display) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        for (at, (label, value)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            escape(&mut self.text, value);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// The samples of one metric.
pub struct Family<'a> {
    page: &'a mut Page,
    metric: &'static Metric,
}

impl Family<'_> {
    /// One sample; the labels are those of the metric, in their order.
    pub fn sample(&mut self, labels: &[(&'static str, &str)], value: impl Display) {
        debug_assert!(labels.iter().map(|(name, _)| name).eq(self.metric.labels));
        self.page.line(self.metric.name, "", labels, value);
    }

    /// One histogram: upper bounds in seconds, cumulative counts with one more for what is above
    /// the last bound, and the sum of all durations in seconds.
    pub(super) fn histogram(
        &mut self,
        labels: &Labels<'_>,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        debug_assert!(labels.iter().map(|(name, _)| name).eq(self.metric.labels));
        let name = self.metric.name;
        let total = counts.last().copied().unwrap_or_default();
        let bounds = bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(counts) {
            let labels = [labels, &[("le", bound.as_str())]].concat();
            self.page.line(name, "_bucket", &labels, count);
        }
        self.page.line(name, "_sum", labels, sum);
        self.page.line(name, "_count", labels, total);
    }
}

fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::names;

    #[test]
    fn label_values_cannot_break_out_of_their_quotes() {
        let mut page = Page::default();
        page.family(&names::BUILD_INFO).sample(&[("part", "a\"b\\c\nd"), ("version", "1")], 1);
        let text = page.into_text();
        let last = text.lines().last().unwrap();
        assert_eq!(last, r#"tollway_build_info{part="a\"b\\c\nd",version="1"} 1"#);
    }

    #[test]
    fn a_metric_is_introduced_once() {
        let mut page = Page::default();
        page.family(&names::BUILD_INFO).sample(&[("part", "a"), ("version", "1")], 1);
        page.family(&names::BUILD_INFO).sample(&[("part", "b"), ("version", "1")], 1);
        assert_eq!(page.into_text().matches("# TYPE").count(), 1);
    }
}
