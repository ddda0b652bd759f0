//! Traffic policies: how calls of a service share its replicas and meet its failures, and how many of
//! them it takes.
//!
//! A policy belongs to a namespace and is about one of its services, or all of them. A part that a
//! policy does not have is that of the policy for all services of the namespace, and otherwise the
//! default; so a policy for one service takes the place of the general one part by part.
//!
//! Some parts hold at the sidecars of callers: `balancing`, `locality`, `slow_start`, `outlier`,
//! `panic_percent`, `faults`. Each caller's sidecar decides by what it sees itself. The others hold at
//! the sidecar of each replica: `rate`, `concurrency_per_caller`, `shedding`. What a replica admits is
//! so many times as many for the service as it has replicas. This module validates one policy; `routing`
//! decides.

use std::time::Duration;

use thiserror::Error;

use crate::locality::Level;
use crate::mode::Mode;
use crate::name::{AppId, ServiceName};
use crate::object::ObjectName;
use crate::policy::{CallerPattern, PolicyScope};
use crate::route::WHOLE_SHARE;

/// Limits for particular callers, or faults, of one traffic policy.
pub const TRAFFIC_ENTRIES_LIMIT: usize = 64;
/// Callers of one entry.
pub const TRAFFIC_CALLERS_LIMIT: usize = 16;
/// Most requests in the time of a rate limit, and the largest burst.
pub const RATE_REQUESTS_LIMIT: u32 = 1_000_000;
/// Longest time of a rate limit.
pub const RATE_PERIOD_LIMIT: Duration = Duration::from_secs(60 * 60);
/// Longest time of an ejection, of an interval, of a slow start or of a decay.
pub const TRAFFIC_TIME_LIMIT: Duration = Duration::from_secs(60 * 60);
/// Most requests by which a near replica is ahead before others go further.
pub const LOCALITY_SPILL_OVER_LIMIT: u32 = 1_000_000;
/// Longest delay that a fault adds.
pub const FAULT_DELAY_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Why a traffic policy was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TrafficPolicyError {
    #[error("the policy has no parts, so it changes nothing")]
    NoParts,
    #[error(
        "in shadow mode a policy has no other parts than `rate` and `concurrencyPerCaller`: the others refuse nothing"
    )]
    ShadowPart,
    #[error("the policy has limits in shadow mode beside its parts; it has a mode for all of them")]
    ShadowOfCombined,
    #[error("`{field}` has {count} entries; at most {limit} are accepted")]
    TooMany { field: &'static str, count: usize, limit: usize },
    #[error("an entry of `{field}` names no callers in `from`")]
    NoCallers { field: &'static str },
    #[error("`{field}` is {percent}; at most 100 are accepted")]
    Percent { field: &'static str, percent: u32 },
    #[error("`{field}` is zero")]
    Zero { field: &'static str },
    #[error("`{field}` is longer than {} s", limit.as_secs())]
    TooLong { field: &'static str, limit: Duration },
    #[error("`{field}` is {number}; at most {limit} are accepted")]
    TooLarge { field: &'static str, number: u32, limit: u32 },
    #[error("`locality.threshold` is {percent}; 1 to 100 are accepted")]
    Threshold { percent: u32 },
    #[error(
        "`locality.spillOver.requestsPerReplica` is {number}; 1 to {LOCALITY_SPILL_OVER_LIMIT} are accepted"
    )]
    SpillOver { number: u32 },
    #[error("`outlier.ejection` is longer than `outlier.longestEjection`")]
    Ejection,
    #[error("`outlier.deviations` is {thousandths} thousandths; 500 to 10000 are accepted")]
    Deviations { thousandths: u32 },
    #[error("`rate` limits nothing: it has none of `service`, `caller` and `callers`")]
    NoRate,
    #[error("`{field}` is more than a request each microsecond")]
    TooFast { field: &'static str },
    #[error("a share of {share} millionths is larger than the whole")]
    Share { share: u32 },
    #[error("a fault has neither `delay` nor `abort`")]
    NoFault,
    #[error("`abort.status` is {status}; 400 to 599 are accepted")]
    AbortStatus { status: u16 },
    #[error("`abort.grpcStatus` is {status}; 1 to 16 are accepted")]
    AbortGrpcStatus { status: u8 },
}

/// Which services a traffic policy is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TrafficTarget {
    /// One service of the policy's namespace.
    App(AppId),
    /// Every service of the policy's namespace.
    Namespace,
}

/// By what a replica is chosen for a request: of two that are drawn, the one that costs less.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Balancing {
    /// The one with fewer requests under way.
    #[default]
    LeastRequests,
    /// The one at which a request is expected to take less time, by the times that responses took, of
    /// which a peak counts at once and is forgotten over `decay`.
    PeakEwma { decay: Duration },
}

impl Balancing {
    /// What `decay` is where none is named.
    pub const DECAY: Duration = Duration::from_secs(10);
}

/// Replicas near the caller are preferred: those of its zone, then those of its region, then all others
/// of its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalityRules {
    /// The nearest level that counts; with [`Level::Network`] none is preferred.
    pub prefer: Level,
    /// The replicas of a level take all requests while so many percent of them are healthy; with fewer,
    /// the next level takes a share.
    pub threshold: u32,
    /// A request goes to the next level if that has a replica with so many fewer requests of the same
    /// data thread under way.
    pub spill_over: u32,
}

impl LocalityRules {
    /// What holds where a policy names no more than that near replicas are preferred.
    pub const DEFAULT: Self = Self { prefer: Level::Zone, threshold: 70, spill_over: 10 };
}

/// Replicas that fail get no requests for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outlier {
    /// A replica is ejected after so many failures without a success between them; 0 for never.
    pub consecutive_failures: u32,
    /// A replica that fails more often than the others is ejected.
    pub success_rate: Option<SuccessRate>,
    /// How long the first ejection of a replica lasts; the second lasts twice as long, the third three
    /// times. After a time of this length without an ejection one of them is forgotten.
    pub ejection: Duration,
    pub longest_ejection: Duration,
    /// At most this part of the replicas is ejected at one time.
    pub max_ejected_percent: u32,
}

