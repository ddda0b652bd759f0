//! The data plane's client against a real control plane: the two crates never know each other,
//! so they meet here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollway_control::{AdminClient, ControlPlane, Options, Timing};
use tollway_model::{
    AppProtocol, Label, ServiceName, ServiceState, TrustDomain, UnavailableReason,
};
use tollway_proxy::mesh::{
    Announcement, MeshClient, MeshConfig, MeshDelta, MeshError, Role, StateDirectory, TokenSource,
};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;

/// Far more than anything here takes; a test that waits for it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn name(text: &str) -> ServiceName {
    ServiceName::parse_in(text, &label("default"), &label("west")).unwrap()
}

struct Control {
    dir: TempDir,
    options: Options,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Control {
    async fn start(adjust: impl FnOnce(&mut Options)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options::new(dir.path().join("store"), label("west"));
        options.listen = "127.0.0.1:0".parse().unwrap();
        options.timing = Timing {
            lease: Duration::from_secs(2),
            grace: Duration::from_millis(500),
            heartbeat: Duration::from_millis(100),
            ..Timing::default()
        };
        adjust(&mut options);
        Self::run(dir, options).await
    }

    async fn run(dir: TempDir, options: Options) -> Self {
        let control = ControlPlane::bind(options.clone()).await.unwrap();
        let address = control.address();
        let (stop, stopped) = oneshot::channel();
        let serve = control.serve(async { drop(stopped.await) });
        let task = tokio::spawn(async { serve.await.unwrap() });
        Self { dir, options, address, stop: Some(stop), task }
    }

    async fn stop(mut self) -> (TempDir, Options) {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
        self.options.listen = self.address;
        (self.dir, self.options)
    }

    async fn token(&self, scope: Scope) -> TokenSource {
        let mut admin = AdminClient::connect(&self.options.store).await.unwrap();
        let request = v1::CreateTokenRequest { scope: Some(scope), ttl_ms: 0, uses: Some(0) };
        let token = admin.create_token(request).await.unwrap().token;
        TokenSource::Given(token.parse().unwrap())
    }

    async fn config(&self, app: &str, instance: &str) -> MeshConfig {
        let token = self.token(Scope::Any(v1::AnyWorkload {})).await;
        let role = Role::Sidecar { app: label(app), namespace: label("default") };
        MeshConfig::new(self.address.into(), token, role, label(instance))
    }

    async fn client(&self, app: &str, instance: &str) -> ObservedClient {
        ObservedClient::start(self.config(app, instance).await).await
    }
}

/// A client and its callbacks.
struct ObservedClient {
    client: MeshClient,
    seen: Arc<Mutex<Vec<MeshDelta>>>,
}

impl ObservedClient {
    async fn start(config: MeshConfig) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let client = MeshClient::start(config, move |mut delta| {
            // To keep them would mean that they are still being applied.
            delta.policies = None;
            sink.lock().unwrap().push(delta);
        })
        .await
        .unwrap();
        Self { client, seen }
    }

    fn log(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let updates = seen.iter().flat_map(|delta| &delta.services);
        updates.map(|update| format!("{} {}", update.service.app, print(&update.state))).collect()
    }

    fn states(&self) -> HashMap<String, String> {
        let pair = |line: String| {
            let (service, state) = line.split_once(' ').unwrap();
            (service.to_owned(), state.to_owned())
        };
        self.log().into_iter().map(pair).collect()
    }

    async fn until(&self, service: &str, state: &str) {
        wait_for(
            || self.states().get(service).map(String::as_str) == Some(state),
            || format!("{service} is not {state}: {:?}", self.log()),
        )
        .await;
    }

    async fn until_connected(&self, connected: bool) {
        let mut status = self.client.status();
        let wait = status.wait_for(|status| status.connected == connected);
        tokio::time::timeout(PATIENCE, wait).await.unwrap().unwrap();
    }

    async fn until_registered(&self) {
        let mut status = self.client.status();
        let wait = status.wait_for(|status| status.registered.is_some());
        tokio::time::timeout(PATIENCE, wait).await.unwrap().unwrap();
    }
}

async fn wait_for(done: impl Fn() -> bool, failure: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{}", failure());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn print(state: &ServiceState) -> String {
    match state {
        ServiceState::Local { endpoints, .. } => {
            let mut ports: Vec<_> = endpoints.iter().map(|e| e.address.port()).collect();
            ports.sort_unstable();
            format!("{ports:?}")
        }
        ServiceState::Remote { remote, .. } => format!("x{}", remote.ready_replicas),
        ServiceState::Failover { rules, .. } => format!("{} networks", rules.networks.len()),
        ServiceState::AddressOf(of) => format!("address of {of}"),
        ServiceState::Unavailable(UnavailableReason::UnknownService) => "unknown".to_owned(),
        ServiceState::Unavailable(reason) => format!("{reason:?}"),
    }
}

