//! What happened over the course of a run: one chart for each kind of figure that was recorded,
//! all of them over the same time.

use std::collections::{BTreeMap, BTreeSet};

use tollway_record::Traffic;
use tollway_record::record::CostPoint;
use tollway_record::traffic::SeriesPoint;

use super::{Axis, Kind, Line, Plot, SAMPLES_LIMIT, Unit, Weight, rounded};

/// More points than this are drawn as the largest of several in a row.
const POINTS_LIMIT: usize = 900;

/// More rows than this have no charts of their processes' CPU; their tables have its mean.
const COST_CHARTS_LIMIT: usize = 12;

/// One row's figures over time.
pub(crate) struct Course {
    pub(crate) name: String,
    pub(crate) colour: usize,
    pub(crate) points: Vec<SeriesPoint>,
    pub(crate) costs: Vec<CostPoint>,
    /// When the last window ended.
    pub(crate) end_s: f64,
}

impl Course {
    pub(crate) fn of(name: &str, colour: usize, traffic: &Traffic, costs: &[CostPoint]) -> Self {
        Self {
            name: name.to_owned(),
            colour,
            points: traffic.series.clone(),
            costs: costs.to_vec(),
            end_s: traffic.duration_s,
        }
    }
}

/// The charts of these rows, only of what was recorded. `joints_s` are where blocks meet.
pub(crate) fn courses(courses: &[Course], joints_s: &[f64]) -> Vec<Plot> {
    let courses: Vec<&Course> = courses.iter().take(SAMPLES_LIMIT).collect();
    let end_s = courses.iter().map(|course| course.end_s).fold(0.0, f64::max);
    let drawing = Drawing { courses: &courses, joints_s, end_s };
    let tails = courses.iter().any(|course| course.points.iter().any(|p| p.p99.is_some()));
    let median = if tails { Weight::Thin } else { Weight::Bold };
    let mut times = drawing.tracks(" p50", median, |point| point.p50);
    times.extend(drawing.tracks(" p99", Weight::Bold, |point| point.p99));
    let is_asked = |point: &SeriesPoint| point.bits_per_s.is_none();
    let rates = drawing.tracks("", Weight::Bold, |point| is_asked(point).then_some(point.rps));
    let bits = drawing.tracks("", Weight::Bold, |point| Some(point.bits_per_s? / 1e6));
    let lateness = drawing.tracks("", Weight::Bold, |point| point.lateness_us);
    let mut plots = vec![
        drawing.plot("Rate over time", "rate", Unit::Rps, rates),
        drawing.plot("Bytes over time", "rate", Unit::Mbit, bits),
        drawing.plot("Response time over time", "response time", Unit::Us, times),
    ];
    plots.extend(drawing.costs());
    plots.push(drawing.plot(
        "Latest send of each second",
        "behind its schedule",
        Unit::Us,
        lateness,
    ));
    plots.into_iter().flatten().collect()
}

/// One line before it is drawn: values by time.
struct Track {
    name: String,
    colour: usize,
    weight: Weight,
    values: Vec<(f64, Option<f64>)>,
}

struct Drawing<'a> {
    courses: &'a [&'a Course],
    joints_s: &'a [f64],
    end_s: f64,
}

