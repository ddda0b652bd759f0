//! Durations in buckets.

use std::time::Duration;

use super::count::Counter;
use super::page::{Labels, Metric, Page};

/// Upper bounds of the buckets, in microseconds; most are below a millisecond or two, where a
/// sidecar lives.
const BUCKETS_US: [u64; 16] = [
    50, 100, 200, 300, 500, 750, 1_000, 2_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    1_000_000, 10_000_000,
];

/// A histogram with a fixed set of buckets, from 50 µs to 10 s; one writer.
#[derive(Default, Debug)]
pub struct Durations {
    buckets: [Counter; BUCKETS_US.len() + 1],
    sum_ns: Counter,
}

impl Durations {
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let at = BUCKETS_US.partition_point(|bound| *bound < us);
        self.buckets[at].add(1);
        self.sum_ns.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Puts the sum of several on a page, as one series of `metric`.
    pub(super) fn add_to(
        page: &mut Page,
        metric: &'static Metric,
        labels: &Labels<'_>,
        several: &[&Self],
    ) {
        let mut cumulative = 0;
        let mut counts = [0; BUCKETS_US.len() + 1];
        for (at, count) in counts.iter_mut().enumerate() {
            cumulative += several.iter().map(|each| each.buckets[at].value()).sum::<u64>();
            *count = cumulative;
        }
        let bounds = BUCKETS_US.map(|us| Duration::from_micros(us).as_secs_f64());
        let sum_ns = several.iter().map(|each| each.sum_ns.value()).sum::<u64>();
        let sum = Duration::from_nanos(sum_ns).as_secs_f64();
        page.family(metric).histogram(labels, &bounds, &counts, sum);
    }
}
