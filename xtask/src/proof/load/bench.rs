//! Where a round runs: the servers, the tools, and how one run is timed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::agreement::DELAY;
use super::servers::{Echo, Iperf3, Nginx, at};
use crate::process::{self, find_program, is_executable};
use crate::workspace::Workspace;

const K6_SCRIPT: &str = "xtask/src/proof/load/k6.js";
const PROTO: &str = "crates/echo/proto/echo.proto";
const CALL: &str = "tollway.lab.v1.Echo.Unary";

/// Default length of one run.
const SECONDS: u32 = 3;

pub(super) struct Bench {
    root: PathBuf,
    /// Where tools are that are not on the search path.
    tools: PathBuf,
    directory: PathBuf,
    pub(super) tollway: PathBuf,
    pub(super) nginx: Nginx,
    pub(super) echo: Echo,
    /// Answers after [`DELAY`].
    pub(super) slow_echo: Echo,
    iperf3: Option<Iperf3>,
    pub(super) rounds: u32,
    pub(super) seconds: u32,
}

/// What one run of a tool gave.
pub(super) struct Run {
    pub(super) value: f64,
    /// User and system time of the whole process.
    pub(super) cpu_us: f64,
    /// From its start to its end.
    pub(super) whole_s: f64,
}

impl Bench {
    pub(super) fn start(workspace: &Workspace, tollway: PathBuf, rounds: u32) -> Result<Self> {
        let nginx =
            find_program("nginx").context("`nginx` is needed: apt-get install nginx-light")?;
        let directory = workspace.root.join("target/proof-load");
        Ok(Self {
            nginx: Nginx::start(&nginx, &directory)?,
            echo: Echo::start(&tollway, &[])?,
            slow_echo: Echo::start(&tollway, &["--delay", DELAY])?,
            iperf3: find_program("iperf3").map(|program| Iperf3::start(&program)).transpose()?,
            root: workspace.root.clone(),
            tools: workspace.tools(),
            directory,
            tollway,
            rounds,
            seconds: SECONDS,
        })
    }

    /// Whether the tool is installed; prints a line if not.
    pub(super) fn has(&self, tool: &str) -> bool {
        let here = self.find(tool).is_some();
        if !here {
            println!("  skipped: `{tool}` is not installed");
        }
        here
    }

    fn find(&self, tool: &str) -> Option<PathBuf> {
        let built = self.tools.join(tool);
        find_program(tool).or_else(|| is_executable(&built).then_some(built))
    }

    /// Runs both tools in each round, in alternating order (ABBA). `run` is passed whether our
    /// tool is next and returns figures of one tool; those of a round are combined.
    pub(super) fn in_turn(
        &self,
        mut run: impl FnMut(bool, u32) -> Result<Value>,
    ) -> Result<Vec<Value>> {
        let mut rounds = Vec::new();
        for round in 1..=self.rounds {
            let first = round % 2 == 1;
            let (mut figures, second) = (run(first, round)?, run(!first, round)?);
            if let (Value::Object(figures), Value::Object(second)) = (&mut figures, second) {
                figures.extend(second);
            }
            rounds.push(figures);
        }
        Ok(rounds)
    }

    pub(super) fn run_ours(
        &self,
        arguments: &[String],
        seconds: u32,
        value: impl Fn(&str) -> Option<f64>,
    ) -> Result<Run> {
        timed(&self.tollway, &our_arguments(arguments, seconds), value)
    }

    pub(super) fn run_theirs(
        &self,
        tool: &str,
        arguments: &[String],
        value: impl Fn(&str) -> Option<f64>,
    ) -> Result<Run> {
        timed(&self.program(tool)?, arguments, value)
    }

    /// What `tollway load` prints: its result as JSON.
    pub(super) fn print_ours(&self, arguments: &[String], seconds: u32) -> Result<String> {
        process::output(Command::new(&self.tollway).args(our_arguments(arguments, seconds)))
    }

    pub(super) fn print_theirs(&self, tool: &str, arguments: &[String]) -> Result<String> {
        process::output(Command::new(self.program(tool)?).args(arguments))
    }

    fn program(&self, tool: &str) -> Result<PathBuf> {
        self.find(tool).with_context(|| format!("`{tool}` is not installed"))
    }

