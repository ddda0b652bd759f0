//! Attacks on every listener that speaks HTTP/2. During each of them the attacker pays for what he
//! causes, the process that he attacks stays small, and another caller notices nothing.

mod answers;
pub(crate) mod app;
pub(crate) mod attacker;
mod attacks;
mod called_off;
mod downgrade;
pub(crate) mod frames;
mod grpc;
mod grpc_app;
mod held;
mod over;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tollway_testkit::{
    End, Process, RawClient, TempDir, TlsRelay, cpu_time, peak_resident_bytes, reset_peak,
    resident_bytes, retry_until,
};

use crate::app::answers as whole;
use crate::network::{CONTROL, FRONT, Network, STOCK, front, metric, tollway};
use crate::tls_client::trusting;
use crate::tls_door::{H2, HTTP1};
use attacker::{Aim, Spent, Wire, attack};
use attacks::{Named, Target, attacks};

/// How long each attack goes on at least; it ends when it was refused, if it must be, and the other
/// caller has been answered as often as he must be.
const EACH: Duration = Duration::from_millis(250);
/// What has not come about until then does not.
const STARVED: Duration = Duration::from_secs(60);
/// How long the other caller's calls are counted without an attack.
const QUIET: Duration = Duration::from_secs(1);
/// The other caller waits a moment between two calls, the attacker for nobody. So many times less
/// often at most the one is answered because of the other, whatever a burst costs at first.
const MOST_SLOWED: f64 = 20.0;
/// Processor time that an attacker may cause for each of his own.
const MOST_CPU: f64 = 100.0;
/// How much more the data plane costs when it was built without optimisation; an attacker's cost is
/// the kernel's for the most part.
const UNOPTIMISED: f64 = if cfg!(debug_assertions) { 3.0 } else { 1.0 };
/// How much longer such a door holds up others, where it does nothing but parse.
const UNOPTIMISED_PARSING: f64 = if cfg!(debug_assertions) { 20.0 } else { 1.0 };

/// Everything that stands behind one door.
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

/// What an honest caller asks again and again, and where.
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
    Mesh,
    /// The mesh door, through the gateway.
    Gateway,
}

impl Kind {
    /// What stands before a service's paths, and how it is named there.
    fn target(self) -> Target {
        let (authority, prefix, app_id) = match self {
            Self::HttpApi => ("localhost", "/v1.0/invoke/stock/method", None),
            Self::GrpcApi => ("localhost", "", Some("stock")),
            Self::Outbound | Self::Mesh | Self::Gateway => (STOCK, "", None),
        };
        Target { authority, prefix, app_id }
    }
}

