//! Runs the plan: each run a load generator of its own, watched from outside.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use tollway_record::Traffic;
use tollway_record::record::{Block, Cost, CostPoint, Layout, Link, Tls};
use tollway_record::run::RunResult;

use super::bench::Bench;
use super::journal::{Entry, IdleEntry, Journal};
use super::plan::{Cell, CellArrival, Plan, Run};
use super::reading::{Reading, Roles};
use super::slices::{self, Slices};
use crate::affinity;
use crate::calibrate::calibrate;
use crate::cancel::Cancel;
use crate::commands::{Load, LoadArrival};
use crate::error::LabError;
use crate::process::{Running, Spec};
use crate::progress::{Event, Pace, Progress, RunSummary};
use crate::sample::{MachineUsage, cpu_pressure};
use crate::scenario::{MessagesSpec, Spacing};
use crate::subject::{HOME, Leg, Route, Standing};

/// How long the first call of a service may take to succeed, from everything having started.
const FIRST_CALL_LIMIT: Duration = Duration::from_secs(30);
/// Pause between attempts of a first call.
const FIRST_CALL_PAUSE: Duration = Duration::from_millis(200);
/// Beyond a run's expected time, before it is given up: requests may wait this long.
const RUN_GRACE: Duration = Duration::from_secs(20);
/// A search is given up after as long as so many trials take: it makes a hundred at most, each
/// with its warm-up, those that confirm twice as long.
const SEARCH_LIMIT_TRIALS: u32 = 300;
/// A load generator starts its warm-up at the earliest and the latest this long after it was
/// started (and a round trip or two for its connections); CPU time is read between.
const START_EARLIEST: Duration = Duration::from_millis(5);
const START_LATEST: Duration = Duration::from_millis(80);

/// What the runs gave.
pub(super) struct Measured {
    /// In the order of the plan's cells.
    pub(super) cells: Vec<MeasuredCell>,
    pub(super) warnings: Vec<String>,
    /// Command line by process.
    pub(super) processes: BTreeMap<String, String>,
    /// Of the subjects, in their order.
    pub(super) standing: Vec<Standing>,
    pub(super) steal_fraction: Option<f64>,
    /// Share of the time in which some task waited for a processor.
    pub(super) cpu_pressure: Option<f64>,
}

#[derive(Default)]
pub(super) struct MeasuredCell {
    pub(super) blocks: Vec<Block>,
    pub(super) set_aside: Vec<Block>,
    pub(super) idle: Vec<IdleEntry>,
    pub(super) link: Option<Link>,
    /// The first run's.
    pub(super) load_command: String,
    /// Of the first run: where another case finds out the rate.
    pub(super) connections: u32,
    pub(super) made_of: String,
    pub(super) hops: u32,
    pub(super) tls: Option<Tls>,
}

pub(super) fn measure(
    bench: &mut Bench<'_>,
    plan: &Plan,
    journal: &mut Option<Journal>,
    cancel: &Cancel,
    progress: &mut dyn Progress,
) -> Result<Measured, LabError> {
    let (machine, pressure, start) = (MachineUsage::read()?, cpu_pressure(), Instant::now());
    let mut probes = Probes::default();
    probes.take(bench, plan, Some(progress))?;
    let mut cells = plan_cells(bench, plan)?;
    let mut warnings = Vec::new();
    if let Some(journal) = journal {
        warnings.extend(resume(journal, plan, &mut cells, progress));
    }
    run_all(bench, plan, journal, &mut cells, cancel, progress)?;
    probes.take(bench, plan, None)?;
    for (cell, measured) in plan.cells.iter().zip(&mut cells) {
        measured.link = bench.link(cell.leg.network, probes.of(cell.leg.network));
    }
    let elapsed = start.elapsed();
    Ok(Measured {
        cells,
        warnings,
        processes: bench.command_lines.clone(),
        standing: bench.standing.clone(),
        steal_fraction: Some(MachineUsage::read()?.since(&machine).steal_fraction()),
        cpu_pressure: pressure
            .zip(cpu_pressure())
            .map(|(before, after)| (after.saturating_sub(before)).div_duration_f64(elapsed)),
    })
}

