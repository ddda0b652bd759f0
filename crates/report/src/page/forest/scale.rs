//! Positions of ratios and differences on the common scale of a forest, and its drawing.

use maud::{Markup, html};
use tollway_record::record::Verdict;

use crate::figures::TimeUnit;
use crate::plot;

/// Intervals are drawn at least this far beyond the outermost estimates, as a factor.
const LEAST_REACH: f64 = 2.0;

/// Positions of values, in percent of the drawing's width.
pub(super) struct Scale {
    /// Of the upright rules, which every drawing on this scale shows.
    id: String,
    lo: f64,
    hi: f64,
    log: bool,
    pub(super) ticks: Vec<(f64, String)>,
    /// What counts as no difference.
    neutral: f64,
}

/// Room at both ends, in percent, for the dots and the ticks' names.
const MARGIN_PCT: f64 = 4.0;

impl Scale {
    /// Around all estimates, and their intervals as far as these are of their size.
    pub(super) fn of_ratios(id: &str, lines: &[[f64; 3]]) -> Option<Self> {
        let known = || lines.iter().filter(|[_, ratio, _]| *ratio > 0.0);
        let lowest = known().map(|[_, ratio, _]| *ratio).reduce(f64::min)?.min(0.97);
        let highest = known().map(|[_, ratio, _]| *ratio).reduce(f64::max)?.max(1.03);
        let reach = (highest / lowest).sqrt().max(LEAST_REACH);
        let lo = known().map(|[lo, ..]| *lo).fold(lowest, f64::min).max(lowest / reach);
        let hi = known().map(|[.., hi]| *hi).fold(highest, f64::max).min(highest * reach);
        let (lo, hi) = (lo * 0.99, hi * 1.01);
        let ticks = ratio_ticks(lo, hi);
        (hi / lo).is_finite().then_some(Self {
            id: id.to_owned(),
            lo,
            hi,
            log: true,
            ticks,
            neutral: 1.0,
        })
    }

    /// As [`Self::of_ratios`], in microseconds from zero.
    pub(super) fn of_differences(id: &str, lines: &[[f64; 3]]) -> Option<Self> {
        let lowest = lines.iter().map(|[_, us, _]| *us).fold(0.0, f64::min);
        let highest = lines.iter().map(|[_, us, _]| *us).fold(0.0, f64::max);
        let reach = highest - lowest;
        let lo = lines.iter().map(|[lo, ..]| *lo).fold(lowest, f64::min).max(lowest - reach);
        let hi = lines.iter().map(|[.., hi]| *hi).fold(highest, f64::max).min(highest + reach);
        if hi <= lo || !(hi - lo).is_finite() {
            return None;
        }
        let step = plot::nice_step(hi - lo);
        let (lo, hi) = ((lo / step).floor() * step, (hi / step).ceil() * step);
        let unit = TimeUnit::of(hi.max(-lo));
        let count = ((hi - lo) / step).round().min(12.0) as usize;
        let ticks = (0..=count).map(|index| {
            let us = lo + index as f64 * step;
            (us, format!("{} {}", plot::tick(us / unit.us()), unit.name()))
        });
        Some(Self { id: id.to_owned(), lo, hi, log: false, ticks: ticks.collect(), neutral: 0.0 })
    }

