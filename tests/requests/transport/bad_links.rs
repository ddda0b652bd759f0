//! Ways between two networks that lose packets, are long, carry little, or swallow what is large:
//! what is answered is right to the last byte, what is not ends in time with a code that is
//! documented, and when the fault is over everything goes on.
//!
//! Needs the right to create namespaces and TUN devices; without it every test is skipped.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollway_echo::{EchoMessage, UNARY_PATH, payload};
use tollway_model::chain;
use tollway_net::link::{Link, LinkCounts, Shape};
use tollway_net::netns::NetNs;
use tollway_net::tun::{Tun, TunConfig};
use tollway_testkit::need_right;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use crate::transport::GRACE;
use tollway_tests::mesh::http::{Client, Version, empty, full, runtime};
use tollway_tests::mesh::{App, AppProtocol, Mesh, Network, Sidecar, counter};

const WEST: &str = "10.201.0.1";
const EAST: &str = "10.201.0.2";
const ECHO: &str = "echo.default.east";
const LINES: &str = "lines.default.east";
/// A service without the bad link.
const NEAR: &str = "near.default.west";
/// What a call sends and gets back: many packets, and less than what counts as bulk.
const BODY_BYTES: usize = 256 * 1024;
/// Fits into one packet of any path.
const SMALL_BYTES: usize = 10;
/// Longer than any call here may take, and any of these links may take to let one through.
const HANG: Duration = Duration::from_secs(120);

/// Rest before a call that has failed is made again.
const PAUSE: Duration = Duration::from_millis(50);

/// Times of the caller's sidecar that are shorter than by default, so that they can be seen to end.
const SILENCE: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(12);

/// The errors of a call over a bad link, as in `docs/errors.md`.
const TOLD: [&str; 6] = [
    "ERR_SILENT",
    "ERR_TIMED_OUT",
    "ERR_BODY_TIMED_OUT",
    "ERR_UNREACHABLE",
    "ERR_GATEWAY_UNREACHABLE",
    "ERR_UNREACHABLE_NETWORK",
];

fn good() -> Shape {
    Shape::delaying(Duration::ZERO)
}

#[test]
fn a_tenth_of_all_packets_lost_costs_time_and_no_byte() {
    let networks = need_right!(namespaces());
    let lossy = Shape { loss: 0.1, ..good() };
    let counts = bad_for_a_while(networks, lossy, Duration::ZERO);
    assert!(counts.iter().all(|direction| direction.lost > 0), "{counts:?}");
}

#[test]
fn a_round_trip_of_300_ms_is_waited_for() {
    let networks = need_right!(namespaces());
    let round_trip = Duration::from_millis(300);
    bad_for_a_while(networks, Shape::delaying(round_trip / 2), round_trip);
}

#[test]
fn a_way_of_one_megabit_a_second_carries_what_it_can() {
    const BITS_PER_S: u64 = 1_000_000;
    let networks = need_right!(namespaces());
    let queue = Duration::from_millis(300);
    let thin = Shape { rate_bits_per_s: Some(BITS_PER_S), queue, ..good() };
    let of_one_body = Duration::from_millis(BODY_BYTES as u64 * 8 * 1000 / BITS_PER_S);
    bad_for_a_while(networks, thin, of_one_body);
}

/// Calls of every kind before, during and after a bad link, until each kind has had a whole answer;
/// on the bad one they take `least` at least. Returns the link's counts meanwhile.
fn bad_for_a_while(networks: [NetNs; 2], bad: Shape, least: Duration) -> [LinkCounts; 2] {
    let check = |world: World, way: &mut ReplaceableLink<'_>| {
        runtime().block_on(async {
            let mut kept = world.until_line().await;
            world.until_all_are_whole(&mut kept).await;
            way.lay(bad);
            let fastest = world.until_all_are_whole(&mut kept).await;
            let counts = way.counts();
            assert!(fastest >= least, "calls of {fastest:?}: the way was never bad");
            way.lay(good());
            world.until_all_are_whole(&mut kept).await;
            counts
        })
    };
    across(networks, &[], check)
}

