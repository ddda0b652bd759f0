//! Particulars of a row: counts add up, rates are of the whole time, what was agreed on is the
//! first block's.

use super::merge_bounds;
use crate::LatencyUs;
use crate::record::{Block, Particulars};
use crate::run::Streaming;
use crate::throughput::{Flow, RttRange, ThroughputTotals};
use crate::tls::TlsFacts;

pub(super) fn merged(blocks: &[Block]) -> Particulars {
    Particulars {
        tls_facts: merged_tls(blocks),
        streaming: merged_streaming(blocks),
        throughput: merged_throughput(blocks),
        search: blocks.iter().find_map(|block| block.particulars.search.clone()),
    }
}

fn merged_tls(blocks: &[Block]) -> Option<TlsFacts> {
    let known = blocks.iter().filter_map(|block| block.particulars.tls_facts.as_ref());
    known.cloned().reduce(|a, b| TlsFacts {
        client_certificate: a.client_certificate || b.client_certificate,
        handshakes_full: a.handshakes_full.saturating_add(b.handshakes_full),
        handshakes_resumed: a.handshakes_resumed.saturating_add(b.handshakes_resumed),
        handshake_cpu_us: merge_bounds(a.handshake_cpu_us, b.handshake_cpu_us),
        ..a
    })
}

fn merged_streaming(blocks: &[Block]) -> Option<Streaming> {
    let known = || {
        blocks.iter().filter_map(|block| {
            Some((block.particulars.streaming.as_ref()?, block.traffic.duration_s))
        })
    };
    let total_s: f64 = known().map(|(_, duration_s)| duration_s).sum();
    let mean = |value: fn(&Streaming) -> f64| {
        let sum: f64 = known().map(|(streaming, s)| value(streaming) * s).sum();
        if total_s > 0.0 { sum / total_s } else { 0.0 }
    };
    let both = |a: LatencyUs, b| merge_bounds(Some(a), Some(b)).unwrap_or_default();
    let merged = known().map(|(streaming, _)| streaming.clone()).reduce(|a, b| Streaming {
        completed: a.completed.saturating_add(b.completed),
        failed: a.failed.saturating_add(b.failed),
        first_message_us: both(a.first_message_us, b.first_message_us),
        stream_us: both(a.stream_us, b.stream_us),
        ..a
    })?;
    Some(Streaming {
        messages_per_s: mean(|streaming| streaming.messages_per_s),
        message_bytes_per_s: mean(|streaming| streaming.message_bytes_per_s),
        ..merged
    })
}

fn merged_throughput(blocks: &[Block]) -> Option<ThroughputTotals> {
    let known = || blocks.iter().filter_map(|block| block.particulars.throughput.as_ref());
    let merged = known().cloned().reduce(|a, b| ThroughputTotals {
        sent: merged_flow(a.sent, b.sent),
        received: merged_flow(a.received, b.received),
        retransmits: a.retransmits.saturating_add(b.retransmits),
        ..a
    })?;
    let rtt_us = RttRange::over(known().map(|totals| totals.rtt_us));
    Some(ThroughputTotals { rtt_us, ..merged })
}

fn merged_flow(a: Option<Flow>, b: Option<Flow>) -> Option<Flow> {
    match (a, b) {
        (Some(a), Some(b)) => {
            Some(Flow::new(a.bytes.saturating_add(b.bytes), a.duration_s + b.duration_s))
        }
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Traffic;
    use crate::throughput::Direction;

    #[test]
    fn a_row_without_streams_or_tls_has_no_particulars() {
        assert_eq!(merged(&[Block::default(), Block::default()]), Particulars::default());
    }

    #[test]
    fn counts_add_up_and_rates_are_of_the_whole_time() {
        let streaming = |completed, messages_per_s, first_us| Streaming {
            kind: "push".to_owned(),
            completed,
            messages_per_s,
            first_message_us: LatencyUs {
                mean: Some(first_us),
                p50: Some(first_us),
                n: 10,
                ..LatencyUs::default()
            },
            ..Streaming::default()
        };
        let block = |streaming, duration_s| Block {
            traffic: Traffic { duration_s, ..Traffic::default() },
            particulars: Particulars { streaming: Some(streaming), ..Particulars::default() },
            ..Block::default()
        };
        let blocks = [block(streaming(3, 100.0, 40.0), 1.0), block(streaming(4, 200.0, 60.0), 3.0)];
        let row = merged(&blocks).streaming.unwrap();
        assert_eq!((row.completed, row.messages_per_s), (7, 175.0));
        let first = row.first_message_us;
        assert_eq!((first.mean, first.p50, first.n), (Some(50.0), None, 20));
    }

    #[test]
    fn throughput_is_all_bytes_over_all_time() {
        let totals = |bytes, duration_s, rtt: u64| ThroughputTotals {
            direction: Direction::Send,
            streams: 2,
            sent: Some(Flow::new(bytes, duration_s)),
            received: None,
            retransmits: 5,
            rtt_us: RttRange { min: rtt, mean: rtt as f64, max: rtt },
            congestion_control: "cubic".to_owned(),
        };
        let block = |totals| Block {
            particulars: Particulars { throughput: Some(totals), ..Particulars::default() },
            ..Block::default()
        };
        let row = merged(&[block(totals(1_000, 1.0, 100)), block(totals(5_000, 2.0, 300))]);
        let row = row.throughput.unwrap();
        assert_eq!(row.sent, Some(Flow::new(6_000, 3.0)));
        assert_eq!((row.received, row.retransmits), (None, 10));
        assert_eq!(row.rtt_us, RttRange { min: 100, mean: 200.0, max: 300 });
    }

    #[test]
    fn handshakes_of_all_blocks_are_counted() {
        let facts = |full, resumed| TlsFacts {
            version: "TLSv1_3".to_owned(),
            handshakes_full: full,
            handshakes_resumed: resumed,
            ..TlsFacts::default()
        };
        let block = |facts| Block {
            particulars: Particulars { tls_facts: Some(facts), ..Particulars::default() },
            ..Block::default()
        };
        let row = merged(&[block(facts(16, 0)), Block::default(), block(facts(4, 12))]);
        let row = row.tls_facts.unwrap();
        assert_eq!((row.handshakes_full, row.handshakes_resumed), (20, 12));
        assert_eq!(row.version, "TLSv1_3");
    }
}
