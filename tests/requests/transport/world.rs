//! A network with every kind of listener, as processes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tollway_testkit::{Process, TempDir, retry_until};

use crate::transport::honest;
use crate::transport::line::{Aim, Tls};
use tollway_tests::h2_frames::{END_HEADERS, HEADERS, block, frame, hello};
use tollway_tests::network::{CONTROL, FRONT, Network, PATIENCE, STOCK, front, metric, tollway};
use tollway_tests::tls_client::trusting;

/// Where attackers come from, and honest callers.
pub(crate) const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
pub(crate) const HONEST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Times that a request may take or be silent, in milliseconds: shorter than by default, so that
/// they can be seen to end.
pub(crate) const SHORT_MS: u64 = 10_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Listener {
    Api,
    Grpc,
    Outbound,
    Mesh,
    Gateway,
    Front,
    Control,
}

impl Listener {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Grpc => "grpc api",
            Self::Outbound => "outbound",
            Self::Mesh => "inbound listener",
            Self::Gateway => "gateway",
            Self::Front => "front",
            Self::Control => "control plane",
        }
    }

    /// Whether TLS is spoken there.
    pub(crate) fn has_tls(self) -> bool {
        matches!(self, Self::Mesh | Self::Gateway | Self::Front | Self::Control)
    }
}

/// An honest caller's request, and the check of its answer.
pub(crate) struct Ask {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_answered: fn(&[u8]) -> bool,
    /// Whether a connection takes more than one.
    pub(crate) keeps: bool,
}

pub(crate) struct World {
    network: Network,
    _app: Process,
    pub(crate) stock: Process,
    pub(crate) web: Process,
    gateway: Process,
    front: Process,
    _files: TempDir,
    /// Identities of attackers and honest callers at sidecars, in this order.
    callers: [Tls; 2],
    to_control: Tls,
}

impl World {
    pub(crate) fn start() -> Self {
        let short = SHORT_MS.to_string();
        Self::start_with(&["--idle-timeout-ms", &short, "--request-timeout-ms", &short])
    }

    /// One in which what is silent stays as long as it does by default.
    pub(crate) fn start_patient() -> Self {
        Self::start_with(&[])
    }

    fn start_with(times: &[&str]) -> Self {
        // A crowd stands for many workloads, and all of it has one certificate.
        let network = Network::start_with("west", &["--max-instance-connections", "10000"]);
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let address = app.port("http").unwrap();
        let port = address.port().to_string();
        let stock = network.sidecar("stock", &[&["--app-port", &port], times].concat());
        let web = network.sidecar("web", times);
        let gateway = network.gateway_with(times);
        let (files, front) = front(tollway(), &format!("http://{address}"), times);
        let callers = ["web", "cron"].map(|caller| network.client(caller, "stock", b"http/1.1"));
        let to_control = network.client_of_control("web");
        let world = Self {
            network,
            _app: app,
            stock,
            web,
            gateway,
            front,
            _files: files,
            callers,
            to_control,
        };
        for listener in [Listener::Api, Listener::Gateway, Listener::Front] {
            world.until_served(listener);
        }
        world
    }

    fn until_served(&self, listener: Listener) {
        let (aim, ask) = (self.honest(listener), self.ask(listener));
        let served = || {
            let once = std::sync::atomic::AtomicBool::new(true);
            (honest::ask_until(&aim, &ask, 1, &once).failed == 0).then_some(())
        };
        retry_until(PATIENCE, listener.words(), served).unwrap();
    }

    fn address(&self, listener: Listener) -> SocketAddr {
        match listener {
            Listener::Api => self.web.port("http").unwrap(),
            Listener::Grpc => self.web.port("grpc").unwrap(),
            Listener::Outbound => self.web.port("outbound").unwrap(),
            Listener::Mesh => self.stock.port("inbound").unwrap(),
            Listener::Gateway => self.gateway.port("gateway").unwrap(),
            Listener::Front => self.front.port("front").unwrap(),
            Listener::Control => self.network.control_address(),
        }
    }

    /// How an attacker connects, with what an honest caller has.
    pub(crate) fn attacker(&self, listener: Listener) -> Aim {
        self.aim(listener, ATTACKER, 0)
    }

