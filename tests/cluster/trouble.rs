//! Calls go on while pods, and parts of the install, are replaced.

use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::{Namespace, deployment, job, kill_control, need_rig, reinstall, server, west};

/// Two replicas of `stock`, with a Job beside them that calls them a hundred times a second. `trouble`
/// begins when calls flow; no call may fail.
fn under_load(shop: &Namespace<'_>, trouble: impl FnOnce()) {
    let mut stock = deployment("stock", json!({"tollway.dev/port": "8080"}), server());
    stock["spec"]["replicas"] = json!(2);
    stock["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(20);
    shop.apply(&stock);
    shop.wait_rolled_out("stock");
    let mut caller = server();
    caller["args"] = json!([
        "load",
        "http",
        "http://127.0.0.1:3500/v1.0/invoke/stock/method/echo",
        "--rate=100",
        "--duration=20s",
        "--connections=8",
        "--fail-if=error_rate>0%",
        "--fail-if=rps<90",
        "--quiet",
    ]);
    shop.apply(&job("load", json!({}), caller));
    let ready = "--output=jsonpath={.items[*].status.containerStatuses[0].ready}";
    shop.wait_for(&["get", "pods", "--selector=job-name=load", ready], |it| it == "true");
    thread::sleep(Duration::from_secs(3));
    trouble();
    let ended = ["get", "job/load", "--output=jsonpath={.status.conditions[*].type}"];
    let ended = shop.wait_for(&ended, |it| it.contains("Complete") || it.contains("Failed"));
    let report = shop.kubectl(&["logs", "job/load", "--container=main"]);
    assert!(ended.contains("Complete"), "{report}");
}

#[test]
fn no_call_fails_while_the_callee_is_rolled_out() {
    let rig = need_rig!();
    let shop = Namespace::restricted(west(&rig), "rolled-out");
    under_load(&shop, || {
        shop.kubectl(&["rollout", "restart", "deployment/stock"]);
        shop.wait_rolled_out("stock");
    });
}

#[test]
fn no_call_fails_while_the_install_is_upgraded() {
    let rig = need_rig!();
    let cluster = west(&rig);
    let shop = Namespace::restricted(cluster, "upgraded");
    under_load(&shop, || {
        // Both get other pods.
        let values = ["gateway.resources.requests.cpu=21m", "injector.resources.requests.cpu=11m"];
        reinstall(cluster, &values);
    });
}

#[test]
fn no_call_fails_while_the_control_plane_starts_again() {
    let rig = need_rig!();
    let shop = Namespace::restricted(west(&rig), "uncontrolled");
    under_load(&shop, kill_control);
}
