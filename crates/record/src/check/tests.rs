use super::*;
use crate::Histogram;
use crate::record::{
    Block, Conditions, Cost, Layout, Link, LinkKind, RttUs, Throttling, Tls, Topology,
};
use crate::traffic::Traffic;

#[test]
fn a_sound_row_raises_no_doubt() {
    assert_eq!(doubts(|_| {}), Vec::<String>::new());
}

#[test]
fn every_doubt_is_raised_with_its_figures() {
    let check = |spoil: fn(&mut Row), expected: &str| {
        let found = doubts(spoil);
        assert!(found.iter().any(|doubt| doubt.contains(expected)), "{found:?} lack {expected:?}");
    };
    check(|row| row.traffic.requests = 0, "no request was answered; there is nothing");
    check(|row| row.blocks[1].traffic.requests = 0, "no request was answered in 1 of 2 blocks");
    check(|row| row.traffic.requests += 1, "2001 requests in the row, 2000 in its blocks");
    check(|row| row.traffic.errors = 20, "20 of 2020 requests did not succeed");
    check(|row| row.traffic.achieved_rps = 700.0, "achieved 700 of 1000 requests/s offered");
    check(
        |row| row.traffic.client_limits = vec![ClientLimit::LateSends { late_fraction: 0.034 }],
        "client-limited: 3.4 % of the sends were late",
    );
    check(
        |row| {
            row.blocks[0].traffic.client_limits =
                vec![ClientLimit::LateSends { late_fraction: 0.1 }];
        },
        "the limit in 1 of 2 blocks",
    );
    check(
        |row| row.conditions.connections = 16,
        "16 HTTP/1.1 connections over 138000 µs carry 116",
    );
    check(
        |row| {
            row.conditions.arrival = Arrival::Closed;
            row.conditions.connections = 138;
        },
        "carry 1000 requests/s at most, which is what was seen",
    );
    check(|row| link(row).rtt_measured_us.p50 = 250_000.0, "was to take 138000 µs and took 250000");
    check(|row| row.traffic.latency_us.p50 = Some(900.0), "which cannot be");
    check(|row| row.cost.throttled_us = Some(4_500), "CPU quota for 4.5 ms");
    check(|row| row.blocks[1].steal_fraction = Some(0.08), "took away up to 8 %");
    check(|row| row.blocks[1].calibration_us = Some(1_300.0), "speed changed by 30 %");
}

#[test]
fn sixteen_connections_over_138_ms_carry_116_requests_per_second() {
    assert_eq!(rate_bound_rps(16, 138_000.0).round(), 116.0);
    // Ten at once on each of 160 connections are ten times as many.
    let many = doubts(|row| {
        row.conditions.arrival = Arrival::Closed;
        row.conditions.protocol = Protocol::GrpcStream;
        row.conditions.in_flight_per_connection = Some(10);
        row.traffic.achieved_rps = 1_150.0;
    });
    assert!(!many.iter().any(|doubt| doubt.contains("shows the link")), "{many:?}");
}

#[test]
fn a_quota_names_who_was_held_back_and_how_often() {
    let found = doubts(|row| {
        let gateway = Throttling { periods: 40, throttled_periods: 31, throttled_us: 2_400_000 };
        let sidecar = Throttling { periods: 40, throttled_periods: 1, throttled_us: 900 };
        row.cost.throttled_us = Some(2_400_900);
        let throttling = [("gateway", gateway), ("sidecar", sidecar)];
        row.cost.throttling = throttling.map(|(name, of)| (name.to_owned(), of)).into();
    });
    let expected = "other-region/http1/direct: held back by a CPU quota for 2400.9 ms, gateway in \
                    31 of 40 periods; the tail shows the quota";
    assert_eq!(found, [expected]);
}

#[test]
fn disturbed_runs_that_stayed_raise_a_doubt() {
    let found =
        doubts(|row| row.blocks[1].outside_gate = vec!["others used 0.5 processors".into()]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("1 of 2 runs were disturbed") && found[0].contains("others used"));
}

#[test]
fn in_closed_loop_rate_times_latency_is_the_number_of_connections() {
    let check = |rate_rps: f64, doubted: bool| {
        let found = doubts(|row| {
            row.conditions.arrival = Arrival::Closed;
            row.conditions.link = None;
            row.traffic.requested_rps = None;
            row.traffic.achieved_rps = rate_rps;
        });
        // 160 connections at 138.1 ms.
        let is_reported = found.iter().any(|doubt| doubt.contains("do not belong together"));
        assert_eq!(is_reported, doubted, "{rate_rps}: {found:?}");
    };
    check(1_158.0, false);
    check(1_100.0, false);
    check(2_316.0, true);
    check(500.0, true);
}

fn link(row: &mut Row) -> &mut Link {
    row.conditions.link.as_mut().unwrap()
}

fn doubts(spoil: impl Fn(&mut Row)) -> Vec<String> {
    let mut row = sound_row();
    spoil(&mut row);
    check_row(&row)
}

fn sound_row() -> Row {
    let conditions = Conditions {
        id: "other-region/http1/direct".to_owned(),
        case: String::new(),
        subject: "direct".to_owned(),
        variant: "plain".to_owned(),
        protocol: Protocol::Http1,
        tls: Tls::Plain,
        hops: 0,
        topology: Topology::OtherRegion,
        layout: Layout::Shared,
        arrival: Arrival::OpenUniform,
        connections: 160,
        in_flight_per_connection: None,
        payload_bytes: 1_024,
        link: Some(Link {
            kind: LinkKind::Tun,
            rtt_asked_us: Some(138_000.0),
            rtt_measured_us: RttUs::from_probes(&[138_000.0]).unwrap(),
            jitter_us: 0.0,
            loss_pct: 0.0,
            rate_bps: None,
        }),
        limits: None,
    };
    let block = |number| {
        let mut latencies = Histogram::new();
        latencies.record_n(138_100_000, 1_000);
        let mut traffic = Traffic {
            requested_rps: Some(1_000.0),
            achieved_rps: 1_000.0,
            duration_s: 1.0,
            requests: 1_000,
            ..Traffic::default()
        };
        traffic.set_latencies(&latencies);
        let cost = Cost { throttled_us: Some(0), ..Cost::default() };
        let calibration_us = Some(1_000.0);
        Block { block: number, traffic, cost, calibration_us, ..Block::default() }
    };
    Row::from_blocks(conditions, vec![block(0), block(1)]).unwrap()
}
