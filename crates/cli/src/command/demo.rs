//! `tollway demo`: the crossing and its toll.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_lab::scenario::{AnyScenario, LengthName, Scenario};
use tollway_lab::subject::Catalogue;
use tollway_lab::{Experiment, ExperimentOptions, Isolation};
use tollway_record::Record;

use super::lab::{self, Screen};

/// The scenario that the demo is.
const SCENARIO: &str = "cross-network";

/// Columns of the table if the terminal does not report its width.
const WIDTH: usize = 110;

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Under a minute, with fewer blocks and so wider intervals.
    #[arg(long)]
    quick: bool,
    /// Write the result record; `-` is standard output, the table then goes to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// File that receives the report.
    #[arg(long, value_name = "FILE", default_value = "tollway-report.html")]
    report: PathBuf,
    /// Stay on loopback, without network namespaces, whatever is permitted.
    #[arg(long)]
    loopback: bool,
    /// Share of packets the links lose, each way, such as 0.001.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Variation of the links' delay, one way, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    jitter_ms: f64,
}

pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode> {
    let isolation = if args.loopback {
        Isolation::Loopback { reason: "--loopback was given".to_owned() }
    } else {
        // First of all: the kernel allows it to a single thread only.
        Isolation::prepare()
    };
    let catalogue = Catalogue::built_in();
    let mut read = lab::built_in(SCENARIO, &catalogue)?;
    if let AnyScenario::Requests(scenario) = &mut read.scenario {
        shape_links(scenario, args)?;
    }
    let mut options = ExperimentOptions::new(isolation)?;
    options.length = if args.quick { LengthName::Quick } else { LengthName::Usual };
    // A demonstration is short, and starts again after an interruption.
    options.gate = options.gate.without_repeats();
    options.resumable = false;
    let experiment = Experiment { scenario: read.scenario, text: read.text, options };
    let record = experiment.run(&catalogue, &mut Screen::default())?;
    write_results(args, &record)?;
    let failed = record.rows.iter().any(tollway_record::Row::is_silent);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Gives every link the requested jitter, at most its delay, and loss.
fn shape_links(scenario: &mut Scenario, args: &DemoArgs) -> Result<()> {
    let jitter =
        Duration::try_from_secs_f64(args.jitter_ms / 1e3).context("--jitter-ms is not a time")?;
    let jitter_us = u64::try_from(jitter.as_micros()).unwrap_or(u64::MAX);
    if !(0.0..1.0).contains(&args.loss) {
        bail!("--loss is a share from 0 to below 1");
    }
    for link in scenario.networks.iter_mut().filter_map(|network| network.link.as_mut()) {
        link.jitter_us = jitter_us.min(link.rtt_us / 2);
        link.loss_pct = args.loss * 100.0;
    }
    Ok(())
}

fn write_results(args: &DemoArgs, record: &Record) -> Result<()> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&args.report, &tollway_report::html(record))?;
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let color = std::env::var_os("NO_COLOR").is_none()
        && if to_stdout {
            std::io::stderr().is_terminal()
        } else {
            std::io::stdout().is_terminal()
        };
    let table = tollway_report::terminal(record, width(), color);
    if to_stdout {
        eprint!("{table}");
        println!("{}", record.to_json());
    } else {
        if let Some(path) = &args.json {
            write(path, &record.to_json())?;
        }
        print!("{table}");
    }
    eprintln!("\nReport: {}", args.report.display());
    Ok(())
}

fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| size.ws_col);
    columns.ok().filter(|c| *c > 0).map_or(WIDTH, |c| usize::from(c).min(140))
}
