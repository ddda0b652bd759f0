//! Every route and every method of a sidecar as every kind of caller, held to the tables in
//! docs/security.md. A route or a method without a row there fails, and so does a row without one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use prost_types::FileDescriptorSet;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tollway_identity::{Credentials, Expected, client_config};
use tollway_model::Group;
use tollway_routing::CALL_ROUTE;
use tollway_runtime::{ROUTES, Route};
use tollway_testkit::{Process, free_port, retry_until};
use tollway_tests::mesh::PATIENCE;
use tollway_tests::mesh::http::get;
use tollway_tests::network::{Network, issue, issue_system, until_status};
use tollway_tests::tls_client::{call, dial, trusting};
use tollway_tests::user::User;
use tollway_wire::DAPR_DESCRIPTORS;
use tollway_wire::dapr::proto::runtime::v1::{
    ListActorRemindersRequest, UnregisterActorRemindersByTypeRequest,
};
use tonic::Code;

use super::CONFIG;
use super::app::{ActorApp, Log};
use crate::api::daprd::{Daprd, listens};

/// The columns of the table, in the order in which they are tried: the app is the one that may end its
/// sidecar.
const KINDS: [&str; 9] = [
    "anonymous",
    "a replica",
    "another app",
    "another namespace",
    "another network",
    "gateway",
    "agent",
    "joined control plane",
    "the app",
];

/// The name by which the sidecar of `cart` is dialled.
const CART: &str = "cart.default.west.mesh";

const PAGE: &str = include_str!("../../../docs/security.md");

/// The rows of a table: for each route or method a cell for each kind.
fn rows(table: &str) -> BTreeMap<String, BTreeMap<&'static str, String>> {
    let rows = tollway_testkit::table(PAGE, table, 1, KINDS).into_iter();
    rows.map(|(keys, cells)| (keys.concat(), KINDS.into_iter().zip(cells).collect())).collect()
}

