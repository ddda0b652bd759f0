//! Metrics of spans and access log lines: exported, written and lost.

use super::catalogue::names;
use super::data_plane::DataPlaneMetrics;
use super::page::Page;
use crate::access_log::LineMetrics;
use crate::trace::SpanMetrics;

/// Adds the metrics of spans and access log lines to the page. Each of `threads` counts what it
/// dropped because the queue was full.
pub fn add_exports(
    page: &mut Page,
    threads: &[&DataPlaneMetrics],
    spans: &SpanMetrics,
    lines: &LineMetrics,
) {
    page.single(&names::SPANS_EXPORTED, spans.exported.value());
    let queue_full: u64 = threads.iter().map(|thread| thread.spans_dropped.value()).sum();
    let mut dropped = page.family(&names::SPANS_DROPPED);
    dropped.sample(&[("reason", "queue_full")], queue_full);
    dropped.sample(&[("reason", "refused")], spans.lost.value());
    page.single(&names::SPAN_EXPORT_FAILURES, spans.failures.value());
    page.single(&names::ACCESS_LOG_LINES, lines.written.value());
    let queue_full: u64 =
        threads.iter().map(|thread| thread.access_log_lines_dropped.value()).sum();
    let mut dropped = page.family(&names::ACCESS_LOG_LINES_DROPPED);
    dropped.sample(&[("reason", "queue_full")], queue_full);
    dropped.sample(&[("reason", "write_failed")], lines.lost.value());
}
