//! Sentences on rows that go as fast as they can: rates and shares of the baseline's.

use tollway_record::Row;
use tollway_record::compare::BASELINE_SUBJECT;

use super::{join_phrases, path};
use crate::contents::Differences;
use crate::contents::added::inverse;
use crate::contents::pairs::Pair;
use crate::figures;

/// More rates than this are summarised by their range.
const RATES_TOLD: usize = 6;

/// The rates that Tollway reaches under full load; `None` without such pairs.
pub(super) fn full_load(pairs: &[&Pair<'_>], differences: Differences) -> Option<String> {
    if pairs.is_empty() {
        return None;
    }
    if pairs.len() > RATES_TOLD {
        return Some(format!("at full load Tollway {}.", share_words(pairs, BASELINE_SUBJECT)?));
    }
    let phrases: Vec<(&str, String)> = pairs
        .iter()
        .map(|pair| {
            let row = pair.row;
            let share = share_of(pair).map(|(share, doubt)| format!(", {share} of direct{doubt},"));
            let (rate, path) = (rate(row), path(row, differences));
            ("reaches", format!("{rate}{} {path}", share.unwrap_or_default()))
        })
        .collect();
    Some(format!("at full load Tollway {}.", join_phrases(&phrases)))
}

/// `reaches 43 % of direct's rate`, or the range of several cases.
pub(super) fn share_words(pairs: &[&Pair<'_>], baseline: &str) -> Option<String> {
    let shares: Vec<f64> = pairs
        .iter()
        .filter_map(|pair| Some(inverse(pair.full_load()?)?.0))
        .filter(|share| share.is_finite())
        .collect();
    let lo = shares.iter().copied().reduce(f64::min)?;
    let hi = shares.iter().copied().reduce(f64::max)?;
    Some(match (shares.len(), pairs) {
        (1, [pair]) => {
            let (share, doubt) = share_of(pair)?;
            format!("reaches {share} of {baseline}'s rate{doubt}")
        }
        (cases, _) => {
            let (lo, hi) = (figures::share(lo), figures::share(hi));
            format!("reaches {lo} to {hi} of {baseline}'s rate in {cases} cases")
        }
    })
}

/// `43 %`, of the baseline's rate, and a word where it may be as much or more.
fn share_of(pair: &Pair<'_>) -> Option<(String, &'static str)> {
    let (share, ends) = inverse(pair.full_load()?)?;
    let doubt = ends.is_some_and(|[lo, hi]| lo <= 1.0 && hi >= 1.0);
    Some((figures::share(share), if doubt { " (undecided)" } else { "" }))
}

/// Requests, messages or bits per second.
fn rate(row: &Row) -> String {
    let traffic = &row.traffic;
    if row.is_flow() {
        return figures::bits_per_s(8.0 * traffic.bytes.total() as f64 / traffic.duration_s);
    }
    let what = row.conditions.protocol.counted();
    format!("{} {what}/s", figures::digits3_down(traffic.achieved_rps))
}
