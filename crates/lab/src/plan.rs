//! The run plan of a scenario: which runs in which order for how long. Pure.
//!
//! A block is one round over all rows; within a row the subjects run one after the other, and
//! their order turns round from block to block (A B, B A, A B …), so that a drift of the
//! machine's speed falls on both alike. How long a run may be follows from the time budget.

use std::fmt;
use std::time::Duration;

use tollway_record::record::{Protocol, Topology};

use crate::ping::PingPlan;

/// Time from the decision to start a load process to its first request, and from its last
/// answer to its end, together, on a loaded machine of two processors.
const PROCESS_OVERHEAD: Duration = Duration::from_millis(100);
/// The longest useful measured window of one run: five of them give the 10,000 samples that a
/// p99 needs at 1,000 requests per second.
const WINDOW_MAX: Duration = Duration::from_millis(2_010);
/// Below this a run says too little to be worth its start.
const WINDOW_MIN: Duration = Duration::from_millis(300);
/// Shortest load before a window: pools fill, congestion windows open.
const WARM_UP_MIN: Duration = Duration::from_millis(200);
/// Round trips of load before a window: connections that rested open their congestion windows
/// anew, and what queued meanwhile has to be worked off.
const WARM_UP_ROUND_TRIPS: u32 = 6;
/// Requests on the way that the connections must carry, over what rate × RTT gives: with less,
/// one slow start leaves a queue that outlasts the run.
const CONNECTION_HEADROOM: f64 = 2.0;

/// What is measured: who carries the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubjectKind {
    /// The same request over the same link, without Tollway.
    Direct,
    /// Through the caller's sidecar, and a gateway where networks differ.
    Tollway,
}

impl SubjectKind {
    /// The bare name in the record.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Tollway => "tollway",
        }
    }
}

/// What the scenario is asked to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    pub placements: Vec<Placement>,
    pub protocols: Vec<Protocol>,
    pub subjects: Vec<SubjectKind>,
    /// Requests per second offered, evenly spaced.
    pub rate_rps: u32,
    /// Connections of the load generator, where they can carry the rate.
    pub connections: u32,
    pub payload_bytes: u32,
    pub blocks: u32,
    /// For everything from the first probe to the last run.
    pub budget: Duration,
}

/// Where the called app is, seen from the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    pub topology: Topology,
    /// Round trip of the link; zero within a network.
    pub rtt: Duration,
}

/// The cell of the table that a run belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub placement: Placement,
    pub protocol: Protocol,
    pub subject: SubjectKind,
    pub connections: u32,
    pub warm_up: Duration,
}

impl Cell {
    /// The row's id in the record.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.placement.topology, self.protocol, self.subject.name())
    }
}

/// One run of the load generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Which of [`Plan::cells`].
    pub cell: usize,
    pub block: u32,
    /// Place among the runs of its block, from 0.
    pub position: u32,
}

/// What will be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub workload: Workload,
    pub cells: Vec<Cell>,
    pub runs: Vec<Run>,
    /// Measured window of every run.
    pub window: Duration,
    /// From the first probe to the end of the last run.
    pub expected: Duration,
}

/// Why the workload cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("nothing to measure: {what} is empty")]
    Empty { what: &'static str },
    #[error(
        "the time budget of {} s allows windows of {} ms, at least {} are needed; allow {} s, or \
         ask for fewer blocks, protocols or placements",
        .budget.as_secs(), .window.as_millis(), WINDOW_MIN.as_millis(), .needed.as_secs() + 1
    )]
    Budget { budget: Duration, window: Duration, needed: Duration },
}

/// Decides the runs of a workload.
pub fn plan(workload: Workload) -> Result<Plan, PlanError> {
    check_not_empty(&workload)?;
    let cells = cells(&workload);
    let runs = runs(&workload, &cells);
    let overhead = overhead(&workload, &cells);
    let share = workload.budget.saturating_sub(overhead) / count(runs.len());
    let window = round_down(share).min(WINDOW_MAX);
    if window < WINDOW_MIN {
        let needed = overhead + WINDOW_MIN * count(runs.len());
        return Err(PlanError::Budget { budget: workload.budget, window, needed });
    }
    let expected = overhead + window * count(runs.len());
    Ok(Plan { workload, cells, runs, window, expected })
}

