//! Networks that fall silent, over links that stand still and lose packets: what is withdrawn, how soon,
//! and what never is.
//!
//! `cargo xtask proof failover` runs `everything` and keeps what it measured; the other tests are a
//! round or two of it.

mod world;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;
use tollway_testkit::{need_right, retry_until};
use world::{East, PATIENCE, World};

/// The promises.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(2);
const BACK_WITHIN: Duration = Duration::from_secs(1);
/// The same of a network that only dials out: its gateways have to open reverse connections again.
const REOPENED_WITHIN: Duration = Duration::from_secs(8);
/// Until calls of a service in any network are served by the next one, and by the first one again.
const CARRIED_WITHIN: Duration = Duration::from_secs(4);
const AGAIN_WITHIN: Duration = Duration::from_secs(3);
/// Longest pause that withdraws nothing.
const PAUSE: Duration = Duration::from_secs(1);
/// Loss, each way, that withdraws nothing, and how long it lasts.
const LOSS: f64 = 0.3;
const LOSSY_FOR: Duration = Duration::from_secs(10);
/// How long after a fault nothing may be withdrawn for it: longer than it takes to find a network silent.
const AFTERMATH: Duration = Duration::from_millis(2_500);

const ROUNDS: &str = "TOLLWAY_FAILOVER_ROUNDS";
const RECORD: &str = "TOLLWAY_FAILOVER_RECORD";

/// What befalls a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The link loses everything.
    Cut,
    /// Both gateways of the other network stand still.
    GatewaysStopped,
    /// One of two does.
    OneGatewayStopped,
    /// The link loses everything for a second.
    CutForASecond,
    /// Both gateways stand still for a second.
    GatewaysStoppedForASecond,
    /// The own control plane stands still for three seconds.
    ControlStopped,
    /// The control plane of the other network stands still for longer than a loss takes to be found.
    OtherControlStopped,
    /// The link loses three of ten packets each way for ten seconds.
    Lossy,
    /// The link loses everything, and calls are of a service that both networks serve.
    CutUnderFailover,
    /// All gateways of the other network stand still under such calls.
    GatewaysStoppedUnderFailover,
}

/// What one round showed.
#[derive(Debug, Serialize)]
struct Round {
    /// From the fault to the first answer that the network cannot be reached, or to the moment from which
    /// on the gateway is passed over.
    found_after_ms: Option<u64>,
    /// From the end of the fault to the first call that is answered.
    back_after_ms: Option<u64>,
    /// Times that the network was withdrawn.
    withdrawn: u64,
    /// Calls that were not served by either network, of those that either may serve.
    failed: Option<usize>,
    passed: bool,
}

impl Default for Round {
    fn default() -> Self {
        let (found_after_ms, back_after_ms, failed) = (None, None, None);
        Self { found_after_ms, back_after_ms, withdrawn: 0, failed, passed: true }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    fault: String,
    east: String,
    rounds: Vec<Round>,
}

impl Fault {
    const ALL: [Self; 10] = [
        Self::Cut,
        Self::GatewaysStopped,
        Self::OneGatewayStopped,
        Self::CutForASecond,
        Self::GatewaysStoppedForASecond,
        Self::ControlStopped,
        Self::OtherControlStopped,
        Self::Lossy,
        Self::CutUnderFailover,
        Self::GatewaysStoppedUnderFailover,
    ];

    fn round(self, world: &mut World) -> Round {
        let before = world.withdrawals();
        let mut round = Round::default();
        match self {
            Self::Cut => {
                world.lose(1.0);
                self.is_withdrawn(world, &mut round, |world| world.lose(0.0));
            }
            Self::GatewaysStopped => {
                world.signal_gateways(Signal::STOP);
                self.is_withdrawn(world, &mut round, |world| world.signal_gateways(Signal::CONT));
            }
            Self::OneGatewayStopped => {
                world.second.signal(Signal::STOP).unwrap();
                let found = until_passed_over(world, 1);
                world.until_served();
                world.second.signal(Signal::CONT).unwrap();
                let back = until_passed_over(world, 0);
                round.found_after_ms = Some(millis(found));
                round.back_after_ms = Some(millis(back));
                round.passed = found <= WITHDRAWN_WITHIN && back <= BACK_WITHIN;
            }
            Self::CutForASecond => {
                world.lose(1.0);
                std::thread::sleep(PAUSE);
                world.lose(0.0);
            }
            Self::GatewaysStoppedForASecond => {
                world.signal_gateways(Signal::STOP);
                std::thread::sleep(PAUSE);
                world.signal_gateways(Signal::CONT);
            }
            Self::ControlStopped => {
                world.mesh().west.control.signal(Signal::STOP).unwrap();
                std::thread::sleep(PAUSE * 3);
                world.mesh().west.control.signal(Signal::CONT).unwrap();
            }
            Self::OtherControlStopped => {
                world.mesh().east.control.signal(Signal::STOP).unwrap();
                std::thread::sleep(AFTERMATH);
                world.until_served();
                world.mesh().east.control.signal(Signal::CONT).unwrap();
            }
            Self::Lossy => {
                world.lose(LOSS);
                std::thread::sleep(LOSSY_FOR);
                world.lose(0.0);
            }
            Self::CutUnderFailover => {
                carry_over(world, &mut round, |world, is_lost| {
                    world.lose(if is_lost { 1.0 } else { 0.0 });
                });
            }
            Self::GatewaysStoppedUnderFailover => {
                carry_over(world, &mut round, |world, is_lost| {
                    world.signal_gateways(if is_lost { Signal::STOP } else { Signal::CONT });
                });
            }
        }
        if !self.may_withdraw() {
            std::thread::sleep(AFTERMATH);
        }
        world.until_served();
        round.withdrawn = world.withdrawals() - before;
        round.passed &= round.withdrawn == u64::from(self.may_withdraw());
        println!("{:?}, {self:?}: {round:?}", world.kind);
        round
    }

