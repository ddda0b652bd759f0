//! Limits of traffic policies, held by the callee's sidecar.

use tollway_model::traffic_policy::{Rate, RateLimit, ShadowLimits, Shedding, TrafficParts};

use super::*;
use crate::mesh::TrafficUpdate;

const SECOND: Duration = Duration::from_secs(1);

fn limit(world: &World, parts: &TrafficParts) {
    let home = service("stock.default.east");
    let update = TrafficUpdate::unobserved(parts, &home, now());
    world.callee.commands.send(Command::Traffic(update));
}

fn get(world: &World, path: &str) -> String {
    let request = format!("GET {INVOKE}{path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    talk(&mut connect(world.http()), request.as_bytes(), b"\r\n\r\n")
}

fn per_caller(requests: u32, burst: u32) -> TrafficParts {
    let caller = Some(RateLimit { requests, per: SECOND, burst });
    TrafficParts { rate: Some(Rate { caller, ..Rate::default() }), ..TrafficParts::default() }
}

#[test]
fn a_caller_over_its_rate_is_refused_and_served_again_when_it_has_waited() {
    let world = World::new(AppProtocol::Http);
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    limit(&world, &per_caller(1, 2));
    for _ in 0..2 {
        assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    }
    let refused = get(&world, "/");
    assert!(refused.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{refused}");
    assert!(refused.contains("x-tollway-error: ERR_RATE_LIMITED\r\n"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    assert_eq!(world.callee.metrics.rate_limited.value(), 1);
    advance(SECOND);
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    // Without the policy there is no limit any more.
    limit(&world, &TrafficParts::default());
    for _ in 0..5 {
        assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    }
}

#[test]
fn a_caller_has_no_more_requests_under_way_than_it_may() {
    let world = World::new(AppProtocol::Http);
    let one = TrafficParts { concurrency_per_caller: Some(1), ..TrafficParts::default() };
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    limit(&world, &one);
    let mut stuck = connect(world.http());
    let request = format!("GET {INVOKE}/stuck HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stuck.write_all(request.as_bytes()).unwrap();
    advance(SWEEP);
    let refused = get(&world, "/");
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    drop(stuck);
    advance(SWEEP);
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "), "the one under way has ended");
}

#[test]
fn a_request_that_waits_for_an_app_which_takes_less_than_comes_is_refused() {
    let world = World::new(AppProtocol::Http);
    world.limit_app(1);
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    let rule = Shedding { target: SWEEP, interval: SECOND };
    limit(&world, &TrafficParts { shedding: Some(rule), ..TrafficParts::default() });
    let ask = |path: &str| {
        let mut stream = connect(world.http());
        let request = format!("GET {INVOKE}{path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        advance(SWEEP);
        stream
    };
    // One request has the app for longer than an interval, and the next one waits for that long.
    let first = ask("/stuck");
    let second = ask("/stuck");
    advance(SECOND * 3 / 2);
    let mut third = ask("/");
    drop(first);
    advance(SWEEP);
    advance(SECOND);
    assert_eq!(world.callee.metrics.requests_shed.value(), 0, "it may have been a burst");
    drop(second);
    let refused = talk(&mut third, b"", b"\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains("x-tollway-error: ERR_OVERLOADED\r\n"), "{refused}");
    assert_eq!(world.callee.metrics.requests_shed.value(), 1);
    // What does not wait is served.
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    assert_eq!(world.callee.metrics.requests_shed.value(), 1);
}

#[test]
fn limits_in_shadow_mode_refuse_nothing_and_are_counted() {
    let world = World::new(AppProtocol::Http);
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    let shadow = ShadowLimits { rate: per_caller(1, 2).rate, concurrency_per_caller: Some(1) };
    limit(&world, &TrafficParts { shadow: shadow.clone(), ..per_caller(1, 4) });
    let statuses: Vec<bool> =
        (0..5).map(|_| get(&world, "/").starts_with("HTTP/1.1 200 ")).collect();
    assert_eq!(statuses, [true, true, true, true, false], "that in force holds");
    let metrics = &world.callee.metrics;
    assert_eq!((metrics.rate_shadow_limited.value(), metrics.rate_limited.value()), (2, 1));
    // One under way is over the limit of one, and ends in both.
    limit(&world, &TrafficParts { shadow, ..TrafficParts::default() });
    let mut stuck = connect(world.http());
    let request = format!("GET {INVOKE}/stuck HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stuck.write_all(request.as_bytes()).unwrap();
    advance(SWEEP);
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    assert_eq!(metrics.rate_shadow_limited.value(), 3);
    drop(stuck);
    advance(SWEEP);
    assert!(get(&world, "/").starts_with("HTTP/1.1 200 "));
    assert_eq!(metrics.rate_shadow_limited.value(), 3, "the one under way has ended");
}
