//! The `spec` of a traffic policy.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollway_model::traffic_policy as model;
use tollway_model::{CallerPattern, Label, Level, ObjectName, TrafficPolicy, chain};

use super::Problem;
use super::route::fields::{GrpcStatus, Percent};
use super::values::{Mode, Text, Time, bare, filled, texts};

/// What a fault answers if it names no status: that, and UNAVAILABLE.
const ABORT_STATUS: u16 = 503;
const ABORT_GRPC_STATUS: u8 = 14;
/// The time of a rate limit that names none.
const PER: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Spec {
    target: Target,
    #[serde(default, skip_serializing_if = "Mode::is_enforce")]
    mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    balancing: Option<Balancing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<Locality>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slow_start: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outlier: Option<Outlier>,
    #[serde(skip_serializing_if = "Option::is_none")]
    panic_percent: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    faults: Vec<Fault>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_per_caller: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shedding: Option<Shedding>,
}

/// `app: NAME`, or `app: "*"` for the policy's namespace.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    app: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Balancing {
    LeastRequests,
    PeakEwma(PeakEwma),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeakEwma {
    #[serde(skip_serializing_if = "Option::is_none")]
    decay: Option<Time>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Locality {
    #[serde(skip_serializing_if = "Option::is_none")]
    prefer: Option<Level>,
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spill_over: Option<LocalitySpillOver>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LocalitySpillOver {
    requests_per_replica: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Outlier {
    #[serde(skip_serializing_if = "Option::is_none")]
    consecutive_failures: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    success_rate: Option<SuccessRate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ejection: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    longest_ejection: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_ejected_percent: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SuccessRate {
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_requests: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_replicas: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deviations: Option<Thousandths>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    #[serde(default, deserialize_with = "filled", skip_serializing_if = "Vec::is_empty")]
    from: Vec<Text<CallerPattern>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<Delay>,
    #[serde(skip_serializing_if = "Option::is_none")]
    abort: Option<Abort>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Delay {
    time: Time,
    #[serde(default, skip_serializing_if = "Percent::is_whole")]
    percent: Percent,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Abort {
    #[serde(default = "abort_status")]
    status: u16,
    #[serde(default = "abort_grpc_status")]
    grpc_status: GrpcStatus,
    #[serde(default, skip_serializing_if = "Percent::is_whole")]
    percent: Percent,
}

fn abort_status() -> u16 {
    ABORT_STATUS
}

fn abort_grpc_status() -> GrpcStatus {
    GrpcStatus(ABORT_GRPC_STATUS)
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rate {
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<RateLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<RateLimit>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    callers: Vec<CallerRate>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimit {
    requests: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    per: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerRate {
    #[serde(deserialize_with = "filled")]
    from: Vec<Text<CallerPattern>>,
    requests: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    per: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shedding {
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<Time>,
}

/// A number with at most three decimals.
#[derive(Clone, Copy, Debug)]
struct Thousandths(u32);

impl Serialize for Thousandths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            return serializer.serialize_u32(self.0 / 1000);
        }
        serializer.serialize_f64(f64::from(self.0) / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Thousandths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        let thousandths = number * 1000.0;
        if !(0.0..=1e9).contains(&thousandths) || (thousandths - thousandths.round()).abs() > 1e-6 {
            let wrong = format!("{number} is not a number from 0 on with at most three decimals");
            return Err(D::Error::custom(wrong));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to a thousand million"
        )]
        let thousandths = thousandths.round() as u32;
        Ok(Self(thousandths))
    }
}

impl Spec {
    pub(super) fn into_traffic_policy(self, name: ObjectName) -> Result<TrafficPolicy, Problem> {
        let target = match self.target.app.as_str() {
            "*" => model::TrafficTarget::Namespace,
            app => model::TrafficTarget::App(Label::new(app).map_err(|error| Problem {
                at: None,
                what: format!("`target.app`: {}", chain(&error)),
            })?),
        };
        let parts = model::TrafficParts {
            balancing: self.balancing.map(Into::into),
            locality: self.locality.map(Into::into),
            slow_start: self.slow_start.map(|time| time.0),
            outlier: self.outlier.map(Into::into),
            panic_percent: self.panic_percent,
            faults: self.faults.into_iter().map(Into::into).collect(),
            rate: self.rate.map(Into::into),
            concurrency_per_caller: self.concurrency_per_caller,
            shedding: self.shedding.map(Into::into),
            shadow: model::ShadowLimits::default(),
        };
        let policy = TrafficPolicy { name, target, mode: self.mode.into(), parts };
        policy.check().map_err(|error| Problem::of(&error))?;
        Ok(policy)
    }
}

impl From<&TrafficPolicy> for Spec {
    fn from(policy: &TrafficPolicy) -> Self {
        let app = match &policy.target {
            model::TrafficTarget::App(app) => app.to_string(),
            model::TrafficTarget::Namespace => "*".to_owned(),
        };
        let parts = &policy.parts;
        Self {
            target: Target { app },
            mode: policy.mode.into(),
            balancing: parts.balancing.map(Into::into),
            locality: parts.locality.map(Into::into),
            slow_start: parts.slow_start.map(Time),
            outlier: parts.outlier.map(Into::into),
            panic_percent: parts.panic_percent,
            faults: parts.faults.iter().map(Into::into).collect(),
            rate: parts.rate.as_ref().map(Into::into),
            concurrency_per_caller: parts.concurrency_per_caller,
            shedding: parts.shedding.map(Into::into),
        }
    }
}

impl From<Balancing> for model::Balancing {
    fn from(balancing: Balancing) -> Self {
        match balancing {
            Balancing::LeastRequests => Self::LeastRequests,
            Balancing::PeakEwma(PeakEwma { decay }) => {
                Self::PeakEwma { decay: decay.map_or(Self::DECAY, |time| time.0) }
            }
        }
    }
}

impl From<model::Balancing> for Balancing {
    fn from(balancing: model::Balancing) -> Self {
        match balancing {
            model::Balancing::LeastRequests => Self::LeastRequests,
            model::Balancing::PeakEwma { decay } => {
                Self::PeakEwma(PeakEwma { decay: Some(Time(decay)) })
            }
        }
    }
}

impl From<Locality> for model::LocalityRules {
    fn from(locality: Locality) -> Self {
        let usual = Self::DEFAULT;
        let Locality { prefer, threshold, spill_over } = locality;
        Self {
            prefer: prefer.unwrap_or(usual.prefer),
            threshold: threshold.unwrap_or(usual.threshold),
            spill_over: spill_over.map_or(usual.spill_over, |of| of.requests_per_replica),
        }
    }
}

impl From<model::LocalityRules> for Locality {
    fn from(rules: model::LocalityRules) -> Self {
        Self {
            prefer: Some(rules.prefer),
            threshold: Some(rules.threshold),
            spill_over: Some(LocalitySpillOver { requests_per_replica: rules.spill_over }),
        }
    }
}

impl From<Outlier> for model::Outlier {
    fn from(outlier: Outlier) -> Self {
        let usual = Self::DEFAULT;
        let ejection = outlier.ejection.map_or(usual.ejection, |time| time.0);
        let longest = outlier.longest_ejection.map(|time| time.0);
        Self {
            consecutive_failures: outlier
                .consecutive_failures
                .unwrap_or(usual.consecutive_failures),
            success_rate: outlier.success_rate.map(Into::into),
            ejection,
            longest_ejection: longest.unwrap_or(usual.longest_ejection.max(ejection)),
            max_ejected_percent: outlier.max_ejected_percent.unwrap_or(usual.max_ejected_percent),
        }
    }
}

impl From<model::Outlier> for Outlier {
    fn from(outlier: model::Outlier) -> Self {
        Self {
            consecutive_failures: Some(outlier.consecutive_failures),
            success_rate: outlier.success_rate.map(Into::into),
            ejection: Some(Time(outlier.ejection)),
            longest_ejection: Some(Time(outlier.longest_ejection)),
            max_ejected_percent: Some(outlier.max_ejected_percent),
        }
    }
}

impl From<SuccessRate> for model::SuccessRate {
    fn from(rate: SuccessRate) -> Self {
        let usual = Self::DEFAULT;
        Self {
            interval: rate.interval.map_or(usual.interval, |time| time.0),
            min_requests: rate.min_requests.unwrap_or(usual.min_requests),
            min_replicas: rate.min_replicas.unwrap_or(usual.min_replicas),
            deviations: rate.deviations.map_or(usual.deviations, |number| number.0),
        }
    }
}

impl From<model::SuccessRate> for SuccessRate {
    fn from(rate: model::SuccessRate) -> Self {
        Self {
            interval: Some(Time(rate.interval)),
            min_requests: Some(rate.min_requests),
            min_replicas: Some(rate.min_replicas),
            deviations: Some(Thousandths(rate.deviations)),
        }
    }
}

impl From<Fault> for model::Fault {
    fn from(fault: Fault) -> Self {
        Self {
            from: bare(fault.from),
            delay: fault.delay.map(|Delay { time, percent }| model::DelayFault {
                time: time.0,
                share: percent.share(),
            }),
            abort: fault.abort.map(|abort| model::AbortFault {
                status: abort.status,
                grpc_status: abort.grpc_status.0,
                share: abort.percent.share(),
            }),
        }
    }
}

impl From<&model::Fault> for Fault {
    fn from(fault: &model::Fault) -> Self {
        Self {
            from: texts(&fault.from),
            delay: fault.delay.map(|delay| Delay {
                time: Time(delay.time),
                percent: Percent::of_share(delay.share),
            }),
            abort: fault.abort.map(|abort| Abort {
                status: abort.status,
                grpc_status: GrpcStatus(abort.grpc_status),
                percent: Percent::of_share(abort.share),
            }),
        }
    }
}

impl From<Rate> for model::Rate {
    fn from(rate: Rate) -> Self {
        let entry = |CallerRate { from, requests, per, burst }: CallerRate| model::CallerRate {
            from: bare(from),
            limit: RateLimit { requests, per, burst }.into(),
        };
        Self {
            service: rate.service.map(Into::into),
            caller: rate.caller.map(Into::into),
            callers: rate.callers.into_iter().map(entry).collect(),
        }
    }
}

impl From<&model::Rate> for Rate {
    fn from(rate: &model::Rate) -> Self {
        let entry = |entry: &model::CallerRate| {
            let RateLimit { requests, per, burst } = entry.limit.into();
            CallerRate { from: texts(&entry.from), requests, per, burst }
        };
        Self {
            service: rate.service.map(Into::into),
            caller: rate.caller.map(Into::into),
            callers: rate.callers.iter().map(entry).collect(),
        }
    }
}

impl From<RateLimit> for model::RateLimit {
    fn from(limit: RateLimit) -> Self {
        let burst = limit.burst.unwrap_or_else(|| Self::usual_burst(limit.requests));
        Self { requests: limit.requests, per: limit.per.map_or(PER, |time| time.0), burst }
    }
}

impl From<model::RateLimit> for RateLimit {
    fn from(limit: model::RateLimit) -> Self {
        let model::RateLimit { requests, per, burst } = limit;
        Self { requests, per: Some(Time(per)), burst: Some(burst) }
    }
}

impl From<Shedding> for model::Shedding {
    fn from(shedding: Shedding) -> Self {
        let usual = Self::DEFAULT;
        Self {
            target: shedding.target.map_or(usual.target, |time| time.0),
            interval: shedding.interval.map_or(usual.interval, |time| time.0),
        }
    }
}

impl From<model::Shedding> for Shedding {
    fn from(shedding: model::Shedding) -> Self {
        Self { target: Some(Time(shedding.target)), interval: Some(Time(shedding.interval)) }
    }
}
