//! `tollway demo` leaves nothing behind, however it ends.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tollway_testkit::{Process, Start, TempDir, retry_until, slow};
use tollway_tests::program;

/// Until the first load runs, on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// Until everything is gone after a signal.
const GONE_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn an_interrupted_demo_leaves_no_process_and_no_file_and_runs_again_at_once() {
    slow!();
    leaves_nothing(&["demo", "--quick"]);
}

#[test]
fn an_interrupted_demo_on_loopback_leaves_no_process_and_no_file_and_runs_again_at_once() {
    slow!();
    leaves_nothing(&["demo", "--quick", "--loopback"]);
}

fn leaves_nothing(demo: &[&str]) {
    let files = TempDir::new().unwrap();
    let work = files.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let start = || {
        Start::new(program())
            .args(demo)
            .arg("--report")
            .arg(files.path().join("report.html"))
            .env("TMPDIR", &work)
            .start()
            .unwrap()
    };

    let mut interrupted = start();
    let family = until_under_load(&interrupted);
    interrupted.signal(Signal::INT).unwrap();
    let status = interrupted.wait(GONE_WITHIN).unwrap();
    assert!(!status.success(), "an interrupted demo is no success");
    family.assert_gone();
    let left: Vec<_> = std::fs::read_dir(&work).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");

    let mut killed = start();
    let family = until_under_load(&killed);
    killed.kill().unwrap();
    family.assert_gone();

    // What a killed one could not remove, the next one does.
    let mut last = start();
    let family = until_under_load(&last);
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 1);
    last.signal(Signal::TERM).unwrap();
    last.wait(GONE_WITHIN).unwrap();
    family.assert_gone();
}

/// Waits until all parts of a demo run, the load generator last.
fn until_under_load(demo: &Process) -> Family {
    let loading = retry_until(STARTED_WITHIN, "the demo sending load", || {
        let family = Family::of(demo.pid());
        family.0.iter().any(|process| process.line.contains(" load ")).then_some(family)
    });
    let family = loading.unwrap_or_else(|error| panic!("{error}:\n{}", demo.log()));
    assert!(family.0.len() > 8, "only {:?}", family.0);
    family
}

/// A process, what it started, what those started, and so on.
struct Family(Vec<Member>);

#[derive(Clone, PartialEq, Debug)]
struct Member {
    pid: u32,
    parent: u32,
    /// Distinguishes it from a later process of the same number.
    started: u64,
    line: String,
}

impl Family {
    fn of(root: u32) -> Self {
        let all = members();
        let mut pids = vec![root];
        let mut next = 0;
        while let Some(parent) = pids.get(next).copied() {
            pids.extend(all.iter().filter(|one| one.parent == parent).map(|one| one.pid));
            next += 1;
        }
        Self(all.into_iter().filter(|one| pids.contains(&one.pid)).collect())
    }

    fn assert_gone(&self) {
        let left = || {
            let now = members();
            let same = |one: &&Member| {
                now.iter().any(|other| (other.pid, other.started) == (one.pid, one.started))
            };
            self.0.iter().filter(same).cloned().collect::<Vec<_>>()
        };
        let gone = retry_until(GONE_WITHIN, "the end of all", || left().is_empty().then_some(()));
        assert!(gone.is_ok(), "still running: {:#?}", left());
    }
}

/// All processes that have not ended.
fn members() -> Vec<Member> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries.filter_map(|entry| member(&entry.path())).collect()
}

/// `None` for what is no process, or one that ended.
fn member(folder: &Path) -> Option<Member> {
    let pid = folder.file_name()?.to_str()?.parse().ok()?;
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    // The name before it may hold anything; see proc_pid_stat(5) for the numbers of the fields.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    if matches!(field(3)?, "Z" | "X") {
        return None;
    }
    let line = std::fs::read(folder.join("cmdline")).ok()?;
    Some(Member {
        pid,
        parent: field(4)?.parse().ok()?,
        started: field(22)?.parse().ok()?,
        line: String::from_utf8_lossy(&line).replace('\0', " "),
    })
}
