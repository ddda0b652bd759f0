//! Services with the pods behind them, of what three watches report. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use tollway_control::{ClusterService, PodGroup, PodPorts, PortTarget, ServedPod, ServiceEvent};
use tollway_inject::{INJECTED, NETWORK, PORT, PORT_OF_SERVICES};
use tollway_model::{AppProtocol, AreaName, Label, NetworkName};

use crate::listing::{Listing, Name, name};

/// With `false`, a Service is called as without a mesh.
const IN_MESH: &str = "tollway.dev/mesh";
/// The port on which the app of a pod takes calls of the mesh: the first that is there.
const APP_PORT: [&str; 2] = [PORT, "dapr.io/app-port"];
/// The Service that a slice is of.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const TCP: &str = "TCP";

/// What is known of the cluster.
#[derive(Debug)]
pub(super) struct Merged {
    /// Pods of other networks have no sidecar here.
    network: NetworkName,
    services: Listing<Front>,
    slices: Listing<Slice>,
    pods: Listing<PodFacts>,
    /// The names of slices by Service.
    slices_of: BTreeMap<Name, BTreeSet<String>>,
    /// By pod the Services that have it.
    services_of: BTreeMap<Name, BTreeSet<String>>,
    is_reported: bool,
}

/// What callers see of a Service.
#[derive(PartialEq, Debug)]
struct Front {
    addresses: Vec<IpAddr>,
    /// Each with its name.
    ports: Vec<(String, FrontPort)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct FrontPort {
    number: u16,
    protocol: AppProtocol,
}

/// Some of the pods behind a Service.
#[derive(PartialEq, Debug)]
struct Slice {
    service: String,
    /// Ports of the pods, by the names of the Service's.
    ports: Vec<(String, u16)>,
    endpoints: Vec<Behind>,
}

#[derive(PartialEq, Debug)]
struct Behind {
    address: IpAddr,
    is_ready: bool,
    pod: Option<String>,
    zone: Option<AreaName>,
}

/// What of a pod matters to callers.
#[derive(PartialEq, Debug)]
struct PodFacts {
    ports: PodPorts,
    uid: String,
}

impl Merged {
    pub(super) fn of(network: NetworkName) -> Self {
        Self {
            network,
            services: Listing::default(),
            slices: Listing::default(),
            pods: Listing::default(),
            slices_of: BTreeMap::new(),
            services_of: BTreeMap::new(),
            is_reported: false,
        }
    }

    pub(super) fn note_service(&mut self, event: Event<Service>) -> Vec<ServiceEvent> {
        let changed = self.services.note(event, |of| name(&of.metadata), front);
        let changed = changed.into_iter().map(|(name, _)| name);
        self.report(changed.collect())
    }

    pub(super) fn note_slice(&mut self, event: Event<EndpointSlice>) -> Vec<ServiceEvent> {
        let changed = self.slices.note(event, |of| name(&of.metadata), slice);
        let mut concerned = BTreeSet::new();
        for ((namespace, slice), before) in changed {
            if let Some(Slice { service, .. }) = &before {
                let of = (namespace.clone(), service.clone());
                take_out(&mut self.slices_of, &of, &slice);
                concerned.insert(of);
            }
            if let Some(Slice { service, .. }) =
                self.slices.by_name.get(&(namespace.clone(), slice.clone()))
            {
                let of = (namespace.clone(), service.clone());
                self.slices_of.entry(of.clone()).or_default().insert(slice);
                concerned.insert(of);
            }
            self.forget_pods_of(&namespace, before.as_ref());
        }
        // A pod may have come in another slice of the same Service.
        for (namespace, service) in &concerned {
            for pod in self.pods_of(namespace, service) {
                self.services_of.entry(pod).or_default().insert(service.clone());
            }
        }
        self.report(concerned)
    }

    /// Forgets that the pods of a slice are of its Service.
    fn forget_pods_of(&mut self, namespace: &str, before: Option<&Slice>) {
        let Some(Slice { service, endpoints, .. }) = before else { return };
        for pod in endpoints.iter().filter_map(|of| of.pod.as_ref()) {
            take_out(&mut self.services_of, &(namespace.to_owned(), pod.clone()), service);
        }
    }

