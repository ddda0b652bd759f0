//! Decides which Services of a cluster are written to the store, and which are removed from it. No I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tollway_model::Label;

use super::{ClusterService, ServedPod, ServiceEvent};

/// Services of one namespace that are followed.
pub(crate) const SERVICES_PER_NAMESPACE_LIMIT: usize = 5_000;
/// Bytes of the largest Service: the store and etcd take little more in one value.
pub(crate) const SERVICE_BYTES_LIMIT: usize = 900 * 1024;
/// Bytes of the Services of one namespace.
pub(crate) const SERVICES_BYTES_PER_NAMESPACE_LIMIT: usize = 8 * 1024 * 1024;
/// Ports of one Service; Kubernetes has no limit of its own.
pub(crate) const PORTS_PER_SERVICE_LIMIT: usize = 100;

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
    /// By namespace.
    due: BTreeMap<Label, BTreeSet<Label>>,
    /// The namespace whose turn was last.
    last: Option<Label>,
    per_namespace: BTreeMap<Label, Counts>,
}

#[derive(Default, Debug)]
struct Counts {
    followed: usize,
    bytes: usize,
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
                let left: Vec<Name> = left.cloned().collect();
                left.into_iter().for_each(|name| self.compare(name));
            }
        }
        None
    }

    fn take(&mut self, name: Name, service: ClusterService) -> Option<Label> {
        let takes_calls = service.pods().any(ServedPod::takes_calls);
        // One of the mesh whose pods are away stays, so that its callers do not leave the mesh meanwhile.
        let is_known = self.reported.contains_key(&name) || self.stored.contains_key(&name);
        let is_served = service.pods().any(|pod| pod.is_ready);
        if !takes_calls && (is_served || !is_known) {
            self.forget(&name);
            return None;
        }
        let size = service.size();
        let before = self.reported.get(&name).map(|service| service.size());
        let counts = self.per_namespace.entry(name.0.clone()).or_default();
        let followed = counts.followed + usize::from(before.is_none());
        let bytes = counts.bytes - before.unwrap_or(0) + size;
        let fits = followed <= SERVICES_PER_NAMESPACE_LIMIT
            && size <= SERVICE_BYTES_LIMIT
            && bytes <= SERVICES_BYTES_PER_NAMESPACE_LIMIT
            && service.ports.len() <= PORTS_PER_SERVICE_LIMIT;
        if !fits {
            let is_first = counts.left_out.is_empty();
            self.forget(&name);
            let (namespace, name) = name;
            self.per_namespace.entry(namespace.clone()).or_default().left_out.insert(name);
            return is_first.then_some(namespace);
        }
        (counts.followed, counts.bytes) = (followed, bytes);
        counts.left_out.remove(&name.1);
        self.reported.insert(name.clone(), Arc::new(service));
        self.compare(name);
        None
    }

    fn forget(&mut self, name: &Name) {
        let followed = self.reported.remove(name);
        if let Some(counts) = self.per_namespace.get_mut(&name.0) {
            if let Some(service) = followed {
                counts.followed -= 1;
                counts.bytes -= service.size();
            }
            counts.left_out.remove(&name.1);
            if counts.followed == 0 && counts.left_out.is_empty() {
                self.per_namespace.remove(&name.0);
            }
        }
        self.compare(name.clone());
    }

    /// Notes whether what is stored is to be changed. What has not been reported yet stays.
    fn compare(&mut self, (namespace, name): Name) {
        let key = (namespace, name);
        let (reported, stored) = (self.reported.get(&key), self.stored.get(&key));
        let is_right = reported == stored || (reported.is_none() && !self.is_complete);
        let (namespace, name) = key;
        if !is_right {
            self.due.entry(namespace).or_default().insert(name);
        } else if let Some(names) = self.due.get_mut(&namespace) {
            names.remove(&name);
            if names.is_empty() {
                self.due.remove(&namespace);
            }
        }
    }

    /// A Service as it is stored.
    pub(crate) fn stored(&self, namespace: &Label, name: &Label) -> Option<&ClusterService> {
        self.stored.get(&(namespace.clone(), name.clone())).map(Arc::as_ref)
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Some of what is to be done: namespaces take turns, so that one with many changes does not hold up the
    /// others.
    pub(crate) fn due(&mut self, limit: usize) -> Vec<Step> {
        let is_later = |namespace: &Label| self.last.as_ref().is_none_or(|last| namespace > last);
        let (later, earlier): (Vec<_>, Vec<_>) =
            self.due.iter().partition(|(namespace, _)| is_later(namespace));
        let mut turns: VecDeque<_> = later
            .into_iter()
            .chain(earlier)
            .map(|(namespace, names)| (namespace, names.iter()))
            .collect();
        let (mut steps, mut last) = (Vec::new(), None);
        while steps.len() < limit
            && let Some((namespace, mut names)) = turns.pop_front()
        {
            let Some(name) = names.next() else { continue };
            let key = (namespace.clone(), name.clone());
            steps.push(match self.reported.get(&key) {
                Some(service) => Step::Put(service.clone()),
                None => Step::Delete(key.0, key.1),
            });
            last = Some(namespace.clone());
            turns.push_back((namespace, names));
        }
        self.last = last.or_else(|| self.last.take());
        steps
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

    use tollway_model::AppProtocol;

    use super::super::{PodGroup, PodPorts, PortTarget};
    use super::*;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    /// With a pod for each port on which its app takes calls; 0 for a pod without a sidecar.
    fn service(name: &str, app_ports: &[u16]) -> ClusterService {
        let pod = |(at, port): (usize, &u16)| ServedPod {
            address: IpAddr::from([10, 1, 0, u8::try_from(at).unwrap() + 1]),
            instances: Vec::new(),
            is_ready: true,
            ports: if *port == 0 { PodPorts::None } else { PodPorts::Own(*port) },
            zone: None,
        };
        let group = PodGroup {
            targets: vec![PortTarget { port: 80, target: 8080, protocol: AppProtocol::Tcp }],
            pods: app_ports.iter().enumerate().map(pod).collect(),
        };
        ClusterService {
            namespace: label("shop"),
            name: label(name),
            addresses: vec![IpAddr::from([10, 96, 0, 7])],
            ports: vec![80],
            groups: vec![group],
        }
    }

    fn changed(known: &mut KnownServices, service: &ClusterService) {
        assert_eq!(known.note(ServiceEvent::Changed(service.clone())), None);
    }

    fn due(known: &mut KnownServices) -> Vec<String> {
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
        assert_eq!(due(&mut known), ["put stock 1"]);
        write(&mut known);
        changed(&mut known, &service("stock", &[8080]));
        assert!(!known.is_due(), "it is as it was");
        changed(&mut known, &service("stock", &[8080, 0]));
        changed(&mut known, &service("stock", &[8080, 8080, 0]));
        assert_eq!(due(&mut known), ["put stock 3"], "the last word alone");
        write(&mut known);
        changed(&mut known, &service("stock", &[0, 0]));
        assert_eq!(due(&mut known), ["delete stock"]);
        changed(&mut known, &service("stock", &[8080, 8080, 0]));
        assert!(!known.is_due(), "it is back before it was removed");
        known.note(ServiceEvent::Deleted(label("shop"), label("stock")));
        known.note(ServiceEvent::Deleted(label("shop"), label("never")));
        assert_eq!(due(&mut known), ["delete stock"]);
        write(&mut known);
        assert!(known.per_namespace.is_empty());
    }

    /// The harm: while Services are listed again, those that come late would be called without the mesh.
    #[test]
    fn what_is_stored_stays_until_all_services_are_known() {
        let stored = ["gone", "same", "changed"].map(|name| Arc::new(service(name, &[8080])));
        let mut known = KnownServices::new(stored.to_vec());
        known.note(ServiceEvent::Begins);
        changed(&mut known, &service("same", &[8080]));
        changed(&mut known, &service("changed", &[8080, 8080]));
        assert_eq!(due(&mut known), ["put changed 2"]);
        known.note(ServiceEvent::Complete);
        assert_eq!(due(&mut known), ["put changed 2", "delete gone"]);
        write(&mut known);
        // The watch was broken off, and one was deleted meanwhile.
        known.note(ServiceEvent::Begins);
        changed(&mut known, &service("same", &[8080]));
        assert!(!known.is_due());
        known.note(ServiceEvent::Complete);
        assert_eq!(due(&mut known), ["delete changed"]);
    }

    #[test]
    fn a_change_during_a_write_is_written_after_it() {
        let mut known = KnownServices::default();
        known.note(ServiceEvent::Complete);
        changed(&mut known, &service("stock", &[8080]));
        let steps = known.due(10);
        changed(&mut known, &service("stock", &[8080, 8080]));
        known.written(steps);
        assert_eq!(due(&mut known), ["put stock 2"]);
        let steps = known.due(10);
        known.note(ServiceEvent::Deleted(label("shop"), label("stock")));
        known.written(steps);
        assert_eq!(due(&mut known), ["delete stock"]);
    }

    /// The harm: a Service whose pods are replaced all at once is called in plain text until they are back.
    #[test]
    fn a_service_of_the_mesh_stays_while_none_of_its_pods_is_there() {
        let mut known = KnownServices::new(vec![Arc::new(service("stock", &[8080]))]);
        known.note(ServiceEvent::Begins);
        changed(&mut known, &service("stock", &[]));
        changed(&mut known, &service("never", &[]));
        known.note(ServiceEvent::Complete);
        assert_eq!(due(&mut known), ["put stock 0"]);
        write(&mut known);
        changed(&mut known, &service("stock", &[8080]));
        assert_eq!(due(&mut known), ["put stock 1"]);
        write(&mut known);
        // A pod without a sidecar takes its calls.
        changed(&mut known, &service("stock", &[0]));
        assert_eq!(due(&mut known), ["delete stock"]);
    }

    /// The harm: a namespace in which much changes keeps the Services of others from being stored.
    #[test]
    fn namespaces_take_turns() {
        let mut known = KnownServices::default();
        known.note(ServiceEvent::Complete);
        for number in 0..100 {
            changed(&mut known, &service(&format!("s{number:02}"), &[8080]));
        }
        for namespace in ["bank", "yard"] {
            let other = ClusterService { namespace: label(namespace), ..service("x", &[8080]) };
            changed(&mut known, &other);
        }
        let of = |steps: &[Step]| {
            let of = |step: &Step| match step {
                Step::Put(service) => service.namespace.to_string(),
                Step::Delete(namespace, _) => namespace.to_string(),
            };
            steps.iter().map(of).collect::<Vec<_>>()
        };
        let steps = known.due(2);
        assert_eq!(of(&steps), ["bank", "shop"]);
        // Even if nothing of it was written.
        assert_eq!(of(&known.due(2)), ["yard", "bank"]);
        known.written(steps);
        assert_eq!(of(&known.due(4)), ["shop", "yard", "shop", "shop"]);
    }

    /// The harm: one Service that the store does not take keeps all others from being written.
    #[test]
    fn a_service_that_is_too_large_is_left_out() {
        let mut known = KnownServices::default();
        known.note(ServiceEvent::Complete);
        let pod = service("stock", &[8080]).groups[0].pods[0].clone();
        let mut large = service("stock", &[8080]);
        large.groups[0].pods = vec![pod; SERVICE_BYTES_LIMIT / 32 + 1];
        changed(&mut known, &service("stock", &[8080]));
        write(&mut known);
        assert_eq!(known.note(ServiceEvent::Changed(large)), Some(label("shop")));
        assert_eq!(due(&mut known), ["delete stock"]);
        let mut ports = service("ports", &[8080]);
        ports.ports = vec![80; PORTS_PER_SERVICE_LIMIT + 1];
        assert_eq!(known.note(ServiceEvent::Changed(ports)), None, "it is said once");
        changed(&mut known, &service("stock", &[8080]));
        assert!(!known.is_due(), "it is as it was stored");
        let bytes: Vec<_> = known.per_namespace.values().map(|counts| counts.bytes).collect();
        assert_eq!(bytes, [service("stock", &[8080]).size()]);
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
