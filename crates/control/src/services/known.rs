//! Decides which Services of a cluster are written to the store, and which are removed from it. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tollway_model::Label;

use super::{ClusterService, ServiceEvent};

/// Services of one namespace that are followed.
pub(crate) const SERVICES_PER_NAMESPACE_LIMIT: usize = 5_000;

/// Namespace and name.
type Name = (Label, Label);

/// The Services that the cluster has reported, and those that are stored.
#[derive(Default, Debug)]
pub(crate) struct KnownServices {
    /// Those that are to be stored.
    reported: BTreeMap<Name, Arc<ClusterService>>,
    stored: BTreeMap<Name, Arc<ClusterService>>,
    /// What has been reported since the watch began, until that is all.
    listed: Option<BTreeSet<Name>>,
    /// Whether all Services have been reported once.
    is_complete: bool,
    due: BTreeSet<Name>,
    per_namespace: BTreeMap<Label, Counts>,
}

#[derive(Default, Debug)]
struct Counts {
    followed: usize,
    left_out: BTreeSet<Label>,
}

/// What is to be done to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Put(Arc<ClusterService>),
    Delete(Label, Label),
}

impl KnownServices {
    /// With those that are stored.
    pub(crate) fn new(stored: Vec<Arc<ClusterService>>) -> Self {
        let name = |service: Arc<ClusterService>| (name(&service), service);
        Self { stored: stored.into_iter().map(name).collect(), ..Self::default() }
    }

    /// Takes an event. Returns a namespace of which a Service is left out, and none was before.
    pub(crate) fn note(&mut self, event: ServiceEvent) -> Option<Label> {
        match event {
            ServiceEvent::Begins => self.listed = Some(BTreeSet::new()),
            ServiceEvent::Changed(service) => {
                let name = name(&service);
                if let Some(listed) = &mut self.listed {
                    listed.insert(name.clone());
                }
                return self.take(name, service);
            }
            ServiceEvent::Deleted(namespace, name) => self.forget(&(namespace, name)),
            ServiceEvent::Complete => {
                if let Some(listed) = self.listed.take() {
                    let gone = self.reported.keys().filter(|name| !listed.contains(name));
                    let gone: Vec<Name> = gone.cloned().collect();
                    gone.iter().for_each(|name| self.forget(name));
                }
                self.is_complete = true;
                let left = self.stored.keys().filter(|name| !self.reported.contains_key(name));
                self.due.extend(left.cloned());
            }
        }
        None
    }

    fn take(&mut self, name: Name, service: ClusterService) -> Option<Label> {
        // None of its pods takes calls of the mesh: it is called as without one.
        if !service.pods().any(|pod| pod.app_port.is_some()) {
            self.forget(&name);
            return None;
        }
        let counts = self.per_namespace.entry(name.0.clone()).or_default();
        if !self.reported.contains_key(&name) {
            if counts.followed >= SERVICES_PER_NAMESPACE_LIMIT {
                let is_first = counts.left_out.is_empty();
                counts.left_out.insert(name.1);
                return is_first.then_some(name.0);
            }
            counts.followed += 1;
        }
        self.reported.insert(name.clone(), Arc::new(service));
        self.compare(name);
        None
    }

    fn forget(&mut self, name: &Name) {
        let is_followed = self.reported.remove(name).is_some();
        if let Some(counts) = self.per_namespace.get_mut(&name.0) {
            counts.followed -= usize::from(is_followed);
            counts.left_out.remove(&name.1);
            if counts.followed == 0 && counts.left_out.is_empty() {
                self.per_namespace.remove(&name.0);
            }
        }
        self.compare(name.clone());
    }

