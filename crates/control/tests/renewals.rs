//! Renewals of certificates: answers that are lost, keys that were copied, certificates that have
//! ended.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use support::{Joined, Member, Network, PATIENCE, Registration, Watch, enroll, issue, subscribed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tollway_control::ReusedKeys;
use tollway_identity::{Credentials, JoinToken, SHORTEST_TTL};
use tollway_model::ErrorCode;
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::neighbours_client::NeighboursClient;
use tollway_wire::v1::peering_client::PeeringClient;
use tollway_wire::v1::placement_client::PlacementClient;
use tollway_wire::v1::reminders_client::RemindersClient;
use tollway_wire::v1::state_client::StateClient;
use tonic::{Code, Status};

/// Renews over a connection of its own.
async fn renew(member: &Member) -> Result<Member, Status> {
    let channel =
        member.try_channel().await.map_err(|error| Status::internal(error.to_string()))?;
    renew_on(channel, member).await
}

/// Tries until no other attempt is under way.
async fn renew_again(member: &Member) -> Member {
    loop {
        match renew(member).await {
            Ok(renewed) => return renewed,
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status:?}"),
        }
    }
}

async fn renew_on(channel: tonic::transport::Channel, member: &Member) -> Result<Member, Status> {
    let service = member.credentials.service().clone();
    let instance = member.credentials.instance().unwrap().as_str().to_owned();
    let credentials = issue(channel, &service, &instance, String::new()).await?;
    Ok(Member { credentials, ..member.clone() })
}

/// Shows the certificate in a handshake.
async fn use_once(member: &Member) {
    member.stream().await.unwrap().read_u8().await.unwrap();
}

#[track_caller]
fn check_refused(renewed: Result<Member, Status>, text: &str) {
    let refused = renewed.err().expect("the renewal is refused");
    assert_eq!(tollway_wire::code_of(&refused), Some(ErrorCode::KeyRefused), "{refused:?}");
    assert!(refused.message().contains(text), "{refused:?}");
}

async fn any_token(network: &mut Network) -> JoinToken {
    network.token(Scope::Any(v1::AnyWorkload {})).await
}

fn with_metrics(options: &mut tollway_control::Options) {
    options.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    options.ports_file = Some(options.store.with_file_name("ports.json"));
}

async fn metric(network: &Network, name: &str) -> u64 {
    let ports = std::fs::read(network.dir.path().join("ports.json")).unwrap();
    let ports: serde_json::Value = serde_json::from_slice(&ports).unwrap();
    let mut stream = TcpStream::connect(ports["admin"].as_str().unwrap()).await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    tollway_testkit::metric_in(&page, name).unwrap()
}

/// The harm: a thief that has copied a key renews with it for ever, beside its owner.
#[tokio::test]
async fn a_copied_key_that_renews_after_its_owner_is_refused_and_bars_the_instance() {
    let mut west = Network::start_with("west", with_metrics).await;
    let stolen = west.member("stock", "a").await;
    let own = renew(&stolen).await.unwrap();
    use_once(&own).await;
    check_refused(renew(&stolen).await, "two processes have its key");
    assert_eq!(metric(&west, "tollway_renewals_refused_total{reason=\"reused\"}").await, 1);
    // Nothing shows which of the two is the thief.
    check_refused(renew(&own).await, "renews no more");
    let west = west.restart().await;
    let own = Member { address: west.address, ..own };
    check_refused(renew(&own).await, "renews no more");
}

/// The harm: the thief is first, and goes on after its victim.
#[tokio::test]
async fn a_copied_key_that_renews_before_its_owner_is_found_and_goes_on_no_longer() {
    let mut west = Network::start("west").await;
    let own = west.member("stock", "a").await;
    let mut thief = renew(&own).await.unwrap();
    for _ in 0..3 {
        thief = renew(&thief).await.unwrap();
    }
    check_refused(renew(&own).await, "two processes have its key");
    check_refused(renew(&thief).await, "renews no more");
    // A token is the proof that a thief has not.
    let own = west.member("stock", "a").await;
    check_refused(renew(&thief).await, "enrolled anew elsewhere");
    let own = renew(&own).await.unwrap();
    use_once(&own).await;
    renew(&own).await.unwrap();
}

