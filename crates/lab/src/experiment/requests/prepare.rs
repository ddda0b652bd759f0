//! Decides what of a scenario can be run here: subjects that are there, legs they carry, limits
//! and layouts that are possible. What is left out is reported with its reason.

use std::time::Duration;

use tollway_record::record::{Layout, Limits};

use super::plan::{self, Circumstances, Plan, PlanError};
use crate::cgroup;
use crate::error::LabError;
use crate::experiment::ExperimentOptions;
use crate::machine;
use crate::scenario::{Case, Length, LimitSpec, Scenario, WhenImpossible};
use crate::subject::{Availability, Catalogue, Leg, Subject, SubjectName, Variant};

/// A subject that can run here.
pub(super) struct PreparedSubject {
    /// `tollway`, `tollway:traced-1`: unique.
    pub(super) label: String,
    /// The bare name in the record.
    pub(super) name: String,
    pub(super) variant: Variant,
    /// Whether the variant is not the default.
    pub(super) special: bool,
    pub(super) version: String,
    pub(super) subject: Box<dyn Subject>,
}

/// What of a scenario can be run here.
pub(in crate::experiment) struct Prepared<'a> {
    scenario: &'a Scenario,
    pub(super) subjects: Vec<PreparedSubject>,
    pub(in crate::experiment) plan: Plan,
    length: Length,
    pub(in crate::experiment) left_out: Vec<String>,
    can_limit: Result<(), String>,
}

impl<'a> Prepared<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        options: &ExperimentOptions,
        catalogue: &Catalogue,
    ) -> Result<Self, LabError> {
        let mut left_out = Vec::new();
        let subjects = subjects(scenario, options, catalogue, &mut left_out)?;
        let limited = scenario.cases.iter().any(|case| case.limits.is_some());
        let can_limit = if limited { cgroup::probe() } else { Ok(()) };
        if let Err(reason) = &can_limit {
            left_out.extend(scenario.cases.iter().filter_map(|case| unlimited(case, reason)));
        }
        if !can_pin() && scenario.cases.iter().any(|case| case.layouts.contains(&Layout::Pinned)) {
            left_out.push("layout pinned: it needs two processors".to_owned());
        }
        left_out.extend(not_carried(scenario, &subjects));
        let length = length(scenario, options);
        let plan = make_plan(scenario, &subjects, &can_limit, length, Duration::ZERO)?;
        if plan.cells.is_empty() {
            let scenario = scenario.name.value.clone();
            return Err(PlanError::Empty { scenario, left_out }.into());
        }
        Ok(Self { scenario, subjects, plan, length, left_out, can_limit })
    }

    /// The plan when `spent` of the scenario's budget is over.
    pub(super) fn plan_after(&self, spent: Duration) -> Result<Plan, LabError> {
        Ok(make_plan(self.scenario, &self.subjects, &self.can_limit, self.length, spent)?)
    }
}

/// Whether the subject can have a processor that nothing else uses.
fn can_pin() -> bool {
    machine::cpus() >= 2
}

fn length(scenario: &Scenario, options: &ExperimentOptions) -> Length {
    let mut length = scenario.length(options.length);
    length.blocks = options.blocks.unwrap_or(length.blocks);
    if let Some(window) = options.window {
        length.window_s = window.as_secs_f64();
        length.budget_s = None;
    }
    length
}

fn subjects(
    scenario: &Scenario,
    options: &ExperimentOptions,
    catalogue: &Catalogue,
    left_out: &mut Vec<String>,
) -> Result<Vec<PreparedSubject>, LabError> {
    let named: Vec<SubjectName> = match &options.subjects {
        Some(names) => names.clone(),
        None => scenario.subjects.iter().map(|name| SubjectName::parse(&name.value)).collect(),
    };
    let mut prepared = Vec::new();
    for name in named {
        let found = catalogue.find(&name);
        let (kind, variant) = found.ok_or_else(|| LabError::UnknownSubject {
            name: name.to_string(),
            known: catalogue.names().join(", "),
        })?;
        let version = match kind.availability() {
            Availability::Ready { version } => version,
            Availability::Missing { why, how, .. } => {
                left_out.push(format!("{name}: {why}; {how}"));
                continue;
            }
        };
        let subject = kind.make(variant);
        if let Err(reason) = subject.stands_in(&options.isolation) {
            left_out.push(format!("{name}: {reason}"));
            continue;
        }
        prepared.push(PreparedSubject {
            label: name.to_string(),
            name: kind.name().to_owned(),
            variant: variant.clone(),
            special: kind.variants().first() != Some(variant),
            version,
            subject,
        });
    }
    Ok(prepared)
}

fn make_plan(
    scenario: &Scenario,
    subjects: &[PreparedSubject],
    can_limit: &Result<(), String>,
    length: Length,
    spent: Duration,
) -> Result<Plan, PlanError> {
    let labels: Vec<String> = subjects.iter().map(|subject| subject.label.clone()).collect();
    let circumstances = Circumstances {
        subjects: &labels,
        carries: &|subject, leg| subjects[subject].subject.carries(leg).is_ok(),
        limits: &|case| limits(case, can_limit.is_ok()),
        can_pin: can_pin(),
        length,
        spent,
    };
    plan::plan(scenario, &circumstances)
}

/// The limits of a case here; `None` leaves it out.
fn limits(case: &Case, possible: bool) -> Option<Option<Limits>> {
    let Some(LimitSpec { cpu_millicores, cpu_period_us, memory_bytes, when_impossible }) =
        case.limits
    else {
        return Some(None);
    };
    match (possible, when_impossible) {
        (true, _) => Some(Some(Limits { cpu_millicores, cpu_period_us, memory_bytes })),
        (false, WhenImpossible::Unlimited) => Some(None),
        (false, WhenImpossible::LeaveOut) => None,
    }
}

fn unlimited(case: &Case, reason: &str) -> Option<String> {
    let name = &case.name.value;
    Some(match case.limits?.when_impossible {
        WhenImpossible::LeaveOut => format!("{name}: CPU and memory cannot be limited: {reason}"),
        WhenImpossible::Unlimited => format!("{name} runs without its limits: {reason}"),
    })
}

fn not_carried(scenario: &Scenario, subjects: &[PreparedSubject]) -> Vec<String> {
    let mut reasons = Vec::new();
    for case in &scenario.cases {
        let leg = Leg { network: 0, protocol: case.protocol, tls: case.tls.value };
        let named = |label: &str| {
            let names = case.subjects.as_ref();
            names.is_none_or(|names| names.iter().any(|name| name.value == label))
        };
        for subject in subjects.iter().filter(|subject| named(&subject.label)) {
            if let Err(reason) = subject.subject.carries(&leg) {
                reasons.push(format!("{} in {}: {reason}", subject.label, case.name.value));
            }
        }
    }
    reasons
}
