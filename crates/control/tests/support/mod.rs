//! A control plane on real sockets, a relay in place of a gateway, and a bare data plane that
//! follows the protocol step by step.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

pub mod host;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tollway_control::{AdminClient, ControlPlane, Options, Timing};
use tollway_identity::{
    CertificateDer, Credentials, Expected, GatewayState, JoinToken, KeyExchange, KeyPair,
    ProbeAnswer, ProbeHello, ProbeId, RootPin, TrustBundle, TrustBundles, bootstrap_config,
    client_config,
};
use tollway_model::failover::FailoverNetwork;
use tollway_model::{
    AppProtocol, Label, Locality, ProbeSecret, ServiceName, ServiceState, TrustDomain,
    UnavailableReason, Workload,
};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::discovery_client::DiscoveryClient;
use tollway_wire::v1::identity_client::IdentityClient;
use tollway_wire::v1::register_request::Request as Announce;
use tollway_wire::v1::registry_client::RegistryClient;
use tollway_wire::v1::watch_request::Request as Ask;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

pub const ALPN: &[&[u8]] = &[b"h2"];
/// Far more than anything here takes; a test that waits for it has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until the clock of this machine, which the control plane has too, shows `at_unix_ms`.
pub async fn until_unix_ms(at_unix_ms: u64) {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(at_unix_ms);
    while let Ok(left) = at.duration_since(SystemTime::now()) {
        tokio::time::sleep(left + Duration::from_millis(1)).await;
    }
}

pub fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

/// `app[.namespace[.network]]`, at home in `default.west`.
pub fn name(text: &str) -> ServiceName {
    ServiceName::parse_in(text, &label("default"), &label("west")).unwrap()
}

/// Short times, so that a test of a timeout is short too.
pub fn timing() -> Timing {
    Timing {
        lease: Duration::from_secs(1),
        actor_lease: Duration::from_secs(1),
        grace: Duration::from_millis(200),
        heartbeat: Duration::from_millis(100),
        late_renewal: Duration::ZERO,
        unreachable_after: Duration::from_millis(800),
        registration_burst: 10_000,
        certificates_burst: 10_000,
        peer_roots: Duration::from_secs(2),
    }
}

/// A running control plane.
pub struct Network {
    pub dir: TempDir,
    pub address: SocketAddr,
    pub admin: AdminClient,
    options: Options,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Network {
    pub async fn start(network: &str) -> Self {
        Self::start_with(network, |_| {}).await
    }

    pub async fn start_with(network: &str, adjust: impl FnOnce(&mut Options)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(dir.path().join("store"), label(network));
        options.listen = "127.0.0.1:0".parse().unwrap();
        options.timing = timing();
        // All networks of these tests are on this machine.
        options.peer_addresses = vec!["127.0.0.0/8".parse().unwrap()];
        adjust(&mut options);
        Self::run(dir, options).await
    }

    /// The same with a page of metrics.
    pub async fn start_with_metrics(network: &str, adjust: impl FnOnce(&mut Options)) -> Self {
        Self::start_with(network, |options| {
            options.admin_listen = Some("127.0.0.1:0".parse().unwrap());
            options.ports_file = Some(options.store.join("ports.json"));
            adjust(options);
        })
        .await
    }

    /// Its page of metrics.
    pub async fn page(&self) -> String {
        let ports = std::fs::read(self.store().join("ports.json")).unwrap();
        let ports: serde_json::Value = serde_json::from_slice(&ports).unwrap();
        let mut stream = TcpStream::connect(ports["admin"].as_str().unwrap()).await.unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).await.unwrap();
        page
    }

    /// A number on that page.
    pub async fn metric(&self, name: &str) -> u64 {
        let page = self.page().await;
        tollway_testkit::metric_in(&page, name)
            .unwrap_or_else(|error| panic!("{error}: {name} in {page}"))
    }

    async fn run(dir: TempDir, options: Options) -> Self {
        let control = ControlPlane::bind(options.clone()).await.unwrap();
        let address = control.address();
        let (stop, stopped) = oneshot::channel();
        let task =
            tokio::spawn(async { control.serve(async { drop(stopped.await) }).await.unwrap() });
        let admin = AdminClient::connect(&options.store).await.unwrap();
        Self { dir, address, admin, options, stop: Some(stop), task }
    }