    fn pods_of(&self, namespace: &str, service: &str) -> Vec<Name> {
        let name = (namespace.to_owned(), service.to_owned());
        let behind = self.behind(&name);
        let pods = behind.flat_map(|slice| slice.endpoints.iter().filter_map(|of| of.pod.clone()));
        pods.map(|pod| (namespace.to_owned(), pod)).collect()
    }

    pub(super) fn note_pod(&mut self, event: Event<PartialObjectMeta<Pod>>) -> Vec<ServiceEvent> {
        let facts = |pod: &PartialObjectMeta<Pod>| {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            Some(PodFacts { ports: ports(&pod.metadata, &self.network), uid })
        };
        let changed = self.pods.note(event, |of| name(&of.metadata), facts);
        let mut concerned = BTreeSet::new();
        for (pod, _) in changed {
            let services = self.services_of.get(&pod).into_iter().flatten();
            concerned.extend(services.map(|service| (pod.0.clone(), service.clone())));
        }
        self.report(concerned)
    }

    /// What has become of these Services; of all of them once all is known.
    fn report(&mut self, mut concerned: BTreeSet<Name>) -> Vec<ServiceEvent> {
        let is_known =
            self.services.is_complete && self.slices.is_complete && self.pods.is_complete;
        if !is_known {
            return Vec::new();
        }
        let mut events = Vec::new();
        let is_first = !std::mem::replace(&mut self.is_reported, true);
        if is_first {
            events.push(ServiceEvent::Begins);
            concerned = self.services.by_name.keys().cloned().collect();
        }
        events.extend(concerned.iter().filter_map(|name| self.event(name)));
        if is_first {
            events.push(ServiceEvent::Complete);
        }
        events
    }

    fn behind<'a>(&'a self, service: &'a Name) -> impl Iterator<Item = &'a Slice> {
        let names = self.slices_of.get(service).into_iter().flatten();
        names.filter_map(|slice| self.slices.by_name.get(&(service.0.clone(), slice.clone())))
    }

    fn event(&self, name: &Name) -> Option<ServiceEvent> {
        // Services have names that are labels.
        let (namespace, service) = (Label::new(&name.0).ok()?, Label::new(&name.1).ok()?);
        let Some(front) = self.services.by_name.get(name) else {
            return Some(ServiceEvent::Deleted(namespace, service));
        };
        let mut groups: BTreeMap<Vec<PortTarget>, BTreeSet<ServedPod>> = BTreeMap::new();
        for slice in self.behind(name) {
            // Whether a pod has a sidecar is not guessed: the Service stays as it was until that is known.
            if slice.endpoints.iter().any(|of| !self.is_known(&name.0, of)) {
                return None;
            }
            let target = |(called, port): &(String, FrontPort)| {
                let found = slice.ports.iter().find(|(name, _)| name == called);
                let FrontPort { number: port, protocol } = *port;
                found.map(|(_, target)| PortTarget { port, target: *target, protocol })
            };
            let mut targets: Vec<_> = front.ports.iter().filter_map(target).collect();
            targets.sort();
            let pods = slice.endpoints.iter().map(|of| self.served(&name.0, of));
            groups.entry(targets).or_default().extend(pods);
        }
        let group = |(targets, pods): (Vec<PortTarget>, BTreeSet<ServedPod>)| PodGroup {
            targets,
            pods: pods.into_iter().collect(),
        };
        Some(ServiceEvent::Changed(ClusterService {
            namespace,
            name: service,
            addresses: front.addresses.clone(),
            ports: front.ports.iter().map(|(_, port)| port.number).collect(),
            groups: groups.into_iter().map(group).collect(),
        }))
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<&PodFacts> {
        self.pods.by_name.get(&(namespace.to_owned(), name.to_owned()))
    }

    fn is_known(&self, namespace: &str, of: &Behind) -> bool {
        of.pod.as_ref().is_none_or(|name| self.pod(namespace, name).is_some())
    }

    fn served(&self, namespace: &str, of: &Behind) -> ServedPod {
        let Behind { address, is_ready, ref pod, ref zone } = *of;
        let facts = pod.as_ref().and_then(|name| self.pod(namespace, name));
        let ports = facts.map_or(PodPorts::None, |pod| pod.ports);
        let names = pod.iter().chain(facts.map(|pod| &pod.uid));
        let names = names.filter(|_| ports != PodPorts::None);
        let instances = names.filter_map(|name| Label::new(name).ok()).collect();
        ServedPod { address, instances, is_ready, ports, zone: zone.clone() }
    }
}

fn take_out(map: &mut BTreeMap<Name, BTreeSet<String>>, key: &Name, value: &str) {
    if let Some(values) = map.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(key);
        }
    }
}

