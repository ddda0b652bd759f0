//! The chart, installed.

use std::time::Instant;

use serde_json::json;
use tollway_testkit::binary;

use crate::support::{
    Namespace, SOON, client, deployment, install_afresh, need_rig, server, state, west,
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
    let metrics = "curl -sS http://127.0.0.1:9090/metrics";
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
    let written: serde_json::Value = serde_json::from_str(&written.unwrap()).unwrap();
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
    let tollway = |arguments: &[&str]| {
        let mut command = cluster.command(binary("tollway").unwrap());
        command.env("KUBECONFIG", cluster.kubeconfig()).arg("kube").args(arguments);
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), printed + &String::from_utf8_lossy(&output.stderr))
    };
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
