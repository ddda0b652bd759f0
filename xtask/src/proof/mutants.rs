//! `cargo xtask proof mutants`: every mutant of the code that decides who may do what, and the page
//! of what the tests made of them. The prose of the page is `mutants.md` beside this file.
//!
//! Mutants are made in a copy of the sources, which is built in a folder of its own. What was found
//! is stored there after every few mutants, so a run that is broken off goes on from there.

mod excuses;
mod scope;
mod tool;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::excuses::{Excuse, excuses};
use self::scope::{GROUPS, Group};
use self::tool::{Bench, MUTANTS, Mutant, Outcome};
use super::{Extent, facts, facts_text, names_in, publish};
use crate::sources;
use crate::workspace::Workspace;

const PAGE: &str = "docs/mutants.md";
const RECORD: &str = "docs/records/mutants.json";
const TEMPLATE: &str = include_str!("mutants.md");

/// Names the files that are run, by parts of their paths; without it all are.
const ONLY: &str = "TOLLWAY_MUTANTS_FILES";
/// Set: what was caught by fewer tests of the same code is not run again.
const GROWN: &str = "TOLLWAY_MUTANTS_TESTS_ADDED";
/// What the quick form runs.
const QUICK: &str = "model/src/host_names.rs";
/// Mutants after which what was found is stored.
const BATCH: usize = 12;

/// A row of the record: a file, none of whose mutants survives without a reason.
#[derive(Serialize, Deserialize)]
struct Row {
    file: String,
    /// Of the file and its tests, without comments.
    code: String,
    caught: usize,
    timed_out: usize,
    unviable: usize,
    excused: Vec<Excused>,
}

#[derive(Serialize, Deserialize)]
struct Excused {
    change: String,
    reason: String,
}

impl Row {
    /// Whether code, tests and reasons are what they were.
    fn is_true(&self, root: &Path) -> bool {
        let text = std::fs::read_to_string(root.join("crates").join(&self.file));
        let reasons = text.ok().and_then(|text| excuses(&text).ok()).unwrap_or_default();
        let reasons: HashSet<&str> = reasons.iter().map(|excuse| excuse.reason.as_str()).collect();
        let recorded = self.excused.iter().map(|excused| excused.reason.as_str()).collect();
        reasons == recorded && code(root, &self.file).is_ok_and(|code| code.of_all == self.code)
    }
}

pub(super) fn run(workspace: &Workspace, extent: Extent) -> Result<()> {
    let root = &workspace.root;
    let files: Vec<&str> = match (extent, names_in(ONLY)) {
        (Extent::Quick, _) => vec![QUICK],
        (Extent::Whole, Some(names)) => {
            let is_named = |file: &&str| names.iter().any(|name| file.contains(name.as_str()));
            files().filter(is_named).collect()
        }
        (Extent::Whole, None) => files().collect(),
    };
    ensure!(!files.is_empty(), "no file of xtask/src/proof/mutants/scope.rs is named in {ONLY}");
    let facts = facts(root, "development")?;
    let folder = workspace.target.join("mutants");
    let bench = Bench::new(&folder)?;
    mirror(root, &bench.tree)?;
    let mut rows = recorded(root)?;
    rows.retain(|_, row| row.is_true(root));
    let mut tested = HashSet::new();
    let mut left = Vec::new();
    for file in files {
        if extent == Extent::Whole && rows.contains_key(file) {
            println!("{file}: as the record has it");
            continue;
        }
        let examined = Examined { tree: &bench.tree, bench: &bench, file };
        let package = examined.package()?;
        if tested.insert(package.clone()) {
            bench.tests_pass(&package)?;
        }
        let found = examined.run(&package, &folder.join("found").join(file))?;
        let (row, unexcused) = examined.judge(&found)?;
        println!("{file}: {}", words(&row, unexcused.len()));
        if unexcused.is_empty() && extent == Extent::Whole {
            rows.insert(file.to_owned(), row);
            let record = json!({ "run": facts, "files": rows.values().collect::<Vec<_>>() });
            publish(root, (RECORD, &record), (PAGE, &page(&rows, &facts)))?;
        }
        left.extend(unexcused);
    }
    ensure!(left.is_empty(), "write a test, or a reason:\n{}", left.join("\n"));
    Ok(())
}

/// All files of all groups.
fn files() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|group| group.files).copied()
}

/// What earlier runs have found, by file.
fn recorded(root: &Path) -> Result<BTreeMap<String, Row>> {
    let Ok(text) = std::fs::read_to_string(root.join(RECORD)) else { return Ok(BTreeMap::new()) };
    let mut record: Value = serde_json::from_str(&text)?;
    let rows: Vec<Row> = serde_json::from_value(record["files"].take())
        .with_context(|| format!("{RECORD} is not what this command writes"))?;
    Ok(rows.into_iter().map(|row| (row.file.clone(), row)).collect())
}