/// `None` for a Service of another name (`ExternalName`), and for one that stays out of the mesh.
fn front(service: &Service) -> Option<Front> {
    let spec = service.spec.as_ref()?;
    let ports = tcp_ports(service)?;
    let annotations = service.metadata.annotations.as_ref();
    if annotations.and_then(|of| of.get(IN_MESH)).is_some_and(|value| value == "false") {
        return None;
    }
    // Of these kube-proxy chooses the pod by where the caller is, or by who it is.
    let is_local = spec.internal_traffic_policy.as_deref() == Some("Local");
    if is_local || spec.session_affinity.as_deref() == Some("ClientIP") {
        return None;
    }
    let addresses = spec.cluster_ips.iter().flatten().filter_map(|ip| ip.parse().ok());
    let ports = ports.map(|(of, number)| {
        let front = FrontPort { number, protocol: protocol(of) };
        (of.name.clone().unwrap_or_default(), front)
    });
    Some(Front { addresses: addresses.collect(), ports: ports.collect() })
}

/// The ports of a Service for TCP, each with its number; `None` for a Service that is a name of another host.
pub(crate) fn tcp_ports(service: &Service) -> Option<impl Iterator<Item = (&ServicePort, u16)>> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let ports = spec.ports.iter().flatten().filter(|of| is_tcp(of.protocol.as_deref()));
    Some(ports.filter_map(|of| Some((of, port(of.port)?))))
}

/// What a port of a Service states that pods speak there: its `appProtocol`, or else the word with which its
/// name begins. Without a word that is known these are bytes, which carries everything.
fn protocol(of: &ServicePort) -> AppProtocol {
    let stated = of.app_protocol.as_deref();
    let name = of.name.as_deref().unwrap_or_default();
    let word = stated.unwrap_or_else(|| name.split('-').next().unwrap_or_default());
    match word.to_ascii_lowercase().as_str() {
        "http" | "kubernetes.io/ws" => AppProtocol::Http,
        "http2" | "h2c" | "kubernetes.io/h2c" => AppProtocol::H2c,
        "grpc" => AppProtocol::Grpc,
        _ => AppProtocol::Tcp,
    }
}

fn slice(slice: &EndpointSlice) -> Option<Slice> {
    let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?.clone();
    let ports = slice.ports.iter().flatten().filter(|port| is_tcp(port.protocol.as_deref()));
    let ports = ports.filter_map(|of| Some((of.name.clone().unwrap_or_default(), port(of.port?)?)));
    let endpoints = slice.endpoints.iter().flat_map(behind);
    Some(Slice { service, ports: ports.collect(), endpoints: endpoints.collect() })
}

fn behind(of: &Endpoint) -> impl Iterator<Item = Behind> {
    // Without a word it is ready, as the API has it.
    let is_ready = of.conditions.as_ref().and_then(|of| of.ready).unwrap_or(true);
    let target = of.target_ref.as_ref();
    let pod = target.filter(|of| of.kind.as_deref() == Some("Pod")).and_then(|of| of.name.clone());
    let zone = of.zone.as_ref().and_then(|zone| AreaName::new(zone).ok());
    let addresses = of.addresses.iter().filter_map(|address| address.parse().ok());
    addresses.map(move |address| Behind { address, is_ready, pod: pod.clone(), zone: zone.clone() })
}

