//! Routes of every form.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tollway_model::egress::{AppPattern, BeginTls, EgressHost};
use tollway_model::route::*;
use tollway_model::traffic_policy::*;
use tollway_model::{
    CallerPattern, Egress, Label, Level, Mode, ObjectName, Route, ServiceRef, TrafficPolicy,
};

fn label() -> impl Strategy<Value = Label> {
    "[a-zA-Z0-9_-]{1,8}".prop_map(|text| Label::new(&text).unwrap())
}

fn service() -> impl Strategy<Value = ServiceRef> {
    let parts = (label(), option::of((label(), option::of(label()))));
    parts.prop_map(|(app, rest)| match rest {
        None => ServiceRef { app, namespace: None, network: None },
        Some((namespace, network)) => ServiceRef { app, namespace: Some(namespace), network },
    })
}

/// Texts that YAML could take for something else.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,12}",
        "[a-z\u{e9}\u{4e16}: #'\"-]{1,8}",
        Just("1".to_owned()),
        Just("1e3".to_owned()),
        Just("null".to_owned()),
        Just("yes".to_owned()),
        Just("~".to_owned()),
        Just("0x10".to_owned()),
        Just(" ".to_owned()),
    ]
}

fn path() -> impl Strategy<Value = String> {
    "/[a-zA-Z0-9._~:@!$&'()*+,;=%/-]{0,12}"
}

fn text_match() -> impl Strategy<Value = TextMatch> {
    prop_oneof![text().prop_map(TextMatch::Exact), "[a-z]{1,3}[.][*+]".prop_map(TextMatch::Regex)]
}

/// Entries whose names differ.
fn named(prefix: &'static str) -> impl Strategy<Value = Vec<NamedMatch>> {
    vec(text_match(), 0..3).prop_map(move |values| {
        let entry = |(n, value)| NamedMatch { name: format!("{prefix}{n}"), value };
        (0..).zip(values).map(|(n, value): (i32, _)| entry((n, value))).collect()
    })
}

fn path_match() -> impl Strategy<Value = PathMatch> {
    prop_oneof![
        path().prop_map(PathMatch::Exact),
        path().prop_map(PathMatch::Prefix),
        "/[a-z]{1,3}[.][*+]".prop_map(PathMatch::Regex),
    ]
}

fn grpc_match() -> impl Strategy<Value = GrpcMatch> {
    let part = || {
        prop_oneof![
            "[a-zA-Z][a-zA-Z0-9._]{0,8}".prop_map(TextMatch::Exact),
            "[a-z]{1,3}[.][*+]".prop_map(TextMatch::Regex)
        ]
    };
    prop_oneof![
        (part(), option::of(part()))
            .prop_map(|(service, method)| GrpcMatch { service: Some(service), method }),
        part().prop_map(|method| GrpcMatch { service: None, method: Some(method) }),
    ]
}

fn route_match() -> impl Strategy<Value = RouteMatch> {
    let target = prop_oneof![
        (option::of(path_match()), option::of("[A-Z]{1,6}"))
            .prop_map(|(path, method)| (path, method, None)),
        grpc_match().prop_map(|grpc| (None, None, Some(grpc))),
    ];
    let from = prop_oneof!["[a-z]{1,5}", Just("*.shop".to_owned()), Just("*.*.east".to_owned())];
    (target, named("x-"), named("q"), vec(from, 0..3)).prop_map(
        |((path, method, grpc), headers, query, from)| RouteMatch {
            path,
            method: method.map(|text| text.parse().unwrap()),
            grpc,
            headers,
            query,
            from: from.iter().map(|text| text.parse().unwrap()).collect(),
        },
    )
}