#[test]
fn calls_too_large_for_the_way_end_with_a_code_and_others_go_on() {
    /// Less than the ends believe to fit; every packet of a large body is as large as they believe.
    const LARGEST_BYTES: u64 = 1_200;
    let networks = need_right!(namespaces());
    let swallowing = Shape { largest_bytes: Some(LARGEST_BYTES), ..good() };
    let [silence, connect, idle] =
        [SILENCE, CONNECT, IDLE].map(|time| time.as_millis().to_string());
    let times = ["--silence-timeout-ms", &silence, "--connect-timeout-ms", &connect];
    let options = [&times[..], &["--idle-timeout-ms", &idle]].concat();
    across(networks, &options, |world, way| {
        let _near = world.mesh.west.app("near", "west-1", AppProtocol::Http);
        // A hello with a hybrid key takes more than one packet of the size that the ends believe in.
        let classical = [&options[..], &["--classical-key-exchange"]].concat();
        let late = world.mesh.west.sidecar("late", &classical);
        world.caller.until_served(NEAR);
        runtime().block_on(async {
            let mut kept = world.until_line().await;
            world.until_all_are_whole(&mut kept).await;
            way.lay(swallowing);
            world.until_small_is_whole().await;
            let began = Instant::now();
            let (stuck, near) = world.stuck(&mut kept).await;
            let took = began.elapsed();
            for (kind, became) in stuck {
                eprintln!("{kind}: {became:?}");
                became.check(kind);
                assert_ne!(became, Became::Whole, "{kind}: the way was never bad");
            }
            assert!(took <= IDLE + GRACE, "the last call ended after {took:?}");
            assert!(!near.is_empty() && near.iter().all(|became| *became == Became::Whole));
            let silent = counter(&world.caller.process, "tollway_keepalive_timeouts_total");
            assert!(silent > 0, "no connection was found silent");
            let new = world.get(&late, SMALL_BYTES).await;
            assert_eq!(new, Became::Whole, "a classical handshake fits into packets of that size");
            way.lay(good());
            let mut kept = world.until_line().await;
            world.until_all_are_whole(&mut kept).await;
        });
    });
}

/// The outcome of a call.
#[derive(Debug, PartialEq, Eq)]
enum Became {
    Whole,
    /// It got this code.
    Told(String),
    /// Its connection ended, or its answer before its end.
    BrokenOff(String),
}

impl Became {
    /// The error of a gRPC call; without a code only if its answer had begun.
    #[track_caller]
    fn of(status: &tonic::Status) -> Self {
        if let Some(code) = status.metadata().get("x-tollway-error") {
            return Self::Told(code.to_str().unwrap().to_owned());
        }
        let has_begun = status.metadata().contains_key("x-echo-name");
        assert!(has_begun, "a call of gRPC was told no code: {status:?}");
        Self::BrokenOff(status.to_string())
    }

    /// Only what carries bytes of an app, and an answer that has begun, can be broken off.
    #[track_caller]
    fn check(&self, kind: &str) {
        match self {
            Self::Whole | Self::BrokenOff(_) => {}
            Self::Told(code) => assert!(TOLD.contains(&code.as_str()), "{kind} was told {code}"),
        }
    }
}

/// Both networks and a caller, which is in the west.
struct World {
    mesh: Mesh,
    caller: Sidecar,
    _apps: [App; 2],
    body: Vec<u8>,
}

impl World {
    fn start(far: Far, options: &[&str]) -> Self {
        let mesh = Mesh { west: Network::start("west", WEST, &[]), east: far.network };
        mesh.join();
        let upstream = format!("0={LINES}");
        let caller = mesh.west.caller(&[&["--upstream", &upstream], options].concat());
        caller.until_served(ECHO);
        Self { mesh, caller, _apps: far.apps, body: payload(BODY_BYTES) }
    }

    /// Calls in rounds, one of each kind at a time together with small ones, until each has been
    /// answered whole; every round uses `kept` too. Returns the time of the fastest round.
    async fn until_all_are_whole(&self, kept: &mut TcpStream) -> Duration {
        let began = Instant::now();
        let mut missing = vec!["HTTP/1.1", "gRPC", "a new connection", "small"];
        let mut fastest = HANG;
        while !missing.is_empty() {
            assert!(began.elapsed() < HANG, "no whole answer by {missing:?} within {HANG:?}");
            let round = Instant::now();
            let calls = Box::pin(async {
                tokio::join!(self.post(ECHO), self.unary(), self.new_lines(), self.lines(kept))
            });
            let ((http, grpc, new, old), small) =
                beside(calls, || self.get(&self.caller, SMALL_BYTES)).await;
            assert_eq!(old, Became::Whole, "a connection that was there before");
            fastest = fastest.min(round.elapsed());
            let large = [("HTTP/1.1", http), ("gRPC", grpc), ("a new connection", new)];
            let small = small.into_iter().map(|became| ("small", became));
            for (kind, became) in large.into_iter().chain(small) {
                became.check(kind);
                missing.retain(|missed| *missed != kind || became != Became::Whole);
            }
            tokio::time::sleep(PAUSE).await;
        }
        fastest
    }