    /// Every second label may be dropped if there is little room, never that of no difference.
    pub(super) fn tick_class(&self, index: usize) -> &'static str {
        let neutral = self.ticks.iter().position(|(tick, _)| *tick == self.neutral).unwrap_or(0);
        if index.abs_diff(neutral) % 2 == 1 { "tick spare" } else { "tick" }
    }

    fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.lo, self.hi);
        let share = match self.log {
            true => (value / self.lo).ln() / (self.hi / self.lo).ln(),
            false => (value - self.lo) / (self.hi - self.lo),
        };
        MARGIN_PCT + share * (100.0 - 2.0 * MARGIN_PCT)
    }

    pub(super) fn percent(&self, value: f64) -> String {
        format!("{:.2}%", self.at(value))
    }

    /// The rules at the ticks and at no difference, once in the page, to be shown by reference.
    pub(super) fn rules(&self) -> Markup {
        html! {
            defs {
                g id=(self.id) {
                    @for (tick, _) in &self.ticks {
                        @let x = self.percent(*tick);
                        line.tick-line x1=(x) x2=(x) y2="100%" {}
                    }
                    @let x = self.percent(self.neutral);
                    line.neutral x1=(x) x2=(x) y2="100%" {}
                }
            }
        }
    }

    pub(super) fn drawing(
        &self,
        [lo, estimate, hi]: [f64; 3],
        band: Option<[f64; 2]>,
        verdict: Verdict,
    ) -> Markup {
        html! {
            svg class=(format!("interval {verdict}")) aria-hidden="true" {
                @if let Some([from, to]) = band {
                    @let width = self.at(to) - self.at(from);
                    rect.band x=(self.percent(from)) width=(format!("{width:.2}%")) y="0" height="100%" {}
                }
                use href=(format!("#{}", self.id)) {}
                line.range-line x1=(self.percent(lo)) x2=(self.percent(hi)) y1="50%" y2="50%" {}
                // An interval that goes on beyond the drawing.
                @if lo < self.lo { text.beyond x="0" y="50%" dy="5" { "‹" } }
                @if hi > self.hi { text.beyond x="100%" y="50%" dy="5" text-anchor="end" { "›" } }
                circle cx=(self.percent(estimate)) cy="50%" r="4.5" {}
            }
        }
    }
}

/// Few ratios that are easy to read, 1 among them.
fn ratio_ticks(lo: f64, hi: f64) -> Vec<(f64, String)> {
    const LADDERS: &[&[f64]] = &[
        &[0.9, 0.92, 0.94, 0.96, 0.98, 1.0, 1.02, 1.04, 1.06, 1.08, 1.1],
        &[0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        &[0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0],
        &[0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0],
    ];
    let inside = |ladder: &[f64]| -> Vec<f64> {
        ladder.iter().copied().filter(|tick| (lo..=hi).contains(tick)).collect()
    };
    let fits = |ladder: &&&[f64]| {
        lo >= ladder[0] * 0.9 && hi <= ladder[ladder.len() - 1] * 1.1 && inside(ladder).len() <= 7
    };
    let found = LADDERS.iter().find(fits).map(|ladder| inside(ladder));
    let ticks = found.unwrap_or_else(|| powers(lo, hi));
    ticks.into_iter().map(|tick| (tick, plot::tick(tick))).collect()
}

/// Powers of ten between the ends, as close as their labels allow.
fn powers(lo: f64, hi: f64) -> Vec<f64> {
    let [first, last] = [lo.log10().ceil(), hi.log10().floor()].map(|power| power as i32);
    let step = ((last - first) / 6 + 1).max(1);
    (first..=last).filter(|power| power % step == 0).map(|power| 10_f64.powi(power)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_few_and_have_one_among_them() {
        for (lo, hi) in [
            (0.96, 1.04),
            (0.8, 1.4),
            (0.5, 2.8),
            (0.95, 2.6),
            (0.2, 9.0),
            (0.9, 80.0),
            (0.02, 4e3),
            (1e-9, 1e12),
        ] {
            let ticks = ratio_ticks(lo, hi);
            assert!((2..=7).contains(&ticks.len()), "{lo}..{hi}: {ticks:?}");
            assert!(ticks.iter().any(|(tick, _)| *tick == 1.0));
        }
    }

    #[test]
    fn one_endless_interval_does_not_flatten_the_others() {
        let scale = Scale::of_ratios("s", &[[1.1, 1.2, 1.3], [1e-30, 1.1, 1e30]]).unwrap();
        assert!(scale.at(1.3) - scale.at(1.1) > 5.0, "{}..{}", scale.lo, scale.hi);
        let drawn = scale.drawing([1e-30, 1.1, 1e30], None, Verdict::Undecided).into_string();
        assert!(drawn.contains('‹') && drawn.contains('›'), "{drawn}");
        let scale = Scale::of_differences("s", &[[50.0, 60.0, 70.0], [-1e12, 40.0, 1e12]]).unwrap();
        assert!(scale.hi <= 200.0, "{}", scale.hi);
    }

    #[test]
    fn a_scale_of_ratios_holds_one_in_its_middle_when_ends_are_reciprocal() {
        let scale = Scale::of_ratios("s", &[[0.5, 1.0, 2.0]]).unwrap();
        assert!((scale.at(1.0) - 50.0).abs() < 1.0);
        assert!(Scale::of_ratios("s", &[]).is_none());
    }
}
