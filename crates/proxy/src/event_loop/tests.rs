//! Sidecars, gateways, a foreign app and foreign clients (hyper) on a network in memory, with a clock
//! of the test's own ([`sim`]). There is no control plane: the states of services are handed over
//! directly.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tollway_identity::{
    Authority, Credentials, IssueRequest, IssuedChain, KeyPair, SystemRequest, TrustBundle,
    TrustBundles,
};
use tollway_model::{
    AppProtocol, Endpoint, HostName, Label, NetworkName, Remote, Revision, ServiceName,
    ServiceState, ServiceUpdate, TrustDomain,
};
use tollway_net::Listener;
use tollway_telemetry::DataPlaneMetrics;
use tollway_wire::NetworkUpdate;

mod actors;
mod app_unreachable;
mod bulk;
mod cluster;
mod deadlines;
mod distance;
mod egress;
mod failover;
mod fairness;
mod gateway;
mod intercepted;
mod keepalive;
mod limits;
mod listeners;
mod loopback;
mod memory_pressure;
mod policy;
mod pooled;
mod public;
mod refused_peers;
mod replicas;
mod reverse;
mod routes;
mod runtime_backlog;
mod sim;
mod times;
mod traffic;
mod trust;
mod web_pages;

use super::*;
use crate::egress::AppEgress;
use crate::exchange::Destination;
use crate::gateway::reverse::ReverseOptions;
use crate::gateway::reverse::board::Board;
use crate::gateway::{Gateway, GatewayRoutes, Insiders};
use crate::limits::{Limits, Timeouts};
use crate::mesh::{EgressUpdate, PolicyUpdate};
use app_unreachable::start_tcp_echo;
use sim::{
    NodeId, Stream, advance, block_on, connect, listen, listen_with, now, spawn, until,
    unused_address,
};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn service(name: &str) -> ServiceName {
    ServiceName::parse_in(name, &label("default"), &label("west")).unwrap()
}

/// What a gateway of a network knows, with its control plane at these addresses.
fn routes_of(network: NetworkName, control: Vec<SocketAddr>) -> GatewayRoutes {
    GatewayRoutes { network, control, insiders: Insiders::default() }
}

/// A network's authority.
struct Network {
    authority: Authority,
    trust_domain: TrustDomain,
}

impl Network {
    fn new(name: &str) -> Self {
        let trust_domain = TrustDomain::default_for(&label(name));
        let authority = Authority::create(&trust_domain, &label(name), sim::wall()).unwrap();
        Self { authority, trust_domain }
    }

    fn bundle(&self) -> TrustBundle {
        TrustBundle::new(
            self.authority.network().clone(),
            self.trust_domain.clone(),
            vec![self.authority.root_der().clone()],
        )
        .unwrap()
    }

    fn credentials(&self, name: &ServiceName, instance: &str, peers: &[&Self]) -> Arc<Credentials> {
        self.credentials_for(Duration::from_secs(24 * 3600), name, instance, peers)
    }

    /// Credentials that are valid for so long.
    fn credentials_for(
        &self,
        ttl: Duration,
        name: &ServiceName,
        instance: &str,
        peers: &[&Self],
    ) -> Arc<Credentials> {
        let key = KeyPair::generate().unwrap();
        let request = IssueRequest {
            csr_der: key.csr_der().unwrap(),
            service: name.clone(),
            instance: label(instance),
            ttl,
        };
        let issued = self.authority.issue(&request, sim::wall()).unwrap();
        self.credentials_of(&key, issued, peers)
    }

    /// The credentials that a gateway shows.
    fn gateway_credentials(&self) -> Arc<Credentials> {
        self.gateway_credentials_of("g-1", &[])
    }

    fn gateway_credentials_of(&self, instance: &str, peers: &[&Self]) -> Arc<Credentials> {
        let key = KeyPair::generate().unwrap();
        let csr_der = key.csr_der().unwrap();
        let request =
            SystemRequest { csr_der, instance: label(instance), ttl: Duration::from_secs(3600) };
        let issued = self.authority.issue_gateway(&request, sim::wall()).unwrap();
        self.credentials_of(&key, issued, peers)
    }

