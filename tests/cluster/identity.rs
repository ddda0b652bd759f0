//! What a pod can and cannot be, by the token of its service account.

use serde_json::{Value, json};

use crate::support::{Namespace, job, need_rig, server, west};

/// A sidecar that is written into a pod by hand, with the token of that pod.
fn by_hand(pod_app: &str, asked: &[&str], audience: &str, pin: &str) -> Value {
    let mut container = server();
    let usual = [
        "sidecar",
        "--control=tollway-control.tollway.svc:15010",
        "--pod-token-file=/token/token",
        "--start-timeout-ms=8000",
        "--instance=$(POD)",
    ];
    let pin = format!("--root-pin={pin}");
    container["args"] = json!([&usual[..], asked, &[pin.as_str()]].concat());
    container["env"] = json!([
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]);
    container["volumeMounts"] = json!([{"name": "token", "mountPath": "/token"}]);
    let annotations = json!({"tollway.dev/inject": "false", "tollway.dev/app": pod_app});
    let mut job = job("thief", annotations, container);
    let source = json!({"serviceAccountToken": {"audience": audience, "path": "token"}});
    job["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "token", "projected": {"sources": [source]}}]);
    job
}

#[test]
fn a_pod_gets_no_identity_but_its_own() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let pin = "--output=jsonpath={.data.root-pin}";
    let pin = ["--namespace=tollway", "get", "configmap/tollway-root", pin];
    let pin = cluster.kubectl(&pin).unwrap();
    let shop = Namespace::restricted(cluster, "thieves");
    for (asked, audience, words) in [
        (&["--app-id=stock", "--namespace=thieves"][..], "tollway", "is not the app stock"),
        (&["--app-id=thief", "--namespace=bank"], "tollway", "has no identity of namespace bank"),
        // A token that the pod shows to others is no proof here.
        (&["--app-id=thief", "--namespace=thieves"], "bank", "refuses the token of the pod"),
    ] {
        shop.apply(&by_hand("thief", asked, audience, &pin));
        let ended = ["get", "job/thief", "--output=jsonpath={.status.conditions[*].type}"];
        shop.wait_for(&ended, |printed| printed.contains("Failed"));
        let log = shop.kubectl(&["logs", "job/thief", "--container=main"]);
        assert!(log.contains(words), "{asked:?}: {log}");
        shop.kubectl(&["delete", "job/thief"]);
    }
}
