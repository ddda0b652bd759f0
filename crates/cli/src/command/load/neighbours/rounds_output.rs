//! The output of a run of rounds: figures by stage, or JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_load::peak_resident_bytes;
use tollway_model::Group;
use tollway_record::neighbours::{Doing, NEIGHBOURS_SCHEMA, NeighbourRun, Round, Stage, median};

#[derive(Args)]
pub(super) struct RoundsOutputArgs {
    /// Write the result as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// When a run begins, for its result.
pub(super) fn started_at() -> Result<String> {
    OffsetDateTime::now_utc().format(&Rfc3339).context("the system's clock has no valid year")
}

impl RoundsOutputArgs {
    pub(super) fn write_result(
        &self,
        started_at: String,
        doing: Doing,
        group: &Group,
        entries: u64,
        rounds: Vec<Round>,
    ) -> Result<()> {
        let run = NeighbourRun {
            schema: NEIGHBOURS_SCHEMA.to_owned(),
            started_at,
            doing,
            group: group.to_string(),
            entries,
            rounds,
            peak_rss_bytes: peak_resident_bytes(),
            command_line: std::env::args().collect(),
        };
        match &self.json {
            Some(path) if path == Path::new("-") => println!("{}", run.to_json()),
            Some(path) => {
                std::fs::write(path, run.to_json())
                    .with_context(|| format!("cannot write {}", path.display()))?;
                print!("{}", text(&run));
            }
            None => print!("{}", text(&run)),
        }
        Ok(())
    }
}

/// Medians of the rounds, and for each neighbour.
fn text(run: &NeighbourRun) -> String {
    let rounds = run.rounds.len();
    let what = match run.doing {
        Doing::List => "listed into a table of the kernel",
        Doing::Write => "written",
    };
    let mut text =
        format!("group {}: {} neighbours {what}, {rounds} rounds\n", run.group, run.entries);
    let each = |us: f64| us / run.entries.max(1) as f64;
    for stage in Stage::ALL {
        let of: Vec<f64> =
            run.rounds.iter().filter_map(|round| round.stages_us.get(&stage).copied()).collect();
        let Some(middle) = median(&of) else { continue };
        let (least, most) =
            of.iter().fold((f64::INFINITY, 0.0_f64), |(lo, hi), us| (lo.min(*us), hi.max(*us)));
        let _ = writeln!(
            text,
            "  {:<10} median {:.3} ms ({:.3} to {:.3}), {:.3} us each",
            stage.as_str(),
            middle / 1e3,
            least / 1e3,
            most / 1e3,
            each(middle)
        );
    }
    let cpu: Vec<f64> = run.rounds.iter().map(|round| round.cpu_us).collect();
    if let Some(middle) = median(&cpu) {
        let megabytes = run.peak_rss_bytes as f64 / 1e6;
        let _ = writeln!(
            text,
            "  here       {:.3} us of processor each, {megabytes:.1} MB of memory",
            each(middle)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_reported_by_their_medians() {
        let round = |total_us: f64| Round {
            stages_us: [(Stage::Received, 500.0), (Stage::Total, total_us)].into(),
            cpu_us: 300.0,
            ..Round::default()
        };
        let run = NeighbourRun {
            schema: NEIGHBOURS_SCHEMA.to_owned(),
            started_at: String::new(),
            doing: Doing::List,
            group: "racks".to_owned(),
            entries: 1000,
            rounds: vec![round(700.0), round(900.0), round(800.0)],
            peak_rss_bytes: 12_000_000,
            command_line: Vec::new(),
        };
        let expected = "group racks: 1000 neighbours listed into a table of the kernel, 3 rounds
  received   median 0.500 ms (0.500 to 0.500), 0.500 us each
  total      median 0.800 ms (0.700 to 0.900), 0.800 us each
  here       0.300 us of processor each, 12.0 MB of memory
";
        assert_eq!(text(&run), expected);
    }
}
