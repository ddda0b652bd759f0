//! The Services of the network's Kubernetes cluster: which workloads serve their ports, and what its
//! addresses stand for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tollway_model::{
    AppProtocol, Endpoint, Instance, Label, Locality, ServedPort, ServiceName, ServiceState,
    UnavailableReason, Unready, Workload,
};
use tollway_wire::{ENDPOINTS_PER_SERVICE_LIMIT, PORTS_PER_APP_LIMIT};

use super::{Catalogue, Subject, most_common, unready_by_place};
use crate::services::{ClusterService, PodPorts, PortTarget, ServedPod};

/// Namespace and name of a Service.
type Name = (Label, Label);

#[derive(Default, PartialEq, Debug)]
pub(super) struct ClusterServices {
    by_name: BTreeMap<Name, Arc<ClusterService>>,
    /// By address of a Service.
    by_address: HashMap<IpAddr, BTreeSet<Name>>,
    /// By address of a pod: the Services that have it.
    by_pod: HashMap<IpAddr, BTreeSet<Name>>,
    /// By namespace and instance of a pod: the Services that have it.
    by_instance: HashMap<Name, BTreeSet<Name>>,
    /// Registered workloads by namespace and instance: the services that they are of.
    workloads: HashMap<Name, BTreeSet<ServiceName>>,
}

impl ClusterServices {
    /// Takes a Service in, in place of the one of its name. Returns what changed by it.
    pub(super) fn put(&mut self, service: ClusterService) -> Vec<Subject> {
        let name = (service.namespace.clone(), service.name.clone());
        let before = self.take_out(&name);
        let service = Arc::new(service);
        for address in &service.addresses {
            self.by_address.entry(*address).or_default().insert(name.clone());
        }
        for pod in service.pods() {
            self.by_pod.entry(pod.address).or_default().insert(name.clone());
            for instance in &pod.instances {
                let pod = (service.namespace.clone(), instance.clone());
                self.by_instance.entry(pod).or_default().insert(name.clone());
            }
        }
        self.by_name.insert(name, service.clone());
        changes(before.as_deref(), Some(&service))
    }

    /// Returns what changed by it.
    pub(super) fn remove(&mut self, name: &Name) -> Vec<Subject> {
        let before = self.take_out(name);
        changes(before.as_deref(), None)
    }

    fn take_out(&mut self, name: &Name) -> Option<Arc<ClusterService>> {
        let service = self.by_name.remove(name)?;
        for address in &service.addresses {
            take_out(&mut self.by_address, address, name);
        }
        for pod in service.pods() {
            take_out(&mut self.by_pod, &pod.address, name);
            for instance in &pod.instances {
                take_out(&mut self.by_instance, &(name.0.clone(), instance.clone()), name);
            }
        }
        Some(service)
    }

    /// A workload has registered, or has changed. Returns what changed by it.
    pub(super) fn enter(&mut self, workload: &Workload) -> Vec<Subject> {
        let id = (workload.service.namespace.clone(), workload.instance.clone());
        self.workloads.entry(id.clone()).or_default().insert(workload.service.clone());
        self.concerned_by(&id)
    }

    /// A workload has gone. Returns what changed by it.
    pub(super) fn leave(&mut self, workload: &Workload) -> Vec<Subject> {
        let id = (workload.service.namespace.clone(), workload.instance.clone());
        take_out(&mut self.workloads, &id, &workload.service);
        self.concerned_by(&id)
    }

