//! A finished request or connection as one line of the access log: a JSON object without a line
//! feed. Its fields are documented in `docs/guide/observe.md`.

use std::borrow::Cow;
use std::time::SystemTime;

use serde::Serialize;

use super::finished::{Finished, Kind, Outcome};
use super::running::TelemetryIdentity;

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    kind: &'static str,
    direction: &'static str,
    method: Option<Cow<'a, str>>,
    path: Option<Cow<'a, str>>,
    status: Option<u16>,
    grpc_status: Option<u16>,
    outcome: &'static str,
    error_code: Option<&'static str>,
    request_bytes: u64,
    response_bytes: u64,
    duration_us: u64,
    service: Option<String>,
    caller: Option<String>,
    callee: Option<String>,
    instance: Option<String>,
    remote: Option<String>,
    attempts: u32,
    trace_id: Option<String>,
    span_id: Option<String>,
}

/// Appends the line.
pub(crate) fn write_line(finished: &Finished, own: &TelemetryIdentity, line: &mut Vec<u8>) {
    let peer = finished.peer.as_ref();
    let client = finished.client.as_deref();
    let peer_id = peer
        .map(|peer| peer.spiffe.to_string())
        .or_else(|| client.map(|client| String::from_utf8_lossy(client).into_owned()));
    let peer_instance = peer.and_then(|peer| Some(peer.instance.as_ref()?.to_string()));
    let own_id = own.spiffe_id.clone();
    let (caller, callee, instance) = if finished.inbound {
        (peer_id, own_id, own.instance.clone())
    } else {
        (own_id, peer_id, peer_instance)
    };
    let service = match (&finished.service, finished.inbound) {
        (Some(service), _) => Some(service.to_string()),
        (None, true) => own.service.as_ref().map(ToString::to_string),
        (None, false) => None,
    };
    let (outcome, error_code) = match finished.outcome {
        Outcome::Answered => ("answered", None),
        Outcome::Failed(code) => ("failed", Some(code.word())),
        Outcome::Cancelled => ("cancelled", None),
    };
    let context = finished.recorded.map(|recorded| recorded.context);
    let took = finished.ended.saturating_duration_since(finished.started);
    let began = SystemTime::now().checked_sub(finished.started.elapsed());
    let entry = Line {
        time: humantime::format_rfc3339_micros(began.unwrap_or(SystemTime::UNIX_EPOCH)).to_string(),
        kind: word(finished.kind),
        direction: if finished.inbound { "inbound" } else { "outbound" },
        method: Some(finished.method()).filter(|method| !method.is_empty()),
        path: (!finished.path.is_empty()).then(|| finished.path()),
        status: (finished.status > 0).then_some(finished.status),
        grpc_status: finished.grpc_status,
        outcome,
        error_code,
        request_bytes: finished.request_bytes,
        response_bytes: finished.response_bytes,
        duration_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        service,
        caller,
        callee,
        instance,
        remote: finished.remote.map(|remote| remote.to_string()),
        attempts: finished.attempts,
        trace_id: context.map(|context| context.trace.to_string()),
        span_id: context.map(|context| context.span.to_string()),
    };
    // Text and numbers are always JSON, and writing into memory does not fail.
    let _ = serde_json::to_writer(line, &entry);
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Request => "request",
        Kind::Tcp => "tcp",
        Kind::Connect => "connect",
        Kind::Upgrade => "upgrade",
        Kind::Connection => "connection",
    }
}
