//! One cell of the matrix: a process is struck under load, and what that cost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;

use crate::reliability::caller::{Calls, Failure, Sent};
use crate::reliability::world::{Part, STRUCK, World};

/// Load before the blow.
const CALM: Duration = Duration::from_millis(1500);
/// Load after everything is in its place again.
const SETTLE: Duration = Duration::from_millis(2500);
/// How soon callers know of a death: their connections end with it, and they must get to run.
const NOTICE: Duration = Duration::from_millis(150);
/// Requests, one of each kind, that were handed to a connection whose end the app had not seen.
const UNSEEN: usize = 4;
/// How long a stopped process is suspended.
pub(crate) const PAUSE: Duration = Duration::from_secs(10);
/// An answer that took longer is no full service.
const SLOW: Duration = Duration::from_secs(1);
/// Requests sent so long after a blow that leaves other routes must not be late: a process that
/// ends announces it, one that dies takes its connections with it, and a control plane is not on
/// the route.
const NOTICED_MS: u64 = 2_000;
/// The limit for a suspended sidecar or gateway, which announces nothing: callers find out by
/// probes (half a second of silence, seen within a second, 1.5 s for the answer). Twice that.
const FOUND_OUT_MS: u64 = 6_000;
/// A suspended app resembles a slow one, since its sidecar answers for it: it gets a request
/// whenever the other replicas have as many under way. Of so many requests one may be late, until
/// it continues.
const ONE_LATE_OF: usize = 50;
/// The limit for the only route, from when it is back.
const CAUGHT_UP_MS: u64 = 2_000;
/// Failures written down one by one in a cell.
const SHOWN: usize = 20;

/// What is struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Victim {
    App,
    CalleeSidecar,
    CallerSidecar,
    GatewayNear,
    GatewayFar,
    ControlNear,
    ControlFar,
}

impl Victim {
    pub(crate) const ALL: [Self; 7] = [
        Self::App,
        Self::CalleeSidecar,
        Self::CallerSidecar,
        Self::GatewayNear,
        Self::GatewayFar,
        Self::ControlNear,
        Self::ControlFar,
    ];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::App => "app, one of two",
            Self::CalleeSidecar => "callee's sidecar, one of two",
            Self::CallerSidecar => "caller's sidecar, the only one",
            Self::GatewayNear => "gateway near, the busier of two",
            Self::GatewayFar => "gateway far, the busier of two",
            Self::ControlNear => "control plane near",
            Self::ControlFar => "control plane far",
        }
    }

    /// The processes that are struck together; of gateways the `busiest`.
    fn parts(self, world: &mut World, busiest: usize) -> Vec<&mut Part> {
        match self {
            // In both networks: the load goes to both.
            Self::App => {
                let World { near, far, .. } = world;
                vec![&mut far.replicas[STRUCK].app, &mut near.replicas[STRUCK].app]
            }
            Self::CalleeSidecar => {
                let World { near, far, .. } = world;
                let sidecars =
                    [far, near].into_iter().flat_map(|n| &mut n.replicas[STRUCK].sidecars);
                sidecars.collect()
            }
            Self::CallerSidecar => vec![&mut world.caller],
            Self::GatewayNear => vec![&mut world.near.gateways[busiest]],
            Self::GatewayFar => vec![&mut world.far.gateways[busiest]],
            Self::ControlNear => vec![&mut world.near.control],
            Self::ControlFar => vec![&mut world.far.control],
        }
    }

    /// Whether requests pass through it. A control plane is not on the route.
    fn carries(self) -> bool {
        !matches!(self, Self::ControlNear | Self::ControlFar)
    }

    /// Whether there is no other route while it is down.
    fn is_only_way(self) -> bool {
        self == Self::CallerSidecar
    }

    /// How long it stays away: a control plane long enough that one could mistake its network for
    /// lost, everything else as long as a supervisor takes.
    fn away(self) -> Duration {
        if self.carries() { Duration::from_millis(500) } else { Duration::from_secs(8) }
    }
}

/// How it is struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blow {
    Term,
    Kill,
    Stop,
}

