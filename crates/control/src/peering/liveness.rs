//! Which gateways of a joined network answer their probes, and when the next probes are due. Pure.
//!
//! A gateway that has answered nothing for [`SILENT_AFTER`] is silent. That leaves half a second after
//! a pause of one, and is within two with all that follows. A round trip of a probe with a connection
//! of its own fails often while packets are lost, so a gateway whose answers stay out is probed 50 times
//! a second: that all of those fail has a probability of one in 10^8 at a loss of 30 %.
//!
//! Time is counted in steps from one look to the next, and a step is at most [`LATE`] longer than was
//! planned: a process that stood still has received nothing, and draws no conclusion.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;
use tollway_identity::GatewayState;

/// From one probe of a gateway that answers to the next.
const EVERY: Duration = Duration::from_millis(200);
/// After so long without an answer it is probed more often.
const HURRY_AFTER: Duration = Duration::from_millis(400);
/// From one such probe to the next.
const HURRY_EVERY: Duration = Duration::from_millis(20);
/// After so long without an answer a gateway is silent.
const SILENT_AFTER: Duration = Duration::from_millis(1_700);
/// From one probe of a silent gateway to the next.
const SILENT_EVERY: Duration = Duration::from_millis(200);
/// How late a look may be before the process counts as having stood still.
const LATE: Duration = Duration::from_millis(50);
/// Probes of one gateway that are under way at once.
pub(super) const PROBES_LIMIT: usize = 96;

/// The gateways of one network, as their probes show them.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    gateways: BTreeMap<SocketAddr, Gateway>,
    /// Time that has passed, without that in which the process stood still.
    now: Duration,
    looked: Option<Instant>,
    /// How long until the next look was planned, from `looked` on.
    planned: Duration,
}

#[derive(Debug)]
struct Gateway {
    state: State,
    answered: Duration,
    probed: Option<Duration>,
    under_way: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Serving,
    Draining,
    Silent,
}

/// What callers may use of a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// These are passed over; the others take connections.
    Reachable { passed_over: Vec<SocketAddr> },
    /// No gateway answers.
    Silent,
}

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Gateways to probe. Each probe is [ended](Liveness::ended) once.
    pub(super) probes: Vec<SocketAddr>,
    /// Until the next look at the latest.
    pub(super) wait: Duration,
}

impl Liveness {
    /// Sets the gateways. One that is new counts as serving, and is judged from now on; with
    /// `is_silent` it has to answer first.
    pub(super) fn follow(
        &mut self,
        gateways: &[SocketAddr],
        is_silent: impl Fn(&SocketAddr) -> bool,
    ) {
        self.gateways.retain(|address, _| gateways.contains(address));
        for address in gateways {
            let (answered, is_silent) = (self.now, is_silent(address));
            self.gateways.entry(*address).or_insert_with(|| Gateway {
                state: if is_silent { State::Silent } else { State::Serving },
                answered,
                probed: None,
                under_way: 0,
            });
        }
    }

    /// Lets time pass, and gives what is due.
    pub(super) fn look(&mut self, now: Instant) -> Due {
        self.pass(now);
        let mut look = Due { probes: Vec::new(), wait: EVERY };
        for (address, gateway) in &mut self.gateways {
            let silence = self.now.saturating_sub(gateway.answered);
            if silence >= SILENT_AFTER {
                gateway.state = State::Silent;
            }
            let every = gateway.every(silence);
            let due = gateway.probed.map_or(self.now, |probed| probed + every);
            if due > self.now {
                look.wait = look.wait.min(due - self.now);
                continue;
            }
            look.wait = look.wait.min(every);
            if gateway.under_way < PROBES_LIMIT {
                gateway.under_way += 1;
                gateway.probed = Some(self.now);
                look.probes.push(*address);
            }
        }
        self.planned = look.wait;
        look
    }

    /// A probe has ended, with an answer or without.
    pub(super) fn ended(
        &mut self,
        address: SocketAddr,
        answer: Option<GatewayState>,
        now: Instant,
    ) {
        self.pass(now);
        let Some(gateway) = self.gateways.get_mut(&address) else { return };
        gateway.under_way = gateway.under_way.saturating_sub(1);
        let Some(answer) = answer else { return };
        gateway.answered = self.now;
        gateway.state = match answer {
            GatewayState::Serving => State::Serving,
            GatewayState::Draining => State::Draining,
        };
    }

    /// `None` without a gateway.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        let best = self.gateways.values().map(|gateway| gateway.state.rank()).min()?;
        if best == State::Silent.rank() {
            return Some(Verdict::Silent);
        }
        let worse = |gateway: &Gateway| gateway.state.rank() > best;
        let passed_over = self.gateways.iter().filter(|(_, gateway)| worse(gateway));
        Some(Verdict::Reachable { passed_over: passed_over.map(|(address, _)| *address).collect() })
    }

    fn pass(&mut self, now: Instant) {
        if let Some(looked) = self.looked.replace(now) {
            let passed = now.saturating_duration_since(looked);
            self.now += passed.min(self.planned + LATE);
            self.planned = self.planned.saturating_sub(passed);
        }
    }
}

impl Gateway {
    fn every(&self, silence: Duration) -> Duration {
        match self.state {
            State::Silent => SILENT_EVERY,
            State::Serving | State::Draining if silence >= HURRY_AFTER => HURRY_EVERY,
            State::Serving | State::Draining => EVERY,
        }
    }
}

impl State {
    /// Connections go to those of the lowest rank that there is.
    fn rank(self) -> u8 {
        match self {
            Self::Serving => 0,
            Self::Draining => 1,
            Self::Silent => 2,
        }
    }
}

#[cfg(test)]
mod tests;
