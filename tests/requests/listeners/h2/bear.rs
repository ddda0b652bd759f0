//! What attacks cost both sides, and what an honest caller sees of them meanwhile.
//!
//! `cargo xtask proof transport` runs `everything` in a release build, alone on the machine; the
//! tests of the single listeners run the same attacks for a shorter time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tollway_testkit::{
    Process, cpu_time, peak_resident_bytes, reset_peak, resident_bytes, retry_until,
};

use super::attacks::{Named, attacks};
use super::{LISTENERS, Opened, STARVED, Stand};
use crate::listeners::listener::REFUSED;
use tollway_tests::h2_attacker::{Spent, attack};
use tollway_tests::network::metric;

/// The least time of each attack; it ends when it was refused, if it must be, and the other caller
/// has been answered as often as required.
pub(super) const SHORT: Duration = Duration::from_millis(100);
/// The least time of each attack for the published figures.
const LONG: Duration = Duration::from_secs(1);
/// Processor time that an attacker has used before its cost is measured, unless that takes longer
/// than `LONG`: less is too little for the clock's resolution.
const LEAST_SPENT: Duration = Duration::from_millis(1);
/// How long the other caller's calls are counted without an attack.
const QUIET: Duration = Duration::from_secs(1);
/// The other caller pauses between two calls, the attacker never. The attack may reduce the other's
/// rate by this factor at most, whatever a burst costs at first.
const MOST_SLOWED: f64 = 20.0;
/// Processor time that an attacker may cause per second of its own.
const MOST_CPU: f64 = 100.0;
/// How much more a process costs that was built without optimisation; an attacker's cost is the
/// kernel's for the most part.
const UNOPTIMISED: f64 = if cfg!(debug_assertions) { 3.0 } else { 1.0 };
/// How much longer such a listener holds up others, where it does nothing but parse.
const UNOPTIMISED_PARSING: f64 = if cfg!(debug_assertions) { 20.0 } else { 1.0 };
/// A process that uses less than a fifth of a processor in such a time, apart from the honest
/// caller's work, has processed the whole attack.
const SLICE: Duration = Duration::from_millis(50);
const BUSY: Duration = Duration::from_millis(10);

/// Attacks that the control plane's library takes without end.
const BORNE_BY_LIBRARY: [&str; 7] = [
    "the connection's window by single bytes",
    "PING",
    "SETTINGS",
    "PRIORITY",
    "unknown frames",
    "table and frame sizes",
    "window sizes of 100 streams",
];

/// Where the record goes; without it there is none.
const RECORD: &str = "TOLLWAY_ATTACKS_RECORD";

/// One attack on one listener.
#[derive(Serialize, Debug)]
pub(super) struct Outcome {
    attack: &'static str,
    listener: &'static str,
    /// What was sent, in words, and how much of it.
    unit: &'static str,
    sent: u64,
    sent_per_second: f64,
    connections: u32,
    /// Connections that the listener ended.
    ended: u32,
    /// Of all attacked processes, without the cost of the honest caller.
    cpu_ms: f64,
    attacker_cpu_ms: f64,
    /// What these processes grew by together.
    grown_bytes: u64,
    honest: Seen,
    pub(super) wrong: Vec<String>,
}

/// What the honest caller saw.
#[derive(Serialize, Debug)]
struct Seen {
    answers: usize,
    median_ms: f64,
    slowest_ms: f64,
}

/// How long each answer took that the honest caller got.
#[derive(Default)]
struct Answers(Mutex<Vec<Duration>>);

/// The honest caller's rate without an attack, and the cost of a call.
struct Quiet {
    rate: f64,
    cpu_each: f64,
}

/// An honest caller at work.
struct Caller<'a> {
    answers: &'a Answers,
    quiet: Quiet,
    /// Whether it got an invalid answer.
    is_gone: &'a dyn Fn() -> bool,
}

impl Answers {
    fn add(&self, took: Duration) {
        self.0.lock().unwrap().push(took);
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn since(&self, first: usize) -> Seen {
        let mut took = self.0.lock().unwrap()[first..].to_vec();
        took.sort_unstable();
        let millis = |took: Option<&Duration>| took.map_or(0.0, |took| took.as_secs_f64() * 1e3);
        let (median_ms, slowest_ms) = (millis(took.get(took.len() / 2)), millis(took.last()));
        Seen { answers: took.len(), median_ms, slowest_ms }
    }
}

impl Caller<'_> {
    /// Waits for the pending answer.
    fn until_answered(&self) {
        let before = self.answers.count();
        let is_answered = || (self.answers.count() > before || (self.is_gone)()).then_some(());
        retry_until(STARVED * 2, "the honest caller's answer", is_answered).unwrap();
    }

