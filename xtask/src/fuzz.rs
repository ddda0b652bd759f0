//! `cargo xtask fuzz`: searches for inputs that break a target of `crates/fuzz`.
//!
//! libFuzzer around the targets, with the stable compiler: coverage comes from flags that it has.
//! Findings are in `target/fuzz`; inputs with new coverage go into the corpus.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};

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
/// What the names of inputs begin with that broke something once. They stay, whatever they reach.
const BROKE: &str = "broke-";
/// How long libFuzzer runs at a stretch; then what it has used of a processor is counted.
const STRETCH: Duration = Duration::from_mins(5);

#[derive(Args)]
pub(crate) struct Options {
    /// Targets, as the folders of crates/fuzz/corpus are called; all of them without a name
    targets: Vec<String>,
    /// How long each is fuzzed, in time of a processor
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    seconds: u64,
}

/// What fuzzing a target came to, when nothing was found.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Fuzzed {
    pub(crate) target: String,
    /// Time of a processor, which is that of the clock where nothing else runs.
    pub(crate) seconds: u64,
    /// Inputs tried.
    pub(crate) inputs: u64,
    pub(crate) peak_rss_mb: u64,
    /// Inputs in the corpus.
    pub(crate) kept: usize,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    fuzz(&workspace.root, &options.targets, options.seconds, &mut |fuzzed| {
        let Fuzzed { target, seconds, inputs, peak_rss_mb, kept } = fuzzed;
        println!(
            "{target:<16} {seconds} s, {inputs} inputs, nothing found; at most {peak_rss_mb} MB, \
             {kept} inputs kept"
        );
        Ok(())
    })
}

/// Fuzzes the targets of these names, or all, as many at a time as there are processors, and
/// reports each as soon as it is done, so that an interrupted run has results.
///
/// # Errors
/// A name is not that of a target, a target is broken, or reporting fails.
pub(crate) fn fuzz(
    root: &Path,
    names: &[String],
    seconds: u64,
    report: &mut (dyn FnMut(Fuzzed) -> Result<()> + Send),
) -> Result<()> {
    let names = wanted(names, targets(root)?)?;
    let program = build(root)?;
    let shared = Shared { root, program: &program, seconds: Duration::from_secs(seconds) };
    let (next, is_broken) = (AtomicUsize::new(0), AtomicBool::new(false));
    let report = Mutex::new(report);
    let each = |name: &str| match shared.fuzz(name, &is_broken)? {
        Some(fuzzed) => report.lock().expect("no reporter panics")(fuzzed),
        None => Ok(()),
    };
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            each(name).inspect_err(|_| is_broken.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
}

/// Those of all targets that are named, or all of them where none is.
fn wanted(names: &[String], all: Vec<String>) -> Result<Vec<String>> {
    for name in names {
        ensure!(all.contains(name), "`{name}` is no target; there are {}", all.join(", "));
    }
    Ok(if names.is_empty() { all } else { names.to_vec() })
}

/// The names of all targets.
pub(crate) fn targets(root: &Path) -> Result<Vec<String>> {
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

/// What every target shares.
struct Shared<'a> {
    root: &'a Path,
    program: &'a Path,
    seconds: Duration,
}

/// What libFuzzer did at a stretch.
struct Stretch {
    used: Duration,
    inputs: u64,
    peak_rss_mb: u64,
}

impl Shared<'_> {
    /// `None` where another target was found to be broken meanwhile.
    fn fuzz(&self, name: &str, is_broken: &AtomicBool) -> Result<Option<Fuzzed>> {
        let kept = corpus(self.root, name);
        let found = self.root.join("target/fuzz/found").join(name);
        std::fs::create_dir_all(&found).with_context(|| format!("could not make {found:?}"))?;
        println!("fuzzing {name} for {} s", self.seconds.as_secs());
        let mut done = Stretch { used: Duration::ZERO, inputs: 0, peak_rss_mb: 0 };
        while done.used < self.seconds {
            if is_broken.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let next = self.stretch(name, [&found, &kept], self.seconds - done.used)?;
            done.used += next.used;
            done.inputs += next.inputs;
            done.peak_rss_mb = done.peak_rss_mb.max(next.peak_rss_mb);
        }
        keep(self.program, name, &kept, &found)?;
        Ok(Some(Fuzzed {
            target: name.to_owned(),
            seconds: done.used.as_secs(),
            inputs: done.inputs,
            peak_rss_mb: done.peak_rss_mb,
            kept: std::fs::read_dir(&kept).map_or(0, Iterator::count),
        }))
    }

    fn stretch(&self, name: &str, inputs: [&Path; 2], left: Duration) -> Result<Stretch> {
        let broken = self.root.join("target/fuzz/broken");
        std::fs::create_dir_all(&broken).with_context(|| format!("could not make {broken:?}"))?;
        let log = self.root.join("target/fuzz").join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("could not write {log:?}"))?;
        let seconds = left.min(STRETCH).as_secs_f64().ceil();
        let mut child = libfuzzer(self.program, name)
            .args(inputs)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={LONGEST_INPUT_BYTES}"))
            .arg(format!("-artifact_prefix={}/{name}-", broken.display()))
            .args(["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"])
            .stderr(file)
            .spawn()
            .with_context(|| format!("could not start {}", self.program.display()))?;
        let used = processor_time(&child)?;
        let status = child.wait()?;
        let printed = std::fs::read(&log).with_context(|| format!("could not read {log:?}"))?;
        let printed = String::from_utf8_lossy(&printed);
        if !status.success() {
            let last = printed.lines().rev().take(60).collect::<Vec<_>>();
            let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
            bail!("{last}\n{name} is broken; the input lies in {}", broken.display());
        }
        let of = |what: &str| figure(&printed, what);
        Ok(Stretch {
            used,
            inputs: of("number_of_executed_units")?,
            peak_rss_mb: of("peak_rss_mb")?,
        })
    }
}

