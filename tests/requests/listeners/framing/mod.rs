//! Whether foreign servers read what we send on as we read what came: each request of a corpus is
//! sent to them through each kind of listener and through two sidecars, and they report what they
//! read.
//!
//! What is forwarded is exactly one request with one meaning for every reader; what is refused
//! reaches no server, and no byte behind it is taken for a request. `outcomes.txt` lists what becomes
//! of each, and behind the bar what each server reads in the same bytes without a proxy before it; to
//! write it again, set `TOLLWAY_WRITE_GOLDEN=1` and run one test at a time. What servers do alone
//! is not ours to hold them to, and is compared with nothing.

mod answers;
mod chains;
mod corpus;
mod http2;
mod servers;

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use tollway_testkit::{End, RawClient, need_tool};

use crate::listeners::listener::statuses;
use crate::listeners::tls_listener::HTTP1;
use chains::{Behind, Chain};
use corpus::{Case, corpus};
use servers::Server;
use tollway_tests::network::STOCK;

const GOLDEN: &str = "requests/listeners/framing/outcomes.txt";

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

fn check(server: &Server) {
    for way in Chain::ALL {
        let table = outcomes(server, way);
        let is_written = way == Chain::Mesh && is_writing();
        let direct = is_written.then(|| corpus().iter().map(|case| alone(server, case)).collect());
        compare(&format!("{} through {way:?}", server.name), server.name, &table, direct);
    }
}

/// What becomes of each case, a line each.
fn outcomes(server: &Server, way: Chain) -> String {
    let behind = Behind::start(way, HTTP1, server);
    let mut table = String::new();
    for case in corpus() {
        let bytes = [&case.bytes[..], end_of(&case).as_bytes()].concat();
        let answer = RawClient::exchange(behind.address, &bytes, Duration::from_secs(5)).unwrap();
        let text = answer.text();
        let code = text.lines().find_map(|line| line.strip_prefix("x-tollway-error: "));
        let is_refused = code.is_some() || text.is_empty();
        let read = server.read_until_fence(behind.http1, &format!("{}-{way:?}", case.name));
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
    table
}

fn is_writing() -> bool {
    std::env::var_os("TOLLWAY_WRITE_GOLDEN").is_some()
}

/// What the server reads in a case without a hop before it: `one` request as we would read it,
/// `none`, `more` (the request in or after the body as well), or something `other`.
fn alone(server: &Server, case: &Case) -> &'static str {
    let mut client = RawClient::connect(server.address).unwrap();
    client.send([&case.bytes[..], end_of(case).as_bytes()].concat()).unwrap();
    // It closes, or waits for more that does not come.
    client.read_to_end(Duration::from_secs(1)).unwrap();
    drop(client);
    let read = server.read_until_fence(server.address, &format!("alone-{}", case.name));
    let whole = case.meaning();
    let is_whole = read.first().is_some_and(|read| without_fields(read) == without_fields(&whole));
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

/// What a server does with fields of a connection is its own affair.
fn without_fields(reported: &str) -> &str {
    reported.split_once(". ").map_or(reported, |(head, _)| head).trim_end_matches('.')
}

/// The request behind a case, as which whatever is left over of it would be read.
fn end_of(case: &Case) -> String {
    format!("GET /end-of-{} HTTP/1.1\r\nhost: {STOCK}\r\nconnection: close\r\n\r\n", case.name)
}

/// Holds the outcomes against the golden file, or writes them there: with `direct`, the column of
/// one server, in the place of what it was.
#[track_caller]
fn compare(what: &str, server: &str, table: &str, direct: Option<Vec<&str>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    let mut golden = std::fs::read_to_string(&path).unwrap();
    if let Some(direct) = direct {
        golden = written(&golden, server, table, &direct);
        std::fs::write(&path, &golden).unwrap();
    }
    let ours = golden.lines().map(|line| line.split('|').next().unwrap_or_default().trim_end());
    let differs = ours.zip(table.lines()).find(|(golden, now)| golden != now);
    assert_eq!(differs, None, "{what}: {GOLDEN} says the first, the second is so");
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
