//! What the callee's sidecar refuses its peers beside their policies, and what a refused peer learns.

use rustls::{ClientConnection, StreamOwned};
use tollway_identity::{Expected, client_config};
use tollway_model::{ObjectName, Policy, PolicyTarget};

use super::app_unreachable::read_answer;
use super::*;
use crate::actor_paths::ActorApp;

/// The callee, which runs actors or not, and a client with the certificate of any service.
struct Callee {
    network: Network,
    cart: ServiceName,
    actor_app: Arc<ActorApp>,
    running: Running,
}

impl Callee {
    fn new() -> Self {
        let (network, cart) = (Network::new("west"), service("cart"));
        let actor_app = Arc::new(ActorApp::new(true));
        let app = AppTarget::at(start_app(), AppProtocol::Http);
        let config = Arc::new(LoopConfig {
            app: Some(app),
            actor_app: Arc::clone(&actor_app),
            ..LoopConfig::of_test(cart.clone())
        });
        let around = Around::default();
        let credentials = network.credentials(&cart, "c-1", &[]);
        let sidecar = Http::sidecar(&config, credentials, Box::new(around.clone()));
        let running = Running::of(None, config, &[ListenerKind::Inbound], around, sidecar);
        running.send_no_policies(cart.clone());
        Self { network, cart, actor_app, running }
    }

    /// The answer to a request of `caller`; `line` is method and path.
    fn ask(&self, caller: &ServiceName, line: &str, fields: &str) -> String {
        let expected = Expected::service(&self.cart, &self.network.trust_domain);
        let credentials = self.network.credentials(caller, "x-1", &[]);
        let config = client_config(&credentials, &expected, &[b"http/1.1"]).unwrap();
        let tls = ClientConnection::new(config, expected.server_name().unwrap()).unwrap();
        let mut mesh = StreamOwned::new(tls, connect(self.running.addresses[0]));
        let request = format!(
            "{line} HTTP/1.1\r\nhost: cart.default.west.mesh\r\n{fields}connection: close\r\n\
             content-length: 0\r\n\r\n"
        );
        mesh.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        // It ends without a close of TLS.
        let _ = mesh.read_to_string(&mut answer);
        answer
    }

    fn close(&self) {
        let policy = Policy {
            name: ObjectName::new("default", "secret-name").unwrap(),
            target: PolicyTarget::App(label("cart")),
            mode: tollway_model::Mode::Enforce,
            allow: Some(Vec::new()),
            deny: Vec::new(),
        };
        let set = tollway_routing::PolicySet::new(self.cart.clone(), [Arc::new(policy)]);
        self.running.commands.send(Command::Policies(PolicyUpdate::unobserved(set)));
    }
}

fn lowly(name: &str) -> ServiceName {
    ServiceName::parse_in(name, &label("lowly"), &label("west")).unwrap()
}

/// The harm: a caller that may invoke an app deletes its actors and forges their reminders, at any host and
/// between their turns, by the paths by which its sidecar does so.
#[test]
fn paths_of_actors_are_no_methods_that_a_peer_can_invoke() {
    let callee = Callee::new();
    let evil = service("evil");
    let lines = [
        "DELETE /actors/Cart/anna",
        "PUT /actors/Cart/anna/method/remind/forged",
        "PUT /Actors/Cart/anna/method/Add",
        "PUT //actors/Cart/anna/method/Add",
        "PUT /x/../actors/Cart/anna/method/Add",
        "PUT /%61ctors/Cart/anna/method/Add",
        "PUT /actors%2FCart/anna/method/Add",
        "GET /dapr/config",
    ];
    for line in lines {
        let answer = callee.ask(&evil, line, "");
        assert!(answer.contains("ERR_POLICY_UNKNOWN") && answer.starts_with("HTTP/1.1 503 "));
        assert!(answer.contains("x-tollway-unprocessed: 1\r\n"), "{answer}");
    }
    callee.actor_app.set(true);
    for line in lines {
        let answer = callee.ask(&evil, line, "");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{line}: {answer}");
        assert!(answer.contains("x-tollway-error: ERR_SIDECAR_PATH\r\n"), "{line}: {answer}");
        let answer = callee.ask(&evil, line, "content-type: application/grpc\r\n");
        assert!(answer.contains("x-tollway-error: ERR_SIDECAR_PATH\r\n"), "{line}: {answer}");
        assert!(!answer.contains("x-path"), "the app has it: {answer}");
    }
    for line in ["GET /items/7", "GET /healthz", "GET /films/actors"] {
        assert!(callee.ask(&evil, line, "").starts_with("HTTP/1.1 200 "), "{line}");
    }
    // The own sidecar calls the app by these paths.
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    assert!(callee.running.commands.send(Command::Adopt(theirs)));
    let mut stream = Stream::local(ours);
    let turn = "PUT /actors/Cart/anna/method/Add HTTP/1.1\r\nhost: a\r\nx-tollway-to: app\r\n\
                connection: close\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(turn.as_bytes()).unwrap();
    assert!(read_answer(stream).starts_with("HTTP/1.1 200 "));
    // An app without actors may have such paths.
    callee.actor_app.set(false);
    assert!(callee.ask(&evil, "GET /actors/brando", "").starts_with("HTTP/1.1 200 "));
}

/// The harm: a refused caller learns the names of policies and how it is identified.
#[test]
fn a_refused_caller_learns_the_hop_and_the_code_alone() {
    let callee = Callee::new();
    callee.close();
    let explain = "x-tollway-explain: 1\r\n";
    for (caller, fields) in [
        (service("evil"), ""),
        (lowly("evil"), ""),
        (lowly("evil"), explain),
        (service("evil"), "content-type: application/grpc\r\n"),
    ] {
        let answer = callee.ask(&caller, "GET /items", fields);
        assert!(answer.contains("x-tollway-error: ERR_POLICY_DENIED\r\n"), "{answer}");
        assert!(answer.contains("x-tollway-hop: sidecar cart.default.west\r\n"), "{answer}");
        for hidden in ["secret-name", "spiffe://", "evil", "x-1", "c-1", "x-tollway-part"] {
            assert!(!answer.contains(hidden), "{hidden} is in {answer}");
        }
    }
    // Who shares the callee's namespace, and its operator, sees it where it asks for it.
    let answer = callee.ask(&service("evil"), "GET /items", explain);
    assert!(answer.contains("admission=!default/secret-name"), "{answer}");
    assert!(!answer.contains("spiffe://"), "{answer}");
}
