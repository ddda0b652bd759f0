//! Whether servers that nobody here wrote read what we send on as we read what came: each request
//! of a corpus is sent to them through the mesh door, and they tell what they were asked.
//!
//! What is forwarded is exactly one request with one meaning, whoever reads it; of what is refused
//! nobody hears, and no byte behind it is taken for a request. `outcomes.txt` says what becomes of
//! each, and behind the bar what each server makes of the same bytes when nobody stands before it;
//! to write it anew, set `TOLLWAY_WRITE_GOLDEN=1` and run one test at a time. What servers do alone
//! is not ours to hold them to, and is compared with nothing.

mod corpus;
mod servers;

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use tollway_testkit::{End, RawClient, TlsRelay, need_tool};

use crate::door::statuses;
use crate::network::{Network, STOCK, until_status};
use crate::tls_door::HTTP1;
use corpus::{Case, corpus};
use servers::Server;

const GOLDEN: &str = "tests/doors/framing/outcomes.txt";

#[test]
fn go_reads_what_we_forward_as_we_do() {
    check(&Server::go(&need_tool!("framing-app")));
}

#[test]
fn python_reads_what_we_forward_as_we_do() {
    check(&Server::python(&need_tool!("python3")));
}

#[test]
fn nginx_reads_what_we_forward_as_we_do() {
    check(&Server::nginx(&need_tool!("nginx")));
}

#[test]
fn haproxy_reads_what_we_forward_as_we_do() {
    check(&Server::haproxy(&need_tool!("haproxy")));
}

/// A sidecar before a server, and what leads to its mesh door.
struct Behind {
    _network: Network,
    _sidecar: tollway_testkit::Process,
    relay: TlsRelay,
}

impl Behind {
    fn us(server: &Server) -> Self {
        let network = Network::start("west");
        let (ip, port) = (server.address.ip().to_string(), server.address.port().to_string());
        let sidecar = network.sidecar("stock", &["--app-address", &ip, "--app-port", &port]);
        let relay = network.relay(sidecar.port("inbound").unwrap(), "web", "stock", HTTP1);
        let warm = format!("GET /warm HTTP/1.1\r\nhost: {STOCK}\r\n\r\n");
        until_status(relay.address(), &warm, 200);
        Self { _network: network, _sidecar: sidecar, relay }
    }
}

fn check(server: &Server) {
    let behind = Behind::us(server);
    let mut table = String::new();
    for case in corpus() {
        let bytes = [&case.bytes[..], end_of(&case).as_bytes()].concat();
        let answer =
            RawClient::exchange(behind.relay.address(), &bytes, Duration::from_secs(5)).unwrap();
        let text = answer.text();
        let code = text.lines().find_map(|line| line.strip_prefix("x-tollway-error: "));
        let is_refused = code.is_some() || text.is_empty();
        let mut read = server.read_until_fence(behind.relay.address(), case.name);
        // The sidecar's own question, at whatever moment.
        read.retain(|request| request != "GET /dapr/config .");
        let finals: Vec<u16> =
            statuses(&answer).into_iter().filter(|status| *status >= 200).collect();
        if is_refused {
            assert!(read.is_empty(), "{}: refused with {code:?} and read as {read:?}", case.name);
        } else {
            let whole = [case.meaning(), format!("GET /end-of-{} .", case.name)];
            assert_eq!(read, whole, "{}: {text}", case.name);
            assert_eq!(finals, [200, 200], "{}: {text}", case.name);
        }
        assert_ne!(answer.end, End::TimedOut, "{}: {text}", case.name);
        let outcome = code.unwrap_or(if is_refused { "closed" } else { "one request" });
        let status = finals.first().map_or("-".to_owned(), u16::to_string);
        writeln!(table, "{:32} {status:3} {outcome}", case.name).unwrap();
    }
    let direct = is_writing().then(|| corpus().iter().map(|case| alone(server, case)).collect());
    compare(server.name, &table, direct);
}

fn is_writing() -> bool {
    std::env::var_os("TOLLWAY_WRITE_GOLDEN").is_some()
}

/// What the server makes of a case that nobody has looked at before: `one` request as we would
/// read it, `none`, `more` (the request in or behind the body as well), or something `other`.
fn alone(server: &Server, case: &Case) -> &'static str {
    let mut client = RawClient::connect(server.address).unwrap();
    client.send([&case.bytes[..], end_of(case).as_bytes()].concat()).unwrap();
    // It closes, or waits for more that does not come.
    client.read_to_end(Duration::from_secs(1)).unwrap();
    drop(client);
    let read = server.read_until_fence(server.address, &format!("alone-{}", case.name));
    let is_whole = read.first() == Some(&case.meaning());
    let behind: Vec<_> = read.iter().skip(usize::from(is_whole)).collect();
    let is_end = |line: &&String| line.starts_with("GET /end-of-");
    match (is_whole, &behind[..]) {
        (true, []) => "one",
        (true, [end]) if is_end(end) => "one",
        (false, []) => "none",
        _ if read.iter().any(|line| line.starts_with("GET /smuggled")) => "more",
        _ => "other",
    }
}

/// The request behind a case, as which whatever is left over of it would be read.
fn end_of(case: &Case) -> String {
    format!("GET /end-of-{} HTTP/1.1\r\nhost: {STOCK}\r\nconnection: close\r\n\r\n", case.name)
}

/// Holds the outcomes against the golden file, or writes them there: with `direct`, the column of
/// one server, in the place of what it was.
#[track_caller]
fn compare(server: &str, table: &str, direct: Option<Vec<&str>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    let mut golden = std::fs::read_to_string(&path).unwrap();
    if let Some(direct) = direct {
        golden = written(&golden, server, table, &direct);
        std::fs::write(&path, &golden).unwrap();
    }
    let ours = golden.lines().map(|line| line.split('|').next().unwrap_or_default().trim_end());
    let differs = ours.zip(table.lines()).find(|(golden, now)| golden != now);
    assert_eq!(differs, None, "{GOLDEN} says the first, the second is so");
    assert_eq!(golden.lines().count(), table.lines().count());
}

fn written(golden: &str, server: &str, table: &str, direct: &[&str]) -> String {
    let columns = |name: &str| {
        let line = golden.lines().find(|line| line.split(' ').next() == Some(name));
        let columns = line.and_then(|line| line.split_once('|')).map(|(_, columns)| columns);
        columns.unwrap_or_default().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut out = String::new();
    for (ours, word) in table.lines().zip(direct) {
        let mut columns = columns(ours.split(' ').next().unwrap_or_default());
        columns.retain(|column| !column.starts_with(server));
        columns.push(format!("{server}:{word}"));
        columns.sort_unstable();
        writeln!(out, "{ours:60} | {}", columns.join(" ")).unwrap();
    }
    out
}
