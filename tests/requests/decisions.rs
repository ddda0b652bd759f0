//! One metric for each decision: each is taken once and more by real processes, and shows on the page of the
//! process that took it, as Prometheus' own client for Python reads it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollway_testkit::{Process, need_tool, python_with, retry_until, skip};
use tollway_tests::fickle_app::FickleApp;
use tollway_tests::mesh::{App, AppProtocol, Network, PATIENCE, Sidecar};

/// Ready to run, with its version.
const PACKAGES: [&str; 3] = ["--only-binary", ":all:", "prometheus-client==0.26.0"];

/// The samples of a page, by name and labels.
type Samples = BTreeMap<String, f64>;

struct World {
    python: PathBuf,
    curl: PathBuf,
    network: Network,
    /// The services `v1` and `v2`, echo servers.
    apps: [App; 2],
    /// The service `slow`, which answers as it is set to, in the caller's zone and out of it.
    slow: [(FickleApp, Sidecar); 2],
    caller: Sidecar,
    /// Another caller, which a policy denies.
    audit: Sidecar,
}

impl World {
    fn start(python: PathBuf, curl: PathBuf) -> Self {
        let network = Network::start("east", "127.0.1.2", &["--egress", "closed"]);
        let apps = ["v1", "v2"].map(|name| network.app(name, name, AppProtocol::Http));
        let slow = ["a", "b"].map(|zone| {
            let app = FickleApp::start();
            let port = app.port.to_string();
            let options = ["--app-port", &port, "--zone", zone, "--app-max-concurrency", "1"];
            (app, network.sidecar("slow", &options))
        });
        let caller = network.caller(&["--zone", "a"]);
        let audit = network.sidecar("audit", &[]);
        for name in ["v1", "v2", "slow"] {
            caller.until_served(&format!("{name}.default.east"));
            audit.until_served(&format!("{name}.default.east"));
        }
        let all = || {
            curl_status(&curl, &caller, "slow", "/", &[]);
            slow.iter().all(|(app, _)| app.seen() > 0).then_some(())
        };
        retry_until(PATIENCE, "calls of both replicas", all).unwrap();
        Self { python, curl, network, apps, slow, caller, audit }
    }

    fn apply(&self, kind: &str, name: &str, spec: &str) {
        let file = format!(
            "apiVersion: tollway.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
        );
        self.network.apply(&file);
    }

    /// Routes the calls of `stock`, which has no workload.
    fn route(&self, rules: &str) {
        self.apply("Route", "stock", &format!("{{service: stock, rules: {rules}}}"));
    }

    /// The status of one call by curl.
    fn get(&self, service: &str, path: &str, options: &[&str]) -> String {
        curl_status(&self.curl, &self.caller, service, path, options)
    }

    /// Runs `step` and checks by how much metrics of a process have grown: by so much at least, and not at
    /// all where that is 0.
    #[track_caller]
    fn check(&self, process: &Process, step: impl FnOnce(), grown: &[(&str, f64)]) {
        let before = samples(&self.python, process);
        step();
        let is_there = || {
            let now = samples(&self.python, process);
            let more = |name: &str| value(&now, name) - value(&before, name);
            let is_right = |(name, least): &(&str, f64)| match *least {
                0.0 => more(name) == 0.0,
                least => more(name) >= least,
            };
            grown.iter().all(is_right).then_some(())
        };
        // Some are counted a moment after the answer.
        if retry_until(PATIENCE, "metrics", is_there).is_err() {
            let now = samples(&self.python, process);
            let shown: Vec<_> = grown
                .iter()
                .map(|(name, least)| (*name, value(&now, name) - value(&before, name), *least))
                .collect();
            panic!("grown and expected: {shown:?}");
        }
    }

    /// Runs `step` and checks that one of two metrics has grown.
    #[track_caller]
    fn check_either(&self, step: impl FnOnce(), of: [(&Process, &str); 2]) {
        let sum = || {
            let values =
                of.iter().map(|(process, name)| value(&samples(&self.python, process), name));
            values.sum::<f64>()
        };
        let before = sum();
        step();
        retry_until(PATIENCE, "one of two metrics", || (sum() > before).then_some(())).unwrap();
    }