#[tokio::test]
async fn where_keys_are_only_refused_the_later_holder_goes_on() {
    let refuse = |options: &mut tollway_control::Options| options.reused_keys = ReusedKeys::Refuse;
    let mut west = Network::start_with("west", refuse).await;
    let stolen = west.member("stock", "a").await;
    let own = renew(&stolen).await.unwrap();
    use_once(&own).await;
    check_refused(renew(&stolen).await, "two processes have its key");
    check_refused(renew(&stolen).await, "two processes have its key");
    renew(&own).await.unwrap();
}

/// Other instances and services have keys of their own.
#[tokio::test]
async fn replicas_renew_beside_each_other() {
    let mut west = Network::start("west").await;
    let token = any_token(&mut west).await;
    for (service, instance) in [("stock", "a"), ("stock", "b"), ("stock.shop", "a")] {
        let service = west.own(service);
        let credentials = enroll(west.address, &token, &service, instance).await.unwrap();
        let first = Member { address: west.address, credentials };
        let second = renew(&first).await.unwrap();
        use_once(&second).await;
        renew(&second).await.unwrap();
    }
}

/// The harm: an answer that is lost locks its workload out. A relay breaks the connection after each
/// number of bytes of the answer.
#[tokio::test]
async fn a_renewal_whose_answer_is_lost_at_any_byte_locks_no_instance_out() {
    let mut west = Network::start("west").await;
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let member = west.member("stock", &format!("lane-{lane}")).await;
        lanes.spawn(lose_answers(member, lane));
    }
    let longest = lanes.join_all().await.into_iter().max();
    assert!(longest > Some(1000), "an answer has more than {longest:?} bytes");
}

/// As many at a time.
const LANES: usize = 4;

/// Loses every answer after so many bytes, from `bytes` on, every [`LANES`]-th number. Returns the
/// first one after which an answer was whole.
async fn lose_answers(mut member: Member, mut bytes: usize) -> usize {
    let cutter = Cutter::start(member.address).await;
    loop {
        cutter.pass(usize::MAX);
        let through = Member { address: cutter.address, ..member.clone() };
        let channel = through.channel().await;
        cutter.pass(bytes);
        let answer = tokio::time::timeout(PATIENCE, renew_on(channel, &member)).await.unwrap();
        let is_whole = answer.is_ok();
        // What was lost may have been issued; the former key renews all the same.
        member = match answer {
            Ok(renewed) => renewed,
            Err(_) => renew_again(&member).await,
        };
        // The next handshake is the first use of the new key.
        if is_whole {
            return bytes;
        }
        bytes += LANES;
    }
}

/// The harm: two attempts at a time forget each other's key.
#[tokio::test]
async fn renewals_at_the_same_time_leave_a_key_that_is_good() {
    let mut west = Network::start("west").await;
    let mut member = west.member("stock", "a").await;
    for _ in 0..10 {
        let channel = member.channel().await;
        let attempts = (0..4).map(|_| {
            let (channel, member) = (channel.clone(), member.clone());
            tokio::spawn(async move { renew_on(channel, &member).await })
        });
        let mut received = Vec::new();
        for attempt in attempts.collect::<Vec<_>>() {
            match attempt.await.unwrap() {
                Ok(renewed) => received.push(renewed),
                Err(status) => assert_eq!(status.code(), Code::Aborted, "{status:?}"),
            }
        }
        // Whichever answer is taken.
        member = received.swap_remove(received.len() / 2);
        use_once(&member).await;
    }
}

/// The harm: what a control plane that was away took from its workloads, an ended certificate gives to
/// a thief: it must renew itself and open nothing else.
#[tokio::test]
async fn an_ended_certificate_renews_itself_and_opens_nothing_else() {
    let short = |options: &mut tollway_control::Options| {
        with_metrics(options);
        options.certificate_ttl = SHORTEST_TTL;
        options.renewal_grace = Duration::from_secs(3600);
    };
    let mut west = Network::start_with("west", short).await;
    let members = [west.member("stock", "a").await, west.member("stock", "b").await];
    let gateway = west.gateway("g").await;
    let open = members[0].channel().await;
    until_ended(&gateway.credentials).await;
    let ended = members[0].channel().await;
    for channel in [ended, open] {
        check_nothing_else(channel).await;
    }
    assert_refused(Registration::open(&members[0]).await.err());
    let mut watch = Watch::open(&members[0], subscribed(0, &["stock"])).await;
    if let Ok(watch) = &mut watch {
        assert_refused(watch.next().await.err());
    }
    let other = issue(members[0].channel().await, &west.own("stock"), "b", String::new()).await;
    assert!(other.unwrap_err().message().contains("renews only itself"));
    for member in members.iter().chain([&gateway]) {
        let renewed = renew(member).await.unwrap();
        assert!(renewed.credentials.not_after() > SystemTime::now());
        use_once(&renewed).await;
    }
    assert_eq!(metric(&west, "tollway_renewals_late_total").await, 3);
    // A copy of the key that has ended is worth as little as one that has not.
    check_refused(renew(&members[0]).await, "two processes have its key");
}

