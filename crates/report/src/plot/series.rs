//! What happened second by second: one chart for each kind of figure that was recorded.

use tollway_record::traffic::SeriesPoint;

use super::{Axis, Kind, Line, Plot, SAMPLES_LIMIT, Unit, Weight, rounded};

/// More points than this are drawn as the worst of several in a row.
const POINTS_LIMIT: usize = 900;

/// One row's figures over time.
pub(crate) struct Course {
    pub(crate) name: String,
    pub(crate) colour: usize,
    pub(crate) points: Vec<Point>,
}

/// One interval's figures; a figure that was not recorded is absent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Point {
    /// Seconds.
    pub(crate) t_s: f64,
    pub(crate) rps: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    /// The subject's CPU, in percent of one processor.
    pub(crate) cpu_pct: Option<f64>,
    /// Share of the time in which a quota held the subject back.
    pub(crate) throttled_pct: Option<f64>,
    /// How late the generator sent, worst of the interval.
    pub(crate) lateness_us: Option<f64>,
}

impl From<&SeriesPoint> for Point {
    fn from(point: &SeriesPoint) -> Self {
        Self {
            t_s: point.t_s,
            rps: Some(point.rps),
            p50_us: point.p50,
            p99_us: point.p99,
            ..Self::default()
        }
    }
}

/// The charts of these rows, only of what was recorded. `joints_s` are where blocks meet.
pub(crate) fn courses(title: &str, courses: &[Course], joints_s: &[f64]) -> Vec<Plot> {
    let courses: Vec<&Course> = courses.iter().take(SAMPLES_LIMIT).collect();
    let longest = courses.iter().map(|course| course.points.len()).max().unwrap_or_default();
    if longest < 2 {
        return Vec::new();
    }
    let stride = longest.div_ceil(POINTS_LIMIT);
    let drawing = Drawing { title, courses: &courses, joints_s, stride };
    let tails = courses.iter().any(|course| course.points.iter().any(|p| p.p99_us.is_some()));
    let median = if tails { Weight::Thin } else { Weight::Bold };
    let times = drawing.plot(
        "response time",
        Unit::Us,
        &[(" p50", median, |point| point.p50_us), (" p99", Weight::Bold, |point| point.p99_us)],
    );
    let rate = drawing.plot("rate", Unit::Rps, &[("", Weight::Bold, |point| point.rps)]);
    let cpu = drawing.plot(
        "CPU of one processor",
        Unit::Pct,
        &[("", Weight::Bold, |point| point.cpu_pct)],
    );
    let throttled = drawing.plot(
        "time throttled",
        Unit::Pct,
        &[("", Weight::Bold, |point| point.throttled_pct)],
    );
    let late = drawing.plot(
        "lateness of sends",
        Unit::Us,
        &[("", Weight::Bold, |point| point.lateness_us)],
    );
    [rate, times, cpu, throttled, late].into_iter().flatten().collect()
}

/// How one kind of figure is told: what follows the name, how bold, and where it stands.
type Figure = (&'static str, Weight, fn(&Point) -> Option<f64>);

struct Drawing<'a> {
    title: &'a str,
    courses: &'a [&'a Course],
    joints_s: &'a [f64],
    /// Points that become one.
    stride: usize,
}

impl Drawing<'_> {
    fn plot(&self, label: &str, unit: Unit, figures: &[Figure]) -> Option<Plot> {
        let xs = self.times();
        let mut lines = Vec::new();
        for course in self.courses {
            for (suffix, weight, figure) in figures {
                let ys = self.values(&xs, course, *figure);
                if ys.iter().any(Option::is_some) {
                    let name = format!("{}{suffix}", course.name).trim().to_owned();
                    let name = if name.is_empty() { label.to_owned() } else { name };
                    let colour = course.colour;
                    lines.push(Line { name, colour, weight: *weight, dashed: false, ys });
                }
            }
        }
        let label = match self.stride {
            1 => label.to_owned(),
            stride => format!("{label}, largest of {stride} intervals"),
        };
        (!lines.is_empty()).then(|| Plot {
            kind: Kind::Series,
            title: self.title.to_owned(),
            x: Axis::linear("measured time", Unit::S),
            y: Axis::from_zero(&label, unit),
            xs,
            lines,
            marks: self.joints_s.to_vec(),
        })
    }

    /// Every course's times, ascending.
    fn times(&self) -> Vec<f64> {
        let starts = |course: &&&Course| {
            let points = course.points.chunks(self.stride);
            points.map(|chunk| chunk[0].t_s).collect::<Vec<_>>()
        };
        let mut times: Vec<f64> = self.courses.iter().flat_map(|course| starts(&course)).collect();
        times.retain(|time| time.is_finite());
        times.sort_by(f64::total_cmp);
        times.dedup();
        times
    }

    fn values(
        &self,
        xs: &[f64],
        course: &Course,
        figure: fn(&Point) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        let mut ys = vec![None; xs.len()];
        for chunk in course.points.chunks(self.stride) {
            let largest = chunk.iter().filter_map(figure).reduce(f64::max);
            if let Ok(place) = xs.binary_search_by(|x| x.total_cmp(&chunk[0].t_s)) {
                ys[place] = largest.map(rounded);
            }
        }
        ys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(name: &str, seconds: usize) -> Course {
        let point = |second: usize| Point {
            t_s: (second + 1) as f64,
            rps: Some(1_000.0 + second as f64),
            p99_us: (second % 10 != 9).then_some(300.0),
            ..Point::default()
        };
        Course { name: name.to_owned(), colour: 0, points: (0..seconds).map(point).collect() }
    }

    #[test]
    fn only_what_was_recorded_is_drawn() {
        let plots = courses("t", &[course("a", 20)], &[10.0]);
        let labels: Vec<&str> = plots.iter().map(|plot| plot.y.label.as_str()).collect();
        assert_eq!(labels, ["rate", "response time"]);
        assert_eq!(plots[1].lines.len(), 1, "there is no p50");
        assert_eq!(plots[1].lines[0].name, "a p99");
        assert_eq!(plots[1].lines[0].ys[9], None);
        assert_eq!(plots[0].marks, [10.0]);
    }

    #[test]
    fn courses_of_unequal_length_keep_their_times() {
        let plots = courses("t", &[course("a", 5), course("b", 3)], &[]);
        assert_eq!(plots[0].xs, [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(plots[0].lines[1].ys[2], Some(1_002.0));
        assert_eq!(plots[0].lines[1].ys[3], None);
    }

    #[test]
    fn a_long_run_is_told_by_its_worst_seconds() {
        let mut long = course("a", 4_000);
        long.points[1_234].p99_us = Some(9_000.0);
        let plot = courses("t", &[long], &[]).remove(1);
        assert!(plot.xs.len() <= POINTS_LIMIT);
        assert!(plot.y.label.contains("largest of 5 intervals"));
        assert!(plot.lines[0].ys.contains(&Some(9_000.0)));
    }

    #[test]
    fn one_second_is_no_course() {
        assert!(courses("t", &[course("a", 1)], &[]).is_empty());
        assert!(courses("t", &[], &[]).is_empty());
    }
}
