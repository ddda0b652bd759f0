use tollway_record::record::Tls;

use super::*;
use crate::scenario::{BUILT_IN, LengthName, ScenarioKind, built_in};

const FULL: &str = "\
60 runs in 5 blocks, about 3 min in all
  same-network   http1       1000 requests/s on 16 connections, 2.01 s each: direct, tollway
  same-network   grpc-unary  1000 requests/s on 16 connections, 2.01 s each: direct, tollway
  other-network  http1       1000 requests/s on 16 connections, 2.01 s each: direct, tollway
  other-network  grpc-unary  1000 requests/s on 16 connections, 2.01 s each: direct, tollway
  other-region   http1       1000 requests/s on 276 connections, 2.01 s each: direct, tollway
  other-region   grpc-unary  1000 requests/s on 16 connections, 2.01 s each: direct, tollway
";

#[test]
fn the_demo_s_plan_is_this() {
    assert_eq!(demo(5, 176.0).unwrap().to_string(), FULL);
}

#[test]
fn the_quick_plan_fits_its_budget_with_shorter_windows() {
    let plan = demo(3, 45.0).unwrap();
    assert_eq!((plan.runs.len(), plan.cells[0].window), (36, Duration::from_millis(530)));
    assert!(plan.expected <= Duration::from_secs(45) + START_ESTIMATE);
}

#[test]
fn blocks_hold_every_cell_once_and_rotate_the_subjects() {
    let plan = demo(3, 100.0).unwrap();
    let reported: Vec<String> = plan
        .runs
        .iter()
        .filter(|run| plan.cells[run.cell].topology != Topology::OtherNetwork)
        .filter(|run| plan.cells[run.cell].leg.protocol == Protocol::Http1)
        .map(|run| format!("{}.{} {}", run.block, run.position, plan.cells[run.cell].id))
        .collect();
    assert_eq!(
        reported,
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
fn a_budget_that_is_too_small_names_the_time_needed() {
    let error = demo(5, 20.0).unwrap_err();
    let PlanError::Budget { needed, .. } = error.clone() else { panic!("{error}") };
    let enough = needed.as_secs() + 1;
    assert!(error.to_string().contains(&format!("allow {enough} s")), "{error}");
    assert!(demo(5, enough as f64).is_ok());
}

#[test]
fn what_another_case_finds_out_comes_last() {
    let plan = of("max-rate", |_, _| true, true);
    let phases: Vec<usize> = plan.runs.iter().map(|run| plan.cells[run.cell].phase).collect();
    assert!(phases.is_sorted() && phases.contains(&1));
    let first = plan.runs.iter().position(|run| plan.cells[run.cell].phase == 1).unwrap();
    assert_eq!(plan.runs[first].position, 0, "each phase counts its own places");
}

#[test]
fn layouts_subjects_and_limits_that_are_not_possible_have_no_cell() {
    let all = of("max-rate", |_, _| true, true);
    let ids = |plan: &Plan| plan.cells.iter().map(|cell| cell.id.clone()).collect::<Vec<_>>();
    assert!(ids(&all).contains(&"same-network/http-max/tollway/pinned".to_owned()));
    let unpinned = of("max-rate", |_, _| true, false);
    assert!(ids(&unpinned).iter().all(|id| !id.ends_with("/pinned")));
    let http = of("max-rate", |subject, leg| subject == 0 || leg.protocol == Protocol::Http1, true);
    assert!(!ids(&http).contains(&"same-network/grpc-max/tollway".to_owned()));
    assert!(ids(&http).contains(&"same-network/http-max/tollway".to_owned()));
}

#[test]
fn steps_are_rows_of_their_own() {
    let plan = of("load-steps", |_, _| true, true);
    let rates: Vec<&str> = plan
        .cells
        .iter()
        .filter(|cell| cell.subject == 0 && cell.leg.protocol == Protocol::Http1)
        .map(|cell| cell.case.as_str())
        .collect();
    assert_eq!(rates, ["http-120", "http-500", "http-1000", "http-1500", "http-2000"]);
}

#[test]
fn every_built_in_scenario_has_a_plan_in_each_length() {
    for known in BUILT_IN.iter().filter(|known| known.kind == ScenarioKind::Requests) {
        for length in [LengthName::Quick, LengthName::Usual, LengthName::Full] {
            let scenario = scenario(known.name);
            let plan = plan_of(&scenario, scenario.length(length), |_, _| true, true).unwrap();
            assert!(!plan.cells.is_empty(), "{}", known.name);
            let quick = length == LengthName::Quick;
            let limit = Duration::from_secs(if quick { 240 } else { 5 * 3600 });
            assert!(plan.expected < limit, "{}: {:?}", known.name, plan.expected);
        }
    }
}

#[test]
fn only_http1_needs_connections_for_what_is_on_the_way() {
    let far = Duration::from_millis(138);
    assert_eq!(connections_for(Protocol::Http1, 16, 1_000.0, far), 276);
    assert_eq!(connections_for(Protocol::Http1, 16, 1_000.0, Duration::from_micros(800)), 16);
    assert_eq!(connections_for(Protocol::GrpcUnary, 16, 1_000.0, far), 16);
    assert_eq!(connections_for(Protocol::Http1, 500, 1_000.0, far), 500);
}

fn scenario(name: &str) -> Scenario {
    serde_saphyr::from_str(built_in(name).unwrap().text).unwrap()
}

fn of(name: &str, carries: impl Fn(usize, &Leg) -> bool, can_pin: bool) -> Plan {
    let scenario = scenario(name);
    plan_of(&scenario, scenario.length(LengthName::Quick), carries, can_pin).unwrap()
}

fn plan_of(
    scenario: &Scenario,
    length: Length,
    carries: impl Fn(usize, &Leg) -> bool,
    can_pin: bool,
) -> Result<Plan, PlanError> {
    let subjects: Vec<String> = scenario.subjects.iter().map(|name| name.value.clone()).collect();
    let circumstances = Circumstances {
        subjects: &subjects,
        carries: &|subject, leg| {
            assert!(leg.tls == Tls::Plain || leg.protocol == Protocol::Http1);
            carries(subject, leg)
        },
        limits: &|_| Some(None),
        can_pin,
        length,
        spent: Duration::ZERO,
    };
    plan(scenario, &circumstances)
}

/// The scenario of the demo in so many blocks and seconds.
fn demo(blocks: u32, budget_s: f64) -> Result<Plan, PlanError> {
    let scenario = scenario("cross-network");
    let length = scenario.length(LengthName::Usual);
    let length = Length { blocks, budget_s: Some(budget_s), ..length };
    plan_of(&scenario, length, |_, _| true, true)
}