    /// Those that a network of this kind can meet.
    fn of(east: East) -> impl Iterator<Item = Self> {
        // To west the gateways of a network that only dials out are one.
        let is_met = move |fault: &Self| east == East::Dialled || *fault != Self::OneGatewayStopped;
        Self::ALL.into_iter().filter(is_met)
    }

    fn may_withdraw(self) -> bool {
        matches!(
            self,
            Self::Cut
                | Self::GatewaysStopped
                | Self::CutUnderFailover
                | Self::GatewaysStoppedUnderFailover
        )
    }

    fn is_withdrawn(self, world: &mut World, round: &mut Round, mend: impl FnOnce(&mut World)) {
        let found = world.until_refused();
        mend(world);
        let back = world.until_served();
        round.found_after_ms = Some(millis(found));
        round.back_after_ms = Some(millis(back));
        let back_within = match world.kind {
            East::Dialled => BACK_WITHIN,
            East::DialsOut => REOPENED_WITHIN,
        };
        round.passed = found <= WITHDRAWN_WITHIN && back <= back_within;
    }
}

/// Has east lost and back under calls that east serves first, and west where east does not.
fn carry_over(world: &mut World, round: &mut Round, set_lost: impl Fn(&mut World, bool)) {
    let withdrawn = world.withdrawals();
    world.until_any_served_by(true);
    set_lost(world, true);
    let found = world.until_any_served_by(false);
    // Also where callers find it before their control plane does.
    let is_withdrawn = || (world.withdrawals() > withdrawn).then_some(());
    retry_until(PATIENCE, "the network being withdrawn", is_withdrawn).unwrap();
    let meanwhile = world.until_any_served_by(false);
    set_lost(world, false);
    let back = world.until_any_served_by(true);
    let failed = [&found.failed[..], &meanwhile.failed, &back.failed].concat();
    for answer in &failed {
        println!("         failed: {answer:?}");
    }
    round.found_after_ms = Some(millis(found.after));
    round.back_after_ms = Some(millis(back.after));
    round.failed = Some(failed.len());
    let again_within = match world.kind {
        East::Dialled => AGAIN_WITHIN,
        East::DialsOut => REOPENED_WITHIN,
    };
    round.passed = failed.is_empty() && found.after <= CARRIED_WITHIN && back.after <= again_within;
}

fn until_passed_over(world: &World, count: u64) -> Duration {
    let began = Instant::now();
    retry_until(PATIENCE, "the gateways that are passed over", || {
        std::thread::sleep(Duration::from_millis(20));
        (world.passed_over() == count).then_some(())
    })
    .unwrap();
    began.elapsed()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn rounds(world: &mut World, fault: Fault, count: usize) -> Row {
    let rounds = (0..count).map(|_| fault.round(world)).collect();
    Row { fault: format!("{fault:?}"), east: format!("{:?}", world.kind), rounds }
}

fn a_round_of_each(world: &mut World) {
    for fault in Fault::of(world.kind) {
        let row = rounds(world, fault, 1);
        // Times are those of a busy machine; what is withdrawn is not.
        let wrong = row.rounds.iter().filter(|round| {
            round.withdrawn != u64::from(fault.may_withdraw())
                || round.failed.is_some_and(|failed| failed > 0)
                || round.found_after_ms.is_some_and(|found| found > 5_000)
        });
        assert_eq!(wrong.count(), 0, "{row:?}");
    }
}

#[test]
fn networks_are_withdrawn_when_all_gateways_are_silent_and_not_for_less() {
    a_round_of_each(&mut need_right!(World::start(1, East::Dialled)));
}

#[test]
fn networks_that_only_dial_out_are_withdrawn_when_they_are_silent_and_not_for_less() {
    a_round_of_each(&mut need_right!(World::start(5, East::DialsOut)));
}

/// Worlds side by side: most of a round is waiting. Twice as many keep two cores so busy that times are
/// those of the machine.
const WORLDS: usize = 10;

#[test]
#[ignore = "minutes: `cargo xtask proof failover` runs it"]
fn everything() {
    let count = std::env::var(ROUNDS).ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let worlds = WORLDS.min(count * 2);
    let all: Vec<Vec<Row>> = std::thread::scope(|scope| {
        let run = |at: usize| {
            scope.spawn(move || {
                let kind = if at.is_multiple_of(2) { East::Dialled } else { East::DialsOut };
                let mut world = World::start(20_261_128 + 1_000_000 * at as u64, kind).unwrap();
                let share = count * 2 / worlds;
                Fault::of(kind).map(|fault| rounds(&mut world, fault, share)).collect()
            })
        };
        let running: Vec<_> = (0..worlds).map(run).collect();
        running.into_iter().map(|world| world.join().unwrap()).collect()
    });
    let mut rows: Vec<Row> = Vec::new();
    for row in all.into_iter().flatten() {
        match rows.iter_mut().find(|known| known.fault == row.fault && known.east == row.east) {
            Some(known) => known.rounds.extend(row.rounds),
            None => rows.push(row),
        }
    }
    if let Some(path) = std::env::var_os(RECORD) {
        std::fs::write(path, serde_json::to_string_pretty(&rows).unwrap()).unwrap();
    }
    let failed = rows.iter().flat_map(|row| &row.rounds).filter(|round| !round.passed).count();
    assert_eq!(failed, 0, "so many rounds broke a promise");
}