    pub(crate) fn honest(&self, listener: Listener) -> Aim {
        self.aim(listener, HONEST, 1)
    }

    fn aim(&self, listener: Listener, from: IpAddr, caller: usize) -> Aim {
        let tls = match listener {
            Listener::Api | Listener::Grpc | Listener::Outbound => None,
            Listener::Mesh | Listener::Gateway => Some(self.callers[caller].clone()),
            Listener::Front => Some((trusting(None, b"http/1.1"), FRONT.to_owned())),
            Listener::Control => Some(self.to_control.clone()),
        };
        Aim { from, to: self.address(listener), tls }
    }

    pub(crate) fn ask(&self, listener: Listener) -> Ask {
        if listener == Listener::Control {
            // The preface and empty SETTINGS; the server has some of its own.
            let bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
            return Ask { bytes, is_answered: |heard| heard.len() >= 9, keeps: false };
        }
        small(self.request(listener, "GET", "/size?bytes=10", ""))
    }

    /// The head of a request that `listener` serves; `fields` are whole lines, for HTTP/1.1.
    pub(crate) fn head(
        &self,
        listener: Listener,
        method: &str,
        path: &str,
        fields: &str,
    ) -> Vec<u8> {
        match listener {
            Listener::Control => call_of_control(),
            Listener::Api
            | Listener::Grpc
            | Listener::Outbound
            | Listener::Mesh
            | Listener::Gateway
            | Listener::Front => self.request(listener, method, path, fields).into_bytes(),
        }
    }

    /// A request that is meant for the app.
    fn request(&self, listener: Listener, method: &str, path: &str, fields: &str) -> String {
        let (prefix, host, more) = match listener {
            Listener::Api => ("/v1.0/invoke/stock/method", "localhost", ""),
            Listener::Grpc => ("", "localhost", "dapr-app-id: stock\r\n"),
            Listener::Front => ("", FRONT, ""),
            Listener::Outbound | Listener::Mesh | Listener::Gateway | Listener::Control => {
                ("", STOCK, "")
            }
        };
        format!("{method} {prefix}{path} HTTP/1.1\r\nhost: {host}\r\n{more}{fields}\r\n")
    }

    /// Has another workload join the network, and waits until it has all that it waits for.
    pub(crate) fn have_one_join(&self) {
        self.network.sidecar("late", &[]);
    }

    /// Handshakes at the control plane that were evicted.
    pub(crate) fn given_way(&self) -> u64 {
        let refused = "tollway_control_connections_refused_total{reason=\"handshakes\"}";
        metric(&self.network.control, refused)
    }

    /// The processes that do the work of a listener, the one that listens first.
    pub(crate) fn attacked(&self, listener: Listener) -> Vec<&Process> {
        match listener {
            Listener::Api | Listener::Grpc | Listener::Outbound => vec![&self.web, &self.stock],
            Listener::Mesh => vec![&self.stock],
            Listener::Gateway => vec![&self.gateway, &self.stock],
            Listener::Front => vec![&self.front],
            Listener::Control => vec![&self.network.control],
        }
    }
}

/// An honest client of a front, and its request.
pub(crate) fn at_front(front: &Process) -> (Aim, Ask) {
    let tls = Some((trusting(None, b"http/1.1"), FRONT.to_owned()));
    let aim = Aim { from: HONEST, to: front.port("front").unwrap(), tls };
    (aim, small(format!("GET /size?bytes=10 HTTP/1.1\r\nhost: {FRONT}\r\n\r\n")))
}

/// A call for a certificate, up to its message: what a control plane reads before it decodes it.
fn call_of_control() -> Vec<u8> {
    let lines = [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/tollway.v1.Identity/Issue"),
        (":authority", CONTROL),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    [hello(), frame(HEADERS, END_HEADERS, 1, &block(&lines))].concat()
}

/// A request with an answer of ten bytes.
fn small(request: String) -> Ask {
    let is_answered = |heard: &[u8]| {
        let head = heard.windows(4).position(|window| window == b"\r\n\r\n");
        head.is_some_and(|at| heard.len() >= at + 4 + 10)
    };
    Ask { bytes: request.into_bytes(), is_answered, keeps: true }
}
