//! A chart as inline SVG. Colours come from the page's classes, so it follows light, dark, print.

use maud::{Markup, html};

use super::{Axis, Kind, Line, Plot, Unit, Weight, shown};
use crate::figures::{self, TimeUnit};

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 40.0;

/// Nines and their names.
const NINES: &[(f64, &str)] = &[
    (0.0, "0"),
    (std::f64::consts::LOG10_2, "50 %"),
    (1.0, "90 %"),
    (2.0, "99 %"),
    (3.0, "99.9 %"),
    (4.0, "99.99 %"),
    (5.0, "99.999 %"),
    (6.0, "99.9999 %"),
];

/// The drawing; `id` is unique in the page.
pub(crate) fn svg(id: &str, plot: &Plot) -> Markup {
    let Some(frame) = Frame::around(plot) else { return Markup::default() };
    html! {
        svg.still viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
            aria-labelledby=(format!("{id}-title {id}-desc")) {
            title id=(format!("{id}-title")) { (plot.title) }
            desc id=(format!("{id}-desc")) { (plot.description()) }
            (frame.grid(plot))
            @for line in &plot.lines { (frame.line(plot, line)) }
        }
    }
}

/// From values to pixels.
struct Frame {
    x: Scale,
    y: Scale,
}

impl Frame {
    fn around(plot: &Plot) -> Option<Self> {
        let (lo, hi) = plot.range()?;
        let (first, last) = (*plot.xs.first()?, *plot.xs.last()?);
        let first = plot.x.from.map_or(first, |from| from.min(first));
        let last = plot.x.to.map_or(last, |to| to.max(last));
        let x = Scale::new(&plot.x, first, last, LEFT, WIDTH - RIGHT);
        let y = Scale::rounded(&plot.y, lo, hi, HEIGHT - BOTTOM, TOP);
        (x.is_wide() && y.is_wide()).then_some(Self { x, y })
    }

    fn grid(&self, plot: &Plot) -> Markup {
        let (floor, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        html! {
            g.grid {
                @for (value, name) in self.y.ticks(&plot.y) {
                    @let y = px(self.y.at(value));
                    line x1=(LEFT) x2=(right) y1=(y) y2=(y) {}
                    text.tick x=(LEFT - 6.0) y=(px(self.y.at(value) + 3.5)) text-anchor="end" {
                        (name)
                    }
                }
                @for mark in &plot.marks {
                    @let x = px(self.x.at(*mark));
                    line.mark x1=(x) x2=(x) y1=(TOP) y2=(floor) {}
                }
                @for (value, name) in self.x.ticks(&plot.x) {
                    @let x = px(self.x.at(value));
                    line x1=(x) x2=(x) y1=(TOP) y2=(floor) {}
                    text.tick x=(x) y=(floor + 15.0) text-anchor="middle" { (name) }
                }
                text.axis x=(LEFT) y=(TOP - 10.0) { (caption(&plot.y)) }
                text.axis x=(right) y=(HEIGHT - 6.0) text-anchor="end" { (caption(&plot.x)) }
            }
        }
    }

    fn line(&self, plot: &Plot, line: &Line) -> Markup {
        let weight = match line.weight {
            Weight::Bold => "bold",
            Weight::Thin => "thin",
            Weight::Faint => "faint-line",
        };
        let dashed = if line.dashed { " unsure" } else { "" };
        let class = format!("{weight}{dashed} colour-{}", line.colour % super::COLOURS);
        let dashes = (line.colour >= super::COLOURS && !line.dashed).then_some("7 3");
        html! { path class=(class) stroke-dasharray=[dashes] d=(self.path(plot, line)) {} }
    }

    fn path(&self, plot: &Plot, line: &Line) -> String {
        let mut pen = Pen::default();
        for (x, y) in plot.xs.iter().zip(&line.ys) {
            let Some(y) = *y else {
                pen.lift();
                continue;
            };
            let (x, y) = (self.x.at(*x), self.y.at(y));
            if let Some((_, before)) = pen.at.filter(|_| plot.kind == Kind::Distribution) {
                pen.to(x, before);
            }
            pen.to(x, y);
        }
        pen.lift();
        pen.path
    }
}

/// Writes a path; points on a level stretch of it are left out.
#[derive(Default)]
struct Pen {
    path: String,
    at: Option<(f64, f64)>,
    /// The end of a level stretch, not written yet.
    level: Option<(f64, f64)>,
}

impl Pen {
    fn to(&mut self, x: f64, y: f64) {
        let Some((_, before)) = self.at else {
            self.path.push_str(&format!("M{} {}", px(x), px(y)));
            self.at = Some((x, y));
            return;
        };
        if px(before) == px(y) {
            self.level = Some((x, y));
        } else {
            self.end_level();
            self.path.push_str(&format!("L{} {}", px(x), px(y)));
        }
        self.at = Some((x, y));
    }