    /// Stops it and starts another one over the same store, on the same port.
    pub async fn restart(self) -> Self {
        self.restart_with(|_| {}).await
    }

    /// As [`Network::restart`], with other options.
    pub async fn restart_with(self, adjust: impl FnOnce(&mut Options)) -> Self {
        let (dir, mut options, address) = self.stop().await;
        options.listen = address;
        adjust(&mut options);
        Self::run(dir, options).await
    }

    /// As [`Network::restart`], with the files of its store changed meanwhile.
    pub async fn restart_over(self, change: impl AsyncFnOnce(&Path)) -> Self {
        let (dir, mut options, address) = self.stop().await;
        options.listen = address;
        change(&options.store).await;
        Self::run(dir, options).await
    }

    pub async fn stop(mut self) -> (TempDir, Options, SocketAddr) {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
        (self.dir, self.options, self.address)
    }

    pub fn store(&self) -> &Path {
        &self.options.store
    }

    pub async fn token(&mut self, scope: Scope) -> JoinToken {
        let request = v1::CreateTokenRequest { scope: Some(scope), ttl_ms: 0, uses: Some(0) };
        self.admin.create_token(request).await.unwrap().token.parse().unwrap()
    }

    /// A data plane with an identity of its own.
    pub async fn member(&mut self, service: &str, instance: &str) -> Member {
        let token = self.token(Scope::Any(v1::AnyWorkload {})).await;
        let service = self.own(service);
        let credentials =
            enroll(self.address, &token, &service, instance).await.expect("the token is good");
        Member { address: self.address, credentials }
    }

    pub async fn gateway(&mut self, instance: &str) -> Member {
        let token = self.token(Scope::Gateway(v1::GatewayScope {})).await;
        let service = self.own("gateway.tollway");
        let credentials =
            enroll(self.address, &token, &service, instance).await.expect("the token is good");
        Member { address: self.address, credentials }
    }

    /// A name, at home in this network.
    pub fn own(&self, service: &str) -> ServiceName {
        ServiceName::parse_in(service, &label("default"), &self.options.network).unwrap()
    }

    /// Registers a relay as this network's gateway; the registration lives as long as the
    /// result.
    pub async fn open_gateway(&mut self) -> (Relay, KeepAliveTask) {
        let relay = Relay::start(self.address).await;
        let member = self.gateway("gateway-1").await;
        relay.answer_probes_as(&member);
        let mut registration = Registration::open(&member).await.unwrap();
        let gateway = v1::Gateway {
            instance: "gateway-1".into(),
            outside: vec![relay.address.into()],
            inside: vec![relay.address.into()],
            ..Default::default()
        };
        registration.send(Announce::Gateway(gateway)).await;
        registration.registered().await.unwrap();
        (relay, registration.keep_alive())
    }
}

/// East and west, joined through a relay each.
pub struct Joined {
    pub east: Network,
    pub west: Network,
    pub east_relay: Relay,
    pub west_relay: Relay,
    pub gateways: (KeepAliveTask, KeepAliveTask),
}

impl Joined {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(adjust: fn(&mut Options)) -> Self {
        Self::join(adjust, false).await
    }

    /// Each side lets the other's gateways move.
    pub async fn that_may_move() -> Self {
        Self::join(|_| {}, true).await
    }

    /// Of networks with these options; each side lets the other's gateways move, or not.
    pub async fn join(adjust: fn(&mut Options), follow_gateways: bool) -> Self {
        let mut east = Network::start_with("east", adjust).await;
        let mut west = Network::start_with("west", adjust).await;
        let (east_relay, east_gateway) = east.open_gateway().await;
        let (west_relay, west_gateway) = west.open_gateway().await;
        let export = v1::ExportJoinRequest { ttl_ms: 0, follow_gateways };
        let bundle = east.admin.export_join_with(export).await.unwrap();
        let accept = v1::AcceptJoinRequest { bundle, follow_gateways };
        let joined = west.admin.accept_join_with(accept).await.unwrap();
        assert_eq!((&*joined.network, &*joined.trust_domain), ("east", "east.tollway"));
        Self { east, west, east_relay, west_relay, gateways: (east_gateway, west_gateway) }
    }
}