    /// Calls that cannot be answered; returns how each ended, and the outcomes of calls to a
    /// service without the bad link meanwhile.
    async fn stuck(&self, kept: &mut TcpStream) -> ([(&'static str, Became); 4], Vec<Became>) {
        let far = Box::pin(async {
            tokio::join!(
                self.post(ECHO),
                self.unary(),
                self.get(&self.caller, BODY_BYTES),
                self.lines(kept)
            )
        });
        let ((post, grpc, get, tcp), near) = beside(far, || self.post(NEAR)).await;
        ([("POST", post), ("gRPC", grpc), ("GET", get), ("TCP", tcp)], near)
    }

    /// What the link lets through is answered, by existing connections.
    async fn until_small_is_whole(&self) {
        let began = Instant::now();
        while self.get(&self.caller, SMALL_BYTES).await != Became::Whole {
            assert!(began.elapsed() < HANG, "a small call was not answered within {HANG:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn post(&self, service: &str) -> Became {
        let uri = format!("http://sidecar/v1.0/invoke/{service}/method/echo");
        let request = Request::post(uri).body(full(self.body.clone())).unwrap();
        self.call(&self.caller, request, |body| body == self.body).await
    }

    async fn get(&self, caller: &Sidecar, bytes: usize) -> Became {
        let uri = format!("http://sidecar/v1.0/invoke/{ECHO}/method/size?bytes={bytes}");
        let request = Request::get(uri).body(empty()).unwrap();
        self.call(caller, request, |body| body.len() == bytes).await
    }

    /// A call over HTTP/1.1 on a connection of its own.
    async fn call(
        &self,
        caller: &Sidecar,
        request: Request<tollway_tests::mesh::http::Body>,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Became {
        in_time("a call over HTTP/1.1", async {
            let mut client = Client::connect(Version::Http1, caller.http()).await;
            let response = client.send(request).await;
            let status = response.status();
            match response.into_body().collect().await {
                Err(error) => Became::BrokenOff(chain(&error)),
                Ok(body) if status == 200 => {
                    let body = body.to_bytes();
                    assert!(is_right(&body), "{} other bytes came back", body.len());
                    Became::Whole
                }
                Ok(body) => Became::Told(code_in(&body.to_bytes())),
            }
        })
        .await
    }

    async fn unary(&self) -> Became {
        in_time("a call of gRPC", async {
            let endpoint = Endpoint::from_shared(format!("http://{}", self.caller.grpc()));
            let mut client = Grpc::new(endpoint.unwrap().connect().await.unwrap());
            client.ready().await.unwrap();
            let sent = EchoMessage { payload: self.body.clone(), repeat: 0 };
            let mut request = tonic::Request::new(sent.clone());
            request.metadata_mut().insert("dapr-app-id", ECHO.parse().unwrap());
            let codec = ProstCodec::<EchoMessage, EchoMessage>::default();
            match client.unary(request, PathAndQuery::from_static(UNARY_PATH), codec).await {
                Ok(answer) => {
                    assert!(answer.into_inner() == sent, "other bytes came back");
                    Became::Whole
                }
                Err(status) => Became::of(&status),
            }
        })
        .await
    }

    /// Sends the body on a connection of TCP and takes it back.
    async fn lines(&self, stream: &mut TcpStream) -> Became {
        in_time("a connection of TCP", async {
            let (mut reading, mut writing) = stream.split();
            let mut back = vec![0; self.body.len()];
            let (sent, heard) =
                tokio::join!(writing.write_all(&self.body), reading.read_exact(&mut back));
            if let Err(error) = sent.and(heard) {
                return Became::BrokenOff(chain(&error));
            }
            assert!(back == self.body, "other bytes came back");
            Became::Whole
        })
        .await
    }

    async fn new_lines(&self) -> Became {
        self.lines(&mut self.line().await).await
    }

    async fn line(&self) -> TcpStream {
        let address: SocketAddr = self.caller.upstream(LINES);
        TcpStream::connect(address).await.unwrap()
    }

    /// A connection that reaches its app.
    async fn until_line(&self) -> TcpStream {
        let began = Instant::now();
        loop {
            let mut line = self.line().await;
            if self.lines(&mut line).await == Became::Whole {
                return line;
            }
            assert!(began.elapsed() < HANG, "no connection reached its app within {HANG:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Makes small calls, one after the other, until `calls` are over; returns all outcomes.
async fn beside<T>(
    calls: impl Future<Output = T>,
    mut small: impl AsyncFnMut() -> Became,
) -> (T, Vec<Became>) {
    let mut calls = std::pin::pin!(calls);
    let mut became = Vec::new();
    loop {
        tokio::select! {
            ended = &mut calls => return (ended, became),
            one = small() => became.push(one),
        }
    }
}

async fn in_time<T>(what: &str, call: impl Future<Output = T>) -> T {
    match tokio::time::timeout(HANG, call).await {
        Ok(became) => became,
        Err(_) => panic!("{what} hangs for more than {HANG:?}"),
    }
}

/// The code of an answer that is an error.
fn code_in(answer: &[u8]) -> String {
    let answer = String::from_utf8_lossy(answer);
    let code = answer.split('"').find(|word| word.starts_with("ERR_"));
    code.unwrap_or_else(|| panic!("no code in the answer: {answer}")).to_owned()
}

/// What is in the east.
struct Far {
    network: Network,
    apps: [App; 2],
}

impl Far {
    fn start() -> Self {
        let network = Network::start("east", EAST, &[]);
        let echo = network.app("echo", "east-1", AppProtocol::H2c);
        let lines = network.app("lines", "east-1", AppProtocol::Tcp);
        Self { network, apps: [echo, lines] }
    }
}

/// Runs `check` in the west, with a good link to the east and `options` for the caller's sidecar.
fn across<T: Send>(
    networks: [NetNs; 2],
    options: &[&str],
    check: impl FnOnce(World, &mut ReplaceableLink<'_>) -> T + Send,
) -> T {
    let mut way = ReplaceableLink { networks: &networks, link: None };
    way.lay(good());
    let [west, east] = &networks;
    let (tell, reported) = mpsc::channel();
    let (over, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Processes end with the thread that started them: it waits for the end of the check.
        let stay = move || {
            tell.send(Far::start()).unwrap();
            let _ = is_over.recv();
        };
        scope.spawn(|| east.run(stay).unwrap());
        let way = &mut way;
        let run = move || {
            let _over = over;
            check(World::start(reported.recv().unwrap(), options), way)
        };
        west.run(run).unwrap()
    })
}

/// The link between both networks, which can be another one from now on.
struct ReplaceableLink<'a> {
    networks: &'a [NetNs; 2],
    link: Option<Link>,
}

impl ReplaceableLink<'_> {
    /// Takes the link away, with what is on it, and lays another; connections stay.
    fn lay(&mut self, shape: Shape) {
        drop(self.link.take());
        let [west, east] = self.networks;
        let ends = [(west, WEST, EAST), (east, EAST, WEST)].map(|(network, local, peer)| {
            let end = end(local, peer, shape.wants_offload());
            network.run(|| Tun::open(&end)).unwrap().unwrap()
        });
        let [to_east, to_west] = ends;
        let back = Shape { seed: shape.seed + 1, ..shape };
        self.link = Some(Link::start(to_east, to_west, shape, back).unwrap());
    }

    fn counts(&self) -> [LinkCounts; 2] {
        self.link.as_ref().unwrap().counts()
    }
}

fn end(local: &str, peer: &str, offload: bool) -> TunConfig {
    let [local, peer]: [Ipv4Addr; 2] = [local, peer].map(|address| address.parse().unwrap());
    TunConfig { name: "way".into(), local, peer, mtu: 1_500, queue_packets: 10_000, offload }
}

/// The namespaces of both networks, or why this machine gives none with such a link.
fn namespaces() -> Result<[NetNs; 2], String> {
    Ok([namespace("west", WEST, EAST)?, namespace("east", EAST, WEST)?])
}

fn namespace(name: &str, local: &str, peer: &str) -> Result<NetNs, String> {
    let namespace = NetNs::create(name).map_err(|error| chain(&error))?;
    // It stays where the link is taken away.
    let address = local.parse().map_err(|_| format!("{local} is no address"))?;
    namespace.set_own_address(address).map_err(|error| chain(&error))?;
    let probe = namespace.run(|| Tun::open(&end(local, peer, true)));
    probe.map_err(|error| chain(&error))?.map_err(|error| chain(&error))?;
    Ok(namespace)
}
