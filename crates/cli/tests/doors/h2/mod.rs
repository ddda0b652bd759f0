//! Attacks on every listener that speaks HTTP/2. During each of them the attacker pays for what he
//! causes, the process that he attacks stays small, and another caller notices nothing.

mod answers;
pub(crate) mod app;
pub(crate) mod attacker;
mod attacks;
mod downgrade;
pub(crate) mod frames;
mod grpc;
mod grpc_app;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tollway_testkit::{
    End, Process, RawClient, cpu_time, peak_resident_bytes, reset_peak, resident_bytes,
};

use crate::door::Ask;
use crate::network::{Network, PATIENCE, metric, tollway, until_status};
use crate::tls_door::{H2, HTTP1, STOCK};
use attacker::{Aim, Spent, attack};
use attacks::{Named, Target, attacks};

/// How long each attack goes on at least; it ends when the other caller has got his answers.
const EACH: Duration = Duration::from_millis(150);
/// What the other caller must be answered meanwhile.
const ANSWERS: u32 = 3;
/// Processor time that an attacker may cause for each of his own.
const MOST_CPU: f64 = 100.0;
/// How much more the data plane costs when it was built without optimisation; an attacker's cost is
/// the kernel's for the most part.
const UNOPTIMISED: f64 = if cfg!(debug_assertions) { 3.0 } else { 1.0 };
/// What a process may grow by: a thousand answers, of each what waits before its source is held
/// back (`pipe_bytes`, 64 KiB) and what one read may add to it.
const MOST_GROWTH: u64 = 160 << 20;

/// Everything that stands behind one door.
struct Stand {
    _network: Network,
    _app: Process,
    /// Those that see anything of an attack: the one that reads the frames first.
    attacked: Vec<Process>,
    aim: Aim,
    target: Target,
    /// Where an honest caller asks over HTTP/1.1, and what.
    honest: (std::net::SocketAddr, String),
    _relay: Option<tollway_testkit::TlsRelay>,
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

impl Stand {
    fn open(kind: Kind, app_protocol: &str) -> Self {
        let network = Network::start("west");
        let app = tollway().args(["echo", "--http", "127.0.0.1:0"]).start_listening().unwrap();
        let port = app.port("http").unwrap().port().to_string();
        let options = ["--app-port", &port, "--app-protocol", app_protocol];
        let stock = network.sidecar("stock", &options);
        let is_plain = matches!(kind, Kind::HttpApi | Kind::GrpcApi | Kind::Outbound);
        let (authority, prefix, app_id) = match kind {
            Kind::HttpApi => ("localhost", "/v1.0/invoke/stock/method", None),
            Kind::GrpcApi => ("localhost", "", Some("stock")),
            Kind::Outbound | Kind::Mesh | Kind::Gateway => (STOCK, "", None),
        };
        let target = Target { authority, prefix, app_id };
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
        let app_id = app_id.map(|id| format!("dapr-app-id: {id}\r\n")).unwrap_or_default();
        let request =
            format!("GET {prefix}/size?bytes=10 HTTP/1.1\r\nhost: {authority}\r\n{app_id}\r\n");
        until_status(address, &request, 200);
        let honest = (address, request);
        Self { _network: network, _app: app, attacked, aim, target, honest, _relay: relay }
    }

    /// Calls until told to stop, and counts the answers, each of which must be a good one.
    fn call_honestly(&self, stop: &AtomicBool, count: &AtomicU32) {
        let (address, request) = &self.honest;
        let mut client = RawClient::connect(*address).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let answer = client.ask(request);
            let end = (answer.end, answer.statuses());
            assert_eq!(end, (End::Complete, vec![200]), "{}", answer.text());
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What an attack brought about that it must not.
    fn bear(
        &self,
        named: &Named<'_>,
        answered: &AtomicU32,
        gone: &dyn Fn() -> bool,
    ) -> Vec<String> {
        let refused = || metric(&self.attacked[0], "tollway_requests_refused_total");
        let before = refused();
        answered.store(0, Ordering::Relaxed);
        let began = Instant::now();
        let is_over = |spent: &Spent| {
            let long = began.elapsed();
            let is_answered = answered.load(Ordering::Relaxed) >= ANSWERS;
            let is_done = is_answered && (spent.ended > 0 || !named.is_refused);
            (long > EACH && (is_done || gone())) || long > PATIENCE
        };
        let (spent, mut wrong) = self.weigh(named, &is_over);
        if began.elapsed() > PATIENCE {
            wrong.push("the other caller was not answered".to_owned());
        }
        if named.is_refused && spent.ended == 0 {
            wrong.push(format!("never refused: {spent:?}"));
        }
        if named.is_refused && refused() == before {
            wrong.push("not counted".to_owned());
        }
        wrong.into_iter().map(|what| format!("{}: {what}", named.name)).collect()
    }

    /// Attacks, and compares what that costs both sides.
    fn weigh(&self, named: &Named<'_>, is_over: &dyn Fn(&Spent) -> bool) -> (Spent, Vec<String>) {
        let usage = |process: &Process| cpu_time(process.pid()).unwrap();
        let before: Vec<_> = self
            .attacked
            .iter()
            .map(|process| {
                reset_peak(process.pid()).unwrap();
                (usage(process), resident_bytes(process.pid()).unwrap())
            })
            .collect();
        let spent = attack(&self.aim, &named.attack, is_over);
        let mut wrong = Vec::new();
        for (process, (cpu, resident)) in self.attacked.iter().zip(before) {
            let pid = process.pid();
            let caused = (usage(process) - cpu).as_secs_f64() / spent.cpu.as_secs_f64();
            let grown = peak_resident_bytes(pid).unwrap().saturating_sub(resident);
            eprintln!("{:46} cpu x{caused:<5.1} grown {} KiB {spent:?}", named.name, grown >> 10);
            if caused > MOST_CPU * UNOPTIMISED {
                wrong.push(format!("caused {caused:.0} times its own cost in CPU"));
            }
            if grown > MOST_GROWTH {
                wrong.push(format!("made a process grow by {grown} bytes"));
            }
        }
        (spent, wrong)
    }
}

fn check_door(kind: Kind, app_protocol: &str) {
    let stand = Stand::open(kind, app_protocol);
    let (stop, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| stand.call_honestly(&stop, &answered));
        let attacks = attacks(&stand.target);
        let wrong: Vec<_> = attacks
            .iter()
            .flat_map(|named| stand.bear(named, &answered, &|| honest.is_finished()))
            .collect();
        stop.store(true, Ordering::Relaxed);
        let honest = honest.join();
        assert!(wrong.is_empty(), "{wrong:#?}");
        honest.expect("the honest caller is undisturbed");
    });
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
fn gateway_bears_attacks() {
    check_door(Kind::Gateway, "h2c");
}