/// Passes bytes to a control plane, as a gateway does for the server name `control.<network>.mesh`, and
/// answers the probes of joined networks.
pub struct Relay {
    pub address: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
    connections: Arc<Mutex<CancellationToken>>,
    task: JoinHandle<()>,
    secrets: ProbeSecrets,
}

/// Of the joined networks of a gateway's network.
type ProbeSecrets = Arc<Mutex<Vec<ProbeSecret>>>;

/// Follows the secrets of the joined networks of a gateway.
async fn follow_secrets(member: Member, secrets: ProbeSecrets) {
    let open = v1::Open { scope: v1::open::Scope::Network.into(), ..v1::Open::default() };
    loop {
        if let Ok(channel) = member.try_channel().await
            && let Ok(mut watch) = Watch::open_on(channel, open.clone()).await
        {
            let mut known = HashMap::new();
            while let Ok(response) = watch.next().await {
                for update in &response.networks {
                    let secret = ProbeSecret::read(&update.probe_secret);
                    known.insert(update.network.clone(), secret);
                }
                *secrets.lock().unwrap() = known.values().flatten().cloned().collect();
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The answer to a probe, if it is one.
pub fn answer_probe(hello: &[u8], secrets: &[ProbeSecret]) -> Option<ProbeAnswer> {
    let probe = ProbeHello::read(hello)?;
    let secret = secrets.iter().find(|secret| ProbeId::of(secret) == probe.id())?;
    probe.answer(secret, GatewayState::Serving)
}

impl Relay {
    pub async fn start(target: SocketAddr) -> Self {
        Self::with_secrets(target, ProbeSecrets::default()).await
    }

    /// One that answers probes as `other` does.
    pub async fn beside(other: &Self, target: SocketAddr) -> Self {
        Self::with_secrets(target, other.secrets.clone()).await
    }

    async fn with_secrets(target: SocketAddr, secrets: ProbeSecrets) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(Some(target)));
        let connections = Arc::new(Mutex::new(CancellationToken::new()));
        let (where_to, living) = (target.clone(), connections.clone());
        let known = secrets.clone();
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut inside, _)) = listener.accept().await else { continue };
                let Some(target) = *where_to.lock().unwrap() else { continue };
                let cut = living.lock().unwrap().clone();
                let known = known.clone();
                tokio::spawn(cut.run_until_cancelled_owned(async move {
                    let mut hello = [0; 4096];
                    let length = inside.peek(&mut hello).await?;
                    let answer = answer_probe(&hello[..length], &known.lock().unwrap());
                    if let Some(answer) = answer {
                        inside.write_all(&answer).await?;
                        return Ok((0, 0));
                    }
                    let mut outside = TcpStream::connect(target).await?;
                    tokio::io::copy_bidirectional(&mut inside, &mut outside).await
                }));
            }
        });
        Self { address, target, connections, task, secrets }
    }

    /// Answers probes with what this gateway is sent.
    pub fn answer_probes_as(&self, member: &Member) {
        tokio::spawn(follow_secrets(member.clone(), self.secrets.clone()));
    }

    pub fn probe_secrets(&self) -> Vec<ProbeSecret> {
        self.secrets.lock().unwrap().clone()
    }

    /// Breaks every connection and refuses new ones.
    pub fn cut(&self) {
        *self.target.lock().unwrap() = None;
        std::mem::take(&mut *self.connections.lock().unwrap()).cancel();
    }

    pub fn restore(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = Some(target);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
        self.connections.lock().unwrap().cancel();
    }
}

/// A data plane with an identity.
#[derive(Clone)]
pub struct Member {
    pub address: SocketAddr,
    pub credentials: Credentials,
}

impl Member {
    pub async fn channel(&self) -> Channel {
        self.try_channel().await.expect("the control plane is there")
    }

