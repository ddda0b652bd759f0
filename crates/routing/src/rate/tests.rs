use tollway_model::traffic_policy::CallerRate;
use tollway_model::{SpiffeId, TrustDomain};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limit(requests: u32) -> RateLimit {
    RateLimit { requests, per: SECOND, burst: RateLimit::usual_burst(requests) }
}

fn service(requests: u32) -> Rate {
    Rate { service: Some(limit(requests)), ..Rate::default() }
}

/// Callers of which each sends so many requests a second, for ten seconds; gives what each got.
fn simulate(rate: Rate, per_second: &[u32]) -> Vec<u32> {
    let start = Instant::now();
    let limits = RateControl::new(rate, start);
    let mut table = CallerUses::new(RATED_CALLERS_LIMIT, start);
    let uses: Vec<_> = (0..per_second.len())
        .map(|caller| table.of(&caller, || limits.rate.caller, start))
        .collect();
    let mut requests: Vec<(Duration, usize)> = Vec::new();
    for (caller, rate) in per_second.iter().enumerate() {
        requests.extend((0..rate * 10).map(|n| (n * SECOND / *rate, caller)));
    }
    requests.sort_unstable();
    let mut taken = vec![0; per_second.len()];
    for (at, caller) in requests {
        taken[caller] += u32::from(limits.take(&uses[caller], start + at).is_ok());
    }
    taken
}

#[test]
fn a_limit_of_a_service_is_exact_under_three_callers() {
    for offered in [[400, 400, 400], [1000, 1000, 1000], [100, 300, 5000]] {
        let taken: u32 = simulate(service(1000), &offered).iter().sum();
        assert!((10_000..=10_100).contains(&taken), "{taken} of {offered:?}");
    }
    let all: u32 = simulate(service(1000), &[300, 300, 300]).iter().sum();
    assert_eq!(all, 9_000);
}

#[test]
fn a_limit_of_each_caller_is_exact_and_does_not_concern_the_others() {
    let rate = Rate { caller: Some(limit(300)), ..Rate::default() };
    let taken = simulate(rate, &[200, 1000, 5000]);
    assert_eq!(taken[0], 2_000);
    assert!(taken[1..].iter().all(|count| (3_000..=3_030).contains(count)), "{taken:?}");
}

#[test]
fn a_caller_over_its_own_limit_takes_nothing_of_the_service() {
    let rate = Rate { caller: Some(limit(300)), ..service(1000) };
    let taken = simulate(rate, &[300, 290, 20_000]);
    assert_eq!(taken[..2], [3_000, 2_900]);
    assert!((3_000..=3_030).contains(&taken[2]), "{taken:?}");
}

#[test]
fn the_wait_that_is_given_is_the_one_after_which_a_request_is_taken() {
    let start = Instant::now();
    let limit = RateLimit { requests: 3, per: SECOND, burst: 2 };
    let limits = RateControl::new(Rate { service: Some(limit), ..Rate::default() }, start);
    let caller = CallerUse::new(None, start);
    assert_eq!(limits.take(&caller, start), Ok(()));
    assert_eq!(limits.take(&caller, start), Ok(()));
    let refusal = limits.take(&caller, start).unwrap_err();
    assert_eq!((refusal.by, refusal.wait.as_millis()), (LimitedBy::Service, 333));
    assert_eq!(refusal.retry_after_seconds(), 1);
    let before = start + refusal.wait - Duration::from_nanos(1);
    assert_eq!(limits.take(&caller, before).unwrap_err().wait, Duration::from_nanos(1));
    assert_eq!(limits.take(&caller, start + refusal.wait), Ok(()));
    let long = RateRefusal { by: LimitedBy::Caller, wait: Duration::from_millis(2001) };
    assert_eq!(long.retry_after_seconds(), 3);
}

#[test]
fn after_a_pause_as_many_come_at_once_as_the_burst() {
    let start = Instant::now();
    let limits = RateControl::new(service(100), start);
    let caller = CallerUse::new(None, start);
    for round in 0..5 {
        let now = start + round * SECOND;
        let taken = (0..1000).filter(|_| limits.take(&caller, now).is_ok()).count();
        assert_eq!(taken, 10, "{round}");
    }
}

#[test]
fn a_request_that_the_service_refuses_costs_its_caller_nothing() {
    let start = Instant::now();
    let one = RateLimit { requests: 1, per: SECOND, burst: 1 };
    let rate = Rate { service: Some(one), caller: Some(one), ..Rate::default() };
    let limits = RateControl::new(rate, start);
    let [a, b] = [(); 2].map(|()| CallerUse::new(Some(one), start));
    assert_eq!(limits.take(&a, start), Ok(()));
    assert_eq!(limits.take(&b, start).unwrap_err().by, LimitedBy::Service);
    assert_eq!(limits.take(&a, start).unwrap_err().by, LimitedBy::Caller);
    assert_eq!(limits.take(&b, start + SECOND), Ok(()));
}

