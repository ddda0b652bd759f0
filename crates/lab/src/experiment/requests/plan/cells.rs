//! The rows of a plan: each case of a scenario with its network, subject and layout.

use std::time::Duration;

use tollway_record::record::{Layout, Protocol};

use super::{Cell, CellArrival, Circumstances};
use crate::scenario::{ArrivalSpec, Case, MessagesSpec, Scenario};
use crate::subject::Leg;

/// Round trips of load before a window: connections that were idle open their congestion windows
/// again, and what queued meanwhile has to be worked off.
const WARM_UP_ROUND_TRIPS: u32 = 6;

pub(super) fn cells(scenario: &Scenario, here: &Circumstances<'_>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (network, spec) in scenario.networks.iter().enumerate() {
        for case in &scenario.cases {
            let Some(limits) = (here.limits)(case) else { continue };
            let here_too = case.networks.as_ref().map_or(network == 0, |names| {
                names.iter().any(|name| name.value == spec.name.value)
            });
            if !here_too {
                continue;
            }
            for (name, arrival) in arrivals(case) {
                for &layout in case.layouts.iter().filter(|&&l| l == Layout::Shared || here.can_pin)
                {
                    let leg = Leg { network, protocol: case.protocol, tls: case.tls.value };
                    let rtt =
                        spec.link.map_or(Duration::ZERO, |link| Duration::from_micros(link.rtt_us));
                    let wanted = |label: &String| {
                        case.subjects
                            .as_ref()
                            .is_none_or(|names| names.iter().any(|n| n.value == *label))
                    };
                    let subjects = here.subjects.iter().enumerate();
                    for (subject, label) in subjects.filter(|(_, label)| wanted(label)) {
                        if !(here.carries)(subject, &leg) {
                            continue;
                        }
                        let pinned = if layout == Layout::Pinned { "/pinned" } else { "" };
                        let window = case.window_s.unwrap_or(here.length.window_s);
                        cells.push(Cell {
                            id: format!("{}/{name}/{label}{pinned}", spec.topology.value),
                            case: name.clone(),
                            subject,
                            leg,
                            topology: spec.topology.value,
                            layout,
                            phase: usize::from(matches!(
                                arrival,
                                CellArrival::ShareOfSlowest { .. }
                            )),
                            arrival: arrival.clone(),
                            connections: case.connections.value,
                            streams: case.streams,
                            messages: messages(case),
                            handshakes: case.handshakes,
                            payload_bytes: case.payload_bytes,
                            answer_bytes: case.answer_bytes,
                            actors: case.actors,
                            limits,
                            rtt,
                            warm_up: Duration::from_secs_f64(here.length.warm_up_s)
                                .max(rtt * WARM_UP_ROUND_TRIPS),
                            window: Duration::from_secs_f64(window),
                        });
                    }
                }
            }
        }
    }
    cells
}

/// Streams without further options are the default's.
fn messages(case: &Case) -> Option<MessagesSpec> {
    let said = case.messages.as_ref().map(|messages| messages.value);
    (case.protocol == Protocol::GrpcStream).then(|| said.unwrap_or_default())
}

/// The rows of a case by name.
fn arrivals(case: &Case) -> Vec<(String, CellArrival)> {
    let name = case.name.value.clone();
    match &case.arrival {
        ArrivalSpec::Open(open) => {
            vec![(name, CellArrival::Open { rate_rps: open.rate_rps.value, spacing: open.spacing })]
        }
        ArrivalSpec::Steps(steps) => {
            let arrival = |&rate_rps| CellArrival::Open { rate_rps, spacing: steps.spacing };
            case.row_names().into_iter().zip(steps.rates_rps.value.iter().map(arrival)).collect()
        }
        ArrivalSpec::ShareOfSlowest(share) => {
            let (of, spacing) = (share.case.value.clone(), share.spacing);
            vec![(
                name,
                CellArrival::ShareOfSlowest { case: of, share: share.share.value, spacing },
            )]
        }
        ArrivalSpec::Closed => vec![(name, CellArrival::Closed)],
        ArrivalSpec::Search(search) => {
            vec![(name, CellArrival::Search(search.slo.value.clone()))]
        }
        ArrivalSpec::Flow(flow) => vec![(name, CellArrival::Flow(flow.direction))],
        ArrivalSpec::Idle => vec![(name, CellArrival::Idle)],
    }
}