fn header_edits() -> impl Strategy<Value = HeaderEdits> {
    let value = || text().prop_filter("a control character", |text| !text.contains('\u{7f}'));
    let fields = |prefix: &'static str, values: Vec<String>| {
        let field = |(n, value): (usize, String)| (format!("{prefix}{}", n / 2), value);
        values.into_iter().enumerate().map(field).collect::<Vec<_>>()
    };
    (vec("x-r[a-z]{1,4}", 0..2), option::of(value()), vec(value(), 0..4)).prop_map(
        move |(remove, set, add)| HeaderEdits {
            remove,
            set: fields("x-s", set.into_iter().collect()),
            add: fields("x-a", add),
        },
    )
}

fn backend() -> impl Strategy<Value = Backend> {
    (service(), 0..=WEIGHT_LIMIT, header_edits(), header_edits()).prop_map(
        |(service, weight, request, response)| Backend { service, weight, request, response },
    )
}

fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..86_400_000_u64).prop_map(Duration::from_millis),
        (0..86_400_000_000_000_u64).prop_map(Duration::from_nanos),
        (0..=24_u64).prop_map(|hours| Duration::from_secs(hours * 3600)),
    ]
}

fn timeouts() -> impl Strategy<Value = RouteTimeouts> {
    (option::of(time()), option::of(time()), option::of(time())).prop_map(
        |(request, attempt, idle)| {
            let longest = request.filter(|time| !time.is_zero());
            let attempt = attempt.map(|time| longest.map_or(time, |longest| time.min(longest)));
            RouteTimeouts { request, attempt, idle }
        },
    )
}

fn retry() -> impl Strategy<Value = RouteRetry> {
    let budget = prop_oneof![
        Just(RetryBudget::DEFAULT),
        (0..=100_u32, any::<u32>())
            .prop_map(|(percent, min_per_second)| RetryBudget { percent, min_per_second }),
    ];
    let lists = (vec(400..600_u16, 0..3), vec(1..=16_u8, 0..3));
    (0..=RETRIES_LIMIT, lists, time(), time(), any::<bool>(), budget).prop_map(
        |(attempts, (statuses, grpc_statuses), one, other, idempotent, budget)| RouteRetry {
            attempts,
            statuses,
            grpc_statuses,
            backoff: one.min(other),
            longest_backoff: one.max(other),
            idempotent,
            budget,
        },
    )
}

fn affinity() -> impl Strategy<Value = Affinity> {
    prop_oneof![
        "[a-z-]{1,8}".prop_map(Affinity::Header),
        ("[a-z-]{1,8}", option::of(time())).prop_map(|(name, ttl)| Affinity::Cookie { name, ttl }),
    ]
}

fn path_edit() -> impl Strategy<Value = PathEdit> {
    prop_oneof![path().prop_map(PathEdit::Full), path().prop_map(PathEdit::Prefix)]
}

fn host() -> impl Strategy<Value = String> {
    "[a-z0-9]{1,6}([.][a-z0-9]{1,6}){0,2}"
}

/// A replaced prefix needs one in every match.
fn fitted(edit: Option<PathEdit>, matches: &mut Vec<RouteMatch>) -> Option<PathEdit> {
    if matches!(edit, Some(PathEdit::Prefix(_))) {
        if matches.is_empty() {
            matches.push(RouteMatch::default());
        }
        for of in matches {
            (of.path, of.grpc) = (Some(PathMatch::Prefix("/a".to_owned())), None);
        }
    }
    edit
}

fn forward() -> impl Strategy<Value = RouteRule> {
    let mirror =
        (service(), 0..=WHOLE_SHARE).prop_map(|(service, share)| Mirror { service, share });
    let whole = service().prop_map(|service| Mirror { service, share: WHOLE_SHARE });
    (
        vec(route_match(), 0..3),
        vec(backend(), 1..3),
        (option::of(host()), option::of(path_edit())),
        (header_edits(), header_edits()),
        vec(prop_oneof![mirror, whole], 0..3),
        (timeouts(), option::of(retry()), option::of(affinity())),
    )
        .prop_map(|(mut matches, backends, (host, path), edits, mirrors, rest)| {
            let rewrite = Rewrite { host, path: fitted(path, &mut matches) };
            let ((request, response), (timeouts, retry, affinity)) = (edits, rest);
            RouteRule {
                name: None,
                matches,
                action: RouteAction::Forward(backends),
                rewrite,
                request,
                response,
                mirrors,
                timeouts,
                retry,
                affinity,
            }
        })
}

