//! A file of Fortio's as a run's result.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::buckets::{subtract, to_histogram};
use super::{FILE_LIMIT_BYTES, FortioError, HistogramData, OWN_KEY};
use crate::histogram::Histogram;
use crate::record::{Arrival, Protocol, Tls};
use crate::run::{Generator, RUN_SCHEMA, RunResult};
use crate::traffic::{Bytes, Traffic};

/// Error kinds that are read from one file; the rest is counted under `other`.
const MAX_ERROR_KINDS: usize = 100;

/// What a file holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// What the run was called by who made it.
    pub labels: String,
    /// Fortio's word for what was done, such as `HTTP`.
    pub run_type: String,
    pub run: RunResult,
    /// The latencies count from the send: Fortio keeps no others. Then response and service times
    /// are the same here, and waiting for a connection is in neither.
    pub from_send: bool,
    /// What the rate is of, where it is not requests.
    pub rate_label: Option<String>,
    /// What the time is of, where it is not a response's.
    pub response_label: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct File {
    run_type: Option<String>,
    labels: String,
    start_time: String,
    #[serde(rename = "RequestedQPS")]
    requested_qps: Value,
    #[serde(rename = "ActualQPS")]
    actual_qps: f64,
    actual_duration: i64,
    num_threads: u32,
    duration_histogram: Option<HistogramData>,
    errors_duration_histogram: Option<HistogramData>,
    jitter: bool,
    ret_codes: BTreeMap<String, i64>,
    #[serde(rename = "URL")]
    url: Option<String>,
    destination: Option<String>,
    h2: bool,
    #[serde(rename = "MTLS")]
    mtls: bool,
    cert: String,
    streams: u32,
    bytes_sent: u64,
    bytes_received: u64,
    sizes: Option<HistogramData>,
    #[serde(rename = "QPSLabel")]
    rate_label: Option<String>,
    response_label: Option<String>,
    #[serde(rename = "TollwayRun")]
    own: Option<Value>,
}

/// Reads a result of Fortio, HTTP, gRPC or TCP; one that was written here comes back whole.
///
/// # Errors
/// [`FortioError`] when the text is too long, not such a result, or contradicts itself.
pub fn read(text: &str) -> Result<Imported, FortioError> {
    if text.len() > FILE_LIMIT_BYTES {
        return Err(FortioError::TooLong { length: text.len() });
    }
    let mut file: File = serde_json::from_str(text).map_err(FortioError::Json)?;
    let run_type = file.run_type.take().ok_or(FortioError::Missing("RunType"))?;
    let own = file.own.take();
    let (labels, rate_label, response_label) =
        (std::mem::take(&mut file.labels), file.rate_label.take(), file.response_label.take());
    let (run, from_send) = match own {
        Some(own) => {
            let run = serde_json::from_value(own).map_err(|e| FortioError::Own(OWN_KEY, e))?;
            (run, false)
        }
        None => (foreign(file, &run_type)?, true),
    };
    Ok(Imported { labels, run_type, run, from_send, rate_label, response_label })
}

fn foreign(mut file: File, run_type: &str) -> Result<RunResult, FortioError> {
    let mut all =
        file.duration_histogram.take().ok_or(FortioError::Missing("DurationHistogram"))?;
    let failed = file.errors_duration_histogram.take();
    if let Some(failed) = &failed {
        subtract(&mut all, failed);
    }
    let latencies = to_histogram(&all)?;
    let failures = failed.map_or_else(|| Ok(Histogram::new()), |failed| to_histogram(&failed))?;
    let traffic = traffic(&file, &latencies, &failures);
    let target = file.url.or(file.destination).unwrap_or_default();
    let protocol = match run_type {
        "HTTP" if file.h2 => Protocol::Http2,
        "HTTP" => Protocol::Http1,
        "TCP" => Protocol::Tcp,
        grpc if grpc.contains("GRPC") => Protocol::GrpcUnary,
        other => return Err(FortioError::Kind(other.to_owned())),
    };
    let tls = match target.starts_with("https://") {
        true if file.mtls || !file.cert.is_empty() => Tls::Mtls,
        true => Tls::Tls,
        false => Tls::Plain,
    };
    let arrival = match traffic.requested_rps {
        None => Arrival::Closed,
        Some(_) if file.jitter => Arrival::OpenJitter,
        Some(_) => Arrival::OpenUniform,
    };
    Ok(RunResult {
        schema: RUN_SCHEMA.to_owned(),
        started_at: file.start_time,
        target,
        protocol,
        tls,
        arrival,
        tls_facts: None,
        requests_per_connection: None,
        streams: 1,
        connections: file.num_threads,
        in_flight_limit: Some(u64::from(file.num_threads) * u64::from(file.streams.max(1))),
        payload_bytes: 0,
        warm_up_s: 0.0,
        seed: 0,
        command_line: Vec::new(),
        traffic,
        generator: Generator::default(),
        ..RunResult::default()
    })
}

fn traffic(file: &File, latencies: &Histogram, failures: &Histogram) -> Traffic {
    let mut traffic = Traffic {
        requested_rps: requested_rps(&file.requested_qps),
        achieved_rps: achieved_rps(file.actual_qps, latencies.n(), failures.n()),
        duration_s: file.actual_duration.max(0) as f64 / 1e9,
        requests: latencies.n(),
        errors: failures.n(),
        bytes: Bytes {
            sent: file.bytes_sent,
            received: file
                .sizes
                .as_ref()
                .map_or(file.bytes_received, |sizes| sizes.sum.max(0.0) as u64),
        },
        ..Traffic::default()
    };
    for (code, count) in &file.ret_codes {
        let Ok(count @ 1..) = u64::try_from(*count) else { continue };
        let kind = match code.as_str() {
            "OK" | "SERVING" => continue,
            success if success.starts_with('2') && success.len() == 3 => continue,
            status if status.len() == 3 && status.bytes().all(|b| b.is_ascii_digit()) => {
                format!("status-{status}")
            }
            _ if traffic.errors_by_kind.len() >= MAX_ERROR_KINDS => "other".to_owned(),
            "-1" => "broken".to_owned(),
            other => other.chars().take(100).collect(),
        };
        *traffic.errors_by_kind.entry(kind).or_default() += count;
    }
    traffic.set_latencies(latencies);
    traffic.set_services(latencies);
    traffic.set_failures(failures);
    traffic
}

/// Fortio's rate is of all answers, that of a record of the good ones.
fn achieved_rps(actual_rps: f64, requests: u64, errors: u64) -> f64 {
    let all = requests.saturating_add(errors);
    if all == 0 { 0.0 } else { actual_rps * requests as f64 / all as f64 }
}

/// A text in Fortio's own files, a number in some that others wrote; `max` is a closed loop.
fn requested_rps(value: &Value) -> Option<f64> {
    let rps = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
    (rps.is_finite() && rps > 0.0).then_some(rps)
}
