//! What an operator can choose.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tollway_identity::{KeyExchange, SealingKey};
use tollway_model::{AddressRange, EgressDefault, NetworkName, RunningConfig, TrustDomain};
use tollway_store::EtcdOptions;

use crate::peering::bundles::JoinBundles;
use crate::pods::PodOptions;
use crate::resources::Resources;
use crate::services::Services;

/// Connections at once of those with an identity of this network: two of each of 20,000 sidecars.
const CONNECTIONS_LIMIT: usize = 40_000;
/// Those of one instance. A sidecar has up to four, and for a moment those from before it reconnected.
const CONNECTIONS_PER_INSTANCE_LIMIT: usize = 16;
/// Connections at once of control planes of joined networks.
const JOINED_CONNECTIONS_LIMIT: usize = 2_048;
/// Changes of one instance's registration that are stored at once.
const CHANGES_BURST: u32 = 50;
/// Certificates of one instance by its certificate, or of one pod, that are issued at once.
const CERTIFICATES_BURST: u32 = 10;
/// Bytes of names that one instance follows, its services and actor types together.
const FOLLOWED_BYTES_PER_INSTANCE: u64 = 8 << 20;
/// The same of all instances.
const FOLLOWED_BYTES_LIMIT: u64 = 512 << 20;
/// Descriptors that connections to the port never take, so that files, the admin socket and
/// connections to others have some; a quarter of all if that is less.
const HELD_BACK_DESCRIPTORS: u64 = 192;
/// Connections at once without a certificate: those that come to join.
const UNAUTHENTICATED_LIMIT: usize = 1_000;
/// Handshakes at once: several times as many as can end within the round trip of a peer far away.
const HANDSHAKES_LIMIT: usize = 2_000;
/// Most groups of neighbours that were written or watched.
const NEIGHBOUR_GROUPS: usize = 1024;
/// Most neighbours and tombstones of all groups; each takes about 140 bytes of memory.
const NEIGHBOUR_ROWS: u64 = 4_000_000;
/// Tombstones of a group from which on they go early.
const NEIGHBOUR_GROUP_TOMBSTONES: u64 = 250_000;
/// From one change of a joined network's roots to the next: each reaches every data plane, which
/// begins its TLS sessions again.
const PEER_ROOTS_WITHIN: Duration = Duration::from_secs(60);
/// Bytes of late changes of all groups.
const NEIGHBOUR_LANE_BYTES: usize = 64 << 20;

/// Options of one control plane. [`Options::new`] gives the documented defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the admin socket and, without etcd, of the store's files; made with mode 0700
    /// when absent.
    pub store: PathBuf,
    /// Where the stores are, if not in files. Of several control planes over the same place one
    /// serves, and the others wait to take over. Default none.
    pub etcd: Option<EtcdOptions>,
    /// What the authority's key is sealed with in the store; a key that is not sealed yet is at the
    /// next start. Default none.
    pub authority_key: Option<Arc<SealingKey>>,
    /// Name of the network this control plane serves.
    pub network: NetworkName,
    /// Scope of its certificate authority. Fixed at the first start. Default
    /// `<network>.tollway`.
    pub trust_domain: TrustDomain,
    /// Where workloads, gateways and (through gateways) joined networks connect. Port 0 takes
    /// any free one. Default 127.0.0.1:15010.
    pub listen: SocketAddr,
    /// Life of a workload's certificate. Default 24 h, at least 10 s and at most 7 days.
    pub certificate_ttl: Duration,
    /// How long after its end a certificate may still renew itself, and nothing else. Default 7
    /// days; 0 for not at all.
    pub renewal_grace: Duration,
    /// What happens to an instance of which two keys are in use. Default: it is barred.
    pub reused_keys: ReusedKeys,
    /// Whether apps that ask for it may host each other's actor types. Default no: a type belongs to
    /// the first app that offers it.
    pub share_actor_types: bool,
    /// How the keys of its connections are agreed on. Default [`KeyExchange::Hybrid`].
    pub key_exchange: KeyExchange,
    /// What becomes of calls of external hosts that no egress allows. Default open.
    pub egress: EgressDefault,
    /// How workloads reach other networks. Default direct.
    pub remote_calls: RemoteCalls,
    /// Where workloads may be, in addition to the address from which they register. Default none.
    pub workload_addresses: Vec<AddressRange>,
    /// Addresses that a joined network may state for its gateways, in addition to public ones.
    /// Default none.
    pub peer_addresses: Vec<AddressRange>,
    /// The cluster whose pods may have identities of this network by their service accounts' tokens.
    /// Default none.
    pub pods: Option<PodOptions>,
    /// The cluster whose custom resources become objects of this network.
    /// Default none.
    pub resources: Option<Arc<dyn Resources>>,
    /// The cluster whose Services are called in the mesh where their pods have sidecars.
    /// Default none.
    pub services: Option<Arc<dyn Services>>,
    /// Join bundles that are accepted without a command.
    /// Default none.
    pub join_bundles: Option<Arc<dyn JoinBundles>>,
    /// Metrics and health over plain HTTP, for this machine or a network that may see them.
    /// Default none.
    pub admin_listen: Option<SocketAddr>,
    /// A file that receives the bound addresses as JSON: `{"control": "ip:port"}`, and `admin`
    /// where there is such a port.
    pub ports_file: Option<PathBuf>,
    /// The settings that run, for the admin port to show.
    pub config: watch::Receiver<RunningConfig>,
    /// Ends by itself when no peer was connected for so long. Default `None`: never.
    pub linger: Option<Duration>,
    /// Times of registration and peering.
    pub timing: Timing,
    /// How many may be connected at once.
    pub connections: ConnectionOptions,
    /// How many names may be followed.
    pub followed: FollowOptions,
    /// Limits of neighbours, and how long tombstones stay.
    pub neighbours: NeighbourOptions,
}