    fn lift(&mut self) {
        self.end_level();
        self.at = None;
    }

    fn end_level(&mut self) {
        if let Some((x, y)) = self.level.take() {
            self.path.push_str(&format!("L{} {}", px(x), px(y)));
        }
    }
}

/// One axis: its range in values and in pixels.
struct Scale {
    lo: f64,
    hi: f64,
    log: bool,
    from_px: f64,
    to_px: f64,
}

impl Scale {
    fn new(axis: &Axis, lo: f64, hi: f64, from_px: f64, to_px: f64) -> Self {
        Self { lo, hi, log: axis.log && lo > 0.0, from_px, to_px }
    }

    /// With ends that are ticks, or some room where the axis is logarithmic.
    fn rounded(axis: &Axis, lo: f64, hi: f64, from_px: f64, to_px: f64) -> Self {
        if axis.log && lo > 0.0 {
            return Self::new(axis, lo * 0.9, hi * 1.1, from_px, to_px);
        }
        let floor = axis.from.map_or(lo, |from| from.min(lo));
        let step = nice_step((hi - floor).max(hi.abs() * 1e-3));
        let (lo, hi) = ((floor / step).floor() * step, (hi / step).ceil() * step);
        Self::new(axis, lo, if hi > lo { hi } else { lo + step }, from_px, to_px)
    }

    fn is_wide(&self) -> bool {
        self.hi > self.lo && (self.hi - self.lo).is_finite()
    }

    fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.lo) / self.lo).ln() / (self.hi / self.lo).ln()
        } else {
            (value - self.lo) / (self.hi - self.lo)
        };
        self.from_px + share * (self.to_px - self.from_px)
    }

    /// Values and how they are written, the last with its unit.
    fn ticks(&self, axis: &Axis) -> Vec<(f64, String)> {
        if axis.unit == Unit::Nines {
            let inside = NINES.iter().filter(|(nines, _)| *nines <= self.hi + 1e-9);
            return inside.map(|(nines, name)| (*nines, (*name).to_owned())).collect();
        }
        if axis.unit == Unit::Date {
            let ends = [self.lo, self.hi].map(|at| (at, figures::date(at)));
            return ends.to_vec();
        }
        let values = if self.log { self.log_values() } else { self.even_values() };
        if axis.unit == Unit::Us && !self.log {
            let unit = TimeUnit::of(self.hi);
            let name = |value: &f64| format!("{} {}", tick(value / unit.us()), unit.name());
            return values.iter().map(|value| (*value, name(value))).collect();
        }
        values.into_iter().map(|value| (value, tick_with_unit(value, axis.unit))).collect()
    }

    fn even_values(&self) -> Vec<f64> {
        let step = nice_step(self.hi - self.lo);
        let first = (self.lo / step).ceil() * step;
        let count = (((self.hi - first) / step) + 1e-6).floor().max(0.0) as usize;
        (0..=count.min(12)).map(|index| first + index as f64 * step).collect()
    }

    fn log_values(&self) -> Vec<f64> {
        let (from, to) = (self.lo.log10().floor() as i32, self.hi.log10().ceil() as i32);
        let digits: &[f64] = match self.hi / self.lo {
            wide if wide > 2e3 => &[1.0],
            wide if wide > 20.0 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 3.0, 5.0, 7.0],
        };
        (from..=to)
            .flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)))
            .filter(|value| (self.lo..=self.hi).contains(value))
            .collect()
    }
}

fn tick_with_unit(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Us => {
            let fitting = TimeUnit::of(value);
            format!("{} {}", tick(value / fitting.us()), fitting.name())
        }
        Unit::Rps if value.abs() >= 1e5 => format!("{} k", tick(value / 1e3)),
        Unit::Nines | Unit::S | Unit::Date | Unit::Rps | Unit::Pct | Unit::Mbit | Unit::Count => {
            shown(value, unit)
        }
    }
}

/// What an axis shows, and where it does not start at zero or is not linear.
fn caption(axis: &Axis) -> String {
    let unit = match axis.unit {
        Unit::Nines => ", each nine the same width",
        Unit::Rps => ", per second",
        Unit::Us | Unit::S | Unit::Pct | Unit::Date | Unit::Mbit | Unit::Count => "",
    };
    let log = if axis.log { ", logarithmic" } else { "" };
    format!("{}{unit}{log}", axis.label)
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
    let text = figures::fixed(value, if value.abs() >= 1e4 { 0 } else { 4 });
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A pixel position with one place.
pub(crate) fn px(value: f64) -> String {
    format!("{value:.1}")
}
