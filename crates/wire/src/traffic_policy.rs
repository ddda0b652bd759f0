//! Traffic policies.

use std::time::Duration;

use prost::Message as _;
use tollway_model::traffic_policy::{
    AbortFault, Balancing, CallerRate, DelayFault, Fault, LocalityRules, Outlier, Rate, RateLimit,
    ShadowLimits, Shedding, SuccessRate, TrafficParts, TrafficTarget,
};
use tollway_model::{CallerPattern, Level, Mode, ObjectId, ObjectKind, TrafficPolicy};

use crate::object::{check_size, read_name};
use crate::{ConvertError, label, v1};

impl From<&TrafficPolicy> for v1::TrafficPolicy {
    fn from(policy: &TrafficPolicy) -> Self {
        let target = match &policy.target {
            TrafficTarget::App(app) => v1::traffic_policy::Target::App(app.to_string()),
            TrafficTarget::Namespace => v1::traffic_policy::Target::AllApps(true),
        };
        Self {
            namespace: policy.name.namespace.to_string(),
            name: policy.name.name.to_string(),
            target: Some(target),
            parts: Some((&policy.parts).into()),
            shadow: policy.mode == Mode::Shadow,
        }
    }
}

impl From<&TrafficParts> for v1::TrafficParts {
    fn from(parts: &TrafficParts) -> Self {
        Self {
            balancing: parts.balancing.map(Into::into),
            locality: parts.locality.map(Into::into),
            slow_start_ns: parts.slow_start.map(nanos),
            outlier: parts.outlier.map(Into::into),
            panic_percent: parts.panic_percent,
            faults: parts.faults.iter().map(Into::into).collect(),
            rate: parts.rate.as_ref().map(Into::into),
            concurrency_per_caller: parts.concurrency_per_caller,
            shedding: parts.shedding.map(Into::into),
            shadow: shadow_limits(&parts.shadow),
        }
    }
}

/// `None` if there are none.
fn shadow_limits(shadow: &ShadowLimits) -> Option<v1::ShadowLimits> {
    let stated = || v1::ShadowLimits {
        rate: shadow.rate.as_ref().map(Into::into),
        concurrency_per_caller: shadow.concurrency_per_caller,
    };
    (*shadow != ShadowLimits::default()).then(stated)
}

impl From<Balancing> for v1::Balancing {
    fn from(balancing: Balancing) -> Self {
        let by = match balancing {
            Balancing::LeastRequests => v1::balancing::By::LeastRequests(true),
            Balancing::PeakEwma { decay } => {
                v1::balancing::By::PeakEwma(v1::PeakEwma { decay_ns: nanos(decay) })
            }
        };
        Self { by: Some(by) }
    }
}

impl From<LocalityRules> for v1::LocalityRules {
    fn from(rules: LocalityRules) -> Self {
        let prefer = match rules.prefer {
            Level::Zone => v1::locality_rules::Level::Zone,
            Level::Region => v1::locality_rules::Level::Region,
            Level::Network => v1::locality_rules::Level::Network,
        };
        Self {
            prefer: prefer.into(),
            threshold_percent: rules.threshold,
            spill_over_requests: rules.spill_over,
        }
    }
}

impl From<Outlier> for v1::Outlier {
    fn from(outlier: Outlier) -> Self {
        Self {
            consecutive_failures: outlier.consecutive_failures,
            success_rate: outlier.success_rate.map(|rate| v1::SuccessRate {
                interval_ns: nanos(rate.interval),
                min_requests: rate.min_requests,
                min_replicas: rate.min_replicas,
                deviations_thousandths: rate.deviations,
            }),
            ejection_ns: nanos(outlier.ejection),
            longest_ejection_ns: nanos(outlier.longest_ejection),
            max_ejected_percent: outlier.max_ejected_percent,
        }
    }
}

impl From<&Fault> for v1::Fault {
    fn from(fault: &Fault) -> Self {
        Self {
            from: texts(&fault.from),
            delay: fault.delay.map(|delay| v1::DelayFault {
                time_ns: nanos(delay.time),
                share_millionths: delay.share,
            }),
            abort: fault.abort.map(|abort| v1::AbortFault {
                status: abort.status.into(),
                grpc_status: abort.grpc_status.into(),
                share_millionths: abort.share,
            }),
        }
    }
}

impl From<&Rate> for v1::Rate {
    fn from(rate: &Rate) -> Self {
        let callers = rate.callers.iter().map(|entry| v1::CallerRate {
            from: texts(&entry.from),
            limit: Some(entry.limit.into()),
        });
        Self {
            service: rate.service.map(Into::into),
            caller: rate.caller.map(Into::into),
            callers: callers.collect(),
        }
    }
}