fn at(port: u16, ready: bool) -> Announcement {
    Announcement::Workload {
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        protocol: Some(AppProtocol::Http),
        ready,
    }
}

#[tokio::test]
async fn a_client_registers_and_others_see_it() {
    let control = Control::start(|_| {}).await;
    let caller = control.client("caller", "a").await;
    let stock = control.client("stock", "a").await;
    assert_eq!(stock.client.service(), &name("stock"));
    caller.client.subscribe(name("stock"));
    caller.until("stock", "unknown").await;
    stock.client.register(at(1, false));
    caller.until("stock", "NoReadyEndpoint").await;
    stock.client.set_ready(true);
    caller.until("stock", "[1]").await;
    stock.client.register(at(2, true));
    caller.until("stock", "[2]").await;
    assert!(stock.client.deregister().await);
    caller.until("stock", "unknown").await;
    // It may come back.
    stock.client.register(at(3, true));
    caller.until("stock", "[3]").await;
    drop(stock);
    caller.until("stock", "unknown").await;
}

#[tokio::test]
async fn leaving_right_after_coming_leaves_nothing_behind() {
    let control = Control::start(|_| {}).await;
    let caller = control.client("caller", "a").await;
    let stock = control.client("stock", "a").await;
    caller.client.subscribe(name("stock"));
    caller.until("stock", "unknown").await;
    for port in 1..20 {
        stock.client.register(at(port, true));
        // Leaving meets each stage of coming.
        tokio::time::sleep(Duration::from_millis(u64::from(port))).await;
        assert!(stock.client.deregister().await);
    }
    let mut admin = AdminClient::connect(&control.options.store).await.unwrap();
    assert!(admin.services().await.unwrap().services.is_empty());
}

#[tokio::test]
async fn leaving_a_lost_control_plane_is_not_confirmed() {
    let control = Control::start(|_| {}).await;
    let stock = control.client("stock", "a").await;
    stock.client.register(at(1, true));
    stock.until_registered().await;
    let kept = control.stop().await;
    stock.until_connected(false).await;
    let left = tokio::time::timeout(PATIENCE, stock.client.deregister()).await;
    assert!(!left.expect("it goes on asking"));
    drop(kept);
}

#[tokio::test]
async fn an_idle_client_stays_registered() {
    const LEASE: Duration = Duration::from_secs(1);
    let control = Control::start(|options| options.timing.lease = LEASE).await;
    let caller = control.client("caller", "a").await;
    let stock = control.client("stock", "a").await;
    caller.client.subscribe(name("stock"));
    stock.client.register(at(1, true));
    caller.until("stock", "[1]").await;
    // Without renewals the registration ends with its lease, within this time.
    tokio::time::sleep(LEASE * 2).await;
    let gone_since = caller.log().iter().skip_while(|line| *line != "stock [1]").count();
    assert_eq!(gone_since, 1, "{:?}", caller.log());
}

#[tokio::test]
async fn unsubscribing_ends_the_updates_and_subscribing_again_resumes_them() {
    let control = Control::start(|_| {}).await;
    let caller = control.client("caller", "a").await;
    let stock = control.client("stock", "a").await;
    caller.client.subscribe(name("stock"));
    caller.until("stock", "unknown").await;
    caller.client.unsubscribe(&name("stock"));
    // Each answer proves that the requests before it have been carried out.
    caller.client.subscribe(name("orders"));
    caller.until("orders", "unknown").await;
    stock.client.register(at(1, true));
    stock.until_registered().await;
    caller.client.subscribe(name("carts"));
    caller.until("carts", "unknown").await;
    assert_eq!(caller.states()["stock"], "unknown", "{:?}", caller.log());
    caller.client.subscribe(name("stock"));
    caller.until("stock", "[1]").await;
}

#[tokio::test]
async fn a_restarted_control_plane_finds_everybody_back() {
    let control = Control::start(|options| options.timing.lease = Duration::from_secs(5)).await;
    let caller = control.client("caller", "a").await;
    let stock = control.client("stock", "a").await;
    caller.client.subscribe(name("stock"));
    stock.client.register(at(1, true));
    caller.until("stock", "[1]").await;
    let (dir, options) = control.stop().await;
    caller.until_connected(false).await;
    stock.until_connected(false).await;
    assert!(caller.client.status().borrow().last_error.is_some());
    // Subscriptions and announcements made meanwhile are not lost.
    caller.client.subscribe(name("orders"));
    stock.client.register(at(2, true));
    let control = Control::run(dir, options).await;
    caller.until_connected(true).await;
    caller.until("stock", "[2]").await;
    caller.until("orders", "unknown").await;
    assert_eq!(
        caller.log().iter().filter(|line| *line == "stock unknown").count(),
        usize::from(caller.log()[0] == "stock unknown"),
        "the loss of the control plane withdrew nothing: {:?}",
        caller.log()
    );
    drop(control);
}

