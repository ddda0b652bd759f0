//! The Services of the network's Kubernetes cluster: which workloads serve their ports, and what its
//! addresses stand for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tollway_model::{
    Endpoint, Instance, Label, Locality, ServiceName, ServiceState, UnavailableReason, Unready,
    Workload,
};
use tollway_wire::ENDPOINTS_PER_SERVICE_LIMIT;

use super::{Catalogue, Subject, most_common, unready_by_place};
use crate::services::{ClusterService, ServedPod};

/// Namespace and name of a Service.
type Name = (Label, Label);

#[derive(Default, PartialEq, Debug)]
pub(super) struct ClusterServices {
    by_name: BTreeMap<Name, Arc<ClusterService>>,
    /// By address of a Service.
    by_address: HashMap<IpAddr, BTreeSet<Name>>,
    /// By address of a pod: the Services that have it.
    by_pod: HashMap<IpAddr, BTreeSet<Name>>,
    /// Registered workloads by the address of their sidecar.
    workloads: HashMap<IpAddr, BTreeSet<(ServiceName, Instance)>>,
}

impl ClusterServices {
    /// Takes a Service in, in place of the one of its name. Returns what changed by it.
    pub(super) fn put(&mut self, service: ClusterService, home: &Label) -> Vec<Subject> {
        let name = (service.namespace.clone(), service.name.clone());
        let mut subjects = self.remove(&name, home);
        let service = Arc::new(service);
        for address in &service.addresses {
            self.by_address.entry(*address).or_default().insert(name.clone());
        }
        for pod in service.pods() {
            self.by_pod.entry(pod.address).or_default().insert(name.clone());
        }
        concerned(&service, home, &mut subjects);
        self.by_name.insert(name, service);
        subjects
    }

    /// Returns what changed by it.
    pub(super) fn remove(&mut self, name: &Name, home: &Label) -> Vec<Subject> {
        let mut subjects = Vec::new();
        let Some(service) = self.by_name.remove(name) else { return subjects };
        for address in &service.addresses {
            take_out(&mut self.by_address, address, name);
        }
        for pod in service.pods() {
            take_out(&mut self.by_pod, &pod.address, name);
        }
        concerned(&service, home, &mut subjects);
        subjects
    }

    /// A workload has registered. Returns what changed by it.
    pub(super) fn enter(&mut self, workload: &Workload) -> Vec<Subject> {
        let at = workload.address.ip();
        let id = (workload.service.clone(), workload.instance.clone());
        self.workloads.entry(at).or_default().insert(id);
        self.concerned_by(at, &workload.service.network)
    }

    /// A workload has gone. Returns what changed by it.
    pub(super) fn leave(&mut self, workload: &Workload) -> Vec<Subject> {
        let at = workload.address.ip();
        let id = (workload.service.clone(), workload.instance.clone());
        take_out(&mut self.workloads, &at, &id);
        self.concerned_by(at, &workload.service.network)
    }

    /// What a workload at this address is a part of.
    fn concerned_by(&self, at: IpAddr, home: &Label) -> Vec<Subject> {
        let mut subjects = Vec::new();
        let Some(names) = self.by_pod.get(&at) else { return subjects };
        for service in names.iter().filter_map(|name| self.by_name.get(name)) {
            subjects.extend(self::names(service, home).map(Subject::Service));
        }
        subjects.push(Subject::Address(at));
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
        let names = service.into_iter().flat_map(|service| names(service, &of.network));
        names.collect()
    }
}

fn take_out<K: Eq + Hash, V: Ord>(map: &mut HashMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

fn names<'a>(
    service: &'a ClusterService,
    home: &'a Label,
) -> impl Iterator<Item = ServiceName> + 'a {
    let ports: BTreeSet<u16> = service.ports().collect();
    let ClusterService { namespace, name, .. } = service;
    ports.into_iter().map(|port| ServiceName::of_port(name, port, namespace, home))
}

