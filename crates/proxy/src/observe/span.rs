//! A finished request as a span, in the words of OpenTelemetry's conventions for HTTP and gRPC,
//! and a few of our own (`tollway.*`).

use tollway_http::Method;
use tollway_model::ServiceName;
use tollway_telemetry::trace::{Span, SpanKind, Value};

use super::Recorded;
use super::finished::{Finished, Outcome};
use super::running::Own;

/// gRPC statuses that tell of a fault of the server: unknown, deadline exceeded, unimplemented,
/// internal, unavailable, data loss.
const GRPC_SERVER_FAULTS: [u16; 6] = [2, 4, 12, 13, 14, 15];

/// A span of each request on each side; an outbound one has a span for each attempt.
pub(crate) fn to_span(finished: &Finished, recorded: Recorded, own: &Own) -> Span {
    let error = error_type(finished);
    let mut attributes = Vec::with_capacity(20);
    if finished.is_grpc {
        add_rpc(finished, &mut attributes);
    } else {
        add_http(finished, own, &mut attributes);
    }
    add_peers(finished, own, &mut attributes);
    if recorded.resends > 0 {
        attributes.push(("http.request.resend_count", i64::from(recorded.resends).into()));
    }
    let failed = error.is_some();
    attributes.extend(error.map(|error| ("error.type", error.into())));
    Span {
        context: recorded.context,
        parent: recorded.parent,
        name: name(finished),
        kind: if finished.inbound { SpanKind::Server } else { SpanKind::Client },
        started: recorded.started,
        ended: finished.ended,
        failed,
        attributes,
    }
}

type Attributes = Vec<(&'static str, Value)>;

/// Few different ones: a path may hold anything, so it is no part of an HTTP request's name.
fn name(finished: &Finished) -> String {
    if finished.is_grpc {
        finished.path().trim_start_matches('/').to_owned()
    } else if matches!(finished.method, Method::Other(_)) {
        "HTTP".to_owned()
    } else {
        finished.method()
    }
}

fn add_http(finished: &Finished, own: &Own, attributes: &mut Attributes) {
    let path = finished.path();
    if matches!(finished.method, Method::Other(_)) {
        attributes.push(("http.request.method", "_OTHER".into()));
        attributes.push(("http.request.method_original", finished.method().into()));
    } else {
        attributes.push(("http.request.method", finished.method().into()));
    }
    if finished.status > 0 {
        attributes.push(("http.response.status_code", i64::from(finished.status).into()));
    }
    if !finished.inbound {
        let host = server_address(finished, own);
        attributes.push(("url.full", format!("https://{host}{path}").into()));
    }
    attributes.push(("url.path", path.into()));
    attributes.push(("url.scheme", "https".into()));
    attributes.push(("http.request.body.size", size(finished.request_bytes)));
    attributes.push(("http.response.body.size", size(finished.response_bytes)));
}

fn add_rpc(finished: &Finished, attributes: &mut Attributes) {
    let path = finished.path();
    let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or(("", &path));
    attributes.push(("rpc.system", "grpc".into()));
    attributes.push(("rpc.service", service.into()));
    attributes.push(("rpc.method", method.into()));
    if let Some(status) = finished.grpc_status {
        attributes.push(("rpc.grpc.status_code", i64::from(status).into()));
    }
}

fn add_peers(finished: &Finished, own: &Own, attributes: &mut Attributes) {
    let server = server_address(finished, own);
    if !server.is_empty() {
        attributes.push(("server.address", server.into()));
    }
    if !finished.version.is_empty() {
        attributes.push(("network.protocol.name", "http".into()));
        attributes.push(("network.protocol.version", finished.version.into()));
    }
    if let Some(remote) = finished.remote {
        attributes.push(("network.peer.address", remote.ip().to_string().into()));
        attributes.push(("network.peer.port", i64::from(remote.port()).into()));
    }
    let (of_peer, of_own) = match finished.inbound {
        true => ("tollway.caller", "tollway.callee"),
        false => ("tollway.callee", "tollway.caller"),
    };
    attributes.extend(own.spiffe_id.clone().map(|id| (of_own, id.into())));
    if let (true, Some(instance)) = (finished.inbound, &own.instance) {
        attributes.push(("tollway.instance", instance.clone().into()));
    }
    let Some(peer) = &finished.peer else { return };
    attributes.push((of_peer, peer.spiffe.to_string().into()));
    if let (false, Some(instance)) = (finished.inbound, &peer.instance) {
        attributes.push(("tollway.instance", instance.to_string().into()));
    }
}

/// The callee's name in the mesh; empty without one.
fn server_address(finished: &Finished, own: &Own) -> String {
    match (&finished.service, finished.inbound) {
        (Some(service), _) => service.dns_san(),
        (None, true) => own.service.as_ref().map(ServiceName::dns_san).unwrap_or_default(),
        (None, false) => String::new(),
    }
}

/// What went wrong, in a word; `None` when nothing did, as seen from this side.
fn error_type(finished: &Finished) -> Option<String> {
    match finished.outcome {
        Outcome::Failed(code) => return Some(code.word().to_owned()),
        Outcome::Cancelled => return Some("cancelled".to_owned()),
        Outcome::Answered => {}
    }
    if let Some(status) = finished.grpc_status.filter(|_| finished.is_grpc) {
        let is_fault = match finished.inbound {
            true => GRPC_SERVER_FAULTS.contains(&status),
            false => status != 0,
        };
        return is_fault.then(|| status.to_string());
    }
    let least = if finished.inbound { 500 } else { 400 };
    (finished.status >= least).then(|| finished.status.to_string())
}

fn size(bytes: u64) -> Value {
    Value::Number(i64::try_from(bytes).unwrap_or(i64::MAX))
}
