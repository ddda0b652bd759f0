//! `tollway apply` and `tollway delete`: policies, from files to the sidecars.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use tollway_model::{Label, ObjectName, Policy};
use tollway_wire::v1;
use tollway_wire::v1::policy_change::Outcome;

use crate::async_runtime::block_on;
use crate::command::access::StoreArg;
use tollway_config::manifest::PolicyManifest;
use tollway_config::yaml;

/// Files of one directory that are read.
const FILES_LIMIT: usize = 1000;
/// Endings of files that are taken from a directory.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// Sidecars that are named when they lag.
const LAGGING_SHOWN: usize = 10;

#[derive(Args)]
pub(crate) struct ApplyArgs {
    /// File or directory with policies; `-` reads standard input. Can be given several times.
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR|-", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Args)]
pub(crate) struct DeleteArgs {
    /// Kind of the names.
    #[arg(requires = "names", required_unless_present = "files")]
    kind: Option<Kind>,
    /// NAME or NAMESPACE/NAME.
    #[arg(conflicts_with = "files")]
    names: Vec<String>,
    /// Delete the policies of a file or directory; `-` reads standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Namespace of names without one.
    #[arg(short = 'n', long, default_value = "default")]
    namespace: Label,
    /// Ignore policies that do not exist.
    #[arg(long)]
    ignore_missing: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Policy,
}

#[derive(Args)]
struct ChangeArgs {
    #[command(flatten)]
    store: StoreArg,
    /// Return when every connected sidecar concerned has applied the change.
    #[arg(long)]
    wait: bool,
    /// Longest time to wait, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout_s: u64,
    /// Check and compare only; change nothing.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl ApplyArgs {
    /// Whether facts, and so failures too, are printed as JSON.
    pub(crate) fn prints_json(&self) -> bool {
        self.change.json
    }
}

impl DeleteArgs {
    /// As [`ApplyArgs::prints_json`].
    pub(crate) fn prints_json(&self) -> bool {
        self.change.json
    }
}

impl ChangeArgs {
    fn wait_ms(&self) -> u64 {
        if self.wait { self.timeout_s.saturating_mul(1000) } else { 0 }
    }
}

pub(crate) fn apply(args: &ApplyArgs) -> Result<()> {
    let policies = read_files(&args.files)?;
    let request = v1::ApplyPoliciesRequest {
        policies: policies.iter().map(Into::into).collect(),
        dry_run: args.change.dry_run,
        wait_ms: args.change.wait_ms(),
    };
    block_on(async {
        let changed = args.change.store.admin().await?.apply_policies(request).await?;
        report(&args.change, &changed)
    })?
}

pub(crate) fn delete(args: &DeleteArgs) -> Result<()> {
    let names: Vec<ObjectName> = match args.kind {
        Some(Kind::Policy) => {
            let parse = |name: &String| parse_name(name, &args.namespace);
            args.names.iter().map(parse).collect::<Result<_>>()?
        }
        None => read_files(&args.files)?.into_iter().map(|policy| policy.name).collect(),
    };
    let request = v1::DeletePoliciesRequest {
        names: names.iter().map(Into::into).collect(),
        dry_run: args.change.dry_run,
        wait_ms: args.change.wait_ms(),
    };
    block_on(async {
        let changed = args.change.store.admin().await?.delete_policies(request).await?;
        report(&args.change, &changed)?;
        let absent: Vec<_> = of_outcome(&changed, Outcome::Absent).collect();
        if !absent.is_empty() && !args.ignore_missing {
            bail!("there is no policy {}", absent.join(", "));
        }
        Ok(())
    })?
}

/// Reads `NAME` or `NAMESPACE/NAME`.
pub(crate) fn parse_name(text: &str, namespace: &Label) -> Result<ObjectName> {
    let name = match text.split_once('/') {
        Some((namespace, name)) => ObjectName::new(namespace, name),
        None => ObjectName::new(namespace.as_str(), text),
    };
    name.with_context(|| format!("`{text}`"))
}

/// The policies of files and directories, in order; a mistake in any of them is an error.
fn read_files(paths: &[PathBuf]) -> Result<Vec<Policy>> {
    let mut policies = Vec::new();
    for path in paths {
        let files = if path.is_dir() { directory(path)? } else { vec![path.clone()] };
        for file in files {
            let shown = file.display().to_string();
            let text = yaml::read_file(&file)?;
            let manifests: Vec<PolicyManifest> =
                yaml::parse_all(&text, if shown == "-" { "standard input" } else { &shown })?;
            for manifest in manifests {
                policies.push(manifest.into_policy().with_context(|| shown.clone())?);
            }
        }
    }
    if policies.is_empty() {
        bail!("there is no policy in what was given");
    }
    Ok(policies)
}

fn directory(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = || format!("cannot read the directory {}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(failed)? {
        let file = entry.with_context(failed)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) {
            files.push(file);
        }
        if files.len() > FILES_LIMIT {
            bail!("{} has more than {FILES_LIMIT} files", path.display());
        }
    }
    files.sort();
    Ok(files)
}

/// Prints the result for each policy and, after a wait, how many sidecars have applied it.
fn report(args: &ChangeArgs, changed: &v1::ChangePoliciesResponse) -> Result<()> {
    if args.json {
        print_json(args, changed);
    } else {
        print_lines(args, changed);
    }
    let lagging = changed.lagging.len();
    if args.wait && lagging > 0 {
        let shown = changed.lagging.iter().take(LAGGING_SHOWN).cloned().collect::<Vec<_>>();
        let more = if lagging > LAGGING_SHOWN { ", …" } else { "" };
        bail!(
            "{lagging} of {} sidecars have not applied it within {} s: {}{more}; \
             until they hear their control plane they go by the policies they had",
            changed.sidecars,
            args.timeout_s,
            shown.join(", ")
        );
    }
    Ok(())
}

fn print_lines(args: &ChangeArgs, changed: &v1::ChangePoliciesResponse) {
    let mode = if args.dry_run { " (dry run)" } else { "" };
    for change in &changed.changes {
        println!("policy {} {}{mode}", name_of(change), word(change.outcome()));
    }
    if args.wait {
        let lagging = u32::try_from(changed.lagging.len()).unwrap_or(u32::MAX);
        let applied = changed.sidecars.saturating_sub(lagging);
        println!("applied by {applied} of {} sidecars", changed.sidecars);
    }
}

fn print_json(args: &ChangeArgs, changed: &v1::ChangePoliciesResponse) {
    let policies = changed.changes.iter().map(|change| {
        serde_json::json!({ "policy": name_of(change), "outcome": word(change.outcome()) })
    });
    let printed = serde_json::json!({
        "policies": policies.collect::<Vec<_>>(),
        "dry_run": args.dry_run,
        "revision": changed.revision,
        "sidecars": changed.sidecars,
        "lagging": changed.lagging,
    });
    println!("{printed}");
}

fn of_outcome(
    changed: &v1::ChangePoliciesResponse,
    outcome: Outcome,
) -> impl Iterator<Item = String> {
    changed.changes.iter().filter(move |change| change.outcome() == outcome).map(name_of)
}

fn name_of(change: &v1::PolicyChange) -> String {
    change.name.as_ref().map(|n| format!("{}/{}", n.namespace, n.name)).unwrap_or_default()
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Created => "created",
        Outcome::Changed => "changed",
        Outcome::Unchanged => "unchanged",
        Outcome::Deleted => "deleted",
        Outcome::Absent => "not there",
        Outcome::Unspecified => "unknown",
    }
}
