use super::*;
use crate::balance::{Candidate, choose};

const SECOND: Duration = Duration::from_secs(1);

fn rules(outlier: Outlier) -> ReplicaRules {
    ReplicaRules {
        balancing: Balancing::LeastRequests,
        outlier: Some(outlier),
        panic_percent: 50,
        slow_start: Duration::ZERO,
    }
}

fn with_success_rate() -> ReplicaRules {
    rules(Outlier {
        consecutive_failures: 0,
        success_rate: Some(SuccessRate::DEFAULT),
        ..Outlier::DEFAULT
    })
}

fn service(count: u32, rules: ReplicaRules, now: Instant) -> Replicas<u32> {
    let mut replicas = Replicas::new(rules, now);
    replicas.update(0..count, now);
    replicas
}

fn id(replicas: &Replicas<u32>, key: u32) -> ReplicaId {
    replicas.find(&key).unwrap()
}

fn note(replicas: &mut Replicas<u32>, key: u32, outcome: ReplicaOutcome, now: Instant) {
    let id = id(replicas, key);
    replicas.note(id, outcome, now, |_, _, _| {});
}

fn fail(replicas: &mut Replicas<u32>, key: u32, times: u32, now: Instant) {
    (0..times).for_each(|_| note(replicas, key, ReplicaOutcome::Failure, now));
}

fn share(replicas: &Replicas<u32>, key: u32, now: Instant) -> Share {
    replicas.share(id(replicas, key), now)
}

/// A request at virtual time to a replica that is chosen as the data path does it.
struct Simulation {
    replicas: Replicas<u32>,
    random: u64,
}

impl Simulation {
    fn choose(&mut self, count: u32, now: Instant) -> u32 {
        self.replicas.advance(now, |_| {});
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random ^= random >> 31;
        let candidate = |key: usize| {
            let share = share(&self.replicas, u32::try_from(key).unwrap(), now);
            Some(Candidate { cost: 0, share })
        };
        let chosen = choose(usize::try_from(count).unwrap(), random, candidate);
        u32::try_from(chosen.unwrap()).unwrap()
    }
}

#[test]
fn one_failing_replica_of_three_is_left_out_within_two_seconds_and_comes_back() {
    let start = Instant::now();
    let mut simulation =
        Simulation { replicas: service(3, rules(Outlier::DEFAULT), start), random: 1 };
    let (fails_from, fails_until) = (10 * SECOND, 90 * SECOND);
    let (mut failed_late, mut failed, mut after) = (0, 0, [0_u32; 3]);
    let mut ejections = Vec::new();
    for tick in 0..40_000_u32 {
        let at = 10 * tick * Duration::from_millis(1);
        let now = start + at;
        let key = simulation.choose(3, now);
        let is_failure = key == 1 && (fails_from..fails_until).contains(&at);
        let outcome = if is_failure { ReplicaOutcome::Failure } else { ReplicaOutcome::Success };
        let id = id(&simulation.replicas, key);
        simulation.replicas.note(id, outcome, now, |key, reason, time| {
            ejections.push((*key, reason, at.as_secs(), time.as_secs()));
        });
        failed += u32::from(is_failure);
        failed_late += u32::from(is_failure && at > fails_from + 2 * SECOND);
        if at >= 300 * SECOND {
            after[usize::try_from(key).unwrap()] += 1;
        }
    }
    let reason = EjectionReason::ConsecutiveFailures;
    // Five failures, and the trial when it first comes back; the next one succeeds.
    assert_eq!(ejections, [(1, reason, 10, 30), (1, reason, 40, 60)]);
    assert_eq!((failed, failed_late), (6, 1));
    let even = after.iter().sum::<u32>() / 3;
    assert!(after.iter().all(|count| count.abs_diff(even) * 20 < even), "{after:?}");
}

#[test]
fn failures_with_a_success_between_them_eject_nothing() {
    let now = Instant::now();
    let mut replicas = service(3, rules(Outlier::DEFAULT), now);
    for _ in 0..100 {
        fail(&mut replicas, 0, 4, now);
        note(&mut replicas, 0, ReplicaOutcome::Success, now);
    }
    assert_eq!(replicas.ejected(), 0);
    fail(&mut replicas, 0, 5, now);
    assert_eq!(replicas.ejected(), 1);
    assert_eq!(share(&replicas, 0, now), Share::NONE);
    assert_eq!(share(&replicas, 1, now), Share::WHOLE);
}

