//! What more load does: response times over the offered rate.

use tollway_record::LatencyUs;

use super::{Axis, Kind, Line, Plot, SAMPLES_LIMIT, Unit, Weight, rounded};

/// Fewer rates than this are not drawn; the tables have them.
const RATES_FROM: usize = 3;

/// One subject's response times by rate.
pub(crate) struct Climb {
    pub(crate) name: String,
    pub(crate) colour: usize,
    /// Offered requests per second, and what came of them.
    pub(crate) rungs: Vec<(f64, LatencyUs)>,
}

/// Median and p99 of every subject; `None` where there are too few rates for a line.
pub(crate) fn ladder(title: &str, climbs: &[Climb]) -> Option<Plot> {
    let rates = climbs.iter().flat_map(|climb| climb.rungs.iter().map(|(rps, _)| *rps));
    let mut xs: Vec<f64> = rates.filter(|rps| rps.is_finite()).map(rounded).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() < RATES_FROM {
        return None;
    }
    let tails = climbs.iter().any(|climb| climb.rungs.iter().any(|(_, l)| l.p99.is_some()));
    let median = if tails { Weight::Thin } else { Weight::Bold };
    let mut lines = Vec::new();
    for climb in climbs.iter().take(SAMPLES_LIMIT) {
        lines.push(line(&xs, climb, "p50", median, |latency| latency.p50));
        lines.push(line(&xs, climb, "p99", Weight::Bold, |latency| latency.p99));
    }
    lines.retain(|line| line.ys.iter().any(Option::is_some));
    let mut plot = Plot {
        kind: Kind::Points,
        title: title.to_owned(),
        x: Axis::from_zero("offered", Unit::Rps),
        y: Axis::from_zero("response time", Unit::Us),
        xs,
        lines,
        marks: Vec::new(),
    };
    let (lo, hi) = plot.range()?;
    plot.y = Axis::of_times("response time", lo, hi);
    Some(plot)
}

fn line(
    xs: &[f64],
    climb: &Climb,
    figure: &str,
    weight: Weight,
    value: fn(&LatencyUs) -> Option<f64>,
) -> Line {
    let mut ys = vec![None; xs.len()];
    for (rps, latency) in &climb.rungs {
        if let Ok(index) = xs.binary_search_by(|x| x.total_cmp(&rounded(*rps))) {
            ys[index] = value(latency).map(rounded);
        }
    }
    let name = format!("{} {figure}", climb.name).trim().to_owned();
    Line { name, colour: climb.colour, weight, dashed: false, ys }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn climb(name: &str, rates: &[f64]) -> Climb {
        let rung = |rps: &f64| {
            let latency = LatencyUs { p50: Some(100.0), p99: Some(*rps), ..LatencyUs::default() };
            (*rps, latency)
        };
        Climb { name: name.to_owned(), colour: 0, rungs: rates.iter().map(rung).collect() }
    }

    #[test]
    fn each_rate_stands_where_it_belongs() {
        let climbs = [climb("a", &[120.0, 1_000.0, 500.0]), climb("b", &[500.0])];
        let plot = ladder("t", &climbs).unwrap();
        assert_eq!(plot.xs, [120.0, 500.0, 1_000.0]);
        assert_eq!(plot.lines[1].name, "a p99");
        assert_eq!(plot.lines[1].ys, [Some(120.0), Some(500.0), Some(1_000.0)]);
        assert_eq!(plot.lines[3].ys, [None, Some(500.0), None]);
    }

    #[test]
    fn two_rates_make_no_line() {
        assert!(ladder("t", &[climb("a", &[120.0, 500.0])]).is_none());
    }
}