/// The methods of the API's own services, as paths without their first slash. Apps serve the callbacks.
fn rpcs() -> Vec<String> {
    let set = FileDescriptorSet::decode(DAPR_DESCRIPTORS).unwrap();
    let mut rpcs = Vec::new();
    for (file, service) in
        set.file.iter().flat_map(|file| file.service.iter().map(move |s| (file, s)))
    {
        if !service.name().starts_with("AppCallback") {
            let path = |method: &str| format!("{}.{}/{method}", file.package(), service.name());
            rpcs.extend(service.method.iter().map(|method| path(method.name())));
        }
    }
    let reflection =
        |version| format!("grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
    rpcs.extend(["v1", "v1alpha"].map(reflection));
    rpcs
}

/// The sidecar of `cart`, and the callers' certificates.
struct Scene {
    api: SocketAddr,
    grpc: SocketAddr,
    inbound: SocketAddr,
    admin: SocketAddr,
    /// The gRPC API of another sidecar.
    to_be_ended: SocketAddr,
    callers: BTreeMap<&'static str, Arc<ClientConfig>>,
}

impl Scene {
    /// What a request is answered with; why there is no answer if there is none. `lookup` is what
    /// another sidecar says of the actor's host.
    fn ask(&self, kind: &str, lookup: &str, request: &str) -> Result<String, String> {
        if kind == "the app" {
            return plain(self.api, request);
        }
        let (head, rest) = request.split_once("\r\n").expect("a request has a first line");
        let request = format!("{head}\r\nx-tollway-actor: {lookup}\r\n{rest}");
        let socket = dial(self.inbound, PATIENCE);
        let config = Arc::clone(&self.callers[kind]);
        let answer = call(socket, CART, config, request.as_bytes())?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Whether a request gets beyond the question who makes it, whatever it says of the actor's host.
    fn is_served(&self, kind: &str, method: &str, path: &str, body: &str) -> (bool, String) {
        let request = request(method, path, body);
        let mut answers = Vec::new();
        for lookup in ["host", "lookup"] {
            let answer = self.ask(kind, lookup, &request).unwrap_or_else(|reason| reason);
            let answer = answer.to_ascii_lowercase();
            let is_refused = !answer.starts_with("http/1.1")
                || answer.starts_with("http/1.1 403")
                || answer.contains("err_not_served")
                // Here nothing is done of it, and the caller is to ask elsewhere.
                || answer.contains("x-tollway-unprocessed");
            if !is_refused {
                return (true, answer);
            }
            answers.push(answer);
        }
        (false, answers.join(" and "))
    }

    /// Whether the sidecar itself carries a method out, and what it was answered with.
    async fn is_carried_out(&self, kind: &str, rpc: &str) -> (bool, String) {
        let mut answers = Vec::new();
        for lookup in ["", "host", "lookup"] {
            let answer = self.rpc(kind, lookup, rpc).await;
            if answer.as_ref().is_ok_and(has_grpc_answer) {
                return (true, format!("{answer:?}"));
            }
            answers.push(format!("{answer:?}"));
        }
        (false, answers.join(" and "))
    }

    /// What a method is answered with: its fields, and those behind the body.
    async fn rpc(&self, kind: &str, lookup: &str, rpc: &str) -> Result<HeaderMap, String> {
        if kind == "the app" {
            let api = if rpc.ends_with("/Shutdown") { self.to_be_ended } else { self.grpc };
            return ask_rpc(TcpStream::connect(api).await.unwrap(), lookup, rpc).await;
        }
        let mut config = (*self.callers[kind]).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(self.inbound).await.unwrap();
        let name = ServerName::try_from(CART).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        ask_rpc(stream.map_err(|error| error.to_string())?, lookup, rpc).await
    }
}

/// Whether a method was carried out, if only to find its message wrong.
fn has_grpc_answer(fields: &HeaderMap) -> bool {
    let text = |name| fields.get(name).map(|value| value.to_str().unwrap());
    let is_refused = |status| {
        matches!(status, Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented)
    };
    text("grpc-status").is_some_and(|status| !is_refused(Code::from_bytes(status.as_bytes())))
        && !fields.contains_key("x-tollway-unprocessed")
}

pub(crate) async fn ask_rpc(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    lookup: &str,
    rpc: &str,
) -> Result<HeaderMap, String> {
    let words = |error: hyper::Error| error.to_string();
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), io).await.map_err(words)?;
    tokio::spawn(connection);
    let mut request = Request::post(format!("http://{CART}/{rpc}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if !lookup.is_empty() {
        request = request.header("x-tollway-actor", lookup);
    }
    let mut body = vec![0; 5];
    // Whose hosting is judged by the type.
    match rpc.rsplit('/').next() {
        Some("ListActorReminders") => {
            let actor_type = "Cart".to_owned();
            ListActorRemindersRequest { actor_type, ..Default::default() }
                .encode(&mut body)
                .unwrap();
        }
        Some("UnregisterActorRemindersByType") => {
            let actor_type = "Cart".to_owned();
            let message = UnregisterActorRemindersByTypeRequest { actor_type, actor_id: None };
            message.encode(&mut body).unwrap();
        }
        _ => {}
    }
    body[4] = u8::try_from(body.len() - 5).unwrap();
    let answer = sender.send_request(request.body(Full::<Bytes>::from(body)).unwrap());
    let (head, body) = answer.await.map_err(words)?.into_parts();
    let body = body.collect().await.map_err(words)?;
    let mut fields = head.headers;
    fields.extend(body.trailers().cloned().unwrap_or_default());
    Ok(fields)
}

fn request(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}")
}

fn plain(address: SocketAddr, request: &str) -> Result<String, String> {
    let mut client = tollway_testkit::RawClient::connect(address).map_err(|e| e.to_string())?;
    client.send(request).map_err(|e| e.to_string())?;
    let is_whole = |bytes: &[u8]| bytes.windows(4).any(|end| end == b"\r\n\r\n");
    client.read_until(PATIENCE, is_whole).map(|answer| answer.text()).map_err(|e| e.to_string())
}

/// A path of the route, and a body that it takes.
fn example(route: &str) -> (String, &'static str) {
    let values = [
        ("invoke/{id}", "invoke/cart"),
        ("{store}", "statestore"),
        ("{key}", "order"),
        ("{*key}", "order"),
        ("{type}", "Cart"),
        ("{id}", "1"),
        ("{*method}", "add"),
        ("{*name}", "bell"),
    ];
    let path =
        values.iter().fold(route.to_owned(), |path, (name, value)| path.replace(name, value));
    assert!(!path.contains('{'), "this test has no example for {route}");
    let body = match route {
        path if path.ends_with("/bulk") => r#"{"keys":["order"]}"#,
        path if path.ends_with("/transaction") => r#"{"operations":[]}"#,
        path if path.ends_with("/state/{store}") => r#"[{"key":"order","value":1}]"#,
        path if path.ends_with("/state") => "[]",
        path if path.ends_with("/query") => "{}",
        path if path.contains("/timers/") || path.contains("/reminders/") => r#"{"dueTime":"1h"}"#,
        _ => "1",
    };
    (path, body)
}

