//! What runs beside the data threads: the exporter of spans and the writer of the access log. Both
//! can be put in another's place while requests go on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tollway_identity::Credentials;
use tollway_model::ServiceName;
use tollway_routing::TraceIds;
use tollway_telemetry::trace::{Exporter, SpanMetrics, Spans};
use tollway_telemetry::{AccessLog, Handoff, LineMetrics, LogTarget};

use super::options::{TelemetryError, TelemetryOptions, TracingOptions};
use super::{Finished, Observer, Recorded, Tracing};
use super::{line, span};

/// Time for the last spans and lines when the process ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// Name of a front to a collector.
const FRONT: &str = "tollway-front";

/// Names of this process in records, the same for every request. A front is of no mesh, and has none.
#[derive(Default)]
pub(crate) struct TelemetryIdentity {
    pub(crate) service: Option<ServiceName>,
    pub(crate) spiffe_id: Option<String>,
    pub(crate) instance: Option<String>,
}

impl TelemetryIdentity {
    fn of(credentials: &Credentials) -> Self {
        let instance = credentials.instance().map(ToString::to_string);
        Self {
            service: Some(credentials.service().clone()),
            spiffe_id: Some(credentials.spiffe_id().to_string()),
            instance: Some(instance.unwrap_or_default()),
        }
    }

    /// Who it is to a collector.
    fn resource(&self) -> Vec<(&'static str, String)> {
        let Some(service) = &self.service else {
            return vec![("service.name", FRONT.to_owned())];
        };
        vec![
            ("service.name", service.app.to_string()),
            ("service.namespace", service.namespace.to_string()),
            ("service.instance.id", self.instance.clone().unwrap_or_default()),
            ("tollway.network", service.network.to_string()),
        ]
    }
}

/// The running other side of every data thread's [`Observer`].
pub(crate) struct Telemetry {
    own: Arc<TelemetryIdentity>,
    tracing: Option<(TracingOptions, SpanHandoff)>,
    lines: Option<(LogTarget, LineHandoff)>,
    /// Also those that were replaced and may still have something in their hands.
    ends: Ends,
    stop: CancellationToken,
    pub(crate) span_metrics: Arc<SpanMetrics>,
    pub(crate) line_metrics: Arc<LineMetrics>,
}

type SpanHandoff = Handoff<(Finished, Recorded)>;
type LineHandoff = Handoff<Finished>;

/// Exporters and writers; each ends once every data thread has dropped its end of the hand-off.
#[derive(Default)]
struct Ends {
    exporting: Vec<JoinHandle<()>>,
    writing: Vec<oneshot::Receiver<()>>,
}

impl Telemetry {
    /// Starts what is asked for.
    pub(crate) fn start(
        options: TelemetryOptions,
        credentials: &Credentials,
    ) -> Result<Self, TelemetryError> {
        Self::start_for(options, TelemetryIdentity::of(credentials))
    }

    /// The same for who takes no part in the mesh.
    pub(crate) fn start_unnamed(options: TelemetryOptions) -> Result<Self, TelemetryError> {
        Self::start_for(options, TelemetryIdentity::default())
    }

    fn start_for(
        options: TelemetryOptions,
        own: TelemetryIdentity,
    ) -> Result<Self, TelemetryError> {
        let mut telemetry = Self {
            own: Arc::new(own),
            tracing: None,
            lines: None,
            ends: Ends::default(),
            stop: CancellationToken::new(),
            span_metrics: Arc::default(),
            line_metrics: Arc::default(),
        };
        telemetry.change(options)?;
        Ok(telemetry)
    }

    /// Starts what is new in `wanted` and lets go of what it has no more; says whether the data
    /// threads need new observers. When something cannot be had, nothing has changed.
    pub(crate) fn change(&mut self, wanted: TelemetryOptions) -> Result<bool, TelemetryError> {
        self.ends.forget_ended();
        let same_target =
            self.lines.as_ref().map(|(target, _)| target) == wanted.access_log.as_ref();
        let new_log = match &wanted.access_log {
            Some(target) if !same_target => {
                Some(AccessLog::open(target, Arc::clone(&self.line_metrics))?)
            }
            Some(_) | None => None,
        };
        let runs = self.tracing.as_ref().map(|(options, _)| options);
        let same_tracing = runs == wanted.tracing.as_ref();
        let same_collector = runs.map(|options| &options.collector)
            == wanted.tracing.as_ref().map(|options| &options.collector);
        let new_exporter = match &wanted.tracing {
            Some(TracingOptions { collector, .. }) if !same_collector => {
                let (resource, metrics) = (self.own.resource(), Arc::clone(&self.span_metrics));
                Some(Exporter::new(collector.clone(), &resource, metrics)?)
            }
            Some(_) | None => None,
        };
        if !same_target {
            let lines = new_log.map(|log| self.start_log(log)).transpose()?;
            self.lines = wanted.access_log.zip(lines);
        }
        if !same_tracing {
            let runs = self.tracing.take().map(|(_, spans)| spans);
            let spans = match new_exporter {
                Some(exporter) => Some(self.start_exporter(exporter)),
                None => runs,
            };
            self.tracing = wanted.tracing.zip(spans);
        }
        Ok(!(same_target && same_tracing))
    }

    fn start_log(&mut self, log: AccessLog) -> Result<LineHandoff, TelemetryError> {
        let (handoff, batches) = Handoff::new();
        let own = Arc::clone(&self.own);
        let write = move |finished: &Finished, text: &mut Vec<u8>| {
            line::write_line(finished, &own, text);
        };
        self.ends.writing.push(log.start(batches, write)?);
        Ok(handoff)
    }

    fn start_exporter(&mut self, exporter: Exporter) -> SpanHandoff {
        let (handoff, batches) = Handoff::new();
        let own = Arc::clone(&self.own);
        let write = move |(finished, recorded): &(Finished, Recorded), spans: &mut Spans| {
            span::write_span(finished, *recorded, &own, spans);
        };
        let run = exporter.run(batches, write, self.stop.clone());
        self.ends.exporting.push(tokio::spawn(run));
        handoff
    }

    /// The side of a data thread; `None` when nothing is recorded.
    pub(crate) fn observer(&self, seeds: [u64; 2]) -> Option<Box<Observer>> {
        let tracing = self.tracing.as_ref().map(|(options, spans)| Tracing {
            ratio: options.ratio,
            ids: TraceIds::new(seeds),
            spans: spans.another(),
        });
        let lines = self.lines.as_ref().map(|(_, lines)| lines.another());
        (tracing.is_some() || lines.is_some()).then(|| Box::new(Observer { tracing, lines }))
    }

    /// The data threads have ended: has what they left sent and written; what this returns waits
    /// for that, for a bounded time.
    pub(crate) fn finish(&mut self) -> impl Future<Output = ()> + use<> {
        self.tracing = None;
        self.lines = None;
        self.stop.cancel();
        let Ends { exporting, writing } = std::mem::take(&mut self.ends);
        async {
            let all = async {
                for task in exporting {
                    // It ends by itself or not at all.
                    let _ = task.await;
                }
                for written in writing {
                    let _ = written.await;
                }
            };
            if tokio::time::timeout(FINISH_TIMEOUT, all).await.is_err() {
                tracing::warn!(
                    "the last spans or lines of the access log were not written in time"
                );
            }
        }
    }
}

impl Ends {
    /// However often something is replaced, only those that run are remembered.
    fn forget_ended(&mut self) {
        self.exporting.retain(|task| !task.is_finished());
        self.writing.retain_mut(|done| done.try_recv() == Err(oneshot::error::TryRecvError::Empty));
    }
}
