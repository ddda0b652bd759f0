//! A finished request as a span, in the words of OpenTelemetry's conventions for HTTP and gRPC,
//! and a few of our own (`tollway.*`).

use std::borrow::Cow;

use tollway_http::Method;
use tollway_telemetry::trace::{Attributes, SpanHead, SpanKind, Spans};

use super::Recorded;
use super::finished::{Finished, Outcome};
use super::running::TelemetryIdentity;

/// gRPC statuses that report a fault of the server: unknown, deadline exceeded, unimplemented,
/// internal, unavailable, data loss.
const GRPC_SERVER_FAULTS: [u16; 6] = [2, 4, 12, 13, 14, 15];

/// A span of each request on each side; an outbound one has a span for each attempt.
pub(crate) fn write_span(
    finished: &Finished,
    recorded: Recorded,
    own: &TelemetryIdentity,
    spans: &mut Spans,
) {
    let (path, server) = (finished.path(), server_address(finished, own));
    let error = error_type(finished);
    let head = SpanHead {
        context: recorded.context,
        parent: recorded.parent,
        name: &name(finished, &path),
        kind: if finished.inbound { SpanKind::Server } else { SpanKind::Client },
        started: recorded.started,
        ended: finished.ended,
        failed: error.is_some(),
    };
    spans.add(&head, |attributes| {
        if finished.is_grpc {
            add_rpc(finished, &path, attributes);
        } else {
            add_http(finished, &path, &server, attributes);
        }
        add_peers(finished, &server, own, attributes);
        if recorded.resends > 0 {
            attributes.number("http.request.resend_count", i64::from(recorded.resends));
        }
        if let Some(error) = &error {
            attributes.text("error.type", error);
        }
    });
}

/// Few different ones: a path may hold anything, so it is no part of an HTTP request's name.
fn name<'a>(finished: &'a Finished, path: &'a str) -> Cow<'a, str> {
    if finished.is_grpc {
        path.trim_start_matches('/').into()
    } else if matches!(finished.method, Method::Other(_)) {
        "HTTP".into()
    } else {
        finished.method()
    }
}

fn add_http(finished: &Finished, path: &str, server: &str, attributes: &mut Attributes<'_>) {
    if matches!(finished.method, Method::Other(_)) {
        attributes.text("http.request.method", "_OTHER");
        attributes.text("http.request.method_original", &finished.method());
    } else {
        attributes.text("http.request.method", &finished.method());
    }
    if finished.status > 0 {
        attributes.number("http.response.status_code", i64::from(finished.status));
    }
    if !finished.inbound {
        attributes.display("url.full", &format_args!("https://{server}{path}"));
    }
    attributes.text("url.path", path);
    attributes.text("url.scheme", "https");
    attributes.number("http.request.body.size", size(finished.request_bytes));
    attributes.number("http.response.body.size", size(finished.response_bytes));
}

fn add_rpc(finished: &Finished, path: &str, attributes: &mut Attributes<'_>) {
    let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or(("", path));
    attributes.text("rpc.system", "grpc");
    attributes.text("rpc.service", service);
    attributes.text("rpc.method", method);
    if let Some(status) = finished.grpc_status {
        attributes.number("rpc.grpc.status_code", i64::from(status));
    }
}

fn add_peers(
    finished: &Finished,
    server: &str,
    own: &TelemetryIdentity,
    attributes: &mut Attributes<'_>,
) {
    if !server.is_empty() {
        attributes.text("server.address", server);
    }
    if !finished.version.is_empty() {
        attributes.text("network.protocol.name", "http");
        attributes.text("network.protocol.version", finished.version);
    }
    if let Some(remote) = finished.remote {
        attributes.display("network.peer.address", &remote.ip());
        attributes.number("network.peer.port", i64::from(remote.port()));
    }
    let (of_peer, of_own) = match finished.inbound {
        true => ("tollway.caller", "tollway.callee"),
        false => ("tollway.callee", "tollway.caller"),
    };
    if let Some(id) = &own.spiffe_id {
        attributes.text(of_own, id);
    }
    if let (true, Some(instance)) = (finished.inbound, &own.instance) {
        attributes.text("tollway.instance", instance);
    }
    let Some(peer) = &finished.peer else { return };
    attributes.display(of_peer, &peer.spiffe);
    if let (false, Some(instance)) = (finished.inbound, &peer.instance) {
        attributes.display("tollway.instance", instance);
    }
}

/// The callee's name in the mesh; empty without one.
fn server_address(finished: &Finished, own: &TelemetryIdentity) -> String {
    let of_own = own.service.as_ref().filter(|_| finished.inbound);
    let service = finished.service.as_ref().or(of_own);
    service.map(|service| service.dns_san()).unwrap_or_default()
}

/// What went wrong, in a word; `None` when nothing did, as seen from this side.
fn error_type(finished: &Finished) -> Option<Cow<'static, str>> {
    match finished.outcome {
        Outcome::Failed(code) => return Some(code.word().into()),
        Outcome::Cancelled => return Some("cancelled".into()),
        Outcome::Answered => {}
    }
    if let Some(status) = finished.grpc_status.filter(|_| finished.is_grpc) {
        let is_fault = match finished.inbound {
            true => GRPC_SERVER_FAULTS.contains(&status),
            false => status != 0,
        };
        return is_fault.then(|| status.to_string().into());
    }
    let least = if finished.inbound { 500 } else { 400 };
    (finished.status >= least).then(|| finished.status.to_string().into())
}

fn size(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
