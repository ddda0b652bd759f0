//! A joined network whose control plane sends what it likes, hundreds of times a second, or as much as it
//! likes.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use prost::Message;
use support::{ALPN, Joined, PATIENCE, Registration, Watch, label};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tollway_control::{AUTHORITY_KEY, JoinBundle, Options, store_file};
use tollway_identity::{
    Authority, AuthorityPem, Credentials, KeyPair, SystemRequest, TrustBundle, TrustBundles,
    control_server_config,
};
use tollway_model::{Instance, TrustDomain};
use tollway_store::{Limits, Store};
use tollway_wire::v1::peering_server::{Peering, PeeringServer};
use tollway_wire::{SERVICES_PER_RESPONSE_LIMIT, v1};
use tonic::{Request, Response, Status, Streaming};

/// From one message of a script to the next: the network reads all of them at once.
const PAUSE: Duration = Duration::from_millis(5);

/// The message of this number, or none: then it is silent but for heartbeats.
type Script = Arc<dyn Fn(u64, &Evil) -> Option<v1::FollowResponse> + Send + Sync>;

/// A control plane of east under its real authority.
struct Evil {
    root: Vec<u8>,
    other_root: Vec<u8>,
    /// The gateway that leads here.
    gateway: SocketAddr,
    /// Streams that were opened.
    opened: AtomicU64,
    /// Messages of the script that the network took.
    sent: AtomicU64,
    /// The attack is to end, and it has ended.
    ends: AtomicBool,
    ended: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Attack,
    /// One more message, which says what remains.
    Last,
    Over,
}

impl Evil {
    fn trust(&self, roots: &[&[u8]]) -> Option<v1::TrustBundle> {
        let roots = roots.iter().map(|root| root.to_vec()).collect();
        Some(v1::TrustBundle {
            trust_domain: "east.tollway".into(),
            roots,
            network: "east".into(),
            revoked: Vec::new(),
        })
    }

    fn snapshot(&self) -> v1::FollowResponse {
        v1::FollowResponse {
            revision: 1,
            snapshot_start: true,
            snapshot_end: true,
            trust: self.trust(&[&self.root]),
            services: vec![aggregate("stock", 1)],
            ..Default::default()
        }
    }

    fn next_phase(&self) -> Phase {
        if !self.ends.load(Ordering::SeqCst) {
            return Phase::Attack;
        }
        if self.ended.swap(true, Ordering::SeqCst) { Phase::Over } else { Phase::Last }
    }

    fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }
}

fn aggregate(app: &str, ready_replicas: u32) -> v1::Aggregate {
    v1::Aggregate {
        app: app.into(),
        namespace: "default".into(),
        ready_replicas,
        protocol: v1::AppProtocol::Http.into(),
        ..v1::Aggregate::default()
    }
}

struct Service(Arc<Evil>, Script);

#[tonic::async_trait]
impl Peering for Service {
    type FollowStream = ReceiverStream<Result<v1::FollowResponse, Status>>;

    async fn join(
        &self,
        _: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        Err(Status::unimplemented("it is joined"))
    }

