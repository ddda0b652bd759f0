use linkerd2_proxy_api::net::TcpAddress;

use super::*;

const HTTP: &str = "echo-http.west.svc.cluster.local:8080";

fn service(name: &str, port: u16, opaque: bool) -> Service {
    Service {
        address: SocketAddr::from(([10, 201, 0, 1], port)),
        name: name.into(),
        namespace: "west".into(),
        opaque,
        endpoint: "10.201.0.1:40001".parse().unwrap(),
        inbound_port: 40_002,
        server_name: "echo.default.west.mesh".into(),
        server_id: "spiffe://west.tollway/ns/default/echo".into(),
    }
}

fn knowledge() -> Knowledge {
    Knowledge {
        workloads: Vec::new(),
        services: vec![service("echo-http", 8080, false), service("echo-tcp", 8082, true)],
        served: vec![Served { port: 40_001, opaque: false }, Served { port: 40_003, opaque: true }],
        callers: vec!["spiffe://west.tollway/ns/default/client".into()],
    }
}

fn outbound_to(address: &str) -> Option<OutboundPolicy> {
    let address: TcpAddress = address.parse::<SocketAddr>().unwrap().into();
    let target = Some(Target::Addr(address));
    knowledge().outbound(&TrafficSpec { source_workload: "client".into(), target })
}

/// The names that the endpoints of a route are looked up by.
fn paths(policy: &OutboundPolicy) -> Vec<String> {
    let kind = policy.protocol.clone().unwrap().kind.unwrap();
    let (http_routes, opaque) = if let outbound::proxy_protocol::Kind::Detect(detect) = kind {
        let (http1, http2) = (detect.http1.unwrap(), detect.http2.unwrap());
        ([http1.routes, http2.routes].concat(), detect.opaque.unwrap())
    } else if let outbound::proxy_protocol::Kind::Opaque(opaque) = kind {
        (Vec::new(), opaque)
    } else {
        panic!("{kind:?}");
    };
    let of_http = http_routes.into_iter().flat_map(|route| route.rules).map(|rule| {
        let kind = rule.backends.unwrap().kind.unwrap();
        let http::distribution::Kind::FirstAvailable(first) = kind else { panic!("{kind:?}") };
        first.backends[0].backend.clone()
    });
    let of_opaque = opaque.routes.into_iter().flat_map(|route| route.rules).map(|rule| {
        let kind = rule.backends.unwrap().kind.unwrap();
        let opaque::distribution::Kind::FirstAvailable(first) = kind else { panic!("{kind:?}") };
        first.backends[0].backend.clone()
    });
    let path = |backend: Option<outbound::Backend>| match backend.unwrap().kind.unwrap() {
        backend::Kind::Balancer(balancer) => match balancer.discovery.unwrap().kind.unwrap() {
            backend::endpoint_discovery::Kind::Dst(get) => get.path,
        },
        backend::Kind::Forward(_) => panic!("not balanced"),
    };
    of_http.chain(of_opaque).map(path).collect()
}

#[test]
fn a_service_is_known_by_address_and_by_name() {
    for path in ["10.201.0.1:8080", HTTP] {
        let profile = knowledge().profile(path).unwrap();
        assert_eq!(profile.fully_qualified_name, "echo-http.west.svc.cluster.local");
        assert!(!profile.opaque_protocol);
    }
    assert!(knowledge().profile("10.201.0.1:8082").unwrap().opaque_protocol);
    for unknown in ["10.201.0.1:8081", "10.201.0.2:8080", "echo-http:8080", ""] {
        assert_eq!(knowledge().profile(unknown), None, "{unknown}");
    }
}

#[test]
fn requests_are_detected_and_balanced_and_bytes_only_passed() {
    let detected = outbound_to("10.201.0.1:8080").unwrap();
    assert_eq!(paths(&detected), [HTTP, HTTP, HTTP]);
    let passed = outbound_to("10.201.0.1:8082").unwrap();
    assert_eq!(paths(&passed), ["echo-tcp.west.svc.cluster.local:8082"]);
    assert_eq!(outbound_to("10.201.0.1:9"), None);
}

#[test]
fn an_endpoint_is_another_proxy_with_an_identity() {
    let Some(update::Update::Add(added)) = knowledge().endpoints(HTTP).update else {
        panic!("not added");
    };
    let [endpoint] = &added.addrs[..] else { panic!("{added:?}") };
    let address = SocketAddr::try_from(endpoint.addr.unwrap()).unwrap();
    assert_eq!(address, "10.201.0.1:40001".parse().unwrap());
    let hint = endpoint.protocol_hint.unwrap();
    assert_eq!(hint.opaque_transport.unwrap().inbound_port, 40_002);
    assert_eq!(hint.protocol, Some(Protocol::H2(H2 {})));
    let tls = endpoint.tls_identity.clone().unwrap();
    assert_eq!(tls.server_name.unwrap().name, "echo.default.west.mesh");
    let Some(Strategy::UriLikeIdentity(id)) = tls.strategy else { panic!("{:?}", tls.strategy) };
    assert_eq!(id.uri, "spiffe://west.tollway/ns/default/echo");
    let nobody = knowledge().endpoints("elsewhere:80").update;
    assert_eq!(nobody, Some(update::Update::NoEndpoints(NoEndpoints { exists: false })));
}

#[test]
fn only_known_callers_may_call_and_only_what_is_served() {
    for (port, opaque) in [(40_001, false), (40_003, true)] {
        let server = knowledge().inbound(port);
        let kind = server.protocol.unwrap().kind.unwrap();
        assert_eq!(matches!(kind, inbound::proxy_protocol::Kind::Opaque(_)), opaque);
        let [authz] = &server.authorizations[..] else { panic!("{:?}", server.authorizations) };
        let permit = authz.authentication.clone().unwrap().permit.unwrap();
        let authn::Permit::MeshTls(mutual) = permit else { panic!("{permit:?}") };
        let Some(authn::permit_mesh_tls::Clients::Identities(clients)) = mutual.clients else {
            panic!("anybody may call");
        };
        assert_eq!(clients.identities[0].name, "spiffe://west.tollway/ns/default/client");
        assert_eq!((clients.identities.len(), clients.suffixes.len()), (1, 0));
    }
    for port in [40_002, 1, 70_000] {
        assert_eq!(knowledge().inbound(port).authorizations, [], "{port}");
    }
}

#[test]
fn knowledge_survives_its_file() {
    let text = serde_json::to_string(&knowledge()).unwrap();
    assert_eq!(serde_json::from_str::<Knowledge>(&text).unwrap(), knowledge());
    assert!(serde_json::from_str::<Knowledge>(&text.replacen("callers", "calls", 1)).is_err());
}
