//! What a scenario tells while it runs. How it looks on a screen is the caller's business.

use std::fmt;
use std::time::Duration;

use crate::experiment::Plan;
use crate::fabric::FabricPlan;

/// Listens to a scenario.
pub trait Progress {
    fn told(&mut self, event: &Event<'_>);
}

/// Something happened. `Display` gives a line (the plan: several).
#[derive(Debug)]
pub enum Event<'a> {
    /// A step of setting up or cleaning up begins.
    Step(&'a str),
    Plan(&'a Plan),
    /// The link of a placement was measured.
    Link {
        placement: &'a str,
        rtt_p50: Duration,
    },
    /// A run is over; `done` of `total` are.
    Run {
        done: usize,
        total: usize,
        row: &'a str,
        block: u32,
        summary: &'a RunSummary,
    },
    /// The plan of a fabric scenario.
    FabricPlan(&'a FabricPlan),
    /// Rounds of neighbours are over; `done` of `total` rows in all blocks are.
    Rounds {
        done: usize,
        total: usize,
        row: &'a str,
        block: u32,
        /// What came of it.
        told: &'a str,
        outside_gate: bool,
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
    /// Of a flow, 1,000,000 bytes each, both ways together.
    Megabytes(f64),
    /// One way.
    Packets(f64),
}

impl Pace {
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
    pub outside_gate: bool,
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => f.write_str(step),
            Self::Plan(plan) => write!(f, "{}", plan.to_string().trim_end()),
            Self::Link { placement, rtt_p50 } => {
                write!(f, "link to {placement}: RTT p50 {:.3} ms", rtt_p50.as_secs_f64() * 1e3)
            }
            Self::Run { done, total, row, block, summary } => {
                write!(f, "[{done}/{total}] block {} {row}: {summary}", block + 1)
            }
            Self::FabricPlan(plan) => write!(f, "{}", plan.to_string().trim_end()),
            Self::Rounds { done, total, row, block, told, outside_gate } => {
                let disturbed = if *outside_gate { ", disturbed" } else { "" };
                write!(f, "[{done}/{total}] block {} {row}: {told}{disturbed}", block + 1)
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
        if self.outside_gate {
            f.write_str(", disturbed")?;
        }
        Ok(())
    }
}

/// Prints every event as a line on standard error.
#[derive(Debug, Default, Clone, Copy)]
pub struct PlainProgress;

impl Progress for PlainProgress {
    fn told(&mut self, event: &Event<'_>) {
        eprintln!("{event}");
    }
}

/// Says nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn told(&mut self, _: &Event<'_>) {}
}