impl Outlier {
    /// What holds where a policy names no more than that there is outlier ejection.
    pub const DEFAULT: Self = Self {
        consecutive_failures: 5,
        success_rate: None,
        ejection: Duration::from_secs(30),
        longest_ejection: Duration::from_secs(5 * 60),
        max_ejected_percent: 50,
    };
}

/// When a replica fails more often than the others: its part of requests that succeed is so many
/// standard deviations below the mean of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SuccessRate {
    /// Requests are counted over times of this length.
    pub interval: Duration,
    /// Replicas with fewer requests in an interval are not compared.
    pub min_requests: u32,
    /// Fewer replicas are not compared.
    pub min_replicas: u32,
    /// In thousandths.
    pub deviations: u32,
}

impl SuccessRate {
    /// What holds where a policy names no more than that success rates are compared.
    pub const DEFAULT: Self = Self {
        interval: Duration::from_secs(10),
        min_requests: 100,
        min_replicas: 5,
        deviations: 1900,
    };
}

/// At most so many requests in a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimit {
    pub requests: u32,
    pub per: Duration,
    /// Requests that may come at once after a pause.
    pub burst: u32,
}

impl RateLimit {
    /// The burst where none is named: a tenth of the requests.
    #[must_use]
    pub fn usual_burst(requests: u32) -> u32 {
        (requests / 10).max(1)
    }
}

/// A limit for each of some callers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallerRate {
    /// Any of these callers.
    pub from: Vec<CallerPattern>,
    pub limit: RateLimit,
}

/// How many requests each replica takes. A request over a limit is refused with 429, or with
/// `RESOURCE_EXHAUSTED` of gRPC, and a `Retry-After`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rate {
    /// Of all callers together.
    pub service: Option<RateLimit>,
    /// Of each identity, all its replicas together, that none of `callers` names.
    pub caller: Option<RateLimit>,
    /// Of each identity that an entry names; the first one that does holds.
    pub callers: Vec<CallerRate>,
}

/// Requests that have waited for the app are refused while it does not keep up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shedding {
    /// The wait that is not too long; while every request waits longer, requests are refused.
    pub target: Duration,
    /// For how long every request has to wait longer before any is refused.
    pub interval: Duration,
}

impl Shedding {
    /// What holds where a policy names no more than that there is load shedding.
    pub const DEFAULT: Self =
        Self { target: Duration::from_millis(5), interval: Duration::from_millis(100) };
}

