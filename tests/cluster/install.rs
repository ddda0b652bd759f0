//! The chart, installed.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{
    Namespace, OwnInstall, SOON, client, deployment, install_afresh, need_rig, server, state,
    tollway_kube, west,
};

/// The promise: an empty cluster has its first call over mutual TLS within a minute of `helm install`.
#[test]
fn from_the_install_to_the_first_call() {
    let rig = need_rig!();
    let begun = Instant::now();
    let cluster = rig.cluster("a");
    install_afresh(cluster);
    eprintln!("installed after {:?}", begun.elapsed());
    let shop = Namespace::restricted(cluster, "first-call");
    shop.apply(&deployment("stock", json!({"tollway.dev/port": "8080"}), server()));
    shop.apply(&deployment("till", json!({}), client()));
    shop.wait_rolled_out("stock");
    shop.wait_rolled_out("till");
    let answer = shop.shell("till", "curl -sS http://127.0.0.1:3500/v1.0/invoke/stock/method/echo");
    eprintln!("called after {:?}: {answer}", begun.elapsed());
    let metrics = "curl -sS http://127.0.0.1:15020/metrics";
    let pages = shop.shell("till", metrics);
    let connected = pages.lines().any(|line| line == "tollway_dials_total 1");
    assert!(connected, "the call went from sidecar to sidecar: {pages}");
}

#[test]
fn the_root_of_the_network_is_in_the_cluster() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let written = cluster.kubectl(&[
        "--namespace=tollway",
        "get",
        "configmap/tollway-root",
        "--output=jsonpath={.data}",
    ]);
    let written: Value = serde_json::from_str(&written.unwrap()).unwrap();
    assert_eq!(written["network"], "west");
    let root = [
        "--namespace=tollway",
        "exec",
        "tollway-control-0",
        "--",
        "/tollway",
        "identity",
        "root",
        "--store=/var/lib/tollway/control",
    ];
    let printed = cluster.kubectl(&root).unwrap();
    assert_eq!(written["root-pin"], printed.trim());
}

/// The way without Helm.
#[test]
fn the_program_installs_checks_and_removes() {
    let rig = need_rig!();
    let cluster = rig.cluster("b");
    let tollway = |arguments: &[&str]| tollway_kube(cluster, &[cluster], arguments);
    let (code, printed) = tollway(&["check", "--namespace=mesh"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("there is no control plane in namespace mesh"), "{printed}");
    let install = [
        "install",
        "--namespace=mesh",
        "--network=east",
        "--image=tollway:test",
        "--image-pull-policy=Never",
        "--memory-store",
    ];
    // Twice is as once.
    for _ in 0..2 {
        let (code, printed) = tollway(&install);
        assert_eq!(code, Some(0), "{printed}\n{}", state(cluster, "mesh"));
        assert!(printed.contains("applied StatefulSet tollway-control"), "{printed}");
    }
    let (code, printed) = tollway(&["check", "--namespace=mesh"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("ok    injector: 2 of 2 pods are ready"), "{printed}");
    let shop = Namespace::restricted(cluster, "by-program");
    shop.apply(&deployment("till", json!({}), client()));
    shop.wait_rolled_out("till");
    let (_, printed) = tollway(&["pods"]);
    let found = printed.lines().find(|line| line.starts_with("by-program"));
    assert!(found.is_some_and(|line| line.contains("till") && line.contains('1')), "{printed}");
    let (code, printed) = tollway(&["uninstall", "--namespace=mesh", "--purge"]);
    assert_eq!(code, Some(0), "{printed}");
    let names = ["get", "namespaces", "--output=name"];
    cluster.wait_for(SOON, &names, |names| !names.contains("/mesh")).unwrap();
    let left = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations";
    let ours = "--selector=app.kubernetes.io/part-of=tollway";
    let left = cluster.kubectl(&["get", left, ours, "--output=name"]).unwrap();
    assert!(!left.contains("mesh"), "{left}");
}

#[test]
fn an_install_without_rights_in_the_cluster_serves_its_namespace() {
    let rig = need_rig!();
    let cluster = rig.cluster("a");
    let values = ["network=alone", "clusterRights=false", "control.store=memory"];
    let alone = OwnInstall::new(cluster, "alone", &values);
    let shop = &alone.namespace;
    let found = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations";
    let found = cluster.kubectl(&["get", found, "--output=name"]).unwrap();
    assert!(!found.contains("tollway-alone"), "{found}");
    let token = alone.control(&["token", "create", "--namespace=alone", "--uses=any"]);
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "join"},
        "stringData": {"token": token.trim()},
    });
    shop.apply(&secret);
    let inject = |object: &Value| alone.apply_injected(object, &["--token-secret=join"]);
    inject(&deployment("stock", json!({"tollway.dev/port": "8080"}), server()));
    inject(&deployment("till", json!({}), client()));
    ["stock", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    let call = "curl -sS -w '%{http_code}' -o /dev/null http://127.0.0.1:3500/v1.0/invoke/stock/method/echo";
    shop.shell_until("till", call, "200");
    let identities = alone.control(&["identity", "list", "--json"]);
    let identities: Value = serde_json::from_str(&identities).unwrap();
    let mut apps: Vec<_> =
        identities.as_array().unwrap().iter().map(|one| one["app"].as_str().unwrap()).collect();
    apps.sort_unstable();
    assert_eq!(apps, ["stock", "till"]);
    let (code, printed) = tollway_kube(cluster, &[cluster], &["check", "--namespace=alone"]);
    let is_noted = printed.contains("the install has no rights in the cluster");
    assert!(code == Some(0) && is_noted, "{printed}");
}
