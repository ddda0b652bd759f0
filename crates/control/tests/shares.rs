//! Identities that want more than their share of a control plane: each has its limit, others are
//! served meanwhile, and what was held is given back.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use support::host::{Answer, Host, Step, enter};
use support::{
    Joined, Member, Network, PATIENCE, Registration, Watch, enroll, issue, name, subscribed,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tollway_control::{ConnectionOptions, FollowOptions, Timing};
use tollway_identity::{Expected, client_config};
use tollway_model::{Label, TrustDomain};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::placement_client::PlacementClient;
use tollway_wire::v1::watch_request::Request as Ask;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

/// Few, so that a small crowd reaches them: a service has half.
const FEW: ConnectionOptions = ConnectionOptions {
    authenticated: 40,
    per_instance: 16,
    joined: 8,
    unauthenticated: 16,
    handshakes: 32,
};
const AUTHENTICATED: &str = "tollway_control_connections{state=\"authenticated\"}";
const FOLLOWED: &str = "tollway_control_shares{kind=\"followed_bytes\"}";
const CODE: &str = "ERR_SHARE_EXCEEDED";

fn refused(reason: &str) -> String {
    format!("tollway_control_connections_refused_total{{reason=\"{reason}\"}}")
}

/// Connections of a member that stay: each has begun HTTP/2 and answers pings.
async fn crowd(member: &Member, count: usize, held: &mut JoinSet<()>) {
    for _ in 0..count {
        let mut stream = member.stream().await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        // It is admitted when the server has begun, too.
        let _ = stream.read(&mut [0; 9]).await;
        held.spawn(stay(stream));
    }
}

async fn stay(mut stream: TlsStream<TcpStream>) {
    let mut bytes = [0; 1024];
    while let Ok(count) = stream.read(&mut bytes).await
        && count > 0
    {}
}

/// A workload joins, is seen by another one, and the operator's command is answered.
async fn check_served(network: &mut Network, app: &str) {
    let caller = network.member("caller.honest", app).await;
    let service = format!("{app}.honest");
    let mut watch = Watch::services(&caller, &[&service]).await;
    watch.until(&service, "unknown service").await;
    let callee = network.member(&service, "a").await;
    let _registration = Registration::workload(&callee, 1000).await.keep_alive();
    watch.until(&service, "local [1000]").await;
}

async fn until(network: &Network, metric: &str, is_so: impl Fn(u64) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let value = network.metric(metric).await;
        if is_so(value) {
            return;
        }
        assert!(Instant::now() < deadline, "{metric} is {value}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn check_code(status: &Status) {
    let code = tollway_wire::code_of(status).map(|code| code.word());
    assert_eq!((status.code(), code), (Code::ResourceExhausted, Some(CODE)), "{status:?}");
}

#[tokio::test]
async fn connections_of_one_identity_lock_out_no_network() {
    let mut west = Network::start_with_metrics("west", |options| options.connections = FEW).await;
    let evil = west.member("evil.lowly", "w1").await;
    let mut held = JoinSet::new();
    crowd(&evil, 3 * FEW.authenticated, &mut held).await;
    let most = FEW.per_instance as u64;
    until(&west, AUTHENTICATED, |open| open <= most).await;
    let evicted = west.metric(&refused("share")).await;
    assert_eq!(evicted, 3 * FEW.authenticated as u64 - most, "its own oldest gave way");
    check_served(&mut west, "stock").await;
    assert_eq!(west.metric(&refused("connections")).await, 0);
}

#[tokio::test]
async fn connections_of_many_instances_of_a_service_give_way_to_others() {
    let mut west = Network::start_with_metrics("west", |options| options.connections = FEW).await;
    let honest = west.member("web.honest", "a").await;
    let honest = honest.channel().await;
    let mut held = JoinSet::new();
    for app in ["one", "two", "three"] {
        for instance in ["a", "b"] {
            let evil = west.member(&format!("{app}.lowly"), instance).await;
            crowd(&evil, FEW.per_instance, &mut held).await;
        }
    }
    // Half of all for a service, three quarters for a namespace.
    until(&west, AUTHENTICATED, |open| (30..=31).contains(&open)).await;
    for app in ["stock", "orders"] {
        check_served(&mut west, app).await;
    }
    let service = name("web.honest");
    issue(honest, &service, "a", String::new()).await.expect("who has few stays");
}

#[tokio::test]
async fn workloads_of_joined_networks_have_no_connection() {
    let mut joined = Joined::start_with(|options| {
        options.admin_listen = Some("127.0.0.1:0".parse().unwrap());
        options.ports_file = Some(options.store.join("ports.json"));
    })
    .await;
    let west = &joined.west;
    let before = west.metric(AUTHENTICATED).await;
    let stranger = joined.east.member("nobody.far", "a").await;
    let expected =
        Expected::control(&Label::new("west").unwrap(), &TrustDomain::new("west.tollway").unwrap());
    for _ in 0..50 {
        let config = client_config(&stranger.credentials, &expected, &[b"h2"]).unwrap();
        let tcp = TcpStream::connect(west.address).await.unwrap();
        let name = expected.server_name().unwrap();
        let mut stream = TlsConnector::from(config).connect(name, tcp).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "it stays");
    }
    until(west, &refused("foreign"), |count| count == 50).await;
    assert!(west.metric(AUTHENTICATED).await <= before);
    // The control plane of the joined network has a share of its own.
    until(west, "tollway_control_connections{state=\"joined\"}", |count| count > 0).await;
}

/// A stream that follows actor types with names of their own.
async fn follow(
    channel: Channel,
    stream: usize,
    count: usize,
) -> (mpsc::Sender<v1::WatchOwnersRequest>, Result<Streaming<v1::Owners>, Status>) {
    let (requests, outgoing) = mpsc::channel(8);
    let add = (0..count).map(|nth| format!("{:x<250}", format!("T{stream}_{nth}_"))).collect();
    requests.send(v1::WatchOwnersRequest { add, remove: Vec::new() }).await.unwrap();
    let opened = PlacementClient::new(channel).watch_owners(ReceiverStream::new(outgoing)).await;
    (requests, opened.map(tonic::Response::into_inner))
}

/// Reads a stream until it ends with an error.
async fn end_of<T>(mut stream: Streaming<T>) -> Status {
    let reading = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended in order"),
                Err(status) => return status,
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("it ends")
}

#[tokio::test]
async fn names_that_one_identity_follows_fill_no_memory() {
    /// On one connection; the attack had 60.
    const STREAMS: usize = 12;
    let mut west = Network::start_with_metrics("west", |_| {}).await;
    let evil = west.member("evil.lowly", "w1").await;
    let channel = evil.channel().await;
    let mut reading = JoinSet::new();
    let (mut held, mut most) = (Vec::new(), 0);
    for stream in 0..STREAMS {
        let (requests, opened) = follow(channel.clone(), stream, 10_000).await;
        held.push(requests);
        if let Ok(opened) = opened {
            reading.spawn(end_of(opened));
        }
        most = most.max(west.metric(FOLLOWED).await);
    }
    assert!(most <= 8 << 20, "{most} bytes of names of one identity");
    // All but the newest few have ended: replaced, or refused so many names.
    for _ in 0..STREAMS - 5 {
        let ended = tokio::time::timeout(PATIENCE, reading.join_next()).await;
        check_code(&ended.expect("it ends").unwrap().unwrap());
    }
    assert!(west.metric("tollway_control_shares{kind=\"watch_owners\"}").await <= 4);
    // Another identity follows as many as it needs.
    let honest = west.member("web.honest", "a").await;
    let (_requests, opened) = follow(honest.channel().await, 0, 10_000).await;
    let mut owners = opened.unwrap();
    for _ in 0..10_000 {
        let next = tokio::time::timeout(PATIENCE, owners.message()).await;
        assert!(next.expect("it is answered").unwrap().is_some());
    }
    drop((owners, _requests, held, reading, channel));
    until(&west, FOLLOWED, |bytes| bytes == 0).await;
}

#[tokio::test]
async fn names_that_many_instances_of_an_app_follow_are_bounded() {
    let mut west = Network::start_with_metrics("west", |_| {}).await;
    let mut watches = Vec::new();
    for instance in 0..10 {
        let evil = west.member("evil.lowly", &format!("d{instance}")).await;
        for stream in 0..2 {
            let resume = (0..10_000).map(|nth| v1::ServiceName {
                app: format!("{:x<63}", format!("a{instance}-{stream}-{nth}")),
                namespace: "n".repeat(63),
                network: "west".to_owned(),
            });
            let open = v1::Open { resume: resume.collect(), ..subscribed(0, &[]) };
            let mut watch = Watch::open(&evil, open).await.unwrap();
            match watch.next().await {
                Ok(_) => watches.push(watch),
                Err(status) => check_code(&status),
            }
        }
    }
    // A service has 16 MiB and 64 KiB for each instance; 10,000 of these names are 2 MB.
    let bytes = west.metric(FOLLOWED).await;
    assert!(bytes <= (16 << 20) + 10 * (64 << 10), "{bytes} bytes");
    let mut lost = 0;
    for reason in ["refused", "evicted"] {
        lost += west.metric(&format!("tollway_control_shares_refused_total{{kind=\"followed_bytes\",reason=\"{reason}\"}}")).await;
    }
    assert_eq!(lost, 12, "eight of 20 streams fit");
    check_served(&mut west, "stock").await;
    drop(watches);
    until(&west, FOLLOWED, |bytes| bytes == 0).await;
}

/// The harm: many identities fill the memory with names together, each within its share.
#[tokio::test]
async fn names_that_all_follow_together_are_bounded_and_an_honest_stream_is_let_in() {
    /// Of 512 MiB by default, so that a small crowd reaches it.
    const ALL: u64 = 1_000_000;
    let few = FollowOptions { bytes_per_instance: 200_000, bytes: ALL };
    let mut west = Network::start_with_metrics("west", |options| options.followed = few).await;
    let mut held = Vec::new();
    let mut reading = JoinSet::new();
    for namespace in ["evil", "lowly"] {
        for app in ["one", "two", "three", "four"] {
            let evil = west.member(&format!("{app}.{namespace}"), "a").await;
            // 157,000 bytes of names.
            let (requests, opened) = follow(evil.channel().await, 0, 500).await;
            held.push(requests);
            reading.spawn(end_of(opened.unwrap()));
            assert!(west.metric(FOLLOWED).await <= ALL);
        }
    }
    until(&west, FOLLOWED, |bytes| bytes > ALL / 4 * 3).await;
    let honest = west.member("web.honest", "a").await;
    let (_requests, opened) = follow(honest.channel().await, 0, 500).await;
    let mut owners = opened.unwrap();
    let answer = tokio::time::timeout(PATIENCE, owners.message()).await;
    assert!(answer.expect("it is answered").unwrap().is_some());
    assert!(west.metric(FOLLOWED).await <= ALL);
    // Those that gave way, or were refused, have the reason.
    let ended = tokio::time::timeout(PATIENCE, reading.join_next()).await;
    check_code(&ended.expect("one ends").unwrap().unwrap());
    drop((owners, _requests, held, reading));
    until(&west, FOLLOWED, |bytes| bytes == 0).await;
}

#[tokio::test]
async fn empty_steps_of_a_host_wake_no_watcher_and_delay_no_certificate() {
    let mut west = Network::start_with_metrics("west", |options| {
        options.timing.actor_lease = Duration::from_secs(60);
    })
    .await;
    let evil = west.member("evil.lowly", "w1").await;
    let mut host = Host::open(&evil, Step::Enter(enter(1))).await;
    assert!(matches!(host.answer().await.unwrap(), Answer::Entered(_)));
    host.granted().await;
    let (_requests, opened) =
        follow(west.member("web.lowly", "a").await.channel().await, 0, 1).await;
    let mut owners = opened.unwrap();
    owners.message().await.unwrap();
    let requests = host.requests.clone();
    let flood = tokio::spawn(async move {
        let back = v1::GivenBack { actor_type: "cart".into(), grants: Vec::new() };
        let step = v1::HostRequest { request: Some(Step::GivenBack(back)) };
        let mut sent = 0_u64;
        while requests.send(step.clone()).await.is_ok() {
            sent += 1;
            assert!(sent < 100_000, "steps are read as fast as they come");
        }
    });
    // Others are served meanwhile; the flood is held back before it has sent very many.
    for instance in 0..20 {
        west.member("web.honest", &format!("i{instance}")).await;
    }
    let silence = tokio::time::timeout(Duration::from_millis(300), owners.message()).await;
    assert!(silence.is_err(), "a watcher was woken: {silence:?}");
    assert!(!flood.is_finished());
    flood.abort();
}

/// The harm: a signature and two transactions for each request of one certificate, for as long as its
/// holder likes.
#[tokio::test]
async fn renewals_without_end_are_refused_and_delay_no_certificate_of_others() {
    const ASKED: usize = 60;
    let burst = Timing::default().certificates_burst;
    let mut west =
        Network::start_with_metrics("west", |it| it.timing.certificates_burst = burst).await;
    let evil = west.member("evil.lowly", "w1").await;
    let channel = evil.channel().await;
    let service = name("evil.lowly");
    let renew = || issue(channel.clone(), &service, "w1", String::new());
    let (began, mut issued) = (Instant::now(), 0);
    for _ in 0..ASKED {
        match renew().await {
            Ok(_) => issued += 1,
            Err(status) => {
                let code = tollway_wire::code_of(&status).map(|code| code.word());
                assert_eq!((status.code(), code), (Code::Unavailable, Some(CODE)), "{status:?}");
            }
        }
    }
    let most = u64::from(burst) + began.elapsed().as_secs() + 1;
    assert!(issued >= u64::from(burst) && issued <= most, "{issued} of {ASKED}");
    let refused = "tollway_control_shares_refused_total{kind=\"certificates\",reason=\"refused\"}";
    assert_eq!(west.metric(refused).await, ASKED as u64 - issued);
    // Replicas that share a token start together, and each renews.
    let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
    let mut replicas = JoinSet::new();
    for replica in 0..4 * burst {
        let (address, token, instance) = (west.address, token.clone(), format!("r{replica}"));
        replicas.spawn(async move {
            let service = name("web.honest");
            let credentials = enroll(address, &token, &service, &instance).await?;
            let channel = Member { address, credentials }.channel().await;
            issue(channel, &service, &instance, String::new()).await
        });
    }
    for replica in replicas.join_all().await {
        replica.expect("it is issued");
    }
    // Its own certificate is renewed again, too.
    let deadline = Instant::now() + PATIENCE;
    while let Err(status) = renew().await {
        assert!(Instant::now() < deadline, "{status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_same_registration_again_changes_nothing() {
    let mut west = Network::start("west").await;
    let stock = west.member("stock", "a").await;
    let mut registration = Registration::workload(&stock, 1).await;
    let first = registration.set_ready(&stock, 1, true).await;
    for _ in 0..100 {
        assert_eq!(registration.set_ready(&stock, 1, true).await, first, "it was stored again");
    }
    assert!(registration.set_ready(&stock, 1, false).await > first);
}

#[tokio::test]
async fn a_registration_that_flaps_is_held_back() {
    let mut west = Network::start_with("west", |options| {
        options.timing.registration_burst = 4;
        options.timing.lease = Duration::from_secs(10);
    })
    .await;
    let stock = west.member("stock", "a").await;
    let began = Instant::now();
    let mut registration = Registration::workload(&stock, 1).await;
    for port in 2..=10 {
        registration.set_ready(&stock, port, true).await;
    }
    // Four at once, and six at five a second.
    assert!(began.elapsed() >= Duration::from_millis(1_100), "{:?}", began.elapsed());
    let other = west.member("orders", "a").await;
    let before = Instant::now();
    for port in 1..=4 {
        drop(Registration::workload(&other, port).await);
    }
    assert!(before.elapsed() < PATIENCE);
}

#[tokio::test]
async fn a_service_of_many_replicas_is_served_whole() {
    const REPLICAS: usize = 60;
    let mut west = Network::start_with_metrics("west", |_| {}).await;
    let mut registrations = Vec::new();
    let mut watches = Vec::new();
    for replica in 0..REPLICAS {
        let member = west.member("stock", &format!("r{replica}")).await;
        let port = u16::try_from(replica + 1).unwrap();
        registrations.push(Registration::workload(&member, port).await.keep_alive());
        watches.push(Watch::services(&member, &["orders", "stock"]).await);
    }
    for watch in &mut watches {
        watch.until("orders", "unknown service").await;
    }
    for reason in ["share", "connections"] {
        assert_eq!(west.metric(&refused(reason)).await, 0);
    }
    let request = Some(Ask::Ack(v1::Ack { revision: 1 }));
    watches[0].requests.send(v1::WatchRequest { request }).await.unwrap();
}
