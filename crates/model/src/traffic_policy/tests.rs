use super::*;
use crate::name::Label;

const SECOND: Duration = Duration::from_secs(1);

fn policy(name: &str, target: TrafficTarget, parts: TrafficParts) -> TrafficPolicy {
    let name = ObjectName::new("shop", name).unwrap();
    TrafficPolicy { name, target, mode: Mode::Enforce, parts }
}

fn app(name: &str) -> TrafficTarget {
    TrafficTarget::App(Label::new(name).unwrap())
}

fn limit(requests: u32) -> RateLimit {
    RateLimit { requests, per: SECOND, burst: RateLimit::usual_burst(requests) }
}

fn from(caller: &str) -> Vec<CallerPattern> {
    vec![caller.parse().unwrap()]
}

fn full() -> TrafficParts {
    let abort = AbortFault { status: 503, grpc_status: 14, share: WHOLE_SHARE };
    TrafficParts {
        balancing: Some(Balancing::PeakEwma { decay: Balancing::DECAY }),
        locality: Some(LocalityRules::DEFAULT),
        slow_start: Some(SECOND),
        outlier: Some(Outlier { success_rate: Some(SuccessRate::DEFAULT), ..Outlier::DEFAULT }),
        panic_percent: Some(TrafficParts::PANIC_PERCENT),
        faults: vec![Fault {
            from: from("web"),
            delay: Some(DelayFault { time: SECOND, share: 1 }),
            abort: Some(abort),
        }],
        rate: Some(Rate {
            service: Some(limit(1000)),
            caller: Some(limit(1)),
            callers: vec![CallerRate { from: from("*.reports"), limit: limit(10) }],
        }),
        concurrency_per_caller: Some(1),
        shedding: Some(Shedding::DEFAULT),
        shadow: ShadowLimits::default(),
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut TrafficParts), expected: &str) {
    let mut parts = full();
    change(&mut parts);
    let refused = policy("p", app("stock"), parts).check().map_err(|error| error.to_string());
    assert_eq!(refused, Err(expected.to_owned()));
}

fn outlier(parts: &mut TrafficParts) -> &mut Outlier {
    parts.outlier.as_mut().unwrap()
}

fn success_rate(parts: &mut TrafficParts) -> &mut SuccessRate {
    outlier(parts).success_rate.as_mut().unwrap()
}

fn rate(parts: &mut TrafficParts) -> &mut Rate {
    parts.rate.as_mut().unwrap()
}

fn abort(parts: &mut TrafficParts) -> &mut AbortFault {
    parts.faults[0].abort.as_mut().unwrap()
}

#[test]
fn a_policy_with_all_its_parts_is_taken_and_one_without_any_is_not() {
    assert_eq!(policy("p", TrafficTarget::Namespace, full()).check(), Ok(()));
    let none = policy("p", app("stock"), TrafficParts::default());
    assert_eq!(none.check(), Err(TrafficPolicyError::NoParts));
    for part in [
        TrafficParts { outlier: Some(Outlier::DEFAULT), ..TrafficParts::default() },
        TrafficParts { shedding: Some(Shedding::DEFAULT), ..TrafficParts::default() },
        TrafficParts { balancing: Some(Balancing::LeastRequests), ..TrafficParts::default() },
        TrafficParts { panic_percent: Some(0), ..TrafficParts::default() },
        TrafficParts { locality: Some(LocalityRules::DEFAULT), ..TrafficParts::default() },
        TrafficParts { slow_start: Some(Duration::ZERO), ..TrafficParts::default() },
    ] {
        assert_eq!(policy("p", app("stock"), part).check(), Ok(()));
    }
}

#[test]
fn times_have_bounds() {
    check(
        |parts| parts.balancing = Some(Balancing::PeakEwma { decay: Duration::ZERO }),
        "`balancing.decay` is zero",
    );
    check(|parts| parts.slow_start = Some(3601 * SECOND), "`slowStart` is longer than 3600 s");
    check(|parts| outlier(parts).ejection = Duration::ZERO, "`outlier.ejection` is zero");
    check(
        |parts| outlier(parts).longest_ejection = 3601 * SECOND,
        "`outlier.longestEjection` is longer than 3600 s",
    );
    check(
        |parts| outlier(parts).longest_ejection = 29 * SECOND,
        "`outlier.ejection` is longer than `outlier.longestEjection`",
    );
    check(
        |parts| success_rate(parts).interval = Duration::ZERO,
        "`outlier.successRate.interval` is zero",
    );
    check(
        |parts| parts.faults[0].delay = Some(DelayFault { time: 301 * SECOND, share: 1 }),
        "`faults.delay` is longer than 300 s",
    );
    check(
        |parts| parts.faults[0].delay = Some(DelayFault { time: Duration::ZERO, share: 1 }),
        "`faults.delay` is zero",
    );
    let shedding = |target, interval| {
        move |parts: &mut TrafficParts| {
            parts.shedding = Some(Shedding { target, interval });
        }
    };
    check(shedding(Duration::ZERO, SECOND), "`shedding.target` is zero");
    check(shedding(SECOND, 3601 * SECOND), "`shedding.interval` is longer than 3600 s");
}

