//! The Services of a cluster and the pods behind them: watched for the control plane, which has those called
//! in the mesh whose pods have sidecars.
//!
//! Three watches, of Services, EndpointSlices and the metadata of pods, come together in `merged`.

mod merged;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tollway_control::{Following, ServiceEvent, Services};
use tollway_model::NetworkName;

use self::merged::Merged;
pub(crate) use self::merged::tcp_ports;
use crate::Cluster;
use crate::follow::{Followed, Watch};

impl Services for Cluster {
    fn follow(&self, network: NetworkName, events: mpsc::Sender<ServiceEvent>) -> Following<'_> {
        Box::pin(follow(self.client.clone(), network, events))
    }
}

/// Reports until the receiver is dropped.
async fn follow(client: Client, network: NetworkName, events: mpsc::Sender<ServiceEvent>) {
    let followed = |what| Followed {
        what,
        meanwhile: "Services are called as they were known last",
        hint: "it needs the rights to list and watch services, endpointslices and pods of the cluster",
    };
    let services: Api<Service> = Api::all(client.clone());
    let slices: Api<EndpointSlice> = Api::all(client.clone());
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client);
    let of_all = Config::default;
    let mut services = Watch::new(services, of_all(), followed("services of the cluster"));
    let mut slices = Watch::new(slices, of_all(), followed("endpointslices of the cluster"));
    let mut pods = Watch::new(pods, of_all(), followed("pods of the cluster, for its Services"));
    let mut merged = Merged::of(network);
    loop {
        let changed = tokio::select! {
            Some(event) = services.next() => merged.note_service(event),
            Some(event) = slices.next() => merged.note_slice(event),
            Some(event) = pods.next() => merged.note_pod(event),
            else => return,
        };
        for event in changed {
            if events.send(event).await.is_err() {
                return;
            }
        }
    }
}
