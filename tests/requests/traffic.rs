//! Limits of traffic policies, through real processes.

use std::time::Duration;

use tollway_tests::fickle_app::FickleApp;
use tollway_tests::load_command;
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{AppProtocol, Network, Sidecar, counter};

const SERVICE: &str = "echo.default.east";

#[test]
fn each_of_three_callers_gets_what_its_limit_allows() {
    const PER_SECOND: u32 = 200;
    let time = Duration::from_secs(10);
    let network = Network::start("east", "127.0.1.2", &[]);
    let app = network.app("echo", "echo", AppProtocol::Http);
    let callers = ["web", "office", "audit"].map(|name| network.sidecar(name, &[]));
    callers.iter().for_each(|caller| caller.until_served(SERVICE));
    let policy = format!(
        "apiVersion: tollway.dev/v1\nkind: TrafficPolicy\nmetadata: {{name: echo}}\n\
         spec: {{target: {{app: echo}}, rate: {{caller: {{requests: {PER_SECOND}, per: 1s}}}}}}\n"
    );
    network.apply(&policy);
    // The rate of 1,000 a second, of which each caller has a third.
    let loads = callers.each_ref().map(|caller| {
        let url = format!("http://{}/v1.0/invoke/{SERVICE}/method/echo", caller.http());
        Load::http(&url, 334, time)
    });
    let allowed = f64::from(PER_SECOND) * time.as_secs_f64();
    for load in loads {
        let traffic = load.result().traffic;
        let admitted = traffic.requests as f64;
        assert!((admitted / allowed - 1.0).abs() < 0.05, "{admitted} of {allowed}: {traffic:?}");
    }
    assert!(counter(&app.sidecar.process, "tollway_rate_limited_total") > 3000);
}

#[test]
fn an_app_that_takes_less_than_comes_has_the_rest_refused_early() {
    let network = Network::start("east", "127.0.1.2", &[]);
    let app = FickleApp::start();
    let port = app.port.to_string();
    let options = ["--app-port", &port, "--app-max-concurrency", "1"];
    let sidecar = network.sidecar("echo", &options);
    let caller = network.caller(&[]);
    caller.until_served(SERVICE);
    app.answer_after(Duration::from_millis(50));
    let file = "apiVersion: tollway.dev/v1\nkind: TrafficPolicy\nmetadata: {name: echo}\n\
                spec: {target: {app: echo}, shedding: {target: 50ms, interval: 200ms}}\n";
    // It takes 20 a second of 60 that come, from 64 connections.
    let url = format!("http://{}/v1.0/invoke/{SERVICE}/method/a", caller.http());
    let load = || {
        let options = ["http", &url, "--rate", "60", "--connections", "64", "--duration", "5s"];
        load_command::run(&[&options[..], &["--warm-up", "0s"]].concat()).traffic
    };
    let without = load();
    assert_eq!(without.errors, 0, "all wait: {without:?}");
    network.apply(file);
    let with = load();
    let shed = counter(&sidecar.process, "tollway_requests_shed_total");
    assert!(shed > 50 && with.errors > 50, "{shed} are refused: {with:?}");
    assert!(with.requests > 50, "the app stays busy: {with:?}");
}

/// What `tollway call --explain` shows of a call of `SERVICE`.
fn explained(caller: &Sidecar) -> String {
    let sidecar = format!("http://{}", caller.http());
    let target = format!("{SERVICE}/echo");
    let output = load_command::tollway(&["call", &target, "--explain", "--sidecar", &sidecar]);
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn limits_in_shadow_mode_refuse_nothing_and_show_what_they_would() {
    let network = Network::start("east", "127.0.1.2", &[]);
    let app = network.app("echo", "echo", AppProtocol::Http);
    let caller = network.caller(&[]);
    caller.until_served(SERVICE);
    let apply = |mode: &str| {
        network.apply(&format!(
            "apiVersion: tollway.dev/v1\nkind: TrafficPolicy\nmetadata: {{name: echo}}\n\
             spec: {{mode: {mode}, target: {{app: echo}}, rate: {{caller: {{requests: 1, per: 1h, burst: 1}}}}}}\n"
        ));
    };
    let call = || get(caller.http(), &format!("/v1.0/invoke/{SERVICE}/method/echo"));
    let counts = || {
        let of = |name: &str| counter(&app.sidecar.process, name);
        [of("tollway_rate_shadow_limited_total"), of("tollway_rate_limited_total")]
    };
    apply("shadow");
    for _ in 0..5 {
        assert!(call().starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(counts(), [4, 0]);
    let text = explained(&caller);
    assert!(text.contains("limit     admitted; a limit in shadow mode would refuse"), "{text}");
    assert!(text.contains("requests of this caller"), "{text}");
    let log = app.sidecar.process.log();
    assert_eq!(log.matches("a limit in shadow mode would refuse requests").count(), 1, "{log}");
    apply("enforce");
    assert!(call().starts_with("HTTP/1.1 200 "));
    assert!(call().starts_with("HTTP/1.1 429 "));
    assert_eq!(counts(), [5, 1]);
    let text = explained(&caller);
    assert!(text.contains("limit     refused by a limit: requests of this caller"), "{text}");
    assert!(text.contains("ERR_RATE_LIMITED"), "{text}");
}

#[test]
fn policies_in_shadow_mode_refuse_nothing_and_show_what_they_would() {
    let network = Network::start("east", "127.0.1.2", &[]);
    let app = network.app("echo", "echo", AppProtocol::Http);
    let caller = network.caller(&[]);
    caller.until_served(SERVICE);
    let apply = |mode: &str| {
        network.apply(&format!(
            "apiVersion: tollway.dev/v1\nkind: Policy\nmetadata: {{name: trial}}\n\
             spec: {{mode: {mode}, target: {{app: echo}}, deny: [{{from: [caller]}}]}}\n"
        ));
    };
    let call = || get(caller.http(), &format!("/v1.0/invoke/{SERVICE}/method/echo"));
    let counts = || {
        let of = |name: &str| counter(&app.sidecar.process, name);
        [of("tollway_policy_shadow_denials_total"), of("tollway_policy_denials_total")]
    };
    apply("shadow");
    assert!(call().starts_with("HTTP/1.1 200 "));
    assert_eq!(counts(), [1, 0]);
    let text = explained(&caller);
    assert!(text.contains("policy    admitted; default/trial, in shadow mode,"), "{text}");
    apply("enforce");
    assert!(call().starts_with("HTTP/1.1 403 "));
    assert_eq!(counts(), [2, 1]);
}