fn plan_cells(bench: &Bench<'_>, plan: &Plan) -> Result<Vec<MeasuredCell>, LabError> {
    let of = |cell: &Cell| {
        let route = bench.route(cell)?;
        Ok(MeasuredCell {
            made_of: route.made_of.clone(),
            hops: route.hops,
            tls: Some(route.tls),
            connections: cell.connections,
            ..MeasuredCell::default()
        })
    };
    plan.cells.iter().map(of).collect()
}

/// Takes over what the journal holds. Returns a sentence for the report.
fn resume(
    journal: &Journal,
    plan: &Plan,
    cells: &mut [MeasuredCell],
    progress: &mut dyn Progress,
) -> Option<String> {
    let mut taken = 0;
    for entry in journal.entries() {
        let Some(index) = plan.cells.iter().position(|cell| cell.id == entry.cell()) else {
            continue;
        };
        taken += 1;
        cells[index].take(entry.clone());
    }
    let told = format!(
        "{taken} runs were made before the experiment was interrupted; the rest after it, by \
         processes that were started anew"
    );
    (taken > 0).then(|| {
        progress.told(&Event::Step(&format!("going on after {taken} runs")));
        told
    })
}

impl MeasuredCell {
    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Run { block, set_aside, load_command, connections, .. } => {
                if self.load_command.is_empty() {
                    self.load_command = load_command;
                }
                self.connections = connections;
                let blocks = if set_aside { &mut self.set_aside } else { &mut self.blocks };
                blocks.push(*block);
            }
            Entry::Idle(idle) => self.idle.push(idle),
        }
    }

    fn has(&self, block: u32) -> bool {
        self.blocks.iter().any(|known| known.block == block)
            || self.idle.iter().any(|known| known.block == block)
    }

    /// Mean rate of the answers so far.
    fn rate_rps(&self) -> f64 {
        let answered: f64 =
            self.blocks.iter().map(|b| b.traffic.achieved_rps * b.traffic.duration_s).sum();
        let seconds: f64 = self.blocks.iter().map(|b| b.traffic.duration_s).sum();
        if seconds > 0.0 { answered / seconds } else { 0.0 }
    }
}

fn run_all(
    bench: &mut Bench<'_>,
    plan: &Plan,
    journal: &mut Option<Journal>,
    cells: &mut [MeasuredCell],
    cancel: &Cancel,
    progress: &mut dyn Progress,
) -> Result<(), LabError> {
    let gate = bench.experiment.options.gate;
    let mut repeats_left = gate.repeats(plan.runs.len());
    let mut last = None;
    for (done, run) in plan.runs.iter().enumerate() {
        let cell = &plan.cells[run.cell];
        if cells[run.cell].has(run.block) {
            continue;
        }
        let round = (cell.phase, run.block);
        if last != Some(round) {
            bench.begin_block(last.is_none(), progress)?;
            last = Some(round);
        }
        let rate_rps = rate_of(cell, plan, cells);
        for attempt in 0.. {
            let mut entry = run_one(bench, cell, run, rate_rps, cancel)?;
            if let Entry::Run { block, set_aside, .. } = &mut entry {
                block.outside_gate = gate.judge(block);
                let again = !block.outside_gate.is_empty()
                    && attempt < gate.repeats_of_run
                    && repeats_left > 0;
                *set_aside = again;
                tell(block, cell, (done + 1, plan.runs.len()), progress);
            }
            if let Some(journal) = journal {
                journal.write(&entry)?;
            }
            let again = entry.is_set_aside();
            cells[run.cell].take(entry);
            if !again {
                break;
            }
            repeats_left -= 1;
        }
    }
    Ok(())
}

fn tell(block: &Block, cell: &Cell, (done, total): (usize, usize), progress: &mut dyn Progress) {
    let summary = RunSummary {
        pace: pace(cell, &block.traffic),
        mean_us: block.traffic.latency_us.mean,
        errors: block.traffic.errors,
        client_limited: block.traffic.client_limited,
        outside_gate: !block.outside_gate.is_empty(),
    };
    let (row, block) = (cell.id.as_str(), block.block);
    progress.told(&Event::Run { done, total, row, block, summary: &summary });
}

fn pace(cell: &Cell, traffic: &Traffic) -> Pace {
    let is_flow = matches!(cell.arrival, CellArrival::Flow(_));
    Pace::of(cell.leg.protocol, traffic, is_flow)
}

