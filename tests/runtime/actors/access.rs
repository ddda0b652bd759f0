//! Every route of a sidecar as every kind of caller, held to the table in docs/security.md. A route
//! without a row there fails, and so does a row without a route.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use tollway_identity::{Credentials, Expected, client_config};
use tollway_model::Group;
use tollway_runtime::{ROUTES, Route};
use tollway_tests::mesh::PATIENCE;
use tollway_tests::network::{Network, issue, issue_system, until_status};
use tollway_tests::tls_client::{call, dial, trusting};

use super::CONFIG;
use super::app::{ActorApp, Log};

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

/// The rows of the table: for each route a cell for each kind.
fn rows() -> BTreeMap<String, BTreeMap<&'static str, String>> {
    let page = include_str!("../../../docs/security.md");
    let rows = tollway_testkit::table(page, "route", 1, KINDS).into_iter();
    rows.map(|(keys, cells)| (keys.concat(), KINDS.into_iter().zip(cells).collect())).collect()
}

/// The sidecar of `cart`, and the callers' certificates.
struct Scene {
    api: SocketAddr,
    inbound: SocketAddr,
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
        let answer = call(socket, "cart.default.west.mesh", config, request.as_bytes())?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Whether a request gets beyond the question who makes it, whatever it says of the actor's host.
    fn is_served(&self, kind: &str, method: &str, path: &str, body: &str) -> (bool, String) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        );
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
}

fn plain(address: SocketAddr, request: &str) -> Result<String, String> {
    let mut client = tollway_testkit::RawClient::connect(address).map_err(|e| e.to_string())?;
    client.send(request).map_err(|e| e.to_string())?;
    let is_whole = |bytes: &[u8]| bytes.windows(4).any(|end| end == b"\r\n\r\n");
    client.read_until(PATIENCE, is_whole).map(|answer| answer.text()).map_err(|e| e.to_string())
}

/// A path of the route, and a body that it takes.
fn example(route: &Route) -> (String, &'static str) {
    let values = [
        ("{store}", "statestore"),
        ("{key}", "order"),
        ("{*key}", "order"),
        ("{type}", "Cart"),
        ("{id}", "1"),
        ("{*method}", "add"),
        ("{*name}", "bell"),
    ];
    let path =
        values.iter().fold(route.path.to_owned(), |path, (name, value)| path.replace(name, value));
    assert!(!path.contains('{'), "this test has no example for {}", route.path);
    let body = match route.path {
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

fn scene(west: &Network, east: &Network, api: SocketAddr, inbound: SocketAddr) -> Scene {
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
    Scene { api, inbound, callers }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_route_serves_a_caller_that_the_table_does_not_name() {
    let log = Log::default();
    let app = ActorApp::serve("one", CONFIG, &log).await;
    let port = app.address.port().to_string();
    let wrong = tokio::task::block_in_place(|| {
        let (west, east) = (Network::start("west"), Network::start("east"));
        let _gateways = (west.gateway(), east.gateway());
        west.join(&east);
        let sidecar = west.sidecar("cart", &["--app-port", &port]);
        let (api, inbound) = (sidecar.port("http").unwrap(), sidecar.port("inbound").unwrap());
        app.beside(api);
        let add = "PUT /v1.0/actors/Cart/1/method/add HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n1";
        until_status(api, add, 200);
        let scene = scene(&west, &east, api, inbound);
        compare(&scene)
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn compare(scene: &Scene) -> Vec<String> {
    let rows = rows();
    let (mut wrong, mut known) = (Vec::new(), BTreeSet::new());
    let mut routes: Vec<&Route> = ROUTES.iter().collect();
    // Last, since it ends the sidecar.
    routes.sort_by_key(|route| route.path.ends_with("/shutdown"));
    for route in routes {
        let name = format!("{} {}", route.methods.join(", "), route.path);
        let Some(cells) = rows.get(&name) else {
            wrong.push(format!("docs/security.md has no row for `{name}`"));
            continue;
        };
        let (path, body) = example(route);
        for kind in KINDS {
            for method in route.methods {
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
        known.insert(name);
    }
    wrong.extend(
        rows.keys().filter(|row| !known.contains(*row)).map(|row| format!("`{row}` is not there")),
    );
    wrong
}