fn redirect() -> impl Strategy<Value = RouteRule> {
    let scheme = option::of(prop_oneof![Just("http".to_owned()), Just("https".to_owned())]);
    let status = prop_oneof![Just(301), Just(302), Just(303), Just(307), Just(308)];
    let to =
        (scheme, option::of(host()), option::of(1..=u16::MAX), option::of(path_edit()), status);
    (vec(route_match(), 0..3), to, header_edits()).prop_map(
        |(mut matches, (scheme, host, port, path, status), response)| {
            let path = fitted(path, &mut matches);
            let redirect = Redirect { scheme, host, port, path, status };
            RouteRule {
                matches,
                action: RouteAction::Redirect(redirect),
                response,
                ..RouteRule::forward(Vec::new())
            }
        },
    )
}

pub(super) fn route() -> impl Strategy<Value = Route> {
    let rules = vec((any::<bool>(), prop_oneof![3 => forward(), 1 => redirect()]), 1..4);
    (label(), label(), service(), rules).prop_map(|(namespace, name, service, rules)| {
        let named = |(n, (has_name, rule)): (usize, (bool, RouteRule))| RouteRule {
            name: has_name.then(|| Label::new(&format!("{n}")).unwrap()),
            ..rule
        };
        Route {
            name: ObjectName { namespace, name },
            service,
            rules: rules.into_iter().enumerate().map(named).collect(),
            created_unix_ms: 0,
        }
    })
}

fn seconds(most: u64) -> impl Strategy<Value = Duration> {
    (1..most * 1_000_000_000).prop_map(Duration::from_nanos)
}

fn callers(least: usize) -> impl Strategy<Value = Vec<CallerPattern>> {
    let caller = prop_oneof![Just("web"), Just("*.reports"), Just("*.*.east")];
    vec(caller.prop_map(|text| text.parse().unwrap()), least..3)
}

fn rate_limit() -> impl Strategy<Value = RateLimit> {
    (1_u32..1000, 1_u64..3600, 1_u32..2000).prop_map(|(requests, per, burst)| RateLimit {
        requests,
        per: Duration::from_secs(per),
        burst,
    })
}

fn balancing() -> impl Strategy<Value = Balancing> {
    let ewma = seconds(3600).prop_map(|decay| Balancing::PeakEwma { decay });
    prop_oneof![Just(Balancing::LeastRequests), ewma]
}

fn outlier() -> impl Strategy<Value = Outlier> {
    let rate = (seconds(3600), 1_u32..1000, 0_u32..20, 500_u32..=10_000);
    let rate = rate.prop_map(|(interval, min_requests, min_replicas, deviations)| SuccessRate {
        interval,
        min_requests,
        min_replicas,
        deviations,
    });
    let times = (seconds(1000), seconds(1000));
    (0_u32..20, option::of(rate), times, 0_u32..=100).prop_map(
        |(consecutive_failures, success_rate, (ejection, more), max_ejected_percent)| Outlier {
            consecutive_failures,
            success_rate,
            ejection,
            longest_ejection: ejection + more,
            max_ejected_percent,
        },
    )
}

fn locality() -> impl Strategy<Value = LocalityRules> {
    let prefer = proptest::sample::select(&Level::ALL[..]);
    (prefer, 1_u32..=100, 1_u32..=1_000_000)
        .prop_map(|(prefer, threshold, spill_over)| LocalityRules { prefer, threshold, spill_over })
}