    /// What the pod of this instance is a part of.
    fn concerned_by(&self, instance: &Name) -> Vec<Subject> {
        let Some(names) = self.by_instance.get(instance) else { return Vec::new() };
        let mut subjects: Vec<_> = names.iter().cloned().map(Subject::ClusterService).collect();
        // Each of its Services has its address.
        if let Some(service) = names.first().and_then(|name| self.by_name.get(name)) {
            let is_it = |pod: &&ServedPod| pod.instances.contains(&instance.1);
            subjects.extend(service.pods().filter(is_it).map(|pod| Subject::Address(pod.address)));
        }
        subjects
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ClusterService>> {
        self.by_name.values()
    }

    /// The names of the ports of a Service.
    pub(super) fn ports(&self, of: &ServiceName) -> Vec<ServiceName> {
        let service = self.by_name.get(&(of.namespace.clone(), of.app.clone()));
        let ports = service.into_iter().flat_map(|service| service.ports.iter());
        ports.map(|port| ServiceName::of_port(&of.app, *port, &of.namespace, &of.network)).collect()
    }
}

fn take_out<K: Eq + Hash, V: Ord>(map: &mut HashMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
    // Memory that many took is given back.
    if map.capacity() > 1_024 && map.len() < map.capacity() / 4 {
        map.shrink_to_fit();
    }
}

/// What differs for callers between two versions of a Service.
fn changes(before: Option<&ClusterService>, now: Option<&ClusterService>) -> Vec<Subject> {
    let mut subjects = Vec::new();
    // What serves its ports.
    if before.map(|of| &of.groups) != now.map(|of| &of.groups)
        && let Some(of) = before.or(now)
    {
        let name = (of.namespace.clone(), of.name.clone());
        subjects.push(Subject::ClusterService(name));
    }
    // What its addresses stand for.
    let mut addresses = BTreeSet::new();
    for led in [led_to_ports, led_to_pods] {
        let [before, now] = [before, now].map(|service| service.map(led).unwrap_or_default());
        addresses.extend(before.symmetric_difference(&now).map(|(address, _)| *address));
    }
    subjects.extend(addresses.into_iter().map(Subject::Address));
    // Which ports the sidecars of its pods serve.
    let [before, now] = [before, now].map(|service| service.map(served).unwrap_or_default());
    let changed = before.symmetric_difference(&now).map(|(pod, _)| pod.clone());
    subjects.extend(changed.collect::<BTreeSet<_>>().into_iter().map(Subject::Ports));
    subjects
}

/// The ports of its pods that their sidecars serve for it.
fn served(of: &ClusterService) -> BTreeSet<(Name, ServedPort)> {
    let pods = of.pods_with_targets().flat_map(|(pod, targets)| {
        let ports = further_ports(pod, targets);
        ports.flat_map(|port| pod.instances.iter().map(move |instance| (instance.clone(), port)))
    });
    pods.map(|(instance, port)| ((of.namespace.clone(), instance), port)).collect()
}

/// Ports of a pod beside that of its app to which a Service leads.
fn further_ports<'a>(
    pod: &'a ServedPod,
    targets: &'a [PortTarget],
) -> impl Iterator<Item = ServedPort> + 'a {
    let is_further = |of: &&PortTarget| match pod.ports {
        PodPorts::None => false,
        PodPorts::OfServices => true,
        PodPorts::Own(own) => own != of.target,
    };
    let further = targets.iter().filter(is_further);
    further.map(|of| ServedPort { port: of.target, protocol: of.protocol })
}

/// Its own addresses and ports that lead into the mesh.
fn led_to_ports(of: &ClusterService) -> BTreeSet<(IpAddr, u16)> {
    let ports = of.ports.iter().filter(|port| of.is_of_mesh(**port));
    ports.flat_map(|port| of.addresses.iter().map(|address| (*address, *port))).collect()
}

/// Addresses and ports of its pods that take calls.
fn led_to_pods(of: &ClusterService) -> BTreeSet<(IpAddr, u16)> {
    let pods = of.pods_with_targets().filter(|(pod, _)| pod.takes_calls());
    let ports = pods.flat_map(|(pod, targets)| {
        let all = pod.ports.own().into_iter().chain(targets.iter().map(|of| of.target));
        all.map(|port| (pod.address, port))
    });
    ports.collect()
}

impl Catalogue {
    /// The state of a port of a Service: its pods that are ready and take calls there.
    pub(super) fn port_state(
        &self,
        name: &ServiceName,
        (service, port): (&str, u16),
    ) -> Result<ServiceState, UnavailableReason> {
        let unknown = UnavailableReason::UnknownService;
        let key = (name.namespace.clone(), Label::new(service).map_err(|_| unknown)?);
        let service = self.cluster.by_name.get(&key).ok_or(unknown)?;
        let mut found = Found::default();
        for (pod, target) in service.pods_of(port).filter(|(pod, _)| pod.takes_calls()) {
            found.add(self, &service.namespace, pod, target);
        }
        found.state(self)
    }

