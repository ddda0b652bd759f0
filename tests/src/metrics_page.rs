//! A page of metrics against what the documentation promises, and against Prometheus' own linter.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names and types are those of the rows of `docs/metrics.md` that are for `part`.
#[track_caller]
pub fn check_documented(part: &str, page: &str) {
    let shown: BTreeMap<&str, &str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert_eq!(shown, documented(part), "on the page of the {part}");
    let build = format!("tollway_build_info{{part=\"{part}\",version=\"");
    assert!(page.contains(&build), "{page}");
}

fn documented(part: &str) -> BTreeMap<&'static str, &'static str> {
    let rows = include_str!("../../docs/metrics.md").lines().filter(|l| l.starts_with("| `"));
    rows.filter_map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, kind, parts) = (cells[1].trim_matches('`'), cells[2], cells[4]);
        (parts == "all" || parts.split(", ").any(|word| word == part)).then_some((name, kind))
    })
    .collect()
}

#[track_caller]
pub fn check_lint(promlint: &Path, part: &str, page: &str) {
    let mut linter =
        Command::new(promlint).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    linter.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = linter.wait_with_output().unwrap();
    let problems = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "on the page of the {part}:\n{problems}");
}