    fn credentials_of(
        &self,
        key: &KeyPair,
        issued: IssuedChain,
        peers: &[&Self],
    ) -> Arc<Credentials> {
        let bundles =
            TrustBundles::new(1, peers.iter().map(|p| p.bundle()).chain([self.bundle()])).unwrap();
        let credentials = Credentials::new(key, issued.chain, bundles).unwrap();
        Arc::new(credentials.with_clock(Arc::new(sim::Clock)))
    }
}

/// Notes what a loop asks of the rest of its process, and hands what is for the runtime to it if there
/// is one.
#[derive(Clone, Default)]
struct Around {
    asked: Arc<Mutex<Vec<ServiceName>>>,
    unsubscribed: Arc<AtomicUsize>,
    /// The control plane does not answer.
    is_away: Arc<AtomicBool>,
    runtime: Arc<Mutex<Option<Runtime>>>,
    /// Names whose addresses are wanted.
    wanted: Arc<Mutex<Vec<HostName>>>,
    /// How often a peer refused the own certificate as one that has ended.
    certificate_refused: Arc<AtomicUsize>,
}

type Runtime = Box<dyn FnMut(ApiStream) + Send>;

impl Around {
    fn times_asked(&self, service: &ServiceName) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| *asked == service).count()
    }

    fn set_runtime(&self, runtime: impl FnMut(ApiStream) + Send + 'static) {
        *self.runtime.lock().unwrap() = Some(Box::new(runtime));
    }
}

impl ProcessServices for Around {
    fn subscribe(&self, service: &ServiceName) {
        self.asked.lock().unwrap().push(service.clone());
    }
    fn unsubscribe(&self, _: &ServiceName) {
        self.unsubscribed.fetch_add(1, Ordering::SeqCst);
    }
    fn is_followed(&self) -> bool {
        !self.is_away.load(Ordering::SeqCst)
    }
    fn serve_api(&self, stream: ApiStream) -> Result<(), NotServed> {
        let mut runtime = self.runtime.lock().unwrap();
        let serve = runtime.as_mut().ok_or(NotServed::Nobody)?;
        serve(stream);
        Ok(())
    }
    fn app_unreachable(&self) {}
    fn certificate_refused(&self) {
        self.certificate_refused.fetch_add(1, Ordering::SeqCst);
    }
    fn find_addresses(&self, name: &HostName) {
        self.wanted.lock().unwrap().push(name.clone());
    }
}

/// What most tests allow; only discovery is waited for.
fn patient() -> Timeouts {
    Timeouts { discovery: Duration::from_secs(1), ..Timeouts::default() }
}

/// An event loop of the simulation.
struct Running {
    node: NodeId,
    commands: Commands,
    addresses: Vec<SocketAddr>,
    metrics: Arc<DataPlaneMetrics>,
    egress: Arc<AppEgress>,
    around: Around,
}

impl Running {
    fn start(
        home: ServiceName,
        credentials: Arc<Credentials>,
        listeners: &[ListenerKind],
        app: Option<AppTarget>,
        gateway: Option<GatewayRoutes>,
    ) -> Self {
        let bounds = (Limits::default(), patient());
        Self::start_at(None, bounds, home, credentials, listeners, app, gateway)
    }

    /// Its first listener is at `address` if there is one.
    fn start_at(
        address: Option<SocketAddr>,
        bounds: (Limits, Timeouts),
        home: ServiceName,
        credentials: Arc<Credentials>,
        listeners: &[ListenerKind],
        app: Option<AppTarget>,
        gateway: Option<GatewayRoutes>,
    ) -> Self {
        let own = home.clone();
        let running = Self::start_without_policies(
            address,
            bounds,
            home,
            credentials,
            listeners,
            app,
            gateway,
        );
        running.send_no_policies(own);
        running
    }

    /// Sends an update by which no policy protects the service.
    fn send_no_policies(&self, service: ServiceName) {
        let none = tollway_routing::PolicySet::new(service, []);
        self.commands.send(Command::Policies(PolicyUpdate::unobserved(none)));
        self.send_egress(tollway_routing::EgressRules::default());
    }

