//! What a run reports while it runs, and how it is stopped.

use std::fmt;
use std::time::Duration;

use tollway_record::traffic::SeriesPoint;

use crate::summary::{duration, grouped};
use tollway_echo::Stop;

/// How a caller follows a run and ends it early.
pub struct Watch<'a> {
    /// Called about once a second, on the run's own thread: keep it short.
    pub report: &'a mut dyn FnMut(&Progress),
    /// Ends the window; what is in flight is drained and the result is of what was measured.
    pub stop: Stop,
}

/// The progress of a run in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    WarmUp,
    Window,
    Drain,
}

/// A run's state in one line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    pub phase: Phase,
    /// Since the run began, warm-up included.
    pub elapsed: Duration,
    /// Successful requests of the window so far.
    pub requests: u64,
    pub errors: u64,
    pub in_flight: usize,
    /// Released and without a free connection.
    pub waiting: usize,
    /// The window's last complete second.
    pub last_second: Option<SeriesPoint>,
    /// Which one of several runs this is, where there are several.
    pub part: Option<Part>,
}

/// One run of a plan of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// From 1; 0 is what comes before.
    pub number: usize,
    /// How many there are, where that is known.
    pub of: Option<usize>,
    /// 0: as fast as answers come.
    pub rate_rps: f64,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::WarmUp => "warm-up",
            Self::Window => "measure",
            Self::Drain => "drain",
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = grouped(self.rate_rps.round() as u64);
        match (self.number, self.of) {
            (0, _) => f.write_str("probe"),
            (number, Some(of)) => write!(f, "step {number}/{of} {rate}/s"),
            (number, None) => write!(f, "trial {number} {rate}/s"),
        }
    }
}

/// One line that fits a terminal of 80 columns; with a part before it, one of 100.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(part) = self.part {
            write!(f, "{part}  ")?;
        }
        write!(f, "{:>4} s {:<7}", self.elapsed.as_secs(), self.phase)?;
        if let Some(point) = self.last_second {
            write!(f, " {:>7}/s", grouped(point.rps.round() as u64))?;
            for (name, us) in [("p50", point.p50), ("p99", point.p99)] {
                if let Some(us) = us {
                    write!(f, "  {name} {}", duration(us))?;
                }
            }
        }
        write!(f, "  {} errors", grouped(self.errors))?;
        let under_way = self.in_flight + self.waiting;
        write!(f, "  {} in flight", grouped(under_way as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_one_line_of_a_terminal() {
        let point = SeriesPoint {
            t_s: 3.0,
            rps: 12_345.0,
            p50: Some(412.3),
            p99: Some(1_234.0),
            ..SeriesPoint::default()
        };
        let mut progress = Progress {
            phase: Phase::Window,
            elapsed: Duration::from_millis(4_200),
            requests: 40_000,
            errors: 3,
            in_flight: 10,
            waiting: 2,
            last_second: Some(point),
            part: None,
        };
        assert_eq!(
            progress.to_string(),
            "   4 s measure  12,345/s  p50 412 µs  p99 1.23 ms  3 errors  12 in flight"
        );
        progress.part = Some(Part { number: 2, of: Some(5), rate_rps: 500.0 });
        progress.last_second = None;
        let line = "step 2/5 500/s     4 s measure  3 errors  12 in flight";
        assert_eq!(progress.to_string(), line);
    }
}
