//! What the mesh costs a cluster: the start of pods, idle parts, requests at the API server.
//!
//! `cargo xtask proof kubernetes` runs these alone and records what they print.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollway_testkit::Cluster;

use crate::support::{Namespace, client, deployment, need_rig, server, west};

/// The file that receives a line of JSON for each figure.
const RECORD: &str = "TOLLWAY_CLUSTER_FIGURES";
/// Pods of each kind whose start is measured.
const STARTS: usize = 20;
/// For how long idle parts are looked at.
const IDLE: Duration = Duration::from_secs(60);

fn record(row: &Value) {
    println!("{row}");
    if let Some(file) = std::env::var_os(RECORD) {
        let mut file = OpenOptions::new().create(true).append(true).open(file).unwrap();
        writeln!(file, "{row}").unwrap();
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// A pod that idles, beside these init containers.
fn pod(name: &str, annotations: Value, before: Value) -> Value {
    let app = json!({"image": "localhost/box:1", "command": ["/bin/sleep", "100000"]});
    let mut pod = deployment(name, annotations, app)["spec"]["template"].take();
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(name);
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "a1"});
    pod["spec"]["initContainers"] = before;
    pod
}

/// What a sidecar of any mesh is to the kubelet: a native one that is ready at once.
fn idle_sidecar() -> Value {
    json!([{
        "name": "idle", "image": "localhost/box:1", "command": ["/bin/sleep", "100000"],
        "restartPolicy": "Always",
        "startupProbe": {"exec": {"command": ["/bin/true"]}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 1000, "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
        },
    }])
}

/// Seconds from its creation until a pod is ready.
fn start(shop: &Namespace<'_>, pod: &Value) -> f64 {
    let name = pod["metadata"]["name"].as_str().unwrap();
    let begun = Instant::now();
    shop.apply(pod);
    shop.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=60s"]);
    let took = begun.elapsed().as_secs_f64();
    shop.kubectl(&["delete", "pod", name, "--wait=false"]);
    took
}

#[test]
#[ignore = "it measures: `cargo xtask proof kubernetes` runs it alone"]
fn pods_with_a_sidecar_start_nearly_as_soon_as_those_with_an_idle_one() {
    let rig = need_rig!();
    let shop = Namespace::restricted(west(&rig), "starts");
    let out = json!({"tollway.dev/inject": "false"});
    let mut kinds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for number in 0..STARTS {
        for (kind, annotations, before) in [
            ("none", out.clone(), json!([])),
            ("idle", out.clone(), idle_sidecar()),
            ("tollway", json!({}), json!([])),
        ] {
            let pod = pod(&format!("{kind}-{number}"), annotations, before);
            kinds.entry(kind).or_default().push(start(&shop, &pod));
        }
    }
    let medians: BTreeMap<&str, f64> =
        kinds.into_iter().map(|(kind, of)| (kind, median(of))).collect();
    record(&json!({"figure": "start", "pods": STARTS, "medians_s": medians}));
    let more = medians["tollway"] - medians["idle"];
    assert!(more <= 0.5, "{more} s more than with an idle sidecar: {medians:?}");
}

/// What the API server has counted of requests, watches left out: they stay open.
fn requests(cluster: Cluster<'_>) -> BTreeMap<String, f64> {
    let page = cluster.kubectl(&["get", "--raw", "/metrics"]).unwrap();
    let mut found = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let Some((labels, count)) = line.rsplit_once(' ') else { continue };
        let label = |name: &str| {
            let start = labels.split_once(&format!("{name}=\"")).map(|(_, rest)| rest);
            start.and_then(|rest| rest.split('"').next()).unwrap_or_default()
        };
        if label("verb") != "WATCH" {
            let key = format!("{} {}", label("verb"), label("resource"));
            *found.entry(key).or_default() += count.parse::<f64>().unwrap();
        }
    }
    found
}