/// A share of the requests of some callers goes wrong, for a test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Any of these callers; empty means every caller.
    pub from: Vec<CallerPattern>,
    pub delay: Option<DelayFault>,
    pub abort: Option<AbortFault>,
}

/// Requests are held for a time before they are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DelayFault {
    pub time: Duration,
    /// In parts of [`WHOLE_SHARE`].
    pub share: u32,
}

/// Requests are answered by the caller's sidecar and not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AbortFault {
    pub status: u16,
    /// The number of the gRPC status that a gRPC call gets.
    pub grpc_status: u8,
    /// In parts of [`WHOLE_SHARE`].
    pub share: u32,
}

/// How calls of the services that it is about are balanced, limited and kept from what fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrafficPolicy {
    pub name: ObjectName,
    pub target: TrafficTarget,
    pub mode: Mode,
    pub parts: TrafficParts,
}

/// The parts of a traffic policy; what is `None` or empty, it does not have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrafficParts {
    /// At callers: by what a replica is chosen.
    pub balancing: Option<Balancing>,
    /// At callers: whether near replicas come first.
    pub locality: Option<LocalityRules>,
    /// At callers: a replica that joins the others, or comes back to them, gets a share of the
    /// requests that rises to the whole over this time. Zero is none.
    pub slow_start: Option<Duration>,
    /// At callers: which replicas are left out.
    pub outlier: Option<Outlier>,
    /// At callers: if fewer than this part of the replicas are left, all are used. Zero is never.
    pub panic_percent: Option<u32>,
    /// At callers: what goes wrong; of several that are for a caller, the first holds.
    pub faults: Vec<Fault>,
    /// At each replica: requests in a time.
    pub rate: Option<Rate>,
    /// At each replica: requests of one identity that are under way. One more is refused as by `rate`.
    pub concurrency_per_caller: Option<u32>,
    /// At each replica: what is refused while the app does not keep up.
    pub shedding: Option<Shedding>,
    /// At each replica: limits in shadow mode.
    pub shadow: ShadowLimits,
}

/// Limits of policies in shadow mode: what is over them is counted and logged, and not refused.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShadowLimits {
    pub rate: Option<Rate>,
    pub concurrency_per_caller: Option<u32>,
}

impl TrafficParts {
    /// What holds where no policy names another.
    pub const PANIC_PERCENT: u32 = 50;

    /// These parts, and of `general` those that are missing.
    #[must_use]
    pub fn or(self, general: &Self) -> Self {
        let or_general =
            |own: Vec<Fault>| if own.is_empty() { general.faults.clone() } else { own };
        Self {
            balancing: self.balancing.or(general.balancing),
            locality: self.locality.or(general.locality),
            slow_start: self.slow_start.or(general.slow_start),
            outlier: self.outlier.or(general.outlier),
            panic_percent: self.panic_percent.or(general.panic_percent),
            faults: or_general(self.faults),
            rate: self.rate.or_else(|| general.rate.clone()),
            concurrency_per_caller: self.concurrency_per_caller.or(general.concurrency_per_caller),
            shedding: self.shedding.or(general.shedding),
            shadow: ShadowLimits {
                rate: self.shadow.rate.or_else(|| general.shadow.rate.clone()),
                concurrency_per_caller: self
                    .shadow
                    .concurrency_per_caller
                    .or(general.shadow.concurrency_per_caller),
            },
        }
    }

    /// Checks each part; none has to be there.
    ///
    /// # Errors
    /// As [`TrafficPolicy::check`].
    pub fn check(&self) -> Result<(), TrafficPolicyError> {
        if let Some(Balancing::PeakEwma { decay }) = self.balancing {
            check_positive("balancing.decay", decay, TRAFFIC_TIME_LIMIT)?;
        }
        self.locality.iter().try_for_each(check_locality)?;
        check_time("slowStart", self.slow_start.unwrap_or_default(), TRAFFIC_TIME_LIMIT)?;
        if let Some(outlier) = &self.outlier {
            check_outlier(outlier)?;
        }
        check_percent("panicPercent", self.panic_percent.unwrap_or_default())?;
        check_count("faults", self.faults.len(), TRAFFIC_ENTRIES_LIMIT)?;
        self.faults.iter().try_for_each(check_fault)?;
        for rate in [&self.rate, &self.shadow.rate].into_iter().flatten() {
            check_rate(rate)?;
        }
        if [self.concurrency_per_caller, self.shadow.concurrency_per_caller].contains(&Some(0)) {
            return Err(TrafficPolicyError::Zero { field: "concurrencyPerCaller" });
        }
        if let Some(Shedding { target, interval }) = self.shedding {
            check_positive("shedding.target", target, TRAFFIC_TIME_LIMIT)?;
            check_positive("shedding.interval", interval, TRAFFIC_TIME_LIMIT)?;
        }
        Ok(())
    }