/// Its ports, its addresses and those of its pods.
fn concerned(service: &ClusterService, home: &Label, subjects: &mut Vec<Subject>) {
    subjects.extend(names(service, home).map(Subject::Service));
    let pods = service.pods().map(|pod| pod.address);
    subjects.extend(service.addresses.iter().copied().chain(pods).map(Subject::Address));
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
        for (pod, target) in service.pods_of(port) {
            if pod.app_port == Some(target) {
                found.add(self, &name.namespace, pod);
            }
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
        let behind = services(&self.cluster.by_pod);
        let is_called = |pod: &ServedPod| pod.address == ip && pod.app_port == Some(port);
        let holder = |service: &Arc<ClusterService>| {
            let pod = service.pods().find(|pod| is_called(pod))?;
            Some((service.namespace.clone(), pod.clone()))
        };
        let mut pods = behind.iter().filter_map(holder);
        let Some((namespace, pod)) = pods.next() else { return Err(unknown) };
        if namespace != name.namespace {
            let there = ServiceName { namespace, ..name.clone() };
            return Ok(ServiceState::AddressOf(there));
        }
        let mut found = Found::default();
        // Who calls a pod itself has chosen it, whether it is ready or not.
        found.add(self, &namespace, &ServedPod { is_ready: true, ..pod });
        found.state(self)
    }

    fn registered_at<'a>(
        &'a self,
        address: IpAddr,
        namespace: &'a Label,
    ) -> impl Iterator<Item = &'a Workload> {
        let ids = self.cluster.workloads.get(&address).into_iter().flatten();
        ids.filter(|(service, _)| service.namespace == *namespace)
            .filter_map(|(service, instance)| self.services.get(service)?.workloads.get(instance))
    }
}

/// The workloads of pods.
#[derive(Default)]
struct Found<'a> {
    /// By instance; each with where its pod is.
    ready: BTreeMap<&'a Instance, (&'a Workload, Locality)>,
    unready: Vec<Locality>,
}

impl<'a> Found<'a> {
    /// Adds the workloads of a pod. Its sidecar states where it is, or else the cluster does.
    fn add(&mut self, catalogue: &'a Catalogue, namespace: &'a Label, pod: &ServedPod) {
        for workload in catalogue.registered_at(pod.address, namespace) {
            let mut place = workload.locality.clone();
            if place.zone.is_none() {
                place.zone.clone_from(&pod.zone);
            }
            if pod.is_ready && workload.ready {
                self.ready.insert(&workload.instance, (workload, place));
            } else {
                self.unready.push(place);
            }
        }
    }

