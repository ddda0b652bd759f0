//! `tollway get`: what a control plane knows.

use anyhow::Result;
use clap::{Args, ValueEnum};
use tollway_wire::v1;

use crate::access::StoreArg;
use crate::runtime::block_on;

#[derive(Args)]
pub(crate) struct GetArgs {
    what: What,
    #[command(flatten)]
    store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Services of this network and of joined ones.
    Services,
}

impl GetArgs {
    pub(crate) fn prints_json(&self) -> bool {
        self.json
    }
}

pub(crate) fn run(args: &GetArgs) -> Result<()> {
    let What::Services = args.what;
    block_on(async {
        let known = args.store.admin().await?.services().await?;
        if args.json {
            print_json(&known)
        } else {
            print_table(&known)
        }
        Ok(())
    })?
}

fn full_name(service: &v1::ServiceStatus) -> String {
    service
        .service
        .as_ref()
        .map(|name| format!("{}.{}.{}", name.app, name.namespace, name.network))
        .unwrap_or_default()
}

fn print_json(known: &v1::ListServicesResponse) {
    let services: Vec<_> = known
        .services
        .iter()
        .map(|service| {
            serde_json::json!({
                "service": full_name(service),
                "protocol": protocol(service),
                "ready_replicas": service.ready_replicas,
                "workloads": service.workloads,
            })
        })
        .collect();
    println!("{}", serde_json::json!({ "revision": known.revision, "services": services }));
}

fn print_table(known: &v1::ListServicesResponse) {
    println!("{:<40} {:<8} {:>6}", "SERVICE", "PROTOCOL", "READY");
    for service in &known.services {
        println!(
            "{:<40} {:<8} {:>6}",
            full_name(service),
            protocol(service),
            service.ready_replicas
        );
    }
}

fn protocol(service: &v1::ServiceStatus) -> String {
    tollway_wire::protocol(service.protocol).map(|p| p.to_string()).unwrap_or_default()
}