    async fn follow(
        &self,
        _: Request<Streaming<v1::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let (evil, script) = (self.0.clone(), self.1.clone());
        evil.opened.fetch_add(1, Ordering::SeqCst);
        let (responses, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            responses.send(Ok(evil.snapshot())).await.ok()?;
            for number in 0.. {
                let message = script(number, &evil)
                    .unwrap_or(v1::FollowResponse { heartbeat: true, ..Default::default() });
                let is_beat = message.heartbeat;
                responses.send(Ok(message)).await.ok()?;
                let pause = if is_beat {
                    Duration::from_millis(100)
                } else {
                    evil.sent.fetch_add(1, Ordering::SeqCst);
                    PAUSE
                };
                tokio::time::sleep(pause).await;
            }
            Some(())
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// As the control plane stores it.
#[derive(Clone, PartialEq, Message)]
struct StoredAuthority {
    #[prost(string, tag = "3")]
    certificate_pem: String,
    #[prost(string, tag = "4")]
    key_pem: String,
}

/// West, joined with east, whose control plane is replaced by one that follows `script`.
async fn west_and_evil_east(
    script: impl Fn(u64, &Evil) -> Option<v1::FollowResponse> + Send + Sync + 'static,
) -> (support::Network, Arc<Evil>, impl Sized) {
    with_evil_east(false, script).await
}

/// The same; west lets east's gateways move.
async fn west_and_moving_east(
    script: impl Fn(u64, &Evil) -> Option<v1::FollowResponse> + Send + Sync + 'static,
) -> (support::Network, Arc<Evil>, impl Sized) {
    with_evil_east(true, script).await
}

async fn with_evil_east(
    follow_gateways: bool,
    script: impl Fn(u64, &Evil) -> Option<v1::FollowResponse> + Send + Sync + 'static,
) -> (support::Network, Arc<Evil>, impl Sized) {
    let with_metrics = |options: &mut Options| {
        options.admin_listen = Some("127.0.0.1:0".parse().unwrap());
        options.ports_file = Some(options.store.join("ports.json"));
    };
    let joined = Joined::join(with_metrics, follow_gateways).await;
    let Joined { east, mut west, east_relay, west_relay, gateways } = joined;
    // The gateway of east goes on to answer probes with the secret that it has by then.
    let begun = Instant::now();
    while !west.admin.joins().await.unwrap()[0].reachable {
        assert!(begun.elapsed() < PATIENCE, "east is not reached");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let of_west = west.admin.export_join(0).await.unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let of_west = JoinBundle::verify(&of_west, now.try_into().unwrap()).unwrap();
    let (dir, options, _) = east.stop().await;
    let store = Store::open_embedded(&store_file(&options.store), Limits::default()).await.unwrap();
    let stored = store.get(AUTHORITY_KEY.as_bytes()).await.unwrap().unwrap().value;
    let stored = StoredAuthority::decode(stored).unwrap();
    let pem = AuthorityPem { certificate: stored.certificate_pem, key: stored.key_pem };
    let (network, domain) = (label("east"), TrustDomain::new("east.tollway").unwrap());
    let authority = Authority::from_pem(&domain, &network, &pem).unwrap();
    let other = Authority::create(&domain, &network, SystemTime::now()).unwrap();
    let key = KeyPair::generate().unwrap();
    let request = SystemRequest {
        csr_der: key.csr_der().unwrap(),
        instance: Instance::new("evil").unwrap(),
        ttl: Duration::from_secs(3600),
    };
    let chain = authority.issue_control(&request, SystemTime::now()).unwrap().chain;
    let own = TrustBundle::new(network, domain, vec![authority.root_der().clone()]).unwrap();
    let theirs = TrustBundle::new(of_west.network, of_west.trust_domain, of_west.roots).unwrap();
    let bundles = TrustBundles::new(1, vec![own, theirs]).unwrap();
    let credentials = Credentials::new(&key, chain, bundles).unwrap();
    let evil = Arc::new(Evil {
        root: authority.root_der().to_vec(),
        other_root: other.root_der().to_vec(),
        gateway: east_relay.address,
        opened: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        ends: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    });
    let service = Service(evil.clone(), Arc::new(script));
    let tls = TlsAcceptor::from(control_server_config(&credentials, ALPN, Duration::ZERO).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    east_relay.restore(listener.local_addr().unwrap());
    let (accepted, incoming) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            if let Ok(stream) = tls.accept(tcp).await {
                accepted.send(std::io::Result::Ok(stream)).await.unwrap();
            }
        }
    });
    let server = tonic::transport::Server::builder().add_service(PeeringServer::new(service));
    tokio::spawn(server.serve_with_incoming(ReceiverStream::new(incoming)));
    let begun = Instant::now();
    while evil.opened.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < PATIENCE, "west does not follow");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    (west, evil, (dir, east_relay, west_relay, gateways))
}

#[tokio::test]
async fn a_joined_network_that_flips_its_roots_changes_trust_rarely() {
    let script = |number: u64, evil: &Evil| {
        let phase = evil.next_phase();
        let has_both = phase == Phase::Last || !number.is_multiple_of(2);
        let roots: &[&[u8]] =
            if has_both { &[&evil.root, &evil.other_root] } else { &[&evil.root] };
        let trust = evil.trust(roots);
        let message = v1::FollowResponse { revision: number + 2, trust, ..Default::default() };
        (phase != Phase::Over).then_some(message)
    };
    let (mut west, evil, _rest) = Box::pin(west_and_evil_east(script)).await;
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", "remote x1 via 1").await;
    let (begun, mut revisions) = (Instant::now(), std::collections::BTreeSet::new());
    let within = support::timing().peer_roots;
    let roots_of_east = |watch: &Watch| {
        let bundles = &watch.trust.as_ref().unwrap().bundles;
        bundles.iter().find(|bundle| bundle.network == "east").unwrap().roots.len()
    };
    while begun.elapsed() < within * 2 {
        watch.next().await.unwrap();
        revisions.insert(watch.trust.as_ref().unwrap().revision);
    }
    let spent = begun.elapsed().as_secs_f64() / within.as_secs_f64();
    let changes = revisions.len();
    assert!((changes as f64) < spent + 2.5, "{changes} in {spent} intervals");
    let sent = evil.sent.load(Ordering::SeqCst);
    assert!(sent > 10, "only {sent} were sent, which is no attack");
    assert!(west.metric(&changes_refused("roots_held")).await > 0);
    // Nothing that is valid is lost: the last state arrives.
    evil.end();
    let stopped = Instant::now();
    while !evil.ended.load(Ordering::SeqCst) || stopped.elapsed() < within * 2 {
        assert!(stopped.elapsed() < PATIENCE, "the last roots are not read");
        watch.next().await.unwrap();
    }
    while roots_of_east(&watch) != 2 {
        assert!(stopped.elapsed() < PATIENCE, "the last roots do not arrive");
        watch.next().await.unwrap();
    }
    let page = west.admin.joins().await.unwrap();
    assert!(page[0].reachable, "{}", page[0].last_error);
}

/// The harm: each message wakes the store, and all that follows these services.
#[tokio::test]
async fn a_joined_network_whose_services_flap_is_stored_a_few_times_a_second() {
    flap_services(1, 100).await;
}

/// The same with messages as large as they may be.
#[tokio::test]
async fn a_joined_network_whose_full_messages_flap_is_stored_a_few_times_a_second() {
    flap_services(SERVICES_PER_RESPONSE_LIMIT, 30).await;
}

/// `services` change with every message, of which at least so many are read in three seconds.
async fn flap_services(services: usize, least: u64) {
    const LAST: u32 = 77;
    /// Less than what is read at once: what is sent behind that is read for minutes, the last message after it.
    const MOST_SERVICES: u64 = 150_000;
    let most = MOST_SERVICES / services as u64;
    let script = move |number: u64, evil: &Evil| {
        let phase = evil.next_phase();
        if phase == Phase::Attack && number > most {
            return None;
        }
        let ready =
            if phase == Phase::Last { LAST } else { 1 + u32::from(number.is_multiple_of(2)) };
        let name = |at: usize| if at == 0 { "stock".to_owned() } else { format!("s{at}") };
        let services = (0..services).map(|at| aggregate(&name(at), ready)).collect();
        let message = v1::FollowResponse { revision: number + 2, services, ..Default::default() };
        (phase != Phase::Over).then_some(message)
    };
    let (mut west, evil, _rest) = Box::pin(west_and_evil_east(script)).await;
    let before = west.admin.services().await.unwrap().revision;
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let stored = west.admin.services().await.unwrap().revision - before;
    let sent = evil.sent.load(Ordering::SeqCst);
    let most = 5.0 * begun.elapsed().as_secs_f64() + 5.0;
    assert!((stored as f64) < most, "{stored} transactions for {sent} messages");
    assert!(sent > least, "only {sent} were sent, which is no attack");
    evil.end();
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    watch.until("stock.default.east", &format!("remote x{LAST} via 1")).await;
}

#[tokio::test]
async fn a_joined_network_that_sends_what_is_not_taken_is_asked_less_and_less() {
    let script = |number: u64, _: &Evil| {
        let services = vec![aggregate("no/label", 1)];
        Some(v1::FollowResponse { revision: number + 2, services, ..Default::default() })
    };
    let (mut west, evil, _rest) = Box::pin(west_and_evil_east(script)).await;
    let begun = Instant::now();
    while !west.admin.joins().await.unwrap()[0].last_error.contains("malformed") {
        assert!(begun.elapsed() < PATIENCE, "{:?}", west.admin.joins().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Pauses of one, two and four seconds at least; equal ones of two at most would be over before.
    let (begun, first) = (Instant::now(), evil.opened.load(Ordering::SeqCst));
    while evil.opened.load(Ordering::SeqCst) < first + 3 {
        assert!(begun.elapsed() < 2 * PATIENCE, "it is not asked again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() >= Duration::from_millis(6_500), "{:?}", begun.elapsed());
}

fn changes_refused(reason: &str) -> String {
    format!("tollway_peer_changes_refused_total{{reason=\"{reason}\"}}")
}

/// Where west dials east.
async fn gateways_of_east(west: &mut support::Network) -> Vec<SocketAddr> {
    let joins = west.admin.joins().await.unwrap();
    let read = |address| tollway_wire::address(Some(address), "gateways").unwrap();
    joins[0].gateways.iter().map(read).collect()
}

/// The harm: each move of the gateways is stored, sent to every caller, and has all of them probed.
#[tokio::test]
async fn a_joined_network_whose_gateways_flap_moves_them_rarely() {
    const LAST: &str = "127.9.9.9:9";
    let script = |number: u64, evil: &Evil| {
        let phase = evil.next_phase();
        let port = |nth: u64| u16::try_from(1 + (number * 7 + nth) % 60_000).unwrap();
        let elsewhere = |nth: u64| SocketAddr::from(([127, 1, 1, 1], port(nth)));
        let moved = match phase {
            Phase::Last => vec![LAST.parse().unwrap()],
            Phase::Attack | Phase::Over => (0..8).map(elsewhere).collect(),
        };
        // It stays where it can be followed.
        let addresses = [evil.gateway].into_iter().chain(moved).map(Into::into).collect();
        let gateways = Some(v1::Gateways { addresses });
        let message = v1::FollowResponse { revision: number + 2, gateways, ..Default::default() };
        (phase != Phase::Over).then_some(message)
    };
    let (mut west, evil, _rest) = Box::pin(west_and_moving_east(script)).await;
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east"]).await;
    let (begun, mut seen) = (Instant::now(), std::collections::BTreeSet::new());
    // Less than the time from one move to the next.
    while begun.elapsed() < Duration::from_secs(2) {
        seen.insert(gateways_of_east(&mut west).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let moves = seen.len();
    assert!(moves <= 3, "{moves} places in {:?}", begun.elapsed());
    let sent = evil.sent.load(Ordering::SeqCst);
    assert!(sent > 100, "only {sent} were sent, which is no attack");
    assert!(west.metric(&changes_refused("gateways_held")).await > 0);
    // The last place is taken in time, and nothing else is lost.
    evil.end();
    let last: SocketAddr = LAST.parse().unwrap();
    let stopped = Instant::now();
    while !gateways_of_east(&mut west).await.contains(&last) {
        assert!(stopped.elapsed() < PATIENCE, "the last place is not taken");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    watch.until("stock.default.east", "remote x1 via 2").await;
    let joins = west.admin.joins().await.unwrap();
    assert!(joins[0].reachable, "{}", joins[0].last_error);
}

/// The harm: a joined network fills the store and the memory of this one.
#[tokio::test]
async fn a_joined_network_that_states_services_without_end_has_a_bounded_number_of_them() {
    /// As docs/limits.md has it.
    const LIMIT: usize = 100_000;
    const EACH: usize = 2_000;
    let script = |number: u64, _: &Evil| {
        let name = |nth| format!("app-{number}-{nth}");
        let services = (0..EACH).map(|nth| aggregate(&name(nth), 1)).collect();
        Some(v1::FollowResponse { revision: number + 2, services, ..Default::default() })
    };
    let (mut west, evil, _rest) = Box::pin(west_and_evil_east(script)).await;
    let orders = west.member("orders", "a").await;
    let _registration = Registration::workload(&orders, 1000).await.keep_alive();
    let begun = Instant::now();
    let joins = loop {
        let joins = west.admin.joins().await.unwrap();
        if joins[0].last_error.contains("more than 100000 services") {
            break joins;
        }
        assert!(begun.elapsed() < 6 * PATIENCE, "it states {} services", joins[0].services);
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(west.metric(&changes_refused("stream_ended")).await > 0);
    let known = usize::try_from(joins[0].services).unwrap();
    assert!(known <= LIMIT && known + EACH >= LIMIT, "{known}");
    assert!(evil.sent.load(Ordering::SeqCst) >= u64::try_from(LIMIT / EACH).unwrap());
    // What was known stays, and so does what is west's own.
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east", "orders"]).await;
    watch.until("orders", "local [1000]").await;
    watch.until("stock.default.east", "remote x1 via 1").await;
}

/// The harm: a revision that another network makes up gets into this one's own, or ends what follows.
#[tokio::test]
async fn revisions_that_a_joined_network_makes_up_have_no_effect_on_others() {
    const LAST: u32 = 77;
    let script = |number: u64, evil: &Evil| {
        let phase = evil.next_phase();
        if phase == Phase::Over {
            let beat = v1::FollowResponse { heartbeat: true, ..Default::default() };
            return Some(v1::FollowResponse { revision: u64::MAX, ..beat });
        }
        let is_last = phase == Phase::Last;
        let revision = if number.is_multiple_of(2) && !is_last { 0 } else { u64::MAX };
        let ready = if is_last { LAST } else { u32::MAX };
        let services = vec![aggregate("stock", ready)];
        let version = "9".repeat(200);
        Some(v1::FollowResponse { revision, services, version, ..Default::default() })
    };
    let (mut west, evil, _rest) = Box::pin(west_and_evil_east(script)).await;
    let caller = west.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &["stock.default.east", "orders"]).await;
    watch.until("stock.default.east", &format!("remote x{} via 1", u32::MAX)).await;
    let before = west.admin.services().await.unwrap().revision;
    while evil.sent.load(Ordering::SeqCst) < 100 {
        watch.next().await.unwrap();
    }
    let after = west.admin.services().await.unwrap().revision;
    assert!(after - before < 20, "{before} to {after}: what is the same is not stored again");
    // What is stated later is taken, here and after a restart.
    evil.end();
    watch.until("stock.default.east", &format!("remote x{LAST} via 1")).await;
    assert_eq!(west.admin.joins().await.unwrap()[0].revision, u64::MAX);
    let mut west = west.restart().await;
    let opened = evil.opened.load(Ordering::SeqCst);
    let orders = west.member("orders", "a").await;
    let _registration = Registration::workload(&orders, 1000).await.keep_alive();
    let mut watch = Watch::services(&orders, &["stock.default.east", "orders"]).await;
    watch.until("orders", "local [1000]").await;
    watch.until("stock.default.east", "remote x1 via 1").await;
    assert!(evil.opened.load(Ordering::SeqCst) >= opened);
    assert!(west.admin.services().await.unwrap().revision < 10_000);
    assert_eq!(west.metric(&changes_refused("stream_ended")).await, 0);
}
