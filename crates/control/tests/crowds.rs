//! Crowds at the one port: connections that do not authenticate, clients without an identity, and
//! clients with one. None takes the permits of another kind.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use support::{Member, Network, PATIENCE, Registration, Watch, bootstrap, issue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollway_control::ConnectionOptions;
use tollway_testkit::metric_in;
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;

/// Where honest callers come from, and another address.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// Few places, so that a small crowd is one.
const FEW: ConnectionOptions = ConnectionOptions {
    authenticated: 100,
    per_instance: 16,
    joined: 4,
    unauthenticated: 4,
    handshakes: 8,
};
/// Pause of a connection that was closed, and between two reads of the metrics.
const REST: Duration = Duration::from_millis(2);

async fn start(limits: ConnectionOptions) -> Network {
    Network::start_with_metrics("west", |options| options.connections = limits).await
}

async fn refused(network: &Network, reason: &str) -> u64 {
    let name = format!("tollway_control_connections_refused_total{{reason=\"{reason}\"}}");
    metric_in(&network.page().await, &name).unwrap()
}

async fn open(network: &Network, state: &str) -> u64 {
    let name = format!("tollway_control_connections{{state=\"{state}\"}}");
    metric_in(&network.page().await, &name).unwrap()
}

async fn until(network: &Network, what: String, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not {what}: {}", network.page().await);
        tokio::time::sleep(REST).await;
    }
}

/// Waits until so many were refused for `reason`.
async fn until_refused(network: &Network, reason: &str, least: u64) {
    let is_so = async || refused(network, reason).await >= least;
    until(network, format!("{least} times {reason}"), is_so).await;
}

async fn until_open(network: &Network, state: &str, count: u64) {
    let is_so = async || open(network, state).await == count;
    until(network, format!("{count} {state}"), is_so).await;
}

async fn dial(from: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// Silent connections without a certificate, opened again when they are closed; gone when dropped.
fn unauthenticated(count: usize, from: IpAddr, to: SocketAddr) -> JoinSet<()> {
    let mut unauthenticated = JoinSet::new();
    for _ in 0..count {
        unauthenticated.spawn(async move {
            loop {
                if let Ok(mut stream) = dial(from, to).await {
                    // However it ends.
                    let _ = stream.read(&mut [0]).await;
                }
                tokio::time::sleep(REST).await;
            }
        });
    }
    unauthenticated
}

/// A workload joins and watches, another one joins and is seen by it.
async fn check_served(network: &mut Network, app: &str) {
    let caller = network.member("caller", "a").await;
    let mut watch = Watch::services(&caller, &[app]).await;
    watch.until(app, "unknown service").await;
    let callee = network.member(app, "a").await;
    let _registration = Registration::workload(&callee, 1000).await.keep_alive();
    watch.until(app, "local [1000]").await;
}

/// Whether a call on a new connection is answered.
async fn is_served(member: &Member) -> bool {
    let Ok(channel) = member.try_channel().await else { return false };
    let service = member.credentials.service().clone();
    issue(channel, &service, "a", String::new()).await.is_ok()
}

#[tokio::test]
async fn unauthenticated_connections_without_end_block_no_workload() {
    let mut west = start(FEW).await;
    let _strangers = unauthenticated(4 * FEW.handshakes, ELSEWHERE, west.address);
    until_refused(&west, "handshakes", 100).await;
    check_served(&mut west, "stock").await;
    let before = refused(&west, "handshakes").await;
    until_refused(&west, "handshakes", before + 100).await;
    let under_way = open(&west, "handshake").await;
    assert!(under_way <= FEW.handshakes as u64, "{under_way} handshakes are under way");
    assert_eq!(refused(&west, "connections").await, 0);
}

#[tokio::test]
async fn the_oldest_unauthenticated_connection_of_an_address_is_evicted() {
    let mut west = start(FEW).await;
    let mut first = dial(HERE, west.address).await.unwrap();
    until_open(&west, "handshake", 1).await;
    let mut others = Vec::new();
    for _ in 1..FEW.handshakes {
        others.push(dial(HERE, west.address).await.unwrap());
    }
    until_open(&west, "handshake", FEW.handshakes as u64).await;
    let _newcomer = dial(HERE, west.address).await.unwrap();
    // Closed without a word, by an end or a reset.
    let ended = tokio::time::timeout(PATIENCE, first.read(&mut [0])).await;
    assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
    until_refused(&west, "handshakes", 1).await;
    check_served(&mut west, "stock").await;
    assert!(refused(&west, "handshakes").await > 1, "nobody gave way to the workloads");
    drop(others);
}

#[tokio::test]
async fn unauthenticated_connections_that_stay_block_no_joining() {
    let mut west = start(FEW).await;
    let token = west.token(Scope::Any(v1::AnyWorkload {})).await;
    let mut joining = Vec::new();
    for _ in 0..3 * FEW.unauthenticated {
        joining.push(bootstrap(west.address, &token).await);
    }
    until_refused(&west, "unauthenticated", 2 * FEW.unauthenticated as u64).await;
    assert_eq!(open(&west, "unauthenticated").await, FEW.unauthenticated as u64);
    check_served(&mut west, "stock").await;
    assert!(refused(&west, "unauthenticated").await > 2 * FEW.unauthenticated as u64);
    drop(joining);
}

#[tokio::test]
async fn over_the_limit_a_connection_with_an_identity_is_closed_until_there_is_room() {
    let mut west = start(ConnectionOptions { authenticated: 1, ..FEW }).await;
    let (one, two) = (west.member("one", "a").await, west.member("two", "a").await);
    let first = one.channel().await;
    until_open(&west, "authenticated", 1).await;
    assert!(!is_served(&two).await, "there is no place for it");
    until_refused(&west, "connections", 1).await;
    assert_eq!(refused(&west, "unauthenticated").await, 0);
    drop(first);
    until_open(&west, "authenticated", 0).await;
    assert!(is_served(&two).await, "there is room again");
}

#[tokio::test]
async fn a_connection_that_breaks_the_rules_of_http2_is_counted() {
    /// A preface, empty SETTINGS, and a window that is to grow by nothing.
    const MISTAKE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
        \0\0\x04\x08\0\0\0\0\0\0\0\0\0";
    let mut west = start(FEW).await;
    let member = west.member("stock", "a").await;
    let counted = async |west: &Network| {
        metric_in::<u64>(&west.page().await, "tollway_requests_refused_total").unwrap()
    };
    assert_eq!(counted(&west).await, 0, "those who keep to the rules");
    let mut stream = member.stream().await.unwrap();
    stream.write_all(MISTAKE).await.unwrap();
    // Everything it sends until it ends: it does not wait for ours.
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "it goes on");
    assert_eq!(counted(&west).await, 1);
}

#[tokio::test]
async fn what_is_no_handshake_is_counted_by_its_reason() {
    let west = start(FEW).await;
    let mut stream = dial(HERE, west.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: control\r\n\r\n").await.unwrap();
    until_refused(&west, "tls", 1).await;
    let _silent = dial(HERE, west.address).await.unwrap();
    until_refused(&west, "timeout", 1).await;
    assert_eq!(open(&west, "handshake").await, 0);
}
