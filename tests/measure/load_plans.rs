//! `tollway load` with plans, conditions and raw TCP, against `tollway echo`.

use tollway_record::RunResult;
use tollway_record::throughput::Direction;
use tollway_tests::load_command::{Echo, run, tollway};

#[test]
fn steps_are_windows_of_their_own() {
    let echo = Echo::start(&[]);
    let url = echo.url("/");
    let result = run(&["http", &url, "--steps", "50,100..200/100", "--step-time", "400ms"]);
    let steps: Vec<_> = result
        .steps
        .iter()
        .map(|step| (step.traffic.requested_rps.unwrap(), step.traffic.scheduled()))
        .collect();
    assert_eq!(steps, [(50.0, 20), (100.0, 40), (200.0, 80)]);
    assert_eq!(result.traffic.scheduled(), 140, "all of them");
    let merged = result.traffic.latencies().unwrap().n();
    assert_eq!(merged, result.traffic.requests);
}

#[test]
fn a_rate_that_moves_sends_what_lies_under_it() {
    let echo = Echo::start(&[]);
    let url = echo.url("/");
    let result = run(&["http", &url, "--stages", "500ms:200,500ms:200"]);
    assert_eq!(result.traffic.scheduled(), 150);
    let stages: Vec<_> = result.stages.iter().map(|s| (s.lasting_s, s.to_rps)).collect();
    assert_eq!(stages, [(0.5, 200.0), (0.5, 200.0)]);
    assert_eq!(result.traffic.requested_rps, Some(150.0));
}

#[test]
fn the_highest_rate_of_a_target_of_known_capacity_is_found() {
    let echo = Echo::start(&[]);
    // Four connections, each busy for at least 20 ms with a request: at most 200/s.
    let url = echo.url("/delay?ms=20");
    let search = ["--max-rate", "--step-time", "400ms", "--precision", "20%"];
    let result = run(&[&["http", &url, "-c", "4"], &search[..]].concat());
    let search = result.search.unwrap();
    let held = search.held_rps.unwrap();
    assert!((60.0..=206.0).contains(&held), "{search:?}");
    assert!(search.missed_rps.unwrap() > held, "{search:?}");
    assert!(search.complete && search.trials.iter().any(|trial| trial.confirms));
    assert_eq!(result.traffic.requested_rps, Some(held), "the window told is the one that held");
}