/// Makes `tree` a copy of the repository's files. What is the same there stays as it is, so that
/// cargo builds only what has changed.
fn mirror(root: &Path, tree: &Path) -> Result<()> {
    let mut wanted = HashSet::new();
    for path in sources::paths(root)? {
        let at = tree.join(path.strip_prefix(root)?);
        let bytes = std::fs::read(&path)?;
        if !std::fs::read(&at).is_ok_and(|old| old == bytes) {
            std::fs::create_dir_all(at.parent().context("a file lies in a folder")?)?;
            std::fs::copy(&path, &at).with_context(|| format!("could not copy {path:?}"))?;
            // The time of a change, for cargo, is that of the copy.
            std::fs::File::options()
                .write(true)
                .open(&at)?
                .set_modified(std::time::SystemTime::now())?;
        }
        wanted.insert(at);
    }
    remove_others(tree, &wanted)
}

fn remove_others(folder: &Path, wanted: &HashSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Names for states of a file, of twelve digits.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Code {
    /// Of the code alone.
    of_code: String,
    /// Of the code and the tests beside it.
    of_all: String,
}

fn code(root: &Path, file: &str) -> Result<Code> {
    let path = root.join("crates").join(file);
    let text = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))
    };
    let whole = text(&path)?;
    let module =
        if path.ends_with("mod.rs") { path.with_file_name("") } else { path.with_extension("") };
    let mut tests = vec![module.join("tests.rs")];
    if let Ok(entries) = std::fs::read_dir(module.join("tests")) {
        tests.extend(entries.flatten().map(|entry| entry.path()));
    }
    tests.sort();
    let mut all = whole.clone();
    for path in tests.iter().filter(|path| path.is_file()) {
        all.push_str(&text(path)?);
    }
    let own = whole.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    Ok(Code { of_code: digits(own), of_all: digits(&all) })
}

/// What of a text is no comment, as twelve digits, and by which program it is judged.
fn digits(text: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(MUTANTS.version);
    for line in text.lines().filter(|line| !is_comment(line)) {
        hash.update(line);
        hash.update("\n");
    }
    hash.finalize().iter().take(6).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// What was found of a file so far, as it is stored.
#[derive(Serialize, Deserialize)]
struct Found {
    code: Code,
    outcomes: BTreeMap<String, Outcome>,
}

/// A file whose mutants are run.
struct Examined<'a> {
    /// Not the repository, which may change meanwhile.
    tree: &'a Path,
    bench: &'a Bench,
    file: &'a str,
}

/// A mutant with what became of it.
type Judged = Vec<(Mutant, Outcome)>;

impl Examined<'_> {
    fn package(&self) -> Result<String> {
        let folder = self.file.split('/').next().context("a path has parts")?;
        Ok(format!("tollway-{folder}"))
    }

    fn path(&self) -> String {
        format!("crates/{}", self.file)
    }

    fn text(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.tree.join(self.path()))?)
    }

    /// Runs what was not run of this code, and stores what is found at `at`.
    fn run(&self, package: &str, at: &Path) -> Result<Judged> {
        let (text, code) = (self.text()?, code(self.tree, self.file)?);
        let keys = |mutant: &Mutant| key(&text, mutant);
        let mutants = self.bench.mutants(package, &self.path())?;
        let mut found = Found { outcomes: before(at, &code), code };
        let unknown: Vec<&Mutant> =
            mutants.iter().filter(|mutant| !found.outcomes.contains_key(&keys(mutant))).collect();
        let filter =
            if has_tests(self.tree, self.file, &text) { module(self.file) } else { String::new() };
        for batch in unknown.chunks(BATCH) {
            for (mutant, outcome) in self.batch(package, batch, &filter)? {
                found.outcomes.insert(keys(&mutant), outcome);
            }
            super::write(at, &serde_json::to_string(&found)?)?;
        }
        let outcome = |mutant: Mutant| {
            let outcome = found.outcomes.get(&keys(&mutant)).copied();
            let outcome = outcome.with_context(|| format!("`{}` was not run", mutant.name))?;
            Ok((mutant, outcome))
        };
        mutants.into_iter().map(outcome).collect()
    }

    /// First with the tests beside the code; what they miss with all of the library, too.
    fn batch(&self, package: &str, mutants: &[&Mutant], filter: &str) -> Result<Judged> {
        let path = self.path();
        let of = (package, path.as_str());
        let mut found = self.bench.run(of, mutants, filter)?;
        let is_missed = |(_, outcome): &(Mutant, Outcome)| *outcome == Outcome::Missed;
        if filter.is_empty() || !found.iter().any(is_missed) {
            return Ok(found);
        }
        let missed: Judged = found.extract_if(.., |each| is_missed(each)).collect();
        let missed: Vec<&Mutant> = missed.iter().map(|(mutant, _)| mutant).collect();
        found.extend(self.bench.run(of, &missed, "")?);
        Ok(found)
    }

    /// The row of the record, and what has to have a test or a reason.
    fn judge(&self, found: &Judged) -> Result<(Row, Vec<String>)> {
        let text = self.text()?;
        let path = self.path();
        let excuses = excuses(&text).map_err(|line| {
            anyhow::anyhow!("{path}:{line}: `// Mutant `CHANGE`: REASON` is meant")
        })?;
        let missed = found.iter().filter(|(_, outcome)| *outcome == Outcome::Missed);
        let missed: Vec<&Mutant> = missed.map(|(mutant, _)| mutant).collect();
        let covers = |excuse: &Excuse, mutant: &Mutant| excuse.covers(mutant.line, &mutant.change);
        let mut left = Vec::new();
        let mut excused = Vec::new();
        for mutant in &missed {
            match excuses.iter().find(|excuse| covers(excuse, mutant)) {
                Some(excuse) => excused
                    .push(Excused { change: mutant.change.clone(), reason: excuse.reason.clone() }),
                None => left.push(mutant.name.clone()),
            }
        }
        let is_idle = |excuse: &&Excuse| !missed.iter().any(|mutant| covers(excuse, mutant));
        left.extend(excuses.iter().filter(is_idle).map(|Excuse { line, change, .. }| {
            format!("{path}:{line}: no such mutant survives, so it needs no reason: {change}")
        }));
        let count = |wanted| found.iter().filter(|(_, outcome)| *outcome == wanted).count();
        let row = Row {
            file: self.file.to_owned(),
            code: code(self.tree, self.file)?.of_all,
            caught: count(Outcome::Caught),
            timed_out: count(Outcome::TimedOut),
            unviable: count(Outcome::Unviable),
            excused,
        };
        Ok((row, left))
    }
}