    /// What an address stands for, as workloads of the name's namespace call it.
    pub(super) fn address_state(
        &self,
        name: &ServiceName,
        address: SocketAddr,
    ) -> Result<ServiceState, UnavailableReason> {
        let unknown = UnavailableReason::UnknownService;
        let (ip, port) = (address.ip().to_canonical(), address.port());
        let services = |by: &HashMap<IpAddr, BTreeSet<Name>>| {
            let names = by.get(&ip).into_iter().flatten();
            names.filter_map(|name| self.cluster.by_name.get(name)).cloned().collect::<Vec<_>>()
        };
        let fronts = services(&self.cluster.by_address);
        if let Some(service) = fronts.iter().find(|service| service.is_of_mesh(port)) {
            let ClusterService { namespace, name: of, .. } = service.as_ref();
            let port = ServiceName::of_port(of, port, namespace, &name.network);
            return Ok(ServiceState::AddressOf(port));
        }
        // A slice may state any address: the sidecar of a workload that has registered from there decides.
        let behind = services(&self.cluster.by_pod);
        let found = behind.iter().find_map(|service| {
            let (pod, target) = called_pod(service, ip, port)?;
            let at = self.sidecars_of(&service.namespace, pod);
            let is_there = at.iter().any(|workload| workload.address.ip() == ip);
            is_there.then_some((&service.namespace, pod, target))
        });
        let (namespace, pod, target) = found.ok_or(unknown)?;
        if *namespace != name.namespace {
            let there = ServiceName { namespace: namespace.clone(), ..name.clone() };
            return Ok(ServiceState::AddressOf(there));
        }
        let mut found = Found::default();
        // Who calls a pod itself has chosen it, whether it is ready or not.
        let pod = ServedPod { is_ready: true, ..pod.clone() };
        found.add(self, namespace, &pod, target);
        found.state(self)
    }

    /// The ports beside that of its app to which Services lead in a pod, as many as are served: those of
    /// the lowest numbers. Where Services disagree on a protocol, the first by name decides.
    pub(crate) fn served_ports(&self, pod: &Name) -> Vec<ServedPort> {
        let names = self.cluster.by_instance.get(pod).into_iter().flatten();
        let mut ports: BTreeMap<u16, ServedPort> = BTreeMap::new();
        for service in names.filter_map(|name| self.cluster.by_name.get(name)) {
            for (of, targets) in service.pods_with_targets() {
                if of.instances.contains(&pod.1) {
                    further_ports(of, targets).for_each(|port| {
                        ports.entry(port.port).or_insert(port);
                    });
                }
            }
        }
        ports.into_values().take(PORTS_PER_APP_LIMIT).collect()
    }

    /// The registered workloads of a pod.
    fn sidecars_of(&self, namespace: &Label, pod: &ServedPod) -> Vec<&Workload> {
        let mut found = Vec::new();
        for instance in &pod.instances {
            let id = (namespace.clone(), instance.clone());
            let services = self.cluster.workloads.get(&id).into_iter().flatten();
            found.extend(services.filter_map(|of| self.services.get(of)?.workloads.get(instance)));
        }
        found
    }
}

/// The pod of a Service that has an address, and what a port of it is.
fn called_pod(service: &ClusterService, ip: IpAddr, port: u16) -> Option<(&ServedPod, PortTarget)> {
    service.pods_with_targets().filter(|(pod, _)| pod.address == ip).find_map(|(pod, targets)| {
        let own = PortTarget { port, target: port, protocol: AppProtocol::default() };
        let own = (pod.ports == PodPorts::Own(port)).then_some(own);
        let target = own.or_else(|| targets.iter().find(|of| of.target == port).copied());
        Some((pod, target.filter(|_| pod.takes_calls())?))
    })
}

/// The workloads of pods.
#[derive(Default)]
struct Found<'a> {
    /// By instance.
    ready: BTreeMap<&'a Instance, FoundPod<'a>>,
    unready: Vec<Locality>,
}

struct FoundPod<'a> {
    workload: &'a Workload,
    place: Locality,
    /// What is called in it, if that is not the port of its app.
    further: Option<ServedPort>,
}

