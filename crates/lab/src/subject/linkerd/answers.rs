//! What the lab's control plane answers linkerd2-proxy: pure, from its configuration at the start.
//!
//! The answers are those that Linkerd's own control plane gives for a service of one endpoint
//! without routes or policies of its own: its protocol is detected (or opaque), requests are
//! balanced by the usual estimate of load, and the endpoint is another proxy, which is reached by
//! mutual TLS on its inbound port and takes HTTP/2.

use std::net::SocketAddr;
use std::time::Duration;

use linkerd2_proxy_api::destination::protocol_hint::{
    H2, Opaque as OpaqueHint, OpaqueTransport, Protocol,
};
use linkerd2_proxy_api::destination::tls_identity::{DnsLikeIdentity, Strategy, UriLikeIdentity};
use linkerd2_proxy_api::destination::{
    DestinationProfile, NoEndpoints, ProtocolHint, TlsIdentity, Update, WeightedAddr,
    WeightedAddrSet, update,
};
use linkerd2_proxy_api::inbound::{self, authn};
use linkerd2_proxy_api::meta::{Metadata, Resource, metadata};
use linkerd2_proxy_api::net::{IpAddress, IpNetwork};
use linkerd2_proxy_api::outbound::traffic_spec::Target;
use linkerd2_proxy_api::outbound::{self, OutboundPolicy, TrafficSpec, backend};
use linkerd2_proxy_api::{
    http_route, outbound::http_route as http, outbound::opaque_route as opaque,
};
use serde::{Deserialize, Serialize};

/// Linkerd's limit for detecting a protocol by the first bytes.
const DETECT_LIMIT: Duration = Duration::from_secs(10);
/// Linkerd's estimate of load: window, and first value.
const LOAD_DECAY: Duration = Duration::from_secs(10);
const FIRST_RTT: Duration = Duration::from_millis(30);
/// Linkerd's queue before a service.
const QUEUE_REQUESTS: u32 = 100;
const QUEUE_LIMIT: Duration = Duration::from_secs(3);
/// Weight of an endpoint where all weigh the same.
const WEIGHT: u32 = 10_000;

/// The state of a control plane of the lab.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Knowledge {
    /// Workloads that may get a certificate.
    pub(super) workloads: Vec<Workload>,
    /// What is called from here.
    pub(super) services: Vec<Service>,
    /// What is served here, by port of the app.
    pub(super) served: Vec<Served>,
    /// SPIFFE identities that may call what is served here.
    pub(super) callers: Vec<String>,
}

/// A proxy that requests its certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Workload {
    /// App name in its identity.
    pub(super) app: String,
    /// What it proves itself with.
    pub(super) token_file: std::path::PathBuf,
}

/// A service as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    /// What is called; connections to it are redirected to the caller's proxy.
    pub(super) address: SocketAddr,
    /// First label of its DNS name, and the name's namespace.
    pub(super) name: String,
    pub(super) namespace: String,
    /// Whether its bytes are passed without detection.
    pub(super) opaque: bool,
    /// The app, as its proxy sees it.
    pub(super) endpoint: SocketAddr,
    /// Where that proxy listens, at the same address.
    pub(super) inbound_port: u16,
    /// Its DNS name and SPIFFE identity.
    pub(super) server_name: String,
    pub(super) server_id: String,
}

/// A port of an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Served {
    pub(super) port: u16,
    pub(super) opaque: bool,
}

impl Knowledge {
    /// About a service by what is called (`ip:port`) or by name; `None` where there is none.
    pub(super) fn profile(&self, path: &str) -> Option<DestinationProfile> {
        let service = self.service(path)?;
        Some(DestinationProfile {
            fully_qualified_name: service.host(),
            opaque_protocol: service.opaque,
            parent_ref: Some(service.metadata()),
            ..DestinationProfile::default()
        })
    }

