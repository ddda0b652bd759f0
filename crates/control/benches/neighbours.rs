//! What neighbours cost: written until they are durable, listed and watched by an agent over mutual
//! TLS until the last one is unpacked there, looked up.
//!
//! `cargo bench -p tollway-control --bench neighbours -- [COUNT]` (100,000 by default; the store
//! lies in the system's temporary directory, which must not be a tmpfs for the figures to mean
//! anything). The control plane has one thread and its store's; writers and watchers share
//! another, and the machine.

#![allow(clippy::unwrap_used, reason = "a bench that cannot run fails")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use support::{Member, Network, enroll};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollway_control::NeighboursClient;
use tollway_model::neighbour::packed::{pack_all, unpack};
use tollway_model::{HostLocation, Mac, NeighbourKey, NeighbourRecord, Vni};
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;
use tollway_wire::v1::neighbours_client;
use tollway_wire::v1::watch_neighbours_request::Request;
use tonic::transport::Channel;

/// Who looks up at a time.
const CLIENTS: u32 = 100;
/// Threads of the control plane: the runtime's and the store's.
const CONTROL_THREADS: [&str; 2] = ["control", "store"];

/// The order in which neighbours are written.
#[derive(Clone, Copy)]
enum Order {
    Ascending,
    Random,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.iter().find(|argument| !argument.starts_with("--"));
    let count: u32 = count.map_or(100_000, |text| text.parse().expect("a number of neighbours"));
    let (control, clients) = (runtime("control"), runtime("clients"));
    println!("{count} neighbours; us each, of which the control plane's CPU");
    for (name, order) in [("ascending", Order::Ascending), ("random", Order::Random)] {
        let mut network = control.block_on(Network::start("west"));
        let member = control.block_on(agent(&mut network));
        let admin = clients.block_on(tollway_control::AdminClient::connect(network.store()));
        let mut operator = admin.unwrap().neighbours();
        let batches = batches(count, order, 1);
        let before = resident_bytes();
        let revision = measure(&format!("written, {name}"), count, || {
            clients.block_on(write(&mut operator, &batches))
        });
        let grown = resident_bytes().saturating_sub(before);
        println!("{:>28} {:>7.0} bytes of memory each", "", grown as f64 / f64::from(count));
        measure(&format!("written again, {name}"), count, || {
            clients.block_on(write(&mut operator, &batches))
        });
        for _ in 0..3 {
            measure(&format!("listed, {name}"), count, || clients.block_on(list(&member)));
            measure(&format!("watched from 0, {name}"), count, || {
                clients.block_on(watched(&member, revision, 0))
            });
        }
        let moved = self::batches(count, order, 2);
        measure(&format!("moved and watched, {name}"), count, || {
            clients.block_on(async {
                let (member, from) = (member.clone(), revision);
                let (ready, is_ready) = tokio::sync::oneshot::channel();
                let (end, ended) = tokio::sync::watch::channel(0);
                let watching = tokio::spawn(follow(member, from, ready, ended));
                is_ready.await.unwrap();
                let last = write(&mut operator, &moved).await;
                end.send_replace(last);
                watching.await.unwrap();
            });
        });
        clients.block_on(singly(&mut operator));
        clients.block_on(look_up(&member, count));
        control.block_on(network.stop());
    }
}

fn runtime(name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
}

async fn agent(network: &mut Network) -> Member {
    let token = network.token(Scope::FabricGroup("racks".to_owned())).await;
    let service = network.own("fabric-racks.tollway");
    let credentials = enroll(network.address, &token, &service, "forwarder-1").await.unwrap();
    Member { address: network.address, credentials }
}

/// Does something to every neighbour, and prints what it took.
fn measure<T>(what: &str, count: u32, run: impl FnOnce() -> T) -> T {
    let (began, cpu) = (Instant::now(), cpu(&CONTROL_THREADS));
    let done = run();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(count);
    let control = each(self::cpu(&CONTROL_THREADS) - cpu);
    println!("{what:>28} {:>7.2} us  {control:>6.2}", each(began.elapsed()));
    done
}

fn key(number: u32) -> NeighbourKey {
    let ip = Ipv4Addr::from(0x0a00_0001 + number).into();
    NeighbourKey::new(Vni::new(7).unwrap(), ip).unwrap()
}

fn batches(count: u32, order: Order, host: u8) -> Vec<Vec<u8>> {
    let mac = |kind| Mac::new([2, kind, 0, 0, 0, host]).unwrap();
    let location =
        HostLocation::new(mac(1), Ipv4Addr::new(192, 0, 2, host).into(), mac(2)).unwrap();
    let records = (0..count).map(|number| {
        let number = match order {
            Order::Ascending => number,
            // Every number below 2^22 once, far from the one before it.
            Order::Random => number.wrapping_mul(2_654_435_761) % (1 << 22),
        };
        NeighbourRecord { key: key(number), revision: 0, location: Some(location) }
    });
    pack_all(&records.collect::<Vec<_>>())
}