impl<'a> Found<'a> {
    /// Adds the workloads of a pod, of which a port is called. Its sidecar states where it is, or else the
    /// cluster does.
    fn add(
        &mut self,
        catalogue: &'a Catalogue,
        namespace: &Label,
        pod: &ServedPod,
        target: PortTarget,
    ) {
        for workload in catalogue.sidecars_of(namespace, pod) {
            let mut place = workload.locality.clone();
            if place.zone.is_none() {
                place.zone.clone_from(&pod.zone);
            }
            if pod.is_ready && workload.ready {
                let further = further_ports(pod, std::slice::from_ref(&target)).next();
                self.ready.insert(&workload.instance, FoundPod { workload, place, further });
            } else {
                self.unready.push(place);
            }
        }
    }

    fn state(self, catalogue: &Catalogue) -> Result<ServiceState, UnavailableReason> {
        if self.ready.is_empty() {
            return Err(UnavailableReason::NoReadyEndpoint);
        }
        let all = self.ready.values().map(|of| &of.place).chain(&self.unready);
        let is_stated = all.clone().any(Locality::is_stated);
        let unready: Arc<[Unready]> =
            if is_stated { unready_by_place(self.unready.iter()) } else { Arc::default() };
        let spoken = |of: &FoundPod<'_>| match of.further {
            Some(further) => Some(further.protocol),
            None => of.workload.protocol,
        };
        let protocol = most_common(self.ready.values().filter_map(spoken));
        let endpoints = self.ready.into_values().take(ENDPOINTS_PER_SERVICE_LIMIT);
        let endpoints = endpoints.map(|FoundPod { workload, place, further }| Endpoint {
            instance: workload.instance.clone(),
            address: workload.address,
            locality: place,
            app: Some(workload.service.app.clone()),
            port: further.map(|further| further.port),
        });
        Ok(ServiceState::Local {
            endpoints: endpoints.collect(),
            unready,
            protocol,
            trust_domain: catalogue.home.trust_domain.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::{AppProtocol, EgressDefault, TrustDomain};

    use super::*;
    use crate::catalogue::Home;
    use crate::key::Key;
    use crate::options::RemoteCalls;
    use crate::services::{PodGroup, PortTarget};
    use tollway_wire::v1;

    fn label(text: &str) -> Label {
        Label::new(text).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// The name of the pod at an address.
    fn instance(at: &str) -> Instance {
        label(&format!("p{}", at.rsplit('.').next().unwrap()))
    }

    /// The pod at 10.1.0.1, whose app takes calls at 8080.
    fn p1() -> ServedPod {
        ServedPod {
            address: ip("10.1.0.1"),
            instances: vec![instance("10.1.0.1")],
            is_ready: true,
            ports: PodPorts::Own(8080),
            zone: None,
        }
    }

    fn called(text: &str, namespace: &str) -> ServiceName {
        let app = ServiceName::read_called(text).unwrap();
        ServiceName { app, namespace: label(namespace), network: label("west") }
    }

    struct Mesh {
        catalogue: Catalogue,
        revision: u64,
    }

    impl Mesh {
        fn new() -> Self {
            let home = Home {
                network: label("west"),
                trust_domain: TrustDomain::new("west.tollway").unwrap(),
                root: b"west root".to_vec(),
                remote_calls: RemoteCalls::Direct,
                egress: EgressDefault::Open,
                listen: SocketAddr::from(([10, 0, 0, 1], 15010)),
                peer_addresses: Arc::from([]),
            };
            Self { catalogue: Catalogue::new(home, 0), revision: 0 }
        }

        fn put(&mut self, key: &Key, value: &[u8]) -> Vec<String> {
            self.revision += 1;
            shown(&self.catalogue.put(key, value, self.revision).unwrap())
        }

        /// The sidecar of the pod at an address, of an app of the namespace `shop`.
        fn sidecar(&mut self, app: &str, at: &str, ready: bool) -> Vec<String> {
            let service = called(app, "shop");
            let (namespace, app) = (service.namespace.clone(), service.app.clone());
            let instance = instance(at);
            let workload = Workload {
                service,
                instance: instance.clone(),
                address: SocketAddr::new(ip(at), 50002),
                protocol: Some(AppProtocol::Http),
                ready,
                locality: Locality::default(),
            };
            let key = Key::Workload { namespace, app, instance };
            self.put(&key, &prost::Message::encode_to_vec(&v1::Workload::from(&workload)))
        }

        /// Port 80 leads to 8080 and port 90 to 9090 of pods: their addresses, whether they are ready, and
        /// the port of the app in the mesh.
        fn service(
            &mut self,
            namespace: &str,
            name: &str,
            at: &[&str],
            pods: &[(&str, bool, Option<u16>)],
        ) -> Vec<String> {
            let pod = |(at, is_ready, own): &(&str, bool, Option<u16>)| ServedPod {
                address: ip(at),
                instances: vec![instance(at)],
                is_ready: *is_ready,
                ports: own.map_or(PodPorts::None, PodPorts::Own),
                zone: None,
            };
            let service = ClusterService {
                namespace: label(namespace),
                name: label(name),
                addresses: at.iter().map(|at| ip(at)).collect(),
                ports: vec![80, 90],
                groups: vec![PodGroup {
                    targets: vec![
                        PortTarget { port: 80, target: 8080, protocol: AppProtocol::Tcp },
                        PortTarget { port: 90, target: 9090, protocol: AppProtocol::Http },
                    ],
                    pods: pods.iter().map(pod).collect(),
                }],
            };
            let key = Key::ClusterService { namespace: label(namespace), name: label(name) };
            self.put(&key, &service.write())
        }

        /// A Service of `shop` with these pods behind port 80.
        fn pods(&mut self, name: &str, at: &[&str], pods: Vec<ServedPod>) {
            let targets = vec![PortTarget { port: 80, target: 8080, protocol: AppProtocol::Tcp }];
            let service = ClusterService {
                namespace: label("shop"),
                name: label(name),
                addresses: at.iter().map(|at| ip(at)).collect(),
                ports: vec![80],
                groups: vec![PodGroup { targets, pods }],
            };
            let key = Key::ClusterService { namespace: label("shop"), name: label(name) };
            self.put(&key, &service.write());
        }

        #[track_caller]
        fn check(&self, text: &str, expected: &str) {
            self.check_from("shop", text, expected);
        }

        #[track_caller]
        fn check_from(&self, namespace: &str, text: &str, expected: &str) {
            let state = match self.catalogue.state(&called(text, namespace)) {
                ServiceState::Local { endpoints, .. } => {
                    let endpoint = |of: &Endpoint| {
                        let app = of.app.as_ref().map_or("-", |app| app.as_str());
                        let port = of.port.map(|port| format!(" for {port}")).unwrap_or_default();
                        format!("{app}/{} at {}{port}", of.instance, of.address)
                    };
                    endpoints.iter().map(endpoint).collect::<Vec<_>>().join(", ")
                }
                ServiceState::AddressOf(name) => format!("address of {name}"),
                ServiceState::Unavailable(reason) => format!("{reason:?}"),
                other @ (ServiceState::Remote { .. } | ServiceState::Failover { .. }) => {
                    panic!("{other:?}")
                }
            };
            assert_eq!(state, expected, "{text} from {namespace}");
        }
    }

    fn shown(subjects: &[Subject]) -> Vec<String> {
        let word = |subject: &Subject| match subject {
            Subject::Service(name) => name.app.to_string(),
            Subject::Address(at) => at.to_string(),
            Subject::ClusterService((_, name)) => format!("ports of {name}"),
            Subject::Ports((_, instance)) => format!("served by {instance}"),
            other @ (Subject::Network(_)
            | Subject::Gateways
            | Subject::Trust
            | Subject::Objects(_)
            | Subject::Cluster) => format!("{other:?}"),
        };
        let mut shown: Vec<_> = subjects.iter().map(word).collect();
        shown.sort();
        shown.dedup();
        shown
    }

    #[test]
    fn a_port_is_served_by_ready_pods_of_any_app_whose_app_is_there() {
        let mut mesh = Mesh::new();
        mesh.check("stock:80", "UnknownService");
        let pods = [
            ("10.1.0.1", true, Some(8080)),
            ("10.1.0.2", true, Some(8080)),
            ("10.1.0.3", false, Some(8080)),
        ];
        mesh.service("shop", "stock", &["10.96.0.7"], &pods);
        mesh.check("stock:80", "NoReadyEndpoint");
        mesh.sidecar("stock-v1", "10.1.0.1", true);
        mesh.sidecar("stock-v2", "10.1.0.2", false);
        mesh.sidecar("stock-v2", "10.1.0.3", true);
        mesh.check("stock:80", "stock-v1/p1 at 10.1.0.1:50002");
        mesh.sidecar("stock-v2", "10.1.0.2", true);
        let both = "stock-v1/p1 at 10.1.0.1:50002, stock-v2/p2 at 10.1.0.2:50002";
        mesh.check("stock:80", both);
        mesh.check("Stock:80", both);
        // It leads to a port beside that of the app.
        let further =
            "stock-v1/p1 at 10.1.0.1:50002 for 9090, stock-v2/p2 at 10.1.0.2:50002 for 9090";
        mesh.check("stock:90", further);
        mesh.check("stock:91", "NoReadyEndpoint");
        mesh.check_from("bank", "stock:80", "UnknownService");
        // An app of the same name is another thing.
        mesh.check("stock", "UnknownService");
        mesh.sidecar("stock", "10.1.0.9", true);
        mesh.check("stock", "-/p9 at 10.1.0.9:50002");
        mesh.check("stock:80", both);
    }

    /// The harm: who may make Services and slices in one namespace leads callers of another to pods of their
    /// own, or keeps them from an address that is none of the mesh.
    #[test]
    fn a_service_has_no_pods_and_no_addresses_of_others() {
        let mut mesh = Mesh::new();
        mesh.sidecar("stock", "10.1.0.1", true);
        let theirs = [("10.1.0.1", true, Some(8080)), ("10.96.0.1", true, Some(443))];
        mesh.service("bank", "vault", &["10.96.0.8"], &theirs);
        mesh.check_from("bank", "vault:80", "NoReadyEndpoint");
        for address in ["10.1.0.1:8080", "10.96.0.1:443"] {
            mesh.check_from("bank", address, "UnknownService");
            mesh.check_from("shop", address, "UnknownService");
        }
        // In the namespace of the pod itself its slice may have another address.
        mesh.service("shop", "stock", &[], &[("10.2.0.1", true, Some(8080))]);
        mesh.check("10.2.0.1:8080", "UnknownService");
    }

    #[test]
    fn an_address_is_of_the_mesh_once_every_ready_pod_takes_calls_there() {
        let mut mesh = Mesh::new();
        mesh.check("10.96.0.7:80", "UnknownService");
        let with = ("10.1.0.1", true, Some(8080));
        mesh.service("shop", "stock", &["10.96.0.7", "fd00::7"], &[with]);
        for namespace in ["shop", "bank"] {
            for address in ["10.96.0.7:80", "[fd00::7]:80", "[::ffff:10.96.0.7]:80"] {
                mesh.check_from(namespace, address, "address of stock:80.shop.west");
            }
        }
        mesh.check("10.96.0.7:90", "address of stock:90.shop.west");
        for address in ["10.96.0.7:81", "10.96.0.8:80"] {
            mesh.check(address, "UnknownService");
        }
        // A pod without a sidecar has come, and is ready later.
        mesh.service("shop", "stock", &["10.96.0.7"], &[with, ("10.1.0.2", false, None)]);
        mesh.check("10.96.0.7:80", "address of stock:80.shop.west");
        mesh.check("[fd00::7]:80", "UnknownService");
        mesh.service("shop", "stock", &["10.96.0.7"], &[with, ("10.1.0.2", true, None)]);
        mesh.check("10.96.0.7:80", "UnknownService");
        // None is ready.
        mesh.service("shop", "stock", &["10.96.0.7"], &[("10.1.0.1", false, Some(8080))]);
        mesh.check("10.96.0.7:80", "address of stock:80.shop.west");
        // There is none: one that comes will take the calls.
        mesh.service("shop", "stock", &["10.96.0.7"], &[]);
        mesh.check("10.96.0.7:80", "address of stock:80.shop.west");
        mesh.check("10.96.0.7:81", "UnknownService");
    }

    #[test]
    fn the_address_of_a_pod_leads_to_this_pod_whether_it_is_ready_or_not() {
        let mut mesh = Mesh::new();
        mesh.service("shop", "db", &[], &[("10.1.0.1", false, Some(8080))]);
        mesh.check("10.1.0.1:8080", "UnknownService");
        mesh.sidecar("db", "10.1.0.1", true);
        mesh.check("10.1.0.1:8080", "db/p1 at 10.1.0.1:50002");
        mesh.check("10.1.0.1:9090", "db/p1 at 10.1.0.1:50002 for 9090");
        mesh.check("10.1.0.1:9091", "UnknownService");
        mesh.check_from("bank", "10.1.0.1:8080", "address of 10.1.0.1:8080.shop.west");
    }

    #[test]
    fn what_has_changed_is_named_for_its_followers_and_nothing_else() {
        let mut mesh = Mesh::new();
        let pod = |at| (at, true, Some(8080));
        let put = mesh.service("shop", "stock", &["10.96.0.7"], &[pod("10.1.0.1")]);
        assert_eq!(put, ["10.1.0.1", "10.96.0.7", "ports of stock", "served by p1"]);
        let same = mesh.service("shop", "stock", &["10.96.0.7"], &[pod("10.1.0.1")]);
        assert_eq!(same, [""; 0]);
        assert_eq!(
            mesh.sidecar("stock", "10.1.0.1", true),
            ["10.1.0.1", "ports of stock", "stock"]
        );
        assert_eq!(mesh.sidecar("stock", "10.1.0.2", true), ["stock"]);
        let more = [pod("10.1.0.1"), pod("10.1.0.2")];
        let put = mesh.service("shop", "stock", &["10.96.0.7"], &more);
        assert_eq!(put, ["10.1.0.2", "ports of stock", "served by p2"]);
        let unready = [pod("10.1.0.1"), ("10.1.0.2", false, Some(8080))];
        let put = mesh.service("shop", "stock", &["10.96.0.7"], &unready);
        assert_eq!(put, ["ports of stock"]);
        let moved = mesh.service("shop", "stock", &["10.96.0.8"], &unready);
        assert_eq!(moved, ["10.96.0.7", "10.96.0.8"]);
        // It leaves the mesh.
        let mixed = [pod("10.1.0.1"), ("10.1.0.2", true, None)];
        let put = mesh.service("shop", "stock", &["10.96.0.8"], &mixed);
        assert_eq!(put, ["10.1.0.2", "10.96.0.8", "ports of stock", "served by p2"]);
        let key = Key::ClusterService { namespace: label("shop"), name: label("stock") };
        let gone = shown(&mesh.catalogue.delete(&key, 9));
        assert_eq!(gone, ["10.1.0.1", "ports of stock", "served by p1"]);
        assert_eq!(mesh.catalogue.delete(&key, 10), []);
        let cluster = &mesh.catalogue.cluster;
        assert!(cluster.by_name.is_empty() && cluster.by_address.is_empty());
        assert!(cluster.by_pod.is_empty() && cluster.by_instance.is_empty());
        assert_eq!(cluster.workloads.len(), 2);
        let workload = |at| Key::Workload {
            namespace: label("shop"),
            app: label("stock"),
            instance: instance(at),
        };
        assert_eq!(shown(&mesh.catalogue.delete(&workload("10.1.0.1"), 11)), ["stock"]);
        assert_eq!(shown(&mesh.catalogue.delete(&workload("10.1.0.2"), 12)), ["stock"]);
        assert!(mesh.catalogue.cluster.workloads.is_empty());
        assert!(mesh.catalogue.delete(&workload("10.1.0.2"), 13).is_empty());
    }

    /// The harm: a Service opens ports of pods of another namespace, or of the app that states none.
    #[test]
    fn a_pod_serves_the_ports_that_services_of_its_namespace_lead_to() {
        let mut mesh = Mesh::new();
        let pods = [("10.1.0.1", true, Some(8080)), ("10.1.0.2", true, None)];
        mesh.service("shop", "stock", &[], &pods);
        mesh.service("bank", "vault", &[], &[("10.1.0.3", true, Some(8080))]);
        let served = |namespace: &str, at: &str| {
            let pod = (label(namespace), instance(at));
            let ports = mesh.catalogue.served_ports(&pod);
            ports.into_iter().map(|of| (of.port, of.protocol)).collect::<Vec<_>>()
        };
        assert_eq!(served("shop", "10.1.0.1"), [(9090, AppProtocol::Http)]);
        assert_eq!(served("shop", "10.1.0.2"), [], "it only makes calls");
        assert_eq!(served("shop", "10.1.0.3"), [], "the Service is of another namespace");
        assert_eq!(served("bank", "10.1.0.1"), []);
    }

    /// A pod that states no port of its app is called at all ports to which Services lead.
    #[test]
    fn a_pod_without_a_port_of_its_own_serves_those_of_its_services() {
        let mut mesh = Mesh::new();
        let pod = ServedPod { ports: PodPorts::OfServices, ..p1() };
        mesh.pods("stock", &["10.96.0.7"], vec![pod]);
        mesh.sidecar("stock", "10.1.0.1", true);
        mesh.check("10.96.0.7:80", "address of stock:80.shop.west");
        mesh.check("stock:80", "stock/p1 at 10.1.0.1:50002 for 8080");
        mesh.check("10.1.0.1:8080", "stock/p1 at 10.1.0.1:50002 for 8080");
        mesh.check("10.1.0.1:9090", "UnknownService");
        let served = mesh.catalogue.served_ports(&(label("shop"), instance("10.1.0.1")));
        assert_eq!(served, [ServedPort { port: 8080, protocol: AppProtocol::Tcp }]);
    }

    #[test]
    fn a_pod_serves_so_many_ports_and_no_more() {
        let mut mesh = Mesh::new();
        let pod = p1();
        for name in 0..3_u16 {
            let target = |at: u16| PortTarget {
                port: at,
                target: 1_000 * (name + 1) + at,
                protocol: AppProtocol::Tcp,
            };
            let targets: Vec<_> = (1..=60).map(target).collect();
            let service = ClusterService {
                namespace: label("shop"),
                name: label(&format!("s{name}")),
                addresses: Vec::new(),
                ports: (1..=60).collect(),
                groups: vec![PodGroup { targets, pods: vec![pod.clone()] }],
            };
            let (namespace, name) = (service.namespace.clone(), service.name.clone());
            mesh.put(&Key::ClusterService { namespace, name }, &service.write());
        }
        let served = mesh.catalogue.served_ports(&(label("shop"), instance("10.1.0.1")));
        assert_eq!(served.len(), PORTS_PER_APP_LIMIT);
        assert_eq!((served[0].port, served[99].port), (1_001, 2_040));
    }

    /// A pod has addresses of both families, and its sidecar registers one of them.
    #[test]
    fn a_service_of_another_family_leads_to_the_sidecars_of_its_pods() {
        let mut mesh = Mesh::new();
        mesh.sidecar("stock", "10.1.0.1", true);
        let pod = ServedPod { address: ip("fd01::1"), ..p1() };
        mesh.pods("stock", &["fd00::7"], vec![pod]);
        mesh.check("[fd00::7]:80", "address of stock:80.shop.west");
        mesh.check("stock:80", "stock/p1 at 10.1.0.1:50002");
    }

    #[test]
    fn a_catalogue_that_is_read_again_names_the_whole_cluster_if_any_of_it_differs() {
        let mut mesh = Mesh::new();
        mesh.sidecar("stock", "10.1.0.1", true);
        let mut same = Mesh::new();
        same.sidecar("stock", "10.1.0.1", true);
        assert_eq!(mesh.catalogue.replace(same.catalogue), []);
        let mut other = Mesh::new();
        other.sidecar("stock", "10.1.0.1", true);
        other.service("shop", "stock", &["10.96.0.7"], &[("10.1.0.1", true, Some(8080))]);
        assert_eq!(mesh.catalogue.replace(other.catalogue), [Subject::Cluster]);
        mesh.check("10.96.0.7:80", "address of stock:80.shop.west");
        mesh.check("stock:80", "stock/p1 at 10.1.0.1:50002");
    }

    #[test]
    fn a_pod_has_the_locality_of_its_sidecar_or_else_of_the_cluster() {
        let mut mesh = Mesh::new();
        mesh.sidecar("stock", "10.1.0.1", true);
        let zone = |text: &str| Some(tollway_model::AreaName::new(text).unwrap());
        let pod = ServedPod { zone: zone("eu-1a"), ..p1() };
        mesh.pods("stock", &[], vec![pod]);
        let state = mesh.catalogue.state(&called("stock:80", "shop"));
        let ServiceState::Local { endpoints, .. } = state else { panic!("{state:?}") };
        assert_eq!(endpoints[0].locality.zone, zone("eu-1a"));
    }
}
