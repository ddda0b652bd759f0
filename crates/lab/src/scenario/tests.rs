use super::*;
use crate::subject::Catalogue;

const SCHEMA: &str = include_str!("../../../../schema/tollway-scenario-1.schema.json");

/// What `cargo xtask proof speed` runs.
const OF_THE_PROOF: [&str; 9] = [
    include_str!("../../../../xtask/src/proof/speed/bulk.yaml"),
    include_str!("../../../../xtask/src/proof/speed/duties.yaml"),
    include_str!("../../../../xtask/src/proof/speed/far.yaml"),
    include_str!("../../../../xtask/src/proof/speed/fronts.yaml"),
    include_str!("../../../../xtask/src/proof/speed/gateway.yaml"),
    include_str!("../../../../xtask/src/proof/speed/limits.yaml"),
    include_str!("../../../../xtask/src/proof/speed/memory.yaml"),
    include_str!("../../../../xtask/src/proof/speed/near.yaml"),
    include_str!("../../../../xtask/src/proof/speed/ways.yaml"),
];

#[test]
fn every_scenario_of_the_proof_of_speed_fits_schema_and_check() {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for text in OF_THE_PROOF {
        let value: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        let faults: Vec<String> = validator.iter_errors(&value).map(|f| f.to_string()).collect();
        let scenario: Scenario = serde_saphyr::from_str(text).unwrap();
        assert!(faults.is_empty(), "{}: {faults:#?}", scenario.name.value);
        assert_eq!(scenario.check(&Catalogue::built_in()), [], "{}", scenario.name.value);
    }
}

#[test]
fn every_built_in_scenario_fits_schema_and_check() {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for known in BUILT_IN.iter().filter(|known| known.kind == ScenarioKind::Requests) {
        let value: serde_json::Value = serde_saphyr::from_str(known.text).unwrap();
        let faults: Vec<String> = validator.iter_errors(&value).map(|f| f.to_string()).collect();
        assert!(faults.is_empty(), "{}: {faults:#?}", known.name);
        let scenario: Scenario = serde_saphyr::from_str(known.text).unwrap();
        assert_eq!(scenario.check(&Catalogue::built_in()), [], "{}", known.name);
        // Two blocks leave an interval one degree of freedom: too wide for a verdict.
        assert!(scenario.lengths.quick.value.blocks >= 3, "{}", known.name);
    }
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let check = |from: &str, to: &str| {
        let text = built_in("cpu-limits").unwrap().text;
        assert!(text.contains(from), "{from}");
        let text = text.replacen(from, to, 1);
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert!(!validator.is_valid(&value), "{to} is taken by the schema");
        assert!(serde_saphyr::from_str::<Scenario>(&text).is_err(), "{to} is taken by the reader");
    };
    check("purpose:", "porpoise:");
    check("protocol: http1", "protocol: http");
    check("arrival: closed", "arrival: open");
    check("{cpu_millicores: 150}", "{cpu_millicores: 150, cores: 2}");
    check("quick: {blocks: 3,", "quick: {block: 3,");
    check("arrival: closed", "arrival: closed\n    actors: {ask: alarm}");
    check("arrival: closed", "arrival: {flow: {direction: away}}");
    check("arrival: closed", "arrival: closed\n    messages: {kind: client}");
    check("metric: rate", "metric: speed");
    check("arrival: closed", "arrival: {open: {rate_rps: 9, spacing: bursts}}");
    check("arrival: closed", "arrival: {open: {rate_rps: 9, spacing: {bursts: -1}}}");
}

#[test]
fn requests_may_come_in_bursts() {
    let bursts = "arrival: {open: {rate_rps: 9, spacing: {bursts: 16}}}";
    let text = built_in("cpu-limits").unwrap().text.replacen("arrival: closed", bursts, 1);
    let schema = serde_json::from_str(SCHEMA).unwrap();
    let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    assert!(jsonschema::validator_for(&schema).unwrap().is_valid(&value));
    let scenario: Scenario = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(scenario.check(&Catalogue::built_in()), []);
    let ArrivalSpec::Open(open) = &scenario.cases[0].arrival else { panic!("not an open loop") };
    assert_eq!(open.spacing.word(), "bursts:16");
}

