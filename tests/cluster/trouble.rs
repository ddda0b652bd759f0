//! Calls go on while pods, and parts of the install, are replaced.

use serde_json::{Value, json};
use tollway_testkit::Cluster;

use crate::support::{
    Namespace, OwnInstall, calls_during, deployment, need_rig, reinstall, server, west,
};

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

/// A volume on a machine of `a`, of which nothing stays but its folder.
struct Volume<'a> {
    cluster: Cluster<'a>,
    name: String,
}

impl<'a> Volume<'a> {
    fn new(cluster: Cluster<'a>) -> Self {
        // Another one each time: what an earlier run left is bound to that one's claim.
        let since = std::time::UNIX_EPOCH.elapsed().unwrap();
        let name = format!("tollway-store-{}", since.as_millis());
        let volume = Self { cluster, name };
        let folder = format!("/var/lib/{}", volume.name);
        // The folder has to be there before a pod has the volume.
        let maker = Namespace::new(cluster, "volume-maker", &[]);
        let machine = json!({"kubernetes.io/hostname": "a1"});
        let parent = json!({"path": folder, "type": "DirectoryOrCreate"});
        let container = json!({
            "name": "main", "image": "localhost/box:1", "command": ["/bin/true"],
            "volumeMounts": [{"name": "folder", "mountPath": "/folder"}],
        });
        maker.apply(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "maker"},
            "spec": {
                "restartPolicy": "Never", "nodeSelector": machine, "containers": [container],
                "volumes": [{"name": "folder", "hostPath": parent}],
            },
        }));
        let phase = ["get", "pod/maker", "--output=jsonpath={.status.phase}"];
        maker.wait_for(&phase, |phase| phase == "Succeeded");
        let on_a1 = json!([{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a1"]},
        ]}]);
        maker.apply(&json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume.name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "local": {"path": folder},
                "nodeAffinity": {"required": {"nodeSelectorTerms": on_a1}},
            },
        }));
        volume
    }
}

impl Drop for Volume<'_> {
    fn drop(&mut self) {
        let delete =
            ["delete", "persistentvolume", &self.name, "--ignore-not-found", "--wait=false"];
        if let Err(error) = self.cluster.kubectl(&delete) {
            eprintln!("the volume stays: {error:#}");
        }
    }
}

#[test]
fn no_call_fails_while_the_pod_of_the_control_plane_is_replaced_and_its_volume_has_all_it_knew() {
    let rig = need_rig!();
    let cluster = rig.cluster("a");
    let _volume = Volume::new(cluster);
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
