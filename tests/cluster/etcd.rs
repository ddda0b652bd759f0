//! A control plane of several replicas over an etcd of its own: what of them ends costs no call, and nothing that
//! they knew.

use std::time::Instant;

use serde_json::{Value, json};
use tollway_testkit::Cluster;

use crate::killed::{record, rounds};
use crate::support::{
    Calls, Namespace, OwnInstall, at_control, calls_during, client, deployment, kill_control_of,
    need_rig, server,
};
use crate::volume::Volume;

/// Under the name of its test, for its objects.
const NAME: &str = "tripled";
/// A command that writes to the store.
const TOKEN: [&str; 3] = ["token", "create", "--namespace=tripled"];

/// The install, and the app `stock` with two replicas.
struct Tripled<'a> {
    install: OwnInstall<'a>,
    pin: String,
    /// After the install: what is in use is not removed.
    _volumes: [Volume<'a>; 3],
}

impl<'a> Tripled<'a> {
    fn new(cluster: Cluster<'a>) -> Self {
        let volumes = ["a1", "a1", "a2"].map(|machine| Volume::new(cluster, machine));
        let network = format!("network={NAME}");
        let values = [
            network.as_str(),
            "control.replicas=3",
            "control.store=etcd",
            "control.etcd.own.enabled=true",
            "control.etcd.own.image=localhost/etcd:1",
            "control.etcd.own.volume.storageClass=-",
            "control.etcd.own.volume.size=1Gi",
        ];
        let install = OwnInstall::new(cluster, NAME, &values);
        let root = ["get", "configmap/tollway-root", "--output=jsonpath={.data.root-pin}"];
        let root = install.namespace.wait_for(&root, |pin| pin.contains("-root.tripled."));
        let tripled = Self { install, pin: format!("--root-pin={root}"), _volumes: volumes };
        let mut stock = deployment("stock", json!({"tollway.dev/port": "8080"}), server());
        stock["spec"]["replicas"] = json!(2);
        tripled.apply(&stock);
        tripled.shop().wait_rolled_out("stock");
        tripled
    }

    fn shop(&self) -> &Namespace<'a> {
        &self.install.namespace
    }

    fn apply(&self, object: &Value) {
        self.install.apply_injected(object, &[&self.pin]);
    }

    fn under_calls(&self, seconds: u32, trouble: impl FnOnce()) -> Calls {
        calls_during(self.shop(), |object| self.apply(object), "stock", seconds, trouble)
    }

    /// The one pod that serves.
    fn serving(&self) -> String {
        let serves = "--selector=tollway.dev/serves=true";
        let name = "--output=jsonpath={.items[*].metadata.name}";
        let is_one = |names: &str| names.split_whitespace().count() == 1;
        self.shop().wait_for(&["get", "pods", serves, name], is_one)
    }

    /// Waits until a control plane serves, which writes then.
    fn wait_serves(&self) {
        // An error has several words.
        let is_token = |printed: &str| printed.split_whitespace().count() == 1;
        self.shop().wait_for(&at_control(&TOKEN), is_token);
    }

    fn wait_ready(&self, set: &str, replicas: &str) {
        let set = format!("statefulset/{set}");
        let ready = ["get", &set, "--output=jsonpath={.status.readyReplicas}"];
        self.shop().wait_for(&ready, |ready| ready == replicas);
    }

    fn root(&self) -> String {
        self.install.control(&["identity", "root"])
    }
}

#[test]
fn a_control_plane_of_three_over_its_own_etcd_outlives_each_of_its_parts() {
    let rig = need_rig!();
    let tripled = Tripled::new(rig.cluster("a"));
    let shop = tripled.shop();
    let root = tripled.root();
    assert!(tripled.pin.ends_with(root.trim()), "{root}");
    shop.apply(&deployment("stranger", json!({}), client()));
    shop.wait_rolled_out("stranger");
    let ask = "curl -sk https://tollway-etcd:2379/health || echo refused";
    assert_eq!(shop.shell("stranger", ask).trim(), "refused", "it has no certificate");
    for _ in 0..rounds() {
        let serving = tripled.serving();
        let mut took = None;
        let calls = tripled.under_calls(12, || {
            let begun = Instant::now();
            kill_control_of(NAME, &serving);
            // Any of the three may take over: the kubelet starts this one again before its lease ends.
            tripled.wait_serves();
            took = Some(begun.elapsed());
            // A pod that is made now is enrolled by the one that has taken over.
            shop.kubectl(&["rollout", "restart", "deployment/stock"]);
            shop.wait_rolled_out("stock");
        });
        record("control plane of three", &calls, took);
        assert_eq!(calls.failed, 0, "{calls:?}");
        assert_eq!(tripled.root(), root);
        tripled.wait_ready("tollway-control", "3");
    }
    for member in 0..rounds() {
        let calls = tripled.under_calls(12, || {
            let pod = format!("pod/tollway-etcd-{}", member % 3);
            shop.kubectl(&["delete", &pod, "--force", "--grace-period=0"]);
            // Two of three decide.
            assert!(!tripled.install.control(&TOKEN).is_empty());
            tripled.wait_ready("tollway-etcd", "3");
        });
        record("member of etcd", &calls, None);
        assert_eq!(calls.failed, 0, "{calls:?}");
        assert_eq!(tripled.root(), root);
    }
    let calls = tripled.under_calls(30, || {
        for set in ["tollway-etcd", "tollway-control"] {
            let set = format!("statefulset/{set}");
            shop.kubectl(&["rollout", "restart", &set]);
            shop.kubectl(&["rollout", "status", &set, "--timeout=120s"]);
        }
    });
    assert_eq!(calls.failed, 0, "{calls:?}");
    assert_eq!(tripled.root(), root);
}
