//! The questions of the table, each with what must be reached and what is hoped for.

use serde::Serialize;
use tollway_record::record::{Layout, Topology};

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    /// CPU of the subject's processes per request.
    Cpu,
    /// CPU of the process in the gateway's place per request.
    GatewayCpu,
    /// Requests answered in a second.
    Rate,
    /// Bits moved in a second.
    Throughput,
    /// What the mean of the answers' times is longer than the base's.
    AddedMean,
    /// Time added to the median.
    AddedP50,
    /// Time added to the 99th percentile, of all blocks together.
    AddedP99,
    P50,
    /// Of all blocks together.
    P99,
}

/// The promise of a question.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Bound {
    /// Ours over theirs: of what should be little at most, of rates at least.
    Ratio { must: f64, goal: f64 },
    /// At most 5 % and 1 ms more than theirs; less than theirs.
    Near,
    /// None: the figure is only shown.
    None,
}

/// A line of the table.
pub(super) struct Question {
    /// The experiment that answers it.
    pub(super) part: &'static str,
    /// What is done, in the table's words.
    pub(super) work: String,
    pub(super) case: &'static str,
    pub(super) network: Topology,
    pub(super) layout: Layout,
    pub(super) ours: &'static str,
    /// The competitors, of which the best counts.
    pub(super) theirs: &'static [&'static str],
    /// What added time is added to.
    pub(super) base: &'static str,
    pub(super) figure: Figure,
    pub(super) bound: Bound,
}

impl Figure {
    /// Whether much of it is good.
    pub(super) fn is_rate(self) -> bool {
        matches!(self, Self::Rate | Self::Throughput)
    }

    /// The quantile that only all blocks together have, where it is one.
    pub(super) fn merged_quantile(self) -> Option<f64> {
        matches!(self, Self::AddedP99 | Self::P99).then_some(0.99)
    }

    pub(super) fn is_added(self) -> bool {
        matches!(self, Self::AddedMean | Self::AddedP50 | Self::AddedP99)
    }

    pub(super) fn text(self, value: f64) -> String {
        match self {
            Self::Cpu | Self::GatewayCpu => format!("{value:.1} µs"),
            Self::Rate => format!("{value:.0}/s"),
            Self::Throughput => format!("{:.2} Gbit/s", value / 1e9),
            Self::AddedMean | Self::AddedP50 | Self::AddedP99 => format!("{value:.0} µs"),
            Self::P50 | Self::P99 => format!("{:.2} ms", value / 1e3),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu | Self::GatewayCpu => "cpu",
            Self::Rate => "rate",
            Self::Throughput => "throughput",
            Self::AddedMean => "added mean",
            Self::AddedP50 => "added p50",
            Self::AddedP99 => "added p99",
            Self::P50 => "p50",
            Self::P99 => "p99",
        }
    }
}

const PAIRS: &[&str] = &["haproxy", "haproxy:h1", "nginx"];
const FRONTS: &[&str] = &["haproxy:front", "nginx:front"];
const HAPROXY_FRONT: &[&str] = &["haproxy:front"];

/// All of them, in the table's order.
pub(super) fn questions() -> Vec<Question> {
    use Figure::{AddedMean, AddedP50, AddedP99, Cpu, Rate, Throughput};
    let near = |case, figure, must, goal| question("near", case, PAIRS, figure, must, goal);
    let front = |case, theirs, figure, must, goal| Question {
        ours: "tollway:front",
        ..question("fronts", case, theirs, figure, must, goal)
    };
    let pinned = Question {
        work: "http-max, pinned".to_owned(),
        layout: Layout::Pinned,
        ..near("http-max", Rate, 1.3, 1.8)
    };
    let mut all = vec![
        near("http-max", Cpu, 0.7, 0.5),
        near("http-max", Rate, 1.15, 1.35),
        pinned,
        near("grpc-max", Cpu, 0.6, 0.4),
        near("grpc-max", Rate, 1.2, 1.35),
        near("http-1000", Cpu, 0.65, 0.5),
        near("http-1000", AddedP50, 0.7, 0.45),
        near("http-1000", AddedMean, 0.7, 0.45),
        near("http-1000", AddedP99, 0.7, 0.45),
        near("http-bursts", Cpu, 0.7, 0.45),
        near("http-bursts", AddedP50, 0.7, 0.45),
        near("http-bursts", AddedP99, 0.7, 0.45),
        near("grpc-1000", Cpu, 0.65, 0.5),
        near("grpc-1000", AddedP50, 0.7, 0.4),
        near("grpc-1000", AddedP99, 0.7, 0.4),
        front("front-tls", FRONTS, Rate, 1.0, 1.3),
        front("front-tls", FRONTS, Cpu, 1.0, 0.77),
        front("front-mtls", FRONTS, Rate, 1.0, 1.3),
        front("front-mtls", FRONTS, Cpu, 1.0, 0.77),
        front("handshake-full", HAPROXY_FRONT, Rate, 1.0, 1.3),
        front("handshake-full", HAPROXY_FRONT, Cpu, 1.0, 0.77),
        front("handshake-resumed", HAPROXY_FRONT, Rate, 1.0, 1.3),
        front("handshake-resumed", HAPROXY_FRONT, Cpu, 1.0, 0.77),
    ];
    all.extend(gateway());
    all.push(question("bulk", "bulk", &["haproxy:tcp"], Throughput, 1.0, 1.2));
    all.push(Question {
        network: Topology::OtherNetwork,
        ..question("bulk", "bulk-far", &["direct"], Throughput, 0.95, 0.99)
    });
    for case in ["duties-max", "duties-1000"] {
        let asked = question("duties", case, &["tollway"], Cpu, 1.2, 1.1);
        all.push(Question { ours: "tollway:duties", ..asked });
        let asked = question("duties", case, &["tollway"], Cpu, 1.05, 1.02);
        let work = case.replace("duties", "steered");
        all.push(Question { ours: "tollway:steered", work, ..asked });
    }
    all.extend(far());
    all
}