impl Blow {
    pub(crate) const ALL: [Self; 3] = [Self::Term, Self::Kill, Self::Stop];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Term => "SIGTERM",
            Self::Kill => "SIGKILL",
            Self::Stop => "SIGSTOP 10 s",
        }
    }
}

/// What a blow cost.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) victim: &'static str,
    pub(crate) blow: &'static str,
    pub(crate) sent: usize,
    /// Under way when the process died.
    pub(crate) lost_in_flight: usize,
    /// Not accepted by any process, since the only route was closed.
    pub(crate) refused_at_listener: usize,
    /// Sent later, and failed all the same.
    pub(crate) lost_after: usize,
    /// Requests that were under way at the moment of the blow.
    pub(crate) in_flight: usize,
    /// Answered, but later than [`SLOW`].
    pub(crate) slow: usize,
    pub(crate) slowest_ms: u64,
    /// From the blow until nothing failed or was slow any more.
    pub(crate) full_service_after_ms: u64,
    /// From the blow until the process served again.
    pub(crate) back_after_ms: u64,
    pub(crate) bound: String,
    pub(crate) passed: bool,
    /// Failures by kind.
    pub(crate) failures: BTreeMap<String, usize>,
    /// Each failure, up to a limit: stream, when it was sent after the blow, how long it took, why.
    pub(crate) shown: Vec<(String, i64, u64, String)>,
}

/// The moments of a cell.
struct Moments {
    blow: Instant,
    /// The process is gone, or suspended.
    gone: Instant,
    /// It serves again.
    back: Instant,
}

/// Strikes under load and waits until everything is whole again.
pub(crate) fn strike(world: &mut World, victim: Victim, blow: Blow, rate_rps: u32) -> Outcome {
    let calls = Calls::start(&world.streams(rate_rps));
    let gateways =
        if victim == Victim::GatewayNear { &world.near.gateways } else { &world.far.gateways };
    let before: Vec<u64> = gateways.iter().map(relayed_bytes).collect();
    std::thread::sleep(CALM);
    // A blow on the one that carries nothing would prove nothing.
    let carried = gateways.iter().zip(before).map(|(part, before)| relayed_bytes(part) - before);
    let busiest = carried.enumerate().max_by_key(|(_, bytes)| *bytes).map_or(STRUCK, |(at, _)| at);
    let moments = carry_out(world, victim, blow, busiest);
    world.until_whole();
    std::thread::sleep(SETTLE);
    judge(victim, blow, &moments, &calls.stop())
}

fn relayed_bytes(gateway: &Part) -> u64 {
    gateway.metric("tollway_relayed_bytes_total")
}

fn carry_out(world: &mut World, victim: Victim, blow: Blow, busiest: usize) -> Moments {
    let away = victim.away();
    let mut parts = victim.parts(world, busiest);
    let at = Instant::now();
    match blow {
        Blow::Term => {
            parts.iter().for_each(|part| part.signal(Signal::TERM));
            parts.iter_mut().for_each(|part| part.ended());
        }
        Blow::Kill => parts.iter_mut().for_each(|part| part.kill()),
        Blow::Stop => parts.iter().for_each(|part| part.signal(Signal::STOP)),
    }
    let gone = Instant::now();
    if blow == Blow::Stop {
        std::thread::sleep(PAUSE);
        parts.iter().for_each(|part| part.signal(Signal::CONT));
    } else {
        // An operator who stops the only one starts the next at once.
        if !(blow == Blow::Term && victim.is_only_way()) {
            std::thread::sleep(away);
        }
        parts.iter_mut().for_each(|part| part.restart());
    }
    Moments { blow: at, gone, back: Instant::now() }
}

