//! Attacks on a network of real processes: what each costs its attacker and us, what it gets, and what
//! honest callers beside it notice.
//!
//! `cargo xtask proof attacks` runs `everything`. That each of these harms is prevented is held by a test
//! of its own elsewhere; these measure.

mod actors;
mod clock;
mod control;
mod evil_peer;
mod fabric;
mod gateway;
mod joined;
mod member;
mod sidecar;
mod world;

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tollway_testkit::cpu_time;
use tollway_tests::is_former;

use world::{Calls, Newcomers, Scene, World};

/// Where the record goes.
const RECORD: &str = "TOLLWAY_ATTACKED_RECORD";
/// Set for a short run.
const QUICK: &str = "TOLLWAY_ATTACKED_QUICK";
/// Names of attacks with commas between them, for some of them alone.
const ONLY: &str = "TOLLWAY_ATTACKED_ONLY";

/// How long an attack lasts, and how far it goes.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) time: Duration,
    /// For how long honest calls are measured before it, and looked after when it is over.
    calm: Duration,
    after: Duration,
    /// Honest calls a second: in the whole, enough for a percentile of each part.
    pub(crate) rate: u32,
    /// Connections, streams and the like are divided by that.
    divisor: usize,
}

impl Attack {
    const fn new(
        name: &'static str,
        attacker: &'static str,
        run: fn(&mut World, &Extent) -> Found,
    ) -> Self {
        let (scene, on_actors, restarts_control) = (Scene::Alone, false, false);
        Self { name, attacker, scene, on_actors, restarts_control, run }
    }

    const fn in_scene(self, scene: Scene) -> Self {
        Self { scene, ..self }
    }

    const fn on_actors(self) -> Self {
        Self { on_actors: true, ..self }
    }
}

impl Extent {
    const WHOLE: Self = Self {
        time: Duration::from_secs(6),
        calm: Duration::from_millis(5_500),
        after: Duration::from_secs(2),
        // A build without optimisation serves fewer.
        rate: if cfg!(debug_assertions) { 200 } else { 2_000 },
        divisor: 1,
    };
    const QUICK: Self = Self {
        time: Duration::from_secs(2),
        calm: Duration::from_secs(1),
        after: Duration::from_secs(1),
        rate: 100,
        divisor: 10,
    };

    /// So many of `whole`.
    pub(crate) fn of(&self, whole: usize) -> usize {
        (whole / self.divisor).max(1)
    }
}

/// One attack on a [`World`].
struct Attack {
    name: &'static str,
    attacker: &'static str,
    scene: Scene,
    /// Whether the honest calls are calls of actors.
    on_actors: bool,
    /// Whether it has the control plane start again: newcomers come after it.
    restarts_control: bool,
    run: fn(&mut World, &Extent) -> Found,
}

/// What an attack sent and got.
pub(crate) struct Found {
    /// What was sent, with its numbers.
    pub(crate) sent: String,
    /// What came of it.
    pub(crate) got: String,
    /// Promises that are broken.
    pub(crate) wrong: Vec<String>,
    /// Of itself it may cost so much of our processor time; `None` for what the scheduler gives.
    pub(crate) cores: Option<f64>,
    /// Of our memory, in bytes.
    pub(crate) growth: u64,
    /// What the attack still holds.
    pub(crate) held: Box<dyn Any>,
}

impl Found {
    pub(crate) fn new(sent: impl Into<String>, got: impl Into<String>) -> Self {
        Self {
            sent: sent.into(),
            got: got.into(),
            wrong: Vec::new(),
            cores: None,
            growth: 64 << 20,
            held: Box::new(()),
        }
    }

    /// Notes a broken promise unless `holds`.
    pub(crate) fn promise(mut self, holds: bool, else_wrong: impl Into<String>) -> Self {
        if !holds {
            self.wrong.push(else_wrong.into());
        }
        self
    }

    pub(crate) fn holding(self, held: impl Any) -> Self {
        Self { held: Box::new(held), ..self }
    }
}

/// A row of the record.
#[derive(Serialize, Debug)]
pub(crate) struct Row {
    pub(crate) attack: &'static str,
    pub(crate) attacker: &'static str,
    pub(crate) sent: String,
    pub(crate) got: String,
    /// Processors in use: by the attacker, by all of our processes without it, and beside it.
    pub(crate) attacker_cores: f64,
    pub(crate) calm_cores: f64,
    pub(crate) cores: f64,
    /// Resident memory of all our processes before it, and at most beside it.
    pub(crate) before_bytes: u64,
    pub(crate) most_bytes: u64,
    pub(crate) calm: Calls,
    pub(crate) beside: Calls,
    pub(crate) after: Calls,
    pub(crate) newcomers: Newcomers,
    pub(crate) wrong: Vec<String>,
}