fn fault() -> impl Strategy<Value = Fault> {
    let delay = (seconds(300), 0..=WHOLE_SHARE);
    let delay = delay.prop_map(|(time, share)| DelayFault { time, share });
    let abort = (400_u16..600, 1_u8..=16, 0..=WHOLE_SHARE)
        .prop_map(|(status, grpc_status, share)| AbortFault { status, grpc_status, share });
    (callers(0), delay, option::of(abort)).prop_map(|(from, delay, abort)| Fault {
        from,
        delay: Some(delay),
        abort,
    })
}

fn rate() -> impl Strategy<Value = Rate> {
    let entry = (callers(1), rate_limit()).prop_map(|(from, limit)| CallerRate { from, limit });
    (rate_limit(), option::of(rate_limit()), vec(entry, 0..3))
        .prop_map(|(service, caller, callers)| Rate { service: Some(service), caller, callers })
}

/// Valid ones.
pub(super) fn traffic_policy() -> impl Strategy<Value = TrafficPolicy> {
    let at_callers = (
        option::of(balancing()),
        option::of(locality()),
        option::of(seconds(3600)),
        option::of(outlier()),
        option::of(0_u32..=100),
        vec(fault(), 0..3),
    );
    let shedding = (seconds(3600), seconds(3600));
    let shedding = shedding.prop_map(|(target, interval)| Shedding { target, interval });
    let at_replicas = (option::of(rate()), option::of(1_u32..1000), option::of(shedding));
    let parts = (at_callers, at_replicas).prop_map(|(callers, replicas)| {
        let (balancing, locality, slow_start, outlier, panic_percent, faults) = callers;
        let (rate, concurrency_per_caller, shedding) = replicas;
        TrafficParts {
            balancing,
            locality,
            slow_start,
            outlier,
            panic_percent: panic_percent.or(Some(50)),
            faults,
            rate,
            concurrency_per_caller,
            shedding,
            shadow: ShadowLimits::default(),
        }
    });
    (label(), label(), option::of(label()), parts).prop_map(|(namespace, name, app, parts)| {
        let target = app.map_or(TrafficTarget::Namespace, TrafficTarget::App);
        let name = ObjectName { namespace, name };
        TrafficPolicy { name, target, mode: Mode::Enforce, parts }
    })
}

fn egress_host() -> impl Strategy<Value = EgressHost> {
    let name = "[a-z][a-z0-9-]{0,6}([.][a-z][a-z0-9]{0,3}){0,2}";
    let named = prop_oneof![
        name.prop_map(String::from),
        name.prop_map(|text| format!("*.{text}")),
        Just("*".to_owned()),
    ];
    let tls = (1..=u16::MAX, option::of(Just("-----BEGIN CERTIFICATE-----\n")));
    let tls = tls.prop_map(|(plain_port, authorities)| BeginTls {
        plain_port,
        authorities: authorities.map(Into::into),
    });
    let named = (named, option::of(1..=u16::MAX), option::of(tls))
        .prop_filter_map("a name of the mesh", |(host, port, tls)| {
            Some(EgressHost { host: host.parse().ok()?, port, tls })
        });
    let range = (any::<std::net::IpAddr>(), option::of(1..=u16::MAX)).prop_map(|(ip, port)| {
        EgressHost { host: ip.to_string().parse().unwrap(), port, tls: None }
    });
    prop_oneof![named, range]
}

pub(super) fn egress() -> impl Strategy<Value = Egress> {
    let from = vec(label().prop_map(|app| app.to_string().parse::<AppPattern>().unwrap()), 0..3);
    let mode = prop_oneof![Just(Mode::Enforce), Just(Mode::Shadow)];
    (label(), from, mode, vec(egress_host(), 1..4)).prop_map(|(name, from, mode, hosts)| Egress {
        name: ObjectName::new("shop", name.as_str()).unwrap(),
        mode,
        from,
        hosts,
    })
}