fn judge(victim: Victim, blow: Blow, moments: &Moments, sent: &[Sent]) -> Outcome {
    let mut outcome = Outcome {
        victim: victim.words(),
        blow: blow.words(),
        sent: sent.len(),
        lost_in_flight: 0,
        refused_at_listener: 0,
        lost_after: 0,
        in_flight: sent
            .iter()
            .filter(|one| one.at <= moments.gone && one.done > moments.blow)
            .count(),
        slow: 0,
        slowest_ms: 0,
        full_service_after_ms: 0,
        back_after_ms: millis(moments.back - moments.blow),
        bound: String::new(),
        passed: false,
        failures: BTreeMap::new(),
        shown: Vec::new(),
    };
    for one in sent {
        let took = one.done - one.at;
        let is_slow = one.failure.is_none() && took > SLOW;
        outcome.slow += usize::from(is_slow);
        outcome.slowest_ms = outcome.slowest_ms.max(millis(took));
        if is_slow || one.failure.is_some() {
            let after = one.at.saturating_duration_since(moments.blow);
            outcome.full_service_after_ms = outcome.full_service_after_ms.max(millis(after));
        }
        if let Some(failure) = &one.failure {
            outcome.note(victim, blow, moments, one, failure);
        }
    }
    (outcome.passed, outcome.bound) = outcome.verdict(victim, blow);
    outcome
}

impl Outcome {
    fn note(&mut self, victim: Victim, blow: Blow, moments: &Moments, one: &Sent, why: &Failure) {
        let while_down = one.at <= moments.back + NOTICE && one.done >= moments.blow;
        if victim.is_only_way() && *why == Failure::Refused && while_down {
            self.refused_at_listener += 1;
        } else if blow == Blow::Kill && one.at <= moments.gone + NOTICE && one.done >= moments.blow
        {
            self.lost_in_flight += 1;
        } else {
            self.lost_after += 1;
        }
        let words = why.words();
        *self.failures.entry(words.clone()).or_default() += 1;
        if self.shown.len() < SHOWN {
            let sent_ms = if one.at >= moments.blow {
                i64::try_from(millis(one.at - moments.blow)).unwrap()
            } else {
                -i64::try_from(millis(moments.blow - one.at)).unwrap()
            };
            self.shown.push((one.stream.to_owned(), sent_ms, millis(one.done - one.at), words));
        }
    }

    /// Whether the cost is within what was promised, and what that was.
    fn verdict(&self, victim: Victim, blow: Blow) -> (bool, String) {
        let (is_cheap, cost) = match blow {
            Blow::Term if victim.is_only_way() => {
                (self.lost_in_flight + self.lost_after == 0, "none that was taken".to_owned())
            }
            Blow::Kill if victim.carries() => (
                self.lost_after == 0 && self.lost_in_flight <= self.in_flight + UNSEEN,
                format!("in flight: {}", self.in_flight),
            ),
            Blow::Term | Blow::Kill | Blow::Stop => (self.lost() == 0, "none".to_owned()),
        };
        let after_back = self.back_after_ms + CAUGHT_UP_MS;
        let (limit_ms, late) = match blow {
            _ if victim.is_only_way() => {
                (after_back, format!("until {} after it is back", s(CAUGHT_UP_MS)))
            }
            Blow::Stop if victim == Victim::App => {
                (after_back, format!("one in {ONE_LATE_OF} until it goes on"))
            }
            Blow::Stop if victim.carries() => (FOUND_OUT_MS, format!("until {}", s(FOUND_OUT_MS))),
            Blow::Term | Blow::Kill | Blow::Stop => {
                (NOTICED_MS, format!("until {}", s(NOTICED_MS)))
            }
        };
        let is_in_time = self.full_service_after_ms <= limit_ms
            && (victim != Victim::App || self.slow * ONE_LATE_OF <= self.sent);
        (is_cheap && is_in_time, format!("{cost}; late {late}"))
    }

    pub(crate) fn lost(&self) -> usize {
        self.lost_in_flight + self.refused_at_listener + self.lost_after
    }

    /// One line for a person.
    pub(crate) fn line(&self) -> String {
        format!(
            "{:<6} {:<31} {:<13} sent {:>4}  lost {:>3} in flight, {:>3} at the listener, {:>3} after  slow {:>3} ({} ms)  full after {} ms, back after {} ms",
            if self.passed { "ok" } else { "FAILED" },
            self.victim,
            self.blow,
            self.sent,
            self.lost_in_flight,
            self.refused_at_listener,
            self.lost_after,
            self.slow,
            self.slowest_ms,
            self.full_service_after_ms,
            self.back_after_ms,
        )
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds in words.
fn s(millis: u64) -> String {
    format!("{} s", millis / 1_000)
}
