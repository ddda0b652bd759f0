//! One run: its load generator, and what all processes used meanwhile.

use std::time::{Duration, Instant};

use tollway_record::record::{Block, Cost, CostPoint, Layout};

use super::bench::Bench;
use super::pace;
use super::plan::{Cell, CellArrival};
use super::reading::{Reading, Roles};
use super::slices::{self, Slices};
use crate::affinity;
use crate::calibrate::calibrate;
use crate::cancel::Cancel;
use crate::commands::Load;
use crate::error::LabError;
use crate::experiment::journal::{Entry, IdleEntry};
use crate::experiment::kind::Run;
use crate::process::Spec;

/// A load generator starts its warm-up at the earliest and the latest this long after it was
/// started (and a round trip or two for its connections); CPU time is read between.
const START_EARLIEST: Duration = Duration::from_millis(5);
const START_LATEST: Duration = Duration::from_millis(80);

pub(super) fn run_one(
    bench: &mut Bench<'_>,
    cell: &Cell,
    run: &Run,
    rate_rps: Option<f64>,
    cancel: &Cancel,
) -> Result<Entry, LabError> {
    bench.limit(cell, cell.limits.as_ref())?;
    let pinned = cell.layout == Layout::Pinned;
    let entry = if pinned {
        let subject = bench.working(cell)?.into_iter().flat_map(|(_, pids)| pids).collect();
        let all = bench.own_processes(None);
        affinity::pinned(subject, &all, || run_unpinned(bench, cell, run, rate_rps, cancel))?
    } else {
        run_unpinned(bench, cell, run, rate_rps, cancel)
    }?;
    bench.limit(cell, None)?;
    bench.check_alive()?;
    Ok(entry)
}

fn run_unpinned(
    bench: &Bench<'_>,
    cell: &Cell,
    run: &Run,
    rate_rps: Option<f64>,
    cancel: &Cancel,
) -> Result<Entry, LabError> {
    match cell.arrival {
        CellArrival::Idle => watch_idle(bench, cell, run, cancel),
        CellArrival::Search(_) => search(bench, cell, run),
        CellArrival::Open { .. }
        | CellArrival::ShareOfSlowest { .. }
        | CellArrival::Closed
        | CellArrival::Flow(_) => watch_load(bench, cell, run, rate_rps, cancel),
    }
}

fn watch_load(
    bench: &Bench<'_>,
    cell: &Cell,
    run: &Run,
    rate_rps: Option<f64>,
    cancel: &Cancel,
) -> Result<Entry, LabError> {
    let calibration = calibrate();
    let (spec, load) = bench.load_of(cell, run, rate_rps)?;
    let roles = bench.roles(cell)?;
    let started = Instant::now();
    let mut running = bench.begin_load(&spec)?;
    let watched = watch(bench, roles, running.pid(), started, cell, cancel)?;
    let result = bench.finish_load(&mut running, &spec, &load, &cell.id)?;
    let Watched { first, last, series } = watched;
    let mut cost = last.cost_since(&first, pace(cell, &result.traffic));
    cost.cost_series = series;
    let mut block = Block::from_run(run.block, run.position, result, cost);
    block.steal_fraction = last.steal_since(&first);
    block.noise = Some(last.noise_since(&first));
    Ok(entry(cell, block, calibration, &spec, &load))
}

/// A search repeats its own trials, and none of them shows the cost of the others: the record has
/// its result, memory and the machine's speed.
fn search(bench: &Bench<'_>, cell: &Cell, run: &Run) -> Result<Entry, LabError> {
    let calibration = calibrate();
    let (spec, load) = bench.load_of(cell, run, None)?;
    let roles = bench.roles(cell)?;
    let first = Reading::take(&roles, &[], None);
    let result = bench.run_load(&spec, &load, &cell.id)?;
    let last = Reading::take(&roles, &[], None);
    let memory = last.usage_since(&first).into_iter();
    let cost = Cost {
        rss_bytes: memory.map(|(role, _, rss_bytes)| (role, rss_bytes)).collect(),
        ..Cost::default()
    };
    let mut block = Block::from_run(run.block, run.position, result, cost);
    block.steal_fraction = last.steal_since(&first);
    Ok(entry(cell, block, calibration, &spec, &load))
}

fn entry(cell: &Cell, mut block: Block, calibration: Duration, spec: &Spec, load: &Load) -> Entry {
    block.calibration_us = Some(calibration.as_secs_f64() * 1e6);
    Entry::Run {
        cell: cell.id.clone(),
        block: Box::new(block),
        set_aside: false,
        load_command: spec.command_line(),
        connections: load.connections,
    }
}

/// What the subject uses without load, and what it holds after that time.
fn watch_idle(
    bench: &Bench<'_>,
    cell: &Cell,
    run: &Run,
    cancel: &Cancel,
) -> Result<Entry, LabError> {
    let roles: Roles = bench
        .route(cell)?
        .roles
        .iter()
        .map(|(role, names)| (role.clone(), bench.pids(names)))
        .collect();
    let first = Reading::take(&roles, &[], None);
    cancel.sleep(cell.window)?;
    let last = Reading::take(&roles, &[], None);
    let window = last.window_since(&first);
    Ok(Entry::Idle(IdleEntry {
        cell: cell.id.clone(),
        block: run.block,
        duration_s: window.as_secs_f64(),
        usage: last.idled_since(&first),
    }))
}

/// What was read while a load ran.
struct Watched {
    first: Reading,
    last: Reading,
    series: Vec<CostPoint>,
}

/// Reads at the latest time the window can begin and the earliest it can end, and less of it at
/// the end of every slice between.
fn watch(
    bench: &Bench<'_>,
    mut roles: Roles,
    load_pid: u32,
    started: Instant,
    cell: &Cell,
    cancel: &Cancel,
) -> Result<Watched, LabError> {
    roles.insert("load".to_owned(), vec![load_pid]);
    let own = bench.own_processes(Some(load_pid));
    let connecting = cell.rtt * 3 / 2;
    let begin = started + cell.warm_up + START_LATEST + connecting;
    let end = started + cell.warm_up + START_EARLIEST + cell.window;
    let until = |at: Instant| cancel.sleep(at.saturating_duration_since(Instant::now()));
    until(begin)?;
    let first = Reading::take(&roles, &own, bench.cgroups());
    let mut slices = Slices::from(&first);
    for at in slices::ends(begin, end) {
        until(at)?;
        slices.close(&roles, bench.cgroups());
    }
    until(end)?;
    let last = Reading::take(&roles, &own, bench.cgroups());
    Ok(Watched { first, last, series: slices.into_points() })
}