#[test]
fn at_most_a_part_is_ejected() {
    let now = Instant::now();
    for (count, most) in [(1, 0), (2, 1), (3, 1), (4, 2), (10, 5)] {
        let mut replicas = service(count, rules(Outlier::DEFAULT), now);
        (0..count).for_each(|key| fail(&mut replicas, key, 100, now));
        assert_eq!(replicas.ejected(), most, "of {count}");
        assert!(!replicas.is_panic());
    }
    // The next failure of one that was not ejected ejects it once another has come back.
    let mut replicas = service(2, rules(Outlier::DEFAULT), now);
    fail(&mut replicas, 0, 5, now);
    fail(&mut replicas, 1, 5, now);
    let later = now + 30 * SECOND;
    assert_eq!(replicas.advance(later, |_| {}), 1);
    fail(&mut replicas, 1, 1, later);
    assert_eq!(share(&replicas, 1, later), Share::NONE);
}

#[test]
fn if_too_few_are_left_all_are_used() {
    let now = Instant::now();
    let all = Outlier { max_ejected_percent: 100, ..Outlier::DEFAULT };
    let mut replicas = service(4, rules(all), now);
    for (key, is_panic) in [(0, false), (1, false), (2, true), (3, true)] {
        fail(&mut replicas, key, 5, now);
        assert_eq!(replicas.is_panic(), is_panic, "{key}");
    }
    assert!((0..4).all(|key| share(&replicas, key, now) == Share::WHOLE));
    replicas.set_rules(ReplicaRules { panic_percent: 0, ..rules(all) }, now);
    assert!((0..4).all(|key| share(&replicas, key, now) == Share::NONE));
    replicas.set_rules(ReplicaRules { outlier: None, ..rules(all) }, now);
    assert!((0..4).all(|key| share(&replicas, key, now) == Share::WHOLE));
    assert_eq!(replicas.ejected(), 0);
}

#[test]
fn each_ejection_is_longer_up_to_a_bound_and_is_forgotten_in_time() {
    let mut now = Instant::now();
    let mut replicas = service(3, rules(Outlier::DEFAULT), now);
    let eject = |replicas: &mut Replicas<u32>, now: Instant, failures| {
        let (id, mut ejected_for) = (id(replicas, 0), None);
        for _ in 0..failures {
            replicas.note(id, ReplicaOutcome::Failure, now, |_, _, time| ejected_for = Some(time));
        }
        ejected_for.map(|time| time.as_secs())
    };
    assert_eq!(eject(&mut replicas, now, 4), None);
    assert_eq!(eject(&mut replicas, now, 1), Some(30));
    let mut last = 30;
    for expected in [60, 90, 120, 150, 180, 210, 240, 270, 300, 300] {
        now += Duration::from_secs(last);
        assert_eq!(replicas.advance(now, |_| {}), 1);
        assert_eq!(share(&replicas, 0, now), Share::LEAST, "it is on trial");
        assert_eq!(eject(&mut replicas, now, 1), Some(expected));
        last = expected;
    }
    now += 300 * SECOND;
    assert_eq!(replicas.advance(now, |_| {}), 1);
    note(&mut replicas, 0, ReplicaOutcome::Success, now);
    assert_eq!(share(&replicas, 0, now), Share::WHOLE);
    // Eleven ejections, of which a time of 30 s each forgets one.
    assert_eq!(eject(&mut replicas, now + 9 * 30 * SECOND, 5), Some(90));
}

#[test]
fn what_was_under_way_when_it_was_ejected_does_not_count() {
    let now = Instant::now();
    let mut replicas = service(3, rules(Outlier::DEFAULT), now);
    fail(&mut replicas, 0, 50, now);
    note(&mut replicas, 0, ReplicaOutcome::Success, now);
    assert_eq!(share(&replicas, 0, now), Share::NONE);
    let back = now + 30 * SECOND;
    assert_eq!(replicas.advance(back - Duration::from_millis(1), |_| {}), 0);
    assert_eq!(replicas.advance(back, |_| {}), 1);
    note(&mut replicas, 0, ReplicaOutcome::Success, back);
    assert_eq!(share(&replicas, 0, back), Share::WHOLE);
}

/// Each of `rates` is the successes of a replica in a hundred; gives those that are ejected.
fn ejected_by_rate(rates: &[u32], requests: u32, rules: ReplicaRules) -> Vec<u32> {
    let start = Instant::now();
    let count = u32::try_from(rates.len()).unwrap();
    let mut replicas = service(count, rules, start);
    let mut ejected = Vec::new();
    for number in 0..requests {
        for (key, rate) in rates.iter().enumerate() {
            let is_success = number % 100 < *rate;
            let outcome =
                if is_success { ReplicaOutcome::Success } else { ReplicaOutcome::Failure };
            note(&mut replicas, u32::try_from(key).unwrap(), outcome, start + 9 * SECOND);
        }
    }
    let id = id(&replicas, 0);
    let overloaded = ReplicaOutcome::Overloaded { retry_after: None };
    replicas.note(id, overloaded, start + 10 * SECOND, |key, reason, _| {
        assert_eq!(reason, EjectionReason::SuccessRate);
        ejected.push(*key);
    });
    ejected
}

