//! The settings of `tollway control`.

use std::net::SocketAddr;
use std::path::PathBuf;

use tollway_model::{AddressRange, AgentAccount, KubeName, NetworkName, TrustDomain};

use super::Log;
use crate::serial::part;
use crate::{Seconds, Settings, StoreLocation};

const ETCD: &str = "etcd";
const SHARES: &str = "limits of connections and names";

/// A control plane.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Control {
    /// Directory of the store and the admin socket, made if it does not exist; or
    /// etcd://HOST:PORT[,HOST:PORT…]/PREFIX for a store in etcd, of which one control plane is the
    /// master and others stand by.
    #[setting(form = "DIR|URL")]
    pub store: StoreLocation,
    /// Directory of the admin socket where the store is in etcd; made if it does not exist.
    #[setting(form = "DIR")]
    pub admin_dir: Option<PathBuf>,
    #[setting(flatten)]
    pub etcd: Etcd,
    /// File with a passphrase, or any secret of at least 16 bytes, by which the key of the
    /// authority is sealed in the store; without it the variable `TOLLWAY_AUTHORITY_KEY` is read.
    #[setting(form = "FILE")]
    pub authority_key_file: Option<PathBuf>,
    /// Name of the network this control plane serves.
    #[setting(form = "NAME", default = "local")]
    pub network: NetworkName,
    /// Scope of its certificate authority, fixed at the first start [default: NETWORK.tollway].
    #[setting(form = "NAME")]
    pub trust_domain: Option<TrustDomain>,
    /// Address for workloads and gateways; port 0 takes a free one.
    #[setting(form = "IP:PORT", default = "127.0.0.1:15010")]
    pub listen: SocketAddr,
    /// Metrics and health; port 0 takes a free one [default: none].
    #[setting(form = "IP:PORT")]
    pub admin_listen: Option<SocketAddr>,
    /// Life of a workload's certificate, in seconds.
    #[setting(form = "SECONDS", default = "86400")]
    pub certificate_ttl_s: Seconds,
    /// How long after its end a certificate may still renew itself, and nothing else, in seconds; 0
    /// for not at all.
    #[setting(form = "SECONDS", default = "604800")]
    pub renewal_grace_s: Seconds,
    /// What a renewal with a key that another renewal has replaced leads to.
    #[setting(default = "bar")]
    pub reused_keys: ReusedKeys,
    /// Let apps in daprd's place host actor types that others in daprd's place offer, as in Dapr; by
    /// default a type belongs to the first app that offers it.
    #[setting()]
    pub share_actor_types: bool,
    /// What becomes of calls of hosts out of the mesh that no Egress allows.
    #[setting(default = "open")]
    pub egress: Egress,
    /// How workloads reach other networks.
    #[setting(default = "direct")]
    pub remote_calls: RemoteCalls,
    /// A range of addresses that workloads may state beside the one from which they register, such as
    /// 10.2.0.0/16.
    #[setting(form = "RANGE")]
    pub workload_addresses: Vec<AddressRange>,
    /// A range of addresses that a joined network may state for its gateways beside public ones, such
    /// as 10.2.0.0/16.
    #[setting(form = "RANGE")]
    pub peer_addresses: Vec<AddressRange>,
    /// Give identities to pods of the Kubernetes cluster that this control plane runs in, or to which
    /// the file named by the variable `KUBECONFIG` leads, by their service accounts' tokens.
    #[setting()]
    pub kubernetes: bool,
    /// The service account whose pods are gateways of this network [default: none].
    #[setting(form = "NAMESPACE/NAME")]
    pub kubernetes_gateways: Option<KubeName>,
    /// A service account whose pods are agents of a group of neighbours.
    #[setting(form = "NAMESPACE/NAME=GROUP")]
    pub kubernetes_fabric: Vec<AgentAccount>,
    /// A ConfigMap that receives the name of this network, and the pin of its root, for those who
    /// inject sidecars.
    #[setting(form = "NAMESPACE/NAME", needs(&["kubernetes"]))]
    pub kubernetes_root: Vec<KubeName>,
    /// Make objects of this network of the custom resources of the cluster: each Policy, Route,
    /// TrafficPolicy, Failover and Egress of every namespace.
    #[setting(needs(&["kubernetes"]))]
    pub kubernetes_resources: bool,
    /// Make routes of this network of the HTTPRoutes and GRPCRoutes of the cluster's Gateway API whose
    /// parents are Services.
    #[setting(needs(&["kubernetes_services"]))]
    pub kubernetes_gateway_api: bool,
    /// Have Services of the cluster called in the mesh where their pods have sidecars: apps whose
    /// connections are captured call them by the Service's name and address.
    #[setting(needs(&["kubernetes"]))]
    pub kubernetes_services: bool,
    /// The Secret whose keys have join bundles of other networks: each is accepted as soon as it is
    /// there [default: none].
    #[setting(form = "NAMESPACE/NAME", needs(&["kubernetes"]))]
    pub kubernetes_joins: Option<KubeName>,
    /// The pod of this control plane: it gets the label `tollway.dev/serves` while it serves, and has none
    /// while it stands by [default: none].
    #[setting(form = "NAMESPACE/NAME")]
    pub kubernetes_pod: Option<KubeName>,
    /// Agree on keys by X25519 alone; by default members of the mesh use X25519MLKEM768, which
    /// keeps what is recorded today from computers to come.
    #[setting()]
    pub classical_key_exchange: bool,
    /// File that receives the bound addresses as JSON.
    #[setting(form = "FILE")]
    pub ports_file: Option<PathBuf>,
    /// Read files with private keys although others than their owner can use them.
    #[setting()]
    pub allow_open_files: bool,
    #[setting(flatten)]
    pub shares: Shares,
    #[setting(flatten)]
    pub log: Log,
}

