//! Whether a request is recorded in a trace, and the trace context for its next hop.
//!
//! The caller's decision holds: a trace is recorded on every hop or on none. A request without
//! one begins a trace, and is recorded by a ratio of the trace's number, so that hops with the
//! same ratio agree even where the decision was lost between them.

use std::num::{NonZeroU64, NonZeroU128};

use tollway_model::{SpanId, TraceContext, TraceId};

/// Low bits of a trace's number, which the standard wants random; they decide.
const RATIO_BITS: u32 = 56;

/// The share of the traces that is recorded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SamplingRatio {
    /// Numbers below it are not recorded.
    threshold: u64,
}

impl SamplingRatio {
    /// `None` unless `share` is from 0 to 1.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        if !(0.0..=1.0).contains(&share) {
            return None;
        }
        let whole = (1_u64 << RATIO_BITS) as f64;
        Some(Self { threshold: ((1.0 - share) * whole).round() as u64 })
    }

    fn takes(self, trace: TraceId) -> bool {
        let low = trace.0.get() & ((1 << RATIO_BITS) - 1);
        low >= u128::from(self.threshold)
    }
}

/// What is done about a request's trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceDecision {
    /// Its caller does not record: the fields go on as they came.
    Pass,
    /// It begins a trace that is not recorded; the trace context reports that to the next hops.
    Begin(TraceContext),
    /// It is recorded as `context.span`.
    Record { context: TraceContext, parent: Option<SpanId> },
}

/// Decides by the values of the field `traceparent`: more than one, or one that is not valid,
/// counts as none.
#[must_use]
pub fn decide_trace<'a>(
    mut traceparent: impl Iterator<Item = &'a [u8]>,
    ratio: SamplingRatio,
    ids: &mut TraceIds,
) -> TraceDecision {
    let first = traceparent.next();
    let caller = first.filter(|_| traceparent.next().is_none()).and_then(TraceContext::parse);
    match caller {
        Some(caller) if caller.is_sampled() => {
            let context = caller.with_span(ids.next_span());
            TraceDecision::Record { context, parent: Some(caller.span) }
        }
        Some(_) => TraceDecision::Pass,
        None => {
            let (trace, span) = (ids.next_trace(), ids.next_span());
            if ratio.takes(trace) {
                let context = TraceContext::new(trace, span, true);
                TraceDecision::Record { context, parent: None }
            } else {
                TraceDecision::Begin(TraceContext::new(trace, span, false))
            }
        }
    }
}

/// Makes the numbers of traces and spans: two sequences (SplitMix64), so that no two processes
/// with different seeds make the same trace.
#[derive(Debug)]
pub struct TraceIds {
    high: u64,
    low: u64,
}

impl TraceIds {
    /// Numbers that depend on nothing but the seeds.
    #[must_use]
    pub fn new(seeds: [u64; 2]) -> Self {
        Self { high: seeds[0], low: seeds[1] }
    }

    /// The number of a new trace.
    pub fn next_trace(&mut self) -> TraceId {
        loop {
            let high = u128::from(next(&mut self.high)) << 64;
            if let Some(number) = NonZeroU128::new(high | u128::from(next(&mut self.low))) {
                return TraceId(number);
            }
        }
    }

    /// The number of a new span.
    pub fn next_span(&mut self) -> SpanId {
        loop {
            if let Some(number) = NonZeroU64::new(next(&mut self.low)) {
                return SpanId(number);
            }
        }
    }
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const CALLER: &str = "b7ad6b7169203331";

    fn decide(values: &[&str], share: f64) -> TraceDecision {
        let ratio = SamplingRatio::new(share).unwrap();
        decide_trace(values.iter().map(|v| v.as_bytes()), ratio, &mut TraceIds::new([1, 2]))
    }

    #[test]
    fn the_callers_decision_holds_whatever_the_ratio() {
        for share in [0.0, 1.0] {
            let unrecorded = decide(&[&format!("00-{TRACE}-{CALLER}-00")], share);
            assert_eq!(unrecorded, TraceDecision::Pass);
            let recorded = decide(&[&format!("00-{TRACE}-{CALLER}-01")], share);
            let TraceDecision::Record { context, parent } = recorded else {
                panic!("{recorded:?}")
            };
            assert_eq!(context.trace.to_string(), TRACE);
            assert_eq!(parent.unwrap().to_string(), CALLER);
            assert_ne!(context.span, parent.unwrap());
            assert!(context.is_sampled());
        }
    }

    #[test]
    fn a_request_without_one_valid_context_begins_a_trace() {
        let valid = format!("00-{TRACE}-{CALLER}-01");
        for values in [&[][..], &["garbage"], &[&valid, &valid], &[&valid, "garbage"]] {
            let TraceDecision::Record { context, parent: None } = decide(values, 1.0) else {
                panic!("{values:?}")
            };
            assert_ne!(context.trace.to_string(), TRACE);
            let TraceDecision::Begin(context) = decide(values, 0.0) else { panic!("{values:?}") };
            assert!(!context.is_sampled());
        }
    }

    #[test]
    fn the_ratio_is_kept_and_all_hops_agree() {
        for share in [0.01, 0.25, 0.5, 0.9] {
            let (here, there) = (SamplingRatio::new(share).unwrap(), SamplingRatio::new(share));
            let mut ids = TraceIds::new([3, 4]);
            let traces: Vec<_> = (0..100_000).map(|_| ids.next_trace()).collect();
            let taken = traces.iter().filter(|trace| here.takes(**trace)).count() as f64;
            assert!(traces.iter().all(|t| here.takes(*t) == there.unwrap().takes(*t)));
            // Five standard deviations of a binomial.
            let sigma = (100_000.0 * share * (1.0 - share)).sqrt();
            assert!((taken - 100_000.0 * share).abs() < 5.0 * sigma, "{share}: {taken}");
        }
    }

    #[test]
    fn a_lower_ratio_takes_a_part_of_what_a_higher_one_takes() {
        let (low, high) = (SamplingRatio::new(0.1).unwrap(), SamplingRatio::new(0.3).unwrap());
        let mut ids = TraceIds::new([5, 6]);
        let mut traces = std::iter::repeat_with(|| ids.next_trace()).take(10_000);
        assert!(traces.all(|trace| !low.takes(trace) || high.takes(trace)));
    }

    #[test]
    fn a_share_that_is_none_is_refused() {
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(SamplingRatio::new(share), None);
        }
    }

    #[test]
    fn numbers_do_not_repeat() {
        let (mut ids, mut others) = (TraceIds::new([7, 8]), TraceIds::new([9, 8]));
        let both = |_| [ids.next_trace(), others.next_trace()];
        let seen: HashSet<_> = (0..10_000).flat_map(both).collect();
        assert_eq!(seen.len(), 20_000);
    }
}
