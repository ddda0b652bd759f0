//! What is recorded of single requests: spans for a collector, lines for the access log.
//!
//! The data thread decides at a request's head whether it is recorded at all, keeps the little that
//! only it knows (`Observed`), and hands the finished request over as it is (`Finished`). The other
//! side makes a span or a line of it.

mod finished;
mod line;
mod options;
mod running;
mod span;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tollway_http::RequestHead;
use tollway_identity::PeerIdentity;
use tollway_model::{ErrorCode, SpanId, TraceContext};
use tollway_routing::{SamplingRatio, TraceDecision, TraceIds, decide_trace};
use tollway_telemetry::{DataPlaneMetrics, Handoff};

use crate::call_trace::TracePart;
pub(crate) use finished::{Finished, Kind, Outcome, grpc_status};
pub use options::{TelemetryError, TelemetryOptions, TracingOptions};
pub(crate) use running::Telemetry;

/// A data thread's side.
pub(crate) struct Observer {
    pub(crate) tracing: Option<Tracing>,
    pub(crate) lines: Option<Handoff<Finished>>,
}

/// What a data thread needs to record traces.
pub(crate) struct Tracing {
    pub(crate) ratio: SamplingRatio,
    pub(crate) ids: TraceIds,
    pub(crate) spans: Handoff<(Finished, Recorded)>,
}

/// What is remembered of a request that is recorded.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) recorded: Option<Recorded>,
    pub(crate) error: Option<ErrorCode>,
    /// It goes out of the mesh, by the runtime.
    pub(crate) is_external: bool,
    /// The caller went away before it had its answer.
    pub(crate) cancelled: bool,
    /// The other end of the mesh: an inbound request's caller, an outbound one's callee.
    pub(crate) peer: Option<Arc<PeerIdentity>>,
    /// What a front's client proved, as the app gets it.
    pub(crate) client: Option<Box<[u8]>>,
    pub(crate) remote: Option<SocketAddr>,
    /// Version of HTTP on the mesh's side.
    pub(crate) version: &'static str,
    pub(crate) grpc_status: Option<u16>,
    /// The call trace goes to the caller that asked for it.
    pub(crate) explained: Option<TracePart>,
}

/// A span that is being recorded.
#[derive(Clone, Copy)]
pub(crate) struct Recorded {
    pub(crate) context: TraceContext,
    pub(crate) parent: Option<SpanId>,
    /// Of this attempt.
    pub(crate) started: Instant,
    /// Attempts before this one.
    pub(crate) resends: u32,
}

impl Observer {
    /// Decides by its head whether a request is recorded, and writes the span of one that is traced
    /// into the head, for the next hop. `None` if nothing is recorded.
    pub(crate) fn begin(&mut self, head: &mut RequestHead, now: Instant) -> Option<Box<Observed>> {
        let recorded = self.tracing.as_mut().and_then(|tracing| tracing.begin(head, now));
        if recorded.is_none() && self.lines.is_none() {
            return None;
        }
        Some(Box::new(Observed { recorded, ..Observed::default() }))
    }

    /// Records a request that is over. With `span_only` without a line: an attempt that is made again
    /// has none, and that of an upgrade is written later.
    pub(crate) fn record(
        &mut self,
        finished: Finished,
        span_only: bool,
        metrics: &DataPlaneMetrics,
    ) {
        let spans = self.tracing.as_mut().map(|tracing| &mut tracing.spans).zip(finished.recorded);
        let lines = self.lines.as_mut().filter(|_| !span_only);
        match (spans, lines) {
            (Some((spans, recorded)), Some(lines)) => {
                metrics.spans_dropped.add(spans.push((finished.clone(), recorded)));
                metrics.access_log_lines_dropped.add(lines.push(finished));
            }
            (Some((spans, recorded)), None) => {
                metrics.spans_dropped.add(spans.push((finished, recorded)));
            }
            (None, Some(lines)) => metrics.access_log_lines_dropped.add(lines.push(finished)),
            (None, None) => {}
        }
    }

    /// A connection is over, or something was refused before it began: it has no span.
    pub(crate) fn write_line(&mut self, finished: Finished, metrics: &DataPlaneMetrics) {
        if let Some(lines) = &mut self.lines {
            metrics.access_log_lines_dropped.add(lines.push(finished));
        }
    }

    /// Hands over what has gathered.
    pub(crate) fn flush(&mut self, metrics: &DataPlaneMetrics) {
        if let Some(tracing) = &mut self.tracing {
            metrics.spans_dropped.add(tracing.spans.flush());
        }
        if let Some(lines) = &mut self.lines {
            metrics.access_log_lines_dropped.add(lines.flush());
        }
    }

    /// Begins the span of another attempt, and writes it into the head, for the next hop.
    pub(crate) fn begin_again(
        &mut self,
        recorded: &mut Recorded,
        head: &mut RequestHead,
        now: Instant,
    ) {
        let Some(tracing) = &mut self.tracing else { return };
        recorded.context = recorded.context.with_span(tracing.ids.next_span());
        recorded.started = now;
        recorded.resends += 1;
        head.fields.set(b"traceparent", &recorded.context.to_field());
    }
}

impl Tracing {
    fn begin(&mut self, head: &mut RequestHead, started: Instant) -> Option<Recorded> {
        let fields = &mut head.fields;
        match decide_trace(fields.values(b"traceparent"), self.ratio, &mut self.ids) {
            TraceDecision::Pass => None,
            TraceDecision::Begin(context) => {
                // It belonged to a trace that does not go on.
                fields.remove(b"tracestate");
                fields.set(b"traceparent", &context.to_field());
                None
            }
            TraceDecision::Record { context, parent } => {
                if parent.is_none() {
                    fields.remove(b"tracestate");
                }
                fields.set(b"traceparent", &context.to_field());
                Some(Recorded { context, parent, started, resends: 0 })
            }
        }
    }
}

#[cfg(test)]
mod tests;