#[test]
fn mistakes_of_meaning_are_found_with_their_place() {
    let check = |name: &str, from: &str, to: &str, what: &str| {
        let text = built_in(name).unwrap().text;
        assert!(text.contains(from), "{from}");
        let scenario: Scenario = serde_saphyr::from_str(&text.replacen(from, to, 1)).unwrap();
        let faults = scenario.check(&Catalogue::built_in());
        let found = faults.iter().find(|fault| fault.what.contains(what));
        let found = found.unwrap_or_else(|| panic!("{what:?} is not among {faults:#?}"));
        assert!(found.line > 0 && found.column > 0, "{found:?}");
    };
    check("cross-network", "scenario/1", "scenario/2", "this version reads");
    check("cross-network", "name: near", "name: west", "two networks are called `west`");
    check("cross-network", "topology: other-network", "topology: other-region", "two networks are");
    check("cross-network", "topology: other-network", "topology: same-network", "no other");
    check("cross-network", ", link: {rtt_us: 800}", "", "lacks a link");
    check("cross-network", "{rtt_us: 800}", "{rtt_us: 800, jitter_us: 500}", "at most half");
    check("cross-network", "{rtt_us: 800}", "{rtt_us: 800, loss_pct: 100}", "below 100");
    check("cross-network", "name: grpc-unary", "name: http1", "two cases are called");
    check("cross-network", "unit: ms", "unit: MiB", "does not count this metric");
    check("cpu-limits", "cpu_period_us: 20000", "cpu_period_us: 10000", "least quota");
    check("cpu-limits", "rate_rps: 200", "rate_rps: 200, spacing: {bursts: 0}", "`bursts` is");
    check("cpu-limits", "{cpu_millicores: 50}", "{}", "needs `cpu_millicores`");
    check("tls", "protocol: http1", "protocol: tcp", "`answer_bytes` is of http1 and http2");
    check("throughput", "protocol: tcp", "protocol: http1", "of raw TCP");
    check("throughput", "connections: 8", "connections: 65", "at most 64 connections");
    check("throughput", "connections: 8", "connections: 8\n    streams: 2", "`streams` is from 1");
    check("max-rate", "p99<10ms", "p99<10", "unit");
    check(
        "tls",
        "    tls: tls\n    handshakes: full",
        "    handshakes: full",
        "`handshakes` are of",
    );
    check("push", "per_stream: 1000", "per_stream: 0", "`per_stream` is from 1");
    check("push", "per_stream: 1000", "in_flight: 1001", "`in_flight` is from 1");
    check("push", "protocol: grpc-stream", "protocol: grpc-unary", "`messages` are of streams");
    check("actors", "actors: {ids: 1000}", "actors: {ids: 0}", "`ids` is from 1");
    check("actors", "actors: {ids: 1000}", "actors: {types: 1000}", "`types` is from 1 to 999");
    check("actors", "actors: {}", "actors: {}\n    answer_bytes: 1", "`actors` go with");
    check("actors", "ask: timer}", "ask: timer}\n    payload_bytes: 2", "body of their own");
    check("actors", "ids: 1000, ask: timer_fires", "ask: timer_fires", "need `ids`");
    check("actors", "ids: 1000, ask: timer_fires", "ids: 9, ask: timer_fires", "every 10 ms to");
    check(
        "actors",
        "ids: 1000, ask: timer_fires",
        "ids: 1000, types: 2, ask: timer_fires",
        "are of",
    );
    check(
        "actors",
        "arrival: {open: {rate_rps: 1000}}",
        "arrival: {open: {rate_rps: 1000, spacing: poisson}}",
        "woken evenly",
    );
    check("actors", "arrival: {open: {rate_rps: 1000}}", "arrival: closed", "have a rate");
    check(
        "push",
        "protocol: grpc-stream",
        "protocol: grpc-stream\n    actors: {}",
        "asked over http1",
    );
    check("max-rate", "share: 0.75", "share: 7.5", "at most 1");
    check("load-steps", "[120, 500,", "[500, 120,", "rates of steps grow");
    check("tls", "answer_bytes: 4096", "answer_bytes: 1\n    payload_bytes: 1", "not both");
}
