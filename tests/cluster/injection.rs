//! The webhook: which pods get sidecars, and what becomes of mistakes.

use serde_json::{Value, json};

use crate::support::{Namespace, client, deployment, job, need_rig, server, state, west};

#[test]
fn a_pod_that_asks_gets_a_sidecar_and_others_of_its_namespace_do_not() {
    let rig = need_rig!();
    let plain = Namespace::new(west(&rig), "unmarked", &[]);
    let asks = json!({"tollway.dev/inject": "true", "tollway.dev/port": "8080"});
    plain.apply(&deployment("asks", asks, server()));
    let daprs =
        json!({"dapr.io/enabled": "true", "dapr.io/app-id": "daprs", "dapr.io/app-port": "8080"});
    plain.apply(&deployment("daprs", daprs, client()));
    plain.apply(&deployment("plain", json!({}), client()));
    ["asks", "plain"].iter().for_each(|name| plain.wait_rolled_out(name));
    let names = |app: &str| {
        let of = format!("--selector=app={app}");
        let path = "--output=jsonpath={.items[*].spec.initContainers[*].name}";
        plain.kubectl(&["get", "pods", &of, path])
    };
    assert_eq!(["asks", "daprs", "plain"].map(names), ["tollway", "daprd", ""]);
}

#[test]
fn an_app_in_daprs_place_calls_by_its_variables() {
    let rig = need_rig!();
    let plain = Namespace::new(west(&rig), "daprs", &[]);
    let of = |app: &str, port: &str| json!({"dapr.io/enabled": "true", "dapr.io/app-id": app, "dapr.io/app-port": port});
    plain.apply(&deployment("stock", of("stock", "8080"), server()));
    let annotations = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "till"});
    plain.apply(&deployment("till", annotations, client()));
    ["stock", "till"].iter().for_each(|name| plain.wait_rolled_out(name));
    let line = "curl -sS -w '%{http_code}' -o /dev/null http://127.0.0.1:$DAPR_HTTP_PORT/v1.0/invoke/stock/method/echo";
    assert_eq!(plain.shell("till", line), "200");
}

#[test]
fn an_app_that_knows_nothing_calls_services_by_their_names() {
    let rig = need_rig!();
    let shop = Namespace::new(west(&rig), "captured", &[("tollway.dev/inject", "true")]);
    shop.apply(&deployment("stock", json!({"tollway.dev/port": "8080"}), server()));
    shop.apply(&deployment("till", json!({"tollway.dev/capture": "true"}), client()));
    ["stock", "till"].iter().for_each(|name| shop.wait_rolled_out(name));
    let line = "curl -sS -w '%{http_code}' -o /dev/null http://stock.mesh/echo";
    assert_eq!(shop.shell("till", line), "200");
    // What is not of the mesh is reached as before.
    let line = "curl -sSk -w '%{http_code}' -o /dev/null https://kubernetes.default.svc/healthz";
    assert_eq!(shop.shell("till", line), "200");
}

#[test]
fn a_mistake_is_an_event_at_what_makes_the_pod_and_other_pods_start() {
    let rig = need_rig!();
    let shop = Namespace::restricted(west(&rig), "mistakes");
    shop.apply(&deployment("wrong", json!({"tollway.dev/port": "high"}), client()));
    shop.apply(&deployment("odd", json!({"tollway.dev/porrt": "8080"}), client()));
    shop.apply(&deployment("right", json!({}), client()));
    ["odd", "right"].iter().for_each(|name| shop.wait_rolled_out(name));
    let events = ["get", "events", "--output=json"];
    let found = |name: &str, reason: &str, words: &str, printed: &str| {
        let events: Value = serde_json::from_str(printed).unwrap_or_default();
        events["items"].as_array().into_iter().flatten().any(|event| {
            event["involvedObject"]["kind"] == "ReplicaSet"
                && event["involvedObject"]["name"].as_str().is_some_and(|it| it.starts_with(name))
                && event["reason"] == reason
                && event["message"].as_str().is_some_and(|it| it.contains(words))
        })
    };
    shop.wait_for(&events, |it| found("wrong-", "FailedCreate", "tollway.dev/port", it));
    shop.wait_for(&events, |it| found("odd-", "SidecarNote", "tollway.dev/porrt", it));
}

#[test]
fn a_job_ends_although_its_pod_has_a_sidecar() {
    let rig = need_rig!();
    let shop = Namespace::restricted(west(&rig), "jobs");
    shop.apply(&deployment("stock", json!({"tollway.dev/port": "8080"}), server()));
    shop.wait_rolled_out("stock");
    let call = "curl -sSf http://127.0.0.1:3500/v1.0/invoke/stock/method/echo";
    let mut caller = client();
    caller["command"] = json!(["/bin/sh", "-c", call]);
    shop.apply(&job("count", json!({}), caller));
    shop.wait_for(&["get", "job/count", "--output=jsonpath={.status.succeeded}"], |it| it == "1");
}

/// Without an injector pods that want sidecars are not made, and others are. It comes back with another
/// certificate, which the API server trusts.
#[test]
fn without_an_injector_pods_wait_and_others_start() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::restricted(cluster, "waits");
    let plain = Namespace::new(cluster, "goes-on", &[]);
    let scale = |replicas: &str| {
        let replicas = format!("--replicas={replicas}");
        cluster.kubectl(&["--namespace=tollway", "scale", "deployment/tollway-injector", &replicas])
    };
    scale("0").unwrap();
    let gone = [
        "--namespace=tollway",
        "get",
        "endpointslices",
        "--selector=kubernetes.io/service-name=tollway-injector",
        "--output=jsonpath={.items[*].endpoints[*].addresses}",
    ];
    cluster.wait_for(crate::support::SOON, &gone, str::is_empty).unwrap();
    // As if it had been restored from nothing.
    let empty = [
        "--namespace=tollway",
        "patch",
        "secret/tollway-injector",
        "--type=merge",
        "--patch={\"data\":null}",
    ];
    cluster.kubectl(&empty).unwrap();
    shop.apply(&deployment("waits", json!({}), client()));
    plain.apply(&deployment("starts", json!({}), client()));
    plain.wait_rolled_out("starts");
    shop.wait_for(&["get", "events"], |it| it.contains("FailedCreate"));
    assert_eq!(shop.kubectl(&["get", "pods", "--output=name"]), "");
    scale("2").unwrap();
    let ready = [
        "--namespace=tollway",
        "rollout",
        "status",
        "deployment/tollway-injector",
        "--timeout=60s",
    ];
    cluster
        .kubectl(&ready)
        .unwrap_or_else(|error| panic!("{error:#}\n{}", state(cluster, "tollway")));
    shop.wait_for(
        &["get", "deployment/waits", "--output=jsonpath={.status.readyReplicas}"],
        |it| it == "1",
    );
}