fn scene(west: &Network, east: &Network, [sidecar, ended]: [&Process; 2]) -> Scene {
    let (home, other) = (west.authority(), east.authority());
    let cart = west.service("cart");
    let expected = Expected::service(&cart, &west.trust_domain());
    let config =
        |credentials: &Credentials| client_config(credentials, &expected, &[b"http/1.1"]).unwrap();
    let mut of_lowly = west.service("web");
    of_lowly.namespace = tollway_tests::network::label("lowly");
    let group = Group::new("racks").unwrap();
    let callers = [
        ("a replica", issue(&home, cart, &home)),
        ("another app", issue(&home, west.service("web"), &home)),
        ("another namespace", issue(&home, of_lowly, &home)),
        ("another network", issue(&other, east.service("web"), &home)),
        ("gateway", issue_system(&home, &home, |asked, now| home.issue_gateway(asked, now))),
        ("agent", issue_system(&home, &home, |asked, now| home.issue_fabric(&group, asked, now))),
        (
            "joined control plane",
            issue_system(&other, &home, |asked, now| other.issue_control(asked, now)),
        ),
    ];
    let mut callers: BTreeMap<_, _> =
        callers.iter().map(|(kind, credentials)| (*kind, config(credentials))).collect();
    callers.insert("anonymous", trusting(None, b"http/1.1"));
    let [api, grpc, inbound, admin] =
        ["http", "grpc", "inbound", "admin"].map(|port| sidecar.port(port).unwrap());
    let to_be_ended = ended.port("grpc").unwrap();
    Scene { api, grpc, inbound, admin, to_be_ended, callers }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_or_method_serves_a_caller_that_the_tables_do_not_name() {
    let log = Log::default();
    let app = ActorApp::serve("one", CONFIG, &log).await;
    let port = app.address.port().to_string();
    let (west, east, _gateways, sidecar, other) = tokio::task::block_in_place(|| {
        let (west, east) = (Network::start("west"), Network::start("east"));
        let gateways = (west.gateway(), east.gateway());
        west.join(&east);
        let sidecar = west.sidecar("cart", &["--app-port", &port]);
        let api = sidecar.port("http").unwrap();
        app.beside(api);
        let add = "PUT /v1.0/actors/Cart/1/method/add HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n1";
        until_status(api, add, 200);
        let other = west.sidecar("other", &[]);
        (west, east, gateways, sidecar, other)
    });
    let scene = tokio::task::block_in_place(|| scene(&west, &east, [&sidecar, &other]));
    let mut wrong = compare_rpcs(&scene).await;
    wrong.extend(tokio::task::block_in_place(|| {
        compare_open(|kind| Arc::clone(&scene.callers[kind]), "admin", scene.admin)
    }));
    // The last route ends the sidecar.
    wrong.extend(tokio::task::block_in_place(|| compare(&scene)));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_public_port_serves_what_its_table_names() {
    let (user, public) = (User::new(), free_port().unwrap());
    let _daprd = Daprd::start(&user, "lonely", &["--dapr-public-port", &public.to_string()]);
    let public = SocketAddr::from(([127, 0, 0, 1], public));
    let ready = retry_until(PATIENCE, "health at the public port", || {
        let answer = listens(public).then(|| get(public, "/v1.0/healthz"))?;
        answer.starts_with("HTTP/1.1 204").then_some(())
    });
    ready.unwrap();
    let network = Network::start("west");
    let home = network.authority();
    let shown = issue(&home, network.service("web"), &home);
    let expected = Expected::service(&network.service("lonely"), &network.trust_domain());
    let config = client_config(&shown, &expected, &[b"http/1.1"]).unwrap();
    let config = |kind: &str| match kind {
        "anonymous" => trusting(None, b"http/1.1"),
        _ => Arc::clone(&config),
    };
    let wrong = compare_open(config, "public API", public);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Holds a port without certificates to its column: every route of the API, and of its own.
fn compare_open(
    config: impl Fn(&'static str) -> Arc<ClientConfig>,
    column: &str,
    port: SocketAddr,
) -> Vec<String> {
    let rows = tollway_testkit::table(PAGE, "open route", 1, [column]).into_iter();
    let rows: BTreeMap<_, _> = rows.map(|(keys, [cell])| (keys.concat(), cell)).collect();
    let mut wrong = Vec::new();
    let of_api = all_routes().into_iter().flat_map(|(_, methods, path)| {
        methods.iter().map(move |method| format!("{method} {path}"))
    });
    let routes: BTreeSet<String> = of_api.chain(rows.keys().cloned()).collect();
    for route in &routes {
        let (method, path) = route.split_once(' ').unwrap();
        let (path, body) = example(path);
        // It reads no body.
        let body = if method == "GET" { "" } else { body };
        let request = request(method, &path, body);
        let expected = rows.get(route).is_some_and(|cell| cell == "yes");
        let answer = plain(port, &request).unwrap_or_else(|reason| reason);
        let is_served = answer.starts_with("HTTP/1.1 2");
        let is_refused = answer.starts_with("HTTP/1.1 4");
        if is_served == is_refused || is_served != expected {
            wrong.push(format!("{route} at {port}, {column}: {answer}"));
        }
    }
    let request = request("GET", rows.keys().next().unwrap().split_once(' ').unwrap().1, "");
    for kind in KINDS.into_iter().filter(|kind| *kind != "the app") {
        if let Ok(answer) = call(dial(port, PATIENCE), CART, config(kind), request.as_bytes()) {
            wrong.push(format!("{column} speaks TLS to {kind}: {answer:?}"));
        }
    }
    wrong
}

async fn compare_rpcs(scene: &Scene) -> Vec<String> {
    let mut rows = rows("rpc");
    let mut wrong = Vec::new();
    for kind in ["a replica", "another app", "another namespace", "another network"] {
        if let Err(reason) = scene.rpc(kind, "", "pkg.Service/Method").await {
            wrong.push(format!("{kind} has no connection, so it shows nothing: {reason}"));
        }
    }
    for rpc in rpcs() {
        let Some(cells) = rows.remove(&rpc) else {
            wrong.push(format!("docs/security.md has no row for `{rpc}`"));
            continue;
        };
        for kind in KINDS {
            let (is_served, answer) = scene.is_carried_out(kind, &rpc).await;
            if (cells[kind] == "yes") != is_served {
                wrong.push(format!("{rpc} as {kind}: {} is wrong: {answer}", cells[kind]));
            }
        }
    }
    wrong.extend(rows.keys().map(|row| format!("`{row}` is not there")));
    wrong
}

/// The routes of the API: the name of each in its table, its methods and its path.
fn all_routes() -> Vec<(String, &'static [&'static str], &'static str)> {
    let named = |route: &'static Route| {
        (format!("{} {}", route.methods.join(", "), route.path), route.methods, route.path)
    };
    let any: &[&str] = &["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
    let call = (format!("any {CALL_ROUTE}"), any, CALL_ROUTE);
    ROUTES.iter().map(named).chain([call]).collect()
}

fn compare(scene: &Scene) -> Vec<String> {
    let mut rows = rows("route");
    let mut wrong = Vec::new();
    let mut routes = all_routes();
    // Last, since it ends the sidecar.
    routes.sort_by_key(|(_, _, path)| path.ends_with("/shutdown"));
    for (name, methods, path) in routes {
        let Some(cells) = rows.remove(&name) else {
            wrong.push(format!("docs/security.md has no row for `{name}`"));
            continue;
        };
        let (path, body) = example(path);
        for kind in KINDS {
            for method in methods {
                let (is_served, answer) = scene.is_served(kind, method, &path, body);
                if (cells[kind] == "yes") != is_served {
                    let answer = answer.lines().take(8).collect::<Vec<_>>().join(" | ");
                    wrong.push(format!(
                        "{method} {path} as {kind}: {} is wrong: {answer}",
                        cells[kind]
                    ));
                }
            }
        }
    }
    wrong.extend(rows.keys().map(|row| format!("`{row}` is not there")));
    wrong
}