    pub async fn try_channel(&self) -> std::io::Result<Channel> {
        let (name, config) = self.tls();
        connect(self.address, name, config).await
    }

    /// A connection without any message yet.
    pub async fn stream(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let (name, config) = self.tls();
        TlsConnector::from(config).connect(name, TcpStream::connect(self.address).await?).await
    }

    fn tls(&self) -> (ServerName<'static>, Arc<ClientConfig>) {
        let own = self.credentials.spiffe_id();
        let network = &self.credentials.service().network;
        let expected = Expected::home_control(network, &own.trust_domain);
        let config = client_config(&self.credentials, &expected, ALPN).unwrap();
        (expected.server_name().unwrap(), config)
    }
}

pub async fn connect(
    address: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> std::io::Result<Channel> {
    let tcp = TcpStream::connect(address).await?;
    let stream = TlsConnector::from(config).connect(name, tcp).await?;
    let endpoint = Endpoint::from_static("http://control.mesh");
    tollway_dial::channel(endpoint, stream).await.map_err(std::io::Error::other)
}

/// The channel of a client that has only a token.
pub async fn bootstrap(address: SocketAddr, token: &JoinToken) -> Channel {
    bootstrap_by(address, token.pin()).await
}

/// The channel of a client that knows nothing but the root.
pub async fn bootstrap_by(address: SocketAddr, root: &RootPin) -> Channel {
    let domain = TrustDomain::default_for(root.network());
    let name = Expected::control(root.network(), &domain).server_name().unwrap();
    connect(address, name, bootstrap_config(root, ALPN, KeyExchange::Hybrid).unwrap())
        .await
        .unwrap()
}

/// Redeems a join token.
pub async fn enroll(
    address: SocketAddr,
    token: &JoinToken,
    service: &ServiceName,
    instance: &str,
) -> Result<Credentials, Status> {
    let channel = bootstrap(address, token).await;
    issue(channel, service, instance, token.to_string()).await
}

pub async fn issue(
    channel: Channel,
    service: &ServiceName,
    instance: &str,
    token: String,
) -> Result<Credentials, Status> {
    issue_by(channel, service, instance, [token, String::new()]).await
}

/// By a join token or the token of a pod.
pub async fn issue_by(
    channel: Channel,
    service: &ServiceName,
    instance: &str,
    [token, pod_token]: [String; 2],
) -> Result<Credentials, Status> {
    let key = KeyPair::generate().unwrap();
    let request = v1::IssueRequest {
        csr: key.csr_der().unwrap(),
        service: Some(service.into()),
        instance: instance.into(),
        token,
        ttl_s: 0,
        pod_token,
    };
    let issued = IdentityClient::new(channel).issue(request).await?.into_inner();
    let trust = issued.trust.unwrap();
    let bundles = trust.bundles.iter().map(|bundle| {
        let roots = bundle.roots.iter().map(|root| CertificateDer::from(root.clone())).collect();
        let domain = TrustDomain::new(&bundle.trust_domain).unwrap();
        TrustBundle::new(label(&bundle.network), domain, roots).unwrap()
    });
    let bundles = TrustBundles::new(trust.revision, bundles.collect::<Vec<_>>()).unwrap();
    let chain = issued.chain.into_iter().map(CertificateDer::from).collect();
    Ok(Credentials::new(&key, chain, bundles).unwrap())
}

/// A registration stream. Dropped, it is a broken connection.
pub struct Registration {
    requests: mpsc::Sender<v1::RegisterRequest>,
    answers: Streaming<v1::RegisterResponse>,
}

impl Registration {
    pub async fn open(member: &Member) -> Result<Self, Status> {
        let (requests, outgoing) = mpsc::channel(16);
        let mut client = RegistryClient::new(member.channel().await);
        let answers = client.register(ReceiverStream::new(outgoing)).await?.into_inner();
        Ok(Self { requests, answers })
    }

    /// Registers a ready workload under the member's own name, at a port.
    pub async fn workload(member: &Member, port: u16) -> Self {
        let mut registration = Self::open(member).await.unwrap();
        registration.send(Announce::Workload(workload(member, port, true))).await;
        registration.registered().await.unwrap();
        registration
    }

    pub async fn send(&self, request: Announce) {
        self.requests.send(v1::RegisterRequest { request: Some(request) }).await.unwrap();
    }

    pub async fn answer(&mut self) -> Result<v1::register_response::Response, Status> {
        let answer = tokio::time::timeout(PATIENCE, self.answers.message()).await.unwrap()?;
        Ok(answer.expect("the stream goes on").response.unwrap())
    }

    pub async fn registered(&mut self) -> Result<u64, Status> {
        let answer = self.answer().await?;
        let v1::register_response::Response::Registered(registered) = answer else {
            panic!("{answer:?}");
        };
        Ok(registered.revision)
    }

    pub async fn set_ready(&mut self, member: &Member, port: u16, ready: bool) -> u64 {
        self.send(Announce::Workload(workload(member, port, ready))).await;
        self.registered().await.unwrap()
    }

    pub async fn deregister(mut self) {
        self.send(Announce::Deregister(v1::Deregister {})).await;
        let answer = self.answer().await.unwrap();
        assert!(matches!(answer, v1::register_response::Response::Deregistered(_)), "{answer:?}");
    }

    /// Gives signs of life until dropped.
    pub fn keep_alive(self) -> KeepAliveTask {
        let mut registration = self;
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                let request = Some(Announce::KeepAlive(v1::KeepAlive {}));
                let sent = registration.requests.send(v1::RegisterRequest { request }).await;
                if sent.is_err() || registration.answer().await.is_err() {
                    return None;
                }
                tokio::select! {
                    _ = &mut stopped => return Some(registration),
                    () = tokio::time::sleep(Duration::from_millis(200)) => {}
                }
            }
        });
        KeepAliveTask { task, stop: Some(stop) }
    }
}

