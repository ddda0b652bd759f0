//! `tollway kube check` and `pods`: how an install is, and which pods have sidecars.

use anyhow::{Context, Result, bail};
use clap::Args;
use tollway_kube::{Cluster, Grade, InjectedApp};

use crate::async_runtime::block_on;
use crate::command::table::{Column, Side, table};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const COLUMNS: [Column; 5] = [
    ("NAMESPACE", Side::Left),
    ("APP", Side::Left),
    ("VERSION", Side::Left),
    ("PODS", Side::Right),
    ("", Side::Left),
];

#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Namespace of the install.
    #[arg(short = 'n', long, value_name = "NAME", default_value = "tollway")]
    namespace: String,
}

#[derive(Args)]
pub(crate) struct PodsArgs {
    /// Only pods of this namespace.
    #[arg(short = 'n', long, value_name = "NAME")]
    namespace: Option<String>,
    /// Only those whose sidecars are of another version than this program.
    #[arg(long)]
    other_versions: bool,
}

pub(super) fn check(args: &CheckArgs) -> Result<()> {
    let findings = block_on(async {
        let cluster = Cluster::find().await?;
        cluster.check(&args.namespace, VERSION).await.context("cannot read the install")
    })??;
    for finding in &findings {
        let mark = match finding.grade {
            Grade::Good => "ok  ",
            Grade::Note => "note",
            Grade::Bad => "BAD ",
        };
        println!("{mark}  {}", finding.text);
        if !finding.remedy.is_empty() {
            println!("      {}", finding.remedy);
        }
    }
    let bad = findings.iter().filter(|finding| finding.grade == Grade::Bad).count();
    if bad > 0 {
        bail!("{bad} of {} things are not as they should be", findings.len());
    }
    Ok(())
}

pub(super) fn pods(args: &PodsArgs) -> Result<()> {
    let apps = block_on(async {
        let cluster = Cluster::find().await?;
        let apps = cluster.injected_apps(args.namespace.as_deref()).await;
        apps.context("cannot list pods")
    })??;
    let is_shown = |app: &InjectedApp| !args.other_versions || app.version != VERSION;
    let row = |app: InjectedApp| {
        let hint =
            if app.version == VERSION { "" } else { "restart them to have that of this program" };
        vec![app.namespace, app.app, app.version, app.pods.to_string(), hint.to_owned()]
    };
    let rows: Vec<Vec<String>> = apps.into_iter().filter(is_shown).map(row).collect();
    if rows.is_empty() {
        println!("no pod has a sidecar of this kind");
        return Ok(());
    }
    print!("{}", table(&COLUMNS, rows));
    Ok(())
}