#[test]
fn parts_of_a_whole_are_not_larger_than_it() {
    check(
        |parts| parts.panic_percent = Some(101),
        "`panicPercent` is 101; at most 100 are accepted",
    );
    for (threshold, spill_over, expected) in [
        (0, 1, "`locality.threshold` is 0; 1 to 100 are accepted"),
        (101, 1, "`locality.threshold` is 101; 1 to 100 are accepted"),
        (1, 0, "`locality.spillOver.requestsPerReplica` is 0; 1 to 1000000 are accepted"),
        (
            100,
            1_000_001,
            "`locality.spillOver.requestsPerReplica` is 1000001; 1 to 1000000 are accepted",
        ),
    ] {
        let of = LocalityRules { threshold, spill_over, ..LocalityRules::DEFAULT };
        check(|parts| parts.locality = Some(of), expected);
    }
    check(
        |parts| outlier(parts).max_ejected_percent = 101,
        "`outlier.maxEjectedPercent` is 101; at most 100 are accepted",
    );
    let share = "a share of 1000001 millionths is larger than the whole";
    check(|parts| abort(parts).share = WHOLE_SHARE + 1, share);
    check(
        |parts| {
            parts.faults[0].delay = Some(DelayFault { time: SECOND, share: WHOLE_SHARE + 1 });
        },
        share,
    );
}

#[test]
fn success_rates_are_compared_over_some_requests() {
    check(
        |parts| success_rate(parts).min_requests = 0,
        "`outlier.successRate.minRequests` is zero",
    );
    check(
        |parts| success_rate(parts).deviations = 499,
        "`outlier.deviations` is 499 thousandths; 500 to 10000 are accepted",
    );
}

#[test]
fn limits_of_rates_let_something_through_and_can_be_counted() {
    check(
        |parts| parts.rate = Some(Rate::default()),
        "`rate` limits nothing: it has none of `service`, `caller` and `callers`",
    );
    let service = |requests, per, burst| {
        move |parts: &mut TrafficParts| {
            rate(parts).service = Some(RateLimit { requests, per, burst });
        }
    };
    check(service(0, SECOND, 1), "`rate.service` is zero");
    check(service(1, SECOND, 0), "`rate.service` is zero");
    check(service(1, Duration::ZERO, 1), "`rate.service` is zero");
    check(service(1, 3601 * SECOND, 1), "`rate.service` is longer than 3600 s");
    check(service(1_000_001, SECOND, 1), "`rate.service` is 1000001; at most 1000000 are accepted");
    check(service(1, SECOND, 1_000_001), "`rate.service` is 1000001; at most 1000000 are accepted");
    check(
        service(1000, Duration::from_micros(999), 1),
        "`rate.service` is more than a request each microsecond",
    );
    check(|parts| rate(parts).caller = Some(limit(0)), "`rate.caller` is zero");
    check(|parts| rate(parts).callers[0].limit = limit(0), "`rate.callers` is zero");
    check(
        |parts| rate(parts).callers[0].from.clear(),
        "an entry of `rate.callers` names no callers in `from`",
    );
    check(
        |parts| rate(parts).callers[0].from = vec![from("web").remove(0); 17],
        "`rate.callers.from` has 17 entries; at most 16 are accepted",
    );
    check(
        |parts| {
            let entry = rate(parts).callers[0].clone();
            rate(parts).callers = vec![entry; 65];
        },
        "`rate.callers` has 65 entries; at most 64 are accepted",
    );
    check(|parts| parts.concurrency_per_caller = Some(0), "`concurrencyPerCaller` is zero");
}

