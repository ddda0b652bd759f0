use super::*;

const FULL: &str = "\
60 runs in 5 blocks, 2.01 s measured each, about 162 s in all
1000 requests/s offered, 1024 bytes of payload, subjects direct and tollway
  same-network   http1       RTT    0.0 ms   16 connections  warm-up 0.20 s
  same-network   grpc-unary  RTT    0.0 ms   16 connections  warm-up 0.20 s
  other-network  http1       RTT    0.8 ms   16 connections  warm-up 0.20 s
  other-network  grpc-unary  RTT    0.8 ms   16 connections  warm-up 0.20 s
  other-region   http1       RTT  138.0 ms  276 connections  warm-up 0.83 s
  other-region   grpc-unary  RTT  138.0 ms   16 connections  warm-up 0.83 s
";

#[test]
fn the_full_plan_is_this() {
    assert_eq!(plan(demo(5, 165)).unwrap().to_string(), FULL);
}

#[test]
fn the_quick_plan_fits_its_budget_with_shorter_windows() {
    let plan = plan(demo(3, 45)).unwrap();
    assert_eq!((plan.runs.len(), plan.window), (36, Duration::from_millis(520)));
    assert!(plan.expected <= Duration::from_secs(45));
}

#[test]
fn blocks_hold_every_cell_once_and_turn_the_subjects_round() {
    let plan = plan(demo(3, 100)).unwrap();
    let told: Vec<String> = plan
        .runs
        .iter()
        .filter(|run| plan.cells[run.cell].placement.topology != Topology::OtherNetwork)
        .filter(|run| plan.cells[run.cell].protocol == Protocol::Http1)
        .map(|run| format!("{}.{} {}", run.block, run.position, plan.cells[run.cell].id()))
        .collect();
    assert_eq!(
        told,
        [
            "0.0 same-network/http1/direct",
            "0.1 same-network/http1/tollway",
            "0.8 other-region/http1/direct",
            "0.9 other-region/http1/tollway",
            "1.0 same-network/http1/tollway",
            "1.1 same-network/http1/direct",
            "1.8 other-region/http1/tollway",
            "1.9 other-region/http1/direct",
            "2.0 same-network/http1/direct",
            "2.1 same-network/http1/tollway",
            "2.8 other-region/http1/direct",
            "2.9 other-region/http1/tollway",
        ]
    );
    for block in 0..3 {
        let mut cells: Vec<usize> =
            plan.runs.iter().filter(|run| run.block == block).map(|run| run.cell).collect();
        cells.sort_unstable();
        assert_eq!(cells, (0..12).collect::<Vec<_>>());
    }
}

#[test]
fn windows_stop_growing_when_they_say_enough() {
    let plan = plan(demo(5, 3_600)).unwrap();
    assert_eq!(plan.window, WINDOW_MAX);
    assert!(plan.expected < Duration::from_secs(200));
    let samples = WINDOW_MAX.as_secs_f64() * 1_000.0 * 5.0;
    assert!(samples * 0.01 >= 100.0, "p99 needs 100 samples beyond it");
}

#[test]
fn a_budget_that_is_too_small_says_what_it_takes() {
    let error = plan(demo(5, 20)).unwrap_err();
    let PlanError::Budget { needed, .. } = error.clone() else { panic!("{error}") };
    assert!(error.to_string().contains(&format!("allow {} s", needed.as_secs() + 1)), "{error}");
    assert!(plan(demo(5, needed.as_secs() + 1)).is_ok());
}

#[test]
fn an_empty_workload_is_refused_by_name() {
    let error = plan(Workload { protocols: Vec::new(), ..demo(5, 100) }).unwrap_err();
    assert_eq!(error.to_string(), "nothing to measure: the list of protocols is empty");
    assert!(plan(Workload { blocks: 0, ..demo(5, 100) }).is_err());
}

#[test]
fn only_http1_needs_connections_for_what_is_on_the_way() {
    let far = Duration::from_millis(138);
    assert_eq!(connections_for(Protocol::Http1, 16, 1_000, far), 276);
    assert_eq!(connections_for(Protocol::Http1, 16, 1_000, Duration::from_micros(800)), 16);
    assert_eq!(connections_for(Protocol::GrpcUnary, 16, 1_000, far), 16);
    assert_eq!(connections_for(Protocol::Http1, 500, 1_000, far), 500);
}

fn demo(blocks: u32, budget_s: u64) -> Workload {
    let placement = |topology, rtt_us| Placement { topology, rtt: Duration::from_micros(rtt_us) };
    Workload {
        placements: vec![
            placement(Topology::SameNetwork, 0),
            placement(Topology::OtherNetwork, 800),
            placement(Topology::OtherRegion, 138_000),
        ],
        protocols: vec![Protocol::Http1, Protocol::GrpcUnary],
        subjects: vec![SubjectKind::Direct, SubjectKind::Tollway],
        rate_rps: 1_000,
        connections: 16,
        payload_bytes: 1_024,
        blocks,
        budget: Duration::from_secs(budget_s),
    }
}
