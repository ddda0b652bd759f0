use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

const DECAY: Duration = Balancing::DECAY;

/// Uniform numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0.5 to 1.5.
    fn jitter(&mut self) -> f64 {
        0.5 + (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How a replica serves: the usual time of a response, and the failures in a hundred.
#[derive(Clone, Copy)]
struct Server {
    time: Duration,
    failures: u64,
}

const FAST: Server = Server { time: Duration::from_millis(10), failures: 0 };
const SLOW: Server = Server { time: Duration::from_millis(100), failures: 0 };

/// Requests that each replica gets in `seconds`, at times by chance.
fn simulate(
    balancing: Balancing,
    servers: &[Server],
    per_second: u32,
    seconds: u32,
    seed: u64,
) -> Vec<u32> {
    let start = Instant::now();
    let mut random = Random(seed);
    let mut times = vec![PeakEwma::new(start); servers.len()];
    let mut under_way = vec![0_u32; servers.len()];
    let mut served = vec![0_u32; servers.len()];
    let mut responses: BinaryHeap<Reverse<(Instant, usize, Instant, bool)>> = BinaryHeap::new();
    let mut now = start;
    for _ in 0..per_second * seconds {
        now += Duration::from_secs(1).mul_f64(random.jitter()) / per_second;
        while let Some(Reverse((at, replica, begun, is_failure))) = responses.peek().copied() {
            if at > now {
                break;
            }
            responses.pop();
            under_way[replica] -= 1;
            if is_failure {
                times[replica].note_failure(at - begun, DECAY, at);
            } else {
                times[replica].note_success(at - begun, DECAY, at);
            }
        }
        let candidate = |index: usize| {
            let cost = cost(balancing, under_way[index], &times[index], now);
            Some(Candidate { cost, share: Share::WHOLE })
        };
        let replica = choose(servers.len(), random.next(), candidate).unwrap();
        under_way[replica] += 1;
        served[replica] += 1;
        let is_failure = random.next() % 100 < servers[replica].failures;
        let time = servers[replica].time.mul_f64(random.jitter());
        responses.push(Reverse((now + time, replica, now, is_failure)));
    }
    served
}

const EWMA: Balancing = Balancing::PeakEwma { decay: DECAY };

#[test]
fn a_replica_that_is_ten_times_slower_gets_less_than_a_tenth() {
    for per_second in [10, 100, 600] {
        for seed in 0..4 {
            let served = simulate(EWMA, &[FAST, SLOW, FAST], per_second, 60, seed);
            let all: u32 = served.iter().sum();
            assert!(served[1] * 10 < all, "{served:?} at {per_second}/s");
            assert!(served[0].abs_diff(served[2]) * 5 < all, "{served:?} at {per_second}/s");
        }
    }
    // Requests under way alone do not show it unless there are many.
    let served = simulate(Balancing::LeastRequests, &[FAST, SLOW, FAST], 100, 60, 1);
    assert!(served[1] * 10 > served.iter().sum::<u32>(), "{served:?}");
}

#[test]
fn equal_replicas_get_equal_shares() {
    for balancing in [EWMA, Balancing::LeastRequests] {
        let served = simulate(balancing, &[FAST; 3], 300, 60, 7);
        assert!(served.iter().all(|count| (5_400..6_600).contains(count)), "{served:?}");
    }
}

#[test]
fn a_replica_that_fails_at_once_does_not_draw_the_requests() {
    let broken = Server { time: Duration::from_millis(1), failures: 100 };
    let served = simulate(EWMA, &[FAST, broken, FAST], 300, 60, 3);
    assert!(served[1] * 10 < served.iter().sum(), "{served:?}");
}

#[test]
fn a_replica_that_has_become_fast_gets_its_share_back() {
    let start = Instant::now();
    let mut times = PeakEwma::new(start);
    times.note_success(Duration::from_secs(1), DECAY, start);
    assert_eq!(times.cost(0, DECAY, start), 1_000_000);
    // Nothing is sent to it; after a while it is tried.
    let later = start + 5 * DECAY;
    assert!(times.cost(0, DECAY, later) < 10_000);
    times.note_success(Duration::from_millis(10), DECAY, later);
    assert!(times.cost(0, DECAY, later) < 20_000);
    assert!(times.cost(1, DECAY, later) > times.cost(0, DECAY, later));
}

#[test]
fn a_peak_counts_at_once() {
    let start = Instant::now();
    let mut times = PeakEwma::new(start);
    for n in 0..1000 {
        let now = start + Duration::from_millis(n * 50);
        times.note_success(Duration::from_millis(10), DECAY, now);
    }
    let now = start + Duration::from_secs(50);
    assert!((8_000..12_000).contains(&times.cost(0, DECAY, now)));
    times.note_success(Duration::from_millis(500), DECAY, now);
    assert_eq!(times.cost(0, DECAY, now), 500_000);
}

#[test]
fn failures_raise_the_cost_to_a_bound() {
    let now = Instant::now();
    let mut times = PeakEwma::new(now);
    let mut last = times.cost(0, DECAY, now);
    for _ in 0..4 {
        times.note_failure(Duration::from_millis(1), DECAY, now);
        let cost = times.cost(0, DECAY, now);
        assert!(cost > last * 3, "{cost} after {last}");
        last = cost;
    }
    (0..100).for_each(|_| times.note_failure(Duration::from_millis(1), DECAY, now));
    assert_eq!(times.cost(0, DECAY, now), 10_000_000);
    assert_eq!(times.cost(u32::MAX, DECAY, now), u32::MAX);
}

/// Of 100,000 picks, those of each candidate.
fn picks(candidates: &[Candidate]) -> Vec<u32> {
    let mut random = Random(1);
    let mut counts = vec![0; candidates.len()];
    for _ in 0..100_000 {
        counts[choose(candidates.len(), random.next(), |n| Some(candidates[n])).unwrap()] += 1;
    }
    counts
}

fn with_share(share: Share) -> Candidate {
    Candidate { cost: 0, share }
}

#[test]
fn a_share_is_kept_however_few_requests_are_under_way() {
    let whole = with_share(Share::WHOLE);
    let part = |tenths| Share::rising(Duration::from_secs(tenths), Duration::from_secs(10));
    for tenths in [1_u32, 3, 5, 8] {
        let counts = picks(&[whole, with_share(part(tenths.into())), whole]);
        let expected = 33_333 * tenths / 10;
        assert!(counts[1].abs_diff(expected) < expected / 10, "{tenths}: {counts:?}");
    }
    assert_eq!(picks(&[whole, with_share(Share::NONE), whole])[1], 0);
}

#[test]
fn if_all_have_a_small_share_all_are_used_and_those_without_one_are_not() {
    let least = with_share(Share::LEAST);
    let counts = picks(&[least, least, with_share(Share::NONE), least]);
    assert_eq!(counts[2], 0);
    assert!([0, 1, 3].iter().all(|n| counts[*n] > 28_000), "{counts:?}");
    assert_eq!(choose(2, 7, |_| Some(with_share(Share::NONE))), None);
}

#[test]
fn a_share_rises_from_the_least_to_the_whole() {
    let window = Duration::from_secs(10);
    let at = |seconds| Share::rising(Duration::from_secs(seconds), window);
    assert_eq!(at(0), Share::LEAST);
    assert!(at(2) < at(3) && at(9) < Share::WHOLE);
    assert_eq!((at(10), at(11)), (Share::WHOLE, Share::WHOLE));
    assert_eq!(Share::rising(Duration::ZERO, Duration::ZERO), Share::WHOLE);
}

proptest::proptest! {
    #[test]
    fn what_is_chosen_can_be_used_and_something_is_if_anything_can(
        candidates in proptest::collection::vec(
            proptest::option::of((0_u32..100, 0_u32..=1 << 16)), 0..40),
        random: u64,
    ) {
        let candidate = |index: usize| {
            candidates[index].map(|(cost, share)| Candidate { cost, share: Share(share) })
        };
        let is_usable = |index| candidate(index).is_some_and(|of| of.share > Share::NONE);
        match choose(candidates.len(), random, candidate) {
            Some(index) => proptest::prop_assert!(is_usable(index)),
            None => proptest::prop_assert!(!(0..candidates.len()).any(is_usable)),
        }
    }
}
