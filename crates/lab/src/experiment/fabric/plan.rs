//! The plan of a fabric scenario: which rows there are, how many rounds each has in a block. Pure.

use std::fmt;
use std::time::Duration;

use crate::experiment::kind::Run;
use crate::experiment::minutes;
use crate::scenario::{Datapath, FabricCase, FabricLength, FabricScenario, Measure, Store};

/// Starting a control plane, issuing a token, starting an agent: for the estimate.
const START_ESTIMATE: Duration = Duration::from_millis(600);
/// Starting an agent that is one of many.
const AGENT_ESTIMATE: Duration = Duration::from_millis(20);
/// Two hosts and what is between them, as a share of each of the rows that use them.
const CROSSING_ESTIMATE: Duration = Duration::from_millis(800);
/// An agent that ends, and begins with what it has.
const RESTART_ESTIMATE: Duration = Duration::from_millis(400);
/// Restarts of a block.
const RESTARTS: u32 = 3;
/// The time of a round apart from its neighbours, and of writing and removing each neighbour.
const ROUND_ESTIMATE: Duration = Duration::from_millis(3);
const ENTRY_ESTIMATE: Duration = Duration::from_micros(5);
/// Load before each window of look-ups.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);
/// Changes at a rate are written together so often, unless they are fewer.
const CHANGES_EVERY: Duration = Duration::from_millis(100);

/// One row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricCell {
    /// `watch/1000`.
    pub id: String,
    pub case: String,
    pub work: Work,
    /// Neighbours of a round.
    pub entries: u32,
    /// In each block.
    pub rounds: u32,
    /// From the beginning of a round to that of the next; `None` where one waits for the other.
    pub every: Option<Duration>,
    /// Neighbours that are there before.
    pub table: u32,
    /// Agents that look up or follow.
    pub agents: u32,
    /// Look-ups or changes per second.
    pub rate_per_s: Option<f64>,
    /// Measured time of a block, unless rounds define it.
    pub window: Duration,
    pub store: Store,
}

/// What is done in a row: neighbours are distributed, or what guests send is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    List,
    Restart,
    Watch,
    Get,
    Fanout,
    Churn,
    Forward(Forwarded),
}

/// What goes from guest to guest, and over what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarded {
    pub datapath: Datapath,
    pub sent: Sent,
    /// Neighbours that packets go to.
    pub flows: u32,
}

/// What goes from guest to guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Echoes of ICMP.
    Ping,
    /// Questions and answers over one connection of TCP.
    Calls,
    /// Bytes over one connection of TCP.
    Bulk,
    /// Packets in one direction.
    Packets,
}

/// What will be run.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricPlan {
    pub scenario: String,
    /// In the order of the report and of each block.
    pub cells: Vec<FabricCell>,
    pub blocks: u32,
    /// Without repetitions.
    pub expected: Duration,
}

impl FabricPlan {
    /// Decides rows and rounds.
    #[must_use]
    pub fn new(scenario: &FabricScenario, length: FabricLength) -> Self {
        let cells: Vec<FabricCell> = scenario
            .cases
            .iter()
            .flat_map(|case| FabricCell::all_of(case, length))
            .filter(|cell| cell.entries.max(cell.table) <= length.most_entries)
            .collect();
        let expected = cells.iter().map(FabricCell::expected).sum::<Duration>() * length.blocks;
        let scenario = scenario.name.value.clone();
        Self { scenario, cells, blocks: length.blocks, expected }
    }

    /// The runs, block after block. Rows over the same datapath follow each other, since it is made
    /// for all of them together.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        let mut order: Vec<usize> = (0..self.cells.len()).collect();
        order.sort_by_key(|cell| self.cells[*cell].forwarded().map(|over| over.datapath));
        let block = |block: u32| {
            order.clone().into_iter().zip(0..).map(move |(cell, position)| Run {
                cell,
                block,
                position,
            })
        };
        (0..self.blocks).flat_map(block).collect()
    }

    /// Removes the rows that need etcd. Returns their ids.
    pub(super) fn leave_out_etcd(&mut self) -> Vec<String> {
        let (left_out, rest): (Vec<_>, Vec<_>) =
            self.cells.drain(..).partition(|cell| cell.store == Store::Etcd);
        self.cells = rest;
        left_out.into_iter().map(|cell| cell.id).collect()
    }
}

impl FabricCell {
    fn all_of(case: &FabricCase, length: FabricLength) -> Vec<Self> {
        let work = match case.measure {
            Measure::List => Work::List,
            Measure::Restart => Work::Restart,
            Measure::Watch => Work::Watch,
            Measure::Get => Work::Get,
            Measure::Fanout => Work::Fanout,
            Measure::Churn => Work::Churn,
            Measure::Ping => return Self::over_datapaths(case, Sent::Ping, length),
            Measure::Calls => return Self::over_datapaths(case, Sent::Calls, length),
            Measure::Bulk => return Self::over_datapaths(case, Sent::Bulk, length),
            Measure::Packets => return Self::over_datapaths(case, Sent::Packets, length),
        };
        case.rows().into_iter().map(|row| Self::new(case, work, row, length)).collect()
    }

