//! The task that gathers spans and sends them on: in batches, again after a failure, never more
//! than one batch in its hands. What comes meanwhile waits in the hand-off, and when that is full
//! the data threads drop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::connect::{Dialler, TrustError};
use super::endpoint::{TraceEndpoint, TraceHeaders};
use super::otlp::{Envelope, Spans};
use super::send::{Failure, Sender};
use crate::handoff::Batches;
use crate::metrics::Counter;

/// Time from the first span of a batch until it is sent.
const GATHER: Duration = Duration::from_secs(1);
/// A batch of so many is sent at once.
const BATCH_SPANS: u64 = 512;
/// Time for one export.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// First and longest pause after a failure; it doubles in between.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Why spans cannot be exported at all.
#[derive(Debug, Error)]
pub enum ExportError {
    #[error("cannot export spans to {endpoint}")]
    Trust { endpoint: TraceEndpoint, source: TrustError },
}

/// The settings of the exporter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceOptions {
    pub endpoint: TraceEndpoint,
    /// PEM file of the authorities that may vouch for the collector; the system's without.
    pub ca: Option<PathBuf>,
    pub headers: TraceHeaders,
    /// Attributes of the process beside its own; of the same key they replace those.
    pub resource: Vec<(String, String)>,
}

/// What the exporter counts.
#[derive(Default, Debug)]
pub struct SpanMetrics {
    pub exported: Counter,
    /// Refused by the collector, or given up at the end.
    pub lost: Counter,
    /// Exports that failed, whether or not they were tried again.
    pub failures: Counter,
}

/// The attributes of a process: its own, unless `given` has the key, and those that are given.
fn merged(own: &[(&'static str, String)], given: Vec<(String, String)>) -> Vec<(String, String)> {
    let is_given = |key: &str| given.iter().any(|(given, _)| given == key);
    let own = own.iter().filter(|(key, _)| !is_given(key));
    let own: Vec<_> = own.map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    own.into_iter().chain(given).collect()
}

/// Sends spans to a collector.
pub struct Exporter {
    sender: Sender,
    endpoint: TraceEndpoint,
    envelope: Envelope,
    metrics: Arc<SpanMetrics>,
    /// `None` before the first export.
    works: Option<bool>,
}

impl Exporter {
    /// An exporter for the process that `resource` describes. It connects with the first span.
    ///
    /// # Errors
    /// [`ExportError`] when the collector's certificate could not be checked.
    pub fn new(
        options: TraceOptions,
        resource: &[(&'static str, String)],
        metrics: Arc<SpanMetrics>,
    ) -> Result<Self, ExportError> {
        let TraceOptions { endpoint, ca, headers, resource: given } = options;
        let resource = merged(resource, given);
        let dialler = Dialler::new(endpoint.clone(), ca.as_deref())
            .map_err(|source| ExportError::Trust { endpoint: endpoint.clone(), source })?;
        let sender = Sender::new(&endpoint, headers, dialler);
        Ok(Self { sender, endpoint, envelope: Envelope::new(&resource), metrics, works: None })
    }

    /// Exports until every data thread has ended and what they left is sent; after `stop` nothing
    /// is tried twice. `write` makes a span of what a data thread has handed over.
    pub async fn run<T>(
        mut self,
        mut batches: Batches<T>,
        write: impl Fn(&T, &mut Spans),
        stop: CancellationToken,
    ) {
        loop {
            let spans = gather(&mut batches, &write).await;
            if spans.count() == 0 {
                return;
            }
            self.deliver(spans, &stop).await;
        }
    }

    async fn deliver(&mut self, spans: Spans, stop: &CancellationToken) {
        let count = spans.count();
        let request = self.envelope.request(&spans);
        drop(spans);
        let mut pause = FIRST_PAUSE;
        loop {
            let sent = timeout(EXPORT_TIMEOUT, self.sender.send(request.clone())).await;
            let slow = || Failure::Passing { reason: "it does not answer".to_owned(), wait: None };
            let (reason, wait) = match sent.unwrap_or_else(|_| Err(slow())) {
                Ok(refused) => return self.on_delivered(count, refused),
                Err(Failure::Final { reason }) => (reason, None),
                Err(Failure::Passing { reason, wait }) => (reason, Some(wait.unwrap_or(pause))),
            };
            self.on_failure(&reason);
            let Some(wait) = wait.filter(|_| !stop.is_cancelled()) else {
                return self.metrics.lost.add(count);
            };
            // A process that ends tries once more, at once.
            let _ = timeout(wait, stop.cancelled()).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    fn on_delivered(&mut self, count: u64, refused: u64) {
        self.metrics.exported.add(count.saturating_sub(refused));
        self.metrics.lost.add(refused);
        if self.works == Some(false) {
            info!(collector = %self.endpoint, "spans are exported again");
        }
        if refused > 0 {
            warn!(collector = %self.endpoint, refused, "the collector refused spans");
        }
        self.works = Some(true);
    }

    /// Logs it once, and not at every attempt.
    fn on_failure(&mut self, reason: &str) {
        self.metrics.failures.add(1);
        if self.works != Some(false) {
            warn!(collector = %self.endpoint, reason, "spans cannot be exported; requests go on");
        }
        self.works = Some(false);
    }
}

/// Waits for spans and a moment for more; none when there will be no more.
async fn gather<T>(batches: &mut Batches<T>, write: &impl Fn(&T, &mut Spans)) -> Spans {
    let mut next = batches.recv().await;
    let deadline = Instant::now() + GATHER;
    let mut spans = Spans::new();
    while let Some(batch) = next {
        spans.read_clock();
        for value in &batch {
            write(value, &mut spans);
        }
        if spans.count() >= BATCH_SPANS {
            break;
        }
        next = timeout_at(deadline, batches.recv()).await.ok().flatten();
    }
    spans
}