#[test]
fn a_fault_is_one_that_a_caller_can_meet() {
    check(
        |parts| (parts.faults[0].delay, parts.faults[0].abort) = (None, None),
        "a fault has neither `delay` nor `abort`",
    );
    check(|parts| abort(parts).status = 399, "`abort.status` is 399; 400 to 599 are accepted");
    check(|parts| abort(parts).grpc_status = 0, "`abort.grpcStatus` is 0; 1 to 16 are accepted");
    check(
        |parts| parts.faults[0].from = vec![from("web").remove(0); 17],
        "`faults.from` has 17 entries; at most 16 are accepted",
    );
    check(
        |parts| parts.faults = vec![parts.faults[0].clone(); 65],
        "`faults` has 65 entries; at most 64 are accepted",
    );
}

#[test]
fn a_policy_for_one_service_replaces_the_general_one_part_by_part() {
    let general = TrafficParts { slow_start: Some(9 * SECOND), ..full() };
    let own = TrafficParts {
        slow_start: Some(SECOND),
        balancing: Some(Balancing::LeastRequests),
        ..TrafficParts::default()
    };
    let second = TrafficParts {
        slow_start: Some(2 * SECOND),
        locality: Some(LocalityRules { prefer: Level::Network, ..LocalityRules::DEFAULT }),
        panic_percent: Some(7),
        ..TrafficParts::default()
    };
    let policies = [
        policy("a-general", TrafficTarget::Namespace, general.clone()),
        policy("c-second", app("stock"), second),
        policy("b-own", app("stock"), own),
    ];
    let service = |text: &str| {
        let label = |text| Label::new(text).unwrap();
        ServiceName::parse_in(text, &label("shop"), &label("west")).unwrap()
    };
    let combined = TrafficPolicy::combine(&service("stock"), &policies);
    let expected = TrafficParts {
        slow_start: Some(SECOND),
        balancing: Some(Balancing::LeastRequests),
        locality: Some(LocalityRules { prefer: Level::Network, ..LocalityRules::DEFAULT }),
        panic_percent: Some(7),
        ..full()
    };
    assert_eq!(combined, expected);
    assert_eq!(TrafficPolicy::combine(&service("web"), &policies), general);
    let elsewhere = TrafficPolicy::combine(&service("stock.other"), &policies);
    assert_eq!(elsewhere, TrafficParts::default());
}

#[test]
fn callers_and_replicas_get_the_parts_that_hold_there() {
    let replicas = full().of_replicas();
    assert_eq!(replicas.clone().of_callers(), TrafficParts::default());
    assert_eq!(replicas.or(&full().of_callers()), full());
    let callers = full().of_callers();
    let of_replica = (callers.rate, callers.concurrency_per_caller, callers.shedding);
    assert_eq!(of_replica, (None, None, None));
    assert_eq!(callers.outlier, full().outlier);
    assert_eq!(callers.faults, full().faults);
}

#[test]
fn limits_in_shadow_mode_stand_beside_those_in_force() {
    let limit = |requests| {
        Some(Rate {
            service: Some(RateLimit { requests, per: Duration::from_secs(1), burst: 1 }),
            ..Rate::default()
        })
    };
    let rate = |requests| TrafficParts { rate: limit(requests), ..TrafficParts::default() };
    let app = || TrafficTarget::App("stock".parse().unwrap());
    let in_force = policy("a", app(), rate(1));
    let one = TrafficParts { concurrency_per_caller: Some(7), ..rate(2) };
    let shadow = TrafficPolicy { mode: Mode::Shadow, ..policy("b", app(), one) };
    let general =
        TrafficPolicy { mode: Mode::Shadow, ..policy("c", TrafficTarget::Namespace, rate(3)) };
    for policy in [&in_force, &shadow, &general] {
        assert_eq!(policy.check(), Ok(()));
    }
    let stock =
        ServiceName::parse_in("stock.shop", &"x".parse().unwrap(), &"west".parse().unwrap())
            .unwrap();
    let parts = TrafficPolicy::combine(&stock, [&shadow, &general, &in_force]);
    assert_eq!((&parts.rate, parts.concurrency_per_caller), (&limit(1), None));
    let expected = ShadowLimits { rate: limit(2), concurrency_per_caller: Some(7) };
    assert_eq!(parts.shadow, expected);
    assert_eq!(parts.clone().of_replicas().shadow, expected);
    assert_eq!(parts.of_callers().shadow, ShadowLimits::default());
    // What refuses nothing has no shadow.
    let panic = TrafficParts { panic_percent: Some(1), ..rate(1) };
    let other = TrafficPolicy { mode: Mode::Shadow, ..policy("d", app(), panic) };
    assert_eq!(other.check(), Err(TrafficPolicyError::ShadowPart));
}