impl Stand {
    fn open(kind: Kind, app_protocol: &str) -> Self {
        let network = Network::start("west");
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let port = app.port("http").unwrap().port().to_string();
        let options = ["--app-port", &port, "--app-protocol", app_protocol];
        let stock = network.sidecar("stock", &options);
        let is_plain = matches!(kind, Kind::HttpApi | Kind::GrpcApi | Kind::Outbound);
        let target = kind.target();
        let (attacked, aim, relay) = if is_plain {
            let web = network.sidecar("web", &[]);
            let port = match kind {
                Kind::HttpApi => "http",
                Kind::GrpcApi => "grpc",
                Kind::Outbound | Kind::Mesh | Kind::Gateway => "outbound",
            };
            let address = web.port(port).unwrap();
            (vec![web, stock], Aim { address, tls: None }, None)
        } else {
            let gateway = (kind == Kind::Gateway).then(|| network.gateway());
            let address = match &gateway {
                Some(gateway) => gateway.port("gateway").unwrap(),
                None => stock.port("inbound").unwrap(),
            };
            let aim = Aim { address, tls: Some(network.client("web", "stock", H2)) };
            let relay = network.relay(address, "web", "stock", HTTP1);
            (std::iter::once(stock).chain(gateway).collect(), aim, Some(relay))
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
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let to = format!("h2c://{}", app.port("http").unwrap());
        let (files, front) = front(tollway(), &to, &[]);
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
        let relay = TlsRelay::start(address, &name, Arc::clone(&config)).unwrap();
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

    fn attacked(&self) -> Vec<&Process> {
        let control = self.network.iter().filter(|_| self.attacked.is_empty());
        self.attacked.iter().chain(control.map(|network| &network.control)).collect()
    }

    /// Calls until told to stop, and counts the answers, each of which must be a good one.
    fn call_honestly(&self, stop: &AtomicBool, count: &AtomicU32) {
        let mut call = self.honest.caller();
        while !stop.load(Ordering::Relaxed) {
            call();
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What an attack brought about that it must not.
    fn bear(
        &self,
        named: &Named<'_>,
        (answered, quiet_rate): (&AtomicU32, f64),
        gone: &dyn Fn() -> bool,
    ) -> Vec<String> {
        // A control plane's library refuses what it refuses, and counts nothing.
        let is_counted = !self.attacked.is_empty();
        let is_refused = named.is_refused && is_counted;
        let refused = || self.attacked.first().map(|p| metric(p, "tollway_requests_refused_total"));
        let before = refused();
        let calls_before = answered.load(Ordering::Relaxed);
        let began = Instant::now();
        // How often the other caller was answered, and would have been without an attack.
        let calls = || {
            let calls = f64::from(answered.load(Ordering::Relaxed) - calls_before);
            (calls, quiet_rate * began.elapsed().as_secs_f64())
        };
        let is_starved =
            |(calls, usual): (f64, f64)| calls * MOST_SLOWED * UNOPTIMISED_PARSING < usual;
        let is_over = |spent: &Spent| {
            let long = began.elapsed();
            let is_done = (spent.ended > 0 || !is_refused) && !is_starved(calls());
            (long > EACH && (is_done || gone())) || long > STARVED
        };
        let (spent, mut wrong) = self.weigh(named, &is_over);
        let (calls, usual) = calls();
        eprintln!("{:46} answered {calls} times where {usual:.0} are usual", named.name);
        if is_starved((calls, usual)) {
            wrong.push(format!("the other caller was answered {calls} times, not {usual:.0}"));
        }
        if is_refused && spent.ended == 0 {
            wrong.push(format!("never refused: {spent:?}"));
        }
        if is_refused && refused() == before {
            wrong.push("not counted".to_owned());
        }
        wrong.into_iter().map(|what| format!("{}: {what}", named.name)).collect()
    }

    /// Attacks, and compares what that costs both sides.
    fn weigh(&self, named: &Named<'_>, is_over: &dyn Fn(&Spent) -> bool) -> (Spent, Vec<String>) {
        let usage = |process: &Process| cpu_time(process.pid()).unwrap();
        let attacked = self.attacked();
        let before: Vec<_> = attacked
            .iter()
            .map(|process| {
                reset_peak(process.pid()).unwrap();
                (usage(process), resident_bytes(process.pid()).unwrap())
            })
            .collect();
        let spent = attack(&self.aim, &named.attack, is_over);
        let mut wrong = Vec::new();
        for (process, (cpu, resident)) in attacked.iter().zip(before) {
            let pid = process.pid();
            let caused = (usage(process) - cpu).as_secs_f64() / spent.cpu.as_secs_f64();
            let grown = peak_resident_bytes(pid).unwrap().saturating_sub(resident);
            eprintln!("{:46} cpu x{caused:<5.1} grown {} KiB {spent:?}", named.name, grown >> 10);
            if caused > MOST_CPU * UNOPTIMISED {
                wrong.push(format!("caused {caused:.0} times its own cost in CPU"));
            }
            if grown > named.most_growth {
                wrong.push(format!("made a process grow by {grown} bytes"));
            }
        }
        (spent, wrong)
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
                wire.send(&frames::hello()).unwrap();
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
    let lines = [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/nobody.Knows/This"),
        (":authority", CONTROL),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let flags = frames::END_HEADERS | frames::END_STREAM;
    wire.send(&frames::frame(frames::HEADERS, flags, stream, &frames::block(&lines))).unwrap();
    let mut came = Vec::new();
    let answered = retry_until(STARVED, "the answer of gRPC", || {
        came.extend(wire.take().unwrap());
        frames::Frame::all(&came).into_iter().find(|frame| frame.stream == stream)
    });
    let answer = answered.unwrap();
    assert!(answer.ends_stream() && answer.kind == frames::HEADERS, "{answer:?}");
}

fn check_door(kind: Kind, app_protocol: &str) {
    check(&Stand::open(kind, app_protocol));
}

fn check(stand: &Stand) {
    let (stop, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| stand.call_honestly(&stop, &answered));
        let attacks = attacks(&stand.target);
        let quiet_rate = quiet_rate(&answered);
        let wrong: Vec<_> = attacks
            .iter()
            .flat_map(|named| stand.bear(named, (&answered, quiet_rate), &|| honest.is_finished()))
            .collect();
        stop.store(true, Ordering::Relaxed);
        let honest = honest.join();
        assert!(wrong.is_empty(), "{wrong:#?}");
        honest.expect("the honest caller is undisturbed");
    });
}

/// How often in a second the other caller is answered when nobody attacks.
fn quiet_rate(answered: &AtomicU32) -> f64 {
    let count = || f64::from(answered.load(Ordering::Relaxed));
    // His first answer has come: he is under way.
    retry_until(STARVED, "a first answer", || (count() > 0.0).then_some(())).unwrap();
    let (before, began) = (count(), Instant::now());
    std::thread::sleep(QUIET);
    let rate = (count() - before) / began.elapsed().as_secs_f64();
    assert!(rate > 0.0, "no answers without an attack");
    rate
}

#[test]
fn http_api_bears_attacks() {
    check_door(Kind::HttpApi, "http");
}

#[test]
fn grpc_api_bears_attacks() {
    check_door(Kind::GrpcApi, "grpc");
}

#[test]
fn outbound_port_bears_attacks() {
    check_door(Kind::Outbound, "http");
}

#[test]
fn mesh_door_bears_attacks() {
    check_door(Kind::Mesh, "http");
}

#[test]
fn mesh_door_before_an_app_over_http2_bears_attacks() {
    check_door(Kind::Mesh, "h2c");
}

#[test]
fn front_bears_attacks() {
    check(&Stand::front());
}

#[test]
fn control_plane_bears_attacks() {
    check(&Stand::control());
}

#[test]
fn gateway_bears_attacks() {
    check_door(Kind::Gateway, "h2c");
}
