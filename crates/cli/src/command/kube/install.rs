//! `tollway kube install` and `uninstall`: a network in a cluster, without Helm.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;
use tollway_config::go::to_yaml;
use tollway_kube::{Change, Choices, Cluster, StoreKind, manifest};
use tollway_model::NetworkName;

use super::sidecar_args::Pull;
use crate::async_runtime::block_on;

#[derive(Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    choices: ChoiceArgs,
    /// Print the objects, which `kubectl apply -f -` takes, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Time for all of it to be ready, in seconds; 0 does not wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    wait_s: u64,
}

#[derive(Args)]
pub(crate) struct UninstallArgs {
    /// Namespace of the install.
    #[arg(short = 'n', long, value_name = "NAME", default_value = "tollway")]
    namespace: String,
    /// Remove the volume of the store, the namespace and the definitions of custom resources too: the root
    /// of the network is lost, and with it every identity, and every Policy, Route, TrafficPolicy, Failover
    /// and Egress of the cluster.
    #[arg(long)]
    purge: bool,
}

/// What an operator chooses; the chart has more.
#[derive(Args)]
struct ChoiceArgs {
    /// Namespace of the install, made if it does not exist.
    #[arg(short = 'n', long, value_name = "NAME", default_value = "tollway")]
    namespace: String,
    /// Name of the network that the cluster is; it is a part of every identity and cannot change later.
    #[arg(long, value_name = "NAME", default_value = "local")]
    network: NetworkName,
    /// The image of all parts and of sidecars.
    #[arg(long, value_name = "IMAGE", default_value = concat!("tollway:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// When a node fetches the image.
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent")]
    image_pull_policy: Pull,
    /// Class of the volume of the store [default: that of the cluster].
    #[arg(long, value_name = "CLASS", conflicts_with = "memory_store")]
    storage_class: Option<String>,
    /// Keep the store in memory, for trials: it ends with its pod, and with it every identity.
    #[arg(long)]
    memory_store: bool,
}

impl ChoiceArgs {
    fn objects(self) -> Result<Vec<Value>> {
        let store = match (self.memory_store, self.storage_class) {
            (true, _) => StoreKind::Memory,
            (false, class) => StoreKind::Volume { class },
        };
        let choices = Choices {
            namespace: self.namespace,
            network: self.network,
            image: self.image,
            pull_policy: self.image_pull_policy.policy().word().to_owned(),
            store,
        };
        Ok(manifest(&choices)?)
    }
}

pub(super) fn install(args: InstallArgs) -> Result<()> {
    let namespace = args.choices.namespace.clone();
    let objects = args.choices.objects()?;
    if args.dry_run {
        let texts: Vec<String> = objects.iter().map(to_yaml).collect();
        print!("{}", texts.join("---\n"));
        return Ok(());
    }
    block_on(async {
        let cluster = Cluster::find().await?;
        cluster.install(&namespace, &objects, print_change).await.context("install")?;
        if args.wait_s > 0 {
            println!("waiting until all of it is ready");
            let within = Duration::from_secs(args.wait_s);
            cluster.wait_installed(&namespace, within).await.context("install")?;
            println!(
                "ready; `kubectl label namespace NAME tollway.dev/inject=true` gives the pods of a namespace sidecars, from their next start on"
            );
        }
        Ok(())
    })?
}

pub(super) fn uninstall(args: &UninstallArgs) -> Result<()> {
    // Which objects there are does not depend on the other choices.
    let choices = Choices {
        namespace: args.namespace.clone(),
        network: "local".parse().context("name of a network")?,
        image: "tollway".to_owned(),
        pull_policy: "IfNotPresent".to_owned(),
        store: StoreKind::Memory,
    };
    let objects = manifest(&choices)?;
    block_on(async {
        let cluster = Cluster::find().await?;
        cluster
            .uninstall(&args.namespace, &objects, args.purge, print_change)
            .await
            .context("uninstall")?;
        if !args.purge {
            println!("the namespace and the volume of the store stay; --purge removes them");
        }
        Ok(())
    })?
}

fn print_change(object: &str, change: Change) {
    match change {
        Change::Applied => println!("applied {object}"),
        Change::Removed => println!("removed {object}"),
        Change::WasAbsent => println!("{object} is not there"),
        Change::Kept => {
            println!("{object} stays, with all objects of its kind; --purge removes it")
        }
    }
}