#[tokio::test]
async fn without_a_grace_an_ended_certificate_is_refused_in_the_handshake() {
    let short = |options: &mut tollway_control::Options| {
        options.certificate_ttl = SHORTEST_TTL;
        options.renewal_grace = Duration::ZERO;
    };
    let mut west = Network::start_with("west", short).await;
    let member = west.member("stock", "a").await;
    until_ended(&member.credentials).await;
    assert!(renew(&member).await.is_err());
}

/// A joined network's certificate that has ended is nothing here.
#[tokio::test]
async fn the_grace_is_not_for_joined_networks() {
    let mut nets = Joined::start_with(|options| options.certificate_ttl = SHORTEST_TTL).await;
    let foreign = nets.east.member("stock", "a").await;
    until_ended(&foreign.credentials).await;
    assert!(renew(&foreign).await.is_ok());
    let here = Member { address: nets.west.address, ..foreign };
    assert!(renew(&here).await.is_err());
}

async fn until_ended(credentials: &Credentials) {
    while let Ok(left) = credentials.not_after().duration_since(SystemTime::now()) {
        tokio::time::sleep(left + Duration::from_millis(1)).await;
    }
}

#[track_caller]
fn assert_refused(status: Option<Status>) {
    let status = status.expect("it is refused");
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    assert_eq!(tollway_wire::code_of(&status), Some(ErrorCode::CertificateExpired));
}

/// Calls of every service of the port but `Identity`.
async fn check_nothing_else(channel: tonic::transport::Channel) {
    assert_refused(PlacementClient::new(channel.clone()).host(tokio_stream::empty()).await.err());
    assert_refused(
        PlacementClient::new(channel.clone()).watch_owners(tokio_stream::empty()).await.err(),
    );
    assert_refused(PeeringClient::new(channel.clone()).follow(tokio_stream::empty()).await.err());
    let mut state = StateClient::new(channel.clone());
    assert_refused(state.read_state(v1::ReadStateRequest::default()).await.err());
    assert_refused(state.write_state(v1::WriteStateRequest::default()).await.err());
    let mut reminders = RemindersClient::new(channel.clone());
    assert_refused(reminders.write_reminders(v1::WriteRemindersRequest::default()).await.err());
    assert_refused(reminders.list_reminders(v1::ListRemindersRequest::default()).await.err());
    let mut neighbours = NeighboursClient::new(channel);
    assert_refused(neighbours.get_neighbours(v1::GetNeighboursRequest::default()).await.err());
    assert_refused(neighbours.list_neighbours(v1::ListNeighboursRequest::default()).await.err());
    assert_refused(neighbours.watch_neighbours(tokio_stream::empty()).await.err());
}

/// Passes bytes to a control plane, and so many of its answers; then it breaks the connections.
struct Cutter {
    address: SocketAddr,
    left: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Cutter {
    async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let rest = left.clone();
        let task = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(target).await.unwrap();
                tokio::spawn(relay(near, far, rest.clone()));
            }
        });
        Self { address, left, task }
    }

    fn pass(&self, bytes: usize) {
        self.left.store(bytes, Ordering::SeqCst);
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ends when an answer is longer than what is left to pass.
async fn relay(near: TcpStream, far: TcpStream, left: Arc<AtomicUsize>) {
    let (mut from_near, mut to_near) = near.into_split();
    let (mut from_far, mut to_far) = far.into_split();
    let requests = tokio::io::copy(&mut from_near, &mut to_far);
    let answers = async {
        let mut bytes = [0; 4096];
        loop {
            let Ok(count @ 1..) = from_far.read(&mut bytes).await else { return };
            let may_pass = left.load(Ordering::SeqCst);
            if to_near.write_all(&bytes[..count.min(may_pass)]).await.is_err() || count > may_pass {
                return;
            }
            if may_pass != usize::MAX {
                left.fetch_sub(count, Ordering::SeqCst);
            }
        }
    };
    tokio::select! {
        _ = requests => {}
        () = answers => {}
    }
}