/// Processor time (s) and memory (bytes) of each container of the install, as its kubelet has them.
fn usage(cluster: Cluster<'_>) -> BTreeMap<String, (f64, f64)> {
    let mut found = BTreeMap::new();
    for machine in ["a1", "a2"] {
        let path = format!("/api/v1/nodes/{machine}/proxy/stats/summary");
        let summary = cluster.kubectl(&["get", "--raw", &path]).unwrap();
        let summary: Value = serde_json::from_str(&summary).unwrap();
        for pod in summary["pods"].as_array().unwrap() {
            if pod["podRef"]["namespace"] != "tollway" {
                continue;
            }
            let name = pod["podRef"]["name"].as_str().unwrap();
            for container in pod["containers"].as_array().into_iter().flatten() {
                let number = |pointer: &str| container.pointer(pointer).and_then(Value::as_f64);
                let cpu = number("/cpu/usageCoreNanoSeconds").unwrap_or_default() / 1e9;
                let memory = number("/memory/workingSetBytes").unwrap_or_default();
                found.insert(name.to_owned(), (cpu, memory));
            }
        }
    }
    found
}

#[test]
#[ignore = "it measures: `cargo xtask proof kubernetes` runs it alone"]
fn an_idle_install_takes_little_and_asks_the_api_server_for_nothing() {
    let rig = need_rig!();
    let cluster = west(&rig);
    thread::sleep(Duration::from_secs(30));
    let (before, asked_before, begun) = (usage(cluster), requests(cluster), Instant::now());
    thread::sleep(IDLE);
    let (after, asked) = (usage(cluster), requests(cluster));
    let seconds = begun.elapsed().as_secs_f64();
    let parts: BTreeMap<&String, Value> = after
        .iter()
        .filter_map(|(name, (cpu, memory))| {
            let cpu = (cpu - before.get(name)?.0) / seconds;
            Some((name, json!({"cpu": cpu, "memory_mb": memory / 1e6})))
        })
        .collect();
    let more = |key: &String| asked[key] - asked_before.get(key).copied().unwrap_or_default();
    let asked: BTreeMap<&String, f64> = asked
        .keys()
        .map(|key| (key, more(key)))
        .filter(|(key, count)| *count > 0.0 && (key.contains("tollway") || is_ours(key)))
        .collect();
    record(&json!({"figure": "idle", "seconds": seconds, "parts": parts, "requests": asked}));
    let total: f64 = asked.values().sum();
    assert!(total <= 10.0, "{asked:?}");
    let control = &parts.iter().find(|(name, _)| name.starts_with("tollway-control")).unwrap().1;
    assert!(control["memory_mb"].as_f64().unwrap() < 150.0, "{control}");
    assert!(control["cpu"].as_f64().unwrap() < 0.02, "{control}");
}

/// Services beside the one that changes, and pods behind each.
const SERVICES: usize = 1_000;
const ENDPOINTS: usize = 10;
/// How often the slice changes.
const CHANGES: usize = 50;

/// A Service without a selector, which kube-proxy leaves alone, and its slice: endpoints that are said to be
/// of a pod, each with the last two numbers of its address.
fn service(name: &str, pod: &str, endpoints: &[(String, bool)]) -> [Value; 2] {
    let proxy = json!({"service.kubernetes.io/service-proxy-name": "none"});
    let endpoint = |(address, ready): &(String, bool)| {
        json!({
            "addresses": [address], "conditions": {"ready": ready},
            "targetRef": {"kind": "Pod", "name": pod},
        })
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": proxy},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/service-name": name,
            "endpointslice.kubernetes.io/managed-by": "tests",
        }},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    });
    [service, slice]
}