#[test]
fn a_replica_that_fails_more_often_than_the_others_is_ejected() {
    let rules = with_success_rate();
    assert_eq!(ejected_by_rate(&[100, 100, 50, 100, 100], 100, rules), [2]);
    assert_eq!(ejected_by_rate(&[99, 98, 99, 70, 97, 99, 98], 1000, rules), [3]);
    let none: [u32; 0] = [];
    assert_eq!(ejected_by_rate(&[100, 100, 50, 100, 100], 99, rules), none, "too few requests");
    assert_eq!(ejected_by_rate(&[100, 50, 100, 100], 100, rules), none, "too few replicas");
    assert_eq!(ejected_by_rate(&[50; 5], 100, rules), none, "all fail alike");
    assert_eq!(ejected_by_rate(&[100, 100, 99, 100, 100], 100, rules), none, "hardly worse");
    assert_eq!(ejected_by_rate(&[100, 90, 50, 40, 30], 100, rules), none, "no two are alike");
}

#[test]
fn requests_of_one_interval_do_not_count_in_the_next() {
    let start = Instant::now();
    let mut replicas = service(5, with_success_rate(), start);
    for key in 0..5 {
        for _ in 0..60 {
            let outcome = if key == 0 { ReplicaOutcome::Failure } else { ReplicaOutcome::Success };
            note(&mut replicas, key, outcome, start);
        }
    }
    for key in 0..5 {
        for _ in 0..60 {
            note(&mut replicas, key, ReplicaOutcome::Success, start + 11 * SECOND);
        }
    }
    note(&mut replicas, 1, ReplicaOutcome::Success, start + 22 * SECOND);
    assert_eq!(replicas.ejected(), 0);
}

/// A replica that takes so many requests a second, and as many at once.
struct Bucket {
    per_second: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn takes(&mut self, now: Instant) -> bool {
        let passed = (now - self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.per_second);
        self.at = now;
        let takes = self.tokens >= 1.0;
        self.tokens -= if takes { 1.0 } else { 0.0 };
        takes
    }
}

/// Refused requests of 60 s at 200/s, and those that the small replica of three served.
fn overload(is_noted: bool, retry_after: Option<Duration>) -> (u32, u32) {
    let start = Instant::now();
    let mut simulation =
        Simulation { replicas: service(3, rules(Outlier::DEFAULT), start), random: 5 };
    let mut small = Bucket { per_second: 20.0, tokens: 20.0, at: start };
    let (mut refused, mut served) = (0, 0);
    for tick in 0..12_000_u32 {
        let now = start + tick * Duration::from_millis(5);
        let key = simulation.choose(3, now);
        if key != 1 {
            note(&mut simulation.replicas, key, ReplicaOutcome::Success, now);
        } else if small.takes(now) {
            served += 1;
            note(&mut simulation.replicas, key, ReplicaOutcome::Success, now);
        } else {
            refused += 1;
            if is_noted {
                let outcome = ReplicaOutcome::Overloaded { retry_after };
                note(&mut simulation.replicas, key, outcome, now);
            }
        }
    }
    assert_eq!(simulation.replicas.ejected(), 0);
    (refused, served)
}

#[test]
fn a_replica_that_is_asked_for_too_much_gets_less_and_is_never_ejected() {
    let (unheeded, _) = overload(false, None);
    assert!(unheeded > 2_500, "{unheeded}");
    let (refused, served) = overload(true, None);
    assert!(refused < 100, "{refused} were refused, {unheeded} if nothing is done");
    // It could serve 1,200.
    assert!(served > 900, "{served}");
    let (refused, _) = overload(true, Some(5 * SECOND));
    assert!(refused < 20, "{refused}");
}

#[test]
fn a_time_that_a_replica_asks_for_has_a_bound() {
    let now = Instant::now();
    let mut replicas = service(2, rules(Outlier::DEFAULT), now);
    let hour = ReplicaOutcome::Overloaded { retry_after: Some(3600 * SECOND) };
    note(&mut replicas, 0, hour, now);
    note(&mut replicas, 0, ReplicaOutcome::Overloaded { retry_after: None }, now);
    assert_eq!(share(&replicas, 0, now + 59 * SECOND), Share::LEAST);
    assert_eq!(share(&replicas, 0, now + 60 * SECOND), Share::WHOLE);
}

