//! Ends the registrations of pods that have ended, as soon as the cluster reports it. Without a watch of the
//! cluster they end with their leases.

use std::sync::Arc;

use prost::Message as _;
use tokio::sync::mpsc;
use tollway_store::{Entry, Expected, LeaseError, Store, TransactError, Transaction};
use tollway_wire::v1;
use tracing::{info, warn};

use super::enrolled::{Ended, Step};
use super::{Cluster, PodEvent, PodId};
use crate::instance_keys::InstanceKeys;
use crate::issue::Claim;
use crate::key::Key;
use crate::tokens::is_gateway;

/// Events that wait for the store; the watch waits with more.
const EVENTS_LIMIT: usize = 256;

pub(crate) struct Lifetimes {
    pub(crate) cluster: Cluster,
    pub(crate) keys: Arc<InstanceKeys>,
    pub(crate) store: Store,
}

impl Lifetimes {
    /// Runs until it is dropped.
    pub(crate) async fn follow(self) {
        let (sender, mut events) = mpsc::channel(EVENTS_LIMIT);
        let taking = async {
            while let Some(event) = events.recv().await {
                self.take(&event).await;
            }
        };
        tokio::join!(self.cluster.options.pods.follow(sender), taking);
    }

    async fn take(&self, event: &PodEvent) {
        let mut step = self.cluster.enrolled().note(event);
        if step == Step::Load {
            let mut stored = Vec::new();
            let read = self.keys.each_pod(|pod, claim| stored.push((pod, claim))).await;
            if let Err(error) = read {
                warn!(%error, "pods that have enrolled cannot be read; the registrations of those that have ended meanwhile end with their leases");
                return;
            }
            let mut enrolled = self.cluster.enrolled();
            enrolled.load(stored);
            step = enrolled.note(event);
        }
        match step {
            Step::Nothing | Step::Load => {}
            Step::End(ended) => self.end(&ended).await,
            Step::Leave(leaving) => self.leave(&leaving).await,
            Step::Ask(pods) => self.ask(pods).await,
        }
    }

    /// Callers are sent nothing more: the app of a pod that is about to end stops taking connections, and
    /// those that it has not taken yet are reset. Its sidecar serves what is under way.
    async fn leave(&self, leaving: &Ended) {
        let PodId { namespace, name, uid } = &leaving.pod;
        for claim in leaving.claims.iter().filter(|claim| !is_gateway(&claim.service)) {
            let left = match self.keys.is_of_pod(claim, uid).await {
                Ok(true) => {
                    self.cluster.enrolled().withhold(claim, uid);
                    self.withhold(claim).await
                }
                // Another pod, or the holder of a join token, has the name.
                Ok(false) => continue,
                Err(status) => Err(status.message().to_owned()),
            };
            match left {
                Ok(was_ready) => {
                    info!(%claim, pod = name, namespace, was_ready, "a pod is about to end")
                }
                Err(reason) => {
                    warn!(%claim, pod = name, namespace, reason, "that a pod is about to end is not stored; it is called until it ends");
                }
            }
        }
    }

    /// Has a registration not be ready any more. Returns whether it was.
    async fn withhold(&self, claim: &Claim) -> Result<bool, String> {
        let Claim { service, instance } = claim;
        let key = Key::Workload {
            namespace: service.namespace.clone(),
            app: service.app.clone(),
            instance: instance.clone(),
        }
        .encode();
        let entry = self.store.get(&key).await.map_err(|error| tollway_model::chain(&error))?;
        let Some(Entry { value, revision, lease: Some(lease), .. }) = entry else {
            return Ok(false);
        };
        let stored = v1::Workload::decode(value).map_err(|error| error.to_string())?;
        if !stored.ready {
            return Ok(false);
        }
        let value = v1::Workload { ready: false, ..stored }.encode_to_vec();
        let put = Transaction::new()
            .when(key.clone(), Expected::Revision(revision))
            .put_leased(key, value, lease);
        match self.store.transact(put).await {
            Ok(_) => Ok(true),
            // It has changed by itself, or has gone.
            Err(TransactError::Conflict { .. } | TransactError::NoLease { .. }) => Ok(false),
            Err(error) => Err(tollway_model::chain(&error)),
        }
    }

    async fn ask(&self, pods: Vec<PodId>) {
        for pod in pods {
            match self.cluster.options.pods.runs(&pod).await {
                Ok(true) => {}
                Ok(false) => {
                    let ended = self.cluster.enrolled().end(&pod.uid);
                    if let Some(ended) = ended {
                        self.end(&ended).await;
                    }
                }
                Err(error) => {
                    warn!(pod = pod.name, namespace = pod.namespace, %error, "whether a pod still runs is not known");
                }
            }
        }
    }

    async fn end(&self, ended: &Ended) {
        let PodId { namespace, name, uid } = &ended.pod;
        for claim in &ended.claims {
            match self.keys.end_pod(claim, uid).await {
                Ok(true) => {}
                // Another pod, or the holder of a join token, has the name.
                Ok(false) => continue,
                Err(status) => {
                    let reason = status.message();
                    warn!(%claim, pod = name, namespace, reason, "that a pod has ended is not noted; its registration ends with its lease");
                    continue;
                }
            }
            let was_registered = self.withdraw(claim).await;
            info!(%claim, pod = name, namespace, was_registered, "a pod has ended");
        }
    }

    /// Ends the lease of a registration. Returns whether there was one.
    async fn withdraw(&self, claim: &Claim) -> bool {
        let Claim { service, instance } = claim;
        let key = match is_gateway(service) {
            true => Key::Gateway { instance: instance.clone() },
            false => Key::Workload {
                namespace: service.namespace.clone(),
                app: service.app.clone(),
                instance: instance.clone(),
            },
        };
        let entry = match self.store.get(&key.encode()).await {
            Ok(entry) => entry,
            Err(error) => {
                warn!(%claim, %error, "a registration cannot be read; it ends with its lease");
                return false;
            }
        };
        let Some(lease) = entry.and_then(|entry| entry.lease) else { return false };
        match self.store.revoke(lease).await {
            Ok(()) => true,
            Err(LeaseError::NoLease { .. }) => false,
            Err(error) => {
                let reason = tollway_model::chain(&error);
                warn!(%claim, reason, "a lease was not revoked; it ends by itself");
                false
            }
        }
    }
}