/// A registration with a renewed lease; dropped, its connection breaks.
pub struct KeepAliveTask {
    task: JoinHandle<Option<Registration>>,
    stop: Option<oneshot::Sender<()>>,
}

impl KeepAliveTask {
    pub async fn deregister(mut self) {
        drop(self.stop.take());
        let registration = (&mut self.task).await.unwrap().expect("it is kept alive");
        registration.deregister().await;
    }
}

impl Drop for KeepAliveTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn workload(member: &Member, port: u16, ready: bool) -> v1::Workload {
    let workload = Workload {
        service: member.credentials.service().clone(),
        instance: member.credentials.instance().unwrap().clone(),
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        protocol: Some(AppProtocol::Http),
        ready,
        locality: Locality::default(),
    };
    (&workload).into()
}

/// A discovery stream and its messages so far.
pub struct Watch {
    pub requests: mpsc::Sender<v1::WatchRequest>,
    responses: Streaming<v1::WatchResponse>,
    pub known: HashMap<ServiceName, String>,
    pub networks: HashMap<String, String>,
    pub revision: u64,
    pub trust: Option<v1::TrustBundles>,
    /// Every update in order of arrival.
    pub log: Vec<String>,
}

impl Watch {
    pub async fn open(member: &Member, open: v1::Open) -> Result<Self, Status> {
        Self::open_on(member.channel().await, open).await
    }

    async fn open_on(channel: Channel, open: v1::Open) -> Result<Self, Status> {
        let (requests, outgoing) = mpsc::channel(16);
        requests.send(v1::WatchRequest { request: Some(Ask::Open(open)) }).await.unwrap();
        let mut client = DiscoveryClient::new(channel);
        let responses = client.watch(ReceiverStream::new(outgoing)).await?.into_inner();
        Ok(Self {
            requests,
            responses,
            known: HashMap::new(),
            networks: HashMap::new(),
            revision: 0,
            trust: None,
            log: Vec::new(),
        })
    }

    /// A stream with subscriptions and nothing known before.
    pub async fn services(member: &Member, services: &[&str]) -> Self {
        let watch = Self::open(member, subscribed(0, &[])).await.unwrap();
        watch.subscribe(services).await;
        watch
    }