#[test]
fn the_share_of_one_that_joins_or_comes_back_rises() {
    let start = Instant::now();
    let slow = ReplicaRules { slow_start: 10 * SECOND, ..rules(Outlier::DEFAULT) };
    let mut replicas = service(3, slow, start);
    assert!((0..3).all(|key| share(&replicas, key, start) == Share::WHOLE), "the first ones");
    replicas.update([0, 1, 2, 7], start);
    assert_eq!(share(&replicas, 7, start), Share::LEAST);
    let half = share(&replicas, 7, start + 5 * SECOND);
    assert!(half > Share::rising(4 * SECOND, 10 * SECOND) && half < Share::WHOLE);
    assert_eq!(share(&replicas, 7, start + 10 * SECOND), Share::WHOLE);
    assert_eq!(share(&replicas, 0, start), Share::WHOLE);
    fail(&mut replicas, 0, 5, start);
    let back = start + 30 * SECOND;
    replicas.advance(back, |_| {});
    note(&mut replicas, 0, ReplicaOutcome::Success, back);
    assert_eq!(share(&replicas, 0, back), Share::LEAST);
    assert_eq!(share(&replicas, 0, back + 10 * SECOND), Share::WHOLE);
}

#[test]
fn one_that_left_is_not_mistaken_for_one_that_joined() {
    let now = Instant::now();
    let mut replicas = service(3, rules(Outlier::DEFAULT), now);
    let old = id(&replicas, 0);
    fail(&mut replicas, 0, 5, now);
    assert_eq!(replicas.ejected(), 1);
    replicas.update([1, 2, 9], now);
    assert_eq!(replicas.ejected(), 0);
    assert_eq!(replicas.find(&0), None);
    assert_eq!(replicas.share(old, now), Share::WHOLE);
    (0..9).for_each(|_| replicas.note(old, ReplicaOutcome::Failure, now, |_, _, _| {}));
    assert_eq!(replicas.ejected(), 0);
    assert_eq!(replicas.join(9, Start::Whole, now), id(&replicas, 9));
}

#[test]
fn responses_show_their_replica_as_it_is() {
    let of = |status, grpc| ReplicaOutcome::of_response(status, grpc, Some(SECOND));
    let overloaded = ReplicaOutcome::Overloaded { retry_after: Some(SECOND) };
    for status in [500, 502, 503, 504, 599] {
        assert_eq!(of(status, None), ReplicaOutcome::Failure, "{status}");
    }
    for status in [200, 204, 301, 400, 401, 404, 408, 501] {
        assert_eq!(of(status, None), ReplicaOutcome::Success, "{status}");
    }
    assert_eq!(of(429, None), overloaded);
    for grpc in [2, 4, 13, 14, 15] {
        assert_eq!(of(200, Some(grpc)), ReplicaOutcome::Failure, "{grpc}");
    }
    for grpc in [0, 1, 3, 5, 6, 7, 9, 10, 11, 12, 16] {
        assert_eq!(of(200, Some(grpc)), ReplicaOutcome::Success, "{grpc}");
    }
    assert_eq!(of(200, Some(8)), overloaded);
}

proptest::proptest! {
    #[test]
    fn never_more_than_the_part_is_ejected_and_all_come_back(
        count in 1_u32..12,
        percent in 0_u32..=100,
        steps in proptest::collection::vec((0_u32..12, 0_u8..4, 0_u64..20_000), 1..300),
    ) {
        let start = Instant::now();
        let outlier = Outlier { max_ejected_percent: percent, ..Outlier::DEFAULT };
        let mut replicas = service(count, rules(outlier), start);
        let mut now = start;
        for (key, what, pause) in steps {
            now += Duration::from_millis(if pause < 19_000 { 1 } else { pause });
            let outcome = match what {
                0 => ReplicaOutcome::Success,
                1 => ReplicaOutcome::Overloaded { retry_after: None },
                _ => ReplicaOutcome::Failure,
            };
            note(&mut replicas, key % count, outcome, now);
            let out = (0..count).filter(|key| share(&replicas, *key, now) == Share::NONE).count();
            proptest::prop_assert!(replicas.ejected() * 100 <= percent as usize * count as usize);
            proptest::prop_assert!(out <= replicas.ejected());
        }
        replicas.advance(now + 301 * SECOND, |_| {});
        proptest::prop_assert_eq!(replicas.ejected(), 0);
    }
}
