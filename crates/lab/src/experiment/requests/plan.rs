//! The plan: which runs in which order for how long. Pure.
//!
//! A block is one round over all rows; within a row the subjects run one after the other, and
//! their order alternates from block to block (A B, B A, A B …), so that a drift of the
//! machine's speed falls on both alike. Cases whose rate others find out come in a second phase.

mod cells;
mod show;

use std::time::Duration;

use tollway_record::record::{Arrival, Layout, Limits, Protocol, Topology};
use tollway_record::throughput::Direction;

use crate::actors::ActorsSpec;
use crate::experiment::kind::Run;
use crate::ping::PingPlan;
use crate::scenario::{Case, Handshakes, Length, MessagesSpec, Scenario, Spacing};
use crate::subject::Leg;
use cells::cells;

/// Time from the decision to start a load process to its first request, and from its last
/// answer to its end, together, on a loaded machine of two processors.
const PROCESS_OVERHEAD: Duration = Duration::from_millis(100);
/// Starting everything and calling each service first: for the estimate.
const START_ESTIMATE: Duration = Duration::from_secs(2);
/// A shorter run would measure too little for its start.
const WINDOW_MIN: Duration = Duration::from_millis(100);
/// A trial of a search is this part of a window, and no longer than this; together with the
/// longer ones that confirm its ends a search takes as long as about so many.
const TRIALS_IN_WINDOW: u32 = 4;
const LONGEST_TRIAL: Duration = Duration::from_secs(3);
const TRIALS_ESTIMATE: u32 = 30;
/// Factor over rate × RTT for the requests that connections must carry: with less, one slow start
/// leaves a queue that outlasts the run.
const CONNECTION_HEADROOM: f64 = 2.0;

/// One row of the table: a subject under one set of conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The row's id in the record: `same-network/http1/tollway`.
    pub id: String,
    /// The case's name, of a step `CASE-RATE`.
    pub case: String,
    /// Index among the prepared subjects.
    pub subject: usize,
    pub leg: Leg,
    pub topology: Topology,
    pub layout: Layout,
    pub arrival: CellArrival,
    /// The requested number; [`Cell::connections_at`] gives the actual one.
    pub connections: u32,
    /// Requests in flight at once on one connection; the load generator's default without.
    pub streams: Option<u32>,
    /// Of streams of messages.
    pub messages: Option<MessagesSpec>,
    /// For a new connection with each request.
    pub handshakes: Option<Handshakes>,
    pub payload_bytes: u32,
    pub answer_bytes: Option<u64>,
    /// Instead of the app itself.
    pub actors: Option<ActorsSpec>,
    pub limits: Option<Limits>,
    /// Of the link; zero within a network.
    pub rtt: Duration,
    pub warm_up: Duration,
    pub window: Duration,
    /// 0, or 1 where another case finds out the rate.
    pub phase: usize,
}

/// When the requests of a cell are sent.
#[derive(Debug, Clone, PartialEq)]
pub enum CellArrival {
    Open {
        rate_rps: f64,
        spacing: Spacing,
    },
    ShareOfSlowest {
        case: String,
        share: f64,
        spacing: Spacing,
    },
    Closed,
    Flow(Direction),
    /// Conditions that the rate must hold. One search finds it: it repeats its own trials, so it
    /// is made in the first block only.
    Search(Vec<String>),
    Idle,
}

/// What will be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub scenario: String,
    /// Labels of the subjects, which cells name by index.
    pub subjects: Vec<String>,
    /// In the order of the report.
    pub cells: Vec<Cell>,
    /// In the order of time.
    pub runs: Vec<Run>,
    pub blocks: u32,
    /// From the start to the end of the last run, without repetitions.
    pub expected: Duration,
}