#[test]
#[ignore = "it measures: `cargo xtask proof kubernetes` runs it alone"]
fn a_change_of_a_slice_is_at_callers_soon_among_a_thousand_services() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::new(cluster, "many-services", &[("tollway.dev/inject", "true")]);
    for name in ["first", "second"] {
        shop.apply(&deployment(name, json!({"tollway.dev/port": "8080"}), server()));
    }
    shop.apply(&deployment("till", json!({"tollway.dev/capture": "true"}), client()));
    ["first", "second", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    let pod = |app: &str, path: &str| {
        let of = format!("--selector=app={app}");
        shop.kubectl(&["get", "pods", &of, &format!("--output=jsonpath={{.items[0].{path}}}")])
    };
    let (name, address) =
        (|app: &str| pod(app, "metadata.name"), |app: &str| pod(app, "status.podIP"));
    let begun = Instant::now();
    let many = (0..SERVICES).flat_map(|number| {
        let at =
            |endpoint: usize| format!("10.250.{}.{}", number / 25, number % 25 * 10 + endpoint);
        let endpoints: Vec<_> = (0..ENDPOINTS).map(|endpoint| (at(endpoint), true)).collect();
        service(&format!("many-{number}"), &name("first"), &endpoints)
    });
    let many: Vec<Value> = many.collect();
    for some in many.chunks(200) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": some});
        let create = ["create", "--namespace", "many-services", "-f", "-"];
        cluster.kubectl_with(&create, &list.to_string()).unwrap();
    }
    let made_in = begun.elapsed().as_secs_f64();
    let slice = |app: &str| service("probe", &name(app), &[(address(app), true)]);
    slice("first").iter().for_each(|object| shop.apply(object));
    shop.shell_until("till", &format!("{CALLEE} || true"), "dapr-callee-app-id: first");
    let slices = ["first", "second"].map(|app| slice(app)[1].to_string());
    let line = format!("while :; do {CALLEE}; done");
    let exec = ["exec", "--namespace", "many-services", "deployment/till", "--container=main"];
    let mut answers =
        cluster.kubectl_lines(&[&exec[..], &["--", "/bin/sh", "-c", &line]].concat()).unwrap();
    let (mut sent, mut stored) = (Vec::new(), Vec::new());
    for number in 1..=CHANGES {
        let next = number % 2;
        let app = ["first", "second"][next];
        let before = Instant::now();
        let replace = ["replace", "--namespace", "many-services", "-f", "-"];
        cluster.kubectl_with(&replace, &slices[next]).unwrap();
        let after = Instant::now();
        let seen = answers.find(|(line, _)| line.ends_with(app)).unwrap().1;
        sent.push(seen.saturating_duration_since(before).as_secs_f64());
        stored.push(seen.saturating_duration_since(after).as_secs_f64());
    }
    drop(answers);
    thread::sleep(Duration::from_secs(30));
    let (before, begun) = (usage(cluster), Instant::now());
    thread::sleep(IDLE);
    let (after, seconds) = (usage(cluster), begun.elapsed().as_secs_f64());
    let control = |of: &BTreeMap<String, (f64, f64)>| {
        *of.iter().find(|(name, _)| name.starts_with("tollway-control")).unwrap().1
    };
    let cpu = (control(&after).0 - control(&before).0) / seconds;
    let memory_mb = control(&after).1 / 1e6;
    let worst = |mut of: Vec<f64>| {
        of.sort_by(f64::total_cmp);
        (of[of.len() / 2], of[of.len() - 1])
    };
    let ((sent_median, sent_worst), (stored_median, stored_worst)) = (worst(sent), worst(stored));
    record(&json!({
        "figure": "slices", "services": SERVICES, "endpoints": SERVICES * ENDPOINTS, "made_s": made_in,
        "changes": CHANGES, "since_kubectl_began_s": {"median": sent_median, "worst": sent_worst},
        "since_kubectl_ended_s": {"median": stored_median, "worst": stored_worst},
        "control": {"cpu": cpu, "memory_mb": memory_mb},
    }));
    assert!(sent_worst < 0.5, "{sent_worst} s");
    assert!(memory_mb < 150.0 && cpu < 0.02, "{memory_mb} MB, {cpu}");
}

/// Which app answers.
const CALLEE: &str = "curl -sS http://probe/headers | grep -i '^dapr-callee-app-id: '";

/// Whether only our parts ask for it in a cluster of the rig.
fn is_ours(key: &str) -> bool {
    let resources = [
        "policies",
        "routes",
        "trafficpolicies",
        "failovers",
        "egresses",
        "tokenreviews",
        "mutatingwebhookconfigurations",
    ];
    key.split_once(' ').is_some_and(|(_, resource)| resources.contains(&resource))
}