    /// The cost of `calls` of the honest caller alone, in seconds of a processor.
    fn cost(&self, calls: f64) -> f64 {
        calls * self.quiet.cpu_each
    }
}

/// Processor time and memory of all attacked processes.
pub(super) struct Scales<'a> {
    processes: Vec<&'a Process>,
    cpu: Duration,
    resident: Vec<u64>,
}

impl<'a> Scales<'a> {
    pub(super) fn set(processes: Vec<&'a Process>) -> Self {
        let resident = |process: &&Process| {
            reset_peak(process.pid()).unwrap();
            resident_bytes(process.pid()).unwrap()
        };
        let resident = processes.iter().map(resident).collect();
        Self { cpu: usage(&processes), processes, resident }
    }

    /// Seconds of a processor that were used since.
    fn used(&self) -> f64 {
        (usage(&self.processes) - self.cpu).as_secs_f64()
    }

    /// What each has grown by since.
    pub(super) fn grown(&self) -> Vec<u64> {
        let peak = |process: &&Process| peak_resident_bytes(process.pid()).unwrap();
        let peaks = self.processes.iter().map(peak);
        peaks.zip(&self.resident).map(|(peak, before)| peak.saturating_sub(*before)).collect()
    }

    /// Waits until all sent bytes are processed; false if that does not come to an end.
    fn until_rest(&self, caller: &Caller<'_>) -> bool {
        let usual = Duration::from_secs_f64(caller.cost(caller.quiet.rate) * SLICE.as_secs_f64());
        let rests = || {
            let before = usage(&self.processes);
            thread::sleep(SLICE);
            (usage(&self.processes) - before < BUSY + usual).then_some(())
        };
        retry_until(STARVED, "the end of the work for an attacker who has left", rests).is_ok()
    }
}

fn usage(processes: &[&Process]) -> Duration {
    processes.iter().map(|process| cpu_time(process.pid()).unwrap()).sum()
}

impl Stand {
    /// All attacks, each for `each` at least, while an honest caller calls; and its results.
    pub(super) fn bear(
        &self,
        listener: &'static str,
        each: Duration,
    ) -> (Vec<Outcome>, thread::Result<()>) {
        let (stop, answers) = (AtomicBool::new(false), Answers::default());
        thread::scope(|scope| {
            let honest = scope.spawn(|| self.call_honestly(&stop, &answers));
            let is_gone = || honest.is_finished();
            let quiet = self.quiet(&answers);
            let caller = Caller { answers: &answers, quiet, is_gone: &is_gone };
            let attacks = attacks(&self.target);
            let outcomes =
                attacks.iter().map(|named| self.bear_one(listener, named, each, &caller)).collect();
            stop.store(true, Ordering::Relaxed);
            (outcomes, honest.join())
        })
    }

    /// Calls until stopped, and notes how long each answer took, which must be a good one.
    fn call_honestly(&self, stop: &AtomicBool, answers: &Answers) {
        let mut call = self.honest.caller();
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            call();
            answers.add(began.elapsed());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn quiet(&self, answers: &Answers) -> Quiet {
        // Its first answer has come: it is under way.
        retry_until(STARVED, "a first answer", || (answers.count() > 0).then_some(())).unwrap();
        let (before, began) = (answers.count(), Instant::now());
        let scales = Scales::set(self.attacked());
        thread::sleep(QUIET);
        let calls = (answers.count() - before) as f64;
        assert!(calls > 0.0, "no answers without an attack");
        Quiet { rate: calls / began.elapsed().as_secs_f64(), cpu_each: scales.used() / calls }
    }

    fn bear_one(
        &self,
        listener: &'static str,
        named: &Named,
        each: Duration,
        caller: &Caller<'_>,
    ) -> Outcome {
        let is_control = self.attacked.is_empty();
        let is_borne = is_control && BORNE_BY_LIBRARY.contains(&named.name);
        let is_refused = named.is_refused && !is_borne;
        let refused = || metric(self.attacked()[0], REFUSED);
        let before = refused();
        let first = caller.answers.count();
        let began = Instant::now();
        // How often the other caller was answered, and would have been without an attack.
        let calls = || {
            let usual = caller.quiet.rate * began.elapsed().as_secs_f64();
            ((caller.answers.count() - first) as f64, usual)
        };
        let own = own_clock();
        let is_over = |spent: &Spent| {
            let long = began.elapsed();
            let is_weighty = own_clock() - own >= LEAST_SPENT || long > LONG;
            let is_done = (spent.ended > 0 || !is_refused) && !is_starved(calls());
            (long > each && is_weighty && (is_done || (caller.is_gone)())) || long > STARVED
        };
        let scales = Scales::set(self.attacked());
        let spent = attack(&self.aim, &named.attack, &is_over);
        let (answered, usual) = calls();
        let is_at_rest = scales.until_rest(caller);
        let caused = (scales.used() - caller.cost(calls().0)).max(0.0);
        caller.until_answered();
        let grown = scales.grown();
        let mut wrong = weighed(named, &spent, caused, &grown);
        let mut must = |holds: bool, otherwise: &dyn Fn() -> String| {
            wrong.extend((!holds).then(otherwise));
        };
        must(is_at_rest, &|| format!("works for it {STARVED:?} after the attacker has left"));
        must(!is_starved((answered, usual)), &|| {
            format!("the other caller was answered {answered} times, not {usual:.0}")
        });
        must(!(caller.is_gone)(), &|| "the other caller did not get a good answer".to_owned());
        must(!is_refused || spent.ended > 0, &|| format!("never refused: {spent:?}"));
        must(!is_refused || refused() > before, &|| "not counted".to_owned());
        let (unit, frames) = named.unit;
        let sent = spent.frames / frames;
        let outcome = Outcome {
            attack: named.name,
            listener,
            unit,
            sent,
            sent_per_second: sent as f64 / spent.lasted.as_secs_f64(),
            connections: spent.connections,
            ended: spent.ended,
            cpu_ms: caused * 1e3,
            attacker_cpu_ms: spent.cpu.as_secs_f64() * 1e3,
            grown_bytes: grown.iter().sum(),
            honest: caller.answers.since(first),
            wrong,
        };
        outcome.print(usual);
        outcome
    }
}

/// What this thread has used of a processor, at a glance.
fn own_clock() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap()
}