    /// Those that hold at the sidecars of callers.
    #[must_use]
    pub fn of_callers(self) -> Self {
        let shadow = ShadowLimits::default();
        Self { rate: None, concurrency_per_caller: None, shedding: None, shadow, ..self }
    }

    /// Those that hold at the sidecar of each replica.
    #[must_use]
    pub fn of_replicas(self) -> Self {
        let Self { rate, concurrency_per_caller, shedding, shadow, .. } = self;
        Self { rate, concurrency_per_caller, shedding, shadow, ..Self::default() }
    }

    /// Those of a policy in shadow mode: its limits, which are all that it has.
    fn in_shadow(&self) -> Self {
        let (rate, concurrency_per_caller) = (self.rate.clone(), self.concurrency_per_caller);
        let shadow = ShadowLimits { rate, concurrency_per_caller };
        Self { shadow, ..Self::default() }
    }
}

impl TrafficPolicy {
    /// The services that it is about.
    #[must_use]
    pub fn scope(&self) -> PolicyScope {
        let namespace = self.name.namespace.clone();
        match &self.target {
            TrafficTarget::App(app) => PolicyScope::App(namespace, app.clone()),
            TrafficTarget::Namespace => PolicyScope::Namespace(namespace),
        }
    }

    /// What several policies come to for one service. Those that are not about it are left out. Of two
    /// with the same target that have the same part, the part of the first by name holds.
    #[must_use]
    pub fn combine<'a>(
        service: &ServiceName,
        policies: impl IntoIterator<Item = &'a Self>,
    ) -> TrafficParts {
        let about = policies.into_iter().filter(|policy| policy.scope().covers(service));
        let mut about: Vec<&Self> = about.collect();
        let is_general = |policy: &Self| policy.target == TrafficTarget::Namespace;
        about.sort_by_key(|policy| (is_general(policy), &policy.name));
        about.into_iter().fold(TrafficParts::default(), |parts, policy| match policy.mode {
            Mode::Enforce => parts.or(&policy.parts),
            Mode::Shadow => parts.or(&policy.parts.in_shadow()),
        })
    }

    /// Checks what the types alone do not hold.
    ///
    /// # Errors
    /// [`TrafficPolicyError`] for the first rule of the format that is broken.
    pub fn check(&self) -> Result<(), TrafficPolicyError> {
        if self.parts == TrafficParts::default() {
            return Err(TrafficPolicyError::NoParts);
        }
        if self.parts.shadow != ShadowLimits::default() {
            return Err(TrafficPolicyError::ShadowOfCombined);
        }
        let TrafficParts { rate, concurrency_per_caller, .. } = &self.parts;
        let (rate, concurrency_per_caller) = (rate.clone(), *concurrency_per_caller);
        let limits = TrafficParts { rate, concurrency_per_caller, ..TrafficParts::default() };
        if self.mode == Mode::Shadow && self.parts != limits {
            return Err(TrafficPolicyError::ShadowPart);
        }
        self.parts.check()
    }
}

fn check_locality(locality: &LocalityRules) -> Result<(), TrafficPolicyError> {
    let LocalityRules { prefer: _, threshold, spill_over } = *locality;
    if !(1..=100).contains(&threshold) {
        return Err(TrafficPolicyError::Threshold { percent: threshold });
    }
    if !(1..=LOCALITY_SPILL_OVER_LIMIT).contains(&spill_over) {
        return Err(TrafficPolicyError::SpillOver { number: spill_over });
    }
    Ok(())
}

