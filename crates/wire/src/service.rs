//! Workloads, services and networks.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use tollway_model::traffic_policy::TrafficParts;
use tollway_model::{
    AppProtocol, AreaName, Called, Endpoint, Locality, NameError, NetworkName, ProbeSecret, Remote,
    Revision, Route, ServedPort, ServiceName, ServiceState, ServiceUpdate, TrustDomain,
    UnavailableReason, Unready, Workload,
};

use crate::name::{
    address, addresses, called_name, instance, label, network_name, service_name, trust_domain,
};
use crate::{
    ConvertError, ENDPOINTS_PER_SERVICE_LIMIT, GATEWAYS_PER_NETWORK_LIMIT,
    LOCALITIES_PER_SERVICE_LIMIT, PORTS_PER_APP_LIMIT, v1,
};

/// A gateway's view of a joined network, at `revision`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkUpdate {
    pub network: NetworkName,
    pub revision: Revision,
    pub state: NetworkState,
}

/// The state of a joined network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NetworkState {
    /// What is known of it.
    Joined {
        trust_domain: TrustDomain,
        /// Its gateways, if this network's own dial them.
        gateways: Arc<[SocketAddr]>,
        /// One of its gateways answers.
        reachable: bool,
        /// Its gateways only dial out: it is reached by the reverse connections that they open.
        dials_out: bool,
        /// Its gateways to which those of this network open reverse connections, if they only dial
        /// out.
        reverse_to: Arc<[SocketAddr]>,
        /// With what its control plane proves that a probe is its own.
        probe_secret: Option<ProbeSecret>,
    },
    /// It is no longer joined.
    Removed,
}

impl From<AppProtocol> for v1::AppProtocol {
    fn from(protocol: AppProtocol) -> Self {
        match protocol {
            AppProtocol::Http => Self::Http,
            AppProtocol::H2c => Self::H2c,
            AppProtocol::Grpc => Self::Grpc,
            AppProtocol::Tcp => Self::Tcp,
        }
    }
}

impl From<UnavailableReason> for v1::UnavailableReason {
    fn from(reason: UnavailableReason) -> Self {
        match reason {
            UnavailableReason::UnknownService => Self::UnknownService,
            UnavailableReason::UnknownNetwork => Self::UnknownNetwork,
            UnavailableReason::UnreachableNetwork => Self::UnreachableNetwork,
            UnavailableReason::NoReadyEndpoint => Self::NoReadyEndpoint,
            UnavailableReason::NoFailover => Self::NoFailover,
        }
    }
}

impl From<&Workload> for v1::Workload {
    fn from(workload: &Workload) -> Self {
        Self {
            service: Some((&workload.service).into()),
            instance: workload.instance.as_str().to_owned(),
            address: Some(workload.address.into()),
            protocol: workload.protocol.map_or(v1::AppProtocol::Unspecified, Into::into).into(),
            ready: workload.ready,
            locality: workload.locality.is_stated().then(|| (&workload.locality).into()),
        }
    }
}

impl From<&Locality> for v1::Locality {
    fn from(locality: &Locality) -> Self {
        let text = |name: &Option<AreaName>| name.as_ref().map(ToString::to_string);
        Self {
            region: text(&locality.region).unwrap_or_default(),
            zone: text(&locality.zone).unwrap_or_default(),
        }
    }
}

impl From<&ServiceUpdate> for v1::ServiceUpdate {
    fn from(update: &ServiceUpdate) -> Self {
        Self {
            service: Some((&update.service).into()),
            revision: update.revision.0,
            state: Some((&update.state).into()),
            routes: update.routes.iter().map(|route| (&**route).into()).collect(),
            traffic: (*update.traffic != TrafficParts::default())
                .then(|| (&*update.traffic).into()),
        }
    }
}