/// Waits until a child has ended, and returns its processor time before it is reaped.
fn processor_time(child: &Child) -> Result<Duration> {
    let pid = Pid::from_child(child);
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
    ticks_used(&stat)
        .map(|ticks| {
            Duration::from_secs_f64(ticks / rustix::param::clock_ticks_per_second() as f64)
        })
        .with_context(|| format!("the kernel printed `{stat}`"))
}

/// User and system time of a `/proc/PID/stat`, whose second field may hold anything in brackets.
fn ticks_used(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(ticks(11)? + ticks(12)?)
}

/// Makes the corpus the fewest inputs that reach all that was reached, and those that broke
/// something once.
fn keep(program: &Path, name: &str, kept: &Path, found: &Path) -> Result<()> {
    let new = found.with_extension("new");
    let _ = std::fs::remove_dir_all(&new);
    std::fs::create_dir_all(&new).with_context(|| format!("could not make {new:?}"))?;
    let mut merge = libfuzzer(program, name);
    // How often code was reached counts while looking; keeping an input for it would be many.
    merge.args(["-set_cover_merge=1", "-use_counters=0"]).args([&new, kept, found]);
    process::output(&mut merge)?;
    replace(kept, &new)?;
    std::fs::remove_dir_all(&new)?;
    Ok(())
}

fn replace(kept: &Path, new: &Path) -> Result<()> {
    for file in std::fs::read_dir(kept)? {
        let file = file?;
        if !file.file_name().to_string_lossy().starts_with(BROKE) {
            std::fs::remove_file(file.path())?;
        }
    }
    for file in std::fs::read_dir(new)? {
        let file = file?;
        std::fs::copy(file.path(), kept.join(file.file_name()))?;
    }
    Ok(())
}

fn libfuzzer(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command.env("TOLLWAY_FUZZ_TARGET", name);
    command
}

/// A line of libFuzzer's statistics: `stat::number_of_executed_units: 123`.
fn figure(printed: &str, what: &str) -> Result<u64> {
    let line = printed.lines().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(what));
    let text = line.and_then(|rest| rest.strip_prefix(':')).map(str::trim);
    let text = text.with_context(|| format!("libFuzzer did not print `{what}`"))?;
    text.parse().with_context(|| format!("libFuzzer printed `{what}: {text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_past_a_name_with_brackets() {
        let stat = "7 (fuzz :) 1) R 1 7 7 0 -1 0 90 0 0 0 312 24 0 0 20 0 1 0 9 0 0";
        assert_eq!(ticks_used(stat), Some(336.0));
        assert_eq!(ticks_used("7 (fuzz) Z 1"), None);
    }

    #[test]
    fn what_broke_something_stays_in_the_corpus() {
        let folder = tempfile::tempdir().unwrap();
        let [kept, new] = ["kept", "new"].map(|name| folder.path().join(name));
        for (at, name) in [(&kept, "broke-1"), (&kept, "2"), (&new, "3")] {
            std::fs::create_dir_all(at).unwrap();
            std::fs::write(at.join(name), name).unwrap();
        }
        replace(&kept, &new).unwrap();
        let left = std::fs::read_dir(&kept).unwrap().map(|file| file.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["3", "broke-1"]);
    }

    #[test]
    fn targets_are_called_by_their_names_or_all_of_them() {
        let all = || ["http1-body", "schedule"].map(str::to_owned).to_vec();
        assert_eq!(wanted(&[], all()).unwrap(), all());
        assert_eq!(wanted(&all()[1..], all()).unwrap(), ["schedule"]);
        let error = wanted(&["http1".to_owned()], all()).unwrap_err().to_string();
        assert_eq!(error, "`http1` is no target; there are http1-body, schedule");
    }

    #[test]
    fn figures_are_read_from_the_output_of_libfuzzer() {
        let printed = "Done 12 in 3 second(s)\nstat::number_of_executed_units: 12\n\
                    stat::peak_rss_mb:              41\n";
        assert_eq!(figure(printed, "number_of_executed_units").unwrap(), 12);
        assert_eq!(figure(printed, "peak_rss_mb").unwrap(), 41);
        let error = figure(printed, "new_units_added").unwrap_err().to_string();
        assert!(error.contains("new_units_added"), "{error}");
    }
}
