//! Inbound requests: who may call the app, how many requests it has at one time, and which caller is
//! next. The stages of every request, in `outbound`, call these for requests of the inbound listener.
//!
//! The stages in order: [`policy`] (and, for call traces, [`why_admitted`]), [`rate`],
//! [`concurrency`], [`fairness`]; [`tcp`] for connections that carry bytes. [`PolicyGate`] owns what is known of policies,
//! [`AppQueue`] which requests the app has and which wait.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most places ask for the one or two roles of a connection that concern them"
)]

pub(crate) mod concurrency;
pub(crate) mod fairness;
pub(crate) mod policy;
mod rate;
pub(crate) mod tcp;
pub(crate) mod why_admitted;

use std::time::{Duration, Instant};

use tollway_model::traffic_policy::Shedding;
use tollway_routing::LoadShedding;

use crate::runtime_protocol::TurnLease;
use concurrency::ConcurrencyLimit;
use fairness::FairQueue;
pub(crate) use policy::{PolicyDenial, PolicyGate, Rights, Upgraded};
pub(crate) use rate::{CountedRequest, RateGate, Rated, ReplicaRates};

/// The requests that the app has, those that wait for it, and the lease of its actors.
#[derive(Default)]
pub(crate) struct AppQueue {
    concurrency: ConcurrencyLimit,
    fair_queue: FairQueue,
    lease: TurnLease,
    /// By a traffic policy, with what requests have waited.
    shedding: Option<(Shedding, LoadShedding)>,
}

impl AppQueue {
    /// The lease under which turns of actors are sent to the app.
    pub(crate) fn lease(&self) -> TurnLease {
        self.lease
    }

    /// The lease lasts longer than was known.
    pub(crate) fn renew(&mut self, lease: TurnLease) {
        self.lease = lease;
    }

    /// Requests that wait in vain are refused from now on as the rule has it.
    pub(crate) fn set_shedding(&mut self, rule: Option<Shedding>, now: Instant) {
        if self.shedding.as_ref().map(|(rule, _)| *rule) != rule {
            self.shedding = rule.map(|rule| (rule, LoadShedding::new(rule, now)));
        }
    }

    /// Whether a request that came at `started`, and has a connection to the app, is refused: how long
    /// it has waited.
    #[inline]
    pub(crate) fn sheds(&mut self, started: Instant, now: Instant) -> Option<Duration> {
        let (rule, waits) = self.shedding.as_mut()?;
        let waited = now.saturating_duration_since(started);
        waits.refuses(waited, *rule, now).then_some(waited)
    }

    /// Whether a request may go to the app without waiting for anything to happen. `ended` exchanges are
    /// over.
    pub(crate) fn is_due(&self, ended: u64) -> bool {
        self.concurrency.is_due() || self.fair_queue.is_due(ended)
    }
}
