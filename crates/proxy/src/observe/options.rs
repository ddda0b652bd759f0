//! What a sidecar is asked to tell, and what runs for that beside the data threads.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tollway_identity::Credentials;
use tollway_model::{ErrorCode, ServiceName};
use tollway_routing::{SamplingRatio, TraceIds};
use tollway_telemetry::trace::{ExportError, Exporter, SpanMetrics, TraceOptions};
use tollway_telemetry::{AccessLog, AccessLogError, Handoff, LineMetrics, LogTarget};

use super::{Finished, Observer, Recorded, Tracing};
use super::{line, span};

/// Time for the last spans and lines when the process ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// What is told of single requests; nothing by default.
#[derive(Clone, Debug, Default)]
pub struct TelemetryOptions {
    pub tracing: Option<TracingOptions>,
    pub access_log: Option<LogTarget>,
}

/// Which requests become spans, and where they go.
#[derive(Clone, Debug)]
pub struct TracingOptions {
    /// The share of the traces begun here that is recorded.
    pub ratio: SamplingRatio,
    pub collector: TraceOptions,
}

/// Why what was asked for cannot be told.
#[derive(Debug, Error)]
pub enum TelemetryError {
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
}

impl TelemetryError {
    /// Its entry in the catalogue of failures.
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Export(_) => Some(ErrorCode::BadConfiguration),
            Self::AccessLog(AccessLogError::Open { source, .. }) => {
                Some(ErrorCode::of_file(source, ErrorCode::FileUnusable))
            }
            Self::AccessLog(AccessLogError::Thread(source)) => ErrorCode::of_io(source),
        }
    }
}

/// Who tells: the same for every request.
pub(crate) struct Own {
    pub(crate) service: ServiceName,
    pub(crate) spiffe_id: String,
    pub(crate) instance: String,
}

impl Own {
    fn of(credentials: &Credentials) -> Self {
        let instance = credentials.instance().map(ToString::to_string);
        Self {
            service: credentials.service().clone(),
            spiffe_id: credentials.spiffe_id().to_string(),
            instance: instance.unwrap_or_default(),
        }
    }

    /// Who it is to a collector.
    fn resource(&self) -> [(&'static str, String); 4] {
        [
            ("service.name", self.service.app.to_string()),
            ("service.namespace", self.service.namespace.to_string()),
            ("service.instance.id", self.instance.clone()),
            ("tollway.network", self.service.network.to_string()),
        ]
    }
}

/// The running other side of every data thread's [`Observer`].
#[derive(Default)]
pub(crate) struct Telemetry {
    tracing: Option<(SamplingRatio, Handoff<(Finished, Recorded)>)>,
    lines: Option<Handoff<Finished>>,
    exporting: Option<JoinHandle<()>>,
    writing: Option<oneshot::Receiver<()>>,
    stop: CancellationToken,
    pub(crate) span_metrics: Arc<SpanMetrics>,
    pub(crate) line_metrics: Arc<LineMetrics>,
}

impl Telemetry {
    /// Starts what was asked for.
    pub(crate) fn start(
        options: &TelemetryOptions,
        credentials: &Credentials,
    ) -> Result<Self, TelemetryError> {
        let own = Arc::new(Own::of(credentials));
        let mut telemetry = Self::default();
        if let Some(tracing) = &options.tracing {
            telemetry.start_tracing(tracing, Arc::clone(&own))?;
        }
        if let Some(target) = &options.access_log {
            let log = AccessLog::open(target, Arc::clone(&telemetry.line_metrics))?;
            let (handoff, batches) = Handoff::new();
            let write = move |finished: &Finished, text: &mut Vec<u8>| {
                line::write_line(finished, &own, text);
            };
            telemetry.writing = Some(log.start(batches, write)?);
            telemetry.lines = Some(handoff);
        }
        Ok(telemetry)
    }

    fn start_tracing(
        &mut self,
        options: &TracingOptions,
        own: Arc<Own>,
    ) -> Result<(), TelemetryError> {
        let metrics = Arc::clone(&self.span_metrics);
        let exporter = Exporter::new(options.collector.clone(), &own.resource(), metrics)?;
        let (handoff, batches) = Handoff::new();
        let to_span = move |(finished, recorded): (Finished, Recorded)| {
            span::to_span(&finished, recorded, &own)
        };
        let run = exporter.run(batches, to_span, self.stop.clone());
        self.exporting = Some(tokio::spawn(run));
        self.tracing = Some((options.ratio, handoff));
        Ok(())
    }

    /// The side of a data thread; `None` when nothing is told.
    pub(crate) fn observer(&self, seeds: [u64; 2]) -> Option<Box<Observer>> {
        if self.tracing.is_none() && self.lines.is_none() {
            return None;
        }
        let tracing = self.tracing.as_ref().map(|(ratio, spans)| Tracing {
            ratio: *ratio,
            ids: TraceIds::new(seeds),
            spans: spans.another(),
        });
        let lines = self.lines.as_ref().map(Handoff::another);
        Some(Box::new(Observer { tracing, lines }))
    }

    /// Every data thread has its side; what they hand over ends when they do.
    pub(crate) fn started(&mut self) {
        self.tracing = None;
        self.lines = None;
    }

    /// The data threads have ended: sends and writes what they left, for a bounded time.
    pub(crate) async fn finish(self) {
        self.stop.cancel();
        let all = async {
            if let Some(exporting) = self.exporting {
                // It ends by itself or not at all.
                let _ = exporting.await;
            }
            if let Some(writing) = self.writing {
                let _ = writing.await;
            }
        };
        if tokio::time::timeout(FINISH_TIMEOUT, all).await.is_err() {
            tracing::warn!("the last spans or lines of the access log were not told in time");
        }
    }
}
