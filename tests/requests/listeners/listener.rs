//! An app, and one of the listeners that take HTTP/1.1 for it: both APIs, the outbound port and a tunnel
//! through it, the inbound listener (as an authenticated peer that prefers HTTP/1.1 sees it), and a front.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::Method;
use hyper::http::request::Builder;
use tollway_testkit::{Answer, Process, RawClient, TempDir, TlsRelay, retry_until};

use crate::listeners::tls_listener::HTTP1;
use crate::listeners::tunnel;
use tollway_tests::mesh::http::{Client, Version, empty, runtime};
use tollway_tests::network::{FRONT, Network, PATIENCE, STOCK, front, tollway, until_status};
use tollway_tests::scripted_app::{App, Request, Script, answers};
use tollway_tests::tls_client::trusting;

/// What a process may grow by under abuse; its limits add up to less.
pub(crate) const GROWTH_BYTES: u64 = 32 << 20;

/// What counts requests that are refused.
pub(crate) const REFUSED: &str = "tollway_requests_refused_total";

/// A caller, a callee with its app, and one listener of theirs.
pub(crate) struct Listener {
    pub(crate) app: App,
    network: Option<Network>,
    _relay: Option<TlsRelay>,
    /// The process that reads what comes through the listener.
    pub(crate) reader: Process,
    /// The sidecar at the other end; a front has none.
    other: Option<Process>,
    _files: Option<TempDir>,
    pub(crate) address: SocketAddr,
    /// What precedes a path for the app.
    pub(crate) prefix: &'static str,
    pub(crate) host: &'static str,
    /// Names a request's service, if neither of these does.
    pub(crate) addressed: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    HttpApi,
    /// The port of the gRPC API, which takes other requests too.
    GrpcApi,
    Outbound,
    /// Inside a tunnel that CONNECT has opened to the service.
    Tunnel,
    Mesh,
    Front,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::HttpApi, Self::GrpcApi, Self::Outbound, Self::Tunnel, Self::Mesh, Self::Front];
}

impl Listener {
    pub(crate) fn open(kind: Kind, script: Script, options: &[&str]) -> Self {
        Self::open_over(HTTP1, kind, script, options)
    }

    /// The aim of a caller with `alpn`, if TLS negotiates it.
    pub(crate) fn open_over(alpn: &[u8], kind: Kind, script: Script, options: &[&str]) -> Self {
        let app = App::start(script);
        if kind == Kind::Front {
            return Self::open_front(alpn, app, options);
        }
        let network = Network::start("west");
        let port = app.port();
        let stock = network.sidecar("stock", &[&["--app-port", &port], options].concat());
        let web = network.sidecar("web", options);
        let relay = (kind == Kind::Mesh)
            .then(|| network.relay(stock.port("inbound").unwrap(), "web", "stock", HTTP1));
        let (address, prefix, host) = match kind {
            Kind::HttpApi => (web.port("http").unwrap(), "/v1.0/invoke/stock/method", "localhost"),
            Kind::GrpcApi => (web.port("grpc").unwrap(), "", "localhost"),
            Kind::Outbound => (web.port("outbound").unwrap(), "", STOCK),
            Kind::Tunnel => (tunnel::start(web.port("outbound").unwrap(), STOCK), "", STOCK),
            Kind::Mesh | Kind::Front => (relay.as_ref().unwrap().address(), "", STOCK),
        };
        let addressed = (kind == Kind::GrpcApi).then_some(("dapr-app-id", "stock"));
        let (reader, other) = if kind == Kind::Mesh { (stock, web) } else { (web, stock) };
        let mut listener = Self {
            app,
            network: Some(network),
            _relay: relay,
            reader,
            other: Some(other),
            _files: None,
            address,
            prefix,
            host,
            addressed,
        };
        until_status(address, &listener.get("/warm"), 200);
        if kind == Kind::Mesh && alpn != HTTP1 {
            let network = listener.network.as_ref().unwrap();
            let relay =
                network.relay(listener.reader.port("inbound").unwrap(), "web", "stock", alpn);
            listener.address = relay.address();
            listener._relay = Some(relay);
        }
        listener
    }

    /// A front, seen in plain text by a client of it.
    fn open_front(alpn: &[u8], app: App, options: &[&str]) -> Self {
        let (files, reader) = front(tollway(), &format!("http://{}", app.address), options);
        let front = reader.port("front").unwrap();
        let relay = TlsRelay::start(front, FRONT, trusting(None, alpn)).unwrap();
        let address = relay.address();
        Self {
            app,
            network: None,
            _relay: Some(relay),
            reader,
            other: None,
            _files: Some(files),
            address,
            prefix: "",
            host: FRONT,
            addressed: None,
        }
    }

