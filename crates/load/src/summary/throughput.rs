//! A throughput run for people: rates by direction and stream, and the kernel's figures.

use std::fmt::{Result, Write as _};

use tollway_record::RunResult;
use tollway_record::throughput::{Direction, Flow, Interval, StreamTotal, Throughput};

use super::numbers::{bit_rate, bytes, counted, grouped, window};

pub(super) fn write_throughput(
    text: &mut String,
    result: &RunResult,
    throughput: &Throughput,
) -> Result {
    writeln!(text, "{}", result.target)?;
    let direction = match throughput.direction {
        Direction::Send => "sending",
        Direction::Receive => "receiving",
        Direction::Both => "both ways",
    };
    let streams = counted(throughput.streams.len() as u64, "stream");
    let at_a_time = bytes(throughput.write_bytes as f64);
    writeln!(text, "  tcp, {direction}, {streams}, {at_a_time} at a time")?;
    writeln!(text, "  {}\n", window(result.traffic.duration_s, result.warm_up_s))?;
    writeln!(text, "  {:<9}{:>13}{:>11}{:>9}{:>15}", "stream", "rate", "bytes", "resent", "rtt")?;
    for stream in &throughput.streams {
        write_stream(text, stream)?;
    }
    for (name, flow) in [("sent", throughput.sent), ("received", throughput.received)] {
        if let Some(Flow { bytes: count, bits_per_s, .. }) = flow {
            writeln!(text, "  {name:<9}{:>13}{:>11}", bit_rate(bits_per_s), bytes(count as f64))?;
        }
    }
    let generator = &result.generator;
    let busy = if result.traffic.duration_s > 0.0 {
        generator.cpu_us / result.traffic.duration_s / 1e4
    } else {
        0.0
    };
    writeln!(text, "\n  generator used {busy:.0} % of a processor")
}

fn write_stream(text: &mut String, stream: &StreamTotal) -> Result {
    let arrow = if stream.sends { "→" } else { "←" };
    write!(
        text,
        "  {:<9}{:>13}{:>11}",
        format!("{} {arrow}", stream.stream),
        bit_rate(stream.flow.bits_per_s),
        bytes(stream.flow.bytes as f64)
    )?;
    if stream.sends {
        let rtt = format!("{} µs", grouped(stream.rtt_us.mean.round() as u64));
        write!(text, "{:>9}{rtt:>15}", grouped(stream.retransmits))?;
    }
    writeln!(text)
}

/// One line for an interval, while the run goes on.
#[must_use]
pub fn interval_line(interval: &Interval) -> String {
    let mut line = format!("{:>6.1} s", interval.end_s);
    for (sends, arrow) in [(true, "→"), (false, "←")] {
        if interval.streams.iter().any(|sample| sample.sends == sends) {
            let _ = write!(line, "  {arrow} {:>12}", bit_rate(interval.sum(sends).bits_per_s));
        }
    }
    let senders = || interval.streams.iter().filter(|sample| sample.sends);
    if let Some(rtt_us) = senders().map(|sample| sample.rtt_us).max() {
        let window = senders().map(|sample| sample.cwnd_bytes).max().unwrap_or(0);
        let resent = interval.retransmits();
        let _ = write!(line, "  {resent} resent  cwnd {}  rtt {rtt_us} µs", bytes(window as f64));
    }
    if interval.omitted {
        line.push_str("  (warm-up)");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_record::throughput::StreamSample;

    #[test]
    fn an_interval_is_one_line() {
        let sample = |sends, bytes| StreamSample {
            stream: 1,
            sends,
            flow: Flow::new(bytes, 1.0),
            retransmits: 2,
            cwnd_bytes: 1_400_000,
            rtt_us: 57,
            ..StreamSample::default()
        };
        let interval = Interval {
            start_s: 1.0,
            end_s: 2.0,
            omitted: true,
            streams: vec![sample(true, 1_000_000_000), sample(false, 500_000_000)],
        };
        assert_eq!(
            interval_line(&interval),
            "   2.0 s  →  8.00 Gbit/s  ←  4.00 Gbit/s  4 resent  cwnd 1.40 MB  rtt 57 µs  (warm-up)"
        );
    }
}
