//! Volumes for stores.

use serde_json::json;
use tollway_testkit::Cluster;

use crate::support::Namespace;

/// A volume on a machine, of which nothing stays but its folder.
pub(crate) struct Volume<'a> {
    cluster: Cluster<'a>,
    name: String,
}

impl<'a> Volume<'a> {
    pub(crate) fn new(cluster: Cluster<'a>, machine: &str) -> Self {
        // Another one each time: what an earlier run left is bound to that one's claim.
        let since = std::time::UNIX_EPOCH.elapsed().unwrap();
        let name = format!("tollway-store-{}", since.as_nanos());
        let volume = Self { cluster, name };
        let folder = format!("/var/lib/{}", volume.name);
        // The folder has to be there before a pod has the volume.
        let maker = Namespace::new(cluster, "volume-maker", &[]);
        let selector = json!({"kubernetes.io/hostname": machine});
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
                "restartPolicy": "Never", "nodeSelector": selector, "containers": [container],
                "volumes": [{"name": "folder", "hostPath": parent}],
            },
        }));
        let phase = ["get", "pod/maker", "--output=jsonpath={.status.phase}"];
        maker.wait_for(&phase, |phase| phase == "Succeeded");
        let on_machine = json!([{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [machine]},
        ]}]);
        maker.apply(&json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume.name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "local": {"path": folder},
                "nodeAffinity": {"required": {"nodeSelectorTerms": on_machine}},
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
