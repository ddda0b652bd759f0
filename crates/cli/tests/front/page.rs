//! The metrics of a front: what is documented, and what Prometheus' linter accepts.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use tollway_testkit::need_tool;

use crate::app::Script;
use crate::world::{World, get, page};

#[test]
fn a_front_shows_what_is_documented() {
    let world = World::start(Script::new(), &[]);
    world.ask(world.files.client(), &get("/")).unwrap();
    let page = page(&world.front);
    let lines = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let shown: BTreeMap<&str, &str> = lines.collect();
    assert_eq!(shown, documented());
    assert!(page.contains("tollway_build_info{part=\"front\""), "{page}");
    let answered = "tollway_responses_total{direction=\"inbound\",status=\"2xx\"} 1";
    assert!(page.contains(answered), "{page}");
}

/// Names and types of the rows that are for a front.
fn documented() -> BTreeMap<&'static str, &'static str> {
    let rows = include_str!("../../../../docs/metrics.md").lines().filter(|l| l.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let own = cells.filter(|cells| cells[4] == "all" || cells[4].split(", ").any(|p| p == "front"));
    own.map(|cells| (cells[1].trim_matches('`'), cells[2])).collect()
}

#[test]
fn the_linter_of_prometheus_finds_no_fault() {
    let promlint = need_tool!("promlint");
    let world = World::start(Script::new(), &[]);
    let mut linter =
        Command::new(promlint).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    linter.stdin.take().unwrap().write_all(page(&world.front).as_bytes()).unwrap();
    let output = linter.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
