//! A run's result as a file of Fortio's.

use std::collections::BTreeMap;

use serde::Serialize;

use super::HistogramData;
use super::buckets::{from_histogram, signed};
use crate::histogram::HistogramError;
use crate::record::{Arrival, Protocol, Tls};
use crate::run::RunResult;
use crate::traffic::Traffic;

/// Longest name of a run in Fortio's list.
const MAX_ID_BYTES: usize = 96;

/// The keys in Fortio's order. Numbers must be numbers and the requested rate a text: its readers
/// are typed.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct File<'a> {
    run_type: String,
    labels: &'a str,
    start_time: &'a str,
    #[serde(rename = "RequestedQPS")]
    requested_qps: String,
    requested_duration: String,
    #[serde(rename = "ActualQPS")]
    actual_qps: f64,
    /// Nanoseconds.
    actual_duration: u64,
    num_threads: u32,
    version: String,
    duration_histogram: HistogramData,
    errors_duration_histogram: HistogramData,
    exactly: i64,
    jitter: bool,
    uniform: bool,
    no_catch_up: bool,
    #[serde(rename = "RunID")]
    run_id: i64,
    access_logger_info: &'static str,
    #[serde(rename = "ID")]
    id: String,
    ret_codes: BTreeMap<String, i64>,
    #[serde(flatten)]
    kind: Kind<'a>,
    #[serde(rename = "TollwayRun")]
    own: &'a RunResult,
}

/// Fields of one kind of run.
#[derive(Serialize)]
#[serde(untagged)]
enum Kind<'a> {
    Http(Http<'a>),
    Grpc(Grpc<'a>),
    Tcp(Tcp<'a>),
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Http<'a> {
    #[serde(rename = "URL")]
    url: &'a str,
    num_connections: u32,
    h2: bool,
    /// Client certificate in use.
    #[serde(rename = "MTLS")]
    mtls: bool,
    sizes: Sizes,
    socket_count: u64,
    connection_stats: Option<HistogramData>,
    abort_on: i64,
}

/// Of the answers. Only the mean is known: a smallest and a largest are not in the file.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Sizes {
    count: i64,
    sum: f64,
    avg: f64,
    data: [(); 0],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Grpc<'a> {
    destination: &'a str,
    streams: u64,
    ping: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Tcp<'a> {
    destination: &'a str,
    socket_count: u64,
    bytes_sent: u64,
    bytes_received: u64,
}

/// The file's text: response times, those of failed requests included as Fortio has it, and
/// `labels`, by which its page finds the run.
///
/// # Errors
/// [`HistogramError`] when a histogram of the result is damaged.
pub fn write(run: &RunResult, labels: &str) -> Result<String, HistogramError> {
    let traffic = &run.traffic;
    let failures = traffic.failures()?;
    let mut all = traffic.latencies()?;
    all.merge(&failures);
    let open = run.arrival != Arrival::Closed;
    let file = File {
        run_type: run_type(run.protocol).to_owned(),
        labels,
        start_time: &run.started_at,
        requested_qps: match traffic.requested_rps {
            Some(rps) if open => format!("{rps}"),
            Some(_) | None => "max".to_owned(),
        },
        requested_duration: format!("{}s", traffic.duration_s),
        actual_qps: answered_rps(traffic),
        actual_duration: (traffic.duration_s * 1e9).round() as u64,
        num_threads: run.connections,
        version: format!("tollway {}", env!("CARGO_PKG_VERSION")),
        duration_histogram: from_histogram(&all),
        errors_duration_histogram: from_histogram(&failures),
        exactly: 0,
        jitter: run.arrival == Arrival::OpenJitter,
        uniform: run.arrival == Arrival::OpenUniform,
        no_catch_up: false,
        run_id: 0,
        access_logger_info: "",
        id: id(&run.started_at, labels),
        ret_codes: ret_codes(run),
        kind: kind(run),
        own: run,
    };
    Ok(serde_json::to_string_pretty(&file).expect("plain fields with string keys"))
}

/// Fortio's rate is of all answers, that of a result of the good ones.
fn answered_rps(traffic: &Traffic) -> f64 {
    let failed_rps = match traffic.requests {
        0 if traffic.duration_s > 0.0 => traffic.errors as f64 / traffic.duration_s,
        0 => 0.0,
        requests => traffic.achieved_rps * (traffic.errors as f64 / requests as f64),
    };
    traffic.achieved_rps + failed_rps
}

fn run_type(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 | Protocol::Http2 => "HTTP",
        // Whatever else there is, Fortio has no kind for it.
        Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => "TCP",
        // Of Fortio's kinds of calls this one takes any method.
        Protocol::GrpcUnary | Protocol::GrpcStream => "GRPC",
    }
}

fn kind(run: &RunResult) -> Kind<'_> {
    let target = run.target.as_str();
    let connections = u64::from(run.connections);
    match run.protocol {
        Protocol::Http1 | Protocol::Http2 => Kind::Http(Http {
            url: target,
            num_connections: run.connections,
            h2: run.protocol == Protocol::Http2,
            mtls: run.tls == Tls::Mtls,
            sizes: sizes(run),
            socket_count: connections,
            connection_stats: None,
            abort_on: 0,
        }),
        Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => Kind::Tcp(Tcp {
            destination: target,
            socket_count: connections,
            bytes_sent: run.traffic.bytes.sent,
            bytes_received: run.traffic.bytes.received,
        }),
        Protocol::GrpcUnary | Protocol::GrpcStream => {
            Kind::Grpc(Grpc { destination: target, streams: 1, ping: false })
        }
    }
}

fn sizes(run: &RunResult) -> Sizes {
    let (requests, received) = (run.traffic.requests, run.traffic.bytes.received as f64);
    Sizes {
        count: signed(requests),
        sum: received,
        avg: if requests > 0 { received / requests as f64 } else { 0.0 },
        data: [],
    }
}

/// Answers by status. Success is one number here, so all of it has one code.
fn ret_codes(run: &RunResult) -> BTreeMap<String, i64> {
    let (success, no_answer) = match run.protocol {
        Protocol::Http1 | Protocol::Http2 => ("200", "-1"),
        Protocol::Tcp | Protocol::Icmp | Protocol::Vxlan => ("OK", "ERROR"),
        Protocol::GrpcUnary | Protocol::GrpcStream => ("SERVING", "ERROR"),
    };
    let mut codes = BTreeMap::from([(success.to_owned(), signed(run.traffic.requests))]);
    for (kind, count) in &run.traffic.errors_by_kind {
        let code = kind.strip_prefix("status-").filter(|_| no_answer == "-1").unwrap_or(no_answer);
        let sum = codes.entry(code.to_owned()).or_default();
        *sum = sum.saturating_add(signed(*count));
    }
    codes
}

/// `2026-01-31-120000_labels`, from `2026-01-31T12:00:00Z`: the name by which files are listed.
fn id(started_at: &str, labels: &str) -> String {
    let (date, time) = started_at.split_once('T').unwrap_or((started_at, ""));
    let digits: String = time.chars().filter(char::is_ascii_digit).take(6).collect();
    let mut id = format!("{date}-{digits}");
    for word in labels.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        id.push('_');
        id.push_str(word);
    }
    id.truncate(id.floor_char_boundary(MAX_ID_BYTES));
    id
}