    /// Sends what the app may call out of the mesh.
    fn send_egress(&self, rules: tollway_routing::EgressRules) {
        self.commands.send(Command::Egress(EgressUpdate::unobserved(rules)));
    }

    /// A loop that has not been sent its policies.
    fn start_without_policies(
        address: Option<SocketAddr>,
        (limits, timeouts): (Limits, Timeouts),
        home: ServiceName,
        credentials: Arc<Credentials>,
        listeners: &[ListenerKind],
        app: Option<AppTarget>,
        gateway: Option<GatewayRoutes>,
    ) -> Self {
        let config = Arc::new(LoopConfig { app, limits, timeouts, ..LoopConfig::of_test(home) });
        let around = Around::default();
        match gateway {
            Some(routes) => {
                let own = service(&format!("gateway.tollway.{}", routes.network));
                let reverse = ReverseOptions {
                    credentials,
                    own,
                    holds: listeners.contains(&ListenerKind::GatewayInside),
                    dials_out: false,
                    thread: 0,
                    board: Board::default(),
                };
                Self::of(address, config, listeners, around, Gateway::new(routes, reverse))
            }
            None => {
                let sidecar = Http::sidecar(&config, credentials, Box::new(around.clone()));
                Self::of(address, config, listeners, around, sidecar)
            }
        }
    }

    fn of(
        address: Option<SocketAddr>,
        config: Arc<LoopConfig>,
        listeners: &[ListenerKind],
        around: Around,
        plane: impl Composition + 'static,
    ) -> Self {
        let metrics = Arc::new(DataPlaneMetrics::default());
        let (of_loop, egress) = (Arc::clone(&metrics), Arc::clone(&config.egress));
        let (event_loop, commands) =
            EventLoop::new(config, Vec::new(), of_loop, now(), 42, plane).unwrap();
        let (node, addresses) = sim::start(event_loop, address, listeners);
        Self { node, commands, addresses, metrics, egress, around }
    }

    /// A sidecar with listeners of the kernel.
    fn with_sockets(listeners: Vec<(Listener, ListenerKind)>) -> Self {
        let (network, web) = (Network::new("west"), service("web"));
        let credentials = network.credentials(&web, "w-1", &[]);
        let config = Arc::new(web_config(MeshProtocol::Http2, (Limits::default(), patient())));
        let (around, metrics) = (Around::default(), Arc::new(DataPlaneMetrics::default()));
        let sidecar = Http::sidecar(&config, credentials, Box::new(around.clone()));
        let addresses = listeners.iter().map(|(listener, _)| listener.address()).collect();
        let (of_loop, egress) = (Arc::clone(&metrics), Arc::clone(&config.egress));
        let (event_loop, commands) =
            EventLoop::new(config, listeners, of_loop, now(), 42, sidecar).unwrap();
        let (node, _) = sim::start(event_loop, None, &[]);
        Self { node, commands, addresses, metrics, egress, around }
    }

    /// Sends the state of a service, now and whenever the loop asks for it.
    fn send_state(&self, service: &ServiceName, state: ServiceState) {
        sim::keep_informed(self, service, state);
    }

    /// Gives `web` other settings.
    fn configure(&self, mesh_protocol: MeshProtocol, bounds: (Limits, Timeouts)) {
        self.commands.send(Command::Configure(Arc::new(web_config(mesh_protocol, bounds))));
    }
}

/// The settings of `web`, which has no app.
fn web_config(mesh_protocol: MeshProtocol, (limits, timeouts): (Limits, Timeouts)) -> LoopConfig {
    LoopConfig { mesh_protocol, limits, timeouts, ..LoopConfig::of_test(service("web")) }
}

impl Drop for Running {
    fn drop(&mut self) {
        sim::kill(self.node);
    }
}

/// A foreign app: echoes bodies, speaks HTTP/1.1 and HTTP/2 with prior knowledge, returns what
/// it got in `x-*` fields.
fn start_app() -> SocketAddr {
    serve(answer)
}