    /// The endpoints of a service, by name.
    pub(super) fn endpoints(&self, path: &str) -> Update {
        let update = match self.service(path) {
            Some(service) => update::Update::Add(WeightedAddrSet {
                addrs: vec![service.weighted_endpoint()],
                ..WeightedAddrSet::default()
            }),
            None => update::Update::NoEndpoints(NoEndpoints { exists: false }),
        };
        Update { update: Some(update) }
    }

    /// How a caller's proxy is to treat a connection; `None` where nothing is known.
    pub(super) fn outbound(&self, asked: &TrafficSpec) -> Option<OutboundPolicy> {
        let path = match asked.target.clone()? {
            Target::Addr(address) => SocketAddr::try_from(address).ok()?.to_string(),
            Target::Authority(name) => name,
        };
        let service = self.service(&path)?;
        let kind = if service.opaque {
            outbound::proxy_protocol::Kind::Opaque(service.opaque_routes())
        } else {
            outbound::proxy_protocol::Kind::Detect(outbound::proxy_protocol::Detect {
                timeout: wire_duration(DETECT_LIMIT),
                opaque: Some(service.opaque_routes()),
                http1: Some(outbound::proxy_protocol::Http1 {
                    routes: vec![service.http_route()],
                    failure_accrual: None,
                }),
                http2: Some(outbound::proxy_protocol::Http2 {
                    routes: vec![service.http_route()],
                    failure_accrual: None,
                }),
            })
        };
        Some(OutboundPolicy {
            protocol: Some(outbound::ProxyProtocol { kind: Some(kind) }),
            metadata: Some(service.metadata()),
        })
    }

    /// The callers of a port here: all known ones for a port that is served, none for any other.
    pub(super) fn inbound(&self, port: u32) -> inbound::Server {
        let served = self.served.iter().find(|served| u32::from(served.port) == port);
        let kind = if served.is_some_and(|served| served.opaque) {
            inbound::proxy_protocol::Kind::Opaque(inbound::proxy_protocol::Opaque {})
        } else {
            inbound::proxy_protocol::Kind::Detect(inbound::proxy_protocol::Detect {
                timeout: wire_duration(DETECT_LIMIT),
                ..inbound::proxy_protocol::Detect::default()
            })
        };
        inbound::Server {
            protocol: Some(inbound::ProxyProtocol { kind: Some(kind) }),
            authorizations: served.map(|_| self.known_callers()).into_iter().collect(),
            labels: labels(if served.is_some() { "served" } else { "nobody" }),
            server_ips: Vec::new(),
        }
    }

    fn known_callers(&self) -> inbound::Authz {
        let identities = self.callers.iter().map(|id| inbound::Identity { name: id.clone() });
        let clients = authn::permit_mesh_tls::Clients::Identities(
            authn::permit_mesh_tls::PermitClientIdentities {
                identities: identities.collect(),
                suffixes: Vec::new(),
            },
        );
        let mutual = authn::PermitMeshTls { clients: Some(clients) };
        let anywhere = IpNetwork {
            ip: Some(IpAddress::from(std::net::IpAddr::from([0, 0, 0, 0]))),
            prefix_len: 0,
        };
        inbound::Authz {
            networks: vec![inbound::Network { net: Some(anywhere), except: Vec::new() }],
            authentication: Some(inbound::Authn { permit: Some(authn::Permit::MeshTls(mutual)) }),
            labels: labels("known-callers"),
            metadata: None,
        }
    }

    fn service(&self, path: &str) -> Option<&Service> {
        let is_it =
            |service: &&Service| service.address.to_string() == path || service.authority() == path;
        self.services.iter().find(is_it)
    }
}

impl Service {
    fn host(&self) -> String {
        format!("{}.{}.svc.cluster.local", self.name, self.namespace)
    }

    fn authority(&self) -> String {
        format!("{}:{}", self.host(), self.address.port())
    }

