//! `tollway control`.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tollway_control::{Options, PodOptions};
use tollway_kube::{BundleSecret, Cluster, CustomResources, ResourceSources};
use tollway_model::EgressDefault;
use tollway_settings::reload::watch;
use tollway_settings::{Control, Egress, Flags, Given, RemoteCalls, ReusedKeys};

use super::authority_key::authority_key;
use super::log;
use super::mesh::{end_of, key_exchange};
use super::store_location::location;
use crate::async_runtime::block_on;

pub(crate) fn run(given: Given<Control>, flags: Flags) -> Result<()> {
    let settings = given.settings.clone();
    let log = log::start(&settings.log);
    let (reloads, config) = watch(given, flags);
    // Its connections are many, and a shell or a unit gives few descriptors.
    let is_in_kubernetes = settings.kubernetes;
    let sources = ResourceSources {
        own: settings.kubernetes_resources,
        gateway_api: settings.kubernetes_gateway_api,
    };
    let follows_services = settings.kubernetes_services;
    let joins = settings.kubernetes_joins.clone();
    let (gateways, root) = (settings.kubernetes_gateways.clone(), settings.kubernetes_root.clone());
    let mut options = Options { config, ..options(settings)? };
    block_on(async {
        if is_in_kubernetes {
            let cluster = Cluster::find().await?;
            if sources.own || sources.gateway_api {
                options.resources = Some(Arc::new(CustomResources::of(&cluster, sources)));
            }
            if follows_services {
                options.services = Some(Arc::new(cluster.clone()));
            }
            if let Some(at) = joins {
                options.join_bundles = Some(Arc::new(BundleSecret::of(&cluster, at)));
            }
            options.pods = Some(PodOptions { pods: Arc::new(cluster), gateways, root });
        }
        let end = end_of(&reloads)?;
        let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        let apply = async |new: Control| {
            log.set_filter(&new.log.log_level);
            Ok(())
        };
        let reloading: Infallible;
        tokio::select! {
            ended = tollway_control::serve(options, end) => return ended.context("control plane"),
            never = reloads.run(Some(hangup), apply) => reloading = never,
        }
        match reloading {}
    })?
}

fn options(settings: Control) -> Result<Options> {
    let key = authority_key(settings.authority_key_file, settings.allow_open_files)?;
    let (directory, etcd) =
        location(settings.store, settings.admin_dir, settings.etcd, settings.allow_open_files)?;
    let mut options = Options::new(directory, settings.network);
    options.etcd = etcd;
    options.authority_key = key.map(Arc::new);
    if let Some(trust_domain) = settings.trust_domain {
        options.trust_domain = trust_domain;
    }
    options.listen = settings.listen;
    options.admin_listen = settings.admin_listen;
    options.certificate_ttl = settings.certificate_ttl_s.0;
    options.renewal_grace = settings.renewal_grace_s.0;
    options.reused_keys = match settings.reused_keys {
        ReusedKeys::Bar => tollway_control::ReusedKeys::Bar,
        ReusedKeys::Refuse => tollway_control::ReusedKeys::Refuse,
    };
    options.share_actor_types = settings.share_actor_types;
    options.key_exchange = key_exchange(settings.classical_key_exchange);
    options.egress = match settings.egress {
        Egress::Open => EgressDefault::Open,
        Egress::Closed => EgressDefault::Closed,
        Egress::Shadow => EgressDefault::Shadow,
    };
    options.remote_calls = match settings.remote_calls {
        RemoteCalls::Direct => tollway_control::RemoteCalls::Direct,
        RemoteCalls::Gateway => tollway_control::RemoteCalls::Gateway,
    };
    options.workload_addresses = settings.workload_addresses;
    options.peer_addresses = settings.peer_addresses;
    options.ports_file = settings.ports_file;
    let count = |setting| usize::try_from(setting).unwrap_or(usize::MAX);
    let shares = settings.shares;
    options.connections.authenticated = count(shares.max_connections);
    options.connections.per_instance = count(shares.max_instance_connections);
    options.followed.bytes_per_instance = shares.max_followed_bytes;
    Ok(options)
}
