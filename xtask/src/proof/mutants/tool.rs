//! cargo-mutants: which mutants a file has, and what became of those that were run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cache::{CargoTool, remove_folder};
use crate::process;

pub(super) const MUTANTS: CargoTool =
    CargoTool { package: "cargo-mutants", version: "27.1.0", options: &[] };

/// How long one command for a mutant may take. A change can make a loop endless.
const TIMEOUT: &str = "90";
/// What a process may address, in KiB: an endless loop may fill memory.
const MEMORY_KIB: u64 = 12 << 20;

/// What became of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Caught,
    Missed,
    /// The tests did not end, which is a failure too.
    TimedOut,
    /// The compiler refuses it.
    Unviable,
}

/// A change to one place of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mutant {
    /// The name that cargo-mutants prints and selects it by.
    pub name: String,
    pub line: usize,
    pub column: usize,
    /// `replace < with <= in Pool::take`.
    pub change: String,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    span: Span,
}

#[derive(Deserialize)]
struct Span {
    start: Position,
}

#[derive(Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

impl From<Listed> for Mutant {
    fn from(Listed { name, span: Span { start: Position { line, column } } }: Listed) -> Self {
        // `FILE:LINE:COLUMN: CHANGE`.
        let change = name.split_once(&format!(":{line}:{column}: ")).map_or("", |(_, text)| text);
        Self { change: change.to_owned(), name, line, column }
    }
}

/// The copy of the sources in which mutants are made, and where they are built.
pub(super) struct Bench {
    pub tree: PathBuf,
    /// For what cargo builds.
    pub build: PathBuf,
    /// For what cargo-mutants writes.
    pub out: PathBuf,
    program: PathBuf,
}

impl Bench {
    /// A folder with all of it.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let of = |name: &str| folder.join(name);
        let program = MUTANTS.program()?;
        Ok(Self { tree: of("tree"), build: of("build"), out: of("out"), program })
    }

    #[cfg(test)]
    pub(super) fn of_parts(folder: &Path, program: &str) -> Self {
        let of = |name: &str| folder.join(name);
        Self { tree: of("tree"), build: of("build"), out: of("out"), program: program.into() }
    }

    /// All mutants of a file.
    pub(super) fn mutants(&self, package: &str, file: &str) -> Result<Vec<Mutant>> {
        let mut list = Command::new(&self.program);
        list.args(["mutants", "--no-config", "--list", "--json", "--package", package]);
        let printed = process::output(list.args(["--file", file]).current_dir(&self.tree))?;
        let listed: Vec<Listed> = serde_json::from_str(&printed)
            .with_context(|| format!("cargo-mutants printed no list of {file}"))?;
        Ok(listed.into_iter().map(Mutant::from).collect())
    }

    /// Whether the tests of a package's library pass as they are.
    pub(super) fn tests_pass(&self, package: &str) -> Result<()> {
        let mut tests = process::cargo();
        tests.args(["test", "--quiet", "--lib", "--package", package]);
        process::run(self.in_tree(&mut tests))
            .with_context(|| format!("the tests of {package} fail without any mutant"))
    }

    /// Runs these mutants of a file with the tests of its library whose names have `filter`.
    pub(super) fn run(
        &self,
        (package, file): (&str, &str),
        mutants: &[&Mutant],
        filter: &str,
    ) -> Result<Vec<(Mutant, Outcome)>> {
        remove_folder(&self.out)?;
        std::fs::create_dir_all(&self.out)?;
        let mut run = Command::new("sh");
        run.args(["-c", &format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"")]);
        run.arg(&self.program).args(["mutants", "--no-config", "--in-place", "--baseline=skip"]);
        run.args(["--timeout", TIMEOUT, "--colors", "never", "--cargo-arg=--lib"]);
        run.args(["--package", package, "--file", file, "--output"]).arg(&self.out);
        for mutant in mutants {
            run.arg("--re").arg(format!("^{}$", literally(&mutant.name)));
        }
        if !filter.is_empty() {
            run.args(["--", filter]);
        }
        let done = self.in_tree(&mut run).output().context("could not start cargo-mutants")?;
        // 2: some were missed; 3: some timed out.
        if !done.status.code().is_some_and(|code| matches!(code, 0 | 2 | 3)) {
            let [out, err] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
            bail!("cargo-mutants failed: {}\n{out}{err}", done.status);
        }
        let at = self.out.join("mutants.out/outcomes.json");
        let text = std::fs::read_to_string(&at).with_context(|| format!("no {}", at.display()))?;
        outcomes(&text)
    }

    fn in_tree<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.build)
            .env("CARGO_INCREMENTAL", "1")
            // Lines for a debugger take time to build, and no mutant is debugged.
            .env("CARGO_PROFILE_DEV_DEBUG", "none")
    }
}

/// `text` as a regular expression that matches it alone.
fn literally(text: &str) -> String {
    let has_meaning = |c: char| "\\.+*?()|[]{}^$#&-~".contains(c);
    text.chars().flat_map(|c| has_meaning(c).then_some('\\').into_iter().chain([c])).collect()
}

#[derive(Deserialize)]
struct Report {
    outcomes: Vec<Reported>,
}

#[derive(Deserialize)]
struct Reported {
    scenario: Scenario,
    summary: String,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant(Listed),
}

/// What cargo-mutants reports in its file.
fn outcomes(text: &str) -> Result<Vec<(Mutant, Outcome)>> {
    let report: Report = serde_json::from_str(text).context("cargo-mutants wrote no outcomes")?;
    let mut found = Vec::new();
    for Reported { scenario, summary } in report.outcomes {
        let Scenario::Mutant(listed) = scenario else { continue };
        let outcome = match summary.as_str() {
            "CaughtMutant" => Outcome::Caught,
            "MissedMutant" => Outcome::Missed,
            "Timeout" => Outcome::TimedOut,
            "Unviable" => Outcome::Unviable,
            other => bail!("cargo-mutants reports `{other}` of {}", listed.name),
        };
        found.push((Mutant::from(listed), outcome));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_themselves_alone() {
        // `\<` and `\>` would be the edges of a word.
        assert_eq!(literally("a.rs:1:2: replace + with <"), "a\\.rs:1:2: replace \\+ with <");
    }

    #[test]
    fn outcomes_are_read_from_the_file_of_cargo_mutants() {
        let of = |summary: &str| {
            let name = "crates/x/src/a.rs:7:3: replace && with || in A<T>::b";
            let mutant = serde_json::json!({ "name": name, "file": "crates/x/src/a.rs",
                "span": { "start": { "line": 7, "column": 3 }, "end": { "line": 7, "column": 5 } } });
            let outcomes = serde_json::json!({ "outcomes": [
                { "scenario": "Baseline", "summary": "Success" },
                { "scenario": { "Mutant": mutant }, "summary": summary },
            ] });
            outcomes.to_string()
        };
        let found = outcomes(&of("MissedMutant")).unwrap();
        let [(mutant, Outcome::Missed)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((mutant.line, mutant.column), (7, 3));
        assert_eq!(mutant.change, "replace && with || in A<T>::b");
        for (summary, outcome) in [
            ("CaughtMutant", Outcome::Caught),
            ("Timeout", Outcome::TimedOut),
            ("Unviable", Outcome::Unviable),
        ] {
            assert_eq!(outcomes(&of(summary)).unwrap()[0].1, outcome);
        }
        let error = outcomes(&of("Failure")).unwrap_err().to_string();
        assert!(error.contains("`Failure`"), "{error}");
    }
}
