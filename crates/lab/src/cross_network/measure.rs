//! Runs the plan: each run a load generator of its own, watched from outside.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use tollway_record::record::{Block, Cost, Link};
use tollway_record::run::RunResult;

use super::bench::{Bench, Call, HOME};
use super::mesh;
use crate::calibrate::calibrate;
use crate::cancel::Cancel;
use crate::commands::Load;
use crate::error::LabError;
use crate::machine;
use crate::plan::{Cell, Placement, Plan, Run, SubjectKind};
use crate::process::Spec;
use crate::progress::{Event, Progress, RunSummary};
use crate::sample::{MachineUsage, ProcessUsage, cpu_pressure};

/// How long the first call of a service may take to succeed, from everything having started.
const FIRST_CALL_LIMIT: Duration = Duration::from_secs(30);
/// Pause between attempts of a first call.
const FIRST_CALL_PAUSE: Duration = Duration::from_millis(200);
/// Beyond a run's expected time, before it is given up: requests may wait this long.
const RUN_GRACE: Duration = Duration::from_secs(20);
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
    pub(super) steal_fraction: Option<f64>,
    /// Share of the time in which some task waited for a processor.
    pub(super) cpu_pressure: Option<f64>,
}

#[derive(Default)]
pub(super) struct MeasuredCell {
    pub(super) blocks: Vec<Block>,
    pub(super) link: Option<Link>,
    /// The first run's.
    pub(super) load_command: String,
}