/// The rate of a cell in open loop; what others find out is rounded down to whole tens.
fn rate_of(cell: &Cell, plan: &Plan, cells: &[MeasuredCell]) -> Option<f64> {
    match &cell.arrival {
        CellArrival::Open { rate_rps, .. } => Some(*rate_rps),
        CellArrival::ShareOfSlowest { case, share, .. } => {
            let beside = |other: &Cell| {
                &other.case == case
                    && other.leg.network == cell.leg.network
                    && other.layout == cell.layout
            };
            let rates = plan.cells.iter().zip(cells).filter(|(other, _)| beside(other));
            // Who answered nothing is told by the check of the record, not followed.
            let rates = rates.map(|(_, of)| of.rate_rps()).filter(|&rate| rate > 0.0);
            let slowest = rates.fold(f64::INFINITY, f64::min);
            let rate = if slowest.is_finite() { slowest * share } else { 0.0 };
            Some(((rate / 10.0).floor() * 10.0).max(1.0))
        }
        CellArrival::Closed | CellArrival::Flow(_) | CellArrival::Search(_) | CellArrival::Idle => {
            None
        }
    }
}

/// Round trips by network, taken before the first and after the last run.
#[derive(Default)]
struct Probes(BTreeMap<usize, Vec<f64>>);

impl Probes {
    fn take(
        &mut self,
        bench: &Bench<'_>,
        plan: &Plan,
        mut progress: Option<&mut dyn Progress>,
    ) -> Result<(), LabError> {
        let mut networks: Vec<(usize, &'static str)> =
            plan.cells.iter().map(|cell| (cell.leg.network, cell.topology.as_str())).collect();
        networks.sort_unstable();
        networks.dedup();
        for (network, placement) in networks.into_iter().filter(|(network, _)| *network != HOME) {
            let mut times = bench.ping(network)?;
            times.sort_by(f64::total_cmp);
            if let (Some(progress), Some(&p50)) = (&mut progress, times.get(times.len() / 2)) {
                let rtt_p50 = Duration::from_secs_f64(p50 / 1e6);
                progress.told(&Event::Link { placement, rtt_p50 });
            }
            self.0.entry(network).or_default().extend(times);
        }
        Ok(())
    }

    fn of(&self, network: usize) -> &[f64] {
        self.0.get(&network).map_or(&[], Vec::as_slice)
    }
}

impl Bench<'_> {
    /// Calls every service until it answers: a mesh needs a moment to learn of itself, and pools
    /// and caches are warm afterwards.
    pub(super) fn first_calls(&mut self, cancel: &Cancel) -> Result<(), LabError> {
        for (subject, leg) in self.services() {
            self.first_call(subject, leg, cancel)?;
        }
        Ok(())
    }

    fn first_call(&mut self, subject: usize, leg: Leg, cancel: &Cancel) -> Result<(), LabError> {
        let label = self.subjects[subject].label.clone();
        let network = self.ground.network(leg.network).name.clone();
        let service = format!("{} in {network} through {label}", leg.protocol);
        let Some(route) = self.standing[subject].routes.get(&leg).cloned() else {
            return Err(LabError::NoRoute { subject: label, row: service });
        };
        let until = Instant::now() + FIRST_CALL_LIMIT;
        for attempt in 0.. {
            let name = format!("first-{network}-{}-{}-{label}-{attempt}", leg.protocol, leg.tls);
            let name = name.replace(':', "-");
            let load = Load {
                arrival: LoadArrival::Open(50.0, Spacing::Uniform),
                duration: Duration::from_millis(100),
                ..self.load(&name, &leg, &route)
            };
            let spec = self.ground.commands.load(self.ground.home(), &name, &load);
            let result = self.run_load(&spec, &load, &service)?;
            let traffic = &result.traffic;
            if traffic.requests > 0 && traffic.errors == 0 {
                return Ok(());
            }
            self.ground.supervisor.check_alive()?;
            if Instant::now() > until {
                return Err(LabError::Unreachable {
                    service,
                    limit: FIRST_CALL_LIMIT,
                    requests: traffic.requests,
                    errors: traffic.errors,
                    kinds: kinds(&traffic.errors_by_kind),
                });
            }
            cancel.sleep(FIRST_CALL_PAUSE)?;
        }
        Ok(())
    }

