//! Hosts that come and go, crash, are suspended, or lose the control plane: no two turns of an
//! actor overlap, calls wait only as long as needed, and writes of a host that has lost its actors
//! are refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::app::{Log, check_around_a_lost_lease, turns};
use super::callers::{Callers, Waited};
use super::relay::Relay;
use super::{CONFIG, Replica, envelope, invoke, until_hosted};
use tollway_tests::mesh::{Mesh, PATIENCE};

/// Longer than a lease, and than what follows from its end.
const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(4);
/// The replica that is struck.
const STRUCK: &str = "struck";
/// Actors that are called all the time.
const ACTORS: usize = 24;
/// Of a type that hosts have which are not struck, called as well.
const BYSTANDERS: usize = 4;
/// Calls that are answered before a blow.
const UNDER_WAY: usize = 5 * ACTORS;
/// Rounds of everything, unless `TOLLWAY_ACTOR_ROUNDS` sets another number.
const ROUNDS: usize = 1;

/// What befalls a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Blow {
    /// It is there only now.
    Came,
    /// SIGTERM.
    Left,
    Killed,
    /// SIGSTOP, and SIGCONT once its lease is over.
    StoodStill,
    /// The control plane cannot be reached, and then it can.
    CutOff,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_turn_that_was_paused_writes_nothing() {
    paused_writes_nothing(&[]).await;
}

