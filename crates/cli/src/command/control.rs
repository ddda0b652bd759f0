//! `tollway control`.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tollway_control::{ControlPlane, Options, PartAccounts, PodOptions};
use tollway_kube::{BundleSecret, Cluster, CustomResources, ResourceSources, ServingMark};
use tollway_model::{EgressDefault, KubeName};
use tollway_settings::reload::watch;
use tollway_settings::{Control, Egress, Flags, Given, RemoteCalls, ReusedKeys};

use super::authority_key::authority_key;
use super::etcd_credentials::EtcdCredentials;
use super::log;
use super::mesh::{end_of, key_exchange};
use super::store_location::{Location, location};
use crate::async_runtime::block_on;

pub(crate) fn run(given: Given<Control>, flags: Flags) -> Result<()> {
    let settings = given.settings.clone();
    let log = log::start(&settings.log);
    let (reloads, config) = watch(given, flags);
    let wanted = Wanted::of(&settings);
    let (options, etcd) = options(settings)?;
    let options = Options { config, ..options };
    block_on(async {
        let end = end_of(&reloads)?;
        let hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        let apply = async |new: Control| {
            log.set_filter(&new.log.log_level);
            Ok(())
        };
        let reloading: Infallible;
        tokio::select! {
            ended = serve(wanted, options, etcd, end) => return ended,
            never = reloads.run(Some(hangup), apply) => reloading = never,
        }
        match reloading {}
    })?
}

/// What of a Kubernetes cluster is wanted.
struct Wanted {
    gives_identities: bool,
    parts: PartAccounts,
    roots: Vec<KubeName>,
    resources: ResourceSources,
    services: bool,
    joins: Option<KubeName>,
    /// Of this process.
    pod: Option<KubeName>,
}

impl Wanted {
    fn of(settings: &Control) -> Self {
        Self {
            gives_identities: settings.kubernetes,
            parts: PartAccounts {
                gateways: settings.kubernetes_gateways.clone(),
                agents: settings.kubernetes_fabric.clone(),
            },
            roots: settings.kubernetes_root.clone(),
            resources: ResourceSources {
                own: settings.kubernetes_resources,
                gateway_api: settings.kubernetes_gateway_api,
            },
            services: settings.kubernetes_services,
            joins: settings.kubernetes_joins.clone(),
            pod: settings.kubernetes_pod.clone(),
        }
    }

    /// Adds what the control plane has of the cluster to its options.
    fn add_to(self, options: &mut Options, cluster: &Cluster) {
        if self.resources.own || self.resources.gateway_api {
            options.resources = Some(Arc::new(CustomResources::of(cluster, self.resources)));
        }
        if self.services {
            options.services = Some(Arc::new(cluster.clone()));
        }
        if let Some(at) = self.joins {
            options.join_bundles = Some(Arc::new(BundleSecret::of(cluster, at)));
        }
        if self.gives_identities {
            let (parts, roots) = (self.parts, self.roots);
            options.pods = Some(PodOptions { pods: Arc::new(cluster.clone()), parts, roots });
        }
    }
}

/// Stands by as long as another control plane serves, and serves then.
async fn serve(
    wanted: Wanted,
    mut options: Options,
    etcd: EtcdCredentials,
    end: impl Future<Output = ()> + Send,
) -> Result<()> {
    let mut end = std::pin::pin!(end);
    let needs_cluster = wanted.gives_identities
        || wanted.pod.is_some()
        || matches!(etcd, EtcdCredentials::Secret(_));
    let cluster = if needs_cluster { Some(Cluster::find().await?) } else { None };
    let mark = wanted.pod.clone().zip(cluster.as_ref()).map(|(pod, of)| ServingMark::of(of, pod));
    if let Some(cluster) = &cluster {
        wanted.add_to(&mut options, cluster);
    }
    let prepared = async {
        if let Some(mark) = &mark {
            mark.clear().await;
        }
        etcd.begin(cluster.as_ref(), options.etcd.as_mut()).await
    };
    let credentials = tokio::select! {
        credentials = prepared => credentials,
        () = &mut end => return Ok(()),
    };
    let serving = async {
        let control = tokio::select! {
            bound = ControlPlane::bind(options) => bound?,
            () = &mut end => return Ok(()),
        };
        let marking = async {
            if let Some(mark) = &mark {
                mark.set().await;
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            ended = control.serve(&mut end) => ended,
            never = marking => match never {},
        }
    };
    tokio::select! {
        ended = serving => ended.context("control plane"),
        never = credentials.keep() => match never {},
    }
}

fn options(settings: Control) -> Result<(Options, EtcdCredentials)> {
    let key = authority_key(settings.authority_key_file, settings.allow_open_files)?;
    let Location { directory, etcd, credentials } =
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
    Ok((options, credentials))
}
