//! Searches for the highest rate side by side: what one more answer takes at it.
//!
//! A search finds an interval, from the highest rate that held to the lowest that did not. The
//! interval of the comparison is what both leave open, not one over repetitions.

use super::CompareError;
use crate::interval::Interval;
use crate::record::{IntervalMethod, Row};
use crate::search::SearchResult;

/// Ratio and difference of the times per answer at the highest rates that held; `None` where one
/// of the rows is no search.
pub(super) fn pair(
    row: &Row,
    baseline: &Row,
) -> Option<Result<(Interval, Interval), CompareError>> {
    let searches = (row.particulars.search.as_ref()?, baseline.particulars.search.as_ref()?);
    let (Some(found), Some(base)) = (Times::of(searches.0), Times::of(searches.1)) else {
        return Some(Err(CompareError::no_common_block(row, baseline)));
    };
    let least = found.least_us.zip(base.least_us);
    let with = |estimate, ci95: Option<[f64; 2]>| Interval {
        estimate,
        ci95,
        method: ci95.map(|_| IntervalMethod::Search),
    };
    let ratio = least.map(|(row, base_us)| [row / base.held_us, found.held_us / base_us]);
    let difference = least.map(|(row, base_us)| [row - base.held_us, found.held_us - base_us]);
    Some(Ok((
        with(found.held_us / base.held_us, ratio),
        with(found.held_us - base.held_us, difference),
    )))
}

/// What an answer takes, at the ends of a search's interval.
struct Times {
    held_us: f64,
    /// At the lowest rate that was missed; absent where that end is not the target's own.
    least_us: Option<f64>,
}

impl Times {
    fn of(search: &SearchResult) -> Option<Self> {
        let time_us = |rps: f64| (rps > 0.0).then(|| 1e6 / rps);
        let known = search.complete && !search.client_limited;
        Some(Self {
            held_us: search.held_rps.and_then(time_us)?,
            least_us: search.missed_rps.filter(|_| known).and_then(time_us),
        })
    }
}