/// What the plan must know besides the scenario.
pub(super) struct Circumstances<'a> {
    /// Labels of the subjects: `tollway`, `tollway:traced-1`.
    pub(super) subjects: &'a [String],
    /// Whether a subject carries a leg.
    pub(super) carries: &'a dyn Fn(usize, &Leg) -> bool,
    /// Which limits a case has here; `None` leaves it out.
    pub(super) limits: &'a dyn Fn(&Case) -> Option<Option<Limits>>,
    pub(super) can_pin: bool,
    pub(super) length: Length,
    /// Already spent of the budget.
    pub(super) spent: Duration,
}

/// Why the scenario cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("nothing is left to measure: no case of {scenario} can be run here{}", reasons(.left_out))]
    Empty { scenario: String, left_out: Vec<String> },
    #[error(
        "the time budget of {} s allows windows of {} ms, at least {} are needed; allow {} s, or \
         ask for fewer blocks or subjects",
        .budget.as_secs(), .window.as_millis(), WINDOW_MIN.as_millis(), .needed.as_secs() + 1
    )]
    Budget { budget: Duration, window: Duration, needed: Duration },
}

fn reasons(left_out: &[String]) -> String {
    left_out.iter().map(|reason| format!("; {reason}")).collect()
}

/// Decides the runs of a scenario.
pub(super) fn plan(scenario: &Scenario, here: &Circumstances<'_>) -> Result<Plan, PlanError> {
    let mut cells = cells(scenario, here);
    let blocks = here.length.blocks;
    if let Some(budget_s) = here.length.budget_s {
        fit(&mut cells, scenario, blocks, Duration::from_secs_f64(budget_s), here.spent)?;
    }
    let runs = runs(&cells, blocks);
    let windows: Duration = cells.iter().map(|cell| cell.duration() * cell.blocks(blocks)).sum();
    let expected = START_ESTIMATE + overhead(&cells, scenario, blocks) + windows;
    let subjects = here.subjects.to_vec();
    let scenario = scenario.name.value.clone();
    Ok(Plan { scenario, subjects, cells, runs, blocks, expected })
}

/// Connections needed so that one request at a time on each carries the rate: the requested number,
/// or rate × RTT with headroom.
#[must_use]
pub(crate) fn connections_for(protocol: Protocol, asked: u32, rate_rps: f64, rtt: Duration) -> u32 {
    if protocol != Protocol::Http1 {
        // The others have many requests at a time on each connection.
        return asked;
    }
    asked.max((rate_rps * rtt.as_secs_f64() * CONNECTION_HEADROOM).ceil() as u32)
}

impl Cell {
    /// Connections of the load generator at the rate, which is `None` in closed loop.
    #[must_use]
    pub fn connections_at(&self, rate_rps: Option<f64>) -> u32 {
        rate_rps.map_or(self.connections, |rate| {
            connections_for(self.leg.protocol, self.connections, rate, self.rtt)
        })
    }

    /// Requests or messages under way at once on one connection; `None` for one, or the load
    /// generator's own choice.
    #[must_use]
    pub fn in_flight_per_connection(&self) -> Option<u32> {
        let of_stream = self.messages.map_or(1, |messages| messages.in_flight);
        let streams = self.streams.or(self.messages.map(|_| 1))?;
        Some(streams.saturating_mul(of_stream)).filter(|&in_flight| in_flight > 1)
    }

    /// The word of the record; an idle cell has no row.
    #[must_use]
    pub fn arrival_word(&self) -> Arrival {
        match &self.arrival {
            CellArrival::Open { spacing, .. } | CellArrival::ShareOfSlowest { spacing, .. } => {
                spacing.arrival()
            }
            CellArrival::Closed | CellArrival::Idle => Arrival::Closed,
            CellArrival::Flow(_) => Arrival::Flow,
            CellArrival::Search(_) => Arrival::OpenUniform,
        }
    }

    /// How long one trial of its search is.
    #[must_use]
    pub fn trial(&self) -> Duration {
        (self.window / TRIALS_IN_WINDOW).clamp(WINDOW_MIN, LONGEST_TRIAL)
    }