impl From<&ServiceState> for v1::service_update::State {
    fn from(state: &ServiceState) -> Self {
        match state {
            ServiceState::Local { endpoints, unready, protocol, trust_domain } => {
                let mut table = LocalityTable::default();
                let endpoints = endpoints.iter().map(|of| v1::Endpoint {
                    instance: of.instance.as_str().to_owned(),
                    address: Some(of.address.into()),
                    locality: table.number(&of.locality),
                    app: of.app.as_ref().map(ToString::to_string).unwrap_or_default(),
                    port: of.port.map_or(0, u32::from),
                });
                let endpoints = endpoints.collect();
                let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
                for of in unready.iter() {
                    let count = counts.entry(table.number(&of.locality)).or_default();
                    *count = count.saturating_add(of.replicas);
                }
                let unready = counts
                    .into_iter()
                    .map(|(locality, replicas)| v1::UnreadyReplicas { locality, replicas });
                Self::Local(v1::Local {
                    endpoints,
                    unready: unready.collect(),
                    localities: table.listed,
                    protocol: v1::AppProtocol::from(*protocol).into(),
                    trust_domain: trust_domain.to_string(),
                })
            }
            ServiceState::Remote { remote, protocol, trust_domain } => Self::Remote(v1::Remote {
                ready_replicas: remote.ready_replicas,
                gateways: remote.gateways.iter().map(|g| (*g).into()).collect(),
                protocol: v1::AppProtocol::from(*protocol).into(),
                trust_domain: trust_domain.to_string(),
                beyond: remote.beyond.iter().map(|g| (*g).into()).collect(),
            }),
            ServiceState::Failover { rules, registered } => {
                Self::Any(crate::failover::any_network(rules, registered))
            }
            ServiceState::AddressOf(service) => Self::AddressOf(service.into()),
            ServiceState::Unavailable(reason) => {
                Self::Unavailable(v1::UnavailableReason::from(*reason).into())
            }
        }
    }
}

/// The zones and regions of replicas as a message lists them: each once.
#[derive(Default)]
struct LocalityTable<'a> {
    listed: Vec<v1::Locality>,
    numbers: HashMap<&'a Locality, u32>,
}

impl<'a> LocalityTable<'a> {
    /// The number of one, from 1; 0 where none is stated, and for one beyond the limit.
    fn number(&mut self, locality: &'a Locality) -> u32 {
        if !locality.is_stated() {
            return 0;
        }
        if let Some(number) = self.numbers.get(locality) {
            return *number;
        }
        if self.listed.len() >= LOCALITIES_PER_SERVICE_LIMIT {
            return 0;
        }
        self.listed.push(locality.into());
        let number = u32::try_from(self.listed.len()).unwrap_or(0);
        self.numbers.insert(locality, number);
        number
    }
}

impl From<&NetworkUpdate> for v1::NetworkUpdate {
    fn from(update: &NetworkUpdate) -> Self {
        let stated = Self {
            network: update.network.as_str().to_owned(),
            revision: update.revision.0,
            ..Self::default()
        };
        match &update.state {
            NetworkState::Joined {
                trust_domain,
                gateways,
                reachable,
                dials_out,
                reverse_to,
                probe_secret,
            } => Self {
                trust_domain: trust_domain.to_string(),
                gateways: gateways.iter().map(|g| (*g).into()).collect(),
                reachable: *reachable,
                dials_out: *dials_out,
                reverse_to: reverse_to.iter().map(|g| (*g).into()).collect(),
                probe_secret: probe_secret_bytes(probe_secret.as_ref()),
                ..stated
            },
            NetworkState::Removed => Self { removed: true, ..stated },
        }
    }
}

impl TryFrom<v1::AppProtocol> for AppProtocol {
    type Error = ConvertError;
    fn try_from(protocol: v1::AppProtocol) -> Result<Self, ConvertError> {
        match protocol {
            v1::AppProtocol::Http => Ok(Self::Http),
            v1::AppProtocol::H2c => Ok(Self::H2c),
            v1::AppProtocol::Grpc => Ok(Self::Grpc),
            v1::AppProtocol::Tcp => Ok(Self::Tcp),
            v1::AppProtocol::Unspecified => Err(ConvertError::Missing { field: "protocol" }),
        }
    }
}

/// Reads the number of an app protocol.
///
/// # Errors
/// [`ConvertError`] when it is unset or of a later version.
pub fn protocol(value: i32) -> Result<AppProtocol, ConvertError> {
    v1::AppProtocol::try_from(value)
        .map_err(|_| ConvertError::Unknown { field: "protocol", value })?
        .try_into()
}

