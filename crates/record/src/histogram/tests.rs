use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn of(samples: &[u64]) -> Histogram {
    let mut histogram = Histogram::new();
    samples.iter().for_each(|sample| histogram.record(*sample));
    histogram
}

/// Where a tool's steps are as wide as what it measures, a server of 500 µs has a median of
/// anything; neither our own steps nor those of files that are read or written may do that.
#[test]
fn a_constant_latency_is_recorded_within_a_percent_at_any_setting() {
    const NS: u64 = 500_000;
    let near = |ns: u64, setting: &str| {
        assert!(ns.abs_diff(NS) * 100 <= NS, "{setting}: {ns} ns");
    };
    let ours = of(&[NS; 1_000]);
    near(ours.raw_quantile_ns(0.5), "our own");
    near(ours.encode().decode().unwrap().raw_quantile_ns(0.5), "as text");
    for digits in 2..=5 {
        let mut foreign =
            hdrhistogram::Histogram::<u64>::new_with_bounds(1, LONGEST_NS, digits).unwrap();
        foreign.record_n(NS, 1_000).unwrap();
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&foreign, &mut bytes).unwrap();
        let read = EncodedHistogram::from_text(STANDARD.encode(bytes)).decode().unwrap();
        near(read.raw_quantile_ns(0.5), &format!("of {digits} digits"));
    }
    let text = crate::fortio::write(&crate::run::tests::run_of(&ours), "constant").unwrap();
    let read = crate::fortio::read(&text).unwrap().run.traffic.latencies().unwrap();
    near(read.raw_quantile_ns(0.5), "through Fortio's file");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn merged_parts_equal_the_whole(a in vec(0..10_000_000_000_u64, 0..200), b in vec(0..10_000_000_000_u64, 0..200)) {
        let mut merged = of(&a);
        merged.merge(&of(&b));
        prop_assert_eq!(merged, of(&[a, b].concat()));
    }

    #[test]
    fn quantiles_rise_and_stay_within_a_step_of_the_samples(samples in vec(1..LONGEST_NS, 1..400)) {
        let histogram = of(&samples);
        let mut sorted = samples.clone();
        sorted.sort_unstable();
        let mut last = 0;
        for percent in 0..=100_usize {
            let found = histogram.raw_quantile_ns(percent as f64 / 100.0);
            prop_assert!(found >= last);
            last = found;
            // Rounding of the fraction may move the rank by one.
            let rank = (samples.len() * percent / 100).clamp(1, samples.len());
            let (lower, upper) = (sorted[rank.saturating_sub(2)], sorted[rank.min(samples.len() - 1)]);
            let step = |exact: u64| (exact as f64 * 1e-4).max(64.0);
            prop_assert!(found as f64 >= lower as f64 - step(lower), "p{}: {} below {}", percent, found, lower);
            prop_assert!(found as f64 <= upper as f64 + step(upper), "p{}: {} above {}", percent, found, upper);
        }
    }

    #[test]
    fn text_form_keeps_every_count(samples in vec(0..LONGEST_NS, 0..300)) {
        let histogram = of(&samples);
        let read = histogram.encode().decode_with(&histogram.summary()).unwrap();
        prop_assert_eq!(read.counts, histogram.counts);
        prop_assert_eq!(read.max_ns, histogram.max_ns);
    }

    #[test]
    fn no_text_makes_decoding_panic(text in "[A-Za-z0-9+/=]{0,80}") {
        let _ = EncodedHistogram::from_text(text).decode();
    }

    #[test]
    fn damaged_bytes_do_not_panic(samples in vec(1..LONGEST_NS, 1..50), at in 0..60_usize, with in any::<u8>()) {
        let mut bytes = STANDARD.decode(of(&samples).encode().as_str()).unwrap();
        let at = at % bytes.len();
        bytes[at] = with;
        let _ = EncodedHistogram::from_text(STANDARD.encode(bytes)).decode();
    }
}

#[test]
fn the_largest_sample_stays_exact_at_the_lower_border_of_a_step() {
    let histogram = of(&[1_214_656]);
    let read = histogram.encode().decode_with(&histogram.summary()).unwrap();
    assert_eq!((read.min_ns, read.max_ns), (1_214_656, 1_214_656));
}

#[test]
fn a_toll_of_100_us_is_seen_on_138_ms() {
    let direct = of(&[138_050_000; 1_000]);
    let tollway = of(&[138_150_000; 1_000]);
    let difference = tollway.quantile_ns(0.5).unwrap() - direct.quantile_ns(0.5).unwrap();
    assert!((90_000..=110_000).contains(&difference), "{difference}");
    assert!((tollway.mean_ns().unwrap() - direct.mean_ns().unwrap() - 100_000.0).abs() < 1e-3);
}

#[test]
fn a_percentile_needs_a_hundred_samples_beyond_it() {
    let check = |n: usize, quantile: f64, printed: bool| {
        let histogram = of(&vec![5_000; n]);
        assert_eq!(histogram.quantile_ns(quantile).is_some(), printed, "{n} samples, {quantile}");
    };
    check(199, 0.50, false);
    check(200, 0.50, true);
    check(9_999, 0.99, false);
    check(10_000, 0.99, true);
    check(99_999, 0.999, false);
    check(100_000, 0.999, true);
}

#[test]
fn summary_is_in_microseconds() {
    let summary = of(&[1_500; 300]).summary();
    assert_eq!((summary.mean, summary.p50, summary.max), (Some(1.5), Some(1.5), Some(1.5)));
    assert_eq!((summary.n, summary.p99, summary.p999), (300, None, None));
    assert_eq!(Histogram::new().summary(), LatencyUs::default());
}

#[test]
fn latencies_beyond_an_hour_count_as_an_hour() {
    assert_eq!(of(&[u64::MAX]).max_ns(), Some(LONGEST_NS));
}

#[test]
fn histograms_of_other_writers_are_fitted_in() {
    let mut foreign = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 1 << 40, 2).unwrap();
    foreign.record_n(1_000_000, 300).unwrap();
    let mut bytes = Vec::new();
    hdrhistogram::serialization::V2Serializer::new().serialize(&foreign, &mut bytes).unwrap();
    let read = EncodedHistogram::from_text(STANDARD.encode(bytes)).decode().unwrap();
    let p50 = read.quantile_ns(0.5).unwrap();
    assert_eq!(read.n(), 300);
    assert!((990_000..=1_010_000).contains(&p50), "{p50}");
}

#[test]
fn damaged_text_is_refused_with_the_reason() {
    let check = |text: String, expected: &str| {
        let error = EncodedHistogram::from_text(text).decode().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not mention {expected:?}");
    };
    check("no base64!".to_owned(), "not base64");
    check(STANDARD.encode("something else"), "cookie");
    check("A".repeat(ENCODED_LIMIT_BYTES + 1), "at most");
    let mut plain = V2_PLAIN.to_vec();
    plain.extend([0xff; 36]);
    check(STANDARD.encode(&plain), "promises 4294967295 bytes");
    let whole = of(&[1_000, 2_000]).encode();
    let cut = STANDARD.decode(whole.as_str()).unwrap();
    check(STANDARD.encode(&cut[..cut.len() / 2]), "inflated");
}
