//! The data plane beside a former build of it: `cargo xtask proof speed --before PROGRAM`.
//!
//! Each round starts new sidecars of both and runs them in turns: one program takes a tenth more or less
//! from one start to the next. The round is what is repeated, so each gives one pair for a case.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::json;
use tollway_record::Record;
use tollway_record::interval::interval;

use super::compare::name_of;
use super::parts::{program, read};
use super::questions::Figure;
use crate::process;
use crate::proof::{Extent, facts, write};
use crate::workspace::Workspace;

const SCENARIO: &str = "xtask/src/proof/speed/versions.yaml";
const RECORD: &str = "docs/records/versions.json";
const CASES: [&str; 3] = ["http-max", "http-1000", "grpc-max"];
const ROUNDS: usize = 24;
const QUICK_ROUNDS: usize = 2;
/// Most of the former CPU per request that the present may take, and the end of its interval.
const MOST: f64 = 1.02;
const MOST_OF_INTERVAL: f64 = 1.04;
const SEED: u64 = 1;

/// What a case came to.
#[derive(Serialize)]
struct Compared {
    case: &'static str,
    /// CPU per request of the sidecars, former and present, by round, in microseconds.
    rounds: Vec<(f64, f64)>,
    ratio: f64,
    ratio_ci95: Option<[f64; 2]>,
}

pub(super) fn run(workspace: &Workspace, former: &Path, extent: Extent) -> Result<()> {
    let former = former.canonicalize().with_context(|| format!("no program {former:?}"))?;
    let (target, root) = (&workspace.target, &workspace.root);
    let made = target.join("speed/versions.json");
    std::fs::create_dir_all(made.with_file_name(""))?;
    let rounds = if extent == Extent::Quick { QUICK_ROUNDS } else { ROUNDS };
    let mut records = Vec::new();
    for round in 1..=rounds {
        println!("\n=== round {round} of {rounds}");
        let mut lab = Command::new(program(target));
        lab.current_dir(root).args(["lab", "run", SCENARIO, "--json"]).arg(&made);
        if extent == Extent::Quick {
            lab.arg("--quick");
        }
        process::run(lab.env("TOLLWAY_FORMER_PROGRAM", &former))?;
        records.push(read(&made)?);
    }
    let compared = CASES.iter().map(|case| compare(&records, case)).collect::<Result<Vec<_>>>()?;
    println!("\n{}", table(&compared));
    if extent == Extent::Quick {
        println!("quick: too little to conclude from, so nothing was written");
        return Ok(());
    }
    let name = former.file_name().map(|name| name.to_string_lossy().into_owned());
    let kept = json!({ "run": facts(root, "release")?, "former": name, "compared": compared });
    write(&root.join(RECORD), &format!("{}\n", serde_json::to_string_pretty(&kept)?))?;
    let missed: Vec<_> = compared.iter().filter(|of| !of.holds()).map(|of| of.case).collect();
    if !missed.is_empty() {
        bail!(
            "more CPU than the former program, or not certainly as little: {}",
            missed.join(", ")
        );
    }
    Ok(())
}

fn compare(records: &[Record], case: &'static str) -> Result<Compared> {
    let of = |record: &Record, subject: &str| {
        let row =
            record.rows.iter().find(|row| row.conditions.case == case && name_of(row) == subject);
        let blocks = row.map(|row| &row.blocks[..]).unwrap_or_default();
        let cpu: Vec<f64> = blocks.iter().filter_map(|of| Figure::Cpu.of(of, None)).collect();
        ensure!(!cpu.is_empty(), "{case}: nothing was measured of {subject}");
        Ok(cpu.iter().sum::<f64>() / cpu.len() as f64)
    };
    let pair = |record| Ok((of(record, "tollway:former")?, of(record, "tollway")?));
    let rounds = records.iter().map(pair).collect::<Result<Vec<(f64, f64)>>>()?;
    let found = interval(rounds.len(), SEED, |weights| {
        let sum = |value: fn(&(f64, f64)) -> f64| {
            let weighed = rounds.iter().zip(weights);
            weighed.map(|(round, weight)| value(round) * f64::from(*weight)).sum::<f64>()
        };
        sum(|round| round.1) / sum(|round| round.0)
    });
    Ok(Compared { case, rounds, ratio: found.estimate, ratio_ci95: found.ci95 })
}

impl Compared {
    fn holds(&self) -> bool {
        let is_certain = self.ratio_ci95.is_some_and(|[_, end]| end <= MOST_OF_INTERVAL);
        self.ratio <= MOST && is_certain
    }
}

fn table(compared: &[Compared]) -> String {
    let mut lines = vec![
        format!(
            "CPU of the sidecars per request; at most {MOST}, its interval at most {MOST_OF_INTERVAL}"
        ),
        String::new(),
        "| work | former | now | ratio (95 %) | holds |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    for of in compared {
        let mean = |value: fn(&(f64, f64)) -> f64| {
            of.rounds.iter().map(value).sum::<f64>() / of.rounds.len() as f64
        };
        let [low, high] = of.ratio_ci95.unwrap_or([f64::NAN; 2]);
        lines.push(format!(
            "| {} | {:.1} µs | {:.1} µs | {:.3} ({low:.3} to {high:.3}) | {} |",
            of.case,
            mean(|round| round.0),
            mean(|round| round.1),
            of.ratio,
            if of.holds() { "yes" } else { "no" },
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(rounds: &[(f64, f64)], ratio: f64, end: f64) -> Compared {
        Compared { case: "http-max", rounds: rounds.to_vec(), ratio, ratio_ci95: Some([0.9, end]) }
    }

    #[test]
    fn a_ratio_holds_with_its_whole_interval() {
        for (ratio, end, holds) in
            [(1.0, 1.03, true), (1.02, 1.04, true), (1.021, 1.03, false), (0.99, 1.05, false)]
        {
            assert_eq!(compared(&[], ratio, end).holds(), holds, "{ratio} {end}");
        }
    }

    #[test]
    fn the_table_has_means_and_the_ratio() {
        let table = table(&[compared(&[(20.0, 19.0), (22.0, 21.0)], 0.952, 1.01)]);
        let row = "| http-max | 21.0 µs | 20.0 µs | 0.952 (0.900 to 1.010) | yes |";
        assert!(table.contains(row), "{table}");
    }
}