/// Reads what an app speaks at its own port; `None` if it has none.
fn own_protocol(value: i32) -> Result<Option<AppProtocol>, ConvertError> {
    let has_none = value == i32::from(v1::AppProtocol::Unspecified);
    (!has_none).then(|| protocol(value)).transpose()
}

/// Reads a port; `field` names it in the error.
fn port(value: u32, field: &'static str) -> Result<u16, ConvertError> {
    let port = u16::try_from(value).ok().filter(|port| *port > 0);
    port.ok_or(ConvertError::Port { field, port: value })
}

/// Reads which ports of an app Services of a cluster lead to; `None` where a response has nothing of it.
///
/// # Errors
/// [`ConvertError`] for the first port that is none or whose protocol is unknown, or if there are too many.
pub fn served_ports(response: &v1::WatchResponse) -> Result<Option<Vec<ServedPort>>, ConvertError> {
    let Some(stated) = &response.ports else { return Ok(None) };
    let (count, limit) = (stated.ports.len(), PORTS_PER_APP_LIMIT);
    if count > limit {
        return Err(ConvertError::TooMany { field: "ports", count, limit });
    }
    let read = |of: &v1::ServedPort| {
        Ok(ServedPort { port: port(of.port, "ports.port")?, protocol: protocol(of.protocol)? })
    };
    stated.ports.iter().map(read).collect::<Result<_, _>>().map(Some)
}

impl From<&[ServedPort]> for v1::ServedPorts {
    fn from(ports: &[ServedPort]) -> Self {
        let port = |of: &ServedPort| v1::ServedPort {
            port: of.port.into(),
            protocol: v1::AppProtocol::from(of.protocol).into(),
        };
        Self { ports: ports.iter().take(PORTS_PER_APP_LIMIT).map(port).collect() }
    }
}

/// Reads what a workload announces of itself.
///
/// # Errors
/// [`ConvertError`] for the first field that is wrong.
pub fn workload(workload: &v1::Workload) -> Result<Workload, ConvertError> {
    Ok(Workload {
        service: service_name(workload.service.as_ref())?,
        instance: instance(&workload.instance)?,
        address: address(workload.address.as_ref(), "address")?,
        protocol: own_protocol(workload.protocol)?,
        ready: workload.ready,
        locality: workload.locality.as_ref().map(locality).transpose()?.unwrap_or_default(),
    })
}

/// Reads where a data plane runs.
///
/// # Errors
/// [`ConvertError::Area`] for a name that is none.
pub fn locality(stated: &v1::Locality) -> Result<Locality, ConvertError> {
    let name = |text: &str, field| {
        let name = (!text.is_empty()).then(|| AreaName::new(text)).transpose();
        name.map_err(|source| ConvertError::Area { field, source })
    };
    Ok(Locality { region: name(&stated.region, "region")?, zone: name(&stated.zone, "zone")? })
}

/// Reads an update of a service as a whole.
///
/// # Errors
/// As [`service_state`], [`service_routes`] and [`service_traffic`].
pub fn service_update(update: &v1::ServiceUpdate) -> Result<ServiceUpdate, ConvertError> {
    let (service, state) = service_state(update)?;
    let routes = service_routes(update)?;
    let traffic = service_traffic(update)?;
    Ok(ServiceUpdate { service, revision: Revision(update.revision), state, routes, traffic })
}

/// Reads the new state of a service. An available service has at least one endpoint, or at least
/// one replica and one gateway.
///
/// # Errors
/// [`ConvertError`] for the first field that is wrong.
pub fn service_state(
    update: &v1::ServiceUpdate,
) -> Result<(ServiceName, ServiceState), ConvertError> {
    let service = called_name(update.service.as_ref())?;
    let state = update.state.as_ref().ok_or(ConvertError::Missing { field: "state" })?;
    let state = match state {
        v1::service_update::State::Local(state) => local(state)?,
        v1::service_update::State::Remote(state) => remote(state, service.network.clone())?,
        v1::service_update::State::Any(state) => crate::failover::read_any_network(state)?,
        v1::service_update::State::AddressOf(name) => address_of(&service, name)?,
        v1::service_update::State::Unavailable(value) => unavailable(*value)?,
    };
    // Replicas are in one network, and only a name in any network has several.
    let is_right = match &state {
        ServiceState::Local { .. } | ServiceState::Remote { .. } => !service.is_in_any_network(),
        ServiceState::Failover { .. } => service.is_in_any_network(),
        ServiceState::AddressOf(_) | ServiceState::Unavailable(_) => true,
    };
    if !is_right {
        let source = NameError::AnyNetwork;
        return Err(ConvertError::Name { field: "service.network", source });
    }
    Ok((service, state))
}

