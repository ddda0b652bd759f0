//! Counts answered requests under Dapr's names, in a sidecar in daprd's place.

use std::time::Duration;

use tollway_telemetry::{AnsweredCall, DaprMetrics};

use super::finish::told_status;
use crate::connection::ListenerKind;
use crate::exchange::{BodySize, Destination, Exchange};
use crate::headers::CALLER_APP;

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
    match (&exchange.via, &exchange.destination) {
        (ListenerKind::HttpApi | ListenerKind::GrpcApi, _) => metrics.served(call),
        (ListenerKind::Inbound | ListenerKind::Loopback, Destination::App) => {
            metrics.asked_app(call)
        }
        _ => {}
    }
    if exchange.is_of_actors {
        return;
    }
    let status = grpc_status.unwrap_or(exchange.status);
    if let Some(service) = exchange.destination.service() {
        let streams = exchange.request_size == BodySize::Unknown;
        metrics.call_sent(service.app.as_str(), streams, status, took);
    } else if exchange.via == ListenerKind::Inbound {
        metrics.call_received(text(head.fields.value(CALLER_APP).unwrap_or_default()), status);
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