impl From<RateLimit> for v1::RateLimit {
    fn from(limit: RateLimit) -> Self {
        Self { requests: limit.requests, per_ns: nanos(limit.per), burst: limit.burst }
    }
}

impl From<Shedding> for v1::Shedding {
    fn from(shedding: Shedding) -> Self {
        Self { target_ns: nanos(shedding.target), interval_ns: nanos(shedding.interval) }
    }
}

fn texts(patterns: &[CallerPattern]) -> Vec<String> {
    patterns.iter().map(ToString::to_string).collect()
}

/// No policy has a time of centuries.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads a traffic policy and checks it as a whole.
///
/// # Errors
/// [`ConvertError`] for the first thing that is wrong.
pub fn traffic_policy(policy: &v1::TrafficPolicy) -> Result<TrafficPolicy, ConvertError> {
    let name = read_name(&policy.namespace, &policy.name)?;
    let id = ObjectId { kind: ObjectKind::TrafficPolicy, name: name.clone() };
    check_size(&id, policy.encoded_len())?;
    let in_policy =
        |source| ConvertError::InObject { object: id.clone(), source: Box::new(source) };
    let target = target(policy.target.as_ref()).map_err(in_policy)?;
    let parts = policy.parts.as_ref().ok_or(ConvertError::Missing { field: "parts" });
    let parts = parts.and_then(read_parts).map_err(in_policy)?;
    let mode = if policy.shadow { Mode::Shadow } else { Mode::Enforce };
    let read = TrafficPolicy { name, target, mode, parts };
    read.check().map_err(|source| ConvertError::TrafficPolicy { object: id.clone(), source })?;
    Ok(read)
}

fn target(of: Option<&v1::traffic_policy::Target>) -> Result<TrafficTarget, ConvertError> {
    match of {
        Some(v1::traffic_policy::Target::App(app)) => {
            Ok(TrafficTarget::App(label(app, "target.app")?))
        }
        Some(v1::traffic_policy::Target::AllApps(_)) => Ok(TrafficTarget::Namespace),
        None => Err(ConvertError::Missing { field: "target" }),
    }
}

/// Reads and checks parts that several policies came to; none has to be there.
///
/// # Errors
/// [`ConvertError`] for the first that is wrong.
pub(crate) fn checked_parts(parts: &v1::TrafficParts) -> Result<TrafficParts, ConvertError> {
    let read = read_parts(parts)?;
    read.check().map_err(|source| ConvertError::TrafficParts { source })?;
    Ok(read)
}

/// Reads what the traffic policies of the own service come to.
///
/// # Errors
/// As for those of a service that is called.
pub fn own_traffic(response: &v1::WatchResponse) -> Result<Option<TrafficParts>, ConvertError> {
    response.traffic.as_ref().map(checked_parts).transpose()
}

fn read_parts(parts: &v1::TrafficParts) -> Result<TrafficParts, ConvertError> {
    let faults: Result<_, _> = parts.faults.iter().map(fault).collect();
    Ok(TrafficParts {
        balancing: parts.balancing.as_ref().map(balancing).transpose()?,
        locality: parts.locality.as_ref().map(locality_rules).transpose()?,
        slow_start: parts.slow_start_ns.map(Duration::from_nanos),
        outlier: parts.outlier.as_ref().map(outlier),
        panic_percent: parts.panic_percent,
        faults: faults?,
        rate: parts.rate.as_ref().map(rate).transpose()?,
        concurrency_per_caller: parts.concurrency_per_caller,
        shedding: parts.shedding.as_ref().map(|of| Shedding {
            target: Duration::from_nanos(of.target_ns),
            interval: Duration::from_nanos(of.interval_ns),
        }),
        shadow: match &parts.shadow {
            Some(shadow) => ShadowLimits {
                rate: shadow.rate.as_ref().map(rate).transpose()?,
                concurrency_per_caller: shadow.concurrency_per_caller,
            },
            None => ShadowLimits::default(),
        },
    })
}

fn balancing(of: &v1::Balancing) -> Result<Balancing, ConvertError> {
    match &of.by {
        Some(v1::balancing::By::LeastRequests(_)) => Ok(Balancing::LeastRequests),
        Some(v1::balancing::By::PeakEwma(v1::PeakEwma { decay_ns })) => {
            Ok(Balancing::PeakEwma { decay: Duration::from_nanos(*decay_ns) })
        }
        None => Err(ConvertError::Missing { field: "balancing" }),
    }
}