/// Bounds of how many may be connected at once, each apart from the others. They are documented in
/// `docs/limits.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionOptions {
    /// Most connections of workloads and gateways with an identity, 40,000: the identity with most
    /// loses one to the next.
    pub authenticated: usize,
    /// Most of one instance, 16: its next one takes the place of its oldest.
    pub per_instance: usize,
    /// Most connections of control planes of joined networks, 2,048.
    pub joined: usize,
    /// Most connections without an identity, 1,000: the next one evicts one.
    pub unauthenticated: usize,
    /// Most handshakes under way, 2,000: the next one evicts one.
    pub handshakes: usize,
}

impl ConnectionOptions {
    /// The same as far as `descriptors` allow: connections never take those that are held back.
    #[must_use]
    pub fn within(self, descriptors: Option<u64>) -> Self {
        let Some(descriptors) = descriptors else { return self };
        let free = descriptors - HELD_BACK_DESCRIPTORS.min(descriptors / 4);
        let sixteenths = |of: usize, part: u64| {
            of.min(usize::try_from(free / 16 * part).unwrap_or(usize::MAX)).max(1)
        };
        Self {
            authenticated: sixteenths(self.authenticated, 10),
            per_instance: self.per_instance,
            joined: sixteenths(self.joined, 1),
            unauthenticated: sixteenths(self.unauthenticated, 2),
            handshakes: sixteenths(self.handshakes, 3),
        }
    }
}

/// Limits of the names of services and actor types that are followed. They are documented in
/// `docs/limits.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FollowOptions {
    /// Most bytes of the names that one instance follows, 8 MiB, each with 64 more.
    pub bytes_per_instance: u64,
    /// Most bytes of those that all follow, 512 MiB.
    pub bytes: u64,
}

/// Limits of neighbours. They are documented in `docs/limits.md`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourOptions {
    /// Most groups, 1,024.
    pub groups: usize,
    /// Most neighbours and tombstones of all groups, 4,000,000.
    pub rows: u64,
    /// Limit of tombstones of a group, beyond which they go after a minute or two. Default: 250,000.
    pub group_tombstones: u64,
    /// Retention time of tombstones. An agent that reconnects within this time receives only the
    /// changes. Default: one hour.
    pub keep_tombstones: Duration,
    /// Bytes of late changes that are held for those who watch, 64 MiB.
    pub lane_bytes: usize,
}

/// The gateways that a call to another network uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RemoteCalls {
    /// The caller dials the other network's gateway.
    #[default]
    Direct,
    /// The caller dials a gateway of its own network, which dials the other's: for workloads
    /// that may not open connections to the outside.
    Gateway,
}

/// What a renewal with a key that a later one has replaced leads to. It shows that two processes
/// have an instance's key, and not which of them is the rightful one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReusedKeys {
    /// The instance renews no more, with whatever key, until a token is redeemed for it again.
    #[default]
    Bar,
    /// The renewal is refused, and the holder of the later key goes on.
    Refuse,
}

