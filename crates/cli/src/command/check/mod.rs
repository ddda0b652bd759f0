//! `tollway check`: pre-flight checks. Changes nothing: what a check opens is closed at once.

mod control_plane;
mod etcd_store;
mod finding;
mod front_files;
mod local_app;
mod machine;
mod ports;
mod store_directory;
mod trust;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tollway_config::Mistakes;
use tollway_model::ErrorCode;
use tollway_settings::{
    self as settings, Control, Front, Gateway, Given, Listing, SettingsError, Sidecar,
};

use super::authority_key::authority_key;
use super::etcd_credentials::EtcdCredentials;
use super::run::RunArgs;
use super::store_location::{Location, location};
use crate::part::{PartArgs, parse_options};
use finding::{Finding, Level};

/// Columns where the output is no terminal, and the most that are used.
const COLUMNS: usize = 60;
const MOST_COLUMNS: usize = 100;

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The part to be started; without it only this machine and what runs on it is checked.
    #[arg(value_enum)]
    part: Option<Part>,
    /// The options of the part, such as --config FILE.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Check only whether namespaces are permitted, in a process of its own.
    #[arg(long, hide = true)]
    probe_isolation: bool,
}

impl CheckArgs {
    pub(crate) fn prints_json(&self) -> bool {
        self.json
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    Sidecar,
    Gateway,
    Front,
    Control,
    /// An app with its sidecar; behind `--` its command.
    Run,
    /// The demo and its networks.
    Demo,
}

impl Part {
    fn command(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar",
            Self::Gateway => "gateway",
            Self::Front => "front",
            Self::Control => "control",
            Self::Run => "run",
            Self::Demo => "demo",
        }
    }
}

