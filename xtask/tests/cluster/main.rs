//! The clusters of `cargo xtask cluster` themselves: what tests of the product rely on there.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod namespace;

use std::collections::BTreeSet;
use std::time::Duration;

use namespace::Namespace;
use serde_json::{Value, json};
use tollway_testkit::{Cluster, Rig, skip};

/// Enough for pods to start.
const SOON: Duration = Duration::from_secs(60);
/// Enough for a machine to be missed, and for its pods to be replaced.
const LATER: Duration = Duration::from_secs(120);

/// The rig; the calling test is skipped without one.
macro_rules! need_rig {
    () => {
        match Rig::of_environment() {
            Some(rig) => rig,
            None => skip!("no clusters: `cargo xtask cluster test` brings them up"),
        }
    };
}

/// A container of the image for tests.
fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": "localhost/box:1", "command": ["/bin/sh", "-c", script]})
}

/// A pod that does nothing, on a machine.
fn idle_pod(name: &str, machine: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": machine},
            "terminationGracePeriodSeconds": 0,
            "containers": [container("main", "sleep 100000")],
        },
    })
}

/// Servers that answer with the name of their machine, each on another one, and a Service of them.
fn web(replicas: usize, service_type: &str) -> Value {
    let script = "mkdir -p /tmp/www && echo $MACHINE > /tmp/www/index.html && \
                  exec httpd -f -p 8080 -h /tmp/www";
    let mut server = container("main", script);
    server["env"] =
        json!([{"name": "MACHINE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]);
    server["readinessProbe"] = json!({"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1});
    server["resources"] = json!({"limits": {"memory": "64Mi", "cpu": "500m"}});
    let labels = json!({"app": "web"});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [server],
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": labels},
                    }],
                },
            },
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {
            "type": service_type,
            "selector": labels,
            "ports": [{"port": 80, "targetPort": 8080}],
        },
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [deployment, service]})
}

/// The machines on which pods run.
fn machines_of_pods(namespace: &Namespace<'_>) -> BTreeSet<String> {
    let path = "jsonpath={.items[?(@.status.phase==\"Running\")].spec.nodeName}";
    let names = namespace.kubectl(&["get", "pods", "-o", path]).unwrap();
    names.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn pods_run_on_every_machine_of_both_clusters() {
    let rig = need_rig!();
    for (name, machines) in [("a", &["a1", "a2"][..]), ("b", &["b1"])] {
        let cluster = rig.cluster(name);
        let namespace = Namespace::new(cluster, "machines");
        namespace.apply(&web(machines.len(), "ClusterIP"));
        namespace.kubectl(&["rollout", "status", "deploy/web", "--timeout=60s"]).unwrap();
        let expected: BTreeSet<String> = machines.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(machines_of_pods(&namespace), expected);
    }
}

#[test]
fn a_service_is_found_by_name_and_answers_from_both_machines() {
    let rig = need_rig!();
    let namespace = Namespace::new(rig.cluster("a"), "services");
    namespace.apply(&web(2, "ClusterIP"));
    namespace.apply(&idle_pod("client", "a1"));
    namespace.wait_ready("client");
    namespace.kubectl(&["rollout", "status", "deploy/web", "--timeout=60s"]).unwrap();
    let address =
        namespace.kubectl(&["get", "service/web", "-o", "jsonpath={.spec.clusterIP}"]).unwrap();
    assert!(address.starts_with("10.96."), "{address}");
    for host in ["web", "web.services.svc.cluster.local", &address] {
        let script = format!("for i in $(seq 40); do curl -s -m 5 http://{host}/; done");
        let answers = |text: &str| {
            let both: BTreeSet<&str> = text.split_whitespace().collect();
            both == BTreeSet::from(["a1", "a2"])
        };
        let call = ["exec", "client", "--", "sh", "-c", &script];
        namespace.wait_for(SOON, &call, answers).unwrap();
    }
    let unknown =
        namespace.kubectl(&["exec", "client", "--", "curl", "-s", "-m", "5", "http://no-such/"]);
    assert!(unknown.is_err(), "{unknown:?}");
}

#[test]
fn pods_reach_a_port_of_the_other_clusters_machine() {
    let rig = need_rig!();
    let far = Namespace::new(rig.cluster("b"), "far");
    far.apply(&web(1, "NodePort"));
    far.kubectl(&["rollout", "status", "deploy/web", "--timeout=60s"]).unwrap();
    let path = "jsonpath={.spec.ports[0].nodePort}";
    let port = far.kubectl(&["get", "service/web", "-o", path]).unwrap();
    let near = Namespace::new(rig.cluster("a"), "near");
    near.apply(&idle_pod("client", "a2"));
    near.wait_ready("client");
    let path = "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
    let machine = rig.cluster("b").kubectl(&["get", "node/b1", "-o", path]).unwrap();
    let url = format!("http://{machine}:{port}/");
    let call = ["exec", "client", "--", "curl", "-s", "-m", "5", &url];
    near.wait_for(SOON, &call, |answer| answer.trim() == "b1").unwrap();
}

#[test]
fn a_program_in_a_clusters_network_reaches_the_api_server() {
    let rig = need_rig!();
    for name in ["a", "b"] {
        let cluster = rig.cluster(name);
        let access = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
        let access: Value = serde_json::from_str(&access).unwrap();
        let cluster_of = &access["clusters"][0]["cluster"];
        let authority = cluster_of["certificate-authority"].as_str().unwrap();
        let url = format!("{}/readyz", cluster_of["server"].as_str().unwrap());
        let call = |authority: &str| {
            let mut curl = cluster.command("curl");
            let output = curl.args(["-s", "-m", "5", "--cacert", authority, &url]).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        assert_eq!(call(authority), "ok");
        let other = if name == "a" { "b" } else { "a" };
        let other = authority.replace(&format!("keys/{name}/"), &format!("keys/{other}/"));
        assert_eq!(call(&other), "", "each cluster has an authority of its own");
    }
}

/// What the API server makes of a token that is shown to that audience.
fn review(cluster: Cluster<'_>, token: &str, audience: &str) -> Value {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token.trim(), "audiences": [audience]},
    });
    let arguments = ["create", "-f", "-", "-o", "jsonpath={.status}"];
    let status = cluster.kubectl_with(&arguments, &review.to_string()).unwrap();
    serde_json::from_str(&status).unwrap()
}