fn check_outlier(outlier: &Outlier) -> Result<(), TrafficPolicyError> {
    check_positive("outlier.ejection", outlier.ejection, TRAFFIC_TIME_LIMIT)?;
    check_time("outlier.longestEjection", outlier.longest_ejection, TRAFFIC_TIME_LIMIT)?;
    if outlier.ejection > outlier.longest_ejection {
        return Err(TrafficPolicyError::Ejection);
    }
    check_percent("outlier.maxEjectedPercent", outlier.max_ejected_percent)?;
    if let Some(rate) = &outlier.success_rate {
        check_positive("outlier.successRate.interval", rate.interval, TRAFFIC_TIME_LIMIT)?;
        if rate.min_requests == 0 {
            return Err(TrafficPolicyError::Zero { field: "outlier.successRate.minRequests" });
        }
        if !(500..=10_000).contains(&rate.deviations) {
            return Err(TrafficPolicyError::Deviations { thousandths: rate.deviations });
        }
    }
    Ok(())
}

fn check_rate(rate: &Rate) -> Result<(), TrafficPolicyError> {
    if *rate == Rate::default() {
        return Err(TrafficPolicyError::NoRate);
    }
    for (field, limit) in [("rate.service", &rate.service), ("rate.caller", &rate.caller)] {
        limit.iter().try_for_each(|limit| check_limit(field, limit))?;
    }
    check_count("rate.callers", rate.callers.len(), TRAFFIC_ENTRIES_LIMIT)?;
    for CallerRate { from, limit } in &rate.callers {
        if from.is_empty() {
            return Err(TrafficPolicyError::NoCallers { field: "rate.callers" });
        }
        check_count("rate.callers.from", from.len(), TRAFFIC_CALLERS_LIMIT)?;
        check_limit("rate.callers", limit)?;
    }
    Ok(())
}

fn check_limit(field: &'static str, limit: &RateLimit) -> Result<(), TrafficPolicyError> {
    check_positive(field, limit.per, RATE_PERIOD_LIMIT)?;
    for number in [limit.requests, limit.burst] {
        if number == 0 {
            return Err(TrafficPolicyError::Zero { field });
        }
        if number > RATE_REQUESTS_LIMIT {
            return Err(TrafficPolicyError::TooLarge { field, number, limit: RATE_REQUESTS_LIMIT });
        }
    }
    if limit.per / limit.requests < Duration::from_micros(1) {
        return Err(TrafficPolicyError::TooFast { field });
    }
    Ok(())
}

fn check_fault(fault: &Fault) -> Result<(), TrafficPolicyError> {
    check_count("faults.from", fault.from.len(), TRAFFIC_CALLERS_LIMIT)?;
    if fault.delay.is_none() && fault.abort.is_none() {
        return Err(TrafficPolicyError::NoFault);
    }
    if let Some(delay) = &fault.delay {
        check_positive("faults.delay", delay.time, FAULT_DELAY_LIMIT)?;
        check_share(delay.share)?;
    }
    if let Some(abort) = &fault.abort {
        if !(400..600).contains(&abort.status) {
            return Err(TrafficPolicyError::AbortStatus { status: abort.status });
        }
        if !(1..=16).contains(&abort.grpc_status) {
            return Err(TrafficPolicyError::AbortGrpcStatus { status: abort.grpc_status });
        }
        check_share(abort.share)?;
    }
    Ok(())
}

fn check_share(share: u32) -> Result<(), TrafficPolicyError> {
    if share > WHOLE_SHARE {
        return Err(TrafficPolicyError::Share { share });
    }
    Ok(())
}

fn check_count(field: &'static str, count: usize, limit: usize) -> Result<(), TrafficPolicyError> {
    if count > limit {
        return Err(TrafficPolicyError::TooMany { field, count, limit });
    }
    Ok(())
}

fn check_percent(field: &'static str, percent: u32) -> Result<(), TrafficPolicyError> {
    if percent > 100 {
        return Err(TrafficPolicyError::Percent { field, percent });
    }
    Ok(())
}

fn check_time(
    field: &'static str,
    time: Duration,
    limit: Duration,
) -> Result<(), TrafficPolicyError> {
    if time > limit {
        return Err(TrafficPolicyError::TooLong { field, limit });
    }
    Ok(())
}

fn check_positive(
    field: &'static str,
    time: Duration,
    limit: Duration,
) -> Result<(), TrafficPolicyError> {
    if time.is_zero() {
        return Err(TrafficPolicyError::Zero { field });
    }
    check_time(field, time, limit)
}

#[cfg(test)]
mod tests;
