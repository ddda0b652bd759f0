//! Rounds in which two tools ran, as ratios with intervals, and what may be concluded.

use serde_json::{Value, json};

/// Two tools have different loops: a difference as small as this is not the target's.
const MARGIN: f64 = 0.05;

/// Ours over theirs by round: the median, the lowest and the highest.
pub(super) fn ratios(rounds: &[Value], ours: &str, theirs: &str) -> Value {
    spread(rounds.iter().map(|round| figure(round, ours) / figure(round, theirs)).collect())
}

/// A tool against itself: its rounds over their median.
pub(super) fn noise(rounds: &[Value], name: &str) -> Value {
    let typical = median(rounds, name);
    spread(rounds.iter().map(|round| figure(round, name) / typical).collect())
}

/// Whether ours and theirs agree: the interval of the ratio overlaps that of the tool against
/// itself, or the difference is within [`MARGIN`].
pub(super) fn agrees(ratio: &Value, noise: &Value) -> bool {
    let meets = figure(ratio, "lowest") <= figure(noise, "highest")
        && figure(ratio, "highest") >= figure(noise, "lowest");
    meets || (figure(ratio, "median") - 1.0).abs() <= MARGIN
}

pub(super) fn median(rounds: &[Value], name: &str) -> f64 {
    let spread = spread(rounds.iter().map(|round| figure(round, name)).collect());
    figure(&spread, "median")
}

/// `0.84 (0.68 to 0.92)`.
pub(super) fn interval(ratio: &Value) -> String {
    let figure = |name| figure(ratio, name);
    format!("{:.2} ({:.2} to {:.2})", figure("median"), figure("lowest"), figure("highest"))
}

fn spread(mut figures: Vec<f64>) -> Value {
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied();
    json!({
        "median": at(figures.len() / 2),
        "lowest": at(0),
        "highest": at(figures.len().saturating_sub(1)),
    })
}

/// What is missing is not a number, and so is all that is made of it.
pub(super) fn figure(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tools_agree_when_the_intervals_meet() {
        for (ours, is_same) in
            [([9.9, 10.0, 10.2], true), ([11.0, 11.5, 12.0], false), ([10.4, 10.4, 10.4], true)]
        {
            let theirs = [10.0, 10.1, 9.9];
            let round = |(ours, theirs): (f64, f64)| json!({ "ours": ours, "theirs": theirs });
            let rounds: Vec<_> = ours.into_iter().zip(theirs).map(round).collect();
            let (ratio, noise) = (ratios(&rounds, "ours", "theirs"), noise(&rounds, "theirs"));
            assert_eq!(agrees(&ratio, &noise), is_same, "{ratio} {noise}");
        }
    }

    #[test]
    fn nothing_agrees_with_what_was_not_measured() {
        let rounds = [json!({ "ours": 1.0, "theirs": null })];
        let (ratio, noise) = (ratios(&rounds, "ours", "theirs"), noise(&rounds, "theirs"));
        assert!(!agrees(&ratio, &noise));
        assert_eq!(interval(&ratios(&[], "ours", "theirs")), "NaN (NaN to NaN)");
    }
}