/// Reads the routes of a service.
///
/// # Errors
/// [`ConvertError`] for the first that cannot be read, of a later version perhaps.
pub fn service_routes(update: &v1::ServiceUpdate) -> Result<Arc<[Arc<Route>]>, ConvertError> {
    update.routes.iter().map(|route| crate::route(route).map(Arc::new)).collect()
}

/// Reads what the traffic policies of a service come to.
///
/// # Errors
/// [`ConvertError`] if a part cannot be read, of a later version perhaps.
pub fn service_traffic(update: &v1::ServiceUpdate) -> Result<Arc<TrafficParts>, ConvertError> {
    let parts = update.traffic.as_ref().map(crate::traffic_policy::checked_parts).transpose()?;
    Ok(parts.map(Arc::new).unwrap_or_default())
}

/// An address is one of a port of a Service, or of a pod of another namespace; nothing else is an address
/// of anything.
fn address_of(of: &ServiceName, name: &v1::ServiceName) -> Result<ServiceState, ConvertError> {
    let name = called_name(Some(name))?;
    match (of.called(), name.called()) {
        (Called::Address(_), Called::Port { .. }) => Ok(ServiceState::AddressOf(name)),
        (Called::Address(address), Called::Address(same))
            if address == same && of.namespace != name.namespace =>
        {
            Ok(ServiceState::AddressOf(name))
        }
        (Called::App | Called::Port { .. } | Called::Address(_), _) => {
            Err(ConvertError::NotAnAddress { name: of.to_string(), of: name.to_string() })
        }
    }
}

fn local(state: &v1::Local) -> Result<ServiceState, ConvertError> {
    let count = state.endpoints.len();
    if count > ENDPOINTS_PER_SERVICE_LIMIT {
        let limit = ENDPOINTS_PER_SERVICE_LIMIT;
        return Err(ConvertError::TooMany { field: "endpoints", count, limit });
    }
    if count == 0 {
        return Err(ConvertError::Empty { field: "endpoints" });
    }
    let (count, limit) = (state.localities.len(), LOCALITIES_PER_SERVICE_LIMIT);
    if count > limit {
        return Err(ConvertError::TooMany { field: "localities", count, limit });
    }
    let localities: Vec<Locality> =
        state.localities.iter().map(locality).collect::<Result<_, _>>()?;
    let place = |number: u32| match number.checked_sub(1) {
        None => Ok(Locality::default()),
        Some(at) => {
            let found = usize::try_from(at).ok().and_then(|at| localities.get(at)).cloned();
            found.ok_or(ConvertError::Number { field: "locality", value: number })
        }
    };
    let endpoint = |e: &v1::Endpoint| {
        Ok(Endpoint {
            instance: instance(&e.instance)?,
            address: address(e.address.as_ref(), "endpoint.address")?,
            locality: place(e.locality)?,
            app: (!e.app.is_empty()).then(|| label(&e.app, "endpoint.app")).transpose()?,
            port: (e.port != 0).then(|| port(e.port, "endpoint.port")).transpose()?,
        })
    };
    let (count, limit) = (state.unready.len(), LOCALITIES_PER_SERVICE_LIMIT + 1);
    if count > limit {
        return Err(ConvertError::TooMany { field: "unready", count, limit });
    }
    let unready = |of: &v1::UnreadyReplicas| {
        Ok(Unready { locality: place(of.locality)?, replicas: of.replicas })
    };
    Ok(ServiceState::Local {
        endpoints: state.endpoints.iter().map(endpoint).collect::<Result<_, _>>()?,
        unready: state.unready.iter().map(unready).collect::<Result<_, _>>()?,
        protocol: protocol(state.protocol)?,
        trust_domain: trust_domain(&state.trust_domain)?,
    })
}

