//! What passed through TCP connections, interval by interval.

use tollway_record::throughput::{Interval, Throughput};

use super::{Axis, Kind, Line, Plot, Unit, Weight, rounded};

/// Intervals that are drawn; a run of an hour has that many of a second.
const INTERVALS_LIMIT: usize = 3_600;

/// Colours of what was sent and received.
const SENT: usize = 1;
const RECEIVED: usize = 2;

/// The rate, segments sent again, and the round trip; only of what was seen.
pub(crate) fn throughput(run: &Throughput) -> Vec<Plot> {
    let measured: Vec<&Interval> =
        run.intervals.iter().filter(|interval| !interval.omitted).take(INTERVALS_LIMIT).collect();
    let Some(start) = measured.first().map(|interval| interval.start_s) else {
        return Vec::new();
    };
    if measured.len() < 2 {
        return Vec::new();
    }
    let xs: Vec<f64> = measured.iter().map(|interval| rounded(interval.end_s - start)).collect();
    let line = |name: &str, colour, value: &dyn Fn(&Interval) -> Option<f64>| Line {
        name: name.to_owned(),
        colour,
        weight: Weight::Bold,
        dashed: false,
        ys: measured.iter().map(|interval| value(interval).map(rounded)).collect(),
    };
    let rate = |sends: bool| {
        move |interval: &Interval| {
            let seen = interval.streams.iter().any(|stream| stream.sends == sends);
            seen.then(|| interval.sum(sends).bits_per_s / 1e6)
        }
    };
    let again = |interval: &Interval| Some(interval.retransmits() as f64);
    let charts = [
        (
            "Bytes over time",
            "rate",
            Unit::Mbit,
            vec![line("sent", SENT, &rate(true)), line("received", RECEIVED, &rate(false))],
        ),
        (
            "Losses over time",
            "segments sent again",
            Unit::Count,
            vec![line("sent again", SENT, &again)],
        ),
        (
            "Round trip over time",
            "round trip, mean of connections",
            Unit::Us,
            vec![line("round trip", SENT, &rtt_us)],
        ),
    ];
    let plot = |(title, label, unit, lines): (&str, &str, Unit, Vec<Line>)| {
        let lines: Vec<Line> =
            lines.into_iter().filter(|line| line.ys.iter().any(Option::is_some)).collect();
        (!lines.is_empty()).then(|| Plot {
            kind: Kind::Series,
            title: title.to_owned(),
            x: Axis::linear("measured time", Unit::S),
            y: Axis::from_zero(label, unit),
            xs: xs.clone(),
            lines,
            marks: Vec::new(),
        })
    };
    charts.into_iter().filter_map(plot).collect()
}

/// The kernel's smoothed round trip, where it has one.
fn rtt_us(interval: &Interval) -> Option<f64> {
    let known: Vec<f64> =
        interval.streams.iter().map(|s| s.rtt_us as f64).filter(|us| *us > 0.0).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}