/// Times that tests shorten and operators rarely need.
#[derive(Clone, Debug)]
pub struct Timing {
    /// A registration ends this long after the last sign of life. Default 10 s.
    pub lease: Duration,
    /// A host of actors that gave no sign of life for this long has lost them. Default 3 s.
    pub actor_lease: Duration,
    /// A registration whose connection broke ends after this. Default 2 s.
    pub grace: Duration,
    /// An idle stream sends a heartbeat at this interval, that of a data plane at twice the
    /// interval. Default 1 s; data planes and peers give up after 5 to 6 s of silence.
    pub heartbeat: Duration,
    /// A renewal with a key whose successor was first used less than this ago shows no second holder:
    /// its request may have been under way. Default 10 min.
    pub late_renewal: Duration,
    /// The control plane of a joined network that has been silent for this long counts as away. Default
    /// 5 s.
    pub unreachable_after: Duration,
    /// Changes of one instance's registration that are stored at once; later ones at their pace.
    /// Default 50.
    pub registration_burst: u32,
    /// Certificates of one instance, or of one pod, that are issued at once; later ones at their pace.
    /// Default 10.
    pub certificates_burst: u32,
    /// From one change of a joined network's roots to the next. Default 60 s.
    pub peer_roots: Duration,
}

impl Options {
    /// A control plane of `network` over the store in directory `store`, all else by default.
    #[must_use]
    pub fn new(store: PathBuf, network: NetworkName) -> Self {
        Self {
            store,
            etcd: None,
            authority_key: None,
            key_exchange: KeyExchange::default(),
            trust_domain: TrustDomain::default_for(&network),
            network,
            listen: SocketAddr::from(([127, 0, 0, 1], 15010)),
            certificate_ttl: Duration::from_secs(24 * 3600),
            renewal_grace: Duration::from_secs(7 * 24 * 3600),
            reused_keys: ReusedKeys::default(),
            share_actor_types: false,
            egress: EgressDefault::default(),
            remote_calls: RemoteCalls::default(),
            workload_addresses: Vec::new(),
            peer_addresses: Vec::new(),
            pods: None,
            resources: None,
            services: None,
            join_bundles: None,
            admin_listen: None,
            ports_file: None,
            config: watch::channel(RunningConfig::default()).1,
            linger: None,
            timing: Timing::default(),
            connections: ConnectionOptions::default(),
            followed: FollowOptions::default(),
            neighbours: NeighbourOptions::default(),
        }
    }
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            authenticated: CONNECTIONS_LIMIT,
            per_instance: CONNECTIONS_PER_INSTANCE_LIMIT,
            joined: JOINED_CONNECTIONS_LIMIT,
            unauthenticated: UNAUTHENTICATED_LIMIT,
            handshakes: HANDSHAKES_LIMIT,
        }
    }
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self { bytes_per_instance: FOLLOWED_BYTES_PER_INSTANCE, bytes: FOLLOWED_BYTES_LIMIT }
    }
}

impl Default for NeighbourOptions {
    fn default() -> Self {
        Self {
            groups: NEIGHBOUR_GROUPS,
            rows: NEIGHBOUR_ROWS,
            group_tombstones: NEIGHBOUR_GROUP_TOMBSTONES,
            keep_tombstones: Duration::from_secs(3600),
            lane_bytes: NEIGHBOUR_LANE_BYTES,
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            actor_lease: Duration::from_secs(3),
            grace: Duration::from_secs(2),
            heartbeat: Duration::from_secs(1),
            late_renewal: Duration::from_secs(600),
            unreachable_after: Duration::from_secs(5),
            registration_burst: CHANGES_BURST,
            certificates_burst: CERTIFICATES_BURST,
            peer_roots: PEER_ROOTS_WITHIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/limits.md");

    #[test]
    fn the_page_of_limits_has_those_of_neighbours() {
        let options = NeighbourOptions::default();
        let limits = [
            ("NEIGHBOUR_ROWS", options.rows),
            ("NEIGHBOUR_GROUPS", options.groups as u64),
            ("NEIGHBOUR_GROUP_TOMBSTONES", options.group_tombstones),
            ("NEIGHBOUR_LANE_BYTES", options.lane_bytes as u64),
            ("BATCH_RECORDS", tollway_model::neighbour::packed::BATCH_RECORDS as u64),
            ("NEIGHBOURS_REQUEST_BYTES", crate::neighbours::NEIGHBOURS_REQUEST_BYTES as u64),
        ];
        for (name, value) in limits {
            let row = PAGE.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/limits.md lacks `{name}`"));
            let written = row.split('|').nth(2).unwrap().trim().replace(',', "");
            assert_eq!(written, value.to_string(), "`{name}` in docs/limits.md");
        }
    }
}