impl Drawing<'_> {
    /// One figure of every row.
    fn tracks(
        &self,
        suffix: &str,
        weight: Weight,
        figure: impl Fn(&SeriesPoint) -> Option<f64>,
    ) -> Vec<Track> {
        let of = |course: &&Course| Track {
            name: format!("{}{suffix}", course.name).trim().to_owned(),
            colour: course.colour,
            weight,
            values: course.points.iter().map(|point| (point.t_s, figure(point))).collect(),
        };
        self.courses.iter().map(of).collect()
    }

    /// For each row its processes' CPU, and the time that quotas held them back; a process has one
    /// colour in all plots. Rows have separate plots: they were measured at different times.
    fn costs(&self) -> Vec<Option<Plot>> {
        let with_cost = || self.courses.iter().filter(|course| !course.costs.is_empty());
        if with_cost().count() > COST_CHARTS_LIMIT {
            return Vec::new();
        }
        let points = with_cost().flat_map(|course| &course.costs);
        let roles: BTreeSet<&str> = points
            .flat_map(|point| point.cpu_cores.keys().chain(point.throttled_fraction.keys()))
            .map(String::as_str)
            .collect();
        with_cost()
            .flat_map(|course| {
                let titled = |title: &str| match course.name.as_str() {
                    "" => title.to_owned(),
                    name => format!("{title}, {name}"),
                };
                let cores = by_role(course, &roles, |point| &point.cpu_cores);
                let mut held = by_role(course, &roles, |point| &point.throttled_fraction);
                let is_held = |(_, pct): &(f64, Option<f64>)| pct.is_some_and(|pct| pct > 0.0);
                held.retain(|track| track.values.iter().any(is_held));
                let (cpu_label, held_label) = ("CPU, 100 % is one processor", "of the time");
                [
                    self.plot(&titled("CPU by process"), cpu_label, Unit::Pct, cores),
                    self.plot(&titled("Held back by CPU quotas"), held_label, Unit::Pct, held),
                ]
            })
            .collect()
    }

    fn plot(&self, title: &str, label: &str, unit: Unit, tracks: Vec<Track>) -> Option<Plot> {
        let longest = tracks.iter().map(|track| track.values.len()).max().unwrap_or_default();
        if longest < 2 {
            return None;
        }
        let stride = longest.div_ceil(POINTS_LIMIT);
        let xs = times(&tracks, stride);
        let line = |track: Track| {
            let ys = largest(&xs, &track.values, stride);
            let name = if track.name.is_empty() { label.to_owned() } else { track.name };
            let Track { colour, weight, .. } = track;
            Line { name, colour, weight, dashed: false, ys }
        };
        let lines: Vec<Line> = tracks
            .into_iter()
            .map(line)
            // One point is no line.
            .filter(|line| line.ys.iter().flatten().nth(1).is_some())
            .collect();
        let label = match stride {
            1 => label.to_owned(),
            stride => format!("{label}, largest of {stride} intervals"),
        };
        let to = Some(self.end_s).filter(|end_s| end_s.is_finite());
        (!lines.is_empty()).then(|| Plot {
            kind: Kind::Series,
            title: title.to_owned(),
            x: Axis { to, ..Axis::from_zero("measured time", Unit::S) },
            y: Axis::from_zero(&label, unit),
            xs,
            lines,
            marks: self.joints_s.to_vec(),
        })
    }
}

/// One line for each process, in percent.
fn by_role(
    course: &Course,
    roles: &BTreeSet<&str>,
    shares: impl Fn(&CostPoint) -> &BTreeMap<String, f64>,
) -> Vec<Track> {
    let track = |(index, role): (usize, &&str)| {
        let at = |point: &CostPoint| (point.t_s, shares(point).get(*role).map(|one| one * 100.0));
        let values = course.costs.iter().map(at).collect();
        Track { name: (*role).to_owned(), colour: index + 1, weight: Weight::Bold, values }
    };
    roles.iter().enumerate().map(track).collect()
}

/// Every track's times, ascending.
fn times(tracks: &[Track], stride: usize) -> Vec<f64> {
    let starts = |track: &Track| {
        let chunks = track.values.chunks(stride);
        chunks.map(|chunk| rounded(chunk[0].0)).collect::<Vec<_>>()
    };
    let mut times: Vec<f64> = tracks.iter().flat_map(starts).collect();
    times.retain(|time| time.is_finite());
    times.sort_by(f64::total_cmp);
    times.dedup();
    times
}