#[tokio::test]
async fn certificates_are_renewed_before_half_of_their_life_and_registrations_go_on() {
    let ttl = tollway_identity::SHORTEST_TTL;
    let control = Control::start(|options| options.certificate_ttl = ttl).await;
    let caller = control.client("caller", "a").await;
    let stock = control.client("stock", "a").await;
    caller.client.subscribe(name("stock"));
    stock.client.register(at(1, true));
    caller.until("stock", "[1]").await;
    let mut credentials = stock.client.credentials();
    let mut last = credentials.borrow_and_update().clone();
    let mut renewals = 0;
    let deadline = tokio::time::Instant::now() + ttl + ttl / 2;
    while let Ok(changed) = tokio::time::timeout_at(deadline, credentials.changed()).await {
        changed.unwrap();
        let now = credentials.borrow_and_update().clone();
        if now.chain() == last.chain() {
            continue;
        }
        let half =
            last.not_before() + last.not_after().duration_since(last.not_before()).unwrap() / 2;
        assert!(std::time::SystemTime::now() <= half + ttl / 4);
        (last, renewals) = (now, renewals + 1);
    }
    assert!(renewals >= 2, "{renewals} renewals in one and a half lives");
    // The first certificate has ended by now, and both were up all the time.
    assert_eq!(caller.states()["stock"], "[1]");
    let flaps = caller.log().iter().skip_while(|line| *line != "stock [1]").count();
    assert_eq!(flaps, 1, "{:?}", caller.log());
    assert!(stock.client.status().borrow().connected);
}

/// The harm: an agent of the fabric, which keeps its host's network, is out for good after a long
/// absence of its control plane, or a restart.
#[tokio::test]
async fn an_agent_of_the_fabric_returns_after_an_absence_and_after_a_restart_without_a_token() {
    let ttl = tollway_identity::SHORTEST_TTL;
    let control = Control::start(|options| options.certificate_ttl = ttl).await;
    let token = control.token(Scope::FabricGroup("racks".to_owned())).await;
    let role = Role::Sidecar { app: label("fabric-racks"), namespace: label("tollway") };
    let folder = control.dir.path().join("state");
    let mut config = MeshConfig::new(control.address.into(), token, role, label("rack-1"));
    config.state = Some(StateDirectory { path: folder, has_name: true });
    let agent = ObservedClient::start(config.clone()).await;
    agent.until_connected(true).await;
    let (dir, options) = control.stop().await;
    tokio::time::sleep(ttl + Duration::from_secs(1)).await;
    assert!(agent.client.credentials().borrow().not_after() < std::time::SystemTime::now());
    let control = Control::run(dir, options).await;
    agent.until_connected(true).await;
    agent.client.connect().await.unwrap();
    drop(agent);
    // From here on it has no token, and another random name.
    config.token = TokenSource::of(Some("/nowhere/token".into()), false);
    config.instance = label("another");
    let agent = ObservedClient::start(config).await;
    agent.until_connected(true).await;
    assert_eq!(*agent.client.instance(), label("rack-1"));
    drop(control);
}

#[tokio::test]
async fn a_gateway_follows_all_services_and_drops_those_that_ended_meanwhile() {
    let control = Control::start(|options| options.timing.lease = Duration::from_secs(1)).await;
    let token = control.token(Scope::Gateway(v1::GatewayScope {})).await;
    let config = MeshConfig::new(control.address.into(), token, Role::Gateway, label("g"));
    let gateway = ObservedClient::start(config).await;
    let stock = control.client("stock", "a").await;
    stock.client.register(at(1, true));
    let orders = control.client("orders", "a").await;
    orders.client.register(at(2, true));
    gateway.until("stock", "[1]").await;
    gateway.until("orders", "[2]").await;
    gateway.client.register(Announcement::Gateway {
        outside: vec!["127.0.0.1:15443".parse().unwrap()],
        reaches: Default::default(),
        inside: vec!["127.0.0.1:15443".parse().unwrap()],
    });
    gateway.until_registered().await;
    let (dir, options) = control.stop().await;
    gateway.until_connected(false).await;
    drop(stock);
    let control = Control::run(dir, options).await;
    gateway.until("stock", "unknown").await;
    gateway.until("orders", "[2]").await;
    drop((control, orders));
}

