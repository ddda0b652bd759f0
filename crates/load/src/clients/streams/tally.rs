//! What became of streams, beside the latencies of messages that the recorder has.

use tollway_record::Histogram;
use tollway_record::run::Streaming;
use tollway_record::traffic::Traffic;

use super::StreamKind;

/// Streams that were opened within the window.
#[derive(Default)]
pub(crate) struct Tally {
    completed: u64,
    failed: u64,
    first_message: Histogram,
    whole: Histogram,
}

impl Tally {
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

    /// What the result says; `shape` is what was asked for.
    pub(crate) fn told(&self, kind: StreamKind, traffic: &Traffic, shape: Streaming) -> Streaming {
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
