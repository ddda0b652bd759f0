//! Registers reminders with a control plane over its own port, with certificates and a disk as in
//! production, and prints for batches of 1, 16 and 64: reminders a second, the processor time that
//! the control plane takes for each, and how long a batch takes.
//!
//! `cargo bench -p tollway-control --bench reminders -- [SECONDS]`
//! (for each line, 5 by default; the store lies in the system's temporary directory, which must
//! not be a tmpfs for the figures to mean anything). Clients and control plane share the machine.

#![allow(clippy::unwrap_used, reason = "a bench that cannot run fails")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::host::{Answer, Host, Step, enter};
use support::{Member, Network};
use tokio::runtime::{Builder, Runtime};
use tollway_actors::placement::{Epoch, Order, SHARDS, Shard};
use tollway_actors::schedule::{FailurePolicy, Moment, Terms};
use tollway_wire::v1::reminders_client::RemindersClient;
use tollway_wire::{Registration, ReminderChange, ReminderKey, v1};
use tonic::transport::Channel;

/// Who writes at a time.
const CLIENTS: usize = 64;
const DATA_BYTES: usize = 100;
/// Threads of the control plane: the runtime's and the store's.
const CONTROL_THREADS: [&str; 2] = ["control", "store"];

type Held = Arc<Mutex<BTreeMap<Shard, Epoch>>>;

/// A host, and what it holds.
struct Writer {
    client: RemindersClient<Channel>,
    life: u64,
    held: Arc<BTreeMap<Shard, Epoch>>,
}

/// What one client did.
struct Done {
    reminders: usize,
    took: Vec<Duration>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = arguments.iter().find(|argument| !argument.starts_with("--"));
    let time = seconds.map_or(5.0, |text| text.parse().expect("a number of seconds"));
    let control = runtime("control");
    let clients = runtime("clients");
    println!(
        "{CLIENTS} clients, {DATA_BYTES} bytes of data, {time} s each; the control plane has one \
         thread and its store's, clients another"
    );
    for hosts in [1, CLIENTS] {
        let mut network = control.block_on(Network::start_with("west", |options| {
            options.timing.actor_lease = Duration::from_secs(1000);
        }));
        let members: Vec<Member> = control.block_on(async {
            let mut members = Vec::new();
            for number in 0..hosts {
                members.push(network.member("shop", &format!("shop-{number}")).await);
            }
            members
        });
        let writers = clients.block_on(enter_all(&members));
        for batch in [1, 16, 64] {
            measure(&clients, &writers, batch, Duration::from_secs_f64(time));
        }
        control.block_on(network.stop());
    }
}

fn runtime(name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
}

/// Lets every host enter, and waits until each holds its part.
async fn enter_all(members: &[Member]) -> Vec<Writer> {
    let parts: Vec<Held> = members.iter().map(|_| Held::default()).collect();
    for (member, held) in members.iter().zip(&parts) {
        let mut host = Host::open(member, Step::Enter(enter(1))).await;
        assert!(matches!(host.answer().await.unwrap(), Answer::Entered(_)));
        tokio::spawn(obey(host, held.clone()));
    }
    let counts = || parts.iter().map(|held| held.lock().unwrap().len());
    while counts().sum::<usize>() < SHARDS || counts().any(|held| held < SHARDS / members.len()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut writers = Vec::new();
    for (held, member) in parts.iter().zip(members) {
        let client = RemindersClient::new(member.channel().await);
        let held = Arc::new(held.lock().unwrap().clone());
        writers.push(Writer { client, life: 1, held });
    }
    writers
}

/// Carries out the orders that a host gets.
async fn obey(mut host: Host, held: Held) {
    while let Ok(Some(response)) = host.responses.message().await {
        match tollway_wire::order(&response).unwrap() {
            Some(Order::Grant { epoch, shards, .. }) => {
                host.held.extend(shards.iter().map(|shard| (shard, epoch)));
            }
            Some(Order::GiveBack { shards, .. }) => host.give_back(&shards).await,
            None => {}
        }
        *held.lock().unwrap() = host.held.clone();
    }
}

fn measure(clients: &Runtime, writers: &[Writer], batch: usize, time: Duration) {
    let stop = Arc::new(AtomicBool::new(false));
    let (began, cpu, all) = (Instant::now(), cpu(&CONTROL_THREADS), cpu(&[""]));
    let done = clients.block_on(async {
        let lanes = (0..CLIENTS).map(|lane| {
            let writer = &writers[lane % writers.len()];
            let (client, held) = (writer.client.clone(), writer.held.clone());
            tokio::spawn(write(client, writer.life, held, lane, batch, stop.clone()))
        });
        let lanes: Vec<_> = lanes.collect();
        tokio::time::sleep(time).await;
        stop.store(true, Ordering::Relaxed);
        let mut done = Vec::new();
        for lane in lanes {
            done.push(lane.await.unwrap());
        }
        done
    });
    let took = began.elapsed();
    let (control, all) = (self::cpu(&CONTROL_THREADS) - cpu, self::cpu(&[""]) - all);
    let reminders: usize = done.iter().map(|done| done.reminders).sum();
    let mut batches: Vec<Duration> = done.into_iter().flat_map(|done| done.took).collect();
    batches.sort();
    let at = |share: f64| batches[((batches.len() - 1) as f64 * share) as usize];
    let each = |time: Duration| time.as_secs_f64() * 1e6 / reminders as f64;
    println!(
        "{:>3} host(s), batches of {batch:>2}: {:>7.0} reminders/s; control plane {:.1} us CPU for \
         each, with clients {:.1}; a batch takes {:?} (p50), {:?} (p99)",
        writers.len(),
        reminders as f64 / took.as_secs_f64(),
        each(control),
        each(all),
        at(0.5),
        at(0.99),
    );
}

async fn write(
    mut client: RemindersClient<Channel>,
    life: u64,
    held: Arc<BTreeMap<Shard, Epoch>>,
    lane: usize,
    batch: usize,
    stop: Arc<AtomicBool>,
) -> Done {
    let mut ids = (0_u64..).map(|number| format!("actor-{lane}-{batch}-{number}"));
    let mut done = Done { reminders: 0, took: Vec::new() };
    while !stop.load(Ordering::Relaxed) {
        let mut changes = Vec::with_capacity(batch);
        while changes.len() < batch {
            let id = ids.next().expect("there is no end");
            if let Some(epoch) = held.get(&Shard::of(&id)) {
                changes.push(put(id, *epoch).into());
            }
        }
        let began = Instant::now();
        let request = v1::WriteRemindersRequest { life, changes };
        let results = client.write_reminders(request).await.unwrap().into_inner().results;
        done.took.push(began.elapsed());
        done.reminders += results.len();
        let is_done = |result: &v1::ReminderResult| {
            matches!(result.result, Some(v1::reminder_result::Result::Done(_)))
        };
        assert!(results.iter().all(is_done), "{results:?}");
    }
    done
}

fn put(actor_id: String, epoch: Epoch) -> ReminderChange {
    let terms = Terms::new("1h", "R5/PT10M", "");
    let now = Moment::from_unix_micros(1_769_860_800_000_000).expect("it is in 2026");
    let registration = Registration {
        schedule: terms.read(now).unwrap(),
        terms,
        data: vec![b'x'; DATA_BYTES],
        policy: FailurePolicy::default(),
    };
    let key = ReminderKey { actor_type: "cart".into(), actor_id, name: "pay".into() };
    ReminderChange::Put { key, epoch, registration, if_absent: false }
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