#[test]
fn a_projected_token_is_reviewed_for_its_audience_alone() {
    let rig = need_rig!();
    let cluster = rig.cluster("a");
    let namespace = Namespace::new(cluster, "tokens");
    let mut pod = idle_pod("web", "a2");
    pod["spec"]["volumes"] = json!([{"name": "token", "projected": {"sources": [{
        "serviceAccountToken": {"audience": "tollway", "expirationSeconds": 600, "path": "token"},
    }]}}]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "token", "mountPath": "/var/run/tollway"}]);
    namespace.apply(&pod);
    namespace.wait_ready("web");
    let token = namespace.kubectl(&["exec", "web", "--", "cat", "/var/run/tollway/token"]).unwrap();
    let found = review(cluster, &token, "tollway");
    assert_eq!(found["authenticated"], true, "{found}");
    assert_eq!(found["user"]["username"], "system:serviceaccount:tokens:default");
    let extra = &found["user"]["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], json!(["web"]), "{found}");
    assert_eq!(extra["authentication.kubernetes.io/node-name"], json!(["a2"]), "{found}");
    for (token, audience) in [(&*token, "https://other"), ("no.such.token", "tollway")] {
        let found = review(cluster, token, audience);
        assert_ne!(found["authenticated"], true, "{found}");
    }
    // One of the other cluster knows nothing of this one.
    let found = review(rig.cluster("b"), &token, "tollway");
    assert_ne!(found["authenticated"], true, "{found}");
}

#[test]
fn a_job_with_a_native_sidecar_completes() {
    let rig = need_rig!();
    let namespace = Namespace::new(rig.cluster("b"), "jobs");
    let sidecar = "mkdir -p /tmp/www && echo ready > /tmp/www/index.html && \
                   exec httpd -f -p 9000 -h /tmp/www";
    let mut sidecar = container("sidecar", sidecar);
    sidecar["restartPolicy"] = json!("Always");
    sidecar["startupProbe"] = json!({"httpGet": {"path": "/", "port": 9000}, "periodSeconds": 1});
    namespace.apply(&json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"backoffLimit": 0, "template": {"spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "initContainers": [sidecar],
            "containers": [container("main", "curl -s -m 5 http://127.0.0.1:9000/")],
        }}},
    }));
    namespace.kubectl(&["wait", "--for=condition=Complete", "job/once", "--timeout=60s"]).unwrap();
    let printed = namespace.kubectl(&["logs", "job/once", "-c", "main"]).unwrap();
    assert_eq!(printed.trim(), "ready", "the sidecar is there before the container");
}

#[test]
fn a_pod_replaces_that_of_a_killed_machine() {
    let rig = need_rig!();
    let cluster = rig.cluster("a");
    let namespace = Namespace::new(cluster, "killed");
    let labels = json!({"app": "one"});
    let briefly = |key: &str| {
        let (operator, effect) = ("Exists", "NoExecute");
        json!({"key": key, "operator": operator, "effect": effect, "tolerationSeconds": 1})
    };
    namespace.apply(&json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "one"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [container("main", "sleep 100000")],
                "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                    "weight": 100,
                    "preference": {"matchExpressions": [
                        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a2"]},
                    ]},
                }]}},
                "tolerations": [
                    briefly("node.kubernetes.io/not-ready"),
                    briefly("node.kubernetes.io/unreachable"),
                ],
            }},
        },
    }));
    namespace.kubectl(&["rollout", "status", "deploy/one", "--timeout=60s"]).unwrap();
    assert_eq!(machines_of_pods(&namespace), BTreeSet::from(["a2".to_owned()]));
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let node = ["get", "node/a2", "-o", ready];
    assert_eq!(cluster.kubectl(&node).unwrap(), "True");
    rig.kill_machine("a2").unwrap();
    cluster.wait_for(LATER, &node, |status| status == "Unknown").unwrap();
    let path = "jsonpath={.items[*].spec.nodeName}";
    let running =
        ["get", "pods", "--field-selector=spec.nodeName=a1,status.phase=Running", "-o", path];
    namespace.wait_for(LATER, &running, |machines| machines.trim() == "a1").unwrap();
    rig.start_machine("a2").unwrap();
    cluster.wait_for(LATER, &node, |status| status == "True").unwrap();
    // It runs pods again.
    namespace.apply(&idle_pod("later", "a2"));
    namespace.wait_ready("later");
}
