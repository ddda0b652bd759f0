//! Services as the control plane sends them and the data plane uses them.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use crate::failover::FailoverRules;
use crate::locality::Locality;
use crate::name::{AppId, Instance, NetworkName, ServiceName, TrustDomain};
use crate::route::Route;
use crate::traffic_policy::TrafficParts;

/// The number of a served state; it only grows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The protocol of an app's port, as its owner declares it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum AppProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// HTTP/2 with prior knowledge.
    H2c,
    /// gRPC: HTTP/2 with prior knowledge; errors are answered as gRPC statuses.
    Grpc,
    /// Bytes.
    Tcp,
}

impl AppProtocol {
    pub const ALL: [Self; 4] = [Self::Http, Self::H2c, Self::Grpc, Self::Tcp];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::H2c => "h2c",
            Self::Grpc => "grpc",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for AppProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AppProtocol {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Http, Self::H2c, Self::Grpc, Self::Tcp]
            .into_iter()
            .find(|p| p.as_str() == text)
            .ok_or_else(|| format!("`{text}` is not an app protocol; use http, h2c, grpc or tcp"))
    }
}

/// One running instance of a service, as it registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    pub service: ServiceName,
    pub instance: Instance,
    /// Where its sidecar accepts mesh connections (mTLS), reachable inside its network.
    pub address: SocketAddr,
    /// What its app speaks at its own port; `None` if it has none, and takes calls only at the ports to which
    /// Services of a Kubernetes cluster lead.
    pub protocol: Option<AppProtocol>,
    /// Whether it should be sent requests.
    pub ready: bool,
    pub locality: Locality,
}

/// One address of one workload of a service in the same network.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    pub instance: Instance,
    pub address: SocketAddr,
    pub locality: Locality,
    /// Whose identity it has, where that is not the app of the service's name: pods of a Service of a
    /// Kubernetes cluster are of any app of its namespace.
    pub app: Option<AppId>,
    /// Which port of its app is called, where that is not the one that its sidecar is set to.
    pub port: Option<u16>,
}

/// A port of an app beside the one that its sidecar is set to: Services of a Kubernetes cluster lead to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServedPort {
    pub port: u16,
    pub protocol: AppProtocol,
}

impl Endpoint {
    /// An endpoint of the service's own app, of which no zone or region is stated.
    #[must_use]
    pub fn new(instance: Instance, address: SocketAddr) -> Self {
        Self { instance, address, locality: Locality::default(), app: None, port: None }
    }
}

/// Replicas of a service in one place that are registered and not ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unready {
    pub locality: Locality,
    pub replicas: u32,
}

/// What is known of a service in another network: never its endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remote {
    pub network: NetworkName,
    /// Ready replicas behind the gateways.
    pub ready_replicas: u32,
    /// Addresses of the gateways to dial, with the service's server name.
    pub gateways: Arc<[SocketAddr]>,
    /// If `gateways` are those of the caller's network: the gateways of the service's network
    /// behind them. A connection that is open may lead through one that has gone since. Empty
    /// otherwise.
    pub beyond: Arc<[SocketAddr]>,
}

/// Why a service cannot be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnavailableReason {
    /// No workload of that name ever registered, or all have gone.
    UnknownService,
    /// The network is not this one and was never joined.
    UnknownNetwork,
    /// The network was joined and cannot be reached now.
    UnreachableNetwork,
    /// The service is known and none of its workloads is ready.
    NoReadyEndpoint,
    /// It is called in any network, and no network may serve it.
    NoFailover,
}

/// The state of one service for one caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServiceState {
    /// Endpoints of the caller's own network; only ready ones are listed, at least one.
    Local {
        endpoints: Arc<[Endpoint]>,
        /// Registered replicas that are not ready, by where they are; only where a zone or a region of
        /// some replica is stated.
        unready: Arc<[Unready]>,
        protocol: AppProtocol,
        trust_domain: TrustDomain,
    },
    /// Another network's service; at least one replica and one gateway.
    Remote { remote: Remote, protocol: AppProtocol, trust_domain: TrustDomain },
    /// It is called in any network: one of these serves each request.
    Failover {
        rules: Arc<FailoverRules>,
        /// Of each network of `rules`: workloads of the service, ready or not, as far as they are known.
        registered: Arc<[u32]>,
    },
    /// It is an address of this: of a port of a Service of the cluster, or of a pod of another namespace.
    AddressOf(ServiceName),
    /// It cannot be called. For an address: nothing of the mesh has it.
    Unavailable(UnavailableReason),
}

/// A new state of one service, as of `revision`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceUpdate {
    pub service: ServiceName,
    pub revision: Revision,
    pub state: ServiceState,
    /// What the caller's sidecar does with requests for the service; empty where nothing is said.
    pub routes: Arc<[Arc<Route>]>,
    /// How the caller's sidecar balances calls of the service and keeps them from what fails.
    pub traffic: Arc<TrafficParts>,
}
