//! `tollway apply` and `tollway delete`: objects, from files to the sidecars.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use tollway_model::{Label, Object, ObjectId};
use tollway_wire::v1;
use tollway_wire::v1::object_change::Outcome;

use super::objects::{Kind, parse_name, read_files};
use crate::async_runtime::block_on;
use crate::command::access::StoreArg;

/// Sidecars that are named when they lag.
const LAGGING_SHOWN: usize = 10;

#[derive(Args)]
pub(crate) struct ApplyArgs {
    /// File or directory with policies, routes and the like; `-` reads standard input. Can be given several times.
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
    /// Delete what is in a file or directory; `-` reads standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Namespace of names without one.
    #[arg(short = 'n', long, default_value = "default")]
    namespace: Label,
    /// Ignore what does not exist.
    #[arg(long)]
    ignore_missing: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Args)]
struct ChangeArgs {
    #[command(flatten)]
    store: StoreArg,
    /// Return when every sidecar concerned has applied the change.
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
    let objects = read_files(&args.files)?;
    let request = v1::ApplyObjectsRequest {
        objects: objects.iter().map(Into::into).collect(),
        dry_run: args.change.dry_run,
        wait_ms: args.change.wait_ms(),
    };
    block_on(async {
        let changed = args.change.store.admin().await?.apply_objects(request).await?;
        report(&args.change, &changed)
    })?
}

pub(crate) fn delete(args: &DeleteArgs) -> Result<()> {
    let ids: Vec<ObjectId> = match args.kind {
        Some(kind) => {
            let id = |name: &String| {
                Ok(ObjectId { kind: kind.into(), name: parse_name(name, &args.namespace)? })
            };
            args.names.iter().map(id).collect::<Result<_>>()?
        }
        None => read_files(&args.files)?.iter().map(Object::id).collect(),
    };
    let request = v1::DeleteObjectsRequest {
        ids: ids.iter().map(Into::into).collect(),
        dry_run: args.change.dry_run,
        wait_ms: args.change.wait_ms(),
    };
    block_on(async {
        let changed = args.change.store.admin().await?.delete_objects(request).await?;
        report(&args.change, &changed)?;
        let is_absent = |change: &&v1::ObjectChange| change.outcome() == Outcome::Absent;
        let absent: Vec<_> = changed.changes.iter().filter(is_absent).map(id_of).collect();
        if !absent.is_empty() && !args.ignore_missing {
            bail!("there is no {}", absent.join(", no "));
        }
        Ok(())
    })?
}

/// Prints the result for each object and, after a wait, how many sidecars have applied it.
fn report(args: &ChangeArgs, changed: &v1::ChangeObjectsResponse) -> Result<()> {
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
             until they reach their control plane they go by what they had",
            changed.sidecars,
            args.timeout_s,
            shown.join(", ")
        );
    }
    Ok(())
}

fn print_lines(args: &ChangeArgs, changed: &v1::ChangeObjectsResponse) {
    let mode = if args.dry_run { " (dry run)" } else { "" };
    for change in &changed.changes {
        println!("{} {}{mode}", id_of(change), word(change.outcome()));
    }
    if args.wait {
        let lagging = u32::try_from(changed.lagging.len()).unwrap_or(u32::MAX);
        let applied = changed.sidecars.saturating_sub(lagging);
        println!("applied by {applied} of {} sidecars", changed.sidecars);
    }
}

fn print_json(args: &ChangeArgs, changed: &v1::ChangeObjectsResponse) {
    let object = |change: &v1::ObjectChange| {
        let id = change.id.as_ref().and_then(|id| tollway_wire::object_id(id).ok());
        serde_json::json!({
            "kind": id.as_ref().map(|id| id.kind.as_str()),
            "name": id.as_ref().map(|id| id.name.to_string()),
            "outcome": word(change.outcome()),
        })
    };
    let printed = serde_json::json!({
        "objects": changed.changes.iter().map(object).collect::<Vec<_>>(),
        "dry_run": args.dry_run,
        "revision": changed.revision,
        "sidecars": changed.sidecars,
        "lagging": changed.lagging,
    });
    println!("{printed}");
}

/// The object of a change, as `KIND NAMESPACE/NAME`.
fn id_of(change: &v1::ObjectChange) -> String {
    let id = change.id.as_ref().and_then(|id| tollway_wire::object_id(id).ok());
    id.map(|id| id.to_string()).unwrap_or_default()
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
