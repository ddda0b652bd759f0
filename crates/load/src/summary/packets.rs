//! A run of packets for a person: how many came out, what each took.

use std::fmt::{Result, Write as _};

use tollway_record::RunResult;

use super::numbers::{grouped, significant, window};

pub(super) fn write_packets(text: &mut String, result: &RunResult) -> Result {
    let traffic = &result.traffic;
    writeln!(text, "{}", result.target)?;
    writeln!(text, "  vxlan, frames of {} bytes", grouped(result.payload_bytes))?;
    writeln!(text, "  window    {}", window(traffic.duration_s, result.warm_up_s))?;
    writeln!(text, "  came out  {} packets/s", significant(traffic.achieved_rps))?;
    if traffic.requests > 0 {
        let each_ns = traffic.duration_s * 1e9 / traffic.requests as f64;
        writeln!(text, "            {} ns for each", significant(each_ns))?;
    }
    writeln!(
        text,
        "  packets   {} came out, {} were lost",
        grouped(traffic.requests),
        grouped(traffic.errors)
    )
}

#[cfg(test)]
mod tests {
    use tollway_record::Traffic;
    use tollway_record::record::{Arrival, Protocol};

    use super::*;
    use crate::summary::summary;

    #[test]
    fn packets_are_summarised_on_a_few_lines() {
        let traffic = Traffic {
            duration_s: 2.0,
            requests: 16_000_000,
            errors: 12,
            achieved_rps: 8e6,
            ..Traffic::default()
        };
        let result = RunResult {
            target: "ag → bg".into(),
            protocol: Protocol::Vxlan,
            arrival: Arrival::Packets,
            payload_bytes: 114,
            warm_up_s: 0.5,
            traffic,
            ..RunResult::default()
        };
        let expected = "\
ag → bg
  vxlan, frames of 114 bytes
  window    2.00 s after 500 ms of warm-up
  came out  8,000,000 packets/s
            125 ns for each
  packets   16,000,000 came out, 12 were lost
";
        assert_eq!(summary(&result), expected);
    }
}
