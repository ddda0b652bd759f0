//! `tollway kube injector`: the webhook of a cluster that adds sidecars to pods.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use clap::Args;
use tollway_inject::TokenFrom;
use tollway_kube::{Cluster, InjectorOptions, serve_injector};
use tollway_model::KubeName;
use tollway_settings::Log;

use super::sidecar_args::SidecarArgs;
use crate::async_runtime::{block_on, shutdown};
use crate::command::log;
use crate::part::SettingsArgs;

#[derive(Args)]
pub(crate) struct InjectorArgs {
    /// Address to which the API server sends pods, over TLS.
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Metrics and health [default: none].
    #[arg(long, value_name = "IP:PORT")]
    admin_listen: Option<SocketAddr>,
    /// The Service by which the API server reaches it.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "tollway/tollway-injector")]
    service: KubeName,
    /// The Secret in which it keeps its certificate; replicas share it.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "tollway/tollway-injector")]
    secret: KubeName,
    /// The MutatingWebhookConfiguration that names the Service: the API server learns from it by which
    /// authority it knows the injector.
    #[arg(long, value_name = "NAME", default_value = "tollway-tollway-injector")]
    webhook: String,
    /// The ConfigMap into which the control plane writes the root of the network (`tollway control
    /// --kubernetes-root`); not read with --root-pin or --token-secret.
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "tollway/tollway-root")]
    root: KubeName,
    #[command(flatten)]
    sidecar: SidecarArgs,
    #[command(flatten)]
    log: SettingsArgs<Log>,
}

pub(super) fn run(args: InjectorArgs) -> Result<()> {
    let settings = args.sidecar.settings()?;
    let needs_root = matches!(settings.token, TokenFrom::ServiceAccount { root_pin: None, .. });
    let options = InjectorOptions {
        listen: args.listen,
        admin_listen: args.admin_listen,
        service: args.service,
        secret: args.secret,
        webhook: args.webhook,
        root: needs_root.then_some(args.root),
        settings,
    };
    log::start(&args.log.0);
    block_on(async {
        let cluster = Cluster::find().await?;
        let end = shutdown()?;
        Box::pin(serve_injector(cluster, options, end)).await.context("injector")
    })?
}