    /// The process at the app's side.
    pub(crate) fn app_side(&self, kind: Kind) -> &Process {
        match kind {
            Kind::Mesh | Kind::Front => &self.reader,
            Kind::HttpApi | Kind::GrpcApi | Kind::Outbound | Kind::Tunnel => {
                self.other.as_ref().unwrap()
            }
        }
    }

    /// The first line for `path`.
    pub(crate) fn line(&self, method: &str, path: &str) -> String {
        format!("{method} {}{path} HTTP/1.1\r\n", self.prefix)
    }

    /// Everything up to the closing empty line, which `fields` may hold more lines for.
    pub(crate) fn request(&self, method: &str, path: &str, fields: &str) -> String {
        let line = self.line(method, path);
        let of = |(name, value)| format!("{name}: {value}\r\n");
        let addressed = self.addressed.map(of).unwrap_or_default();
        format!("{line}host: {}\r\n{addressed}{fields}\r\n", self.host)
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.request("GET", path, "")
    }

    /// One request on a connection of its own, closed by the listener or by time.
    pub(crate) fn exchange(&self, bytes: impl AsRef<[u8]>) -> Answer {
        RawClient::exchange(self.address, bytes, Duration::from_secs(10)).unwrap()
    }

    pub(crate) fn connect(&self) -> RawClient {
        RawClient::connect(self.address).unwrap()
    }

    /// A client with HTTP/2, and the form of `path` in its requests.
    pub(crate) async fn http2(&self) -> Client {
        Client::connect(Version::Http2, self.address).await
    }

    /// The head of a request of such a client.
    pub(crate) fn head(&self, method: Method, path: &str) -> Builder {
        let head = hyper::Request::builder().method(method).uri(self.uri(path));
        self.addressed.into_iter().fold(head, |head, (name, value)| head.header(name, value))
    }

    /// The request as lines of a header block.
    pub(crate) fn head_lines<'a>(&'a self, path: &'a str) -> Vec<(&'a str, &'a str)> {
        let pseudo =
            [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", self.host)];
        pseudo.into_iter().chain(self.addressed).collect()
    }

    fn uri(&self, path: &str) -> String {
        format!("http://{}{}{path}", self.host, self.prefix)
    }

    /// An honest call: it gets its own answer, not another request's.
    #[track_caller]
    pub(crate) fn check_honest(&self, path: &str) {
        let answer = self.connect().ask(&self.get(path));
        assert_eq!(statuses(&answer), [200], "{}", answer.text());
        assert!(answer.text().ends_with(&format!("own {path}")), "{}", answer.text());
    }

    /// An honest call over HTTP/2.
    #[track_caller]
    pub(crate) fn check_honest_over_http2(&self, path: &str) {
        let request = self.head(Method::GET, path).body(empty()).unwrap();
        let answer = runtime().block_on(async { self.http2().await.exchange(request).await });
        assert_eq!((answer.status, answer.text()), (200, format!("own {path}")));
    }
}

pub(crate) trait Ask {
    fn ask(&mut self, request: &str) -> Answer;
}

impl Ask for RawClient {
    /// Sends and reads one whole answer with a length.
    fn ask(&mut self, request: &str) -> Answer {
        self.send(request).unwrap();
        self.read_until(PATIENCE, |bytes| answers(bytes) > 0).unwrap()
    }
}

/// The statuses of all answers in order, wherever in the text they begin.
pub(crate) fn statuses(answer: &Answer) -> Vec<u16> {
    let text = answer.text();
    text.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.get(..3)?.parse().ok()).collect()
}

/// The one request to `path` that the app has got.
#[track_caller]
pub(crate) fn received(listener: &Listener, path: &str) -> Request {
    let requests = listener.app.requests(path);
    assert_eq!(requests.len(), 1, "{path} at the app");
    requests.into_iter().next().unwrap()
}

/// The same once it has come, which the app may not have answered.
#[track_caller]
pub(crate) fn until_received(listener: &Listener, path: &str) -> Request {
    let has_come = || (!listener.app.requests(path).is_empty()).then_some(());
    retry_until(PATIENCE, "the request at the app", has_come).unwrap();
    received(listener, path)
}

/// Has sidecars carry requests of HTTP/1.1 to each other over a pool.
pub(crate) const POOLED: &[&str] = &["--mesh-protocol", "http1"];

pub(crate) fn for_each_listener(script: &Script, check: impl Fn(&Listener, Kind)) {
    for_each_listener_over(HTTP1, script, check);
}

pub(crate) fn for_each_listener_over(
    alpn: &[u8],
    script: &Script,
    check: impl Fn(&Listener, Kind),
) {
    for kind in Kind::ALL {
        check(&Listener::open_over(alpn, kind, script.clone(), &[]), kind);
    }
}
