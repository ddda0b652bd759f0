//! Attacks on every HTTP/2 listener. During each of them the attacker pays for the work that it
//! causes, the attacked process stays small, and another caller is not affected.

mod answers;
pub(crate) mod app;
mod attacks;
mod bear;
mod called_off;
mod downgrade;
mod grpc;
mod grpc_app;
mod held;
mod over;
mod peer;
mod send_backlog;
mod settings;
mod stalled;

use std::net::SocketAddr;
use std::time::Duration;

use tollway_testkit::{End, Process, RawClient, TempDir, TlsRelay, retry_until};

use crate::listeners::tls_listener::{H2, HTTP1};
use crate::listeners::tunnel;
use attacks::Target;
use bear::check;
use tollway_tests::h2_attacker::{Aim, Wire};
use tollway_tests::network::{CONTROL, FRONT, Network, STOCK, front, tollway};
use tollway_tests::scripted_app::answers as whole;
use tollway_tests::tls_client::trusting;

/// What has not come about until then does not.
const STARVED: Duration = Duration::from_secs(60);

/// All processes behind one listener.
struct Stand {
    network: Option<Network>,
    _app: Option<Process>,
    /// Those that see anything of an attack: the one that reads the frames first. Without any it
    /// is the control plane.
    attacked: Vec<Process>,
    aim: Aim,
    target: Target,
    honest: Honest,
    _relay: Option<TlsRelay>,
    _files: Option<TempDir>,
}

/// The request that an honest caller repeats, and its target.
enum Honest {
    Http1(SocketAddr, String),
    /// A call of gRPC, on a connection of its own.
    Http2(SocketAddr),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    HttpApi,
    GrpcApi,
    Outbound,
    /// Inside a tunnel that CONNECT has opened to the service.
    Tunnel,
    Mesh,
    /// The inbound listener, through the gateway.
    Gateway,
}

impl Kind {
    /// The prefix of a service's paths, and the service's name there.
    fn target(self) -> Target {
        let (authority, prefix, app_id) = match self {
            Self::HttpApi => ("localhost", "/v1.0/invoke/stock/method", None),
            Self::GrpcApi => ("localhost", "", Some("stock")),
            Self::Outbound | Self::Tunnel | Self::Mesh | Self::Gateway => (STOCK, "", None),
        };
        Target { authority, prefix, app_id }
    }
}

/// A listener of the sidecar `web` without TLS.
fn plain(web: Process, port: &str, stock: Process) -> (Vec<Process>, Aim, Option<TlsRelay>) {
    let address = web.port(port).unwrap();
    (vec![web, stock], Aim { address, tls: None }, None)
}

impl Stand {
    fn open(kind: Kind, app_protocol: &str) -> Self {
        Self::open_with(kind, app_protocol, &[])
    }

    /// Everything that carries the app's bytes gets `options`.
    fn open_with(kind: Kind, app_protocol: &str, options: &[&str]) -> Self {
        let network = Network::start("west");
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let port = app.port("http").unwrap().port().to_string();
        let own = ["--app-port", &port, "--app-protocol", app_protocol];
        let stock = network.sidecar("stock", &[&own, options].concat());
        let target = kind.target();
        let web = || network.sidecar("web", options);
        let (attacked, aim, relay) = match kind {
            Kind::HttpApi => plain(web(), "http", stock),
            Kind::GrpcApi => plain(web(), "grpc", stock),
            Kind::Outbound => plain(web(), "outbound", stock),
            Kind::Tunnel => {
                let (attacked, aim, relay) = plain(web(), "outbound", stock);
                let address = tunnel::start(aim.address, STOCK);
                (attacked, Aim { address, tls: None }, relay)
            }
            Kind::Mesh | Kind::Gateway => {
                let gateway = (kind == Kind::Gateway).then(|| network.gateway_with(options));
                let address = match &gateway {
                    Some(gateway) => gateway.port("gateway").unwrap(),
                    None => stock.port("inbound").unwrap(),
                };
                let aim = Aim { address, tls: Some(network.client("web", "stock", H2)) };
                let relay = network.relay(address, "web", "stock", HTTP1);
                (std::iter::once(stock).chain(gateway).collect(), aim, Some(relay))
            }
        };
        let address = relay.as_ref().map_or(aim.address, |relay| relay.address());
        let honest = target.honest(address);
        Self {
            network: Some(network),
            _app: Some(app),
            attacked,
            aim,
            target,
            honest,
            _relay: relay,
            _files: None,
        }
    }

    /// A front before an app over HTTP/2.
    fn front() -> Self {
        Self::front_with(&[])
    }

