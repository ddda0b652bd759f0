//! Two clusters that are joined: apps of one call apps of the other by name.

use serde_json::json;

use crate::support::{
    Namespace, SOON, client, control, deployment, east, join, need_rig, server, tollway_kube, west,
};

/// Pods have the same addresses in both clusters, so only gateways can join them.
#[test]
fn an_app_calls_an_app_of_a_joined_cluster_by_its_name() {
    let rig = need_rig!();
    let (west, east) = (west(&rig), east(&rig));
    join(west, east);
    let here = Namespace::restricted(west, "joined");
    let there = Namespace::restricted(east, "joined");
    there.apply(&deployment("stock", json!({"tollway.dev/port": "8080"}), server()));
    here.apply(&deployment("till", json!({}), client()));
    there.wait_rolled_out("stock");
    here.wait_rolled_out("till");
    let line = "curl -sS -w '%{http_code}' -o /dev/null \
                http://127.0.0.1:3500/v1.0/invoke/stock.joined.east/method/echo";
    here.shell_until("till", line, "200");
    // Dapr's own way to name an app of another namespace, from an app in daprd's place.
    let dapr = Namespace::new(west, "joined-dapr", &[]);
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "till"});
    dapr.apply(&deployment("till", annotations, client()));
    dapr.wait_rolled_out("till");
    dapr.shell_until("till", line, "200");
    let listed = control(west, &["join", "list"]);
    assert!(listed.contains("east"), "{listed}");
    let (code, printed) = tollway_kube(west, &[west, east], &["join", "b", "a"]);
    assert_eq!((code, printed.as_str()), (Some(0), "east and west are joined already\n"));
}

#[test]
fn clusters_that_cannot_be_joined_are_named_with_what_to_do() {
    let rig = need_rig!();
    let (west, east) = (west(&rig), east(&rig));
    for (arguments, what, hint) in [
        (&["a", "c"][..], "there is no context c", "it has a, b"),
        (
            &["a", "b", "--second-namespace=shop"],
            "b has no control plane in namespace shop",
            "--namespace",
        ),
        (&["a", "a"], "are both called west", "need different names"),
    ] {
        let arguments = [&["join"], arguments].concat();
        let (code, printed) = tollway_kube(west, &[west, east], &arguments);
        assert_eq!(code, Some(1), "{printed}");
        let (error, advice) = printed.split_once("\nhint: ").unwrap_or((&printed, ""));
        assert!(error.contains(what) && advice.contains(hint), "{arguments:?}: {printed}");
    }
}

/// A gateway that is replaced has another address inside, and the same one outside.
#[test]
fn calls_go_on_when_the_gateway_is_replaced() {
    let rig = need_rig!();
    let (west, east) = (west(&rig), east(&rig));
    join(west, east);
    let here = Namespace::restricted(west, "moved");
    let there = Namespace::restricted(east, "moved");
    there.apply(&deployment("stock", json!({"tollway.dev/port": "8080"}), server()));
    here.apply(&deployment("till", json!({}), client()));
    there.wait_rolled_out("stock");
    here.wait_rolled_out("till");
    let line = "curl -sS -w '%{http_code}' -o /dev/null \
                http://127.0.0.1:3500/v1.0/invoke/stock.moved.east/method/echo";
    here.shell_until("till", line, "200");
    let of_gateway = |verb: &[&'static str]| {
        let rest = ["deployment/tollway-gateway", "--namespace=tollway"];
        east.kubectl(&[verb, &rest].concat()).unwrap()
    };
    of_gateway(&["rollout", "restart"]);
    of_gateway(&["rollout", "status", "--timeout=60s"]);
    east.wait_for(
        SOON,
        &[
            "--namespace=tollway",
            "get",
            "pods",
            "--selector=app.kubernetes.io/component=gateway",
            "--output=name",
        ],
        |names| names.lines().count() == 1,
    )
    .unwrap();
    here.shell_until("till", line, "200");
}

/// For who keeps the state of clusters in a repository.
#[test]
fn networks_are_joined_by_a_secret() {
    let rig = need_rig!();
    let (west, east) = (west(&rig), east(&rig));
    for (cluster, other) in [(west, "east"), (east, "west")] {
        if control(cluster, &["join", "list"]).contains(other) {
            control(cluster, &["join", "remove", other]);
        }
    }
    let bundle = control(east, &["join", "export"]);
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "tollway-joins", "namespace": "tollway"},
        "stringData": {"broken": "{}", "east": bundle},
    });
    west.kubectl_with(&["apply", "-f", "-"], &secret.to_string()).unwrap();
    let list = ["join", "list", "--json", "--store=/var/lib/tollway/control"];
    let exec = ["--namespace=tollway", "exec", "tollway-control-0", "--", "/tollway"];
    let list = [&exec[..], &list].concat();
    let is_reached = |printed: &str| {
        let joins: serde_json::Value = serde_json::from_str(printed).unwrap_or_default();
        joins[0]["network"] == "east" && joins[0]["reachable"] == true
    };
    west.wait_for(SOON, &list, is_reached).unwrap();
    let delete = ["--namespace=tollway", "delete", "secret", "tollway-joins"];
    west.kubectl(&delete).unwrap();
    assert!(control(west, &["join", "list"]).contains("east"), "it stays joined");
}