/// An app that answers so, over either version of HTTP.
fn serve<A>(answer: impl Fn(Request<Incoming>) -> A + Clone + Send + 'static) -> SocketAddr
where
    A: Future<Output = Result<Response<Body>, hyper::Error>> + Send + 'static,
{
    listen_with(move |peer| {
        let service = service_fn(answer.clone());
        spawn(async move {
            // A connection that breaks is what some tests want.
            let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                .serve_connection_with_upgrades(TokioIo::new(peer), service)
                .await;
        });
    })
}

type Body = BoxBody<Bytes, hyper::Error>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let seen = |name: &str| {
        request.headers().get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default()
    };
    let path = request.uri().path().to_owned();
    let builder = Response::builder()
        .header("x-path", request.uri().path_and_query().unwrap().as_str())
        .header("x-caller", seen("x-tollway-caller"))
        .header("x-host", seen("host"))
        .header("x-token", seen("dapr-api-token"))
        .header("x-time-left", seen("x-tollway-timeout-ms"))
        .header("x-own", own_fields(&request).join(" "))
        .header("x-trace", seen("traceparent"));
    if path == "/unprocessed" {
        let builder = builder.status(503).header("x-tollway-unprocessed", "1");
        return Ok(builder.body(request.into_body().boxed()).unwrap());
    }
    if path == "/stuck" {
        std::future::pending::<()>().await;
    }
    if path == "/trailers" {
        let mut trailers = ::http::HeaderMap::new();
        trailers.insert("x-sum", "42".parse().unwrap());
        let frames =
            [Ok(Frame::data(Bytes::from_static(b"with trailers"))), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(tokio_stream_iter(frames));
        return Ok(builder.header("trailer", "x-sum").body(BodyExt::boxed(body)).unwrap());
    }
    if path == "/upgrade" {
        tokio::spawn(async move {
            let upgraded = hyper::upgrade::on(request).await.unwrap();
            let mut io = TokioIo::new(upgraded);
            let (mut read, mut write) = tokio::io::split(&mut io);
            tokio::io::copy(&mut read, &mut write).await.unwrap();
        });
        let empty = Full::new(Bytes::new()).map_err(|e| match e {}).boxed();
        return Ok(builder
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "echo")
            .body(empty)
            .unwrap());
    }
    if let Some(megabytes) = path.strip_prefix("/large") {
        let megabytes = megabytes.trim_start_matches('/').parse().unwrap_or(100);
        let frames = (0..megabytes).map(|_| Ok(Frame::data(Bytes::from(vec![b'x'; 1_000_000]))));
        let body = StreamBody::new(tokio_stream_iter(frames));
        return Ok(builder.body(BodyExt::boxed(body)).unwrap());
    }
    if path == "/count" {
        let mut body = request.into_body();
        let mut count = 0;
        while let Some(frame) = body.frame().await {
            count += frame?.into_data().map_or(0, |data| data.len());
        }
        let text = Full::new(Bytes::from(count.to_string())).map_err(|e| match e {}).boxed();
        return Ok(builder.body(text).unwrap());
    }
    Ok(builder.body(request.into_body().boxed()).unwrap())
}

/// What only the mesh says of a request, but for who calls.
fn own_fields<B>(request: &Request<B>) -> Vec<String> {
    let names = request.headers().keys().map(|name| name.as_str().to_owned());
    names.filter(|name| name.starts_with("x-tollway-") && name != "x-tollway-caller").collect()
}

/// An iterator as a stream, without another dependency.
fn tokio_stream_iter<I>(items: I) -> impl futures_core::Stream<Item = I::Item>
where
    I: IntoIterator,
{
    IterStream(items.into_iter())
}

struct IterStream<I>(I);
impl<I: Iterator> Unpin for IterStream<I> {}
impl<I: Iterator> futures_core::Stream for IterStream<I> {
    type Item = I::Item;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

/// web in west calls stock in east through east's gateway, and shop in west directly.
struct World {
    caller: Running,
    callee: Running,
    gateway: Running,
    app: AppTarget,
}

impl World {
    fn new(protocol: AppProtocol) -> Self {
        Self::with_app(protocol, start_app())
    }