    fn front_with(options: &[&str]) -> Self {
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let to = format!("h2c://{}", app.port("http").unwrap());
        let (files, front) = front(tollway(), &to, options);
        let address = front.port("front").unwrap();
        let aim = Aim { address, tls: Some((trusting(None, H2), FRONT.to_owned())) };
        let relay = TlsRelay::start(address, FRONT, trusting(None, HTTP1)).unwrap();
        let target = Target { authority: FRONT, prefix: "", app_id: None };
        Self {
            network: None,
            _app: Some(app),
            attacked: vec![front],
            aim,
            target,
            honest: target.honest(relay.address()),
            _relay: Some(relay),
            _files: Some(files),
        }
    }

    /// A control plane, attacked by a workload of its own.
    fn control() -> Self {
        let network = Network::start("west");
        let address = network.control_address();
        let (config, name) = network.client_of_control("web");
        let relay = TlsRelay::start(address, &name, network.client_of_control("orders").0).unwrap();
        let target = Target { authority: CONTROL, prefix: "", app_id: None };
        Self {
            network: Some(network),
            _app: None,
            attacked: Vec::new(),
            aim: Aim { address, tls: Some((config, name)) },
            target,
            honest: Honest::Http2(relay.address()),
            _relay: Some(relay),
            _files: None,
        }
    }

    /// The control plane, as a workload has it that does not attack.
    fn aim_of_another(&self) -> Aim {
        let network = self.network.as_ref().expect("it has a control plane");
        let tls = Some(network.client_of_control("orders"));
        Aim { address: network.control_address(), tls }
    }

    fn attacked(&self) -> Vec<&Process> {
        let control = self.network.iter().filter(|_| self.attacked.is_empty());
        self.attacked.iter().chain(control.map(|network| &network.control)).collect()
    }
}

impl Honest {
    /// Asks once, and must get a good answer, whenever it is called.
    fn caller(&self) -> Box<dyn FnMut() + '_> {
        match self {
            Self::Http1(address, request) => {
                let mut client = RawClient::connect(*address).unwrap();
                Box::new(move || {
                    client.send(request).unwrap();
                    let answer = client.read_until(STARVED, |bytes| whole(bytes) > 0).unwrap();
                    let end = (answer.end, answer.statuses());
                    assert_eq!(end, (End::Complete, vec![200]), "{}", answer.text());
                })
            }
            Self::Http2(address) => {
                let mut wire = Wire::open(&Aim { address: *address, tls: None }).unwrap();
                wire.send(&tollway_tests::h2_frames::hello()).unwrap();
                let mut stream = 1;
                Box::new(move || {
                    call_grpc(&mut wire, stream);
                    stream += 2;
                })
            }
        }
    }
}

/// A call that a server of gRPC answers by a head alone: it does not know the method.
fn call_grpc(wire: &mut Wire, stream: u32) {
    let head = grpc_head("/nobody.Knows/This");
    let flags = tollway_tests::h2_frames::END_HEADERS | tollway_tests::h2_frames::END_STREAM;
    wire.send(&tollway_tests::h2_frames::frame(
        tollway_tests::h2_frames::HEADERS,
        flags,
        stream,
        &head,
    ))
    .unwrap();
    let mut came = Vec::new();
    let answered = retry_until(STARVED, "the answer of gRPC", || {
        came.extend(wire.take().unwrap());
        tollway_tests::h2_frames::Frame::all(&came).into_iter().find(|frame| frame.stream == stream)
    });
    let answer = answered.unwrap();
    assert!(answer.ends_stream() && answer.kind == tollway_tests::h2_frames::HEADERS, "{answer:?}");
}

/// The head of a call of gRPC to a control plane.
fn grpc_head(path: &str) -> Vec<u8> {
    tollway_tests::h2_frames::block(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":path", path),
        (":authority", CONTROL),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// What a listener is called, and how it is opened.
type Opened = (&'static str, fn() -> Stand);

/// Every HTTP/2 listener.
const LISTENERS: [Opened; 8] = [
    ("HTTP API", || Stand::open(Kind::HttpApi, "http")),
    ("gRPC API", || Stand::open(Kind::GrpcApi, "grpc")),
    ("outbound", || Stand::open(Kind::Outbound, "http")),
    ("inbound listener", || Stand::open(Kind::Mesh, "http")),
    ("inbound listener, app over HTTP/2", || Stand::open(Kind::Mesh, "h2c")),
    ("gateway", || Stand::open(Kind::Gateway, "h2c")),
    ("front", Stand::front),
    ("control plane", Stand::control),
];

#[test]
fn http_api_bears_attacks() {
    check("HTTP API");
}

#[test]
fn grpc_api_bears_attacks() {
    check("gRPC API");
}

#[test]
fn outbound_port_bears_attacks() {
    check("outbound");
}

#[test]
fn inbound_listener_bears_attacks() {
    check("inbound listener");
}

#[test]
fn inbound_listener_before_an_app_over_http2_bears_attacks() {
    check("inbound listener, app over HTTP/2");
}

#[test]
fn front_bears_attacks() {
    check("front");
}

#[test]
fn control_plane_bears_attacks() {
    check("control plane");
}

#[test]
fn gateway_bears_attacks() {
    check("gateway");
}
