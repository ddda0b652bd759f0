//! Counts answered requests under Dapr's names, in a sidecar in daprd's place.

use std::time::Duration;

use tollway_telemetry::{AnsweredCall, DaprMetrics};

use super::exchange::told_status;
use crate::connection::Door;
use crate::edit::CALLER_APP;
use crate::exchange::{BodySize, Destination, Exchange};

/// The status of gRPC of a call that was not told one.
const UNKNOWN: u16 = 2;

/// An exchange was answered, `took` after its head.
pub(super) fn count(metrics: &DaprMetrics, exchange: &Exchange, took: Duration) {
    let head = &exchange.head;
    let grpc_status = exchange.is_grpc.then(|| told_status(exchange).unwrap_or(UNKNOWN));
    let call = AnsweredCall {
        method: text(head.method.as_bytes()),
        path: text(&head.path),
        status: exchange.status,
        grpc_status,
        request_bytes: exchange.request.passed,
        response_bytes: exchange.response.passed,
        took,
    };
    match (&exchange.door, &exchange.destination) {
        (Door::HttpApi | Door::GrpcApi, _) => metrics.served(call),
        (Door::Inbound | Door::Inside, Destination::App) => metrics.asked_app(call),
        _ => {}
    }
    if exchange.is_of_actors {
        return;
    }
    let status = grpc_status.unwrap_or(exchange.status);
    if let Some(service) = exchange.destination.service() {
        let streams = exchange.request_size == BodySize::Unknown;
        metrics.call_sent(service.app.as_str(), streams, status, took);
    } else if exchange.door == Door::Inbound {
        metrics.call_received(text(head.fields.value(CALLER_APP).unwrap_or_default()), status);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