    fn check_caller(&self, step: impl FnOnce(), grown: &[(&str, f64)]) {
        self.check(&self.caller.process, step, grown);
    }
}

fn curl_status(
    curl: &Path,
    caller: &Sidecar,
    service: &str,
    path: &str,
    options: &[&str],
) -> String {
    let url = format!("http://{}/v1.0/invoke/{service}/method{path}", caller.http());
    let output = Command::new(curl)
        .args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"])
        .args(["--max-time", "20"])
        .args(options)
        .arg(url)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn samples(python: &Path, process: &Process) -> Samples {
    let mut reader = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/prometheus.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let page = process.metrics().unwrap();
    reader.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "Prometheus' client refuses the page:\n{page}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A sample that is left out has not been counted yet.
fn value(samples: &Samples, name: &str) -> f64 {
    samples.get(name).copied().unwrap_or_default()
}

/// A metric of a rule of the route of this test; labels by name.
fn of_rule(metric: &str, rule: &str) -> String {
    format!("tollway_route_{metric}_total{{route=\"default/stock\",rule=\"{rule}\"}}")
}

fn result_of(metric: &str, rule: &str, result: &str) -> String {
    format!(
        "tollway_route_{metric}_total{{result=\"{result}\",route=\"default/stock\",rule=\"{rule}\"}}"
    )
}

#[test]
fn each_decision_has_its_metric() {
    let curl = need_tool!("curl");
    let python = match python_with(&PACKAGES) {
        Ok(python) => python,
        Err(reason) => skip!("{reason}"),
    };
    let world = World::start(python, curl);
    routes(&world);
    times(&world);
    affinity(&world);
    replicas(&world);
    callees(&world);
    networks_and_hosts(&world);
}

/// Rules, redirects, copies, retries.
fn routes(world: &World) {
    world.route(
        "[{name: plain, matches: [{path: {prefix: /echo}}], backends: [{service: v1}]}, \
          {name: away, matches: [{path: {prefix: /away}}], redirect: {host: new.example}}, \
          {name: copied, matches: [{path: {prefix: /size}}], backends: [{service: v1}], \
           mirrors: [{service: v2}, {service: gone}]}, \
          {name: again, matches: [{path: {prefix: /status}}], backends: [{service: v1}], \
           retry: {attempts: 2, statuses: [503], backoff: 1ms, budget: {percent: 0, minPerSecond: 1}}}]",
    );
    let requests = |rule: &str| of_rule("requests", rule);
    world.check_caller(
        || assert_eq!(world.get("stock", "/echo", &[]), "200"),
        &[
            (&requests("plain"), 1.0),
            (&requests("away"), 0.0),
            ("tollway_route_unmatched_requests_total", 0.0),
        ],
    );
    world.check_caller(
        || assert_eq!(world.get("stock", "/away", &[]), "302"),
        &[(&requests("away"), 1.0), (&of_rule("redirects", "away"), 1.0)],
    );
    world.check_caller(
        || assert_eq!(world.get("stock", "/other", &[]), "404"),
        &[("tollway_route_unmatched_requests_total", 1.0), (&requests("plain"), 0.0)],
    );
    let inbound = "tollway_inbound_requests_total";
    world.check(
        &world.apps[1].sidecar.process,
        || {
            world.check_caller(
                || assert_eq!(world.get("stock", "/size?bytes=1", &[]), "200"),
                &[
                    (&requests("copied"), 1.0),
                    ("tollway_mirrored_requests_total", 2.0),
                    ("tollway_mirrors_failed_total", 1.0),
                    ("tollway_mirrors_skipped_total", 0.0),
                ],
            );
        },
        &[(inbound, 1.0)],
    );
    // What is larger than is kept for another attempt is not copied.
    let body = world.network.file("body");
    std::fs::write(&body, vec![b'a'; 200_000]).unwrap();
    let body = format!("@{}", body.display());
    world.check_caller(
        || {
            world.get("stock", "/size?bytes=1", &["--data-binary", &body]);
        },
        &[("tollway_mirrors_skipped_total", 2.0), ("tollway_mirrored_requests_total", 0.0)],
    );
    world.check_caller(
        // Ten retries are made by what the budget has saved up.
        || (0..12).for_each(|_| assert_eq!(world.get("stock", "/status/503", &[]), "503")),
        &[
            (&result_of("retries", "again", "made"), 1.0),
            (&result_of("retries", "again", "over_budget"), 3.0),
            ("tollway_retries_total", 1.0),
        ],
    );
}

/// Times of requests, of attempts and without a byte, and deadlines of callers.
fn times(world: &World) {
    let kind = |kind: &str| format!("tollway_timeouts_total{{kind=\"{kind}\"}}");
    let timed = |times: &str| {
        world.route(&format!("[{{backends: [{{service: v1}}], timeouts: {{{times}}}}}]"));
    };
    let late = "/delay?ms=3000";
    // The time that is left passes on, so the callee's sidecar may be the one that ends the request.
    let (request, deadline) = (kind("request"), kind("deadline"));
    let (caller, callee) = (&world.caller.process, &world.apps[0].sidecar.process);
    timed("request: 200ms");
    world.check_either(
        || assert_eq!(world.get("stock", late, &[]), "504"),
        [(caller, &request), (callee, &deadline)],
    );
    let within = ["-H", "x-tollway-timeout-ms: 100"];
    world.check_either(
        || assert_eq!(world.get("stock", late, &within), "504"),
        [(caller, &deadline), (callee, &deadline)],
    );
    timed("attempt: 200ms");
    world.check_caller(
        || assert_eq!(world.get("stock", late, &[]), "504"),
        &[(&kind("attempt"), 1.0)],
    );
    timed("idle: 200ms");
    world
        .check_caller(|| assert_eq!(world.get("stock", late, &[]), "504"), &[(&kind("idle"), 1.0)]);
}

/// Requests of a key that stay with their replica, and those that cannot.
fn affinity(world: &World) {
    world.route("[{name: keyed, backends: [{service: slow}], affinity: {header: x-user}}]");
    let call = |user: usize| world.get("stock", "/", &["-H", &format!("x-user: {user}")]);
    world.check_caller(
        || (0..10).for_each(|user| assert_eq!(call(user), "200")),
        &[
            (&result_of("affinity", "keyed", "kept"), 10.0),
            (&result_of("affinity", "keyed", "moved"), 0.0),
        ],
    );
    world.apply(
        "TrafficPolicy",
        "slow",
        "{target: {app: slow}, outlier: {consecutiveFailures: 1, ejection: 60s}}",
    );
    world.slow[1].0.fail(500, 1);
    world.check_caller(
        || (0..30).for_each(|user| drop(call(user))),
        &[
            ("tollway_ejections_total{reason=\"consecutive\"}", 1.0),
            (&result_of("affinity", "keyed", "moved"), 5.0),
            ("tollway_ejected_replicas", 1.0),
        ],
    );
    world.slow[1].0.work();
}

/// Which replica takes a request, and requests that go wrong on purpose.
fn replicas(world: &World) {
    // Another policy forgets the ejection.
    world.apply("TrafficPolicy", "slow", "{target: {app: slow}, locality: {}}");
    let level = |level: &str| {
        format!("tollway_locality_requests_total{{level=\"{level}\",reason=\"nearest\"}}")
    };
    world.check_caller(
        || (0..10).for_each(|_| assert_eq!(world.get("slow", "/", &[]), "200")),
        &[(&level("zone"), 10.0), (&level("network"), 0.0)],
    );
    world.apply(
        "TrafficPolicy",
        "slow",
        "{target: {app: slow}, faults: [{delay: {time: 1ms}, abort: {status: 418}}]}",
    );
    world.check_caller(
        || assert_eq!(world.get("slow", "/", &[]), "418"),
        &[
            ("tollway_faults_total{kind=\"delay\"}", 1.0),
            ("tollway_faults_total{kind=\"abort\"}", 1.0),
        ],
    );
}

/// What the sidecar of a callee refuses, or would.
fn callees(world: &World) {
    let callee = &world.apps[0].sidecar.process;
    let audit = |path: &str| curl_status(&world.curl, &world.audit, "v1", path, &[]);
    world.apply("Policy", "v1", "{target: {app: v1}, allow: [{from: [caller, audit]}]}");
    world.apply("Policy", "trial", "{mode: shadow, target: {app: v1}, deny: [{from: [audit]}]}");
    world.check(
        callee,
        || assert_eq!(audit("/echo"), "200"),
        &[("tollway_policy_shadow_denials_total", 1.0), ("tollway_policy_denials_total", 0.0)],
    );
    world.apply("Policy", "trial", "{target: {app: v1}, deny: [{from: [audit]}]}");
    world.check(
        callee,
        || assert_eq!(audit("/echo"), "403"),
        &[("tollway_policy_denials_total", 1.0), ("tollway_policy_shadow_denials_total", 0.0)],
    );
    let limited = "target: {app: v1}, rate: {caller: {requests: 1, per: 1m, burst: 1}}";
    let calls = |statuses: [&str; 2]| {
        for status in statuses {
            assert_eq!(world.get("v1", "/echo", &[]), status);
        }
    };
    world.apply("TrafficPolicy", "v1", &format!("{{mode: shadow, {limited}}}"));
    world.check(
        callee,
        || calls(["200", "200"]),
        &[("tollway_rate_shadow_limited_total", 1.0), ("tollway_rate_limited_total", 0.0)],
    );
    world.apply("TrafficPolicy", "v1", &format!("{{{limited}}}"));
    world.check(
        callee,
        || calls(["200", "429"]),
        &[("tollway_rate_limited_total", 1.0), ("tollway_rate_shadow_limited_total", 0.0)],
    );
    // An app that takes one request at a time, and more slowly than they come.
    let shedding = "{target: {app: slow}, shedding: {target: 5ms, interval: 50ms}, locality: {}}";
    world.apply("TrafficPolicy", "slow", shedding);
    world.slow[0].0.answer_after(Duration::from_millis(100));
    world.check(
        &world.slow[0].1.process,
        || {
            let caller = &world.caller;
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(move || {
                        (0..4)
                            .for_each(|_| drop(curl_status(&world.curl, caller, "slow", "/", &[])));
                    });
                }
            });
        },
        &[("tollway_requests_shed_total", 1.0)],
    );
}

/// Services in any network, and hosts out of the mesh.
fn networks_and_hosts(world: &World) {
    world.apply("Failover", "v2", "{service: v2, networks: [{network: east}]}");
    world.check_caller(
        || assert_eq!(world.get("v2.default.any", "/echo", &[]), "200"),
        &[("tollway_failover_total{reason=\"priority\"}", 1.0)],
    );
    let host = FickleApp::start();
    let url = format!("http://127.0.0.1:{}/", host.port);
    let proxy = format!("http://{}", world.caller.outbound());
    let outside = || {
        let output = Command::new(&world.curl)
            .args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"])
            .args(["--noproxy", "", "-x", &proxy, &url])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    world.check_caller(
        || assert_eq!(outside(), "403"),
        &[("tollway_egress_total{decision=\"refused\"}", 1.0)],
    );
    let allowed = format!("{{from: [caller], hosts: [{{host: 127.0.0.1, port: {}}}]}}", host.port);
    world.apply("Egress", "host", &allowed);
    world.check_caller(
        || assert_eq!(outside(), "200"),
        &[
            ("tollway_egress_total{decision=\"allowed\"}", 1.0),
            ("tollway_egress_total{decision=\"refused\"}", 0.0),
        ],
    );
}