#[test]
fn a_condition_that_is_met_ends_with_99_and_is_printed() {
    let echo = Echo::start(&[]);
    let url = echo.url("/delay?ms=20");
    let quick = ["--rate", "50", "-z", "500ms", "--warm-up", "0s"];
    let conditions = ["--fail-if", "p50>10ms", "--fail-if", "error_rate>1%"];
    let output = tollway(&[&["load", "http", &url], &quick[..], &conditions].concat());
    assert_eq!(output.status.code(), Some(99), "{output:?}");
    let reported = String::from_utf8(output.stdout).unwrap();
    assert!(reported.contains("FAILED  p50>10ms: "), "{reported}");
    assert!(reported.contains("ok      error_rate>1%"), "{reported}");

    let conditions = ["--fail-if", "p50<10ms", "--json", "-"];
    let output = tollway(&[&["load", "http", &url], &quick[..], &conditions].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let result = RunResult::from_json(&String::from_utf8(output.stdout).unwrap()).unwrap();
    assert!(!result.thresholds[0].missed);
    assert!(result.thresholds[0].judgement.value.unwrap() >= 20_000.0);
}

#[test]
fn what_cannot_be_run_is_refused_before_it_runs() {
    for (arguments, says) in [
        (&["--fail-if", "p99>5"][..], "at column 6, a time needs its unit"),
        (&["--steps", "5..1/1"], "goes down"),
        (&["--stages", "10s"], "is not TIME:RATE"),
        (&["--steps", "5", "--max-rate"], "cannot be used with"),
        (&["--out", "iperf3=x.json"], "cannot hold this run"),
        (&["--out", "gatling=x"], "is no format"),
        (&["--step-time", "1s"], "give --steps or --max-rate"),
    ] {
        let output = tollway(&[&["load", "http", "127.0.0.1:9"], arguments].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(says), "{arguments:?}: {error}");
        assert!(!output.status.success());
    }
}

#[test]
fn what_is_open_when_the_drain_ends_is_unfinished() {
    let echo = Echo::start(&[]);
    let url = echo.url("/delay?ms=60000");
    let load = ["http", &url, "--rate", "20", "-z", "500ms", "--warm-up", "0s"];
    let result = run(&[&load[..], &["--timeout", "100s", "--drain", "100ms"]].concat());
    assert_eq!((result.traffic.unfinished, result.traffic.scheduled()), (10, 10));
}

#[test]
fn throughput_is_counted_alike_at_both_ends_in_each_direction() {
    let echo = Echo::start(&[]);
    for (flag, direction) in [
        (None, Direction::Send),
        (Some("--reverse"), Direction::Receive),
        (Some("--bidir"), Direction::Both),
    ] {
        let times = ["-z", "400ms", "--warm-up", "100ms", "--interval", "100ms", "-P", "2"];
        let target = echo.tcp();
        let mut arguments = [&["tcp", &target], &times[..]].concat();
        arguments.extend(flag);
        let result = run(&arguments);
        let throughput = result.throughput.unwrap();
        assert_eq!(throughput.direction, direction);
        let streams = if direction == Direction::Both { 4 } else { 2 };
        assert_eq!(throughput.streams.len(), streams);
        for flow in [throughput.sent, throughput.received].into_iter().flatten() {
            assert!(flow.bytes > 1_000_000, "{flow:?}");
            let bits_per_s = 8.0 * flow.bytes as f64 / flow.duration_s;
            // Reading from JSON may round the last bit otherwise.
            assert!((flow.bits_per_s / bits_per_s - 1.0).abs() < 1e-12, "{flow:?}");
        }
        for stream in &throughput.streams {
            let peer = stream.peer.expect("the server's account");
            assert!(peer.flow.bytes >= stream.flow.bytes, "warm-up included: {stream:?}");
            let by_interval: u64 = throughput
                .intervals
                .iter()
                .filter(|interval| !interval.omitted)
                .flat_map(|interval| &interval.streams)
                .filter(|sample| sample.stream == stream.stream)
                .map(|sample| sample.flow.bytes)
                .sum();
            assert_eq!(by_interval, stream.flow.bytes, "the intervals add up");
            assert!(!stream.sends || stream.max_cwnd_bytes > 0, "{stream:?}");
        }
        assert_eq!(throughput.intervals.iter().filter(|interval| interval.omitted).count(), 1);
    }
}

#[test]
fn ping_pong_has_the_latencies_of_round_trips() {
    let echo = Echo::start(&[]);
    let ping = ["--ping-pong", "--message-size", "2000", "-c", "2", "-n", "500", "--warm-up", "0s"];
    let result = run(&[&["tcp", &echo.tcp()], &ping[..]].concat());
    let traffic = &result.traffic;
    assert_eq!((traffic.requests, traffic.errors), (500, 0), "{traffic:?}");
    assert_eq!((traffic.bytes.sent, result.payload_bytes), (1_000_000, 2000));
    assert!(traffic.latency_us.p50.is_some());
}

#[test]
fn a_target_that_is_no_echo_server_of_ours_is_refused_with_the_way_out() {
    let echo = Echo::start(&[]);
    // An HTTP port answers the first bytes with an error of its own.
    let output = tollway(&["load", "tcp", &echo.http().to_string(), "-z", "1s"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("tollway echo --tcp"), "{error}");
}

#[test]
fn pushed_messages_are_reported_by_message_and_by_stream() {
    let echo = Echo::start(&[]);
    let target = echo.http().to_string();
    let push = ["--stream", "push", "--messages", "10", "--streams", "2", "--in-flight", "4"];
    let size = ["--message-size", "1000", "-c", "1", "-n", "40", "--warm-up", "0s"];
    let output = tollway(&[&["load", "grpc", &target], &push[..], &size].concat());
    let reported = String::from_utf8(output.stdout).unwrap();
    assert!(reported.contains("push streams of 10 messages: 4 complete, 0 failed"), "{reported}");
    assert!(reported.contains("messages/s of 1.00 kB"), "{reported}");
}

#[test]
fn streams_whose_messages_are_counted_end_the_run() {
    let echo = Echo::start(&[]);
    let target = echo.http().to_string();
    for (kind, requests) in [("push", 150), ("bidi", 150), ("client", 3), ("server", 3)] {
        let result =
            run(&["grpc", "--stream", kind, "--streams", "3", "--messages", "50", &target]);
        let streaming = result.streaming.unwrap();
        assert_eq!((result.traffic.requests, result.traffic.errors), (requests, 0), "{kind}");
        assert_eq!((streaming.completed, streaming.failed), (3, 0), "{kind}");
        assert_eq!((result.connections, result.warm_up_s), (1, 0.0), "{kind}");
        for phase in ["sending", "waiting", "receiving"] {
            assert_eq!(result.traffic.phases_us[phase].n, requests, "{kind}: {phase}");
        }
    }
}

#[test]
fn the_short_help_fits_a_screen_and_the_long_one_has_the_rest() {
    for protocol in ["http", "grpc", "tcp"] {
        let help = |flag| String::from_utf8(tollway(&["load", protocol, flag]).stdout).unwrap();
        let (short, long) = (help("-h"), help("--help"));
        let lines = short.lines().count();
        assert!(lines <= 50, "{lines} lines: {short}");
        for flag in ["--rate", "--duration", "--connections", "--json", "--fail-if", "--max-rate"] {
            assert!(short.contains(flag), "{flag}: {short}");
        }
        for flag in
            ["--spacing", "--max-inflight", "--drain", "--precision", "--tls-max", "--label"]
        {
            assert!(!short.contains(flag), "{flag}: {short}");
            assert!(long.contains(flag), "{flag}: {long}");
        }
        assert!(short.contains("see more with '--help'"), "{short}");
    }
}
