//! What a pod can and cannot be, by the token of its service account.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollway_testkit::retry_until;

use crate::support::{
    Namespace, SOON, client, control, deployment, job, need_rig, server, suspend_sidecar, west,
};

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

/// A sidecar that is gone without a word has a lease for 10 s; its pod is known to be gone before.
#[test]
fn callers_lose_a_pod_that_is_deleted_by_force_long_before_its_lease_ends() {
    /// Well below what is left of a lease: it was renewed in the 3 s before.
    const AT_ONCE: Duration = Duration::from_secs(3);
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::restricted(cluster, "lost");
    let mut stock = deployment("stock", json!({"tollway.dev/port": "8080"}), server());
    // The kubelet ends nothing meanwhile.
    stock["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(60);
    shop.apply(&stock);
    shop.apply(&deployment("till", json!({}), client()));
    ["stock", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    let call = "curl -sS -m 1 -w '%{http_code}' -o /dev/null http://127.0.0.1:3500/v1.0/invoke/stock/method/echo";
    shop.shell_until("till", call, "200");
    let workloads = || {
        let known: Value =
            serde_json::from_str(&control(cluster, &["get", "services", "--json"])).unwrap();
        let services = known["services"].as_array().unwrap();
        let stock = services.iter().find(|service| service["service"] == "stock.lost.west");
        stock.map_or(0, |stock| stock["ready_replicas"].as_u64().unwrap())
    };
    retry_until(SOON, "the pod is registered", || (workloads() == 1).then_some(())).unwrap();
    let pod = shop.kubectl(&[
        "get",
        "pods",
        "--selector=app=stock",
        "--output=jsonpath={.items[*].metadata.name}",
    ]);
    // No other pod comes.
    shop.kubectl(&["delete", "deployment/stock", "--cascade=orphan"]);
    shop.kubectl(&["delete", "replicasets", "--all", "--cascade=orphan"]);
    suspend_sidecar(&pod);
    let begun = Instant::now();
    shop.kubectl(&["delete", "pod", &pod, "--grace-period=0", "--force", "--wait=false"]);
    retry_until(AT_ONCE, "the registration ends", || (workloads() == 0).then_some(())).unwrap();
    eprintln!("the registration ended {:?} after the pod", begun.elapsed());
    // Its sidecar takes connections still, and answers none.
    let code = shop.shell("till", &format!("{call} || true"));
    assert_eq!(code, "404", "the caller knows that no such service is left");
    assert!(begun.elapsed() < 2 * AT_ONCE, "{:?}", begun.elapsed());
    let log = cluster
        .kubectl(&["--namespace=tollway", "logs", "tollway-control-0", "--since=60s"])
        .unwrap();
    let line = log.lines().find(|line| line.contains("a pod has ended") && line.contains(&pod));
    assert!(line.is_some_and(|line| line.contains("was_registered=true")), "{log}");
}
