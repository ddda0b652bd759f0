//! What Tollway adds, as points with their intervals on one scale, drawn as inline SVG.

use maud::{Markup, html};
use tollway_record::record::{Comparison, Question, Record, Row};

use crate::chart::{nice_step, px, tick};
use crate::contents;
use crate::figures::{self, TimeUnit};

const WIDTH: f64 = 720.0;
const LEFT: f64 = 232.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 8.0;
const LINE: f64 = 30.0;
const BOTTOM: f64 = 34.0;

/// Mean differences of every row with Tollway against the same path without; `None` without such.
pub(crate) fn added_by_tollway(record: &Record) -> Option<Markup> {
    let found: Vec<_> = contents::means(record, Question::AddedByTollway).collect();
    let ends = || found.iter().flat_map(|(comparison, _)| ends_of(comparison));
    let hi = ends().fold(0.0, f64::max);
    let lo = ends().fold(0.0, f64::min);
    let step = nice_step(hi - lo);
    let scale = Scale {
        lo_us: (lo / step).floor() * step,
        hi_us: (hi / step).ceil() * step,
        step,
        unit: TimeUnit::of(hi.max(-lo)),
        height: TOP + found.len() as f64 * LINE + BOTTOM,
    };
    (!found.is_empty() && hi > lo).then(|| {
        html! {
            figure.forest {
                svg viewBox=(format!("0 0 {WIDTH} {}", scale.height)) role="img"
                    aria-labelledby="forest-title forest-desc" {
                    title id="forest-title" { "Mean latency added by Tollway, with 95 % intervals" }
                    desc id="forest-desc" { (description(&found)) }
                    (scale.grid())
                    @for (index, (comparison, row)) in found.iter().enumerate() {
                        (scale.line(index, comparison, row))
                    }
                }
            }
        }
    })
}

fn ends_of(comparison: &Comparison) -> [f64; 2] {
    comparison.difference_ci95_us.unwrap_or([comparison.difference_us; 2])
}

fn added_text(comparison: &Comparison) -> String {
    let (added, range) =
        figures::difference_with(comparison.difference_us, comparison.difference_ci95_us);
    format!("{added} {range}")
}

fn name_of(row: &Row) -> String {
    let conditions = &row.conditions;
    let place = contents::place_short(conditions.topology);
    format!("{place} · {}", contents::protocol(conditions.protocol))
}

fn description(found: &[(&Comparison, &Row)]) -> String {
    let of = |(comparison, row): &(&Comparison, &Row)| {
        format!("{}: {}", name_of(row), added_text(comparison))
    };
    let lines: Vec<_> = found.iter().map(of).collect();
    lines.join("; ")
}

struct Scale {
    lo_us: f64,
    hi_us: f64,
    step: f64,
    unit: TimeUnit,
    height: f64,
}

impl Scale {
    fn x(&self, us: f64) -> f64 {
        LEFT + (us - self.lo_us) / (self.hi_us - self.lo_us) * (WIDTH - LEFT - RIGHT)
    }

    fn grid(&self) -> Markup {
        let floor = self.height - BOTTOM;
        let count = ((self.hi_us - self.lo_us) / self.step).round() as usize;
        let ticks = (0..=count).map(|index| self.lo_us + index as f64 * self.step);
        html! {
            g.grid {
                @for us in ticks {
                    @let class = if us.abs() < self.step / 2.0 { "zero" } else { "other" };
                    line class=(class) x1=(px(self.x(us))) x2=(px(self.x(us))) y1=(TOP) y2=(floor) {}
                    text.tick x=(px(self.x(us))) y=(floor + 16.0) text-anchor="middle" {
                        (tick(us / self.unit.us())) @if class == "zero" { " " (self.unit.name()) }
                    }
                }
            }
        }
    }

    fn line(&self, index: usize, comparison: &Comparison, row: &Row) -> Markup {
        let y = TOP + (index as f64 + 0.5) * LINE;
        let [lo, hi] = ends_of(comparison);
        html! {
            text.name x=(LEFT - 14.0) y=(px(y + 4.5)) text-anchor="end" { (name_of(row)) }
            line.interval x1=(px(self.x(lo))) x2=(px(self.x(hi))) y1=(px(y)) y2=(px(y)) {}
            circle.estimate cx=(px(self.x(comparison.difference_us))) cy=(px(y)) r="4.5" {}
            text.value x=(WIDTH - RIGHT + 14.0) y=(px(y + 4.5)) { (added_text(comparison)) }
        }
    }
}
