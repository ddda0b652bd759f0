//! Latency by percentile as inline SVG: x is 1/(1−p) on a logarithmic scale, so that every nine
//! takes the same room; y is the response time. Merged curves bold, single blocks faint.

use maud::{Markup, html};
use tollway_record::record::Row;
use tollway_record::{Histogram, HistogramError};

use crate::contents;
use crate::figures::{self, TimeUnit};

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// A curve ends where fewer samples than this lie beyond it.
const CURVE_BEYOND: f64 = 20.0;

/// Step along the curve, in nines.
const STEP_NINES: f64 = 0.02;

/// A range of values wider than this factor gets a logarithmic axis.
const LOG_FROM_FACTOR: f64 = 12.0;

/// Nines and their names.
const NINES: &[(f64, &str)] = &[
    (0.0, "0"),
    (std::f64::consts::LOG10_2, "50 %"),
    (1.0, "90 %"),
    (2.0, "99 %"),
    (3.0, "99.9 %"),
    (4.0, "99.99 %"),
    (5.0, "99.999 %"),
];

/// The rows of one path and protocol over each other; `None` when none of them has samples.
///
/// # Errors
/// [`HistogramError`] when a row's histogram is damaged.
pub(crate) fn percentiles(id: &str, rows: &[&Row]) -> Result<Option<Markup>, HistogramError> {
    let mut curves = Vec::new();
    for (place, row) in rows.iter().enumerate() {
        curves.extend(row_curves(place, row)?);
    }
    let Some(axes) = Axes::around(&curves) else { return Ok(None) };
    let protocol = contents::protocol(rows[0].conditions.protocol);
    let title = format!("{protocol}, {}", contents::place(rows[0].conditions.topology));
    Ok(Some(html! {
        figure.chart {
            figcaption {
                strong { (protocol) }
                @for (place, row) in rows.iter().enumerate() {
                    span.key.(series(place)) { (row.conditions.subject) }
                }
            }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-labelledby=(format!("{id}-title {id}-desc")) {
                title id=(format!("{id}-title")) { "Response time by percentile: " (title) }
                desc id=(format!("{id}-desc")) { (description(rows)) }
                (axes.grid())
                @for curve in &curves { (axes.draw(curve)) }
            }
        }
    }))
}

/// The class that gives the series its colour.
fn series(place: usize) -> String {
    format!("series-{}", place % 4)
}

fn description(rows: &[&Row]) -> String {
    let of = |row: &&Row| {
        let latency = &row.traffic.latency_us;
        let named = [("p50", latency.p50), ("p90", latency.p90), ("p99", latency.p99)];
        let known: Vec<_> = named
            .iter()
            .filter_map(|(name, us)| us.map(|us| format!("{name} {}", figures::time(us))))
            .collect();
        format!("{}: {}", row.conditions.subject, known.join(", "))
    };
    let rows: Vec<_> = rows.iter().map(of).collect();
    format!("{}. The table above holds the figures.", rows.join("; "))
}

/// Points (nines, microseconds) of one histogram.
struct Curve {
    class: String,
    points: Vec<(f64, f64)>,
    /// Nines up to which 100 samples lie beyond; dashed from there on.
    sure_nines: f64,
}

fn row_curves(place: usize, row: &Row) -> Result<Vec<Curve>, HistogramError> {
    let mut curves = Vec::new();
    if row.blocks.len() > 1 {
        for block in &row.blocks {
            let class = format!("block {}", series(place));
            curves.extend(curve(class, &block.traffic.latencies()?));
        }
    }
    curves.extend(curve(format!("merged {}", series(place)), &row.traffic.latencies()?));
    Ok(curves)
}

fn curve(class: String, latencies: &Histogram) -> Option<Curve> {
    let n = latencies.n() as f64;
    let end_nines = (n / CURVE_BEYOND).log10();
    if end_nines <= 0.0 {
        return None;
    }
    let mut points = vec![(0.0, latencies.min_ns()? as f64 / 1e3)];
    let mut steps = latencies.steps();
    let (mut below, mut at_ns) = (0, 0);
    for index in 1..=(end_nines / STEP_NINES) as usize {
        let nines = index as f64 * STEP_NINES;
        let wanted = (n * (1.0 - 10_f64.powf(-nines))).ceil() as u64;
        while below < wanted {
            let Some((middle, count)) = steps.next() else { break };
            (below, at_ns) = (below + count, middle);
        }
        points.push((nines, at_ns as f64 / 1e3));
    }
    let sure = n / tollway_record::histogram::SAMPLES_BEYOND as f64;
    Some(Curve { class, points, sure_nines: sure.log10() })
}

/// Ranges of both axes and the way from values to pixels.
struct Axes {
    nines: f64,
    lo_us: f64,
    hi_us: f64,
    log: bool,
    unit: TimeUnit,
}