    /// A load of one connection without a body.
    fn load(&self, name: &str, leg: &Leg, route: &Route) -> Load {
        Load {
            protocol: leg.protocol,
            url: route.url.clone(),
            headers: route.headers.clone(),
            tls: route.caller_tls.clone(),
            arrival: LoadArrival::Closed,
            connections: 1,
            streams: None,
            messages: MessagesSpec::default(),
            handshakes: None,
            duration: Duration::ZERO,
            warm_up: Duration::ZERO,
            payload_bytes: 0,
            seed: self.experiment.options.seed,
            json: self.ground.file(&format!("{name}.json")),
        }
    }

    fn run_load(&self, spec: &Spec, load: &Load, row: &str) -> Result<RunResult, LabError> {
        let mut running = self.ground.supervisor.begin(spec)?;
        let limit = load.warm_up + load.duration + RUN_GRACE;
        self.finish_load(&mut running, spec, load, row, limit)
    }

    /// Waits for the end of a load generator. One that saw errors may say so by its status; what
    /// counts is its result.
    fn finish_load(
        &self,
        running: &mut Running,
        spec: &Spec,
        load: &Load,
        row: &str,
        limit: Duration,
    ) -> Result<RunResult, LabError> {
        let status = self.ground.supervisor.finish(running, limit)?;
        let result = read_result(&load.json, row).map_err(|error| {
            if status.success() {
                error
            } else {
                self.ground.supervisor.exit_error(&spec.name, status).into()
            }
        })?;
        // The results are in the record; an experiment of hours would fill the directory.
        let _ = fs::remove_file(&load.json);
        Ok(result)
    }

    /// The lab and everything it has started.
    fn own_processes(&self, load: Option<u32>) -> Vec<u32> {
        let all = self.ground.supervisor.command_lines();
        let started = all.keys().filter_map(|name| self.ground.supervisor.pid(name));
        started.chain(load).chain([std::process::id()]).collect()
    }
}

fn run_one(
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
    bench.ground.supervisor.check_alive()?;
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
        CellArrival::Idle => return watch_idle(bench, cell, run, cancel),
        CellArrival::Search(_) => return search(bench, cell, run),
        CellArrival::Open { .. }
        | CellArrival::ShareOfSlowest { .. }
        | CellArrival::Closed
        | CellArrival::Flow(_) => {}
    }
    let calibration = calibrate();
    let load = load_of(bench, cell, run, rate_rps)?;
    let name = format!("load-{}-{}", file_name(&cell.id), run.block);
    let spec = bench.ground.commands.load(bench.ground.home(), &name, &load);
    let roles = bench.roles(cell)?;
    let started = Instant::now();
    let mut running = bench.ground.supervisor.begin(&spec)?;
    let watched = watch(bench, roles, running.pid(), started, cell, cancel)?;
    let limit = cell.warm_up + cell.window + RUN_GRACE;
    let result = bench.finish_load(&mut running, &spec, &load, &cell.id, limit)?;
    let Watched { first, last, series } = watched;
    let mut cost = last.cost_since(&first, pace(cell, &result.traffic));
    cost.cost_series = series;
    let mut block = Block::from_run(run.block, run.position, result, cost);
    block.calibration_us = Some(calibration.as_secs_f64() * 1e6);
    block.steal_fraction = last.steal_since(&first);
    block.noise = Some(last.noise_since(&first));
    Ok(Entry::Run {
        cell: cell.id.clone(),
        block: Box::new(block),
        set_aside: false,
        load_command: spec.command_line(),
        connections: load.connections,
    })
}

/// A search repeats its own trials, and none of them stands for the cost of the others: what is
/// kept is what it found, memory and the machine's speed.
fn search(bench: &Bench<'_>, cell: &Cell, run: &Run) -> Result<Entry, LabError> {
    let calibration = calibrate();
    let load = load_of(bench, cell, run, None)?;
    let name = format!("load-{}-{}", file_name(&cell.id), run.block);
    let spec = bench.ground.commands.load(bench.ground.home(), &name, &load);
    let roles = bench.roles(cell)?;
    let first = Reading::take(&roles, &[], None);
    let mut running = bench.ground.supervisor.begin(&spec)?;
    let limit = cell.trial() * SEARCH_LIMIT_TRIALS + RUN_GRACE;
    let result = bench.finish_load(&mut running, &spec, &load, &cell.id, limit)?;
    let last = Reading::take(&roles, &[], None);
    let memory = last.usage_since(&first).into_iter();
    let cost = Cost {
        rss_bytes: memory.map(|(role, _, rss_bytes)| (role, rss_bytes)).collect(),
        ..Cost::default()
    };
    let mut block = Block::from_run(run.block, run.position, result, cost);
    block.calibration_us = Some(calibration.as_secs_f64() * 1e6);
    block.steal_fraction = last.steal_since(&first);
    Ok(Entry::Run {
        cell: cell.id.clone(),
        block: Box::new(block),
        set_aside: false,
        load_command: spec.command_line(),
        connections: load.connections,
    })
}

