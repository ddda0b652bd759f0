//! The output of a run: on the terminal, as JSON, and in the formats of other tools.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use clap::Args;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tollway_load::{Keep, summary};
use tollway_record::threshold::Threshold;
use tollway_record::{RunResult, fortio, hlog, iperf3, k6};

/// A condition of `--fail-if` was met.
const THRESHOLD_MISSED: u8 = 99;

#[derive(Args)]
pub(super) struct OutputArgs {
    /// Write the result as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the result in the format of another tool: fortio, k6, k6-data, k6-summary, iperf3 or hdr;
    /// several with commas.
    #[arg(long, value_name = "FORMAT=FILE", value_delimiter = ',')]
    out: Vec<Out>,
    /// Name of the run on Fortio's page.
    #[arg(hide_short_help = true, long, value_name = "TEXT", default_value = "tollway load")]
    label: String,
    /// Exit with 99 if this holds, such as 'p99>5ms', 'error_rate>0.1%', 'rps<900'; repeatable.
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Threshold>,
    /// Print nothing while it runs.
    #[arg(hide_short_help = true, long)]
    pub(super) quiet: bool,
}

/// A file in a format.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Out {
    format: Format,
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Fortio,
    K6Export,
    K6Data,
    K6Summary,
    Iperf3,
    Hdr,
}

impl FromStr for Out {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (format, path) =
            text.split_once('=').with_context(|| format!("`{text}` is not FORMAT=FILE"))?;
        let format = match format {
            "fortio" => Format::Fortio,
            "k6" => Format::K6Export,
            "k6-data" => Format::K6Data,
            "k6-summary" => Format::K6Summary,
            "iperf3" => Format::Iperf3,
            "hdr" => Format::Hdr,
            _ => bail!(
                "`{format}` is no format: give fortio, k6, k6-data, k6-summary, iperf3 or hdr"
            ),
        };
        if path.is_empty() {
            bail!("`{text}` names no file");
        }
        Ok(Self { format, path: path.into() })
    }
}

impl OutputArgs {
    /// The histograms that the formats need.
    pub(super) fn keep(&self) -> Keep {
        let any = |formats: &[Format]| self.out.iter().any(|out| formats.contains(&out.format));
        Keep {
            seconds: any(&[Format::Hdr]),
            phases: any(&[Format::K6Export, Format::K6Data, Format::K6Summary]),
        }
    }

    /// Refuses formats that this kind of run has nothing for, before it runs.
    pub(super) fn check(&self, is_throughput: bool) -> Result<()> {
        for out in &self.out {
            if is_throughput != (out.format == Format::Iperf3) {
                let (kind, formats) = if is_throughput {
                    ("throughput is", "iperf3")
                } else {
                    ("requests are", "fortio, k6, k6-data, k6-summary or hdr")
                };
                bail!("{} cannot hold this run; {kind} written as {formats}", out.path.display());
            }
        }
        Ok(())
    }

    /// Refuses every format for a run of packets, which none of them can hold.
    pub(super) fn check_packets(&self) -> Result<()> {
        match self.out.first() {
            Some(out) => bail!(
                "{} cannot hold this run; packets are written as --json alone",
                out.path.display()
            ),
            None => Ok(()),
        }
    }

    /// Checks the conditions, prints the result and writes its files.
    pub(super) fn write_result(&self, mut result: RunResult) -> Result<ExitCode> {
        let missed = result.judge_thresholds(&self.fail_if)?;
        for out in &self.out {
            let text = formatted(out.format, &result, &self.label)?;
            write(&out.path, &text)?;
        }
        match &self.json {
            Some(path) if path == Path::new("-") => println!("{}", result.to_json()),
            Some(path) => {
                write(path, &result.to_json())?;
                print!("{}", summary(&result));
            }
            None => print!("{}", summary(&result)),
        }
        Ok(if missed { ExitCode::from(THRESHOLD_MISSED) } else { ExitCode::SUCCESS })
    }
}

fn formatted(format: Format, result: &RunResult, label: &str) -> Result<String> {
    let started = OffsetDateTime::parse(&result.started_at, &Rfc3339)
        .context("the result's own start is no time")?;
    Ok(match format {
        Format::Fortio => fortio::write(result, label)?,
        Format::K6Export => k6::write_export(result)?,
        Format::K6Data => k6::write_data(result)?,
        Format::K6Summary => {
            k6::write_summary(result, &OffsetDateTime::now_utc().format(&Rfc3339)?)?
        }
        Format::Iperf3 => {
            let seconds = u64::try_from(started.unix_timestamp()).unwrap_or(0);
            iperf3::write(result, seconds).context("the run measured no throughput")?
        }
        Format::Hdr => {
            let warm_up = Duration::try_from_secs_f64(result.warm_up_s).unwrap_or_default();
            hlog::write(result, SystemTime::from(started) + warm_up)?
        }
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_named_with_their_file() {
        let out: Out = "fortio=a=b.json".parse().unwrap();
        assert_eq!(out, Out { format: Format::Fortio, path: "a=b.json".into() });
        for bad in ["fortio", "fortio=", "gatling=x"] {
            assert!(bad.parse::<Out>().is_err(), "{bad}");
        }
    }
}
