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

use crate::support::{Namespace, deployment, need_rig, west};

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
