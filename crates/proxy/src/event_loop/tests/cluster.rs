//! Connections of an app in a Kubernetes cluster to addresses of that cluster.

use tollway_model::{ServedPort, UnavailableReason};

use super::app_unreachable::tcp_echo;
use super::intercepted::Site;
use super::sim::{Stream, listen_at};
use super::*;
use crate::served_ports::ServedPorts;
use crate::upstream::pools::ADDRESSES_LIMIT;

const FRONT: &str = "10.96.0.7:9080";
const GET: &[u8] = b"GET /a HTTP/1.1\r\nhost: reviews:9080\r\n\r\n";

fn front() -> SocketAddr {
    FRONT.parse().unwrap()
}

fn address() -> ServiceName {
    ServiceName::of_address(front(), &service("web"))
}

fn port() -> ServiceName {
    let home = service("web");
    ServiceName::of_port(&label("reviews"), 9080, &home.namespace, &home.network)
}

/// Pods of `reviews`, each of the app of this name, all of them at the callee.
fn pods(site: &Site, protocol: AppProtocol, apps: &[&str]) -> ServiceState {
    let pod = |app: &&str| Endpoint {
        app: Some(label(app)),
        ..Endpoint::new(label("s-1"), site.callee.addresses[0])
    };
    ServiceState::Local {
        unready: [].into(),
        endpoints: apps.iter().map(pod).collect(),
        protocol,
        trust_domain: site.network.trust_domain.clone(),
    }
}

fn in_mesh(site: &Site, protocol: AppProtocol, app: &str) {
    site.caller.send_state(&address(), ServiceState::AddressOf(port()));
    site.caller.send_state(&port(), pods(site, protocol, &[app]));
}

fn call(site: &Site) -> Stream {
    site.dial(Some(front()))
}