/// Reads what a policy has about near replicas.
///
/// # Errors
/// [`ConvertError`] for a level that is missing or of a later version.
pub fn locality_rules(of: &v1::LocalityRules) -> Result<LocalityRules, ConvertError> {
    let (field, value) = ("locality.prefer", of.prefer);
    let prefer = v1::locality_rules::Level::try_from(value)
        .map_err(|_| ConvertError::Unknown { field, value })?;
    let prefer = match prefer {
        v1::locality_rules::Level::Zone => Level::Zone,
        v1::locality_rules::Level::Region => Level::Region,
        v1::locality_rules::Level::Network => Level::Network,
        v1::locality_rules::Level::Unspecified => return Err(ConvertError::Missing { field }),
    };
    let (threshold, spill_over) = (of.threshold_percent, of.spill_over_requests);
    Ok(LocalityRules { prefer, threshold, spill_over })
}

fn outlier(of: &v1::Outlier) -> Outlier {
    Outlier {
        consecutive_failures: of.consecutive_failures,
        success_rate: of.success_rate.as_ref().map(|rate| SuccessRate {
            interval: Duration::from_nanos(rate.interval_ns),
            min_requests: rate.min_requests,
            min_replicas: rate.min_replicas,
            deviations: rate.deviations_thousandths,
        }),
        ejection: Duration::from_nanos(of.ejection_ns),
        longest_ejection: Duration::from_nanos(of.longest_ejection_ns),
        max_ejected_percent: of.max_ejected_percent,
    }
}

fn fault(of: &v1::Fault) -> Result<Fault, ConvertError> {
    let abort = |abort: &v1::AbortFault| -> Result<AbortFault, ConvertError> {
        Ok(AbortFault {
            status: number(abort.status, "abort.status")?,
            grpc_status: number(abort.grpc_status, "abort.grpc_status")?,
            share: abort.share_millionths,
        })
    };
    Ok(Fault {
        from: callers(&of.from)?,
        delay: of.delay.as_ref().map(|delay| DelayFault {
            time: Duration::from_nanos(delay.time_ns),
            share: delay.share_millionths,
        }),
        abort: of.abort.as_ref().map(abort).transpose()?,
    })
}

fn rate(of: &v1::Rate) -> Result<Rate, ConvertError> {
    let entry = |of: &v1::CallerRate| -> Result<CallerRate, ConvertError> {
        let limit = of.limit.as_ref().ok_or(ConvertError::Missing { field: "callers.limit" })?;
        Ok(CallerRate { from: callers(&of.from)?, limit: rate_limit(limit) })
    };
    let callers: Result<_, _> = of.callers.iter().map(entry).collect();
    Ok(Rate {
        service: of.service.as_ref().map(rate_limit),
        caller: of.caller.as_ref().map(rate_limit),
        callers: callers?,
    })
}

fn rate_limit(of: &v1::RateLimit) -> RateLimit {
    RateLimit { requests: of.requests, per: Duration::from_nanos(of.per_ns), burst: of.burst }
}

fn callers(texts: &[String]) -> Result<Vec<CallerPattern>, ConvertError> {
    let read = |text: &String| text.parse().map_err(|source| ConvertError::Caller { source });
    texts.iter().map(read).collect()
}

fn number<T: TryFrom<u32>>(value: u32, field: &'static str) -> Result<T, ConvertError> {
    T::try_from(value).map_err(|_| ConvertError::Number { field, value })
}

#[cfg(test)]
mod tests {
    use tollway_model::{ObjectName, ServiceName};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn parts() -> TrafficParts {
        let limit = |requests| RateLimit { requests, per: SECOND, burst: requests };
        let from = vec!["web".parse().unwrap(), "*.reports".parse().unwrap()];
        TrafficParts {
            balancing: Some(Balancing::PeakEwma { decay: 3 * SECOND }),
            locality: Some(LocalityRules { prefer: Level::Region, threshold: 23, spill_over: 24 }),
            slow_start: Some(4 * SECOND),
            outlier: Some(Outlier {
                consecutive_failures: 7,
                success_rate: Some(SuccessRate {
                    interval: 5 * SECOND,
                    min_requests: 8,
                    min_replicas: 9,
                    deviations: 1500,
                }),
                ejection: 6 * SECOND,
                longest_ejection: 60 * SECOND,
                max_ejected_percent: 11,
            }),
            panic_percent: Some(12),
            faults: vec![Fault {
                from: from.clone(),
                delay: Some(DelayFault { time: 13 * SECOND, share: 14 }),
                abort: Some(AbortFault { status: 599, grpc_status: 15, share: 16 }),
            }],
            rate: Some(Rate {
                service: Some(limit(17)),
                caller: Some(limit(18)),
                callers: vec![CallerRate { from, limit: limit(19) }],
            }),
            concurrency_per_caller: Some(20),
            shedding: Some(Shedding { target: 21 * SECOND, interval: 22 * SECOND }),
            shadow: ShadowLimits::default(),
        }
    }