    /// Of its window, about; of a search of all its trials.
    fn duration(&self) -> Duration {
        match self.arrival {
            CellArrival::Search(_) => self.trial() * TRIALS_ESTIMATE,
            CellArrival::Open { .. }
            | CellArrival::ShareOfSlowest { .. }
            | CellArrival::Closed
            | CellArrival::Flow(_)
            | CellArrival::Idle => self.window,
        }
    }

    fn is_in_block(&self, block: u32) -> bool {
        block < self.blocks(block + 1)
    }

    /// In how many of `blocks` it runs.
    fn blocks(&self, blocks: u32) -> u32 {
        if matches!(self.arrival, CellArrival::Search(_)) { blocks.min(1) } else { blocks }
    }

    /// Whether two cells differ in their subject alone.
    fn is_peer_of(&self, other: &Self) -> bool {
        (&self.case, self.leg, self.layout) == (&other.case, other.leg, other.layout)
    }
}

/// Adjacent cells of a group, as ranges.
fn groups(cells: &[Cell]) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if cells[group.start].is_peer_of(cell) => group.end = index + 1,
            _ => groups.push(index..index + 1),
        }
    }
    groups
}

fn runs(cells: &[Cell], blocks: u32) -> Vec<Run> {
    let groups = groups(cells);
    let mut runs = Vec::new();
    for phase in 0..=1 {
        for block in 0..blocks {
            let mut position = 0;
            for group in groups.iter().filter(|group| cells[group.start].phase == phase) {
                let mut order: Vec<usize> = group.clone().collect();
                if block % 2 == 1 {
                    order.reverse();
                }
                for cell in order.into_iter().filter(|cell| cells[*cell].is_in_block(block)) {
                    runs.push(Run { cell, block, position });
                    position += 1;
                }
            }
        }
    }
    runs
}

/// Shortens the windows so that everything fits into the budget.
fn fit(
    cells: &mut [Cell],
    scenario: &Scenario,
    blocks: u32,
    budget: Duration,
    spent: Duration,
) -> Result<(), PlanError> {
    let overhead = overhead(cells, scenario, blocks);
    let count = u32::try_from(cells.len()).unwrap_or(u32::MAX).saturating_mul(blocks).max(1);
    let share = round_down(budget.saturating_sub(spent).saturating_sub(overhead) / count);
    if share < WINDOW_MIN {
        let needed = overhead + spent + WINDOW_MIN * count;
        return Err(PlanError::Budget { budget, window: share, needed });
    }
    for cell in cells {
        cell.window = cell.window.min(share);
    }
    Ok(())
}

/// Everything but the windows: a run also connects, warms up, and waits for the last
/// answers, a round trip each with one to spare; links are measured at both ends.
fn overhead(cells: &[Cell], scenario: &Scenario, blocks: u32) -> Duration {
    let once: Duration = cells
        .iter()
        .map(|cell| match cell.arrival {
            CellArrival::Idle => Duration::ZERO,
            CellArrival::Open { .. }
            | CellArrival::ShareOfSlowest { .. }
            | CellArrival::Closed
            | CellArrival::Flow(_)
            | CellArrival::Search(_) => PROCESS_OVERHEAD + cell.warm_up + cell.rtt * 3,
        })
        .sum();
    let links = scenario.networks.iter().filter_map(|network| network.link);
    let pings: Duration = links
        .map(|link| {
            let rtt = Duration::from_micros(link.rtt_us);
            PingPlan::over(rtt).duration(rtt) * 2
        })
        .sum();
    once * blocks + pings
}

fn round_down(window: Duration) -> Duration {
    const STEP_MS: u128 = 10;
    Duration::from_millis(u64::try_from(window.as_millis() / STEP_MS * STEP_MS).unwrap_or(0))
}

#[cfg(test)]
mod tests;
