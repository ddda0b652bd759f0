//! Makes the record of an experiment: what every kind of measurement has, around what one has.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tollway_record::Record;
use tollway_record::check::check;
use tollway_record::record::{Machine, SCHEMA};

use super::kind::{Contents, Kind};
use super::measure::Measured;
use super::{Experiment, ExperimentOptions};
use crate::error::LabError;
use crate::machine;

/// When the experiment ran.
pub(super) struct Timing {
    pub(super) started_at: SystemTime,
    pub(super) duration: Duration,
}

pub(super) fn record(
    experiment: &Experiment,
    kind: &dyn Kind,
    mut measured: Measured,
    timing: &Timing,
) -> Result<Record, LabError> {
    let options = &experiment.options;
    let machine = machine(&measured);
    let contents = kind.contents(std::mem::take(&mut measured.rows))?;
    let Contents { rows, fabric, idle, subjects, comparisons, parameters, .. } = contents;
    let mut notes = experiment.scenario.notes().to_vec();
    notes.extend(contents.notes);
    let mut record = Record {
        schema: SCHEMA.into(),
        scenario: experiment.scenario.name().to_owned(),
        started_at: humantime::format_rfc3339_millis(timing.started_at).to_string(),
        duration_s: timing.duration.as_secs_f64(),
        command_line: options.command_line.clone(),
        machine,
        parameters: common_parameters(options).into_iter().chain(parameters).collect(),
        subjects,
        rows,
        fabric,
        comparisons,
        notes,
        warnings: measured.warnings,
        not_measured: contents.not_measured,
        idle,
        seed_table: None,
    };
    record.warnings.extend(contents.warnings);
    record.warnings.extend(check(&record));
    record.seed_table = kind.seed_table(&record);
    Ok(record)
}

fn machine(measured: &Measured) -> Machine {
    let mut machine = machine::describe();
    machine.steal_fraction = measured.steal_fraction;
    if let Some(pressure) = measured.cpu_pressure {
        machine.details.insert("psi_cpu_some_fraction".into(), format!("{pressure:.4}"));
    }
    machine
}

fn common_parameters(options: &ExperimentOptions) -> BTreeMap<String, serde_json::Value> {
    let of_all: [(&str, serde_json::Value); 5] = [
        ("seed", options.seed.into()),
        ("tollway_version", options.version.clone().into()),
        ("length", options.length.as_str().into()),
        ("gate_steal_fraction", options.gate.steal_fraction.into()),
        ("gate_foreign_cpu_cores", options.gate.foreign_cpu_cores.into()),
    ];
    of_all.map(|(name, value)| (name.to_owned(), value)).into()
}
