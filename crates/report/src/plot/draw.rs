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
const DAY_S: f64 = 86_400.0;

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
            data-x=(frame.x.data()) data-y=(frame.y.data())
            aria-labelledby=(format!("{id}-title {id}-desc")) {
            title id=(format!("{id}-title")) { (plot.title) }
            desc id=(format!("{id}-desc")) { (plot.description()) }
            (frame.grid(plot))
            @for (index, line) in plot.lines.iter().enumerate() {
                (frame.line(plot, index, line))
            }
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
        let (xs, ys) = (self.x.ticks(&plot.x), self.y.ticks(&plot.y));
        let rule = |value: f64| format!("M{} {TOP}V{floor}", px(self.x.at(value)));
        let upright = xs.iter().map(|(value, _)| rule(*value));
        let level =
            ys.iter().map(|(value, _)| format!("M{LEFT} {}H{right}", px(self.y.at(*value))));
        let marks: String = plot.marks.iter().map(|mark| rule(*mark)).collect();
        html! {
            g.grid {
                path d=(level.chain(upright).collect::<String>()) {}
                @if !marks.is_empty() { path.mark d=(marks) {} }
                g.tick text-anchor="end" {
                    @for (value, name) in &ys {
                        text x=(LEFT - 6.0) y=(px(self.y.at(*value) + 3.5)) { (name) }
                    }
                }
                g.tick text-anchor="middle" {
                    @for (value, name) in &xs {
                        text x=(px(self.x.at(*value))) y=(floor + 15.0) { (name) }
                    }
                }
                text.axis x=(LEFT) y=(TOP - 10.0) { (caption(&plot.y)) }
                text.axis x=(right) y=(HEIGHT - 6.0) text-anchor="end" { (caption(&plot.x)) }
            }
        }
    }

    fn line(&self, plot: &Plot, index: usize, line: &Line) -> Markup {
        let weight = match line.weight {
            Weight::Bold => "bold",
            Weight::Thin => "thin",
            Weight::Faint => "faint-line",
        };
        let dashed = if line.dashed { " unsure" } else { "" };
        let class = format!("{weight}{dashed} colour-{}", line.colour % super::COLOURS);
        let dashes = (line.colour >= super::COLOURS && !line.dashed).then_some("7 3");
        let dots = plot.kind == Kind::Points;
        html! {
            g data-line=(index) {
                path class=(class) stroke-dasharray=[dashes] d=(self.path(plot, line)) {}
                @for (x, y) in plot.xs.iter().zip(&line.ys).filter(|_| dots) {
                    @if let Some(y) = y {
                        circle class=(format!("colour-{}", line.colour % super::COLOURS))
                            cx=(px(self.x.at(*x))) cy=(px(self.y.at(*y))) r="3" {}
                    }
                }
            }
        }
    }

    fn path(&self, plot: &Plot, line: &Line) -> String {
        let mut pen = Pen::default();
        for (x, y) in plot.xs.iter().zip(&line.ys) {
            let Some(y) = *y else {
                if plot.kind != Kind::Points {
                    pen.lift();
                }
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

/// Writes a path in tenths of a pixel, each step from the point before it; points on a straight
/// stretch are left out.
#[derive(Default)]
struct Pen {
    path: String,
    /// The command that was written last.
    command: Option<char>,
    /// Where the last point was to be.
    at: Option<(f64, f64)>,
    /// The last point that was written, in tenths.
    written: (i64, i64),
    /// What came since, all of it near the straight line to the last of them.
    run: Vec<(i64, i64)>,
}

/// Points that are held together against one straight line.
const RUN_LIMIT: usize = 64;

/// How far from where it belongs a line may pass, in tenths of a pixel.
const TOLERANCE: f64 = 1.5;

impl Pen {
    fn to(&mut self, x: f64, y: f64) {
        let point = (tenths(x), tenths(y));
        if self.at.replace((x, y)).is_none() {
            self.path.push_str(&format!("M{} {}", px(x), px(y)));
            (self.command, self.written) = (None, point);
            return;
        }
        let strays =
            self.run.iter().any(|between| distance(*between, self.written, point) > TOLERANCE);
        if strays || self.run.len() >= RUN_LIMIT {
            self.end_run();
        }
        self.run.push(point);
    }

    fn lift(&mut self) {
        self.end_run();
        self.at = None;
    }

    fn end_run(&mut self) {
        let Some((x, y)) = self.run.last().copied() else { return };
        self.run.clear();
        let (dx, dy) = (x - self.written.0, y - self.written.1);
        match (dx, dy) {
            (0, 0) => {}
            (dx, 0) => self.step('h', &[dx]),
            (0, dy) => self.step('v', &[dy]),
            (dx, dy) => self.step('l', &[dx, dy]),
        }
        self.written = (x, y);
    }

    fn step(&mut self, command: char, tenths: &[i64]) {
        let mut apart = self.command == Some(command);
        if !apart {
            self.path.push(command);
            self.command = Some(command);
        }
        for number in tenths {
            if apart && *number >= 0 {
                self.path.push(' ');
            }
            self.path.push_str(&short(*number));
            apart = true;
        }
    }
}

fn tenths(px: f64) -> i64 {
    (px * 10.0).round() as i64
}

/// Tenths as a number without needless zeros: `-.3`, `12`, `4.5`.
fn short(tenths: i64) -> String {
    let sign = if tenths < 0 { "-" } else { "" };
    match (tenths.abs() / 10, tenths.abs() % 10) {
        (whole, 0) => format!("{sign}{whole}"),
        (0, rest) => format!("{sign}.{rest}"),
        (whole, rest) => format!("{sign}{whole}.{rest}"),
    }
}

/// From `point` to the stretch between two others.
fn distance(point: (i64, i64), from: (i64, i64), to: (i64, i64)) -> f64 {
    let [x, y, along_x, along_y] =
        [point.0 - from.0, point.1 - from.1, to.0 - from.0, to.1 - from.1].map(|d| d as f64);
    let length2 = along_x * along_x + along_y * along_y;
    let share = if length2 > 0.0 { (x * along_x + y * along_y) / length2 } else { 0.0 };
    let share = share.clamp(0.0, 1.0);
    (x - share * along_x).hypot(y - share * along_y)
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

    /// Rounds the ends to ticks, or adds a margin on a logarithmic axis.
    fn rounded(axis: &Axis, lo: f64, hi: f64, from_px: f64, to_px: f64) -> Self {
        if axis.log && lo > 0.0 {
            return Self::new(axis, lo * 0.9, hi * 1.1, from_px, to_px);
        }
        let floor = axis.from.map_or(lo, |from| from.min(lo));
        let step = nice_step((hi - floor).max(hi.abs() * 1e-3));
        let (lo, hi) = ((floor / step).floor() * step, (hi / step).ceil() * step);
        Self::new(axis, lo, if hi > lo { hi } else { lo + step }, from_px, to_px)
    }

    /// Values and pixels of both ends, and 1 for a logarithmic axis: what the page's script reads.
    fn data(&self) -> String {
        let Self { lo, hi, log, from_px, to_px } = self;
        format!("{lo} {hi} {from_px} {to_px} {}", u8::from(*log))
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
            return self.dates();
        }
        let values = if self.log { self.log_values() } else { self.even_values() };
        if axis.unit == Unit::Us && !self.log {
            let unit = TimeUnit::of(self.hi);
            let name = |value: &f64| format!("{} {}", tick(value / unit.us()), unit.name());
            return values.iter().map(|value| (*value, name(value))).collect();
        }
        values.into_iter().map(|value| (value, tick_with_unit(value, axis.unit))).collect()
    }

    /// Up to four moments evenly apart, by day, or by minute where all are within three days.
    fn dates(&self) -> Vec<(f64, String)> {
        let span = self.hi - self.lo;
        let steps = if span > 0.0 { 3 } else { 0 };
        let at = |step: i32| self.lo + span * f64::from(step) / f64::from(steps.max(1));
        let name = |at: f64| match span < 3.0 * DAY_S {
            true => figures::minute(at),
            false => figures::date(at),
        };
        (0..=steps).map(|step| (at(step), name(at(step)))).collect()
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

/// A pixel position to a tenth.
fn px(value: f64) -> String {
    short(tenths(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(points: &[(f64, f64)]) -> String {
        let mut pen = Pen::default();
        points.iter().for_each(|(x, y)| pen.to(*x, *y));
        pen.lift();
        pen.path
    }

    #[test]
    fn straight_stretches_are_one_step() {
        assert_eq!(drawn(&[(1.0, 2.0), (2.0, 2.0), (3.5, 2.0), (3.5, 1.0)]), "M1 2h2.5v-1");
        let diagonal: Vec<_> =
            (0..50).map(|step| (f64::from(step), 2.0 * f64::from(step))).collect();
        assert_eq!(drawn(&diagonal), "M0 0l49 98");
        assert_eq!(drawn(&[(0.0, 0.0), (1.0, 0.1), (2.0, 3.0), (2.04, 3.0)]), "M0 0l1 .1 1 2.9");
    }

    #[test]
    fn a_spike_is_drawn_up_and_down() {
        assert_eq!(drawn(&[(0.0, 5.0), (0.0, 0.0), (0.0, 5.0), (9.0, 5.0)]), "M0 5v-5 5h9");
    }

    #[test]
    fn no_point_is_further_from_the_path_than_tolerated() {
        let wave: Vec<_> =
            (0..2_000).map(|x| (f64::from(x) / 4.0, (f64::from(x) / 40.0).sin() * 90.0)).collect();
        let mut pen = Pen::default();
        let mut corners = Vec::new();
        for (x, y) in &wave {
            pen.to(*x, *y);
            corners.push(pen.written);
        }
        pen.lift();
        corners.push(pen.written);
        corners.dedup();
        assert!(corners.len() < wave.len() / 3, "{} corners", corners.len());
        for (x, y) in wave {
            let point = (tenths(x), tenths(y));
            let nearest = corners.windows(2).map(|ends| distance(point, ends[0], ends[1]));
            assert!(nearest.fold(f64::MAX, f64::min) <= TOLERANCE, "{point:?}");
        }
    }
}