    fn with_app(protocol: AppProtocol, app: SocketAddr) -> Self {
        let (west, east) = (Network::new("west"), Network::new("east"));
        let (web, stock) = (service("web"), service("stock.default.east"));
        let app = AppTarget::at(app, protocol);
        let callee = Running::start(
            stock.clone(),
            east.credentials(&stock, "s-1", &[&west]),
            &[ListenerKind::Inbound],
            Some(app.clone()),
            None,
        );
        let routes = routes_of(label("east"), vec!["127.0.0.1:1".parse().unwrap()]);
        let gateway_name = service("gateway.tollway.east");
        let gateway = Running::start(
            gateway_name,
            east.credentials(&stock, "g-1", &[]),
            &[ListenerKind::Gateway],
            None,
            Some(routes),
        );
        let caller = Running::start(
            web.clone(),
            west.credentials(&web, "w-1", &[&east]),
            &[
                ListenerKind::HttpApi,
                ListenerKind::GrpcApi,
                ListenerKind::Outbound,
                ListenerKind::Tcp(stock.clone()),
            ],
            None,
            None,
        );
        let world = Self { caller, callee, gateway, app };
        world.gateway.send_state(&stock, world.local(&east, protocol));
        let remote = ServiceState::Remote {
            remote: Remote {
                network: label("east"),
                ready_replicas: 1,
                gateways: [world.gateway.addresses[0]].into(),
                beyond: [].into(),
            },
            protocol,
            trust_domain: east.trust_domain,
        };
        world.caller.send_state(&stock, remote);
        world
    }

    fn local(&self, network: &Network, protocol: AppProtocol) -> ServiceState {
        ServiceState::Local {
            unready: [].into(),
            endpoints: [Endpoint::new(label("s-1"), self.callee.addresses[0])].into(),
            protocol,
            trust_domain: network.trust_domain.clone(),
        }
    }

    fn http(&self) -> SocketAddr {
        self.caller.addresses[0]
    }

