//! What the sidecars of callers do by routes, through real processes.

use std::time::Duration;

use tollway_testkit::retry_until;
use tollway_tests::load_command;
use tollway_tests::mesh::http::get;
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{App, AppProtocol, Network, PATIENCE, Sidecar, counter};

const INBOUND: &str = "tollway_inbound_requests_total";

/// A network with the apps of this test and a caller that has called each of them.
fn start() -> (Network, [App; 2], Sidecar) {
    let network = Network::start("east", "127.0.1.2", &[]);
    let apps = ["v1", "v2"].map(|name| network.app(name, name, AppProtocol::Http));
    let caller = network.caller(&[]);
    for name in ["v1", "v2"] {
        caller.until_served(&format!("{name}.default.east"));
    }
    (network, apps, caller)
}

/// Routes the calls of `stock`, for which no workload is registered, by these rules.
fn route(network: &Network, rules: &str) {
    let file = format!(
        "apiVersion: tollway.dev/v1\nkind: Route\nmetadata: {{name: stock}}\n\
         spec: {{service: stock, rules: {rules}}}\n"
    );
    network.apply(&file);
}

fn url(caller: &Sidecar, path: &str) -> String {
    format!("http://{}/v1.0/invoke/stock/method{path}", caller.http())
}

fn seen(app: &App) -> u64 {
    counter(&app.sidecar.process, INBOUND)
}

#[test]
fn a_split_by_weight_is_within_a_hundredth_of_its_shares() {
    const COUNT: u64 = 100_000;
    let (network, apps, caller) = start();
    route(&network, "[{backends: [{service: v1, weight: 90}, {service: v2, weight: 10}]}]");
    // The first call has the route: it is known with the service.
    assert!(get(caller.http(), "/v1.0/invoke/stock/method/echo").starts_with("HTTP/1.1 200"));
    let before = apps.each_ref().map(seen);
    let url = url(&caller, "/echo");
    let result = load_command::run(&[
        "http",
        &url,
        "--requests",
        &COUNT.to_string(),
        "--connections",
        "16",
        "--warm-up",
        "0s",
    ]);
    assert_eq!((result.traffic.requests, result.traffic.errors), (COUNT, 0));
    let [of_v1, of_v2] = [0, 1].map(|index| seen(&apps[index]) - before[index]);
    assert_eq!(of_v1 + of_v2, COUNT, "each request reached one app");
    let share = of_v2 as f64 / COUNT as f64;
    assert!((share - 0.1).abs() < 0.01, "{share}");
}

/// Sends requests that the app refuses. Gives how many it got for each that was sent.
fn refused_load(network: &Network, app: &App, caller: &Sidecar, budget: &str) -> f64 {
    let retry = format!(
        "{{attempts: 3, statuses: [503], idempotent: true, backoff: 1ms, longestBackoff: 20ms, budget: {budget}}}"
    );
    route(network, &format!("[{{backends: [{{service: v1}}], retry: {retry}}}]"));
    let is_routed = || {
        let answer = get(caller.http(), "/v1.0/invoke/stock/method/status/503");
        answer.starts_with("HTTP/1.1 503").then_some(())
    };
    retry_until(PATIENCE, "the route being applied", is_routed).unwrap();
    let before = seen(app);
    let load = Load::http(&url(caller, "/status/503"), 300, Duration::from_secs(4));
    let traffic = load.result().traffic;
    (seen(app) - before) as f64 / (traffic.requests + traffic.errors) as f64
}

#[test]
fn retries_add_a_fifth_to_the_load_of_an_app_that_refuses_everything_and_not_its_multiple() {
    let (network, apps, caller) = start();
    let without = refused_load(&network, &apps[0], &caller, "{percent: 100, minPerSecond: 100000}");
    assert!(without > 3.9, "{without} requests for each");
    let with = refused_load(&network, &apps[0], &caller, "{percent: 20, minPerSecond: 0}");
    assert!((1.1..=1.2).contains(&with), "{with} requests for each");
}

#[test]
fn explain_names_the_rule_that_decided() {
    let (network, _apps, caller) = start();
    route(
        &network,
        "[{backends: [{service: v1}]}, \
          {name: canary, matches: [{headers: [{name: x-canary, value: '1'}]}], \
           backends: [{service: v2}]}]",
    );
    let explained = |field: &str| {
        let sidecar = format!("http://{}", caller.http());
        let arguments = ["call", "stock/echo", "--explain", "--sidecar", &sidecar, "-H", field];
        let output = load_command::tollway(&arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = explained("x-canary: 1");
    assert!(text.contains("name      v2.default.east\n"), "{text}");
    assert!(text.contains("route     default/stock, rule canary, of"), "{text}");
    let text = explained("x-canary: 0");
    assert!(text.contains("route     default/stock, rule 0, of"), "{text}");
}

#[test]
fn a_route_that_changes_under_load_loses_no_request() {
    let (network, apps, caller) = start();
    route(&network, "[{backends: [{service: v1}]}]");
    let load = Load::http(&url(&caller, "/echo"), 300, Duration::from_secs(5));
    for round in 0..10 {
        let to = ["v2", "v1"][round % 2];
        route(&network, &format!("[{{backends: [{{service: {to}}}]}}]"));
        std::thread::sleep(Duration::from_millis(200));
    }
    load.assert_no_errors();
    assert!(apps.iter().all(|app| seen(app) > 100), "both have served");
}
