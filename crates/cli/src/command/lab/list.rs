//! `tollway lab list`: what can be run, how long it takes, and which subjects are here.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tollway_lab::experiment::minutes;
use tollway_lab::scenario::{BUILT_IN, LengthName};
use tollway_lab::subject::{Availability, Catalogue};
use tollway_lab::{Experiment, ExperimentOptions, Isolation};

use super::{read_scenario, read_subject};

#[derive(Args)]
pub(crate) struct ListArgs {
    /// A file that describes one more subject. Can be given several times.
    #[arg(long, value_name = "FILE")]
    subject_file: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Serialize)]
struct Listed {
    scenarios: Vec<ListedScenario>,
    subjects: Vec<ListedSubject>,
}

#[derive(Serialize)]
struct ListedScenario {
    name: &'static str,
    purpose: String,
    /// Expected time with `--quick`, without, and with `--full`; absent where it cannot run here.
    quick_s: Option<f64>,
    usual_s: Option<f64>,
    full_s: Option<f64>,
}

#[derive(Serialize)]
struct ListedSubject {
    name: String,
    purpose: String,
    variants: Vec<ListedVariant>,
    available: bool,
    version: String,
    /// What is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// How to get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<String>,
}

#[derive(Serialize)]
struct ListedVariant {
    name: String,
    purpose: String,
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let catalogue = read_subject::catalogue(&read_subject::read(&args.subject_file)?)?;
    let scenarios = BUILT_IN.iter().map(|known| listed_scenario(known.name, &catalogue));
    let listed =
        Listed { scenarios: scenarios.collect::<Result<_>>()?, subjects: subjects(&catalogue) };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        print!("{}", text(&listed));
    }
    Ok(ExitCode::SUCCESS)
}

fn listed_scenario(name: &'static str, catalogue: &Catalogue) -> Result<ListedScenario> {
    let read = read_scenario::built_in(name, catalogue)?;
    let time = |length| -> Result<Option<f64>> {
        // Where it runs changes nothing about how long.
        let options = ExperimentOptions::new(Isolation::Namespaces)?;
        let options = ExperimentOptions { length, ..options };
        let experiment =
            Experiment { scenario: read.scenario.clone(), text: String::new(), options };
        let preview = experiment.preview(catalogue).ok();
        Ok(preview.map(|preview| preview.expected.as_secs_f64()))
    };
    Ok(ListedScenario {
        name,
        purpose: read.scenario.purpose().to_owned(),
        quick_s: time(LengthName::Quick)?,
        usual_s: time(LengthName::Usual)?,
        full_s: time(LengthName::Full)?,
    })
}

fn subjects(catalogue: &Catalogue) -> Vec<ListedSubject> {
    let listed = |kind: &dyn tollway_lab::subject::SubjectKind| {
        let variants = kind.variants().iter();
        let (available, version, why, how) = match kind.availability() {
            Availability::Ready { version } => (true, version, None, None),
            Availability::Missing { why, how, .. } => (false, String::new(), Some(why), Some(how)),
        };
        ListedSubject {
            name: kind.name().to_owned(),
            purpose: kind.purpose().to_owned(),
            variants: variants
                .map(|variant| ListedVariant {
                    name: variant.name.to_string(),
                    purpose: variant.purpose.to_string(),
                })
                .collect(),
            available,
            version,
            why,
            how,
        }
    };
    catalogue.kinds().map(listed).collect()
}

fn text(listed: &Listed) -> String {
    let mut text = String::from("SCENARIOS\n");
    for scenario in &listed.scenarios {
        let time = |seconds: Option<f64>| {
            let time = seconds.and_then(|s| std::time::Duration::try_from_secs_f64(s).ok());
            time.map_or("not here".to_owned(), minutes)
        };
        let (quick, usual, full) =
            (time(scenario.quick_s), time(scenario.usual_s), time(scenario.full_s));
        text += &format!("  {}\n    {}\n", scenario.name, scenario.purpose);
        text += &format!("    {usual}; --quick {quick}; --full {full}\n");
    }
    text += "\nSUBJECTS\n";
    for subject in &listed.subjects {
        let state = match (&subject.why, &subject.how) {
            (Some(why), Some(how)) => format!("not here: {why}\n    {how}"),
            _ if subject.version.is_empty() => "here".to_owned(),
            _ => format!("here, {}", subject.version),
        };
        text += &format!("  {}\n    {}\n    {state}\n", subject.name, subject.purpose);
        for variant in subject.variants.iter().skip(1) {
            text += &format!("    {}:{}  {}\n", subject.name, variant.name, variant.purpose);
        }
    }
    text += "\nRun one with: tollway lab run SCENARIO\n";
    text
}