/// The largest value of each stride, at its time among `xs`.
fn largest(xs: &[f64], values: &[(f64, Option<f64>)], stride: usize) -> Vec<Option<f64>> {
    let mut ys = vec![None; xs.len()];
    for chunk in values.chunks(stride) {
        let largest = chunk.iter().filter_map(|(_, value)| *value).reduce(f64::max);
        let at = rounded(chunk[0].0);
        if let Ok(index) = xs.binary_search_by(|x| x.total_cmp(&at)) {
            ys[index] = largest.map(rounded);
        }
    }
    ys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(name: &str, seconds: usize) -> Course {
        let point = |second: usize| SeriesPoint {
            t_s: (second + 1) as f64,
            rps: 1_000.0 + second as f64,
            p99: (second % 10 != 9).then_some(300.0),
            ..SeriesPoint::default()
        };
        Course {
            name: name.to_owned(),
            colour: 0,
            points: (0..seconds).map(point).collect(),
            costs: Vec::new(),
            end_s: seconds as f64,
        }
    }

    fn labels(plots: &[Plot]) -> Vec<&str> {
        plots.iter().map(|plot| plot.y.label.as_str()).collect()
    }

    #[test]
    fn only_what_was_recorded_is_drawn() {
        let plots = courses(&[course("a", 20)], &[10.0]);
        assert_eq!(labels(&plots), ["rate", "response time"]);
        assert_eq!(plots[1].lines.len(), 1, "there is no p50");
        assert_eq!(plots[1].lines[0].name, "a p99");
        assert_eq!(plots[1].lines[0].ys[9], None);
        assert_eq!(plots[0].marks, [10.0]);
    }

    #[test]
    fn cpu_throttling_and_lateness_share_the_time_of_the_rates() {
        let mut row = course("a", 4);
        row.points[1].lateness_us = Some(20.0);
        row.points[2].lateness_us = Some(70.0);
        row.costs = (1..=8)
            .map(|half| CostPoint {
                t_s: f64::from(half) / 2.0,
                cpu_cores: BTreeMap::from([("app".to_owned(), 0.5), ("load".to_owned(), 0.25)]),
                throttled_fraction: BTreeMap::from([
                    ("app".to_owned(), if half == 3 { 0.4 } else { 0.0 }),
                    ("load".to_owned(), 0.0),
                ]),
            })
            .collect();
        let plots = courses(&[row, course("b", 4)], &[]);
        let expected = [
            "rate",
            "response time",
            "CPU, 100 % is one processor",
            "of the time",
            "behind its schedule",
        ];
        assert_eq!(labels(&plots), expected);
        assert!(plots.iter().all(|plot| (plot.x.from, plot.x.to) == (Some(0.0), Some(4.0))));
        let (cpu, throttled) = (&plots[2], &plots[3]);
        assert_eq!((cpu.title.as_str(), cpu.lines.len()), ("CPU by process, a", 2));
        assert_eq!((cpu.lines[0].name.as_str(), cpu.lines[0].ys[7]), ("app", Some(50.0)));
        assert_eq!(throttled.lines.len(), 1, "the load was never held back");
        assert_eq!(
            (throttled.lines[0].name.as_str(), throttled.lines[0].ys[2]),
            ("app", Some(40.0))
        );
    }

    #[test]
    fn courses_of_unequal_length_keep_their_times() {
        let plots = courses(&[course("a", 5), course("b", 3)], &[]);
        assert_eq!(plots[0].xs, [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(plots[0].lines[1].ys[2], Some(1_002.0));
        assert_eq!(plots[0].lines[1].ys[3], None);
    }

    #[test]
    fn a_long_run_is_drawn_by_its_largest_values() {
        let mut long = course("a", 4_000);
        long.points[1_234].p99 = Some(9_000.0);
        let plot = courses(&[long], &[]).remove(1);
        assert!(plot.xs.len() <= POINTS_LIMIT);
        assert!(plot.y.label.contains("largest of 5 intervals"));
        assert!(plot.lines[0].ys.contains(&Some(9_000.0)));
    }

    #[test]
    fn a_flow_has_bytes_and_no_rate() {
        let mut flow = course("a", 3);
        for point in &mut flow.points {
            *point =
                SeriesPoint { t_s: point.t_s, bits_per_s: Some(2e9), ..SeriesPoint::default() };
        }
        let plots = courses(&[flow], &[]);
        let titles: Vec<_> = plots.iter().map(|plot| plot.title.as_str()).collect();
        assert_eq!(titles, ["Bytes over time"]);
        assert_eq!((plots[0].y.unit, plots[0].lines[0].ys[2]), (Unit::Mbit, Some(2_000.0)));
    }

    #[test]
    fn one_second_is_no_course() {
        assert!(courses(&[course("a", 1)], &[]).is_empty());
        let uneven = courses(&[course("a", 5), course("b", 1)], &[]);
        assert!(uneven.iter().all(|plot| plot.lines.len() == 1), "{uneven:?}");
        assert!(courses(&[], &[]).is_empty());
    }
}