    fn metadata(&self) -> Metadata {
        let resource = Resource {
            group: "core".to_owned(),
            kind: "Service".to_owned(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            section: String::new(),
            port: u32::from(self.address.port()),
        };
        Metadata { kind: Some(metadata::Kind::Resource(resource)) }
    }

    fn weighted_endpoint(&self) -> WeightedAddr {
        let name = || DnsLikeIdentity { name: self.server_name.clone() };
        let id = UriLikeIdentity { uri: self.server_id.clone() };
        let protocol =
            if self.opaque { Protocol::Opaque(OpaqueHint {}) } else { Protocol::H2(H2 {}) };
        WeightedAddr {
            addr: Some(self.endpoint.into()),
            weight: WEIGHT,
            tls_identity: Some(TlsIdentity {
                server_name: Some(name()),
                strategy: Some(Strategy::UriLikeIdentity(id)),
            }),
            protocol_hint: Some(ProtocolHint {
                opaque_transport: Some(OpaqueTransport {
                    inbound_port: u32::from(self.inbound_port),
                }),
                protocol: Some(protocol),
            }),
            ..WeightedAddr::default()
        }
    }

    fn backend(&self) -> outbound::Backend {
        let get = backend::endpoint_discovery::DestinationGet { path: self.authority() };
        let load = backend::balance_p2c::PeakEwma {
            default_rtt: wire_duration(FIRST_RTT),
            decay: wire_duration(LOAD_DECAY),
        };
        outbound::Backend {
            metadata: Some(self.metadata()),
            queue: Some(outbound::Queue {
                capacity: QUEUE_REQUESTS,
                failfast_timeout: wire_duration(QUEUE_LIMIT),
            }),
            kind: Some(backend::Kind::Balancer(backend::BalanceP2c {
                discovery: Some(backend::EndpointDiscovery {
                    kind: Some(backend::endpoint_discovery::Kind::Dst(get)),
                }),
                load: Some(backend::balance_p2c::Load::PeakEwma(load)),
            })),
        }
    }

    fn http_route(&self) -> outbound::HttpRoute {
        let backend =
            http::RouteBackend { backend: Some(self.backend()), ..http::RouteBackend::default() };
        let first = http::distribution::FirstAvailable { backends: vec![backend] };
        let any = http_route::HttpRouteMatch {
            path: Some(http_route::PathMatch {
                kind: Some(http_route::path_match::Kind::Prefix("/".to_owned())),
            }),
            ..http_route::HttpRouteMatch::default()
        };
        outbound::HttpRoute {
            metadata: named_default("http"),
            hosts: Vec::new(),
            rules: vec![http::Rule {
                matches: vec![any],
                backends: Some(http::Distribution {
                    kind: Some(http::distribution::Kind::FirstAvailable(first)),
                }),
                ..http::Rule::default()
            }],
        }
    }

    fn opaque_routes(&self) -> outbound::proxy_protocol::Opaque {
        let backend = opaque::RouteBackend { backend: Some(self.backend()), filters: Vec::new() };
        let first = opaque::distribution::FirstAvailable { backends: vec![backend] };
        let rule = opaque::Rule {
            backends: Some(opaque::Distribution {
                kind: Some(opaque::distribution::Kind::FirstAvailable(first)),
            }),
            filters: Vec::new(),
        };
        let route = outbound::OpaqueRoute { metadata: named_default("opaque"), rules: vec![rule] };
        outbound::proxy_protocol::Opaque { routes: vec![route] }
    }
}

fn named_default(name: &str) -> Option<Metadata> {
    Some(Metadata { kind: Some(metadata::Kind::Default(name.to_owned())) })
}

/// What the proxy's metrics call a server or an authorisation.
fn labels(name: &str) -> std::collections::HashMap<String, String> {
    [("group", ""), ("kind", "default"), ("name", name)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// `None` only for what a duration of the wire cannot hold.
fn wire_duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

#[cfg(test)]
mod tests;
