//! Events of a running experiment. The caller decides how they are shown.

use std::fmt;
use std::time::Duration;

use tollway_record::Traffic;

/// Receives the events of an experiment.
pub trait Progress {
    fn report(&mut self, event: &Event<'_>);
}

/// Something happened. `Display` gives a line (the plan: several).
#[derive(Debug)]
pub enum Event<'a> {
    /// A step of setting up or cleaning up begins.
    Step(&'a str),
    /// Several lines: what is run.
    Plan(&'a str),
    /// The link to a network was measured.
    Link {
        /// How far that network is.
        topology: &'a str,
        rtt_p50: Duration,
    },
    /// A run is over; `done` of `total` are.
    Run {
        done: usize,
        total: usize,
        row: &'a str,
        block: u32,
        /// Its result in a few words.
        outcome: &'a str,
        /// Something else on the machine disturbed it.
        is_outside: bool,
    },
    /// Something a reader of the result should know.
    Warning(&'a str),
}

/// What was done in a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    Requests(f64),
    /// Of streams.
    Messages(f64),
    /// Of a flow, 1,000,000 bytes each, in both directions together.
    Megabytes(f64),
    /// In one direction.
    Packets(f64),
}

impl Pace {
    /// Megabytes per second of a flow, both directions together.
    pub(crate) fn of_flow(traffic: &Traffic) -> Self {
        let seconds = traffic.duration_s.max(f64::MIN_POSITIVE);
        Self::Megabytes(traffic.bytes.total() as f64 / 1e6 / seconds)
    }

    pub(crate) fn per_s(self) -> f64 {
        match self {
            Self::Requests(per_s)
            | Self::Messages(per_s)
            | Self::Megabytes(per_s)
            | Self::Packets(per_s) => per_s,
        }
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests(per_s) => write!(f, "{per_s:.0} requests/s"),
            Self::Messages(per_s) => write!(f, "{per_s:.0} messages/s"),
            Self::Megabytes(per_s) => write!(f, "{:.0} Mbit/s", per_s * 8.0),
            Self::Packets(per_s) => write!(f, "{per_s:.0} packets/s"),
        }
    }
}

/// One run in a few numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunSummary {
    pub pace: Pace,
    pub mean_us: Option<f64>,
    pub errors: u64,
    pub client_limited: bool,
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => f.write_str(step),
            Self::Plan(plan) => f.write_str(plan.trim_end()),
            Self::Link { topology, rtt_p50 } => {
                write!(f, "link to {topology}: RTT p50 {:.3} ms", rtt_p50.as_secs_f64() * 1e3)
            }
            Self::Run { done, total, row, block, outcome, is_outside } => {
                let disturbed = if *is_outside { ", disturbed" } else { "" };
                write!(f, "[{done}/{total}] block {} {row}: {outcome}{disturbed}", block + 1)
            }
            Self::Warning(warning) => write!(f, "warning: {warning}"),
        }
    }
}

impl fmt::Display for RunSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pace)?;
        if let Some(mean) = self.mean_us {
            write!(f, ", mean {:.3} ms", mean / 1e3)?;
        }
        if self.errors > 0 {
            write!(f, ", {} errors", self.errors)?;
        }
        if self.client_limited {
            f.write_str(", client-limited")?;
        }
        Ok(())
    }
}

/// Prints every event as a line on standard error.
#[derive(Debug, Default, Clone, Copy)]
pub struct PlainProgress;

impl Progress for PlainProgress {
    fn report(&mut self, event: &Event<'_>) {
        eprintln!("{event}");
    }
}

/// Drops every event.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn report(&mut self, _: &Event<'_>) {}
}