    fn over_datapaths(case: &FabricCase, sent: Sent, length: FabricLength) -> Vec<Self> {
        let flows = case.flows.as_ref().map_or(1, |flows| flows.value);
        let over = |datapath: &Datapath| {
            let work = Work::Forward(Forwarded { datapath: *datapath, sent, flows });
            let id = format!("{}/{}", case.name.value, datapath.as_str());
            Self { id, ..Self::new(case, work, 0, length) }
        };
        case.datapaths.iter().flat_map(|datapaths| &datapaths.value).map(over).collect()
    }

    /// The row of a case that differs from its others by `row`.
    fn new(case: &FabricCase, work: Work, row: u32, length: FabricLength) -> Self {
        let window = Duration::from_secs_f64(length.window_s);
        let rate_per_s = case.rate_per_s.as_ref().map(|rate| rate.value);
        let mut cell = Self {
            id: format!("{}/{row}", case.name.value),
            case: case.name.value.clone(),
            work,
            entries: row,
            rounds: 1,
            every: None,
            table: case.table.as_ref().map_or(0, |table| table.value),
            agents: 1,
            rate_per_s,
            window,
            store: case.store,
        };
        match work {
            Work::List | Work::Watch | Work::Forward(_) => {}
            Work::Restart => cell.rounds = RESTARTS,
            Work::Get => (cell.entries, cell.agents) = (0, row),
            Work::Fanout => (cell.entries, cell.agents) = (1, row),
            Work::Churn => {
                let rate = rate_per_s.unwrap_or(1.0);
                let every = CHANGES_EVERY.max(Duration::from_secs_f64(1.0 / rate));
                cell.entries = ((rate * every.as_secs_f64()).round() as u32).clamp(1, cell.table);
                cell.every = Some(every);
                cell.rounds = window.div_duration_f64(every).ceil() as u32;
            }
        }
        if matches!(work, Work::List | Work::Watch | Work::Fanout) {
            cell.rounds = (length.block_entries / cell.entries).clamp(1, length.most_rounds);
        }
        cell
    }

    /// What it forwards, where it does.
    #[must_use]
    pub fn forwarded(&self) -> Option<Forwarded> {
        match self.work {
            Work::Forward(over) => Some(over),
            Work::List | Work::Restart | Work::Watch | Work::Get | Work::Fanout | Work::Churn => {
                None
            }
        }
    }

    /// Neighbours that there are at its end.
    #[must_use]
    pub fn all_entries(&self) -> u32 {
        match self.work {
            Work::List | Work::Restart => self.entries,
            Work::Get | Work::Churn | Work::Forward(_) => self.table,
            Work::Watch | Work::Fanout => {
                self.table.saturating_add(self.entries.saturating_mul(self.rounds))
            }
        }
    }

    fn expected(&self) -> Duration {
        // What is listed, or there before, has to be written first.
        let is_listed = matches!(self.work, Work::List | Work::Restart);
        let listed = if is_listed { self.entries } else { 0 };
        let first = ENTRY_ESTIMATE * self.table.max(listed) + AGENT_ESTIMATE * (self.agents - 1);
        let measured = match self.work {
            // A crossing is made once for all rows of a block that have it, of which there are a few.
            Work::Forward(_) => return CROSSING_ESTIMATE + first + WARM_UP + self.window,
            Work::Get => WARM_UP + self.window,
            Work::Churn => self.window,
            Work::Restart => ENTRY_ESTIMATE * self.entries + RESTART_ESTIMATE * self.rounds,
            Work::List | Work::Watch | Work::Fanout => {
                (ROUND_ESTIMATE + ENTRY_ESTIMATE * self.entries) * self.rounds
            }
        };
        START_ESTIMATE + first + measured
    }
}

