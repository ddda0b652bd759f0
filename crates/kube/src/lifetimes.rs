//! A watch of which pods of the cluster end.
//!
//! The API server is asked for pods that have not ended, so that one whose phase becomes `Failed` or
//! `Succeeded` is reported as a deleted one is; and for their metadata alone.

use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tollway_control::PodEvent;

use crate::follow::{Followed, Watch};

/// Pods that have not ended.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Reports until the receiver is dropped.
pub(crate) async fn follow(client: Client, events: mpsc::Sender<PodEvent>) {
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client);
    let followed = Followed {
        what: "pods of the cluster",
        meanwhile: "registrations of those that are deleted end with their leases",
        hint: "it needs the rights to list and watch pods of the cluster",
    };
    let mut watch = Watch::new(pods, Config::default().fields(RUNNING), followed);
    while let Some(event) = watch.next().await {
        for event in reported(&event) {
            if events.send(event).await.is_err() {
                return;
            }
        }
    }
}

/// What an event means. Changes of a pod that runs on mean nothing.
fn reported(event: &Event<PartialObjectMeta<Pod>>) -> Vec<PodEvent> {
    let uid = |pod: &PartialObjectMeta<Pod>| pod.metadata.uid.clone();
    // The API server sets the time when the pod begins to terminate.
    let leaving = |pod: &PartialObjectMeta<Pod>| {
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        uid(pod).filter(|_| is_leaving).map(|uid| PodEvent::Leaving { uid })
    };
    match event {
        Event::Init => vec![PodEvent::ListBegins],
        Event::InitApply(pod) => {
            let listed = uid(pod).map(|uid| PodEvent::Listed { uid });
            listed.into_iter().chain(leaving(pod)).collect()
        }
        Event::InitDone => vec![PodEvent::ListEnds],
        Event::Apply(pod) => leaving(pod).into_iter().collect(),
        Event::Delete(pod) => uid(pod).map(|uid| PodEvent::Ended { uid }).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_watch_reports_which_pods_there_are_and_which_end() {
        let pod = |uid: &str| {
            let metadata = json!({"metadata": {"name": "a", "namespace": "shop", "uid": uid}});
            serde_json::from_value::<PartialObjectMeta<Pod>>(metadata).unwrap()
        };
        let uid = || "u-1".to_owned();
        let listed = || PodEvent::Listed { uid: uid() };
        let is_leaving = || PodEvent::Leaving { uid: uid() };
        assert_eq!(reported(&Event::Init), [PodEvent::ListBegins]);
        assert_eq!(reported(&Event::InitApply(pod("u-1"))), [listed()]);
        assert_eq!(reported(&Event::InitDone), [PodEvent::ListEnds]);
        assert_eq!(reported(&Event::Apply(pod("u-1"))), []);
        let mut leaving = pod("u-1");
        let time = json!("2026-01-02T03:04:05Z");
        leaving.metadata.deletion_timestamp = serde_json::from_value(time).unwrap();
        assert_eq!(reported(&Event::InitApply(leaving.clone())), [listed(), is_leaving()]);
        assert_eq!(reported(&Event::Apply(leaving)), [is_leaving()]);
        assert_eq!(reported(&Event::Delete(pod("u-1"))), [PodEvent::Ended { uid: uid() }]);
    }
}