    pub async fn subscribe(&self, services: &[&str]) {
        let services = services.iter().map(|s| v1::ServiceName::from(&name(s))).collect();
        let request = Some(Ask::Subscribe(v1::Subscribe { services }));
        self.requests.send(v1::WatchRequest { request }).await.unwrap();
    }

    pub async fn unsubscribe(&self, services: &[&str]) {
        let services = services.iter().map(|s| v1::ServiceName::from(&name(s))).collect();
        let request = Some(Ask::Unsubscribe(v1::Unsubscribe { services }));
        self.requests.send(v1::WatchRequest { request }).await.unwrap();
    }

    /// Takes one response in.
    pub async fn next(&mut self) -> Result<v1::WatchResponse, Status> {
        let response = tokio::time::timeout(PATIENCE, self.responses.message())
            .await
            .unwrap_or_else(|_| panic!("silence; so far {:?}", self.log))?
            .ok_or_else(|| Status::cancelled("the stream ended"))?;
        assert!(response.revision >= self.revision, "revisions only grow");
        self.revision = response.revision;
        for update in &response.services {
            let update = tollway_wire::service_update(update).unwrap();
            let state = print(&update.state);
            self.log.push(format!("{} {state}", update.service.app));
            self.known.insert(update.service, state);
        }
        for update in &response.networks {
            let state = match tollway_wire::network_update(update).unwrap().state {
                tollway_wire::NetworkState::Removed => "removed".to_owned(),
                tollway_wire::NetworkState::Joined { gateways, reachable, .. } => {
                    format!("{} gateways, reachable {reachable}", gateways.len())
                }
            };
            self.log.push(format!("network {} {state}", update.network));
            self.networks.insert(update.network.clone(), state);
        }
        if response.trust.is_some() {
            self.trust.clone_from(&response.trust);
        }
        let request = Some(Ask::Ack(v1::Ack { revision: response.revision }));
        let _ = self.requests.try_send(v1::WatchRequest { request });
        Ok(response)
    }

    /// Reads on until `service` is in `state`.
    pub async fn until(&mut self, service: &str, state: &str) {
        let wait = async {
            while self.known.get(&name(service)).map(String::as_str) != Some(state) {
                self.next().await.unwrap();
            }
        };
        let done = tokio::time::timeout(PATIENCE, wait).await;
        assert!(done.is_ok(), "{service} is not {state}: {:?}", self.log);
    }

    /// Reads until the control plane has nothing more to send.
    pub async fn until_quiet(&mut self) {
        while !self.next().await.unwrap().heartbeat {}
    }
}

/// Opens a sidecar's stream that resumes `services` from `revision`.
pub fn subscribed(revision: u64, services: &[&str]) -> v1::Open {
    v1::Open {
        scope: v1::open::Scope::Subscribed.into(),
        revision,
        resume: services.iter().map(|s| v1::ServiceName::from(&name(s))).collect(),
        trust_revision: 0,
        version: String::new(),
    }
}

pub fn print(state: &ServiceState) -> String {
    match state {
        ServiceState::Local { endpoints, .. } => {
            let mut ports: Vec<_> = endpoints.iter().map(|e| e.address.port()).collect();
            ports.sort_unstable();
            format!("local {ports:?}")
        }
        ServiceState::Remote { remote, .. } => {
            format!("remote x{} via {}", remote.ready_replicas, remote.gateways.len())
        }
        ServiceState::Failover { rules, registered } => {
            let network = |(of, count): (&FailoverNetwork, &u32)| {
                format!("{} {} x{count}", of.priority, of.network)
            };
            let networks: Vec<_> = rules.networks.iter().zip(&**registered).map(network).collect();
            networks.join(", ")
        }
        ServiceState::AddressOf(of) => format!("address of {of}"),
        ServiceState::Unavailable(reason) => match reason {
            UnavailableReason::UnknownService => "unknown service",
            UnavailableReason::UnknownNetwork => "unknown network",
            UnavailableReason::UnreachableNetwork => "unreachable network",
            UnavailableReason::NoReadyEndpoint => "none ready",
            UnavailableReason::NoFailover => "no failover",
        }
        .to_owned(),
    }
}
