//! Fills the table of published figures with today's, from the record's own rows.

use std::collections::BTreeMap;

use tollway_record::compare::BASELINE_SUBJECT;
use tollway_record::record::{FigureUnit, Layout, SeedFigure, SeedTable};
use tollway_record::{Record, Row};

use super::plan::Plan;
use crate::scenario::{FigureMetric, FigureSpec, Scenario};
use crate::subject::BACKGROUND;

/// The scenario's table, as far as the record has its rows.
pub(super) fn seed_table(scenario: &Scenario, plan: &Plan, record: &Record) -> Option<SeedTable> {
    let seed = scenario.seed.as_ref()?;
    let figures = seed.figures.iter().map(|spec| SeedFigure {
        what: spec.what.clone(),
        unit: spec.unit,
        seed: spec.published.clone(),
        today: today(spec, scenario, plan, record),
    });
    Some(SeedTable {
        title: seed.title.clone(),
        notes: seed.notes.clone(),
        figures: figures.collect(),
    })
}

fn today(
    spec: &FigureSpec,
    scenario: &Scenario,
    plan: &Plan,
    record: &Record,
) -> BTreeMap<String, f64> {
    let network = spec.network.as_ref().and_then(|name| scenario.network(&name.value)).unwrap_or(0);
    let wanted = |label: &str| {
        spec.subjects.as_ref().is_none_or(|names| names.iter().any(|name| name.value == label))
    };
    let cells = plan.cells.iter().filter(|cell| {
        cell.case == spec.case.value && cell.leg.network == network && cell.layout == Layout::Shared
    });
    let peers: Vec<(&str, &str)> =
        cells.map(|cell| (plan.subjects[cell.subject].as_str(), cell.id.as_str())).collect();
    let row = |label: &str| {
        let (_, id) = peers.iter().find(|(known, _)| *known == label)?;
        record.row(id)
    };
    let direct = row(BASELINE_SUBJECT);
    let mut today = BTreeMap::new();
    for (label, id) in peers.iter().filter(|(label, _)| wanted(label)) {
        let value = match row(label) {
            Some(row) => of_row(spec, row, direct),
            None => of_idle(spec, id, plan, record),
        };
        today.extend(value.map(|value| ((*label).to_owned(), value)));
    }
    today
}

/// In the figure's unit.
fn of_row(spec: &FigureSpec, row: &Row, direct: Option<&Row>) -> Option<f64> {
    use FigureMetric as Metric;
    let added = |value: fn(&Row) -> Option<f64>| {
        let direct = direct.filter(|direct| direct.conditions.id != row.conditions.id)?;
        Some(value(row)? - value(direct)?)
    };
    let mean = |row: &Row| row.traffic.latency_us.mean;
    let p50 = |row: &Row| row.traffic.latency_us.p50;
    let p75 = |row: &Row| row.traffic.latency_us.p75;
    let p90 = |row: &Row| row.traffic.latency_us.p90;
    let p99 = |row: &Row| row.traffic.latency_us.p99;
    let value = match spec.metric {
        Metric::LatencyMean => mean(row),
        Metric::LatencyP50 => p50(row),
        Metric::LatencyP75 => p75(row),
        Metric::LatencyP90 => p90(row),
        Metric::LatencyP99 => p99(row),
        Metric::LatencyP999 => row.traffic.latency_us.p999,
        Metric::LatencyMax => row.traffic.latency_us.max,
        Metric::AddedMean => added(mean),
        Metric::AddedP50 => added(p50),
        Metric::AddedP75 => added(p75),
        Metric::AddedP90 => added(p90),
        Metric::AddedP99 => added(p99),
        Metric::HandshakeMean => {
            row.traffic.phases_us.get("tls_handshaking").and_then(|phase| phase.mean)
        }
        Metric::Rate => Some(row.traffic.achieved_rps),
        Metric::Throughput => throughput_bps(row),
        Metric::Cpu => cpu_cores(spec, row),
        Metric::Memory => memory_bytes(spec, row),
    }?;
    if spec.unit != FigureUnit::OfDirect {
        return Some(value / base(spec.unit));
    }
    let whole = if spec.metric == Metric::Throughput {
        throughput_bps(direct?)?
    } else {
        direct?.traffic.achieved_rps
    };
    (whole > 0.0).then_some(value / whole)
}

/// How much of the metric's own unit one of the figure's is.
fn base(unit: FigureUnit) -> f64 {
    match unit {
        FigureUnit::Microseconds | FigureUnit::RequestsPerSecond | FigureUnit::OfDirect => 1.0,
        FigureUnit::Milliseconds => 1e3,
        FigureUnit::MegabitsPerSecond => 1e6,
        FigureUnit::Millicores => 1e-3,
        FigureUnit::Mebibytes => f64::from(1 << 20),
    }
}

fn throughput_bps(row: &Row) -> Option<f64> {
    let (bytes, seconds) = (row.traffic.bytes.total(), row.traffic.duration_s);
    (seconds > 0.0).then(|| bytes as f64 * 8.0 / seconds)
}

/// Roles that are the subject's: not the lab's own.
fn of_subject(spec: &FigureSpec, role: &str) -> bool {
    match &spec.process {
        Some(process) => process == role,
        None => !matches!(role, "app" | "load" | "link" | BACKGROUND),
    }
}

fn cpu_cores(spec: &FigureSpec, row: &Row) -> Option<f64> {
    let roles = row.cost.cpu_us_per_request.iter().filter(|(role, _)| of_subject(spec, role));
    let us: Vec<f64> = roles.map(|(_, us)| *us).collect();
    (!us.is_empty()).then(|| us.iter().sum::<f64>() * row.traffic.achieved_rps / 1e6)
}

fn memory_bytes(spec: &FigureSpec, row: &Row) -> Option<f64> {
    let roles = row.cost.rss_bytes.iter().filter(|(role, _)| of_subject(spec, role));
    let bytes: Vec<u64> = roles.map(|(_, bytes)| *bytes).collect();
    (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() as f64)
}

/// Of a case without calls.
fn of_idle(spec: &FigureSpec, id: &str, plan: &Plan, record: &Record) -> Option<f64> {
    let cell = plan.cells.iter().find(|cell| cell.id == id)?;
    let label = &plan.subjects[cell.subject];
    let here = record.idle.iter().filter(|idle| {
        super::assemble::idle_label(idle) == *label && of_subject(spec, &idle.process)
    });
    let values: Vec<f64> = if spec.metric == FigureMetric::Cpu {
        here.map(|idle| idle.cpu_cores).collect()
    } else if spec.metric == FigureMetric::Memory {
        here.map(|idle| idle.rss_bytes as f64).collect()
    } else {
        Vec::new()
    };
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / base(spec.unit))
}