/// What comes back of bytes.
fn echo(mut stream: Stream) -> String {
    stream.write_all(b"echo").unwrap();
    stream.finish();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn away(site: &Site, name: &ServiceName, reason: UnavailableReason) {
    site.caller.send_state(name, ServiceState::Unavailable(reason));
}

#[test]
fn a_service_is_called_by_its_address_and_its_pods_prove_their_own_app() {
    let site = Site::new(AppProtocol::Http, start_app());
    in_mesh(&site, AppProtocol::Http, "stock");
    let mut stream = call(&site);
    for _ in 0..2 {
        let answer = talk(&mut stream, GET, b"\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("x-host: reviews:9080\r\n"), "its app is called as it expects");
        assert!(answer.contains("x-caller: spiffe://west.tollway/ns/default/web\r\n"), "{answer}");
    }
    // Without a host.
    let answer = talk(&mut call(&site), b"GET /a HTTP/1.0\r\n\r\n", b"\r\n\r\n");
    assert!(answer.contains("x-host: reviews.default:9080\r\n"), "{answer}");
    assert_eq!(site.counts(), [2, 0, 0, 0, 0, 0]);
}

/// The pods serve this port beside that of their app, and the state of the Service leads there.
fn further(site: &Site, protocol: AppProtocol, port_of_pod: u16) {
    let served = [ServedPort { port: port_of_pod, protocol }];
    site.callee.commands.send(Command::Ports(Arc::new(ServedPorts::new(&served))));
    lead_further(site, protocol, port_of_pod);
}

fn lead_further(site: &Site, protocol: AppProtocol, port_of_pod: u16) {
    let ServiceState::Local { endpoints, unready, protocol, trust_domain } =
        pods(site, protocol, &["stock"])
    else {
        unreachable!("pods are in this network")
    };
    let endpoints = endpoints.iter().cloned();
    let endpoints = endpoints.map(|of| Endpoint { port: Some(port_of_pod), ..of }).collect();
    site.caller.send_state(&address(), ServiceState::AddressOf(port()));
    let state = ServiceState::Local { endpoints, unready, protocol, trust_domain };
    site.caller.send_state(&port(), state);
}

#[test]
fn a_service_leads_to_another_port_of_the_app_with_the_identity_of_the_caller() {
    // The port that the sidecar is set to takes bytes.
    let site = Site::new(AppProtocol::Tcp, start_tcp_echo());
    further(&site, AppProtocol::Http, start_app().port());
    let mut stream = call(&site);
    for _ in 0..2 {
        let answer = talk(&mut stream, GET, b"\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("x-caller: spiffe://west.tollway/ns/default/web\r\n"), "{answer}");
    }
    let site = Site::new(AppProtocol::Http, start_app());
    further(&site, AppProtocol::Tcp, start_tcp_echo().port());
    assert_eq!(echo(call(&site)), "echo");
    // The app itself is called beside it.
    site.caller.send_state(&port(), pods(&site, AppProtocol::Http, &["stock"]));
    let answer = talk(&mut call(&site), GET, b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The harm: a caller names any port of the callee's machine and is led there.
#[test]
fn a_port_to_which_no_service_leads_is_called_by_none() {
    let site = Site::new(AppProtocol::Http, start_app());
    let (served, other) = (start_app().port(), start_app().port());
    further(&site, AppProtocol::Http, served);
    assert!(talk(&mut call(&site), GET, b"\r\n\r\n").starts_with("HTTP/1.1 200"));
    lead_further(&site, AppProtocol::Http, other);
    let answer = talk(&mut call(&site), GET, b"}");
    assert!(answer.contains("ERR_TLS_FAILED"), "{answer}");
    // One that was served takes no requests more, on a connection that stands either.
    lead_further(&site, AppProtocol::Http, served);
    let mut stream = call(&site);
    assert!(talk(&mut stream, GET, b"\r\n\r\n").starts_with("HTTP/1.1 200"));
    site.callee.commands.send(Command::Ports(Arc::default()));
    let answer = talk(&mut stream, GET, b"}");
    assert!(answer.contains("ERR_NO_READY_ENDPOINT"), "{answer}");
}

#[test]
fn a_further_port_that_takes_no_connections_is_named_and_the_app_goes_on() {
    let site = Site::new(AppProtocol::Http, start_app());
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    further(&site, AppProtocol::Http, unused);
    let answer = talk(&mut call(&site), GET, b"}");
    assert!(answer.contains("ERR_APP_UNREACHABLE"), "{answer}");
    site.caller.send_state(&port(), pods(&site, AppProtocol::Http, &["stock"]));
    let answer = talk(&mut call(&site), GET, b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The harm: one who holds the address of a pod reads what is meant for a Service.
#[test]
fn a_pod_that_proves_another_app_gets_nothing() {
    let site = Site::new(AppProtocol::Http, start_app());
    in_mesh(&site, AppProtocol::Http, "reviews-v1");
    let answer = talk(&mut call(&site), GET, b"}");
    assert!(answer.contains("ERR_WRONG_IDENTITY"), "{answer}");
}

#[test]
fn bytes_go_to_a_service_as_well() {
    let site = Site::new(AppProtocol::Tcp, start_tcp_echo());
    in_mesh(&site, AppProtocol::Tcp, "stock");
    assert_eq!(echo(call(&site)), "echo");
    assert_eq!(site.counts(), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn the_address_of_a_pod_leads_to_this_pod() {
    let site = Site::new(AppProtocol::Http, start_app());
    site.caller.send_state(&address(), pods(&site, AppProtocol::Http, &["stock"]));
    let answer = talk(&mut call(&site), GET, b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Of another namespace, as which it is known there.
    let site = Site::new(AppProtocol::Http, start_app());
    let there = ServiceName { namespace: label("bank"), ..address() };
    site.caller.send_state(&address(), ServiceState::AddressOf(there.clone()));
    site.caller.send_state(&there, pods(&site, AppProtocol::Http, &["stock"]));
    let answer = talk(&mut call(&site), GET, b"}");
    assert!(answer.contains("ERR_WRONG_IDENTITY"), "it is no pod of that namespace: {answer}");
}

#[test]
fn an_address_that_is_nothing_of_the_mesh_is_passed_on() {
    let site = Site::new(AppProtocol::Http, start_app());
    listen_at(front(), tcp_echo);
    away(&site, &address(), UnavailableReason::UnknownService);
    assert_eq!(echo(call(&site)), "echo");
    assert_eq!(site.counts(), [0, 0, 0, 0, 1, 0]);
    // It becomes one: the next connection goes there.
    in_mesh(&site, AppProtocol::Http, "stock");
    let answer = talk(&mut call(&site), GET, b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // What is no address is an address of nothing: a peer that says so leads no caller round in a circle.
    site.caller.send_state(&port(), ServiceState::AddressOf(port()));
    let answer = talk(&mut call(&site), GET, b"}");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
}

/// The harm: with the control plane away an app reaches nothing that it has not called before.
#[test]
fn an_address_of_which_nothing_is_said_in_time_is_passed_on() {
    let site = Site::new(AppProtocol::Http, start_app());
    listen_at(front(), tcp_echo);
    let before = now();
    assert_eq!(echo(call(&site)), "echo");
    let waited = now() - before;
    let patience = patient().discovery;
    assert!(waited >= patience && waited < patience + 3 * SWEEP, "{waited:?}");
    let (before, further) = (now(), echo(call(&site)));
    assert_eq!(further, "echo");
    assert!(now() - before < SWEEP, "further ones do not wait");
    assert_eq!(site.counts(), [0, 0, 0, 0, 2, 0]);
    // It says so later.
    in_mesh(&site, AppProtocol::Http, "stock");
    let answer = talk(&mut call(&site), GET, b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The harm: an app that keeps its connection is answered with errors for ever, where others reach the pods
/// whose sidecars were taken away.
#[test]
fn a_connection_ends_when_nothing_of_the_mesh_serves_its_service_any_more() {
    let site = Site::new(AppProtocol::Http, start_app());
    in_mesh(&site, AppProtocol::Http, "stock");
    let mut stream = call(&site);
    talk(&mut stream, GET, b"\r\n\r\n");
    away(&site, &port(), UnavailableReason::UnknownService);
    let mut answer = talk(&mut stream, GET, b"\r\n\r\n");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    answer.push_str(&rest);
    assert!(answer.contains("ERR_UNKNOWN_SERVICE"), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("connection: close\r\n"), "{answer}");
    away(&site, &address(), UnavailableReason::UnknownService);
    listen_at(front(), tcp_echo);
    assert_eq!(echo(call(&site)), "echo");
}

/// The harm: while sidecars are taken away, connections that are kept send all their requests to the last
/// pods that have one.
#[test]
fn kept_connections_to_a_service_end_without_an_error_when_it_leaves_the_mesh() {
    let site = Site::new(AppProtocol::Http, start_app());
    in_mesh(&site, AppProtocol::Http, "stock");
    let mut stream = call(&site);
    let answer = talk(&mut stream, GET, b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    advance(2 * patient().service_idle);
    away(&site, &address(), UnavailableReason::UnknownService);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
    listen_at(front(), tcp_echo);
    assert_eq!(echo(call(&site)), "echo");
}

/// The harm: an app that looks at many addresses keeps its sidecar from services.
#[test]
fn so_many_addresses_are_asked_for_and_connections_to_others_are_passed_on() {
    let site = Site::new(AppProtocol::Http, start_app());
    let address = |number: usize| {
        let [_, _, high, low] = u32::try_from(number).unwrap().to_be_bytes();
        SocketAddr::from(([10, 9, high, low], 80))
    };
    let waiting: Vec<_> =
        (0..ADDRESSES_LIMIT).map(|number| site.dial(Some(address(number)))).collect();
    let other = address(ADDRESSES_LIMIT);
    listen_at(other, tcp_echo);
    let before = now();
    assert_eq!(echo(site.dial(Some(other))), "echo");
    assert!(now() - before < SWEEP, "it is not asked for");
    drop(waiting);
    // Those that are nothing of the mesh are soon forgotten.
    advance(Duration::from_secs(70));
    in_mesh(&site, AppProtocol::Http, "stock");
    let answer = talk(&mut call(&site), GET, b"\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