/// Runs the checks and prints the findings.
pub(crate) fn check(mut args: CheckArgs) -> Result<ExitCode> {
    if args.probe_isolation {
        return Ok(machine::probe_isolation());
    }
    // A `--` right behind the part is taken for the check's own; `run` has nothing else there.
    let bare =
        args.options.first().is_some_and(|first| !first.as_encoded_bytes().starts_with(b"-"));
    if args.part == Some(Part::Run) && bare {
        args.options.insert(0, "--".into());
    }
    // Behind the part everything is for the part, but for this; behind `--` it is the app's.
    let own = args.options.iter().position(|option| option == "--").unwrap_or(args.options.len());
    let json = args.options[..own].iter().position(|option| option == "--json");
    if let Some(at) = json {
        args.options.remove(at);
        args.json = true;
    }
    let findings = inspect(&args)?;
    let failed = findings.iter().any(|finding| finding.level == Level::Fail);
    if args.json {
        let checks: Vec<_> = findings.iter().map(Finding::to_json).collect();
        println!("{}", serde_json::json!({ "ok": !failed, "checks": checks }));
    } else {
        print_text(&findings);
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_text(findings: &[Finding]) {
    let columns = columns();
    for finding in findings {
        print!("{}", finding.to_text(columns));
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (ok, warn, fail) = (count(Level::Ok), count(Level::Warn), count(Level::Fail));
    println!("{ok} ok, {warn} to look at, {fail} failed");
}

/// What the terminal has, or else `COLUMNS`.
fn columns() -> usize {
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| size.ws_col);
    let terminal = terminal.ok().filter(|columns| *columns > 0).map(usize::from);
    terminal.map_or(COLUMNS, |columns| columns.min(MOST_COLUMNS))
}

/// Checks everything that `args` name, in the order of a start.
fn inspect(args: &CheckArgs) -> Result<Vec<Finding>> {
    let mut findings = vec![machine::kernel()];
    if matches!(args.part, None | Some(Part::Demo)) {
        findings.push(machine::isolation());
    }
    findings.extend([machine::descriptors(), machine::ipv6(), machine::runtime_directory()]);
    let Some(part) = args.part else {
        findings.extend(inspect_running()?);
        return Ok(findings);
    };
    if part == Part::Demo {
        if !args.options.is_empty() {
            let given = args.options.iter().map(|option| option.to_string_lossy());
            let what = format!("`check demo` takes no options, not {}", given.collect::<String>());
            findings.push(Finding::fail("options", ErrorCode::BadConfiguration, what, ""));
        }
        return Ok(findings);
    }
    match survey(part, &args.options) {
        Ok(settings) => {
            findings.push(settings_file(&settings));
            let itself = part_itself(part, &settings, &args.options)?;
            let runs = part == Part::Control
                && itself.iter().any(|finding| finding.name == store_directory::RUNS);
            // The ports of one that runs already are its own.
            let most = if runs { Level::Warn } else { Level::Fail };
            findings.extend(ports::of(&settings).into_iter().map(|port| port.at_most(most)));
            findings.extend(itself);
        }
        Err(mistakes) => findings.extend(mistakes),
    }
    Ok(findings)
}

/// What `tollway PART OPTIONS` would run with, even if it lacks some that a start needs.
fn survey(part: Part, options: &[OsString]) -> Result<Listing, Vec<Finding>> {
    match part {
        Part::Sidecar => survey_of(parse_options::<PartArgs<Sidecar>>("sidecar", options)),
        Part::Gateway => survey_of(parse_options::<PartArgs<Gateway>>("gateway", options)),
        Part::Front => survey_of(parse_options::<PartArgs<Front>>("front", options)),
        Part::Control => survey_of(parse_options::<PartArgs<Control>>("control", options)),
        Part::Run => survey_of(parse_options::<RunArgs>("run", options).map(|run| run.part)),
        Part::Demo => Err(Vec::new()),
    }
}

fn survey_of<P: settings::Part>(
    options: Result<PartArgs<P>, clap::Error>,
) -> Result<Listing, Vec<Finding>> {
    let refused = |name: &str, what: String, fix: &str| {
        Finding::fail(name, ErrorCode::BadConfiguration, what, fix)
    };
    let help = format!("`tollway {} --help` lists the options", P::NAME);
    let options = match options {
        Ok(options) => options,
        // Help was requested.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            return Err(vec![refused("options", line.to_owned(), &help)]);
        }
    };
    let survey = options.survey().map_err(|error| match error {
        SettingsError::Mistakes(Mistakes(mistakes)) => {
            let finding = |mistake| refused("settings file", format!("{mistake}"), "");
            mistakes.iter().map(finding).collect()
        }
        error @ (SettingsError::File(_) | SettingsError::Missing(_)) => {
            vec![Finding::of_error("settings file", &error.into())]
        }
    })?;
    // Each check names what it lacks itself; a setting that needs another has no check.
    let lacking = survey.missing.iter().filter(|missing| !missing.must_be_given());
    let lacking: Vec<_> = lacking
        .map(|missing| refused("options", format!("--{} is missing", missing.flag), &help))
        .collect();
    if lacking.is_empty() { Ok(survey.listing) } else { Err(lacking) }
}

fn settings_file(settings: &Listing) -> Finding {
    match &settings.file {
        Some(file) => Finding::ok("settings file", format!("{} is valid", file.display())),
        None => Finding::ok("settings file", "none; flags and defaults"),
    }
}

fn part_itself(part: Part, settings: &Listing, options: &[OsString]) -> Result<Vec<Finding>> {
    if part == Part::Run {
        return local_app::inspect(settings, options);
    }
    if part == Part::Front {
        return Ok(front_files::inspect(settings));
    }
    if part == Part::Control {
        return store(options);
    }
    control_plane::inspect(settings)
}

/// Where `tollway control` with these options would have its store.
fn store(options: &[OsString]) -> Result<Vec<Finding>> {
    let given = parse_options::<PartArgs<Control>>("control", options)?.survey()?.complete();
    // All other settings have defaults.
    let Ok(Given { settings, .. }) = given else {
        let (what, fix) = ("no store is named", "name one with --store DIR");
        return Ok(vec![Finding::fail("store", ErrorCode::BadConfiguration, what, fix)]);
    };
    let key = match authority_key(settings.authority_key_file, settings.allow_open_files) {
        Ok(key) => key,
        Err(error) => return Ok(vec![Finding::of_error("authority key", &error.into())]),
    };
    match location(settings.store, settings.admin_dir, settings.etcd, settings.allow_open_files) {
        Ok(Location { credentials: EtcdCredentials::Secret(at), etcd: Some(etcd), .. }) => {
            let members = etcd.members.join(",");
            let what =
                format!("etcd at {members} is not asked: its certificate is in the Secret {at}");
            Ok(vec![Finding::ok("store", what)])
        }
        Ok(Location { directory, etcd: None, .. }) => {
            store_directory::inspect(&directory, key.as_ref())
        }
        Ok(Location { directory, etcd: Some(etcd), .. }) => etcd_store::inspect(&etcd, &directory),
        Err(error) => Ok(vec![Finding::of_error("store", &error)]),
    }
}

/// Without a part: checks the default locations.
fn inspect_running() -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for part in [Part::Sidecar, Part::Gateway] {
        let Ok(settings) = survey(part, &[]) else { continue };
        let ports = ports::of(&settings);
        let name = format!("{} ports", part.command());
        let taken: Vec<_> = ports.into_iter().filter(|f| f.level > Level::Ok).collect();
        if taken.is_empty() {
            findings.push(Finding::ok(&name, "all of them are free"));
        }
        findings.extend(taken.into_iter().map(|finding| finding.at_most(Level::Warn)));
    }
    findings.push(local_app::local_control()?);
    findings.extend(control_plane::inspect_usual_address()?);
    Ok(findings)
}
