//! `tollway lab report`: a result file as one HTML file, or as text.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use tollway_model::{ErrorCode, decode_text};
use tollway_record::record::RECORD_LIMIT_BYTES;
use tollway_report::Report;

use super::run_scenario::width;
use crate::failure::Failure;

#[derive(Args)]
pub(crate) struct ReportArgs {
    /// An experiment, a run of `tollway load --json`, or a file of Fortio's; `-` reads from
    /// standard input.
    #[arg(value_name = "RECORD.json")]
    record: PathBuf,
    /// The HTML file, `-` for standard output; unless given, next to the record, or to
    /// standard output when the record comes from standard input.
    #[arg(short, long, value_name = "FILE.html", conflicts_with = "text")]
    output: Option<PathBuf>,
    /// Print it as text instead.
    #[arg(long)]
    text: bool,
}

pub(super) fn run(args: &ReportArgs) -> Result<()> {
    let report = read(&args.record)?;
    if args.text {
        let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        print!("{}", report.terminal(width(), color));
        return Ok(());
    }
    match output_file(args) {
        None => print!("{}", report.html()),
        Some(path) => {
            std::fs::write(&path, report.html())
                .map_err(|error| unusable("cannot write", &path, &error))?;
            println!("Report: {}", path.display());
        }
    }
    Ok(())
}

/// The HTML file, or `None` for standard output. Never the record itself.
fn output_file(args: &ReportArgs) -> Option<PathBuf> {
    let stdout = Path::new("-");
    match &args.output {
        Some(path) => (path != stdout).then(|| path.clone()),
        None if args.record == stdout => None,
        None if args.record.extension().is_some_and(|extension| extension == "html") => {
            Some(args.record.with_extension("report.html"))
        }
        None => Some(args.record.with_extension("html")),
    }
}

fn read(path: &Path) -> Result<Report> {
    let text = text_in(path)?;
    let hint = "give what `tollway lab run --json`, `tollway load --json` or `fortio load -json` \
                wrote";
    Report::from_json(&text).with_context(|| format!("{} is no result; {hint}", path.display()))
}

/// The text of a file of results; `-` is standard input.
pub(super) fn text_in(path: &Path) -> Result<String> {
    match path.to_str() {
        Some("-") => text_of(std::io::stdin(), "standard input"),
        _ => match std::fs::File::open(path) {
            Ok(file) => text_of(file, &path.display().to_string()),
            Err(error) => Err(unusable("cannot read", path, &error).into()),
        },
    }
}

/// The text, as long as a record may be.
fn text_of(source: impl Read, name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let limit = RECORD_LIMIT_BYTES as u64;
    source
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > limit {
        let what = format!("{name} is longer than {limit} bytes");
        return Err(Failure::new(ErrorCode::FileUnusable, what).into());
    }
    decode_text(bytes).with_context(|| format!("{name} is no text in UTF-8 or UTF-16"))
}

fn unusable(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    let code = ErrorCode::of_file(error, ErrorCode::FileUnusable);
    Failure::new(code, format!("{what} {}: {error}", path.display()))
}
