//! `tollway diff`: what applying files would change, as unified differences.

mod lines;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tollway_config::manifest::to_yaml;
use tollway_control::AdminClient;
use tollway_model::{Object, ObjectId};
use tollway_wire::v1;
use tollway_wire::v1::object_change::Outcome;

use super::objects::read_files;
use crate::async_runtime::block_on;
use crate::command::access::StoreArg;
use crate::failure::{Misuse, Report};

/// Exit code where something would change.
const DIFFERENT: u8 = 1;
/// Exit code where the comparison failed.
const FAILED: u8 = 2;
/// What stands in for the name of a file that is not there.
const NO_FILE: &str = "/dev/null";

#[derive(Args)]
pub(crate) struct DiffArgs {
    /// File or directory with policies, routes and the like; `-` reads standard input. Can be given several times.
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR|-", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    store: StoreArg,
}

/// The exit code is 0 where nothing would change, 1 where something would, and 2 after a failure.
pub(crate) fn run(args: &DiffArgs) -> Result<ExitCode> {
    match compare(args) {
        Ok(false) => Ok(ExitCode::SUCCESS),
        Ok(true) => Ok(ExitCode::from(DIFFERENT)),
        Err(error) if error.is::<Misuse>() || error.is::<clap::Error>() => Err(error),
        Err(error) => {
            Report::of(&error).print(false);
            Ok(ExitCode::from(FAILED))
        }
    }
}

/// Prints the differences; returns whether there are any.
fn compare(args: &DiffArgs) -> Result<bool> {
    let objects = read_files(&args.files)?;
    block_on(async {
        let mut admin = args.store.admin().await?;
        // The control plane checks what this program cannot: how much there is together.
        let request = v1::ApplyObjectsRequest {
            objects: objects.iter().map(Into::into).collect(),
            dry_run: true,
            wait_ms: 0,
        };
        let planned = admin.apply_objects(request).await?;
        let mut is_different = false;
        for (object, change) in objects.iter().zip(&planned.changes) {
            let present = match change.outcome() {
                Outcome::Unchanged => continue,
                Outcome::Changed => find(&mut admin, &object.id()).await?,
                Outcome::Created | Outcome::Deleted | Outcome::Absent | Outcome::Unspecified => {
                    None
                }
            };
            is_different = true;
            print!("{}", difference(present.as_ref(), object)?);
        }
        Ok(is_different)
    })?
}

async fn find(admin: &mut AdminClient, id: &ObjectId) -> Result<Option<Object>> {
    let request = v1::ListObjectsRequest {
        kind: v1::ObjectKind::from(id.kind).into(),
        namespace: id.name.namespace.to_string(),
        name: id.name.name.to_string(),
    };
    let known = admin.objects(request).await?.objects;
    let read = |object| tollway_wire::object(object).context("the control plane's answer");
    known.first().map(read).transpose()
}

fn difference(present: Option<&Object>, coming: &Object) -> Result<String> {
    let id = coming.id();
    let path = |side: &str| format!("{side}/{}/{}", id.kind, id.name);
    let (from, before) = match present {
        Some(present) => (path("present"), to_yaml([present])?),
        None => (NO_FILE.to_owned(), String::new()),
    };
    let after = to_yaml([coming])?;
    Ok(format!("--- {from}\n+++ {}\n{}", path("applied"), lines::unified(&before, &after)))
}
