//! `cargo xtask proof apps`: apps of others, as they are. The Python SDK's own integration tests run
//! with Dapr's own command line and our program in daprd's place, and Dapr's quickstarts with
//! `tollway run`. Stores the record and writes the page that shows it. The prose of the page is
//! `apps.md` beside this file.

mod python;
mod quickstarts;
mod sdk;
mod sources;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::quickstarts::QUICKSTARTS;
use self::sources::{PYTHON_SDK, QUICKSTART_FILES};
use super::{facts, facts_text, names_in, publish, word};
use crate::process;
use crate::workspace::Workspace;

const PAGE: &str = "docs/dapr-apps.md";
const RECORD: &str = "docs/records/dapr-apps.json";
const TEMPLATE: &str = include_str!("apps.md");
/// Starts of names: only these run, and nothing is recorded.
const ONLY: &str = "TOLLWAY_APPS";
/// The name of the SDK's tests among them.
const SDK: &str = "sdk";

pub(super) fn run(workspace: &Workspace) -> Result<()> {
    let root = &workspace.root;
    if !rustix::process::geteuid().is_root() {
        bail!("everything runs in namespaces of its own, which takes root; run this as root");
    }
    let only = names_in(ONLY);
    let is_chosen = |name: &str| {
        only.as_ref().is_none_or(|only| only.iter().any(|start| name.starts_with(start)))
    };
    crate::tools::install_for_apps(workspace);
    process::run(process::cargo().args(["build", "-p", "tollway"]).current_dir(root))?;
    let site = Site::make(root, &workspace.tools())?;
    let mut failed = Vec::new();
    let mut tests = Vec::new();
    if is_chosen(SDK) {
        let sdk = PYTHON_SDK.copy(&site.work)?;
        tests = sdk::run(&site, &sdk)?;
        failed.extend(tests.iter().filter(|test| !test.passed).map(|test| test.name.clone()));
    }
    let mut ran = Vec::new();
    for quickstart in QUICKSTARTS.iter().filter(|quickstart| is_chosen(quickstart.name)) {
        let folder = quickstart.source.copy(&site.work)?;
        let passed = quickstart.run(&site, &folder)?;
        println!("{:<8} {}", if passed { "passes" } else { "FAILS" }, quickstart.name);
        if !passed {
            failed.push(quickstart.name.to_owned());
        }
        ran.push(json!({
            "name": quickstart.name, "language": quickstart.language, "passes": passed,
        }));
    }
    println!("logs are in {}", site.logs.display());
    if !failed.is_empty() {
        bail!("these fail: {}", failed.join(", "));
    }
    if only.is_none() {
        let tests = tests.iter().map(|test| json!({ "name": test.name, "passes": test.passed }));
        let record = json!({
            "run": facts(root, "debug")?,
            "python_sdk": { "commit": PYTHON_SDK.commit, "tests": tests.collect::<Vec<_>>() },
            "quickstarts": { "commit": QUICKSTART_FILES.commit, "runs": ran },
        });
        publish(root, (RECORD, &record), (PAGE, &page(&record)))?;
    }
    Ok(())
}

/// Where apps run.
struct Site {
    /// Copies of what others wrote.
    work: PathBuf,
    logs: PathBuf,
    /// A user's home, as `dapr init --slim` leaves it, with our program as daprd.
    home: PathBuf,
    /// Folders with `tollway` and `dapr`, and those of the search path.
    programs: Vec<PathBuf>,
}

impl Site {
    fn make(root: &Path, tools: &Path) -> Result<Self> {
        let all = root.join("target/dapr-apps");
        crate::cache::remove_folder(&all)?;
        let [work, logs, home] = ["work", "logs", "home"].map(|name| all.join(name));
        for folder in [&work, &logs, &home.join(".dapr/components")] {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let configuration = "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata: {name: daprConfig}\nspec: {}\n";
        std::fs::write(home.join(".dapr/config.yaml"), configuration)?;
        let built = root.join("target/debug");
        crate::cache::link(&built.join("tollway"), &home.join(".dapr/bin/daprd"))?;
        Ok(Self { work, logs, home, programs: vec![built, tools.to_owned()] })
    }

    /// The search path with the programs of `first` before ours.
    fn path(&self, first: &Path) -> Result<std::ffi::OsString> {
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let usual: Vec<_> = std::env::split_paths(&usual).collect();
        let all = std::iter::once(first.to_owned()).chain(self.programs.clone()).chain(usual);
        std::env::join_paths(all).context("a folder of the search path has a colon in its name")
    }
}

fn page(record: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (tests, runs) =
        (list(&record["python_sdk"]["tests"]), list(&record["quickstarts"]["runs"]));
    let mut files: Vec<(String, usize, usize)> = Vec::new();
    for test in &tests {
        let file = word(&test["name"]).split("::").next().unwrap_or_default().to_owned();
        let passes = usize::from(test["passes"] == true);
        match files.last_mut().filter(|(last, ..)| *last == file) {
            Some((_, passed, all)) => (*passed, *all) = (*passed + passes, *all + 1),
            None => files.push((file, passes, 1)),
        }
    }
    let mut by_file = String::new();
    for (file, passed, all) in &files {
        let _ = writeln!(by_file, "| `{file}` | {all} | {passed} |");
    }
    let mut by_run = String::new();
    for run in &runs {
        let described = QUICKSTARTS.iter().find(|one| one.name == word(&run["name"]));
        let (what, from) = described.map_or(("", ""), |one| (one.what, one.source.repository));
        let passes = if run["passes"] == true { "yes" } else { "no" };
        let name = word(&run["name"]);
        let language = word(&run["language"]);
        let _ = writeln!(by_run, "| {name} | {from} | {language} | {what} | {passes} |");
    }
    let passed = tests.iter().filter(|test| test["passes"] == true).count();
    TEMPLATE
        .replace("{{sdk_commit}}", word(&record["python_sdk"]["commit"]))
        .replace("{{quickstarts_commit}}", word(&record["quickstarts"]["commit"]))
        .replace("{{passed}}", &passed.to_string())
        .replace("{{all}}", &tests.len().to_string())
        .replace("{{files}}", by_file.trim_end())
        .replace("{{runs}}", by_run.trim_end())
        .replace("{{facts}}", &facts_text(&record["run"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_counts_tests_by_file_and_lists_what_ran() {
        let test = |name: &str, passes: bool| json!({ "name": name, "passes": passes });
        let record = json!({
            "run": { "date": "2026-01-02", "cores": 2 },
            "python_sdk": { "commit": "abc", "tests": [
                test("test_a.py::b", true), test("test_a.py::c", false), test("test_d.py::e", true),
            ] },
            "quickstarts": { "commit": "def", "runs": [
                { "name": QUICKSTARTS[0].name, "language": "Python", "passes": true },
            ] },
        });
        let page = page(&record);
        assert!(page.contains("| `test_a.py` | 2 | 1 |\n| `test_d.py` | 1 | 1 |"), "{page}");
        assert!(page.contains("2 of 3") && page.contains(QUICKSTARTS[0].what), "{page}");
        assert!(!page.contains("{{"), "{page}");
    }
}