    fn policy(target: TrafficTarget, parts: TrafficParts) -> TrafficPolicy {
        let (name, mode) = (ObjectName::new("shop", "p").unwrap(), Mode::Enforce);
        TrafficPolicy { name, target, mode, parts }
    }

    fn app() -> TrafficTarget {
        TrafficTarget::App("stock".parse().unwrap())
    }

    #[test]
    fn every_field_survives_the_wire() {
        let one = |change: fn(&mut TrafficParts, TrafficParts)| {
            let mut one = TrafficParts::default();
            change(&mut one, parts());
            one
        };
        for parts in [
            parts(),
            TrafficParts { balancing: Some(Balancing::LeastRequests), ..TrafficParts::default() },
            TrafficParts { slow_start: Some(Duration::ZERO), ..TrafficParts::default() },
            TrafficParts { panic_percent: Some(0), ..TrafficParts::default() },
            one(|one, all| one.outlier = all.outlier),
            one(|one, all| one.locality = all.locality),
            one(|one, all| one.faults = all.faults),
            one(|one, all| one.rate = all.rate),
            one(|one, all| one.shedding = all.shedding),
        ] {
            for target in [app(), TrafficTarget::Namespace] {
                let sent = policy(target, parts.clone());
                let bytes = v1::TrafficPolicy::from(&sent).encode_to_vec();
                let received = v1::TrafficPolicy::decode(&bytes[..]).unwrap();
                assert_eq!(traffic_policy(&received), Ok(sent));
            }
        }
    }

    #[track_caller]
    #[test]
    fn limits_in_shadow_mode_survive_the_wire() {
        let limits = TrafficParts { rate: parts().rate, ..TrafficParts::default() };
        let sent = TrafficPolicy { mode: Mode::Shadow, ..policy(app(), limits) };
        assert_eq!(traffic_policy(&v1::TrafficPolicy::from(&sent)), Ok(sent.clone()));
        let stock =
            ServiceName::parse_in("stock.shop", &"x".parse().unwrap(), &"west".parse().unwrap())
                .unwrap();
        let combined = TrafficPolicy::combine(&stock, [&sent]);
        assert!(combined.rate.is_none() && combined.shadow.rate.is_some());
        assert_eq!(checked_parts(&v1::TrafficParts::from(&combined)), Ok(combined));
    }

    fn check(change: impl FnOnce(&mut v1::TrafficPolicy), expected: &str) {
        let mut sent = v1::TrafficPolicy::from(&policy(app(), parts()));
        change(&mut sent);
        let refused = traffic_policy(&sent).map_err(|error| tollway_model::chain(&error));
        assert_eq!(refused, Err(expected.to_owned()));
    }

    fn parts_of(policy: &mut v1::TrafficPolicy) -> &mut v1::TrafficParts {
        policy.parts.as_mut().unwrap()
    }

    #[test]
    fn what_is_missing_or_wrong_is_refused() {
        let cannot = "the traffic-policy shop/p cannot be read: ";
        check(|of| of.target = None, &format!("{cannot}the field `target` is missing"));
        check(|of| of.parts = None, &format!("{cannot}the field `parts` is missing"));
        check(
            |of| parts_of(of).balancing = Some(v1::Balancing { by: None }),
            &format!("{cannot}the field `balancing` is missing"),
        );
        check(
            |of| parts_of(of).locality = Some(v1::LocalityRules::default()),
            &format!("{cannot}the field `locality.prefer` is missing"),
        );
        check(
            |of| parts_of(of).locality.as_mut().unwrap().prefer = 9,
            &format!(
                "{cannot}the field `locality.prefer` holds 9, which this version does not know"
            ),
        );
        check(
            |of| parts_of(of).rate.as_mut().unwrap().callers[0].limit = None,
            &format!("{cannot}the field `callers.limit` is missing"),
        );
        check(
            |of| parts_of(of).faults[0].abort.as_mut().unwrap().status = 70_000,
            &format!("{cannot}the field `abort.status` holds 70000, which is too large"),
        );
        check(
            |of| parts_of(of).panic_percent = Some(101),
            "the traffic-policy shop/p is not valid: `panicPercent` is 101; at most 100 are accepted",
        );
        let mut sent = v1::TrafficPolicy::from(&policy(app(), parts()));
        parts_of(&mut sent).faults[0].from = vec!["a b".to_owned()];
        assert!(traffic_policy(&sent).is_err());
    }
}