impl fmt::Display for FabricPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, blocks) = (self.cells.len(), self.blocks);
        writeln!(f, "{rows} rows in {blocks} blocks, about {}", minutes(self.expected))?;
        for cell in &self.cells {
            write!(f, "  {}: ", cell.id)?;
            match (cell.work, cell.rounds) {
                (Work::Get | Work::Churn | Work::Forward(_), _) => {
                    writeln!(f, "{} s in each block", cell.window.as_secs_f64())?;
                }
                (_, 1) => writeln!(f, "once in each block")?,
                (_, rounds) => writeln!(f, "{rounds} times in each block")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_and_rates_make_rows() {
        let text = "schema: tollway.fabric-scenario/1\nname: x\npurpose: x\ncases:\n  \
            - {name: get, measure: get, agents: [1, 300], table: 1000, rate_per_s: 500}\n  \
            - {name: fanout, measure: fanout, agents: [100], table: 1000}\n  \
            - {name: churn, measure: churn, table: 1000, rate_per_s: 2000}\n  \
            - {name: slow, measure: churn, table: 1000, rate_per_s: 4}\nlengths:\n  \
            quick: LENGTH\n  usual: LENGTH\n  full: LENGTH\n";
        let length = "{blocks: 2, most_entries: 1000, block_entries: 300, most_rounds: 50, \
            window_s: 3}";
        let scenario: FabricScenario =
            serde_saphyr::from_str(&text.replace("LENGTH", length)).unwrap();
        assert_eq!(scenario.check(), []);
        let plan = FabricPlan::new(&scenario, scenario.lengths.quick.value);
        let rows: Vec<_> = plan
            .cells
            .iter()
            .map(|cell| (&*cell.id, cell.agents, cell.entries, cell.rounds, cell.all_entries()))
            .collect();
        assert_eq!(
            rows,
            [
                ("get/1", 1, 0, 1, 1000),
                ("get/300", 300, 0, 1, 1000),
                ("fanout/100", 100, 1, 50, 1050),
                ("churn/2000", 1, 200, 30, 1000),
                ("slow/4", 1, 1, 12, 1000)
            ]
        );
        assert_eq!(plan.cells[4].every, Some(Duration::from_millis(250)));
        let over_etcd =
            text.replace("table: 1000, rate_per_s: 4", "table: 1000, rate_per_s: 4, store: etcd");
        let scenario: FabricScenario =
            serde_saphyr::from_str(&over_etcd.replace("LENGTH", length)).unwrap();
        let mut plan = FabricPlan::new(&scenario, scenario.lengths.quick.value);
        assert_eq!(plan.leave_out_etcd(), ["slow/4"]);
        assert_eq!(plan.cells.len(), 4);
    }

    #[test]
    fn rows_over_one_datapath_follow_each_other() {
        let text = "schema: tollway.fabric-scenario/1\nname: x\npurpose: x\ncases:\n  \
            - {name: calls, measure: calls, datapaths: [tc, direct], table: 10}\n  \
            - {name: few, measure: packets, datapaths: [direct, tc], table: 10, flows: 7}\nlengths:\n  \
            quick: LENGTH\n  usual: LENGTH\n  full: LENGTH\n";
        let length = "{blocks: 1, most_entries: 10, block_entries: 1, most_rounds: 1}";
        let scenario: FabricScenario =
            serde_saphyr::from_str(&text.replace("LENGTH", length)).unwrap();
        assert_eq!(scenario.check(), []);
        let plan = FabricPlan::new(&scenario, scenario.lengths.quick.value);
        let ids: Vec<_> = plan.cells.iter().map(|cell| &*cell.id).collect();
        assert_eq!(ids, ["calls/tc", "calls/direct", "few/direct", "few/tc"]);
        let order: Vec<_> = plan.runs().into_iter().map(|run| ids[run.cell]).collect();
        assert_eq!(order, ["calls/direct", "few/direct", "calls/tc", "few/tc"]);
        let over = plan.cells[3].forwarded().unwrap();
        assert_eq!((over.datapath, over.sent, over.flows), (Datapath::Tc, Sent::Packets, 7));
        assert_eq!(plan.cells[0].all_entries(), 10);
    }

    #[test]
    fn small_sizes_have_many_rounds_and_large_ones_are_left_out() {
        let text = "schema: tollway.fabric-scenario/1\nname: x\npurpose: x\ncases:\n  \
            - {name: watch, measure: watch, entries: [1, 30, 1000, 5000]}\n  \
            - {name: restart, measure: restart, entries: [9]}\nlengths:\n  \
            quick: LENGTH\n  usual: LENGTH\n  full: LENGTH\n";
        let length = "{blocks: 2, most_entries: 1000, block_entries: 300, most_rounds: 50}";
        let text = text.replace("LENGTH", length);
        let scenario: FabricScenario = serde_saphyr::from_str(&text).unwrap();
        let plan = FabricPlan::new(&scenario, scenario.lengths.quick.value);
        let rows: Vec<_> = plan.cells.iter().map(|cell| (&*cell.id, cell.rounds)).collect();
        let expected = [("watch/1", 50), ("watch/30", 10), ("watch/1000", 1), ("restart/9", 3)];
        assert_eq!(rows, expected);
        assert_eq!(plan.cells[3].all_entries(), 9);
        assert_eq!(plan.cells[1].all_entries(), 300);
        let text = plan.to_string();
        assert!(text.starts_with("4 rows in 2 blocks, about "), "{text}");
        assert!(text.contains("watch/1: 50 times in each block\n"), "{text}");
        assert!(text.contains("watch/1000: once in each block\n"), "{text}");
    }
}