/// Starts with `options` for both hosts.
pub(crate) async fn paused_writes_nothing(options: &[&str]) {
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let one = Replica::with(&mesh.west, "cart", "one", CONFIG, &log, options).await;
    let two = Replica::with(&mesh.west, "cart", "two", CONFIG, &log, options).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    let listener = caller.http();
    until_hosted(listener, "Cart/0").await;
    let actor = one_of(listener, "one: ").await;
    let call = actor.clone();
    // Its turn begins, then its sidecar is suspended until the actor has had a turn at the other
    // host.
    let paused = tokio::spawn(async move { invoke(listener, &call, "late", "500 1").await });
    while turns(&log).iter().all(|turn| turn.what != "late") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    one.sidecar.process.signal(Signal::STOP).unwrap();
    let (status, text) = invoke(two.api(), &actor, "late", "0 2").await;
    assert_eq!((status, text.as_str()), (200, "204 No Content "));
    // The caller's error reports that the turn may have been carried out, after any suspension of
    // the host; the turn's, that nothing was written.
    let (status, text) = paused.await.unwrap();
    let (word, message) = envelope(&text);
    assert_eq!((status, word.as_str()), (500, "ERR_ACTOR_CUT_OFF"), "{text}");
    assert!(message.contains("the actor is at another host now"), "{message}");
    one.sidecar.process.signal(Signal::CONT).unwrap();
    let reported = Instant::now();
    while !turns(&log).iter().any(|turn| turn.body == "500 1" && turn.ended.is_some()) {
        assert!(reported.elapsed() < LONGER_THAN_A_LEASE, "the paused turn has not ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (_, text) = invoke(listener, &actor, "api", "GET /state/value ").await;
    assert_eq!(text, "200 OK 2");
}

/// An actor that lives where calls are answered so.
pub(crate) async fn one_of(listener: SocketAddr, answer: &str) -> String {
    for nth in 0..10_000 {
        let actor = format!("Cart/{}", nth % 50);
        if invoke(listener, &actor, "hello", "").await.1 == answer {
            return actor;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("no actor answers {answer}");
}

/// What strikes of one kind came to.
#[derive(Default)]
struct Outcome {
    answered: usize,
    failed: usize,
    /// The longest answered calls of each strike, and the longest failed ones.
    longest: Vec<Duration>,
    longest_failed: Vec<Duration>,
    /// Those of actors of another type.
    bystanders: Vec<Duration>,
}

impl Outcome {
    fn to_json(&self, blow: &str) -> serde_json::Value {
        let ms = |times: &[Duration]| {
            let mut times: Vec<u64> = times.iter().map(|time| time.as_millis() as u64).collect();
            times.sort_unstable();
            serde_json::json!({ "median": times[times.len() / 2], "most": times.last() })
        };
        serde_json::json!({
            "blow": blow,
            "strikes": self.longest.len(),
            "answered": self.answered,
            "failed": self.failed,
            "longest_ms": ms(&self.longest),
            "longest_failed_ms": ms(&self.longest_failed),
            "bystanders_ms": ms(&self.bystanders),
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_turns_overlap_whatever_befalls_a_host() {
    let rounds = std::env::var("TOLLWAY_ACTOR_ROUNDS").ok();
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let mesh = tokio::task::block_in_place(Mesh::start);
    let log = Log::default();
    let _stays = Replica::start(&mesh.west, "cart", "stays", CONFIG, &log).await;
    let shop = r#"{"entities":["Shop"]}"#;
    let _bystander = Replica::start(&mesh.west, "shop", "shop", shop, &Log::default()).await;
    let caller = tokio::task::block_in_place(|| mesh.west.caller(&[]));
    until_hosted(caller.http(), "Cart/0").await;
    until_hosted(caller.http(), "Shop/0").await;
    let mut outcomes: BTreeMap<Blow, Outcome> = BTreeMap::new();
    let mut turns_run = 0;
    for round in 0..rounds {
        for blow in [Blow::Came, Blow::Left, Blow::Killed, Blow::StoodStill, Blow::CutOff] {
            let (Waited { longest, longest_failed, answers }, others) =
                strike(&mesh, caller.http(), &log, blow).await;
            let good = answers.get("").copied().unwrap_or_default();
            let failed = answers.values().sum::<usize>() - good;
            eprintln!(
                "round {round}, {blow:?}: {good} calls answered, the longest waited {longest:?}, of \
                 another type {:?}; {failed} failed, the longest after {longest_failed:?}",
                others.longest
            );
            // Only calls under way at a host that is lost may fail, and their errors report it.
            let may_fail = if matches!(blow, Blow::Came | Blow::Left) { 0 } else { ACTORS };
            assert!(failed <= may_fail, "{answers:#?}");
            let is_told = |text: &String| text.is_empty() || text.contains("ERR_");
            assert!(answers.keys().all(is_told), "{answers:#?}");
            assert!(others.answers.keys().all(String::is_empty), "{:#?}", others.answers);
            check_around_a_lost_lease(&log, STRUCK);
            turns_run += turns(&log).len();
            turns(&log).clear();
            let outcome = outcomes.entry(blow).or_default();
            outcome.answered += good;
            outcome.failed += failed;
            outcome.longest.push(longest);
            outcome.longest_failed.push(longest_failed);
            outcome.bystanders.push(others.longest);
        }
    }
    if let Some(path) = std::env::var_os("TOLLWAY_ACTOR_RECORD") {
        let record = serde_json::json!({
            "rounds": rounds,
            "actors": ACTORS,
            "bystanders": BYSTANDERS,
            "turns": turns_run,
            // More would have ended the run.
            "overlapping_turns": 0,
            "outcomes":
                outcomes.iter().map(|(blow, of)| of.to_json(blow.word())).collect::<Vec<_>>(),
        });
        std::fs::write(path, record.to_string()).unwrap();
    }
}

impl Blow {
    fn word(self) -> &'static str {
        match self {
            Self::Came => "came",
            Self::Left => "left in good order",
            Self::Killed => "killed",
            Self::StoodStill => "stood still",
            Self::CutOff => "cut off from the control plane",
        }
    }
}

/// Strikes a host that has its share of the actors, while all are called; what callers of its type
/// waited for, and those of another.
async fn strike(mesh: &Mesh, listener: SocketAddr, log: &Log, blow: Blow) -> (Waited, Waited) {
    let relay = Relay::start(mesh.west.control_address).await;
    let come = || Replica::behind(&mesh.west, relay.address, "cart", STRUCK, CONFIG, log, &[]);
    let mut struck = None;
    if blow != Blow::Came {
        struck = Some(come().await);
        one_of(listener, "struck: ").await;
    }
    let callers = Callers::start(listener, "Cart", ACTORS);
    let bystanders = Callers::start(listener, "Shop", BYSTANDERS);
    callers.until_more_answered(UNDER_WAY).await;
    let mut struck = match struck {
        Some(struck) => struck,
        None => come().await,
    };
    match blow {
        Blow::Came => {}
        Blow::Left => leave(&mut struck),
        Blow::Killed => {
            struck.sidecar.process.kill().unwrap();
            tokio::time::sleep(LONGER_THAN_A_LEASE).await;
        }
        Blow::StoodStill => {
            struck.sidecar.process.signal(Signal::STOP).unwrap();
            tokio::time::sleep(LONGER_THAN_A_LEASE).await;
            struck.sidecar.process.signal(Signal::CONT).unwrap();
        }
        Blow::CutOff => {
            relay.cut(true);
            tokio::time::sleep(LONGER_THAN_A_LEASE).await;
            relay.cut(false);
        }
    }
    // A host that comes back takes its share again, and calls go on.
    if !matches!(blow, Blow::Left | Blow::Killed) {
        one_of(listener, "struck: ").await;
    }
    callers.until_more_answered(UNDER_WAY).await;
    let waited = (callers.end().await, bystanders.end().await);
    if !matches!(blow, Blow::Left | Blow::Killed) {
        leave(&mut struck);
    }
    // Turns under way end in its app.
    while turns(log).iter().any(|turn| turn.ended.is_none()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waited
}

fn leave(host: &mut Replica) {
    tokio::task::block_in_place(|| host.sidecar.process.terminate(PATIENCE).unwrap());
}
