//! Calls go on while pods, and parts of the install, are replaced.

use serde_json::{Value, json};

use crate::support::{
    Namespace, OwnInstall, calls_during, deployment, need_rig, reinstall, server, west,
};
use crate::volume::Volume;

/// Two replicas of `stock`, which a Job calls while `trouble` is under way; no call may fail.
fn under_load(shop: &Namespace<'_>, trouble: impl FnOnce()) {
    under_load_of(shop, |object| shop.apply(object), trouble);
}

/// The same, with pods whose sidecars `apply` has to add.
fn under_load_of(shop: &Namespace<'_>, apply: impl Fn(&Value), trouble: impl FnOnce()) {
    let mut stock = deployment("stock", json!({"tollway.dev/port": "8080"}), server());
    stock["spec"]["replicas"] = json!(2);
    stock["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(20);
    apply(&stock);
    shop.wait_rolled_out("stock");
    let calls = calls_during(shop, apply, "stock", 20, trouble);
    assert!(calls.failed == 0 && calls.answered > 1_800, "{calls:?}");
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
fn no_call_fails_while_the_pod_of_the_control_plane_is_replaced_and_its_volume_has_all_it_knew() {
    let rig = need_rig!();
    let cluster = rig.cluster("a");
    let _volume = Volume::new(cluster, "a1");
    let values = ["network=kept", "control.store=volume", "control.volume.storageClass=-"];
    let kept = OwnInstall::new(cluster, "kept", &values);
    let shop = &kept.namespace;
    let root = ["get", "configmap/tollway-root", "--output=jsonpath={.data.root-pin}"];
    let root = shop.wait_for(&root, |pin| pin.contains("-root.kept."));
    let pin = format!("--root-pin={root}");
    let uid_and_ready = "--output=jsonpath={.metadata.uid} {.status.containerStatuses[0].ready}";
    let pod = ["get", "pod/tollway-control-0", uid_and_ready];
    // Each instance, without the times.
    let identities = || {
        let listed: Value =
            serde_json::from_str(&kept.control(&["identity", "list", "--json"])).unwrap();
        let listed = listed.as_array().unwrap();
        let mut names: Vec<String> =
            listed.iter().map(|one| format!("{} {}", one["app"], one["instance"])).collect();
        names.sort();
        names
    };
    let services = || {
        let known: Value =
            serde_json::from_str(&kept.control(&["get", "services", "--json"])).unwrap();
        known["services"].as_array().unwrap().clone()
    };
    under_load_of(
        shop,
        |object| kept.apply_injected(object, &[&pin]),
        || {
            let before = (shop.kubectl(&pod), identities(), services());
            shop.kubectl(&["delete", "pod/tollway-control-0"]);
            let is_another = |seen: &str| seen.ends_with(" true") && seen != before.0;
            shop.wait_for(&pod, is_another);
            assert_eq!(kept.control(&["identity", "root"]).trim(), root);
            assert_eq!(identities(), before.1);
            assert_eq!(services(), before.2, "nothing had to register again");
        },
    );
}