part!(Control, "control");

/// What happens where two processes have the key of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReusedKeys {
    /// The instance renews no more until it is enrolled again.
    Bar,
    /// The renewal is refused; the holder of the later key goes on.
    Refuse,
}

/// What holds where no egress allows a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Egress {
    Open,
    Closed,
    Shadow,
}

/// Who opens the connections to other networks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteCalls {
    /// The caller dials the other network's gateway.
    Direct,
    /// The caller dials its own gateway, which dials the other.
    Gateway,
}

/// What identities may hold at a control plane.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Shares {
    /// Most connections of workloads and gateways at once, as far as the limit on descriptors
    /// allows; at the limit the identity with most loses its oldest.
    #[setting(form = "COUNT", heading = SHARES, default = "40000", range(1, 1_000_000))]
    pub max_connections: u32,
    /// Most connections of one instance; its next one takes the place of its oldest.
    #[setting(form = "COUNT", heading = SHARES, default = "16", range(1, 10_000))]
    pub max_instance_connections: u32,
    /// Most bytes of names of services and actor types that one instance follows, 64 more for each.
    #[setting(form = "BYTES", heading = SHARES, default = "8388608", range(1, 1_073_741_824))]
    pub max_followed_bytes: u64,
}

/// A store in etcd.
#[derive(Clone, PartialEq, Debug, Settings)]
pub struct Etcd {
    /// File with the certificates of those who sign etcd's; etcd is spoken to over TLS then. This and the
    /// two files below are read again every minute.
    #[setting(form = "FILE", heading = ETCD)]
    pub etcd_ca: Option<PathBuf>,
    /// File with the certificate that is shown to etcd.
    #[setting(form = "FILE", heading = ETCD, needs(&["etcd_ca", "etcd_key"]))]
    pub etcd_cert: Option<PathBuf>,
    /// File with its key.
    #[setting(form = "FILE", heading = ETCD, needs(&["etcd_cert"]))]
    pub etcd_key: Option<PathBuf>,
    /// The Secret of the cluster in which this control plane keeps a certificate for etcd's members and
    /// for itself: it makes it, renews it, and shows it to them [default: none].
    #[setting(form = "NAMESPACE/NAME", heading = ETCD)]
    pub etcd_secret: Option<KubeName>,
    /// Time after which one that stands by takes over from a master that gives no sign of life, in
    /// seconds.
    #[setting(form = "SECONDS", heading = ETCD, default = "5", range(2, 60))]
    pub etcd_lease_s: Seconds,
}