#[tokio::test]
async fn what_cannot_work_fails_at_once_with_the_reason() {
    let control = Control::start(|_| {}).await;
    let start = |config| MeshClient::start(config, |_| {});
    let scope = v1::AppScope { namespace: "default".into(), app: "stock".into() };
    let mut config = control.config("orders", "a").await;
    config.token = control.token(Scope::App(scope)).await;
    let refused = start(config).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the control plane refused: the join token is not good for orders.default.west; make one that is with `tollway token create`"
    );
    // A token of another mesh of the same name: the root does not match.
    let other = Control::start(|_| {}).await;
    let mut config = control.config("orders", "a").await;
    config.token = other.token(Scope::Any(v1::AnyWorkload {})).await;
    let refused = start(config).await.unwrap_err();
    assert!(matches!(refused, MeshError::Tls { .. }), "{refused}");
    let mut config = control.config("orders", "a").await;
    config.control = "127.0.0.1:1".parse().unwrap();
    config.start_timeout = Duration::from_millis(500);
    let began = Instant::now();
    let refused = start(config).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cannot reach the control plane 127.0.0.1:1; check that it runs and that this is its \
         address (--control)"
    );
    // The usual limit is longer.
    assert!(began.elapsed() < PATIENCE);
}

#[tokio::test]
async fn a_control_plane_that_starts_later_is_waited_for() {
    let control = Control::start(|_| {}).await;
    let config = control.config("stock", "a").await;
    let (dir, options) = control.stop().await;
    let listener = TcpListener::bind(options.listen).await.unwrap();
    let waiting = tokio::spawn(ObservedClient::start(config));
    // It tries again after a try that failed.
    for _ in 0..2 {
        let tried = tokio::time::timeout(PATIENCE, listener.accept()).await;
        drop(tried.unwrap().unwrap());
    }
    drop(listener);
    assert!(!waiting.is_finished());
    let control = Control::run(dir, options).await;
    let stock = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(
        stock.client.credentials().borrow().spiffe_id().trust_domain,
        TrustDomain::default_for(&label("west"))
    );
    drop(control);
}

/// The harm: an answer that is lost costs a workload its only token.
#[tokio::test]
async fn an_answer_that_is_lost_at_any_byte_costs_no_second_use_of_the_token() {
    let control = Control::start(|_| {}).await;
    let mut admin = AdminClient::connect(&control.options.store).await.unwrap();
    let mut lost_after_it_was_spent = 0;
    for passed in (0..8_000).step_by(200) {
        let scope = Some(Scope::Any(v1::AnyWorkload {}));
        let request = v1::CreateTokenRequest { scope, ttl_ms: 0, uses: None };
        let created = admin.create_token(request).await.unwrap();
        let mut config = control.config("stock", &format!("i-{passed}")).await;
        config.token = TokenSource::Given(created.token.parse().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        config.control = listener.local_addr().unwrap().into();
        let started = tokio::spawn(ObservedClient::start(config));
        // So many bytes of the first answers pass, and then the connection breaks.
        let (mut inside, _) = listener.accept().await.unwrap();
        let mut outside = TcpStream::connect(control.address).await.unwrap();
        let is_cut = pass_some(&mut inside, &mut outside, passed).await;
        drop((inside, outside));
        let id = created.id.clone();
        let used = async |admin: &mut AdminClient| {
            let listed = admin.tokens(v1::ListTokensRequest::default()).await.unwrap();
            listed.tokens.into_iter().find(|token| token.id == id).unwrap().used
        };
        lost_after_it_was_spent += usize::from(is_cut && used(&mut admin).await == 1);
        let relay = tokio::spawn(async move {
            while let Ok((mut inside, _)) = listener.accept().await {
                let mut outside = TcpStream::connect(control.address).await.unwrap();
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                });
            }
        });
        let client = tokio::time::timeout(PATIENCE, started).await.unwrap().unwrap();
        assert_eq!(used(&mut admin).await, 1, "after {passed} bytes");
        drop(client);
        relay.abort();
        if !is_cut {
            break;
        }
    }
    assert!(lost_after_it_was_spent > 0, "no answer was lost");
}

/// Passes bytes both ways, and `limit` of them inwards. Returns whether the limit ended it.
async fn pass_some(inside: &mut TcpStream, outside: &mut TcpStream, limit: usize) -> bool {
    let (mut from_inside, mut to_inside) = inside.split();
    let (mut from_outside, mut to_outside) = outside.split();
    let outwards = tokio::io::copy(&mut from_inside, &mut to_outside);
    let inwards = async {
        let mut left = limit;
        let mut buffer = vec![0; 16 << 10];
        loop {
            let count = from_outside.read(&mut buffer).await.unwrap_or(0);
            if count == 0 || to_inside.write_all(&buffer[..count.min(left)]).await.is_err() {
                return false;
            }
            if count > left {
                return true;
            }
            left -= count;
        }
    };
    tokio::select! {
        is_cut = inwards => is_cut,
        _ = outwards => false,
    }
}
