//! What a run tells while it runs, and how it is told to stop.

use std::fmt;
use std::time::Duration;

use tollway_record::traffic::SeriesPoint;

use crate::stop::Stop;

/// How a caller follows a run and ends it early.
pub struct Watch<'a> {
    /// Called about once a second, on the run's own thread: keep it short.
    pub report: &'a mut dyn FnMut(&Progress),
    /// Ends the window; what is in flight is drained and the result is of what was measured.
    pub stop: Stop,
}

/// Where a run stands in its plan.
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

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs();
        write!(
            f,
            "{seconds:>4} s  {:<8} {:>9} ok  {:>6} errors",
            self.phase, self.requests, self.errors
        )?;
        write!(f, "  {:>5} in flight  {:>5} waiting", self.in_flight, self.waiting)?;
        let Some(point) = self.last_second else { return Ok(()) };
        write!(f, "  {:>8.0}/s", point.rps)?;
        if let Some(p50) = point.p50 {
            write!(f, "  p50 {p50:.0} µs")?;
        }
        Ok(())
    }
}
