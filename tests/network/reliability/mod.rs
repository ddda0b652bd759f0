//! Kill anything: every process of two joined networks is struck under load, the control plane
//! is killed under writes, its store is damaged and its disk filled; and what that costs.
//!
//! `cargo xtask proof reliability` runs `everything` and keeps what it measured; the other tests
//! are the part of it that fits into seconds.

mod caller;
mod faults;
mod lost;
mod strike;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use faults::{Damaged, FullDisk, Rounds, damage, fill_disk, kill_under_writes};
use lost::{Loss, LostNetwork, lose_network};
use serde::Serialize;
use strike::{Blow, Outcome, Victim, strike};
use tollway_testkit::skip;
use world::World;

/// Requests a second of each of the four kinds.
const RATE_RPS: u32 = 50;
/// Of the moments at which the control plane is killed.
const SEED: u64 = 20_261_121;
/// Longer than a lease.
const FULL_FOR: Duration = Duration::from_secs(12);
/// A near network whose workloads may not dial out.
const BY_GATEWAY: &[&str] = &["--remote-calls", "gateway"];
/// Where the record goes; without it there is none.
const RECORD: &str = "TOLLWAY_RELIABILITY_RECORD";

/// Everything that a whole run measured.
#[derive(Serialize)]
struct Record {
    schema: &'static str,
    rate_rps: u32,
    pause_s: u64,
    matrix: Vec<Outcome>,
    /// The outcomes with a near network whose workloads call through their own gateways.
    through_own_gateway: Vec<Outcome>,
    lost_network: Vec<LostNetwork>,
    kill_rounds: Rounds,
    damaged_store: Damaged,
    /// Absent where no small disk can be mounted.
    full_disk: Option<FullDisk>,
}

#[test]
#[ignore = "ten minutes: `cargo xtask proof reliability` runs it"]
fn everything() {
    let _alone = alone();
    let record = Record {
        schema: "tollway.reliability/1",
        rate_rps: RATE_RPS,
        pause_s: strike::PAUSE.as_secs(),
        kill_rounds: printed("kill rounds", kill_under_writes(40, SEED)),
        damaged_store: printed("damaged store", damage()),
        full_disk: printed("full disk", fill_disk(FULL_FOR)),
        matrix: run_matrix(&mut World::start(&[]), &Victim::ALL),
        through_own_gateway: run_matrix(&mut World::start(BY_GATEWAY), &Victim::ALL),
        lost_network: lose_all(&mut World::start(&[])),
    };
    if let Some(path) = std::env::var_os(RECORD) {
        std::fs::write(path, serde_json::to_string_pretty(&record).unwrap()).unwrap();
    }
    let cells = record.matrix.iter().chain(&record.through_own_gateway);
    let failed = cells.filter(|cell| !cell.passed).count()
        + record.lost_network.iter().filter(|loss| !loss.passed).count()
        + usize::from(!record.kill_rounds.passed)
        + usize::from(!record.damaged_store.passed)
        + usize::from(record.full_disk.as_ref().is_some_and(|full| !full.passed));
    assert_eq!(failed, 0, "so many promises were broken");
}

fn run_matrix(world: &mut World, victims: &[Victim]) -> Vec<Outcome> {
    all_cells(victims).map(|(victim, blow)| run_cell(world, victim, blow)).collect()
}

fn all_cells(victims: &[Victim]) -> impl Iterator<Item = (Victim, Blow)> {
    victims.iter().flat_map(|victim| Blow::ALL.map(|blow| (*victim, blow)))
}

fn run_cell(world: &mut World, victim: Victim, blow: Blow) -> Outcome {
    let outcome = strike(world, victim, blow, RATE_RPS);
    println!("{}", outcome.line());
    for (why, count) in &outcome.failures {
        println!("         {count} x {why}");
    }
    outcome
}

fn lose_all(world: &mut World) -> Vec<LostNetwork> {
    let losses = Loss::ALL.into_iter().map(|loss| {
        let lost = lose_network(world, loss, RATE_RPS);
        println!("{}", lost.line());
        lost
    });
    losses.collect()
}

fn printed<T: std::fmt::Debug>(what: &str, found: T) -> T {
    println!("{what}: {found:#?}");
    found
}

/// Cells in `TOLLWAY_RELIABILITY_CELLS`, as `by-gateway:gateway far:SIGTERM` and separated by commas; a
/// text selects the cells that begin with it.
#[test]
#[ignore = "needs TOLLWAY_RELIABILITY_CELLS"]
fn some_cells() {
    let _alone = alone();
    let wanted = std::env::var("TOLLWAY_RELIABILITY_CELLS").unwrap();
    for (kind, options) in [("direct", &[][..]), ("by-gateway", BY_GATEWAY)] {
        let cells: Vec<_> = wanted.split(',').filter_map(|cell| cell.strip_prefix(kind)).collect();
        if cells.is_empty() {
            continue;
        }
        let mut world = World::start(options);
        for (victim, blow) in cells.iter().flat_map(|cell| cells_of(cell)) {
            run_cell(&mut world, victim, blow);
        }
    }
}

/// Of `:VICTIM:BLOW` every cell that begins so.
fn cells_of(text: &str) -> Vec<(Victim, Blow)> {
    let (victim, blow) = text.trim_start_matches(':').split_once(':').unwrap_or((&text[1..], ""));
    all_cells(&Victim::ALL)
        .filter(|(v, b)| v.words().starts_with(victim) && b.words().starts_with(blow))
        .collect()
}

#[test]
fn blows_cost_no_more_than_promised() {
    const CELLS: [(Victim, Blow); 4] = [
        (Victim::CalleeSidecar, Blow::Kill),
        (Victim::GatewayFar, Blow::Kill),
        (Victim::GatewayFar, Blow::Stop),
        (Victim::ControlFar, Blow::Kill),
    ];
    let _alone = alone();
    let mut world = World::start(&[]);
    for (victim, blow) in CELLS {
        let outcome = run_cell(&mut world, victim, blow);
        assert!(outcome.passed, "{}: {:#?}", outcome.line(), outcome.shown);
    }
}

#[test]
fn behind_their_own_gateway_callers_leave_one_that_ends_beyond_it() {
    let _alone = alone();
    let outcome = run_cell(&mut World::start(BY_GATEWAY), Victim::GatewayFar, Blow::Term);
    assert!(outcome.passed, "{}: {:#?}", outcome.line(), outcome.shown);
}

#[test]
fn a_lost_network_is_withdrawn_in_time_and_comes_back_by_itself() {
    let _alone = alone();
    let lost = lose_network(&mut World::start(&[]), Loss::Silent, RATE_RPS);
    assert!(lost.passed, "{}", lost.line());
}

#[test]
fn a_control_plane_killed_under_writes_has_all_that_it_acknowledged() {
    let _alone = alone();
    let rounds = kill_under_writes(4, SEED);
    assert!(rounds.passed, "{rounds:#?}");
}

#[test]
fn a_damaged_store_is_refused_and_can_be_repaired() {
    let _alone = alone();
    let damaged = damage();
    assert!(damaged.passed, "{damaged:#?}");
}

#[test]
fn a_full_disk_stops_writes_and_nothing_else() {
    let _alone = alone();
    let Some(full) = fill_disk(Duration::from_secs(2)) else {
        skip!("no small disk can be mounted here: neither root nor user namespaces");
    };
    assert!(full.passed, "{full:#?}");
}

/// The tests of this program measure times: one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