fn remote(state: &v1::Remote, network: NetworkName) -> Result<ServiceState, ConvertError> {
    if state.ready_replicas == 0 {
        return Err(ConvertError::Empty { field: "ready_replicas" });
    }
    let gateways = addresses(&state.gateways, "gateways", GATEWAYS_PER_NETWORK_LIMIT)?;
    if gateways.is_empty() {
        return Err(ConvertError::Empty { field: "gateways" });
    }
    let beyond = addresses(&state.beyond, "beyond", GATEWAYS_PER_NETWORK_LIMIT)?;
    Ok(ServiceState::Remote {
        remote: Remote {
            network,
            ready_replicas: state.ready_replicas,
            gateways: gateways.into(),
            beyond: beyond.into(),
        },
        protocol: protocol(state.protocol)?,
        trust_domain: trust_domain(&state.trust_domain)?,
    })
}

fn unavailable(value: i32) -> Result<ServiceState, ConvertError> {
    let field = "unavailable";
    let reason = v1::UnavailableReason::try_from(value)
        .map_err(|_| ConvertError::Unknown { field, value })?;
    Ok(ServiceState::Unavailable(match reason {
        v1::UnavailableReason::UnknownService => UnavailableReason::UnknownService,
        v1::UnavailableReason::UnknownNetwork => UnavailableReason::UnknownNetwork,
        v1::UnavailableReason::UnreachableNetwork => UnavailableReason::UnreachableNetwork,
        v1::UnavailableReason::NoReadyEndpoint => UnavailableReason::NoReadyEndpoint,
        v1::UnavailableReason::NoFailover => UnavailableReason::NoFailover,
        v1::UnavailableReason::Unspecified => return Err(ConvertError::Missing { field }),
    }))
}

/// Reads the state of a joined network.
///
/// # Errors
/// [`ConvertError`] for the first field that is wrong.
pub fn network_update(update: &v1::NetworkUpdate) -> Result<NetworkUpdate, ConvertError> {
    let state = if update.removed {
        NetworkState::Removed
    } else {
        NetworkState::Joined {
            trust_domain: trust_domain(&update.trust_domain)?,
            gateways: addresses(&update.gateways, "gateways", GATEWAYS_PER_NETWORK_LIMIT)?.into(),
            reachable: update.reachable,
            dials_out: update.dials_out,
            reverse_to: addresses(&update.reverse_to, "reverse_to", GATEWAYS_PER_NETWORK_LIMIT)?
                .into(),
            probe_secret: probe_secret(&update.probe_secret)?,
        }
    };
    Ok(NetworkUpdate {
        network: network_name(&update.network)?,
        revision: Revision(update.revision),
        state,
    })
}

/// The secret of a message; `None` if the field is empty.
///
/// # Errors
/// [`ConvertError::SecretBytes`] if it has another length.
pub fn probe_secret(bytes: &[u8]) -> Result<Option<ProbeSecret>, ConvertError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let length = bytes.len();
    ProbeSecret::read(bytes).map(Some).ok_or(ConvertError::SecretBytes { length })
}