/// At which ports a pod takes calls of the mesh. One without a sidecar of the network takes none.
fn ports(of: &ObjectMeta, network: &NetworkName) -> PodPorts {
    let Some(annotations) = &of.annotations else { return PodPorts::None };
    let is_of_other = |of: &String| !of.eq_ignore_ascii_case(network.as_str());
    if !annotations.contains_key(INJECTED) || annotations.get(NETWORK).is_some_and(is_of_other) {
        return PodPorts::None;
    }
    let stated = APP_PORT.iter().find_map(|name| annotations.get(*name)).map(String::as_str);
    match stated {
        Some(PORT_OF_SERVICES) => PodPorts::OfServices,
        Some(port) => match port.parse() {
            Ok(0) | Err(_) => PodPorts::None,
            Ok(port) => PodPorts::Own(port),
        },
        None => PodPorts::None,
    }
}

fn is_tcp(protocol: Option<&str>) -> bool {
    protocol.is_none_or(|protocol| protocol == TCP)
}

fn port(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, spec: &Value, annotations: &Value) -> Service {
        let metadata = json!({"name": name, "namespace": "shop", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn stock() -> Service {
        let ports = json!([
            {"name": "http", "port": 80, "targetPort": "web"},
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "metrics", "port": 90},
        ]);
        let spec = json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": ports});
        service("stock", &spec, &json!({}))
    }

    /// A slice with these pods, each with the number in its address and whether it is ready.
    fn slice(name: &str, port: u16, pods: &[(&str, u8, bool)]) -> EndpointSlice {
        let endpoint = |(pod, number, ready): &(&str, u8, bool)| {
            json!({
                "addresses": [format!("10.1.0.{number}")],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": "shop"},
                "zone": "eu-1a",
            })
        };
        let endpoints: Vec<_> = pods.iter().map(endpoint).collect();
        let labels = json!({"kubernetes.io/service-name": "stock"});
        let slice = json!({
            "metadata": {"name": name, "namespace": "shop", "labels": labels},
            "addressType": "IPv4",
            "ports": [
                {"name": "http", "port": port, "protocol": "TCP"},
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "metrics", "port": 9090},
            ],
            "endpoints": endpoints,
        });
        serde_json::from_value(slice).unwrap()
    }

    fn pod(name: &str, annotations: &Value) -> PartialObjectMeta<Pod> {
        let metadata = json!({
            "name": name, "namespace": "shop", "uid": format!("u-{name}"), "annotations": annotations,
        });
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn meshed(name: &str) -> PartialObjectMeta<Pod> {
        pod(name, &json!({"tollway.dev/injected": "0.1.0", "tollway.dev/port": "8080"}))
    }

    /// As `name at addresses: port>target … [pods]`.
    fn shown(events: &[ServiceEvent]) -> Vec<String> {
        let pod = |of: &ServedPod| {
            let ports = match of.ports {
                PodPorts::None => "-".to_owned(),
                PodPorts::OfServices => "led".to_owned(),
                PodPorts::Own(port) => port.to_string(),
            };
            format!("{}={ports}{}", of.address, if of.is_ready { "" } else { "?" })
        };
        let group = |of: &PodGroup| {
            let targets = of.targets.iter().map(|of| format!("{}>{}", of.port, of.target));
            let pods: Vec<_> = of.pods.iter().map(pod).collect();
            format!("{} [{}]", targets.collect::<Vec<_>>().join(" "), pods.join(" "))
        };
        let word = |event: &ServiceEvent| match event {
            ServiceEvent::Begins => "begins".to_owned(),
            ServiceEvent::Complete => "complete".to_owned(),
            ServiceEvent::Deleted(namespace, name) => format!("deleted {namespace}/{name}"),
            ServiceEvent::Changed(service) => {
                let groups: Vec<_> = service.groups.iter().map(group).collect();
                format!("{} at {:?}: {}", service.name, service.addresses, groups.join(", "))
            }
        };
        events.iter().map(word).collect()
    }

    /// All that is said when the watches have listed one Service with these pods.
    fn begun(
        merged: &mut Merged,
        slices: Vec<EndpointSlice>,
        pods: Vec<PartialObjectMeta<Pod>>,
    ) -> Vec<ServiceEvent> {
        let mut events = merged.note_service(Event::Init);
        events.extend(merged.note_service(Event::InitApply(stock())));
        events.extend(merged.note_service(Event::InitDone));
        events.extend(merged.note_slice(Event::Init));
        for slice in slices {
            events.extend(merged.note_slice(Event::InitApply(slice)));
        }
        events.extend(merged.note_slice(Event::InitDone));
        assert_eq!(events, [], "pods are not known yet");
        events.extend(merged.note_pod(Event::Init));
        for pod in pods {
            events.extend(merged.note_pod(Event::InitApply(pod)));
        }
        events.extend(merged.note_pod(Event::InitDone));
        events
    }

    #[test]
    fn a_service_is_reported_with_its_pods_once_all_is_known() {
        let mut merged = Merged::of(Label::new("west").unwrap());
        let slices = vec![slice("s-1", 8080, &[("a", 1, true), ("b", 2, false)])];
        let events = begun(&mut merged, slices, vec![meshed("a"), pod("b", &json!({}))]);
        assert_eq!(
            shown(&events),
            [
                "begins",
                "stock at [10.96.0.7]: 80>8080 90>9090 [10.1.0.1=8080 10.1.0.2=-?]",
                "complete"
            ]
        );
        let ServiceEvent::Changed(service) = &events[1] else { panic!() };
        assert_eq!(service.groups[0].pods[0].zone, Some(AreaName::new("eu-1a").unwrap()));
        // Ports that lead to other ones in some pods.
        let events = merged.note_slice(Event::Apply(slice("s-2", 8000, &[("a", 1, true)])));
        assert_eq!(
            shown(&events),
            ["stock at [10.96.0.7]: 80>8000 90>9090 [10.1.0.1=8080], \
             80>8080 90>9090 [10.1.0.1=8080 10.1.0.2=-?]"]
        );
        let events = merged.note_slice(Event::Delete(slice("s-1", 8080, &[])));
        assert_eq!(shown(&events), ["stock at [10.96.0.7]: 80>8000 90>9090 [10.1.0.1=8080]"]);
        assert!(merged.services_of.contains_key(&("shop".into(), "a".into())));
        assert!(!merged.services_of.contains_key(&("shop".into(), "b".into())));
        let events = merged.note_service(Event::Delete(stock()));
        assert_eq!(shown(&events), ["deleted shop/stock"]);
    }

    /// The harm: a pod that has a sidecar is held for one without, and its Service is called in plain text.
    #[test]
    fn a_pod_counts_once_it_is_known_whether_it_has_a_sidecar() {
        let mut merged = Merged::of(Label::new("west").unwrap());
        begun(&mut merged, vec![slice("s-1", 8080, &[("a", 1, true)])], vec![meshed("a")]);
        let both = slice("s-1", 8080, &[("a", 1, true), ("b", 2, true)]);
        assert_eq!(merged.note_slice(Event::Apply(both)), [], "it stays as it was");
        let events = merged.note_pod(Event::Apply(meshed("b")));
        let both = "stock at [10.96.0.7]: 80>8080 90>9090 [10.1.0.1=8080 10.1.0.2=8080]";
        assert_eq!(shown(&events), [both]);
        assert_eq!(merged.note_pod(Event::Apply(meshed("b"))), [], "nothing of it has changed");
        assert_eq!(merged.note_pod(Event::Apply(meshed("other"))), []);
        // The watch of pods begins again, and a pod has gone meanwhile.
        merged.note_pod(Event::Init);
        merged.note_pod(Event::InitApply(meshed("a")));
        assert_eq!(merged.note_pod(Event::InitDone), []);
        let alone = slice("s-1", 8080, &[("a", 1, true)]);
        let events = merged.note_slice(Event::Apply(alone));
        assert_eq!(shown(&events), ["stock at [10.96.0.7]: 80>8080 90>9090 [10.1.0.1=8080]"]);
        let ServiceEvent::Changed(service) = &events[0] else { panic!() };
        let names: Vec<_> = service.groups[0].pods[0].instances.iter().map(Label::as_str).collect();
        assert_eq!(names, ["a", "u-a"], "its sidecar has either name");
    }

    #[test]
    fn services_of_other_names_and_those_that_stay_out_are_none_of_the_mesh() {
        let mut merged = Merged::of(Label::new("west").unwrap());
        begun(&mut merged, vec![slice("s-1", 8080, &[("a", 1, true)])], vec![meshed("a")]);
        let external = json!({"type": "ExternalName", "externalName": "db.example"});
        let events = merged.note_service(Event::Apply(service("db", &external, &json!({}))));
        assert_eq!(events, []);
        let mut out = stock();
        out.metadata.annotations = Some([(IN_MESH.to_owned(), "false".to_owned())].into());
        assert_eq!(shown(&merged.note_service(Event::Apply(out))), ["deleted shop/stock"]);
        for field in
            [json!({"internalTrafficPolicy": "Local"}), json!({"sessionAffinity": "ClientIP"})]
        {
            let mut spec = serde_json::to_value(stock().spec).unwrap();
            spec.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
            let events = merged.note_service(Event::Apply(stock()));
            assert_eq!(events.len(), 1, "it is back");
            let events = merged.note_service(Event::Apply(service("stock", &spec, &json!({}))));
            assert_eq!(shown(&events), ["deleted shop/stock"]);
        }
        // A headless one has no address.
        let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]});
        let events = merged.note_service(Event::Apply(service("db", &spec, &json!({}))));
        assert_eq!(shown(&events), ["db at []: "]);
    }

    #[test]
    fn an_endpoint_that_is_no_pod_has_no_sidecar() {
        let mut merged = Merged::of(Label::new("west").unwrap());
        let mut by_hand = slice("s-1", 8080, &[("a", 1, true)]);
        by_hand.endpoints[0].target_ref = None;
        by_hand.endpoints[0].conditions = None;
        let events = begun(&mut merged, vec![by_hand], vec![meshed("a")]);
        assert_eq!(shown(&events)[1], "stock at [10.96.0.7]: 80>8080 90>9090 [10.1.0.1=-]");
    }

    #[test]
    fn what_pods_speak_at_a_port_is_what_its_service_states() {
        for (name, stated, expected) in [
            ("http", None, AppProtocol::Http),
            ("http-web", None, AppProtocol::Http),
            ("grpc-api", None, AppProtocol::Grpc),
            ("http2", None, AppProtocol::H2c),
            ("https", None, AppProtocol::Tcp),
            ("httpd", None, AppProtocol::Tcp),
            ("", None, AppProtocol::Tcp),
            ("tcp", Some("kubernetes.io/h2c"), AppProtocol::H2c),
            ("tcp", Some("HTTP"), AppProtocol::Http),
            ("x", Some("kubernetes.io/ws"), AppProtocol::Http),
            ("grpc", Some("example.com/mine"), AppProtocol::Tcp),
        ] {
            let port = ServicePort {
                name: Some(name.to_owned()),
                app_protocol: stated.map(str::to_owned),
                ..ServicePort::default()
            };
            assert_eq!(protocol(&port), expected, "{name} {stated:?}");
        }
    }

    #[test]
    fn a_pod_takes_calls_at_the_ports_that_its_sidecar_is_set_to() {
        let network = Label::new("west").unwrap();
        let ports = |annotations: Value| ports(&pod("a", &annotations).metadata, &network);
        let set_to =
            |port: &str| ports(json!({"tollway.dev/injected": "1", "tollway.dev/port": port}));
        assert_eq!(ports(json!({"tollway.dev/port": "8080"})), PodPorts::None, "it has no sidecar");
        let calls_only = json!({"tollway.dev/injected": "0.1.0"});
        assert_eq!(ports(calls_only), PodPorts::None, "it only makes calls");
        let of_dapr = json!({"tollway.dev/injected": "0.1.0", "dapr.io/app-port": "3000"});
        assert_eq!(ports(of_dapr), PodPorts::Own(3000));
        assert_eq!(set_to("services"), PodPorts::OfServices);
        let of = |network: &str, port: &str| {
            json!({
                "tollway.dev/injected": "1", "tollway.dev/port": port,
                "tollway.dev/network": network,
            })
        };
        assert_eq!(ports(of("West", "80")), PodPorts::Own(80));
        assert_eq!(ports(of("east", "80")), PodPorts::None);
        assert_eq!(ports(of("east", "services")), PodPorts::None);
        let none = json!({
            "tollway.dev/injected": "1", "tollway.dev/port": "none", "dapr.io/app-port": "80",
        });
        assert_eq!(ports(none), PodPorts::None);
        for odd in ["0", "70000", "http", "", "Services"] {
            assert_eq!(set_to(odd), PodPorts::None, "{odd}");
        }
    }
}
