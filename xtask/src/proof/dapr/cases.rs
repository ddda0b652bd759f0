//! The cases of Dapr's suite that concern what we serve, and how one of them runs.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::alone::alone;
use super::reasons::Reasons;
use super::suite::Suite;

/// How long a case may take, in seconds: the suite gives each 45 s besides its start.
const CASE_S: u32 = 100;
/// Cases at a time for each processor: most of a case is waiting.
const PER_PROCESSOR: usize = 2;

/// Cases of one part of the product.
pub(super) struct Set {
    pub(super) name: &'static str,
    /// Starts of names.
    starts: &'static [&'static str],
}

pub(super) const SETS: &[Set] = &[
    Set {
        name: "service invocation, resiliency of apps, HTTP server, HTTP endpoints",
        starts: &[
            "daprd/serviceinvocation/",
            "daprd/resiliency/apps/",
            "daprd/httpserver/",
            "daprd/httpendpoints/",
        ],
    },
    Set { name: "metadata", starts: &["daprd/metadata/"] },
    Set { name: "metrics", starts: &["daprd/metrics/"] },
    Set { name: "tracing", starts: &["daprd/tracing/"] },
    Set { name: "state", starts: &["daprd/state/"] },
    Set { name: "shutdown", starts: &["daprd/shutdown/"] },
    Set {
        name: "configuration, resources, routes",
        starts: &[
            "daprd/actors/",
            "daprd/config/",
            "daprd/multipleconfigs/",
            "daprd/resources/",
            "daprd/routes/",
        ],
    },
    Set { name: "health, ports", starts: &["healthz/", "ports/"] },
    Set { name: "actors with reminders, timers and state", starts: &["actors/"] },
];

impl Set {
    pub(super) fn has(&self, case: &str) -> bool {
        self.starts.iter().any(|start| case.starts_with(start))
    }
}

/// What a case came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Passed,
    /// Failed at first, and passed when it ran again.
    PassedAgain,
    Failed,
    /// Neither passed nor failed within its time.
    Hung,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Passed, Self::PassedAgain, Self::Failed, Self::Hung];

    /// Reads what [`Self::word`] wrote.
    pub(super) fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word)
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passes",
            Self::PassedAgain => "passes the second time",
            Self::Failed => "fails",
            Self::Hung => "hangs",
        }
    }

    pub(super) fn passed(self) -> bool {
        matches!(self, Self::Passed | Self::PassedAgain)
    }
}

/// How a case ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) outcome: Outcome,
    /// How long its first run took.
    pub(super) took: Duration,
}

/// Runs cases, several at a time, and those that do not pass once more, but for those with a reason; in
/// the order of their names.
///
/// # Errors
/// A case cannot be started.
pub(super) fn run_all(
    suite: &Suite,
    daprd: &Path,
    logs: &Path,
    cases: &[String],
    reasons: &Reasons,
) -> Result<Vec<Ran>> {
    let next = AtomicUsize::new(0);
    let none = Ran { outcome: Outcome::Hung, took: Duration::ZERO };
    let all = Mutex::new(vec![none; cases.len()]);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(at) else { return Ok(()) };
            let began = Instant::now();
            let mut outcome = run_one(suite, daprd, logs, case)?;
            let took = began.elapsed();
            let is_news = !outcome.passed() && reasons.of(case).is_none();
            if is_news && run_one(suite, daprd, logs, case)? == Outcome::Passed {
                outcome = Outcome::PassedAgain;
            }
            println!("{:<24} {case} ({:.1} s)", outcome.word(), took.as_secs_f64());
            all.lock().expect("no thread panics")[at] = Ran { outcome, took };
        }
    };
    let at_a_time = PER_PROCESSOR * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_a_time).map(|_| scope.spawn(work)).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        ended.try_for_each(|result: Result<()>| result)
    })?;
    Ok(all.into_inner().expect("no thread panics"))
}

/// Runs a case in namespaces of its own: network, processes, and files of the user.
fn run_one(suite: &Suite, daprd: &Path, logs: &Path, case: &str) -> Result<Outcome> {
    let log = logs.join(format!("{}.log", case.replace('/', "__")));
    let file = std::fs::File::create(&log).with_context(|| format!("cannot write {log:?}"))?;
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let script = format!(
        "exec timeout -s KILL {CASE_S} {} -test.v -test.run Test_Integration -test.timeout {}s \
         -integration-parallel=false -focus '^{case}$'",
        suite.program("integration.test").display(),
        CASE_S - 5,
    );
    let mut command = alone(&script);
    command.current_dir(suite.directory());
    command.envs(suite.variables(daprd)).env("TMPDIR", scratch.path());
    command.stdout(file.try_clone()?).stderr(file);
    command.status().context("cannot start unshare")?;
    let printed = std::fs::read(&log).with_context(|| format!("cannot read {log:?}"))?;
    Ok(outcome_of(&String::from_utf8_lossy(&printed), case))
}

/// What Go's test program prints of a case.
fn outcome_of(printed: &str, case: &str) -> Outcome {
    let of = |word: &str| format!("--- {word}: Test_Integration/{case} (");
    let has = |word: &str| printed.lines().any(|line| line.trim_start().starts_with(&of(word)));
    if has("PASS") {
        Outcome::Passed
    } else if has("FAIL") {
        Outcome::Failed
    } else {
        Outcome::Hung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_read_from_the_line_of_its_case() {
        let printed = "=== RUN   Test_Integration/a/b\n    --- PASS: Test_Integration/a/b (1.20s)\n        \
                       --- PASS: Test_Integration/a/b/run (1.1s)\n";
        assert_eq!(outcome_of(printed, "a/b"), Outcome::Passed);
        assert_eq!(outcome_of(printed, "a"), Outcome::Hung);
        assert_eq!(outcome_of("    --- FAIL: Test_Integration/a/b (9s)", "a/b"), Outcome::Failed);
        assert_eq!(outcome_of("panic: test timed out", "a/b"), Outcome::Hung);
    }

    #[test]
    fn a_case_is_of_one_set() {
        for case in ["daprd/state/http/basic", "actors/call/grpc", "daprd/actors/emptyaddress"] {
            assert_eq!(SETS.iter().filter(|set| set.has(case)).count(), 1, "{case}");
        }
        assert!(!SETS.iter().any(|set| set.has("daprd/pubsub/http")));
    }
}