fn load_of(
    bench: &Bench<'_>,
    cell: &Cell,
    run: &Run,
    rate_rps: Option<f64>,
) -> Result<Load, LabError> {
    let route = bench.route(cell)?;
    let name = format!("load-{}-{}", file_name(&cell.id), run.block);
    let load = bench.load(&name, &cell.leg, route);
    let arrival = match (&cell.arrival, rate_rps) {
        (
            CellArrival::Open { spacing, .. } | CellArrival::ShareOfSlowest { spacing, .. },
            Some(rate_rps),
        ) => LoadArrival::Open(rate_rps, *spacing),
        (CellArrival::Flow(direction), _) => LoadArrival::Flow(*direction),
        (CellArrival::Search(slo), _) => {
            LoadArrival::Search { slo: slo.clone(), trial: cell.trial() }
        }
        _ => LoadArrival::Closed,
    };
    Ok(Load {
        url: cell.answer_bytes.map_or(load.url.clone(), |bytes| sized(&load.url, bytes)),
        arrival,
        connections: cell.connections_at(rate_rps),
        streams: cell.streams,
        messages: cell.messages.unwrap_or_default(),
        handshakes: cell.handshakes,
        duration: cell.window,
        warm_up: cell.warm_up,
        payload_bytes: cell.payload_bytes,
        seed: bench.experiment.options.seed.wrapping_add(u64::from(run.block)),
        ..load
    })
}

/// The address of an answer of so many bytes; routes of HTTP end in `/echo`.
fn sized(url: &str, bytes: u64) -> String {
    url.strip_suffix("/echo").map_or(url.to_owned(), |base| format!("{base}/size?bytes={bytes}"))
}

fn file_name(id: &str) -> String {
    id.replace(['/', ':'], "-")
}

/// What the subject uses while nobody calls.
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
        .map(|(role, names)| (role.clone(), bench.ground.pids(names)))
        .collect();
    let first = Reading::take(&roles, &[], None);
    cancel.sleep(cell.window)?;
    let last = Reading::take(&roles, &[], None);
    let window = last.window_since(&first);
    let usage = last.usage_since(&first).into_iter();
    Ok(Entry::Idle(IdleEntry {
        cell: cell.id.clone(),
        block: run.block,
        duration_s: window.as_secs_f64(),
        usage: usage.map(|(role, used, rss)| (role, (used.as_secs_f64(), rss))).collect(),
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

fn read_result(path: &Path, row: &str) -> Result<RunResult, LabError> {
    let text = fs::read_to_string(path).map_err(|source| LabError::ReadResult {
        row: row.into(),
        path: path.into(),
        source,
    })?;
    let mut result = RunResult::from_json(&text).map_err(|source| LabError::Result {
        row: row.into(),
        path: path.into(),
        source,
    })?;
    result.judge_client();
    Ok(result)
}

fn kinds(errors: &BTreeMap<String, u64>) -> String {
    let kinds: Vec<String> = errors.iter().map(|(kind, n)| format!("{n} × {kind}")).collect();
    if kinds.is_empty() { "no errors".into() } else { kinds.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_s_size_is_asked_for_in_the_path() {
        let check = |url, expected: &str| assert_eq!(sized(url, 4_096), expected);
        check("http://127.0.0.1:80/echo", "http://127.0.0.1:80/size?bytes=4096");
        check(
            "http://127.0.0.1:1/v1.0/invoke/echo/method/echo",
            "http://127.0.0.1:1/v1.0/invoke/echo/method/size?bytes=4096",
        );
        check("127.0.0.1:80", "127.0.0.1:80");
    }
}
