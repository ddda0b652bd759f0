//! The outcome of streams; the recorder has the latencies of their messages.

use tollway_record::Histogram;
use tollway_record::run::Streaming;
use tollway_record::traffic::Traffic;

use super::StreamKind;

/// Streams that were opened within the window.
pub(crate) struct Tally {
    /// So many hold all messages of the run. More would leave some half full, which their peer
    /// never ends.
    limit: u64,
    opened: u64,
    completed: u64,
    failed: u64,
    first_message: Histogram,
    whole: Histogram,
}

impl Tally {
    /// At most `limit` streams are opened in place of which none failed.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            opened: 0,
            completed: 0,
            failed: 0,
            first_message: Histogram::default(),
            whole: Histogram::default(),
        }
    }

    /// Whether another stream may be opened. What a failed one would still have carried needs one
    /// in its place.
    pub(crate) fn takes_streams(&self) -> bool {
        self.opened < self.limit.saturating_add(self.failed)
    }

    /// A stream was opened within the window.
    pub(crate) fn stream_opened(&mut self) {
        self.opened += 1;
    }

    /// A stream that was opened within the window has come to its end.
    pub(crate) fn stream_ended(
        &mut self,
        opened_ns: u64,
        first_ns: Option<u64>,
        now_ns: u64,
        in_order: bool,
    ) {
        if let Some(first_ns) = first_ns {
            self.first_message.record(first_ns.saturating_sub(opened_ns));
        }
        if in_order {
            self.completed += 1;
            self.whole.record(now_ns.saturating_sub(opened_ns));
        } else {
            self.failed += 1;
        }
    }

    /// The figures for the result; `shape` is the requested one.
    pub(crate) fn summary(
        &self,
        kind: StreamKind,
        traffic: &Traffic,
        shape: Streaming,
    ) -> Streaming {
        let messages_per_call =
            if kind.is_by_message() { 1.0 } else { shape.messages_per_stream as f64 };
        let messages_per_s = traffic.achieved_rps * messages_per_call;
        Streaming {
            kind: kind.as_str().to_owned(),
            completed: self.completed,
            failed: self.failed,
            messages_per_s,
            message_bytes_per_s: messages_per_s * shape.message_bytes as f64,
            first_message_us: self.first_message.summary(),
            stream_us: self.whole.summary(),
            ..shape
        }
    }
}
