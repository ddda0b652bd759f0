//! A run's response times as an HdrHistogram log: a line for each second, V2 compressed, in
//! nanoseconds. HdrHistogram's own tools and libraries read it.

use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::histogram::{Histogram, HistogramError};
use crate::run::RunResult;

/// The log's column of maxima is in milliseconds; the histograms are in nanoseconds.
const MAX_VALUE_DIVISOR: f64 = 1e6;

const LINE: Duration = Duration::from_secs(1);

/// The log's text; the window began at `window_began`. If the run has no histogram for each second,
/// one line has the whole window.
///
/// # Errors
/// [`HistogramError`] when a histogram of the result is damaged.
///
/// # Panics
/// Never: the log is written to memory.
pub fn write(run: &RunResult, window_began: SystemTime) -> Result<String, HistogramError> {
    let mut text = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment(&format!("[tollway {} load {}]", env!("CARGO_PKG_VERSION"), run.target))
        .with_start_time(window_began)
        .with_base_time(window_began)
        .with_max_value_divisor(MAX_VALUE_DIVISOR)
        .begin_log_with(&mut text, &mut serializer)
        .expect("writing to memory does not fail");
    let mut line = |histogram: &Histogram, start, length| {
        log.write_histogram(histogram.counts(), start, length, None)
            .expect("a fixed-size array of counts written to memory");
    };
    let seconds = &run.traffic.second_histograms;
    if seconds.is_empty() {
        let window = Duration::try_from_secs_f64(run.traffic.duration_s).unwrap_or_default();
        line(&run.traffic.latencies()?, Duration::ZERO, window);
    }
    let mut start = Duration::ZERO;
    for second in seconds {
        line(&second.decode()?, start, LINE);
        start += LINE;
    }
    Ok(String::from_utf8(text).expect("comments, numbers and base64"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::run_of;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn every_second_is_a_line_that_the_librarys_reader_reads() {
        let seconds = [histogram(1_000_000, 10), histogram(2_000_000, 0), histogram(3_000_000, 7)];
        let mut whole = Histogram::new();
        seconds.iter().for_each(|second| whole.merge(second));
        let mut run = run_of(&whole);
        run.traffic.second_histograms = seconds.iter().map(Histogram::encode_always).collect();
        let lines = read(&write(&run, SystemTime::UNIX_EPOCH).unwrap());
        let found: Vec<_> =
            lines.iter().map(|(start, histogram)| (*start, histogram.len())).collect();
        assert_eq!(found, [(0.0, 10), (1.0, 0), (2.0, 7)]);
        let mut merged = hdrhistogram::Histogram::<u64>::new(4).unwrap();
        lines.iter().for_each(|(_, histogram)| merged.add(histogram).unwrap());
        for quantile in [0.1, 0.5, 0.9] {
            let (given, found) =
                (whole.raw_quantile_ns(quantile), merged.value_at_quantile(quantile));
            assert!(given.abs_diff(found) as f64 <= given as f64 * 1e-4 + 64.0, "{given} {found}");
        }
    }

    #[test]
    fn a_run_without_seconds_is_one_line() {
        let run = run_of(&histogram(5_000_000, 3));
        let text = write(&run, SystemTime::UNIX_EPOCH + Duration::from_secs(7)).unwrap();
        assert!(text.contains("StartTime: 7.000"), "{text}");
        let lines = read(&text);
        assert_eq!((lines.len(), lines[0].1.len()), (1, 3));
    }

    fn histogram(ns: u64, count: u64) -> Histogram {
        let mut histogram = Histogram::new();
        histogram.record_n(ns, count);
        histogram
    }

    fn read(text: &str) -> Vec<(f64, hdrhistogram::Histogram<u64>)> {
        let mut lines = Vec::new();
        for entry in IntervalLogIterator::new(text.as_bytes()) {
            if let LogEntry::Interval(line) = entry.unwrap() {
                let bytes = base64::Engine::decode(
                    &base64::engine::general_purpose::STANDARD,
                    line.encoded_histogram(),
                )
                .unwrap();
                let histogram = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
                lines.push((line.start_timestamp().as_secs_f64(), histogram));
            }
        }
        lines
    }
}
