//! What a data thread and the rest of its process send to each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use tollway_identity::{Credentials, TlsError, app_config};
use tollway_model::{AppProtocol, HostName, Locality, NetworkName, ServiceName, ServiceUpdate};
use tollway_net::{Listener, Tls, Waker};
use tollway_routing::{AccessList, Resiliency};
use tollway_telemetry::DaprMetrics;
use tollway_wire::NetworkUpdate;

use crate::actor_paths::ActorApp;
use crate::api_rules::ApiRules;
use crate::app_addresses::AppAddresses;
use crate::as_daprd::AsDaprd;
use crate::conn::{ListenerKind, Purpose};
use crate::egress::AppEgress;
use crate::front::Served;
use crate::interception::Interception;
use crate::limits::{Limits, Timeouts};
use crate::mesh::{Applied, EgressUpdate, PolicyUpdate, RoutesUpdate, TrafficUpdate};
use crate::observe::Observer;
use crate::runtime_protocol::TurnLease;
use crate::served_ports::ServedPorts;
use crate::tls::alpn;
use crate::tokens::Tokens;
use crate::web_pages::WebPages;

/// The app beside a sidecar or behind a front.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AppTarget {
    pub(crate) addresses: AppAddresses,
    pub(crate) protocol: AppProtocol,
    /// The host that requests of the own runtime name to it.
    pub(crate) host: Arc<[u8]>,
    /// Calls of others name that host, too, and not the one that they came with.
    pub(crate) names_host: bool,
}

#[cfg(test)]
impl AppTarget {
    pub(crate) fn at(address: SocketAddr, protocol: AppProtocol) -> Self {
        let host = address.to_string().into_bytes().into();
        let addresses = AppAddresses::new(address, []);
        Self { addresses, protocol, host, names_host: false }
    }
}

/// How an app that speaks TLS is dialled; no certificate of its is checked.
#[derive(Clone, Debug)]
pub(crate) struct AppTls {
    h2: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

impl AppTls {
    /// # Errors
    /// When the TLS library refuses.
    pub(crate) fn new() -> Result<Self, TlsError> {
        Ok(Self { h2: app_config(&[alpn::H2])?, http1: app_config(&[alpn::HTTP1])? })
    }

