//! A plan as it is shown before it is run.

use std::fmt;

use tollway_record::record::Layout;
use tollway_record::throughput::Direction;

use super::{CellArrival, Plan, groups};
use crate::experiment::minutes;
use crate::scenario::Spacing;

impl fmt::Display for Plan {
    /// A few lines for the screen.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, blocks) = (self.runs.len(), self.blocks);
        writeln!(f, "{runs} runs in {blocks} blocks, about {} in all", minutes(self.expected))?;
        let width = self.cells.iter().map(|cell| cell.case.len()).max().unwrap_or(0);
        for group in groups(&self.cells) {
            let cells = &self.cells[group];
            let Some(cell) = cells.first() else { continue };
            let names: Vec<&str> =
                cells.iter().map(|c| self.subjects[c.subject].as_str()).collect();
            write!(f, "  {:<13}  {:<width$}  {}", cell.topology, cell.case, cell.arrival)?;
            if cell.layout == Layout::Pinned {
                f.write_str(", pinned")?;
            }
            let connections = match &cell.arrival {
                CellArrival::Open { rate_rps, .. } => cell.connections_at(Some(*rate_rps)),
                CellArrival::ShareOfSlowest { .. }
                | CellArrival::Closed
                | CellArrival::Flow(_)
                | CellArrival::Search(_) => cell.connections,
                CellArrival::Idle => 0,
            };
            if let Some(messages) = cell.messages {
                write!(f, ", {} in {} streams", messages.kind.as_str(), cell.streams.unwrap_or(1))?;
            }
            if let Some(handshakes) = cell.handshakes {
                write!(f, ", a {} handshake for each", handshakes.as_str())?;
            }
            if connections > 0 {
                let plural = if connections == 1 { "" } else { "s" };
                write!(f, " on {connections} connection{plural}")?;
            }
            let (each, names) = (cell.duration().as_secs_f64(), names.join(", "));
            if matches!(cell.arrival, CellArrival::Search(_)) {
                writeln!(f, ", once, about {each:.0} s each: {names}")?;
            } else {
                writeln!(f, ", {each:.2} s each: {names}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for CellArrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { rate_rps, spacing: Spacing::Uniform } => {
                write!(f, "{rate_rps} requests/s")
            }
            Self::Open { rate_rps, spacing: Spacing::Poisson } => {
                write!(f, "{rate_rps} requests/s at random")
            }
            Self::Open { rate_rps, spacing: Spacing::Bursts(size) } => {
                write!(f, "{rate_rps} requests/s, {size} at once")
            }
            Self::ShareOfSlowest { case, share, .. } => {
                write!(f, "{:.0} % of the slowest in {case}", share * 100.0)
            }
            Self::Closed => f.write_str("as fast as answers come"),
            Self::Search(slo) => write!(f, "the highest rate with {}", slo.join(", ")),
            Self::Flow(Direction::Send) => f.write_str("as many bytes as go to the app"),
            Self::Flow(Direction::Receive) => f.write_str("as many bytes as come from the app"),
            Self::Flow(Direction::Both) => f.write_str("as many bytes as go both ways"),
            Self::Idle => f.write_str("no calls"),
        }
    }
}
