//! What became of spans and lines of the access log.

use super::catalogue::names;
use super::data_plane::DataPlaneMetrics;
use super::page::Page;
use crate::access_log::LineMetrics;
use crate::trace::SpanMetrics;

/// Puts both on the page; `threads` dropped what found no room.
pub fn add_told(
    page: &mut Page,
    threads: &[&DataPlaneMetrics],
    spans: &SpanMetrics,
    lines: &LineMetrics,
) {
    page.single(&names::SPANS_EXPORTED, spans.exported.value());
    let no_room: u64 = threads.iter().map(|thread| thread.spans_dropped.value()).sum();
    let mut dropped = page.family(&names::SPANS_DROPPED);
    dropped.sample(&[("reason", "no_room")], no_room);
    dropped.sample(&[("reason", "refused")], spans.lost.value());
    page.single(&names::SPAN_EXPORTS_FAILED, spans.failures.value());
    page.single(&names::LINES_WRITTEN, lines.written.value());
    let no_room: u64 = threads.iter().map(|thread| thread.lines_dropped.value()).sum();
    let mut dropped = page.family(&names::LINES_DROPPED);
    dropped.sample(&[("reason", "no_room")], no_room);
    dropped.sample(&[("reason", "not_written")], lines.lost.value());
}
