//! Histograms to Fortio's buckets and back.

use super::{Bucket, FortioError, HistogramData, MAX_BUCKETS, MAX_BUCKETS_READ, Percentile};
use crate::histogram::Histogram;

/// The percentiles that Fortio's page draws when it shows several files as lines.
const PERCENTILES: [f64; 5] = [50.0, 75.0, 90.0, 99.0, 99.9];

/// Places within a bucket at which its samples are put when it is read.
const POINTS: u64 = 32;

const NS: f64 = 1e9;

/// Neighbouring steps taken together until there are few enough, in even parts of a logarithmic
/// axis: a bucket is never wider than the axis's length over [`MAX_BUCKETS`], or one step.
pub(super) fn from_histogram(histogram: &Histogram) -> HistogramData {
    let (Some(min_ns), Some(max_ns), Some(mean_ns)) =
        (histogram.min_ns(), histogram.max_ns(), histogram.mean_ns())
    else {
        return HistogramData::default();
    };
    let mut groups = histogram.ranges().collect::<Vec<_>>();
    if groups.len() > MAX_BUCKETS {
        groups = coalesce(&groups, min_ns, max_ns);
    }
    let n = histogram.n();
    let mut seen = 0;
    let data = groups.iter().map(|&(low_ns, high_ns, count)| {
        seen += count;
        Bucket {
            start: low_ns as f64 / NS,
            end: high_ns as f64 / NS,
            percent: 100.0 * seen as f64 / n as f64,
            count: signed(count),
        }
    });
    HistogramData {
        count: signed(n),
        min: min_ns as f64 / NS,
        max: max_ns as f64 / NS,
        sum: mean_ns / NS * n as f64,
        avg: mean_ns / NS,
        std_dev: deviation_ns(histogram, mean_ns) / NS,
        data: data.collect(),
        percentiles: PERCENTILES
            .iter()
            .map(|&percentile| Percentile {
                percentile,
                value: histogram.raw_quantile_ns(percentile / 100.0) as f64 / NS,
            })
            .collect(),
    }
}

fn coalesce(ranges: &[(u64, u64, u64)], min_ns: u64, max_ns: u64) -> Vec<(u64, u64, u64)> {
    let low = (min_ns.max(1) as f64).ln();
    let width = ((max_ns.max(2) as f64).ln() - low) / (MAX_BUCKETS - 1) as f64;
    let group_of = |ns: u64| (((ns.max(1) as f64).ln() - low) / width) as usize;
    let mut groups: Vec<(u64, u64, u64)> = Vec::with_capacity(MAX_BUCKETS);
    for &(low_ns, high_ns, count) in ranges {
        match groups.last_mut() {
            Some(group) if group_of(group.0) == group_of(low_ns) => {
                group.1 = high_ns;
                group.2 += count;
            }
            _ => groups.push((low_ns, high_ns, count)),
        }
    }
    groups
}

fn deviation_ns(histogram: &Histogram, mean_ns: f64) -> f64 {
    let squares: f64 = histogram
        .steps()
        .map(|(middle_ns, count)| (middle_ns as f64 - mean_ns).powi(2) * count as f64)
        .sum();
    (squares / histogram.n() as f64).sqrt()
}

/// The samples spread evenly over their buckets, as Fortio itself interpolates. Minimum and maximum
/// are exact, as is the mean if the file has it.
pub(super) fn to_histogram(data: &HistogramData) -> Result<Histogram, FortioError> {
    if data.data.len() > MAX_BUCKETS_READ {
        return Err(FortioError::TooManyBuckets(data.data.len()));
    }
    let mut histogram = Histogram::new();
    for (index, bucket) in data.data.iter().enumerate() {
        let count = u64::try_from(bucket.count).map_err(|_| FortioError::Bucket { index })?;
        let sound = bucket.start.is_finite()
            && bucket.end.is_finite()
            && bucket.start >= 0.0
            && bucket.end >= bucket.start;
        if !sound {
            return Err(FortioError::Bucket { index });
        }
        spread(&mut histogram, bucket, count);
    }
    let known = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
    if [data.min, data.avg, data.max].into_iter().all(known) {
        histogram.set_exact(data.min * NS, data.avg * NS, data.max * NS);
    }
    Ok(histogram)
}

fn spread(histogram: &mut Histogram, bucket: &Bucket, count: u64) {
    let points = count.min(POINTS);
    for point in 0..points {
        let part = (point as f64 + 0.5) / points as f64;
        let at = bucket.start + (bucket.end - bucket.start) * part;
        // Whole shares, with the rest on the first places.
        let share = count / points + u64::from(point < count % points);
        histogram.record_n((at * NS).round() as u64, share);
    }
}

/// Takes the samples of `part` out of `whole`, bucket by bucket.
pub(super) fn subtract(whole: &mut HistogramData, part: &HistogramData) {
    for bucket in &part.data {
        let middle = f64::midpoint(bucket.start, bucket.end);
        let after = whole.data.partition_point(|of_whole| of_whole.end < middle);
        if let Some(of_whole) = whole.data.get_mut(after) {
            of_whole.count = of_whole.count.saturating_sub(bucket.count).max(0);
        }
    }
    let rest = whole.count.saturating_sub(part.count);
    if rest > 0 {
        whole.sum = (whole.sum - part.sum).max(0.0);
        whole.avg = whole.sum / rest as f64;
    }
    whole.count = rest.max(0);
    whole.data.retain(|bucket| bucket.count > 0);
    whole.min = whole.data.first().map_or(0.0, |first| whole.min.max(first.start));
    whole.max = whole.data.last().map_or(0.0, |last| whole.max.min(last.end));
}

/// Takes `n` samples out of `whole`, from each bucket its share.
pub(super) fn take_share(whole: &mut HistogramData, n: u64) -> HistogramData {
    let total: u64 = whole.data.iter().filter_map(|bucket| u64::try_from(bucket.count).ok()).sum();
    let n = n.min(total);
    let (mut seen, mut taken) = (0_u64, 0_u64);
    let mut part = HistogramData { avg: whole.avg, ..HistogramData::default() };
    for bucket in &mut whole.data {
        seen += u64::try_from(bucket.count).unwrap_or_default();
        let up_to_here = u128::from(seen) * u128::from(n) / u128::from(total.max(1));
        let up_to_here = u64::try_from(up_to_here).unwrap_or(n);
        let share = signed(up_to_here - taken);
        taken = up_to_here;
        bucket.count -= share;
        part.data.push(Bucket { count: share, ..*bucket });
    }
    let rest = total - n;
    for (side, count) in [(&mut *whole, rest), (&mut part, n)] {
        side.data.retain(|bucket| bucket.count > 0);
        side.count = signed(count);
        side.sum = side.avg * count as f64;
    }
    part.min = part.data.first().map_or(0.0, |first| whole.min.max(first.start));
    part.max = part.data.last().map_or(0.0, |last| last.end.min(whole.max));
    whole.min = whole.data.first().map_or(0.0, |first| whole.min.max(first.start));
    whole.max = whole.data.last().map_or(0.0, |last| whole.max.min(last.end));
    part
}

/// Fortio's numbers are signed.
pub(super) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