/// Connections needed so that one request at a time on each carries the rate: the asked number,
/// or rate × RTT with headroom.
#[must_use]
pub fn connections_for(protocol: Protocol, asked: u32, rate_rps: u32, rtt: Duration) -> u32 {
    if protocol != Protocol::Http1 {
        // The others have many requests at a time on each connection.
        return asked;
    }
    let on_the_way = f64::from(rate_rps) * rtt.as_secs_f64() * CONNECTION_HEADROOM;
    asked.max(on_the_way.ceil() as u32)
}

fn check_not_empty(workload: &Workload) -> Result<(), PlanError> {
    let lists = [
        ("the list of placements", workload.placements.len()),
        ("the list of protocols", workload.protocols.len()),
        ("the list of subjects", workload.subjects.len()),
        ("the number of blocks", workload.blocks as usize),
        ("the rate", workload.rate_rps as usize),
        ("the number of connections", workload.connections as usize),
    ];
    match lists.iter().find(|(_, length)| *length == 0) {
        Some(&(what, _)) => Err(PlanError::Empty { what }),
        None => Ok(()),
    }
}

fn cells(workload: &Workload) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &placement in &workload.placements {
        for &protocol in &workload.protocols {
            let connections =
                connections_for(protocol, workload.connections, workload.rate_rps, placement.rtt);
            let warm_up = WARM_UP_MIN.max(placement.rtt * WARM_UP_ROUND_TRIPS);
            cells.extend(workload.subjects.iter().map(|&subject| Cell {
                placement,
                protocol,
                subject,
                connections,
                warm_up,
            }));
        }
    }
    cells
}

fn runs(workload: &Workload, cells: &[Cell]) -> Vec<Run> {
    let subjects = workload.subjects.len();
    let mut runs = Vec::new();
    for block in 0..workload.blocks {
        let mut position = 0;
        for (row, row_cells) in cells.chunks(subjects).enumerate() {
            let mut order: Vec<usize> =
                (0..row_cells.len()).map(|place| row * subjects + place).collect();
            if block % 2 == 1 {
                order.reverse();
            }
            for cell in order {
                runs.push(Run { cell, block, position });
                position += 1;
            }
        }
    }
    runs
}

/// Everything but the windows: a run also connects, warms up, and waits for the last
/// answers, a round trip each with one to spare.
fn overhead(workload: &Workload, cells: &[Cell]) -> Duration {
    let once: Duration =
        cells.iter().map(|c| PROCESS_OVERHEAD + c.warm_up + c.placement.rtt * 3).sum();
    // Each link is measured before the first and after the last run.
    let pings: Duration =
        workload.placements.iter().map(|p| PingPlan::over(p.rtt).duration(p.rtt) * 2).sum();
    once * workload.blocks + pings
}

fn round_down(window: Duration) -> Duration {
    const STEP_MS: u128 = 10;
    Duration::from_millis(u64::try_from(window.as_millis() / STEP_MS * STEP_MS).unwrap_or(0))
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl fmt::Display for Plan {
    /// A few lines for the screen.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workload = &self.workload;
        let names: Vec<&str> = workload.subjects.iter().map(|s| s.name()).collect();
        writeln!(
            f,
            "{} runs in {} blocks, {:.2} s measured each, about {:.0} s in all",
            self.runs.len(),
            workload.blocks,
            self.window.as_secs_f64(),
            self.expected.as_secs_f64()
        )?;
        writeln!(
            f,
            "{} requests/s offered, {} bytes of payload, subjects {}",
            workload.rate_rps,
            workload.payload_bytes,
            names.join(" and ")
        )?;
        for row in self.cells.chunks(workload.subjects.len().max(1)) {
            let Some(cell) = row.first() else { continue };
            writeln!(
                f,
                "  {:<13}  {:<10}  RTT {:>6.1} ms  {:>3} connections  warm-up {:.2} s",
                cell.placement.topology,
                cell.protocol,
                cell.placement.rtt.as_secs_f64() * 1e3,
                cell.connections,
                cell.warm_up.as_secs_f64()
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
