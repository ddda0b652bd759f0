//! `cargo xtask fuzz`: looks for inputs that break a target of `crates/fuzz`.
//!
//! libFuzzer around the targets, with the stable compiler: coverage comes from flags that it has.
//! What is found lies in `target/fuzz`; the inputs worth keeping go into the corpus.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::process;
use crate::workspace::{Workspace, host};

/// What libFuzzer needs to see which code an input reaches.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Longer inputs find nothing that shorter ones do not, and are slower.
const LONGEST_INPUT_BYTES: u32 = 2048;

#[derive(Args)]
pub(crate) struct Options {
    /// Targets, as the folders of crates/fuzz/corpus are called; all of them without a name
    targets: Vec<String>,
    /// How long each is fuzzed
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
}

/// What fuzzing a target came to, when nothing was found.
#[derive(Serialize)]
pub(crate) struct Fuzzed {
    pub(crate) target: String,
    pub(crate) seconds: u64,
    /// Inputs tried.
    pub(crate) inputs: u64,
    pub(crate) peak_rss_mb: u64,
    /// Inputs in the corpus.
    pub(crate) kept: usize,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    for name in &options.targets {
        ensure!(
            corpus(&workspace.root, name).is_dir(),
            "`{name}` is no target: crates/fuzz/corpus has a folder for each"
        );
    }
    for fuzzed in fuzz(&workspace.root, &options.targets, options.seconds)? {
        let Fuzzed { target, seconds, inputs, peak_rss_mb, kept } = fuzzed;
        println!(
            "{target:<16} {seconds} s, {inputs} inputs, nothing found; at most {peak_rss_mb} MB, \
             {kept} inputs kept"
        );
    }
    Ok(())
}

/// Fuzzes the targets of these names, or all, one after the other.
pub(crate) fn fuzz(root: &Path, names: &[String], seconds: u64) -> Result<Vec<Fuzzed>> {
    let program = build(root)?;
    let names = if names.is_empty() { targets(root)? } else { names.to_vec() };
    names.iter().map(|name| fuzz_one(root, &program, name, seconds)).collect()
}

fn targets(root: &Path) -> Result<Vec<String>> {
    let dir = root.join("crates/fuzz/corpus");
    let entries = std::fs::read_dir(&dir).with_context(|| format!("could not list {dir:?}"))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn corpus(root: &Path, name: &str) -> PathBuf {
    root.join("crates/fuzz/corpus").join(name)
}

fn build(root: &Path) -> Result<PathBuf> {
    let host = host()?;
    let target_dir = root.join("target/fuzz");
    // With a target, what runs while it is built needs no coverage.
    process::run(
        process::cargo()
            .args(["build", "--profile", "fuzz", "-p", "tollway-fuzz", "--bin", "fuzz"])
            .args(["--features", "libfuzzer", "--target", &host, "--target-dir"])
            .arg(&target_dir)
            .env("RUSTFLAGS", COVERAGE)
            .current_dir(root),
    )?;
    Ok(target_dir.join(host).join("fuzz/fuzz"))
}

fn fuzz_one(root: &Path, program: &Path, name: &str, seconds: u64) -> Result<Fuzzed> {
    let kept = corpus(root, name);
    let found = root.join("target/fuzz/found").join(name);
    let broken = root.join("target/fuzz/broken");
    for dir in [&found, &broken] {
        std::fs::create_dir_all(dir).with_context(|| format!("could not make {dir:?}"))?;
    }
    println!("fuzzing {name} for {seconds} s");
    let output = libfuzzer(program, name)
        .args([&found, &kept])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={LONGEST_INPUT_BYTES}"))
        .arg(format!("-artifact_prefix={}/{name}-", broken.display()))
        .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"])
        .output()
        .with_context(|| format!("could not start {}", program.display()))?;
    let told = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let last = told.lines().rev().take(60).collect::<Vec<_>>();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        bail!("{last}\n{name} is broken; the input lies in {}", broken.display());
    }
    keep(program, name, &kept, &found)?;
    let of = |what: &str| figure(&told, what);
    Ok(Fuzzed {
        target: name.to_owned(),
        seconds,
        inputs: of("number_of_executed_units")?,
        peak_rss_mb: of("peak_rss_mb")?,
        kept: std::fs::read_dir(&kept).map_or(0, Iterator::count),
    })
}

/// Makes the corpus the fewest inputs that reach all that was reached.
fn keep(program: &Path, name: &str, kept: &Path, found: &Path) -> Result<()> {
    let new = found.with_extension("new");
    let _ = std::fs::remove_dir_all(&new);
    std::fs::create_dir_all(&new).with_context(|| format!("could not make {new:?}"))?;
    let mut merge = libfuzzer(program, name);
    // How often code was reached counts while looking; keeping an input for it would be many.
    merge.args(["-set_cover_merge=1", "-use_counters=0"]).args([&new, kept, found]);
    process::output(&mut merge)?;
    for file in std::fs::read_dir(kept)? {
        std::fs::remove_file(file?.path())?;
    }
    for file in std::fs::read_dir(&new)? {
        let file = file?;
        std::fs::copy(file.path(), kept.join(file.file_name()))?;
    }
    std::fs::remove_dir_all(&new)?;
    Ok(())
}

fn libfuzzer(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.env("TOLLWAY_FUZZ_TARGET", name);
    command
}

/// A line of libFuzzer's statistics: `stat::number_of_executed_units: 123`.
fn figure(told: &str, what: &str) -> Result<u64> {
    let line = told.lines().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(what));
    let text = line.and_then(|rest| rest.strip_prefix(':')).map(str::trim);
    let text = text.with_context(|| format!("libFuzzer did not tell `{what}`"))?;
    text.parse().with_context(|| format!("libFuzzer told `{what}: {text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_libfuzzer_tells() {
        let told = "Done 12 in 3 second(s)\nstat::number_of_executed_units: 12\n\
                    stat::peak_rss_mb:              41\n";
        assert_eq!(figure(told, "number_of_executed_units").unwrap(), 12);
        assert_eq!(figure(told, "peak_rss_mb").unwrap(), 41);
        let error = figure(told, "new_units_added").unwrap_err().to_string();
        assert!(error.contains("new_units_added"), "{error}");
    }
}