    /// Notes whether what is stored is to be changed. What has not been reported yet stays.
    fn compare(&mut self, name: Name) {
        let (reported, stored) = (self.reported.get(&name), self.stored.get(&name));
        let is_right = reported == stored || (reported.is_none() && !self.is_complete);
        if is_right {
            self.due.remove(&name);
        } else {
            self.due.insert(name);
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Some of what is to be done.
    pub(crate) fn due(&self, limit: usize) -> Vec<Step> {
        let step = |name: &Name| match self.reported.get(name) {
            Some(service) => Step::Put(service.clone()),
            None => Step::Delete(name.0.clone(), name.1.clone()),
        };
        self.due.iter().take(limit).map(step).collect()
    }

    /// These have been done.
    pub(crate) fn written(&mut self, steps: Vec<Step>) {
        for step in steps {
            let name = match step {
                Step::Put(service) => {
                    let name = name(&service);
                    self.stored.insert(name.clone(), service);
                    name
                }
                Step::Delete(namespace, name) => {
                    let name = (namespace, name);
                    self.stored.remove(&name);
                    name
                }
            };
            self.compare(name);
        }
    }
}

fn name(service: &ClusterService) -> Name {
    (service.namespace.clone(), service.name.clone())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::{PodGroup, PortTarget, ServedPod};
    use super::*;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    /// With a pod for each port on which its app takes calls; 0 for a pod without a sidecar.
    fn service(name: &str, app_ports: &[u16]) -> ClusterService {
        let pod = |(at, port): (usize, &u16)| ServedPod {
            address: IpAddr::from([10, 1, 0, u8::try_from(at).unwrap() + 1]),
            is_ready: true,
            app_port: (*port > 0).then_some(*port),
            zone: None,
        };
        let group = PodGroup {
            targets: vec![PortTarget { port: 80, target: 8080 }],
            pods: app_ports.iter().enumerate().map(pod).collect(),
        };
        ClusterService {
            namespace: label("shop"),
            name: label(name),
            addresses: vec![IpAddr::from([10, 96, 0, 7])],
            groups: vec![group],
        }
    }

    fn changed(known: &mut KnownServices, service: &ClusterService) {
        assert_eq!(known.note(ServiceEvent::Changed(service.clone())), None);
    }

    fn due(known: &KnownServices) -> Vec<String> {
        let word = |step: &Step| match step {
            Step::Put(service) => format!("put {} {}", service.name, service.pods().count()),
            Step::Delete(_, name) => format!("delete {name}"),
        };
        known.due(10).iter().map(word).collect()
    }

    fn write(known: &mut KnownServices) {
        let steps = known.due(10);
        known.written(steps);
        assert!(!known.is_due());
    }

    #[test]
    fn a_service_is_written_when_it_changes_and_only_if_a_pod_takes_calls_of_the_mesh() {
        let mut known = KnownServices::default();
        known.note(ServiceEvent::Begins);
        changed(&mut known, &service("stock", &[8080]));
        changed(&mut known, &service("plain", &[0, 0]));
        known.note(ServiceEvent::Complete);
        assert_eq!(due(&known), ["put stock 1"]);
        write(&mut known);
        changed(&mut known, &service("stock", &[8080]));
        assert!(!known.is_due(), "it is as it was");
        changed(&mut known, &service("stock", &[8080, 0]));
        changed(&mut known, &service("stock", &[8080, 8080, 0]));
        assert_eq!(due(&known), ["put stock 3"], "the last word alone");
        write(&mut known);
        changed(&mut known, &service("stock", &[0, 0]));
        assert_eq!(due(&known), ["delete stock"]);
        changed(&mut known, &service("stock", &[8080, 8080, 0]));
        assert!(!known.is_due(), "it is back before it was removed");
        known.note(ServiceEvent::Deleted(label("shop"), label("stock")));
        known.note(ServiceEvent::Deleted(label("shop"), label("never")));
        assert_eq!(due(&known), ["delete stock"]);
        write(&mut known);
        assert!(known.per_namespace.is_empty());
    }

    /// The harm: while Services are listed anew, those that come late would be called without the mesh.
    #[test]
    fn what_is_stored_stays_until_all_services_are_known() {
        let stored = ["gone", "same", "changed"].map(|name| Arc::new(service(name, &[8080])));
        let mut known = KnownServices::new(stored.to_vec());
        known.note(ServiceEvent::Begins);
        changed(&mut known, &service("same", &[8080]));
        changed(&mut known, &service("changed", &[8080, 8080]));
        assert_eq!(due(&known), ["put changed 2"]);
        known.note(ServiceEvent::Complete);
        assert_eq!(due(&known), ["put changed 2", "delete gone"]);
        write(&mut known);
        // The watch was broken off, and one was deleted meanwhile.
        known.note(ServiceEvent::Begins);
        changed(&mut known, &service("same", &[8080]));
        assert!(!known.is_due());
        known.note(ServiceEvent::Complete);
        assert_eq!(due(&known), ["delete changed"]);
    }

    #[test]
    fn a_change_during_a_write_is_written_after_it() {
        let mut known = KnownServices::default();
        known.note(ServiceEvent::Complete);
        changed(&mut known, &service("stock", &[8080]));
        let steps = known.due(10);
        changed(&mut known, &service("stock", &[8080, 8080]));
        known.written(steps);
        assert_eq!(due(&known), ["put stock 2"]);
        let steps = known.due(10);
        known.note(ServiceEvent::Deleted(label("shop"), label("stock")));
        known.written(steps);
        assert_eq!(due(&known), ["delete stock"]);
    }

    /// The harm: who may make Services in one namespace fills the store of all.
    #[test]
    fn so_many_services_of_a_namespace_are_followed() {
        let mut known = KnownServices::default();
        known.note(ServiceEvent::Complete);
        let limit = SERVICES_PER_NAMESPACE_LIMIT;
        let name = |number: usize| format!("s{number}");
        (0..limit).for_each(|number| changed(&mut known, &service(&name(number), &[8080])));
        let more = |known: &mut KnownServices, name: &str| {
            known.note(ServiceEvent::Changed(service(name, &[8080])))
        };
        assert_eq!(more(&mut known, "more"), Some(label("shop")));
        assert_eq!(more(&mut known, "further"), None, "it is said once");
        assert_eq!(known.reported.len(), limit);
        let other = ClusterService { namespace: label("bank"), ..service("stock", &[8080]) };
        changed(&mut known, &other);
        known.note(ServiceEvent::Deleted(label("shop"), label("s0")));
        assert_eq!(more(&mut known, "more"), None);
        assert!(known.reported.contains_key(&(label("shop"), label("more"))));
    }
}