pub(super) fn measure(
    bench: &mut Bench<'_>,
    plan: &Plan,
    cancel: &Cancel,
    progress: &mut dyn Progress,
) -> Result<Measured, LabError> {
    let (machine, pressure, start) = (MachineUsage::read()?, cpu_pressure(), Instant::now());
    let mut probes = Probes::default();
    probes.take(bench, plan, Some(progress))?;
    let mut cells: Vec<MeasuredCell> = plan.cells.iter().map(|_| MeasuredCell::default()).collect();
    for (done, run) in plan.runs.iter().enumerate() {
        let cell = &plan.cells[run.cell];
        let (block, command) = run_one(bench, plan, run, cancel)?;
        let summary = summary(&block);
        let (done, total, row) = (done + 1, plan.runs.len(), cell.id());
        progress.told(&Event::Run { done, total, row: &row, block: run.block, summary: &summary });
        let measured = &mut cells[run.cell];
        measured.blocks.push(block);
        if measured.load_command.is_empty() {
            measured.load_command = command;
        }
    }
    probes.take(bench, plan, None)?;
    for (cell, measured) in plan.cells.iter().zip(&mut cells) {
        let network = bench.network_of(&cell.placement);
        measured.link = bench.link(network, probes.of(network));
    }
    let elapsed = start.elapsed();
    Ok(Measured {
        cells,
        warnings: Vec::new(),
        processes: bench.supervisor.command_lines(),
        steal_fraction: Some(MachineUsage::read()?.since(&machine).steal_fraction()),
        cpu_pressure: pressure
            .zip(cpu_pressure())
            .map(|(before, after)| (after.saturating_sub(before)).div_duration_f64(elapsed)),
    })
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
        for placement in &plan.workload.placements {
            let network = bench.network_of(placement);
            if network == HOME {
                continue;
            }
            let mut times = bench.ping(network)?;
            times.sort_by(f64::total_cmp);
            if let (Some(progress), Some(&p50)) = (&mut progress, times.get(times.len() / 2)) {
                let rtt_p50 = Duration::from_secs_f64(p50 / 1e6);
                let placement = placement.topology.as_str();
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
    /// Calls every service of the plan until it answers: the mesh needs a moment to learn of
    /// itself, and pools and caches are warm afterwards.
    pub(super) fn first_calls(&mut self, cancel: &Cancel) -> Result<(), LabError> {
        let workload = &self.options.workload;
        for placement in workload.placements.clone() {
            for &protocol in &workload.protocols {
                for &subject in &workload.subjects {
                    self.first_call(&placement, protocol, subject, cancel)?;
                }
            }
        }
        Ok(())
    }

    fn first_call(
        &mut self,
        placement: &Placement,
        protocol: tollway_record::record::Protocol,
        subject: SubjectKind,
        cancel: &Cancel,
    ) -> Result<(), LabError> {
        let network = self.network_of(placement);
        let call = self.call(network, protocol, subject)?;
        let until = Instant::now() + FIRST_CALL_LIMIT;
        let id = format!("{}/{protocol}/{}", placement.topology, subject.name());
        for attempt in 0.. {
            let name = format!("first-{}-{attempt}", id.replace('/', "-"));
            let load = Load {
                rate_rps: 50,
                connections: 1,
                duration: Duration::from_millis(100),
                warm_up: Duration::ZERO,
                ..self.load(&name, protocol, &call)
            };
            let spec = self.commands.load(self.network(HOME), &name, &load);
            let result = self.run_load(&spec, &load, &id, load.duration)?;
            let traffic = &result.traffic;
            if traffic.requests > 0 && traffic.errors == 0 {
                return Ok(());
            }
            self.supervisor.check_alive()?;
            if Instant::now() > until {
                return Err(LabError::Unreachable {
                    service: mesh::service(&self.network(network).name, protocol),
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

    fn load(&self, name: &str, protocol: tollway_record::record::Protocol, call: &Call) -> Load {
        let workload = &self.options.workload;
        Load {
            protocol,
            url: call.url.clone(),
            headers: call.headers.clone(),
            rate_rps: workload.rate_rps,
            connections: workload.connections,
            duration: Duration::ZERO,
            warm_up: Duration::ZERO,
            payload_bytes: workload.payload_bytes,
            seed: self.options.seed,
            json: self.supervisor.dir().join(format!("{name}.json")),
        }
    }

    fn run_load(
        &self,
        spec: &Spec,
        load: &Load,
        row: &str,
        expected: Duration,
    ) -> Result<RunResult, LabError> {
        let mut running = self.supervisor.begin(spec)?;
        // A generator that saw errors may say so by its status; what counts is its result.
        let status = self.supervisor.finish(&mut running, expected + RUN_GRACE)?;
        read_result(load, row).map_err(|error| {
            if status.success() {
                error
            } else {
                self.supervisor.exit_error(&spec.name, status).into()
            }
        })
    }
}

fn run_one(
    bench: &mut Bench<'_>,
    plan: &Plan,
    run: &Run,
    cancel: &Cancel,
) -> Result<(Block, String), LabError> {
    let cell = &plan.cells[run.cell];
    let row = cell.id();
    let network = bench.network_of(&cell.placement);
    let call = bench.call(network, cell.protocol, cell.subject)?;
    let name = format!("load-{}-{}", row.replace('/', "-"), run.block);
    let load = Load {
        connections: cell.connections,
        duration: plan.window,
        warm_up: cell.warm_up,
        seed: bench.options.seed.wrapping_add(u64::from(run.block)),
        ..bench.load(&name, cell.protocol, &call)
    };
    let spec = bench.commands.load(bench.network(HOME), &name, &load);
    let roles = bench.roles(network, cell.protocol, cell.subject);
    let calibration = calibrate();

    let machine = MachineUsage::read()?;
    let started = Instant::now();
    let mut running = bench.supervisor.begin(&spec)?;
    let readings = read_twice(roles, running.pid(), started, cell, plan.window, cancel)?;
    let expected = cell.warm_up + plan.window + RUN_GRACE;
    let status = bench.supervisor.finish(&mut running, expected)?;
    let steal = MachineUsage::read()?.since(&machine).steal_fraction();
    bench.supervisor.check_alive()?;
    let result = read_result(&load, &row).map_err(|error| {
        if status.success() {
            error
        } else {
            bench.supervisor.exit_error(&spec.name, status).into()
        }
    })?;

    let cost = cost(&readings, result.traffic.achieved_rps);
    let mut block = Block::from_run(run.block, run.position, result, cost);
    block.calibration_us = Some(calibration.as_secs_f64() * 1e6);
    block.steal_fraction = Some(steal);
    Ok((block, spec.command_line()))
}

/// What everything had used at one moment.
struct Reading {
    at: Instant,
    machine: Option<MachineUsage>,
    roles: BTreeMap<&'static str, ProcessUsage>,
}

/// Reads at the latest time the window can begin and the earliest it can end.
fn read_twice(
    mut roles: BTreeMap<&'static str, Vec<u32>>,
    load_pid: u32,
    started: Instant,
    cell: &Cell,
    window: Duration,
    cancel: &Cancel,
) -> Result<[Reading; 2], LabError> {
    roles.insert("load", vec![load_pid]);
    let connecting = cell.placement.rtt * 3 / 2;
    let begin = started + cell.warm_up + START_LATEST + connecting;
    let end = started + cell.warm_up + START_EARLIEST + window;
    cancel.sleep(begin.saturating_duration_since(Instant::now()))?;
    let first = Reading::take(&roles);
    cancel.sleep(end.saturating_duration_since(Instant::now()))?;
    Ok([first, Reading::take(&roles)])
}

impl Reading {
    /// Processes that cannot be read are left out: one that ended is told by the supervisor.
    fn take(roles: &BTreeMap<&'static str, Vec<u32>>) -> Self {
        let sum = |pids: &Vec<u32>| {
            let usages: Vec<_> = pids.iter().filter_map(|&p| ProcessUsage::read(p).ok()).collect();
            (usages.len() == pids.len() && !pids.is_empty()).then(|| ProcessUsage {
                cpu: usages.iter().map(|usage| usage.cpu).sum(),
                rss_bytes: usages.iter().map(|usage| usage.rss_bytes).sum(),
                peak_rss_bytes: usages.iter().map(|usage| usage.peak_rss_bytes).sum(),
            })
        };
        Self {
            at: Instant::now(),
            machine: MachineUsage::read().ok(),
            roles: roles.iter().filter_map(|(&role, pids)| Some((role, sum(pids)?))).collect(),
        }
    }
}

/// CPU time per request between two readings, at the rate the run achieved.
fn cost([first, last]: &[Reading; 2], achieved_rps: f64) -> Cost {
    let window = last.at.saturating_duration_since(first.at);
    let requests = achieved_rps * window.as_secs_f64();
    let mut cost = Cost::default();
    for (&role, after) in &last.roles {
        let Some(before) = first.roles.get(role) else { continue };
        let rss = before.rss_bytes.max(after.rss_bytes);
        cost.rss_bytes.insert(role.to_owned(), rss);
        if requests >= 1.0 {
            let used = after.cpu.saturating_sub(before.cpu).as_secs_f64();
            cost.cpu_us_per_request.insert(role.to_owned(), used * 1e6 / requests);
        }
    }
    if let (Some(before), Some(after)) = (&first.machine, &last.machine)
        && requests >= 1.0
    {
        let busy = after.since(before).busy(window, machine::cpus()).as_secs_f64();
        cost.machine_cpu_us_per_request = Some(busy * 1e6 / requests);
    }
    cost
}

fn read_result(load: &Load, row: &str) -> Result<RunResult, LabError> {
    let path = &load.json;
    let text = fs::read_to_string(path).map_err(|source| LabError::ReadResult {
        row: row.into(),
        path: path.clone(),
        source,
    })?;
    let mut result = RunResult::from_json(&text).map_err(|source| LabError::Result {
        row: row.into(),
        path: path.clone(),
        source,
    })?;
    result.judge_client();
    Ok(result)
}

fn summary(block: &Block) -> RunSummary {
    RunSummary {
        achieved_rps: block.traffic.achieved_rps,
        mean_us: block.traffic.latency_us.mean,
        errors: block.traffic.errors,
        client_limited: block.traffic.client_limited,
    }
}

fn kinds(errors: &BTreeMap<String, u64>) -> String {
    let kinds: Vec<String> = errors.iter().map(|(kind, n)| format!("{n} × {kind}")).collect();
    if kinds.is_empty() { "no errors".into() } else { kinds.join(", ") }
}