    /// The app of the callee has so many requests at a time.
    fn limit_app(&self, requests: usize) {
        let (app, timeouts) = (Some(self.app.clone()), patient());
        let home = service("stock.default.east");
        let config = LoopConfig {
            app,
            timeouts,
            app_concurrency: Some(requests),
            ..LoopConfig::of_test(home)
        };
        self.callee.commands.send(Command::Configure(Arc::new(config)));
    }
}

/// Sends bytes, reads until `enough` is found.
fn talk(stream: &mut (impl Read + Write), request: &[u8], enough: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 65536];
    while !answer.windows(enough.len()).any(|w| w == enough) {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "closed after {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// An HTTP/2 frame: the peer's settings are taken.
const SETTINGS_ACK: &[u8] = b"\0\0\0\x04\x01\0\0\0\0";

const INVOKE: &str = "/v1.0/invoke/stock.default.east/method";

#[test]
fn a_call_crosses_two_networks_over_http1() {
    let world = World::new(AppProtocol::Http);
    let mut stream = connect(world.http());
    for round in 0..3 {
        let request = format!(
            "POST {INVOKE}/echo?n={round} HTTP/1.1\r\nhost: localhost\r\ntraceparent: 00-t\r\n\
             content-length: 5\r\n\r\nhello"
        );
        let answer = talk(&mut stream, request.as_bytes(), b"hello");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains(&format!("x-path: /echo?n={round}\r\n")), "{answer}");
        assert!(answer.contains("x-caller: spiffe://west.tollway/ns/default/web\r\n"), "{answer}");
        assert!(answer.contains("x-trace: 00-t\r\n"), "{answer}");
        assert!(answer.contains("x-host: stock.default.east.mesh\r\n"), "{answer}");
        assert!(answer.contains("content-length: 5\r\n"), "{answer}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let world = World::new(AppProtocol::Http);
    let mut stream = connect(world.http());
    let mut requests = String::new();
    for n in 0..50 {
        requests += &format!("GET {INVOKE}/{n} HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    requests += &format!("GET {INVOKE}/last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(requests.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let paths: Vec<_> = answer.lines().filter_map(|l| l.strip_prefix("x-path: ")).collect();
    let expected: Vec<_> = (0..50).map(|n| format!("/{n}")).chain(["/last".into()]).collect();
    assert_eq!(paths, expected);
}

#[test]
fn chunked_bodies_and_trailers_pass() {
    let world = World::new(AppProtocol::Http);
    let mut stream = connect(world.http());
    let request = format!(
        "POST {INVOKE}/echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
         5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    );
    let answer = talk(&mut stream, request.as_bytes(), b"0\r\n\r\n");
    assert!(answer.contains("hello") && answer.contains(" world"), "{answer}");
    let request = format!("GET {INVOKE}/trailers HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n");
    let answer = talk(&mut stream, request.as_bytes(), b"x-sum: 42\r\n\r\n");
    assert!(answer.contains("with trailers"), "{answer}");
}

#[test]
fn a_large_body_passes_both_ways_in_bounded_memory() {
    let world = World::new(AppProtocol::Http);
    let mut stream = connect(world.http());
    stream
        .write_all(
            format!("GET {INVOKE}/large HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .unwrap();
    let mut received = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        received += count;
    }
    assert!(received > 100_000_000, "{received}");
    let mut stream = connect(world.http());
    stream
        .write_all(
            format!("POST {INVOKE}/count HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n")
                .as_bytes(),
        )
        .unwrap();
    let block = vec![b'y'; 1_000_000];
    for _ in 0..100 {
        stream.write_all(&block).unwrap();
    }
    let answer = talk(&mut stream, b"", b"100000000");
    assert!(answer.contains("\r\n\r\n100000000"), "{answer}");
}

#[test]
fn a_slow_reader_holds_its_sender_back() {
    let world = World::new(AppProtocol::Http);
    let mut slow = connect(world.http());
    slow.write_all(format!("GET {INVOKE}/large HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).unwrap();
    advance(Duration::from_secs(5));
    // Others are not disturbed while it does not read.
    let mut other = connect(world.http());
    let request = format!("GET {INVOKE}/x HTTP/1.1\r\nhost: a\r\n\r\n");
    let answer = talk(&mut other, request.as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut buffer = vec![0; 1 << 20];
    let mut received = 0;
    while received < 100_000_000 {
        received += slow.read(&mut buffer).unwrap();
    }
}

#[test]
fn an_upgrade_becomes_a_stream_of_bytes() {
    let world = World::new(AppProtocol::Http);
    let mut stream = connect(world.http());
    let request = format!(
        "GET {INVOKE}/upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n"
    );
    let answer = talk(&mut stream, request.as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    assert_eq!(talk(&mut stream, b"ping", b"ping"), "ping");
    let block = vec![b'z'; 300_000];
    stream.write_all(&block).unwrap();
    let mut back = vec![0; 300_000];
    stream.read_exact(&mut back).unwrap();
    assert!(back == block);
}

#[test]
fn the_outbound_port_takes_hosts_absolute_targets_and_connect() {
    let world = World::new(AppProtocol::Http);
    let outbound = world.caller.addresses[2];
    for request in [
        "GET /a HTTP/1.1\r\nhost: stock.default.east.mesh\r\n\r\n".to_owned(),
        "GET http://stock.default.east.mesh:80/a HTTP/1.1\r\nhost: stock.default.east.mesh:80\r\n\r\n"
            .to_owned(),
    ] {
        let answer = talk(&mut connect(outbound), request.as_bytes(), b"\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("x-path: /a\r\n"), "{answer}");
    }
    let mut tunnel = connect(outbound);
    let connect_to =
        "CONNECT stock.default.east.mesh:80 HTTP/1.1\r\nhost: stock.default.east.mesh:80\r\n\r\n";
    let answer = talk(&mut tunnel, connect_to.as_bytes(), b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = talk(&mut tunnel, b"GET /in HTTP/1.1\r\nhost: any\r\n\r\n", b"\r\n\r\n");
    assert!(answer.contains("x-path: /in\r\n"), "{answer}");
    let answer = talk(&mut connect(outbound), b"GET / HTTP/1.1\r\nhost: example.org\r\n\r\n", b"}");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("`example.org` is not a service of the mesh"), "{answer}");
}

#[test]
fn tcp_passes_with_half_close() {
    let world = World::with_app(AppProtocol::Tcp, start_tcp_echo());
    let mut stream = connect(world.caller.addresses[3]);
    let sent = vec![b'q'; 2_000_000];
    stream.send_meanwhile(&sent[..]);
    stream.finish();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(back == sent, "{} of {}", back.len(), sent.len());
    let request = format!("GET {INVOKE}/x HTTP/1.1\r\nhost: a\r\n\r\n");
    let answer = talk(&mut connect(world.http()), request.as_bytes(), b"}");
    assert!(answer.contains("takes plain TCP, not HTTP"), "{answer}");
}

#[test]
fn http2_multiplexes_over_the_same_path() {
    let world = World::new(AppProtocol::H2c);
    let address = world.caller.addresses[1];
    let stream = sim::network().connect(address);
    block_on(async move {
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..200_usize {
            let mut sender = sender.clone();
            calls.spawn(async move {
                let body = Bytes::from(vec![u8::try_from(n).unwrap(); n * 1000]);
                let request = Request::builder()
                    .method("POST")
                    .uri(format!("http://a/pkg.Service/Call{n}"))
                    .header("dapr-app-id", "stock.default.east")
                    .body(Full::new(body.clone()))
                    .unwrap();
                let response = sender.send_request(request).await.unwrap();
                assert_eq!(response.headers()["x-path"], format!("/pkg.Service/Call{n}"));
                let back = response.into_body().collect().await.unwrap().to_bytes();
                assert!(back == body);
            });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
    });
}

#[test]
fn faults_are_reported_as_json_and_as_grpc_status() {
    let world = World::new(AppProtocol::Http);
    let unknown = "GET /v1.0/invoke/nobody/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let answer = talk(&mut connect(world.http()), unknown.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    assert!(answer.contains("\"errorCode\":\"ERR_DISCOVERY_TIMED_OUT\""), "{answer}");
    let bad = "GET /v1.0/invoke/a.b.c.d/method/x HTTP/1.1\r\nhost: a\r\n\r\n";
    let answer = talk(&mut connect(world.http()), bad.as_bytes(), b"}");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let grpc = "POST /x.Y/Z HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\n\
                content-length: 0\r\n\r\n";
    let answer = talk(&mut connect(world.http()), grpc.as_bytes(), b"\r\n\r\n");
    assert!(answer.contains("grpc-status: 12\r\n"), "{answer}");
}

#[test]
fn malformed_requests_are_refused_before_anything_is_forwarded() {
    let world = World::new(AppProtocol::Http);
    for bad in [
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n",
        "GET / HTTP/1.1\n\n",
    ] {
        let mut stream = connect(world.http());
        stream.write_all(bad.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{bad:?}: {answer}");
        assert!(answer.contains("ERR_MALFORMED_REQUEST"), "{answer}");
    }
    assert_eq!(world.caller.metrics.outbound_requests.value(), 0);
}

#[test]
fn a_drain_finishes_what_is_under_way() {
    let world = World::new(AppProtocol::Http);
    let mut stream = connect(world.http());
    let start = format!("POST {INVOKE}/echo HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab");
    stream.write_all(start.as_bytes()).unwrap();
    assert!(world.caller.commands.send(Command::Drain));
    advance(Timeouts::default().withdraw + SWEEP);
    let answer = talk(&mut stream, b"cd", b"abcd");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    drop(stream);
    until("the end of the loop", || sim::has_ended(world.caller.node));
}

#[test]
fn a_plain_client_is_refused_at_the_inbound_listener_and_the_gateway() {
    let world = World::new(AppProtocol::Http);
    for via in [world.callee.addresses[0], world.gateway.addresses[0]] {
        let mut stream = connect(via);
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // A reset is as good a refusal as a close.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(world.callee.metrics.inbound_requests.value(), 0);
}