fn question(
    part: &'static str,
    case: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    must: f64,
    goal: f64,
) -> Question {
    Question {
        part,
        work: case.to_owned(),
        case,
        network: Topology::SameNetwork,
        layout: Layout::Shared,
        ours: "tollway",
        theirs,
        base: "direct",
        figure,
        bound: Bound::Ratio { must, goal },
    }
}

/// Of a gateway alone: what the same sidecars take longer with it than without any.
fn gateway() -> impl Iterator<Item = Question> {
    use Figure::{AddedP50, GatewayCpu};
    let asked =
        [("gateway-max", GatewayCpu), ("gateway-1000", GatewayCpu), ("gateway-1000", AddedP50)];
    asked.into_iter().map(|(case, figure)| Question {
        network: Topology::OtherNetwork,
        base: "tollway:flat",
        ..question("gateway", case, &["tollway:haproxy-gateway"], figure, 1.0, 0.5)
    })
}

/// By loss and distance; the other paths between the sidecars are only shown.
fn far() -> Vec<Question> {
    let losses = [("far", "ways", "0"), ("far-0.1", "ways-0.1", "0.1"), ("far-1", "ways-1", "1")];
    let distances = [(Topology::OtherNetwork, 36), (Topology::OtherRegion, 138)];
    let as_set = [(Figure::P50, Bound::None), (Figure::P99, Bound::Near)];
    let others = [
        ("tollway:mesh-1", "1 connection"),
        ("tollway:mesh-4", "4 connections"),
        ("tollway:mesh-16", "16 connections"),
        ("tollway:pooled", "pooled"),
    ];
    let mut all = Vec::new();
    for (network, rtt_ms) in distances {
        for (far, ways, loss) in losses {
            let asked = |part, ours, way, figure| Question {
                work: format!("{rtt_ms} ms, {loss} % lost, {way}"),
                network,
                ours,
                bound: Bound::None,
                ..question(part, "far-1000", &["direct"], figure, 1.0, 1.0)
            };
            let set =
                |(figure, bound)| Question { bound, ..asked(far, "tollway", "as set", figure) };
            all.extend(as_set.map(set));
            all.extend(others.map(|(ours, way)| asked(ways, ours, way, Figure::P99)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_is_about_work_of_its_part() {
        for question in questions() {
            let text = match question.part {
                "near" => include_str!("near.yaml"),
                "fronts" => include_str!("fronts.yaml"),
                "duties" => include_str!("duties.yaml"),
                "gateway" => include_str!("gateway.yaml"),
                "bulk" => include_str!("bulk.yaml"),
                part if part.starts_with("ways") => include_str!("ways.yaml"),
                _ => include_str!("far.yaml"),
            };
            assert!(super::super::parts::PARTS.iter().any(|part| part.name == question.part));
            let case = format!("name: {}\n", question.case);
            let after = text.split(&case).nth(1);
            assert!(after.is_some(), "{}: {}", question.part, question.case);
            let subjects = text.lines().find(|line| line.starts_with("subjects:")).unwrap();
            for subject in question.theirs.iter().chain([&question.ours, &question.base]) {
                assert!(subjects.contains(subject), "{}: {subject}", question.part);
            }
        }
    }
}