    fn state(self, catalogue: &Catalogue) -> Result<ServiceState, UnavailableReason> {
        if self.ready.is_empty() {
            return Err(UnavailableReason::NoReadyEndpoint);
        }
        let all = self.ready.values().map(|(_, place)| place).chain(&self.unready);
        let is_stated = all.clone().any(Locality::is_stated);
        let unready: Arc<[Unready]> =
            if is_stated { unready_by_place(self.unready.iter()) } else { Arc::default() };
        let protocol = most_common(self.ready.values().map(|(of, _)| of.protocol));
        let endpoints = self.ready.into_values().take(ENDPOINTS_PER_SERVICE_LIMIT);
        let endpoints = endpoints.map(|(workload, locality)| Endpoint {
            instance: workload.instance.clone(),
            address: workload.address,
            locality,
            app: Some(workload.service.app.clone()),
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

        /// A pod's sidecar, of an app of the namespace `shop`.
        fn sidecar(&mut self, app: &str, instance: &str, at: &str, ready: bool) -> Vec<String> {
            let service = called(app, "shop");
            let (namespace, app) = (service.namespace.clone(), service.app.clone());
            let workload = Workload {
                service,
                instance: label(instance),
                address: SocketAddr::new(ip(at), 50002),
                protocol: AppProtocol::Http,
                ready,
                locality: Locality::default(),
            };
            let key = Key::Workload { namespace, app, instance: label(instance) };
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
            let pod = |(at, is_ready, app_port): &(&str, bool, Option<u16>)| ServedPod {
                address: ip(at),
                is_ready: *is_ready,
                app_port: *app_port,
                zone: None,
            };
            let service = ClusterService {
                namespace: label(namespace),
                name: label(name),
                addresses: at.iter().map(|at| ip(at)).collect(),
                groups: vec![PodGroup {
                    targets: vec![
                        PortTarget { port: 80, target: 8080 },
                        PortTarget { port: 90, target: 9090 },
                    ],
                    pods: pods.iter().map(pod).collect(),
                }],
            };
            let key = Key::ClusterService { namespace: label(namespace), name: label(name) };
            self.put(&key, &service.write())
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
                        format!("{app}/{} at {}", of.instance, of.address)
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
        mesh.sidecar("stock-v1", "a", "10.1.0.1", true);
        mesh.sidecar("stock-v2", "b", "10.1.0.2", false);
        mesh.sidecar("stock-v2", "c", "10.1.0.3", true);
        mesh.check("stock:80", "stock-v1/a at 10.1.0.1:50002");
        mesh.sidecar("stock-v2", "b", "10.1.0.2", true);
        let both = "stock-v1/a at 10.1.0.1:50002, stock-v2/b at 10.1.0.2:50002";
        mesh.check("stock:80", both);
        mesh.check("Stock:80", both);
        mesh.check("stock:90", "NoReadyEndpoint");
        mesh.check("stock:91", "NoReadyEndpoint");
        mesh.check_from("bank", "stock:80", "UnknownService");
        // An app of the same name is another thing.
        mesh.check("stock", "UnknownService");
        mesh.sidecar("stock", "d", "10.1.0.9", true);
        mesh.check("stock", "-/d at 10.1.0.9:50002");
        mesh.check("stock:80", both);
    }

    /// The harm: who may make Services in one namespace leads callers of another to pods of their own.
    #[test]
    fn a_service_has_no_pods_of_another_namespace() {
        let mut mesh = Mesh::new();
        mesh.sidecar("stock", "a", "10.1.0.1", true);
        mesh.service("bank", "vault", &["10.96.0.8"], &[("10.1.0.1", true, Some(8080))]);
        mesh.check_from("bank", "vault:80", "NoReadyEndpoint");
        mesh.check_from("bank", "10.1.0.1:8080", "NoReadyEndpoint");
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
        // Of another port, and of one that leads elsewhere in the pods.
        for address in ["10.96.0.7:81", "10.96.0.7:90", "10.96.0.8:80"] {
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
        mesh.service("shop", "stock", &["10.96.0.7"], &[]);
        mesh.check("10.96.0.7:80", "UnknownService");
    }

    #[test]
    fn the_address_of_a_pod_leads_to_this_pod_whether_it_is_ready_or_not() {
        let mut mesh = Mesh::new();
        mesh.service("shop", "db", &[], &[("10.1.0.1", false, Some(8080))]);
        mesh.check("10.1.0.1:8080", "NoReadyEndpoint");
        mesh.sidecar("db", "db-0", "10.1.0.1", true);
        mesh.check("10.1.0.1:8080", "db/db-0 at 10.1.0.1:50002");
        mesh.check("10.1.0.1:9090", "UnknownService");
        mesh.check_from("bank", "10.1.0.1:8080", "address of 10.1.0.1:8080.shop.west");
    }

    #[test]
    fn what_has_changed_is_named_for_its_followers() {
        let mut mesh = Mesh::new();
        let pod = |at| (at, true, Some(8080));
        let put = mesh.service("shop", "stock", &["10.96.0.7"], &[pod("10.1.0.1")]);
        assert_eq!(put, ["10.1.0.1", "10.96.0.7", "stock:80", "stock:90"]);
        assert_eq!(
            mesh.sidecar("stock", "a", "10.1.0.1", true),
            ["10.1.0.1", "stock", "stock:80", "stock:90"]
        );
        assert_eq!(mesh.sidecar("stock", "b", "10.1.0.2", true), ["stock"]);
        // It has moved: it is named where it was, too.
        let moved = mesh.sidecar("stock", "a", "10.1.0.3", true);
        assert_eq!(moved, ["10.1.0.1", "stock", "stock:80", "stock:90"]);
        let put = mesh.service("shop", "stock", &["10.96.0.8"], &[pod("10.1.0.3")]);
        assert_eq!(put, ["10.1.0.1", "10.1.0.3", "10.96.0.7", "10.96.0.8", "stock:80", "stock:90"]);
        let key = Key::ClusterService { namespace: label("shop"), name: label("stock") };
        let gone = shown(&mesh.catalogue.delete(&key, 9));
        assert_eq!(gone, ["10.1.0.3", "10.96.0.8", "stock:80", "stock:90"]);
        assert_eq!(mesh.catalogue.delete(&key, 10), []);
        let cluster = &mesh.catalogue.cluster;
        assert!(cluster.by_name.is_empty() && cluster.by_address.is_empty());
        assert!(cluster.by_pod.is_empty() && cluster.workloads.len() == 2);
        let workload = |instance| Key::Workload {
            namespace: label("shop"),
            app: label("stock"),
            instance: label(instance),
        };
        assert_eq!(shown(&mesh.catalogue.delete(&workload("a"), 11)), ["stock"]);
        assert_eq!(shown(&mesh.catalogue.delete(&workload("b"), 12)), ["stock"]);
        assert!(mesh.catalogue.cluster.workloads.is_empty());
        assert!(mesh.catalogue.delete(&workload("b"), 13).is_empty());
    }

    #[test]
    fn a_catalogue_that_is_read_again_names_the_whole_cluster_if_any_of_it_differs() {
        let mut mesh = Mesh::new();
        mesh.sidecar("stock", "a", "10.1.0.1", true);
        let mut same = Mesh::new();
        same.sidecar("stock", "a", "10.1.0.1", true);
        assert_eq!(mesh.catalogue.replace(same.catalogue), []);
        let mut other = Mesh::new();
        other.sidecar("stock", "a", "10.1.0.1", true);
        other.service("shop", "stock", &["10.96.0.7"], &[("10.1.0.1", true, Some(8080))]);
        assert_eq!(mesh.catalogue.replace(other.catalogue), [Subject::Cluster]);
        mesh.check("10.96.0.7:80", "address of stock:80.shop.west");
        mesh.check("stock:80", "stock/a at 10.1.0.1:50002");
    }

    #[test]
    fn a_pod_is_where_its_sidecar_says_or_else_where_the_cluster_does() {
        let mut mesh = Mesh::new();
        mesh.sidecar("stock", "a", "10.1.0.1", true);
        let zone = |text: &str| Some(tollway_model::AreaName::new(text).unwrap());
        let pod = ServedPod {
            address: ip("10.1.0.1"),
            is_ready: true,
            app_port: Some(8080),
            zone: zone("eu-1a"),
        };
        let service = ClusterService {
            namespace: label("shop"),
            name: label("stock"),
            addresses: Vec::new(),
            groups: vec![PodGroup {
                targets: vec![PortTarget { port: 80, target: 8080 }],
                pods: vec![pod],
            }],
        };
        let key = Key::ClusterService { namespace: label("shop"), name: label("stock") };
        mesh.put(&key, &service.write());
        let state = mesh.catalogue.state(&called("stock:80", "shop"));
        let ServiceState::Local { endpoints, .. } = state else { panic!("{state:?}") };
        assert_eq!(endpoints[0].locality.zone, zone("eu-1a"));
    }
}
