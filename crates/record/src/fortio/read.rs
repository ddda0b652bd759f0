//! A file of Fortio's as a run's result.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::buckets::{subtract, take_share, to_histogram};
use super::{FILE_LIMIT_BYTES, FortioError, HistogramData, OWN_KEY, Whole, whole};
use crate::histogram::Histogram;
use crate::record::{Arrival, Protocol, Tls};
use crate::run::{Generator, RUN_SCHEMA, RunResult};
use crate::traffic::{Bytes, Traffic};

/// The kind of a run that sends HTTP.
const HTTP: &str = "HTTP";

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
    /// The file has the times of failed requests among the others, as Fortio had before 2022 and
    /// Nighthawk has: each bucket was divided by their share.
    pub failures_mixed: bool,
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
    #[serde(deserialize_with = "whole")]
    actual_duration: i64,
    num_threads: u32,
    duration_histogram: Option<HistogramData>,
    errors_duration_histogram: Option<HistogramData>,
    jitter: bool,
    ret_codes: Option<BTreeMap<String, Whole>>,
    #[serde(rename = "URL")]
    url: Option<String>,
    destination: Option<String>,
    h2: bool,
    #[serde(rename = "MTLS")]
    mtls: bool,
    cert: String,
    streams: u32,
    #[serde(deserialize_with = "whole")]
    bytes_sent: i64,
    #[serde(deserialize_with = "whole")]
    bytes_received: i64,
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
    let run_type = match file.run_type.take() {
        Some(run_type) => run_type,
        // Nighthawk names none, and sends HTTP.
        None if file.duration_histogram.is_some() && file.ret_codes.is_some() => HTTP.to_owned(),
        None => return Err(FortioError::Missing("RunType")),
    };
    let own = file.own.take();
    let (labels, rate_label, response_label) =
        (std::mem::take(&mut file.labels), file.rate_label.take(), file.response_label.take());
    let (run, from_send, failures_mixed) = match own {
        Some(own) => {
            let run = serde_json::from_value(own).map_err(|e| FortioError::Own(OWN_KEY, e))?;
            (run, false, false)
        }
        None => {
            let (run, is_mixed) = foreign(file, &run_type)?;
            (run, true, is_mixed)
        }
    };
    Ok(Imported { labels, run_type, run, from_send, failures_mixed, rate_label, response_label })
}

/// The run, and whether the times of what failed were among the others.
fn foreign(mut file: File, run_type: &str) -> Result<(RunResult, bool), FortioError> {
    let mut all =
        file.duration_histogram.take().ok_or(FortioError::Missing("DurationHistogram"))?;
    let answers = samples(&all);
    let apart = file.errors_duration_histogram.take();
    if let Some(apart) = &apart {
        subtract(&mut all, apart);
    }
    let mut failures = apart.as_ref().map_or_else(|| Ok(Histogram::new()), to_histogram)?;
    let codes = Codes::of(&file, run_type);
    // What failed by its code and is not apart; first come those of which there is no time at all.
    let mixed = codes.failed.saturating_sub(failures.n());
    let mixed = mixed.saturating_sub(codes.all.saturating_sub(answers));
    let is_mixed = mixed > 0 && mixed < samples(&all);
    if mixed > 0 {
        failures.merge(&to_histogram(&take_share(&mut all, mixed))?);
    }
    let latencies = to_histogram(&all)?;
    let traffic = traffic(&file, &codes, &latencies, &failures);
    let target = file.url.or(file.destination).unwrap_or_default();
    let protocol = match run_type {
        HTTP if file.h2 => Protocol::Http2,
        HTTP => Protocol::Http1,
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
    let run = RunResult {
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
    };
    Ok((run, is_mixed))
}

fn samples(data: &HistogramData) -> u64 {
    data.data.iter().filter_map(|bucket| u64::try_from(bucket.count).ok()).sum()
}

/// What the codes of a file say.
#[derive(Default)]
struct Codes {
    /// Requests that have one.
    all: u64,
    failed: u64,
    by_kind: BTreeMap<String, u64>,
}

impl Codes {
    fn of(file: &File, run_type: &str) -> Self {
        let mut codes = Self::default();
        for (code, Whole(count)) in file.ret_codes.iter().flatten() {
            let Ok(count @ 1..) = u64::try_from(*count) else { continue };
            codes.all = codes.all.saturating_add(count);
            if is_success(run_type, code) {
                continue;
            }
            codes.failed = codes.failed.saturating_add(count);
            let kind = match code.as_str() {
                status if status.len() == 3 && status.bytes().all(|b| b.is_ascii_digit()) => {
                    format!("status-{status}")
                }
                _ if codes.by_kind.len() >= MAX_ERROR_KINDS => "other".to_owned(),
                "-1" => "broken".to_owned(),
                other => other.chars().take(100).collect(),
            };
            *codes.by_kind.entry(kind).or_default() += count;
        }
        codes
    }
}

/// Whether a code is one of success for Fortio. It takes the status 418 for one; calls of gRPC have
/// the name of a health status, in the first versions its number.
fn is_success(run_type: &str, code: &str) -> bool {
    match run_type {
        HTTP => code == "418" || (code.len() == 3 && code.starts_with('2')),
        grpc if grpc.contains("GRPC") => matches!(code, "SERVING" | "1"),
        _ => code == "OK",
    }
}

fn traffic(file: &File, codes: &Codes, latencies: &Histogram, failures: &Histogram) -> Traffic {
    let errors = failures.n().max(codes.failed);
    let mut traffic = Traffic {
        requested_rps: requested_rps(&file.requested_qps),
        achieved_rps: achieved_rps(file.actual_qps, latencies.n(), errors),
        duration_s: file.actual_duration.max(0) as f64 / 1e9,
        requests: latencies.n(),
        errors,
        bytes: Bytes {
            sent: u64::try_from(file.bytes_sent).unwrap_or_default(),
            received: file
                .sizes
                .as_ref()
                .map_or(u64::try_from(file.bytes_received).unwrap_or_default(), |sizes| {
                    sizes.sum.max(0.0) as u64
                }),
        },
        errors_by_kind: codes.by_kind.clone(),
        ..Traffic::default()
    };
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
