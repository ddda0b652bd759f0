//! Peers that are slow, silent or many, at every listener: what they get, what they cost, and that
//! another caller is served meanwhile.
//!
//! `cargo xtask proof transport` runs `everything`, alone on the machine and with the numbers that
//! are promised; the other tests are the part of it that fits into seconds, side by side.

mod bad_links;
mod cases;
mod descriptors;
mod detect;
mod honest;
mod line;
mod ports;
mod weigh;
mod world;

use std::time::Duration;

use cases::{Case, Size};
use serde::Serialize;
use weigh::Outcome;
use world::{Listener, World};

/// Where the record goes; without it there is none.
const RECORD: &str = "TOLLWAY_TRANSPORT_RECORD";

/// Everything that a whole run measured.
#[derive(Serialize)]
struct Record {
    schema: &'static str,
    /// Of this process and of those it starts.
    descriptor_limit: u64,
    outcomes: Vec<Outcome>,
}

#[test]
#[ignore = "ten minutes, alone on the machine: `cargo xtask proof transport` runs it"]
fn everything() {
    let size = Size::whole();
    let mut outcomes = Vec::new();
    for (case, listener) in all() {
        outcomes.push(printed(case.run(&case.world(), listener, &size)));
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let descriptor_limit = cases::descriptor_limit();
    let record = Record { schema: "tollway.transport/1", descriptor_limit, outcomes };
    if let Some(path) = std::env::var_os(RECORD) {
        std::fs::write(path, serde_json::to_string_pretty(&record).unwrap()).unwrap();
    }
    assert_eq!(failed, 0, "so many promises were broken");
}

/// Cases in `TOLLWAY_TRANSPORT_CASES`, as `slow head:api` and separated by commas; a text selects
/// the cases that begin with it.
#[test]
#[ignore = "needs TOLLWAY_TRANSPORT_CASES"]
fn some_cases() {
    let wanted = std::env::var("TOLLWAY_TRANSPORT_CASES").unwrap();
    let wanted: Vec<&str> = wanted.split(',').collect();
    for (case, listener) in all() {
        let name = format!("{}:{}", case.words(), listener.words());
        if wanted.iter().any(|text| name.starts_with(text)) {
            printed(case.run(&case.world(), listener, &Size::whole()));
        }
    }
}

fn all() -> impl Iterator<Item = (Case, Listener)> {
    Case::ALL.into_iter().flat_map(|case| case.listeners().iter().map(move |at| (case, *at)))
}

fn printed(outcome: Outcome) -> Outcome {
    println!("{}", outcome.line());
    for wrong in &outcome.wrong {
        println!("         {wrong}");
    }
    outcome
}

/// All at once, so that what takes its time takes it once.
#[test]
fn slow_and_silent_peers_end_in_time_and_disturb_no_other_peer() {
    const CASES: [Case; 5] =
        [Case::SlowHead, Case::SlowHandshake, Case::SlowBody, Case::SlowReader, Case::SilentApp];
    let world = World::start();
    check(&world, all().filter(|(case, _)| CASES.contains(case)));
}

#[test]
fn crowds_disturb_no_other_peer() {
    let world = World::start();
    for case in [Case::Resets, Case::Storm, Case::Idle, Case::Crowd] {
        check(&world, all().filter(|(of, _)| *of == case));
    }
}

#[track_caller]
fn check(world: &World, cases: impl Iterator<Item = (Case, Listener)>) {
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let running: Vec<_> = cases
            .map(|(case, at)| scope.spawn(move || case.run(world, at, &Size::reduced())))
            .collect();
        running.into_iter().map(|case| printed(case.join().unwrap())).collect()
    });
    let wrong: Vec<_> = outcomes.iter().filter(|outcome| !outcome.passed).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A while in which what must end in time has ended, on a machine that does other things as well.
const GRACE: Duration = Duration::from_secs(20);
