//! `tollway demo`: the crossing and its toll.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use tollway_lab::{DemoOptions, Event, Isolation, Progress, run_demo};
use tollway_record::Record;

/// Columns of the table where the terminal does not say.
const WIDTH: usize = 110;

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Under a minute, with fewer blocks and so wider intervals.
    #[arg(long)]
    quick: bool,
    /// Writes the result record; `-` is standard output, the table then goes to standard error.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the report goes.
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
    let mut options = DemoOptions::new(isolation, args.quick)?;
    options.loss = args.loss;
    options.jitter =
        Duration::try_from_secs_f64(args.jitter_ms / 1e3).context("--jitter-ms is not a time")?;
    let record = run_demo(&options, &mut Screen::default())?;
    write_results(args, &record)?;
    let failed = record.rows.iter().any(|row| row.traffic.requests == 0);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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

/// Progress on standard error: lines, and on a terminal one line that is written over.
#[derive(Default)]
struct Screen {
    overwriting: bool,
}

impl Progress for Screen {
    fn told(&mut self, event: &Event<'_>) {
        let live = std::io::stderr().is_terminal();
        if std::mem::take(&mut self.overwriting) {
            eprint!("\r\x1b[2K");
        }
        match event {
            Event::Run { done, total, .. } if live => {
                eprint!("{event}");
                if done < total {
                    self.overwriting = true;
                } else {
                    eprintln!();
                }
            }
            Event::Step(_)
            | Event::Plan(_)
            | Event::Link { .. }
            | Event::Run { .. }
            | Event::Warning(_) => eprintln!("{event}"),
        }
    }
}