impl Axes {
    fn around(curves: &[Curve]) -> Option<Self> {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let nines = points().map(|point| point.0).reduce(f64::max)?;
        let lo = points().map(|point| point.1).reduce(f64::min)?;
        let hi = points().map(|point| point.1).reduce(f64::max)?;
        let log = lo > 0.0 && hi / lo > LOG_FROM_FACTOR;
        let unit = TimeUnit::of(if log { lo } else { hi });
        // Close curves far from zero would be one flat line: the axis then starts below them.
        let floor = if hi < lo * 1.5 { lo } else { 0.0 };
        let step = nice_step((hi - floor).max(hi * 1e-3));
        let (lo_us, hi_us) = if log {
            (lo * 0.9, hi * 1.1)
        } else {
            ((floor / step).floor() * step, (hi / step).ceil() * step)
        };
        (hi_us > lo_us).then_some(Self { nines, lo_us, hi_us, log, unit })
    }

    fn x(&self, nines: f64) -> f64 {
        LEFT + nines / self.nines * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, us: f64) -> f64 {
        let share = if self.log {
            (us / self.lo_us).ln() / (self.hi_us / self.lo_us).ln()
        } else {
            (us - self.lo_us) / (self.hi_us - self.lo_us)
        };
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn grid(&self) -> Markup {
        let (floor, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        html! {
            g.grid {
                @let ticks = self.ticks_us();
                @for (index, us) in ticks.iter().copied().enumerate() {
                    line x1=(LEFT) x2=(right) y1=(px(self.y(us))) y2=(px(self.y(us))) {}
                    text.tick x=(LEFT - 6.0) y=(px(self.y(us) + 3.5)) text-anchor="end" {
                        (tick(us / self.unit.us()))
                        @if index + 1 == ticks.len() { " " (self.unit.name()) }
                    }
                }
                @for (nines, name) in NINES.iter().filter(|(nines, _)| *nines <= self.nines) {
                    line x1=(px(self.x(*nines))) x2=(px(self.x(*nines))) y1=(TOP) y2=(floor) {}
                    text.tick x=(px(self.x(*nines))) y=(floor + 15.0) text-anchor="middle" { (name) }
                }
                text.axis x=(right) y=(HEIGHT - 8.0) text-anchor="end" { (self.caption()) }
            }
        }
    }

    fn caption(&self) -> String {
        let mut caption = "percentile, each nine the same width".to_owned();
        if self.log {
            caption.push_str("; time axis logarithmic");
        } else if self.lo_us > 0.0 {
            let from = self.lo_us / self.unit.us();
            caption.push_str(&format!("; time axis starts at {} {}", tick(from), self.unit.name()));
        }
        caption
    }

    fn ticks_us(&self) -> Vec<f64> {
        if !self.log {
            let step = nice_step(self.hi_us - self.lo_us);
            let count = ((self.hi_us - self.lo_us) / step).round() as usize;
            return (0..=count).map(|index| self.lo_us + index as f64 * step).collect();
        }
        let from = self.lo_us.log10().floor() as i32;
        let to = self.hi_us.log10().ceil() as i32;
        (from..=to)
            .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)))
            .filter(|us| (self.lo_us..=self.hi_us).contains(us))
            .collect()
    }

    fn draw(&self, curve: &Curve) -> Markup {
        let (sure, unsure): (Vec<_>, Vec<_>) =
            curve.points.iter().partition(|(nines, _)| *nines <= curve.sure_nines);
        let joint = sure.last().copied();
        let tail: Vec<_> = joint.into_iter().chain(unsure).collect();
        html! {
            path class=(curve.class) d=(self.path(&sure)) {}
            @if tail.len() > 1 {
                path class=(format!("{} unsure", curve.class)) d=(self.path(&tail)) {}
            }
        }
    }

    fn path(&self, points: &[&(f64, f64)]) -> String {
        let mut path = String::new();
        for (index, (nines, us)) in points.iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            path.push_str(&format!("{letter}{} {}", px(self.x(*nines)), px(self.y(*us))));
        }
        path
    }
}

/// 1, 2 or 5 times a power of ten, so that about five steps make up the span.
pub(crate) fn nice_step(span: f64) -> f64 {
    let rough = (span / 5.0).max(1e-9);
    let power = 10_f64.powf(rough.log10().floor());
    match rough / power {
        digit if digit <= 1.0 => power,
        digit if digit <= 2.0 => 2.0 * power,
        digit if digit <= 5.0 => 5.0 * power,
        _ => 10.0 * power,
    }
}

/// A tick's figure without needless zeros.
pub(crate) fn tick(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A pixel position with one place.
pub(crate) fn px(value: f64) -> String {
    format!("{value:.1}")
}