fn is_starved((calls, usual): (f64, f64)) -> bool {
    calls * MOST_SLOWED * UNOPTIMISED_PARSING < usual
}

/// What an attack cost that it must not.
fn weighed(named: &Named, spent: &Spent, caused: f64, grown: &[u64]) -> Vec<String> {
    let ratio = caused / spent.cpu.as_secs_f64();
    // Of all of them together where they are what is shipped.
    let processes = if cfg!(debug_assertions) { grown.len() as f64 } else { 1.0 };
    let is_dear = ratio > MOST_CPU * UNOPTIMISED * processes;
    let dear = is_dear.then(|| format!("caused {ratio:.0} times its own cost in CPU"));
    let has_grown = |grown: &&u64| **grown > named.most_growth;
    let large = grown.iter().filter(has_grown);
    dear.into_iter().chain(large.map(|by| format!("made a process grow by {by} bytes"))).collect()
}

impl Outcome {
    fn print(&self, usual: f64) {
        let Self { attack, listener, unit, sent, sent_per_second: rate, honest, .. } = self;
        let (cpu, own) = (self.cpu_ms, self.attacker_cpu_ms);
        eprintln!(
            "{attack:44} {listener:24} x{:<5.1} cpu {cpu:.0}/{own:.0} ms, grown {} KiB; {sent} {unit}, \
             {rate:.0}/s, {} of {} connections ended; honest {} (usual {usual:.0}), median {:.1} ms, \
             slowest {:.1} ms{}",
            cpu / own,
            self.grown_bytes >> 10,
            self.ended,
            self.connections,
            honest.answers,
            honest.median_ms,
            honest.slowest_ms,
            if self.wrong.is_empty() { "" } else { " FAIL" },
        );
    }
}

/// All attacks on one listener; each as short as it may be.
#[track_caller]
pub(super) fn check(listener: &str) {
    let (name, open) = LISTENERS.into_iter().find(|(name, _)| *name == listener).unwrap();
    let (outcomes, honest) = open().bear(name, SHORT);
    let wrong: Vec<_> = outcomes.iter().filter(|outcome| !outcome.wrong.is_empty()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    honest.expect("the honest caller is undisturbed");
}

/// Everything that a whole run measured.
#[derive(Serialize)]
struct Record {
    schema: &'static str,
    outcomes: Vec<Outcome>,
}

#[test]
#[ignore = "minutes, alone on the machine: `cargo xtask proof transport` runs it"]
fn everything() {
    let of_listener = |(name, open): Opened| open().bear(name, LONG).0;
    let outcomes: Vec<_> = LISTENERS.into_iter().flat_map(of_listener).collect();
    let failed = outcomes.iter().filter(|outcome| !outcome.wrong.is_empty()).count();
    let record = Record { schema: "tollway.attacks/1", outcomes };
    if let Some(path) = std::env::var_os(RECORD) {
        std::fs::write(path, serde_json::to_string_pretty(&record).unwrap()).unwrap();
    }
    assert_eq!(failed, 0, "so many promises were broken");
}