    /// A connection to the app at `address` that is to speak what its purpose asks for.
    pub(crate) fn client(&self, address: SocketAddr, purpose: &Purpose) -> Result<Tls, TlsError> {
        let config = match purpose {
            Purpose::PoolH2(_) => &self.h2,
            Purpose::PoolH1(_) | Purpose::Upgrade(_) | Purpose::Relay(_) | Purpose::Reverse(_) => {
                &self.http1
            }
        };
        let name = ServerName::IpAddress(address.ip().into());
        let client = UnbufferedClientConnection::new(Arc::clone(config), name);
        Ok(client.map_err(TlsError::Library)?.into())
    }
}

/// Where the app is of a process that nothing else reaches.
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What carries requests to services whose apps speak HTTP/1.1. Others are always multiplexed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MeshProtocol {
    /// One connection of HTTP/2 to each endpoint carries many at a time.
    #[default]
    Http2,
    /// A pool of connections of HTTP/1.1, each of which carries one at a time.
    Http1,
}

/// The settings of an event loop, at its start and again when they change.
#[derive(Clone)]
pub(crate) struct LoopConfig {
    /// Own service; completes short names. Of a front, which belongs to no service, a name that is
    /// never sent.
    pub(crate) home: ServiceName,
    /// Where this process runs.
    pub(crate) locality: Locality,
    /// This process in words, as one hop of a request.
    pub(crate) hop: String,
    pub(crate) app: Option<AppTarget>,
    /// Where the ports of the app are that Services of a cluster lead to.
    pub(crate) app_ip: IpAddr,
    /// Set where the app of a sidecar speaks TLS.
    pub(crate) app_tls: Option<AppTls>,
    /// Most requests that the app has at a time.
    pub(crate) app_concurrency: Option<usize>,
    /// What carries requests to services of HTTP/1.1.
    pub(crate) mesh_protocol: MeshProtocol,
    /// Which parts of the API its app may use, where that is bounded.
    pub(crate) api_rules: Option<Arc<ApiRules>>,
    /// Who may ask what of its app, as its own configuration has it.
    pub(crate) access: Option<Arc<AccessList>>,
    /// Calls under rules go through the runtime, which makes the attempts.
    pub(crate) resilience: Option<Arc<Resiliency>>,
    /// What its app and a sidecar show each other.
    pub(crate) tokens: Tokens,
    /// Which web pages may use the ports of its app.
    pub(crate) web_pages: WebPages,
    /// Whether its app runs actors.
    pub(crate) actor_app: Arc<ActorApp>,
    /// Set in daprd's place: what is counted under Dapr's names.
    pub(crate) dapr_metrics: Option<Arc<DaprMetrics>>,
    /// Set in daprd's place: what is done as daprd does.
    pub(crate) as_daprd: Option<Arc<AsDaprd>>,
    /// The names of endpoints outside of the mesh that the app may call through the runtime, in addition
    /// to URLs. `None`: it may call nothing there.
    pub(crate) external_endpoints: Option<Arc<[String]>>,
    /// Set where the connections of its app are led to it.
    pub(crate) interception: Option<Interception>,
    /// What its app may call out of the mesh.
    pub(crate) egress: Arc<AppEgress>,
    pub(crate) limits: Limits,
    pub(crate) timeouts: Timeouts,
}

#[cfg(test)]
impl LoopConfig {
    /// The settings of a sidecar without an app, for tests.
    pub(crate) fn of_test(home: ServiceName) -> Self {
        Self {
            hop: format!("sidecar {home}"),
            home,
            locality: Locality::default(),
            app: None,
            app_ip: LOOPBACK,
            app_tls: None,
            app_concurrency: None,
            mesh_protocol: MeshProtocol::default(),
            api_rules: None,
            access: None,
            resilience: None,
            tokens: Tokens::default(),
            web_pages: WebPages::default(),
            actor_app: Arc::new(ActorApp::new(false)),
            dapr_metrics: None,
            as_daprd: None,
            external_endpoints: None,
            interception: None,
            egress: Arc::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// What a connection into this process is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ApiKind {
    /// What an app asks of its own sidecar, over HTTP or gRPC.
    Own,
    /// Calls over HTTP for the app beside it, which speaks gRPC.
    Callback,
    /// What other sidecars' runtimes ask of its own: calls of the actors that it runs. Who calls
    /// stands in the fields in which an app would see it.
    Actors,
}

/// The far end of a connection of HTTP/2, without TLS, from a data-plane thread; it does not block.
#[derive(Debug)]
pub struct ApiStream {
    pub kind: ApiKind,
    pub stream: UnixStream,
}

/// Why a connection is not taken that this process would serve itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotServed {
    /// This process does not serve it.
    Nobody,
    /// This many connections wait to be accepted.
    Full(usize),
}

/// What a data thread calls in the rest of the process.
pub(crate) trait ProcessServices: Send {
    /// Starts to send the state of a service to this thread.
    fn subscribe(&self, service: &ServiceName);
    /// Stops sending it.
    fn unsubscribe(&self, service: &ServiceName);
    /// Whether the control plane answers: what is forgotten could not be asked for otherwise.
    fn is_followed(&self) -> bool;
    /// Hands over the far end of a connection to what this process serves itself.
    ///
    /// # Errors
    /// [`NotServed`].
    fn serve_api(&self, stream: ApiStream) -> Result<(), NotServed>;
    /// The app beside this sidecar could not be connected to.
    fn app_unreachable(&self);
    /// A peer has refused the own certificate as one that has ended.
    fn certificate_refused(&self);
    /// Starts to look for the addresses of a host out of the mesh; they come as a command.
    fn find_addresses(&self, name: &HostName);
}

/// A process that serves nothing and counts nothing, for tests.
#[cfg(test)]
pub(crate) struct NoServices;

#[cfg(test)]
impl ProcessServices for NoServices {
    fn subscribe(&self, _: &ServiceName) {}
    fn unsubscribe(&self, _: &ServiceName) {}
    fn is_followed(&self) -> bool {
        true
    }
    fn serve_api(&self, _: ApiStream) -> Result<(), NotServed> {
        Err(NotServed::Nobody)
    }
    fn app_unreachable(&self) {}
    fn certificate_refused(&self) {}
    fn find_addresses(&self, _: &HostName) {}
}

/// What the rest of the process asks of an event loop.
pub(crate) enum Command {
    Services(Vec<ServiceUpdate>),
    /// The services before it are applied where it is dropped.
    Applied(Applied),
    /// What is done with requests for services; only for sidecars.
    Routes(Vec<RoutesUpdate>),
    /// The addresses of the own control plane; only for gateways.
    ControlAt(Vec<SocketAddr>),
    /// Only for gateways.
    Networks(Vec<NetworkUpdate>),
    Credentials(Arc<Credentials>),
    /// A front's new certificate, and the authorities of its clients.
    Certificates(Served),
    /// The new address of the app behind a front.
    App(AppTarget),
    /// The policies of the app; only for sidecars.
    Policies(PolicyUpdate),
    /// The limits of traffic policies; only for sidecars.
    Traffic(TrafficUpdate),
    /// The rules about hosts out of the mesh have changed; only for sidecars.
    Egress(EgressUpdate),
    /// Ports of the app beside its own that Services of a cluster lead to; only for sidecars.
    Ports(Arc<ServedPorts>),
    /// The addresses of a host out of the mesh, or why there are none.
    Addresses(HostName, Result<Vec<IpAddr>, String>),
    /// The lease under which turns of actors are sent to the app has a later end.
    LeaseRenewed(TurnLease),
    /// The runtime has cancelled the call of this number.
    CallOff(u64),
    /// The app accepts no connections: callers must use other replicas.
    AppUnready,
    /// New settings. Times and limits apply to open connections too, except what a connection agreed
    /// on when it began.
    Configure(Arc<LoopConfig>),
    /// The observer of requests that end from now on.
    Observe(Option<Box<Observer>>),
    OpenListeners(Vec<(Listener, ListenerKind)>),
    /// A connection from within this process, for requests of the runtime.
    Adopt(UnixStream),
    /// A caller's connection from another data thread of this gateway, which has no reverse connection for
    /// it.
    Carry(Box<Caller>),
    /// Treats new connections of the listener at this address as those of another kind.
    RedirectListener(SocketAddr, ListenerKind),
    CloseListener(SocketAddr),
    /// Accept no new work, finish what is under way, end.
    Drain,
}

/// A connection of a caller that a gateway sends on by a reverse connection.
pub(crate) struct Caller {
    pub(crate) stream: TcpStream,
    pub(crate) remote: Option<SocketAddr>,
    /// Of the callee.
    pub(crate) network: NetworkName,
    pub(crate) hello: Vec<u8>,
    /// What has come behind the ClientHello.
    pub(crate) more: Vec<u8>,
}

/// Sends commands to a data thread.
#[derive(Clone)]
pub(crate) struct Commands {
    pub(super) sender: Sender<Command>,
    pub(super) waker: Waker,
}

impl Commands {
    /// Returns whether the thread still runs.
    pub(crate) fn send(&self, command: Command) -> bool {
        let sent = self.sender.send(command).is_ok();
        self.waker.wake();
        sent
    }
}