/// Writes batches; the revision of the last one.
async fn write(client: &mut NeighboursClient, batches: &[Vec<u8>]) -> u64 {
    let requests: Vec<_> = batches
        .iter()
        .map(|packed| v1::WriteNeighboursRequest {
            group: "racks".into(),
            operation: v1::NeighbourOperation::Apply.into(),
            neighbours: Vec::new(),
            packed: packed.clone().into(),
        })
        .collect();
    let answers = client.write_neighbours_in_bulk(tokio_stream::iter(requests)).await.unwrap();
    let (mut answers, mut last) = (answers.into_inner(), 0);
    while let Some(answer) = answers.message().await.unwrap() {
        assert!(answer.failures.is_empty());
        last = answer.revision;
    }
    last
}

async fn client(member: &Member) -> NeighboursClient {
    neighbours_client::NeighboursClient::new(member.channel().await)
}

async fn list(member: &Member) {
    let mut client: neighbours_client::NeighboursClient<Channel> = client(member).await;
    let request = v1::ListNeighboursRequest { group: "racks".into(), ..Default::default() };
    let mut pages = client.list_neighbours(request).await.unwrap().into_inner();
    while let Some(page) = pages.message().await.unwrap() {
        std::hint::black_box(unpack(&page.packed).unwrap());
    }
}

async fn watched(member: &Member, upto: u64, from: u64) {
    let (ready, _is_ready) = tokio::sync::oneshot::channel();
    let (_end, ended) = tokio::sync::watch::channel(upto);
    follow(member.clone(), from, ready, ended).await;
}

/// Follows the group from a revision until the one that `end` names.
async fn follow(
    member: Member,
    from_revision: u64,
    ready: tokio::sync::oneshot::Sender<()>,
    mut end: tokio::sync::watch::Receiver<u64>,
) {
    let mut client = client(&member).await;
    let get = v1::GetNeighboursRequest { group: "racks".into(), keys: Vec::new() };
    let table = client.get_neighbours(get).await.unwrap().into_inner().table;
    let (said, saying) = mpsc::channel(1);
    let start = v1::WatchNeighboursStart {
        group: "racks".into(),
        from_revision,
        table,
        version: String::new(),
    };
    said.send(v1::WatchNeighboursRequest { request: Some(Request::Start(start)) }).await.unwrap();
    let responses = client.watch_neighbours(ReceiverStream::new(saying)).await.unwrap();
    let (mut responses, mut revision) = (responses.into_inner(), 0);
    let _ = ready.send(());
    while *end.borrow_and_update() == 0 || revision < *end.borrow() {
        let message = responses.message().await.unwrap().unwrap();
        std::hint::black_box(unpack(&message.packed).unwrap());
        revision = revision.max(message.revision);
    }
}

/// Single updates of an idle system, one after the other.
async fn singly(client: &mut NeighboursClient) {
    let mut took = Vec::new();
    for host in 3..203_u8 {
        let batch = batches(1, Order::Ascending, host);
        let began = Instant::now();
        write(client, &batch).await;
        took.push(began.elapsed());
    }
    print_times("a single update, durable", took);
}

async fn look_up(member: &Member, count: u32) {
    let mut looking = Vec::new();
    for client_number in 0..CLIENTS {
        let mut client = client(member).await;
        looking.push(tokio::spawn(async move {
            let mut took = Vec::new();
            for round in 0..50_u32 {
                let number = (client_number * 7919 + round * 104_729) % count;
                let keys = vec![(&key(number)).into()];
                let request = v1::GetNeighboursRequest { group: "racks".into(), keys };
                let began = Instant::now();
                client.get_neighbours(request).await.unwrap();
                took.push(began.elapsed());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            took
        }));
    }
    let mut took = Vec::new();
    for client in looking {
        took.extend(client.await.unwrap());
    }
    print_times(&format!("looked up by {CLIENTS} clients"), took);
}

fn print_times(what: &str, mut took: Vec<Duration>) {
    took.sort();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!("{what:>28} {:?} (p50), {:?} (p99)", at(0.5), at(0.99));
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Processor time of this process's threads whose names begin with one of these.
fn cpu(names: &[&str]) -> Duration {
    let mut ticks = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let Ok(stat) = std::fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        let name = head.split_once('(').map_or("", |(_, name)| name);
        if names.iter().any(|wanted| name.starts_with(wanted)) {
            let fields: Vec<&str> = rest.split_whitespace().collect();
            ticks += fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        }
    }
    // The kernel counts in hundredths of a second.
    Duration::from_millis(ticks * 10)
}