#[derive(Serialize)]
struct Record {
    schema: &'static str,
    /// Of the honest app.
    calls_per_second: u32,
    rows: Vec<Row>,
    /// Attacks that this machine does not permit, and why.
    left_out: Vec<(&'static str, String)>,
}

/// An attack whose processes are no [`World`]; or why this machine does not permit it.
type Apart = (&'static str, fn(&Extent) -> Result<Row, String>);

fn all() -> impl Iterator<Item = &'static Attack> {
    let parts: [&[Attack]; 5] = [
        &control::ATTACKS,
        &gateway::ATTACKS,
        &actors::ATTACKS,
        &sidecar::ATTACKS,
        &joined::ATTACKS,
    ];
    parts.into_iter().flatten()
}

#[test]
#[ignore = "ten minutes, alone on the machine: `cargo xtask proof attacks` runs it"]
fn everything() {
    let extent = if std::env::var_os(QUICK).is_some() { Extent::QUICK } else { Extent::WHOLE };
    let only = std::env::var(ONLY).ok();
    let is_wanted =
        |name: &str| only.as_ref().is_none_or(|only| only.split(',').any(|one| one == name));
    let mut rows = Vec::new();
    for attack in all().filter(|attack| is_wanted(attack.name)) {
        rows.push(printed(weigh(attack, &extent)));
    }
    let mut left_out = Vec::new();
    let apart: [Apart; 3] = [
        (clock::NAME, clock::jump),
        (fabric::FORGED, fabric::forged),
        (fabric::SCAN, fabric::scan),
    ];
    for (name, run) in apart.into_iter().filter(|(name, _)| is_wanted(name)) {
        match run(&extent) {
            Ok(row) => rows.push(printed(row)),
            Err(why) => {
                println!("left out {name}: {why}");
                left_out.push((name, why));
            }
        }
    }
    let broken = rows.iter().filter(|row| !row.wrong.is_empty()).count();
    let record =
        Record { schema: "tollway.attacks/1", calls_per_second: extent.rate, rows, left_out };
    if let Some(path) = std::env::var_os(RECORD) {
        std::fs::write(path, serde_json::to_string_pretty(&record).unwrap()).unwrap();
    }
    // A former program is attacked to see the harm.
    assert!(broken == 0 || is_former(), "{broken} attacks broke a promise");
}

/// Honest calls without the attack, beside it and after it.
fn weigh(attack: &Attack, extent: &Extent) -> Row {
    let mut world = World::start(attack.scene);
    let calm_began = world.usage();
    let calm = Calls::of(world.load(attack.on_actors, extent.rate, extent.calm));
    let calm_cores = world.usage().cores_since(calm_began);
    world.reset_peaks();
    let before_bytes = world.resident();
    let own_before = cpu_time(std::process::id()).unwrap();
    let (began, usage) = (Instant::now(), world.usage());
    let load = world.load(attack.on_actors, extent.rate, extent.time);
    let (found, newcomers) = beside_newcomers(&mut world, attack, extent);
    let Found { sent, got, mut wrong, cores: most_cores, growth, held } = found;
    let beside = Calls::of(load);
    let cores = world.usage().cores_since(usage);
    let own = cpu_time(std::process::id()).unwrap().saturating_sub(own_before);
    let own = own.saturating_sub(newcomers.cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    let most_bytes = world.peak();
    drop(held);
    let after = Calls::of(world.load(attack.on_actors, extent.rate, extent.after));
    for (when, calls) in [("beside it", &beside), ("after it", &after)] {
        if calls.lost > 0 {
            wrong.push(format!("{} honest calls were lost {when}", calls.lost));
        }
    }
    if newcomers.failed > 0 {
        wrong.push(format!("{} newcomers failed: {}", newcomers.failed, newcomers.why));
    }
    // Without optimisation all work costs several times as much.
    let is_optimised = !cfg!(debug_assertions);
    if is_optimised && most_cores.is_some_and(|most| cores - calm_cores > most) {
        wrong.push(format!("it costs {:.2} processors", cores - calm_cores));
    }
    if most_bytes > before_bytes + growth {
        wrong.push(format!("memory grew by {} MiB", (most_bytes - before_bytes) >> 20));
    }
    Row {
        attack: attack.name,
        attacker: attack.attacker,
        sent,
        got,
        attacker_cores: own,
        calm_cores,
        cores,
        before_bytes,
        most_bytes,
        calm,
        beside,
        after,
        newcomers,
        wrong,
    }
}

/// Attacks while workloads join and the operator gives commands.
fn beside_newcomers(world: &mut World, attack: &Attack, extent: &Extent) -> (Found, Newcomers) {
    let (reach, began, stop) = (world.reach(), Instant::now(), AtomicBool::new(false));
    if attack.restarts_control {
        let found = (attack.run)(world, extent);
        stop.store(true, Ordering::Relaxed);
        return (found, Newcomers::until(&reach, &stop));
    }
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| Newcomers::until(&reach, &stop));
        let found = (attack.run)(world, extent);
        std::thread::sleep(extent.time.saturating_sub(began.elapsed()));
        stop.store(true, Ordering::Relaxed);
        (found, joining.join().unwrap())
    })
}

fn printed(row: Row) -> Row {
    let verdict = if row.wrong.is_empty() { "held" } else { "HARM" };
    println!(
        "{verdict} {} ({}): {} -> {}; honest {}-{} p99 {:.1?} -> {:.1?} ms; after {}-{}; newcomers \
         {}-{} longest {:.0} ms; cores {:.2} -> {:.2}, attacker {:.2}; {} -> {} MiB",
        row.attack,
        row.attacker,
        row.sent,
        row.got,
        row.beside.sent,
        row.beside.lost,
        row.calm.p99_ms,
        row.beside.p99_ms,
        row.after.sent,
        row.after.lost,
        row.newcomers.made,
        row.newcomers.failed,
        row.newcomers.longest_ms,
        row.calm_cores,
        row.cores,
        row.attacker_cores,
        row.before_bytes >> 20,
        row.most_bytes >> 20,
    );
    for wrong in &row.wrong {
        println!("         {wrong}");
    }
    row
}