/// A secret as a message has it.
#[must_use]
pub fn probe_secret_bytes(secret: Option<&ProbeSecret>) -> Vec<u8> {
    secret.map(|secret| secret.as_bytes().to_vec()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tollway_model::Label;

    use super::*;

    fn name() -> ServiceName {
        let [namespace, network] = ["shop", "east"].map(|l| Label::new(l).unwrap());
        ServiceName::parse_in("Stock", &namespace, &network).unwrap()
    }

    fn domain() -> TrustDomain {
        TrustDomain::new("east.tollway").unwrap()
    }

    fn states() -> Vec<ServiceState> {
        let area = |name: &str| Some(AreaName::new(name).unwrap());
        let at = |zone: &str| Locality { region: area("eu"), zone: area(zone) };
        let endpoint = |number: u16, locality: Locality| Endpoint {
            instance: Label::new(&format!("i-{number}")).unwrap(),
            address: format!("[2001:db8::7]:{number}").parse().unwrap(),
            locality,
            app: (number == 2).then(|| Label::new("stock-v2").unwrap()),
            port: (number == 2).then_some(7070),
        };
        let remote = Remote {
            network: name().network,
            ready_replicas: 3,
            gateways: vec!["10.0.0.1:15443".parse().unwrap()].into(),
            beyond: vec!["192.0.2.1:15443".parse().unwrap()].into(),
        };
        let mut states = vec![
            ServiceState::Local {
                endpoints: [
                    endpoint(1, at("a")),
                    endpoint(2, Locality::default()),
                    endpoint(3, at("b")),
                    endpoint(4, at("a")),
                ]
                .into(),
                unready: [
                    Unready { locality: Locality::default(), replicas: 1 },
                    Unready { locality: at("c"), replicas: 2 },
                ]
                .into(),
                protocol: AppProtocol::H2c,
                trust_domain: domain(),
            },
            ServiceState::Remote { remote, protocol: AppProtocol::Tcp, trust_domain: domain() },
        ];
        states.extend(
            [
                UnavailableReason::UnknownService,
                UnavailableReason::UnknownNetwork,
                UnavailableReason::UnreachableNetwork,
                UnavailableReason::NoReadyEndpoint,
                UnavailableReason::NoFailover,
            ]
            .map(ServiceState::Unavailable),
        );
        states
    }

    #[test]
    fn the_routes_of_a_service_survive_the_wire_in_their_order() {
        let route = |name: &str| v1::Route {
            namespace: "shop".into(),
            name: name.into(),
            service: "stock".into(),
            rules: vec![v1::RouteRule {
                action: Some(v1::route_rule::Action::Redirect(v1::Redirect {
                    status: 302,
                    ..v1::Redirect::default()
                })),
                ..v1::RouteRule::default()
            }],
            created_unix_ms: 7,
        };
        let state = states().swap_remove(0);
        let update = ServiceUpdate {
            service: name(),
            revision: Revision(7),
            state,
            routes: Arc::default(),
            traffic: Arc::default(),
        };
        let sent = v1::ServiceUpdate {
            routes: vec![route("b"), route("a")],
            traffic: Some(v1::TrafficParts { panic_percent: Some(7), ..Default::default() }),
            ..v1::ServiceUpdate::from(&update)
        };
        let read = service_update(&sent).unwrap();
        assert_eq!(read.traffic.panic_percent, Some(7));
        let names: Vec<_> = read.routes.iter().map(|route| route.name.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        assert_eq!(v1::ServiceUpdate::from(&read), sent);
        let mut bad = sent;
        bad.routes[1].rules.clear();
        assert!(service_update(&bad).is_err() && service_routes(&bad).is_err());
        assert_eq!(service_state(&bad), Ok((update.service, update.state)));
    }

    #[test]
    fn every_state_survives_the_wire() {
        for state in states() {
            let update = ServiceUpdate {
                service: name(),
                revision: Revision(7),
                state,
                routes: Arc::default(),
                traffic: Arc::default(),
            };
            assert_eq!(service_update(&v1::ServiceUpdate::from(&update)), Ok(update));
        }
    }

    #[test]
    fn an_address_is_one_of_a_port_or_a_pod_and_of_nothing_else() {
        let named = |text: &str| {
            let (app, namespace) = text.rsplit_once('/').unwrap_or((text, "shop"));
            let namespace = Label::new(namespace).unwrap();
            ServiceName { app: ServiceName::read_called(app).unwrap(), namespace, ..name() }
        };
        let read = |of: &str, port: &str| {
            let update = ServiceUpdate {
                service: named(of),
                revision: Revision(7),
                state: ServiceState::AddressOf(named(port)),
                routes: Arc::default(),
                traffic: Arc::default(),
            };
            service_update(&v1::ServiceUpdate::from(&update)).map(|read| read == update)
        };
        assert_eq!(read("10.96.0.7:80", "stock:8080"), Ok(true));
        assert_eq!(read("10.96.0.7:80", "10.96.0.7:80/bank"), Ok(true));
        for (of, port) in [
            ("stock", "stock:8080"),
            ("stock:80", "stock:8080"),
            ("10.96.0.7:80", "stock"),
            ("10.96.0.7:80", "10.96.0.7:80"),
            ("10.96.0.7:80", "10.96.0.8:80/bank"),
        ] {
            let refused = read(of, port);
            assert!(matches!(refused, Err(ConvertError::NotAnAddress { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_service_in_any_network_has_networks_and_no_replicas() {
        let any = ServiceName { network: Label::new("any").unwrap(), ..name() };
        let network = |network: &str| tollway_model::failover::FailoverNetwork {
            network: Label::new(network).unwrap(),
            priority: 0,
            weight: 1,
        };
        let rules = tollway_model::failover::FailoverRules {
            networks: vec![network("west"), network("east")],
            threshold: 70,
            spill_over: None,
        };
        let several = ServiceState::Failover { rules: Arc::new(rules), registered: [1, 2].into() };
        let update = |service: ServiceName, state| ServiceUpdate {
            service,
            revision: Revision(7),
            state,
            routes: Arc::default(),
            traffic: Arc::default(),
        };
        let right = update(any.clone(), several.clone());
        assert_eq!(service_update(&v1::ServiceUpdate::from(&right)), Ok(right));
        let mut wrong: Vec<_> =
            states().into_iter().take(2).map(|state| update(any.clone(), state)).collect();
        wrong.push(update(name(), several));
        for update in wrong {
            let refused = service_update(&v1::ServiceUpdate::from(&update));
            let source = NameError::AnyNetwork;
            assert_eq!(refused, Err(ConvertError::Name { field: "service.network", source }));
        }
    }

    #[test]
    fn workloads_survive_the_wire() {
        use AppProtocol::{Grpc, H2c, Http, Tcp};
        for protocol in [Some(Http), Some(H2c), Some(Grpc), Some(Tcp), None] {
            let sent = Workload {
                service: name(),
                instance: Label::new("i-1").unwrap(),
                address: "10.0.0.1:50002".parse().unwrap(),
                protocol,
                ready: true,
                locality: Locality { region: None, zone: Some(AreaName::new("a").unwrap()) },
            };
            assert_eq!(workload(&v1::Workload::from(&sent)), Ok(sent));
        }
    }

    #[test]
    fn networks_survive_the_wire() {
        let joined = NetworkState::Joined {
            trust_domain: domain(),
            gateways: vec!["10.0.0.1:15443".parse().unwrap()].into(),
            reachable: true,
            dials_out: true,
            reverse_to: vec!["10.0.0.2:15443".parse().unwrap()].into(),
            probe_secret: Some(ProbeSecret::new([7; 32])),
        };
        for state in [joined, NetworkState::Removed] {
            let update = NetworkUpdate { network: name().network, revision: Revision(9), state };
            assert_eq!(network_update(&v1::NetworkUpdate::from(&update)), Ok(update));
        }
    }

    #[test]
    fn a_probe_secret_of_another_length_is_refused() {
        assert_eq!(probe_secret(&[]), Ok(None));
        for length in [1, 31, 33] {
            let refused = probe_secret(&vec![0; length]);
            assert_eq!(refused, Err(ConvertError::SecretBytes { length }));
        }
    }

    /// Breaks one field of a well-formed update and returns the reason of the refusal.
    fn refusal(at: usize, break_it: impl FnOnce(&mut v1::service_update::State)) -> String {
        let state = states().swap_remove(at);
        let update = ServiceUpdate {
            service: name(),
            revision: Revision(7),
            state,
            routes: Arc::default(),
            traffic: Arc::default(),
        };
        let mut sent = v1::ServiceUpdate::from(&update);
        break_it(sent.state.as_mut().unwrap());
        service_update(&sent).unwrap_err().to_string()
    }

    #[test]
    fn served_ports_survive_the_wire_and_wrong_ones_are_refused() {
        let port = |port, protocol| ServedPort { port, protocol };
        let ports = [port(80, AppProtocol::Http), port(7070, AppProtocol::Grpc)];
        let response = |ports| v1::WatchResponse { ports: Some(ports), ..Default::default() };
        let sent = response((&ports[..]).into());
        assert_eq!(served_ports(&sent), Ok(Some(ports.to_vec())));
        assert_eq!(served_ports(&v1::WatchResponse::default()), Ok(None));
        let of = |port, protocol| v1::ServedPort { port, protocol };
        for wrong in [of(0, 1), of(65_536, 1), of(80, 0), of(80, 99)] {
            served_ports(&response(v1::ServedPorts { ports: vec![wrong] })).unwrap_err();
        }
        let many = vec![of(80, 1); PORTS_PER_APP_LIMIT + 1];
        served_ports(&response(v1::ServedPorts { ports: many })).unwrap_err();
    }

    #[test]
    fn localities_beyond_the_limit_are_sent_as_not_stated() {
        let zone = |number: usize| Locality {
            region: None,
            zone: Some(AreaName::new(&format!("z{number}")).unwrap()),
        };
        let endpoint = |number: usize| Endpoint {
            instance: Label::new(&format!("i-{number}")).unwrap(),
            address: ([10, 0, 0, 1], 1 + u16::try_from(number).unwrap()).into(),
            locality: zone(number),
            app: None,
            port: None,
        };
        let state = ServiceState::Local {
            endpoints: (0..LOCALITIES_PER_SERVICE_LIMIT + 2).map(endpoint).collect(),
            unready: (0..1000).map(|at| Unready { locality: zone(at), replicas: 1 }).collect(),
            protocol: AppProtocol::Http,
            trust_domain: domain(),
        };
        let update = ServiceUpdate {
            service: name(),
            revision: Revision(7),
            state,
            routes: Arc::default(),
            traffic: Arc::default(),
        };
        let read = service_update(&v1::ServiceUpdate::from(&update)).unwrap();
        let ServiceState::Local { endpoints, unready, .. } = read.state else { unreachable!() };
        let stated: Vec<bool> = endpoints.iter().map(|of| of.locality.is_stated()).collect();
        assert_eq!(stated.iter().filter(|is| **is).count(), LOCALITIES_PER_SERVICE_LIMIT);
        assert!(stated.is_sorted_by(|one, other| one >= other));
        assert_eq!(endpoints[7].locality, zone(7));
        assert_eq!(unready.len(), LOCALITIES_PER_SERVICE_LIMIT + 1);
        assert_eq!(unready.iter().map(|of| of.replicas).sum::<u32>(), 1000);
    }

    #[test]
    fn malformed_states_are_refused_with_the_field() {
        use v1::service_update::State;
        let local = refusal(0, |state| {
            let State::Local(state) = state else { unreachable!() };
            state.endpoints.clear();
        });
        assert_eq!(local, "the field `endpoints` is empty; it needs at least one entry");
        let local = |break_it: fn(&mut v1::Local)| {
            refusal(0, |state| {
                let State::Local(state) = state else { unreachable!() };
                break_it(state);
            })
        };
        let reason = local(|state| state.endpoints[0].locality = 4);
        assert_eq!(reason, "the field `locality` holds 4, which is too large");
        let reason = local(|state| state.unready[0].locality = 4);
        assert_eq!(reason, "the field `locality` holds 4, which is too large");
        let reason = local(|state| state.localities = vec![state.localities[0].clone(); 257]);
        assert_eq!(reason, "the field `localities` holds 257 entries; at most 256 are accepted");
        let reason = local(|state| state.unready = vec![state.unready[0]; 258]);
        assert_eq!(reason, "the field `unready` holds 258 entries; at most 257 are accepted");
        let reason = local(|state| state.localities[0].zone = "a b".into());
        assert_eq!(reason, "the field `zone` does not name a zone or a region");
        let remote = refusal(1, |state| {
            let State::Remote(state) = state else { unreachable!() };
            state.ready_replicas = 0;
        });
        assert_eq!(remote, "the field `ready_replicas` is empty; it needs at least one entry");
        let remote = refusal(1, |state| {
            let State::Remote(state) = state else { unreachable!() };
            state.protocol = 99;
        });
        assert_eq!(remote, "the field `protocol` holds 99, which this version does not know");
        let reason = refusal(2, |state| *state = State::Unavailable(0));
        assert_eq!(reason, "the field `unavailable` is missing");
    }
}