    pub(super) fn nginx_url(&self) -> String {
        format!("http://{}/file", at(self.nginx.http1))
    }

    pub(super) fn nginx_tls_url(&self) -> String {
        format!("https://{}/file", at(self.nginx.https))
    }

    pub(super) fn slow_url(&self) -> String {
        format!("http://{}/", at(self.slow_echo.http))
    }

    /// The log in which h2load writes the time of each request.
    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("requests.log")
    }

    /// A flag with the seconds of a run: `-d3s`.
    pub(super) fn option(&self, flag: &str, unit: &str) -> String {
        format!("{flag}{}{unit}", self.seconds)
    }

    pub(super) fn k6(&self, url: &str, settings: &[&str], seconds: u32) -> Vec<String> {
        let mut arguments = strings(["run", "--quiet", "--no-usage-report"]);
        let given = [format!("URL={url}"), format!("DURATION={seconds}s")];
        for setting in settings.iter().map(ToString::to_string).chain(given) {
            arguments.extend(["--env".to_owned(), setting]);
        }
        arguments.push(self.root.join(K6_SCRIPT).display().to_string());
        arguments
    }

    pub(super) fn ghz(&self, target: &str, calls: &[&str], seconds: u32) -> Vec<String> {
        let proto = self.root.join(PROTO).display().to_string();
        let lasting = format!("{seconds}s");
        let mut arguments = strings(["--insecure", "--proto", &proto, "--call", CALL]);
        arguments.extend(strings(["--data", "{}", "--format", "json", "--duration", &lasting]));
        arguments.extend(calls.iter().map(ToString::to_string));
        arguments.push(target.to_owned());
        arguments
    }

    pub(super) fn iperf3(&self) -> Vec<String> {
        let port = self.iperf3.as_ref().map_or(0, |server| server.port).to_string();
        let lasting = self.seconds.to_string();
        strings(["--client", "127.0.0.1", "--port", &port, "--time", &lasting, "--json"])
    }

    pub(super) fn s_time(&self, kind: &str) -> Vec<String> {
        let (target, lasting) = (at(self.nginx.https), self.seconds.to_string());
        strings([
            "s_time", "-tls1_2", kind, "-connect", &target, "-time", &lasting, "-www", "/file",
        ])
    }
}

fn our_arguments(arguments: &[String], seconds: u32) -> Vec<String> {
    let lasting = format!("{seconds}s");
    let mut all = strings(["load"]);
    all.extend_from_slice(arguments);
    all.extend(strings(["--warm-up", "0s", "-z", &lasting, "--json", "-"]));
    all
}

/// Runs a tool under bash's `time`, which prints times to the millisecond, including the tool's
/// start and end.
fn timed(tool: &Path, arguments: &[String], value: impl Fn(&str) -> Option<f64>) -> Result<Run> {
    const SCRIPT: &str = r#"TIMEFORMAT="times %3U %3S %3R"; time "$@" 2>/dev/null"#;
    let output = Command::new("bash")
        .args(["-c", SCRIPT, "bash"])
        .arg(tool)
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .context("could not start `bash`")?;
    let (printed, told) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    let value = value(&printed).filter(|value| *value > 0.0);
    match (value, told.lines().find_map(times)) {
        (Some(value), Some((cpu_us, whole_s))) => Ok(Run { value, cpu_us, whole_s }),
        _ => {
            bail!("`{} {}` gave no figures:\n{printed}{told}", tool.display(), arguments.join(" "))
        }
    }
}

/// `times 1.234 0.567 3.001`: user, system and real seconds, as microseconds of processor and
/// seconds.
fn times(line: &str) -> Option<(f64, f64)> {
    let mut seconds = line.strip_prefix("times ")?.split(' ').map(str::parse::<f64>);
    let (user, system, real) = (seconds.next()?, seconds.next()?, seconds.next()?);
    Some(((user.ok()? + system.ok()?) * 1e6, real.ok()?))
}

pub(super) fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_bash_are_understood() {
        assert_eq!(times("times 1.250 0.750 3.001"), Some((2e6, 3.001)));
        assert_eq!(times("times 1.250"), None);
    }
}