/// What names a mutant wherever comments and tests around its code move it.
fn key(text: &str, mutant: &Mutant) -> String {
    let code = text.lines().take(mutant.line).filter(|line| !is_comment(line)).count();
    format!("{code}:{}: {}", mutant.column, mutant.change)
}

/// What was found of this code and these tests before; where [`GROWN`] is set, also what fewer tests
/// did not miss.
fn before(at: &Path, code: &Code) -> BTreeMap<String, Outcome> {
    let stored = std::fs::read_to_string(at).ok();
    let stored = stored.and_then(|text| serde_json::from_str::<Found>(&text).ok());
    still_true(stored, code, std::env::var_os(GROWN).is_some())
}

fn still_true(stored: Option<Found>, code: &Code, has_grown: bool) -> BTreeMap<String, Outcome> {
    let Some(Found { code: before, mut outcomes }) = stored else { return BTreeMap::new() };
    if before == *code {
        return outcomes;
    }
    if !has_grown || before.of_code != code.of_code {
        return BTreeMap::new();
    }
    outcomes.retain(|_, outcome| *outcome != Outcome::Missed);
    outcomes
}

/// What the names of a file's tests begin with: `policy::access::`.
fn module(file: &str) -> String {
    let below = file.split_once("/src/").map_or(file, |(_, below)| below);
    let path = below.trim_end_matches(".rs").trim_end_matches("/mod");
    format!("{}::", path.replace('/', "::"))
}

fn has_tests(root: &Path, file: &str, text: &str) -> bool {
    let module = root.join("crates").join(file.trim_end_matches(".rs").trim_end_matches("/mod"));
    text.contains("#[cfg(test)]") || module.join("tests.rs").is_file()
}

/// `12 caught, 1 timed out, …`.
fn words(row: &Row, left: usize) -> String {
    let Row { caught, timed_out, unviable, excused, .. } = row;
    let excused = excused.len();
    format!(
        "{caught} caught, {timed_out} timed out, {unviable} not compiled, {excused} excused, \
         {left} to be mended"
    )
}

fn page(rows: &BTreeMap<String, Row>, facts: &Value) -> String {
    let (mut tables, mut reasons) = (String::new(), String::new());
    for Group { decides, files } in GROUPS {
        writeln!(tables, "| **{decides}** | | | | |").expect(WRITES);
        for file in *files {
            let row = match rows.get(*file) {
                Some(Row { caught, timed_out, unviable, excused, .. }) => {
                    format!("| {file} | {caught} | {timed_out} | {unviable} | {} |", excused.len())
                }
                None => format!("| {file} | not run since it changed | | | |"),
            };
            writeln!(tables, "{row}").expect(WRITES);
        }
    }
    for row in rows.values() {
        for Excused { change, reason } in &row.excused {
            writeln!(reasons, "- {}, `{change}`: {reason}", row.file).expect(WRITES);
        }
    }
    if reasons.is_empty() {
        reasons.push_str("None.");
    }
    TEMPLATE
        .replace("{{table}}", tables.trim_end())
        .replace("{{reasons}}", reasons.trim_end())
        .replace("{{facts}}", &facts_text(facts))
}

const WRITES: &str = "writing to a string cannot fail";

#[cfg(test)]
mod tests;
