//! Objects of Dapr as they are in a cluster, by the definitions of Dapr's own chart.

use std::path::Path;

use serde_json::{Value, json};
use tollway_testkit::Cluster;

use crate::support::{Namespace, client, deployment, need_rig, server, west};

/// Applies Dapr's definitions of its kinds.
fn define(cluster: Cluster<'_>) {
    let folder = std::env::var_os("TOLLWAY_DAPR_DEFINITIONS");
    let folder = folder.expect("`cargo xtask cluster test` names the folder");
    for name in ["components", "configuration", "httpendpoints", "resiliency", "subscription"] {
        let file = Path::new(&folder).join(format!("{name}.yaml"));
        cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    }
    let definitions = [
        "crd/components.dapr.io",
        "crd/configurations.dapr.io",
        "crd/httpendpoints.dapr.io",
        "crd/resiliencies.dapr.io",
        "crd/subscriptions.dapr.io",
    ];
    let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
    cluster.kubectl(&[&wait[..], &definitions].concat()).unwrap();
}

fn object(kind: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({
        "apiVersion": "dapr.io/v1alpha1", "kind": kind, "metadata": {"name": name},
    });
    for (field, value) in rest.as_object().unwrap() {
        object[field] = value.clone();
    }
    object
}

fn app(name: &str, more: Value) -> Value {
    let mut annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": name});
    for (field, value) in more.as_object().unwrap() {
        annotations[field] = value.clone();
    }
    annotations
}

#[test]
fn an_app_of_dapr_is_held_to_the_objects_of_its_namespace() {
    let rig = need_rig!();
    let cluster = west(&rig);
    define(cluster);
    let shop = Namespace::new(cluster, "dapr-objects", &[]);
    // Who may call `stock`, and what.
    let policies = json!([{"appId": "till", "defaultAction": "deny", "trustDomain": "public", "namespace": "dapr-objects",
        "operations": [{"name": "/echo", "httpVerb": ["GET"], "action": "allow"}]}]);
    let control = json!({"defaultAction": "deny", "trustDomain": "public", "policies": policies});
    shop.apply(&object("Configuration", "guarded", json!({"spec": {"accessControl": control}})));
    // A store for `till` alone, a setting of which is in a Secret.
    shop.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "till-store"},
        "stringData": {"ttl": "3600"}}));
    let metadata = json!([
        {"name": "actorStateStore", "value": "true"},
        {"name": "cleanupIntervalInSeconds", "secretKeyRef": {"name": "till-store", "key": "ttl"}},
        {"name": "connectionString", "value": ":memory:"},
    ]);
    let spec = json!({"type": "state.sqlite", "version": "v1", "metadata": metadata});
    shop.apply(&object("Component", "drawer", json!({"spec": spec, "scopes": ["till"]})));
    let guarded = app("stock", json!({"dapr.io/config": "guarded", "dapr.io/app-port": "8080"}));
    shop.apply(&deployment("stock", guarded, server()));
    shop.apply(&deployment("till", app("till", json!({})), client()));
    ["stock", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    let code = "curl -sS -w '%{http_code}' -o /dev/null http://127.0.0.1:3500";
    let call = |path: &str| format!("{code}/v1.0/invoke/stock/method/{path}");
    shop.shell_until("till", &call("echo"), "200");
    assert_eq!(shop.shell("till", &call("headers")), "403");
    let known = shop.shell("till", "curl -sS http://127.0.0.1:3500/v1.0/metadata");
    assert!(known.contains("\"drawer\""), "{known}");

    // One that asks for what is not there waits until it is.
    let asks = app("late", json!({"dapr.io/config": "later"}));
    shop.apply(&deployment("late", asks, server()));
    let events = ["get", "events", "--output=jsonpath={.items[*].message}"];
    shop.wait_for(&events, |seen| seen.contains("names the Configuration `later`"));
    shop.apply(&object(
        "Configuration",
        "later",
        json!({"spec": {"accessControl": {"defaultAction": "allow"}}}),
    ));
    shop.wait_rolled_out("late");
}