#[test]
fn the_first_entry_that_names_a_caller_has_its_limit() {
    let label = |text: &str| Label::new(text).unwrap();
    let entry = |from: &str, requests| CallerRate {
        from: vec![from.parse().unwrap()],
        limit: limit(requests),
    };
    let callers = vec![entry("web", 1), entry("*.reports", 2), entry("job.reports", 3)];
    let rate = Rate { caller: Some(limit(9)), callers, service: None };
    let limits = RateControl::new(rate, Instant::now());
    let of = |app: &str, namespace: &str| {
        let spiffe = SpiffeId {
            trust_domain: TrustDomain::default_for(&label("west")),
            namespace: label(namespace),
            app: label(app),
        };
        let caller = Caller { spiffe: &spiffe, network: &label("west") };
        limits.of_caller(caller, &label("shop"), &label("west")).unwrap().requests
    };
    assert_eq!(of("web", "shop"), 1);
    assert_eq!(of("job", "reports"), 2);
    assert_eq!(of("web", "other"), 9);
}

#[test]
fn identities_that_are_idle_make_way_and_the_rest_is_counted_as_one() {
    let start = Instant::now();
    let one = RateLimit { requests: 1, per: 10 * SECOND, burst: 1 };
    let limits = RateControl::new(Rate { caller: Some(one), ..Rate::default() }, start);
    let mut table = CallerUses::new(2, start);
    let mut take = |caller: u32, now: Instant| {
        let of = table.of(&caller, || Some(one), now);
        limits.take(&of, now).is_ok()
    };
    assert!(take(1, start) && take(2, start));
    assert!(!take(1, start) && !take(2, start));
    // Both are in use; the next two share one limit.
    assert!(take(3, start));
    assert!(!take(4, start));
    let later = start + 10 * SECOND;
    assert!(take(5, later));
    assert!(take(1, later) && !take(1, later));
    assert!(!take(5, later));
    let held = table.of(&1, || Some(one), later);
    let much_later = later + 100 * SECOND;
    let [six, seven] = [6, 7].map(|caller| table.of(&caller, || Some(one), much_later));
    assert!(!Arc::ptr_eq(&six, &seven), "one made way");
    assert!(Arc::ptr_eq(&held, &table.of(&1, || Some(one), much_later)), "one is held");
}

#[test]
fn a_caller_has_at_most_so_many_requests_under_way() {
    let caller = CallerUse::new(None, Instant::now());
    assert!(caller.begin(2) && caller.begin(2));
    assert!(!caller.begin(2));
    caller.end();
    assert!(caller.begin(2));
    assert!(!caller.begin(1) && caller.begin(3));
}

#[test]
fn threads_that_share_a_limit_take_no_more_than_it() {
    let start = Instant::now();
    let limits = RateControl::new(service(100_000), start);
    let caller = CallerUse::new(None, start);
    let taken = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for step in 0..10_000_u32 {
                    let now = start + step * Duration::from_micros(10);
                    let is_taken = limits.take(&caller, now).is_ok();
                    taken.fetch_add(u32::from(is_taken), Ordering::Relaxed);
                }
            });
        }
    });
    // A tenth of a second at 100,000/s, and the burst.
    let taken = taken.load(Ordering::Relaxed);
    assert!((10_000..=20_000).contains(&taken), "{taken}");
}

proptest::proptest! {
    /// However requests come, over any span there are no more than the rate and the burst.
    #[test]
    fn no_span_has_more_than_the_rate_and_the_burst(
        requests in 1_u32..50,
        burst in 1_u32..20,
        pauses in proptest::collection::vec(0_u64..200, 1..300),
    ) {
        let start = Instant::now();
        let limit = RateLimit { requests, per: SECOND, burst };
        let limits = RateControl::new(Rate { service: Some(limit), ..Rate::default() }, start);
        let caller = CallerUse::new(None, start);
        let (mut now, mut taken) = (start, Vec::new());
        for pause in pauses {
            now += Duration::from_millis(if pause < 150 { 0 } else { pause });
            match limits.take(&caller, now) {
                Ok(()) => taken.push(now),
                Err(RateRefusal { wait, .. }) => {
                    proptest::prop_assert!(wait <= SECOND / requests * (burst + 1));
                }
            }
        }
        for (first, from) in taken.iter().enumerate() {
            for (last, to) in taken.iter().enumerate().skip(first) {
                let span = (*to - *from).as_secs_f64();
                let most = span * f64::from(requests) + f64::from(burst) + 0.001;
                proptest::prop_assert!((last - first + 1) as f64 <= most);
            }
        }
    }
}
