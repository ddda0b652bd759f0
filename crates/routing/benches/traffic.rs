//! What the decisions about traffic cost: the replica of a key, the retry budget, a rate limit, the
//! outcome of a request.
//!
//! `cargo bench -p tollway-routing --bench traffic` prints nanoseconds per decision (least and median
//! of 15 blocks).

use std::hint::black_box;
use std::time::{Duration, Instant};

use tollway_model::Label;
use tollway_model::route::RetryBudget;
use tollway_model::traffic_policy::{Balancing, Outlier, Rate, RateLimit};
use tollway_routing::{
    AffinityHash, CallerUses, Candidate, PeakEwma, RATED_CALLERS_LIMIT, RateControl,
    ReplicaOutcome, ReplicaRules, Replicas, RetryCounts, Share, choose, pick_by_key,
};

const BLOCKS: usize = 15;
const TURNS: usize = 200_000;

fn main() {
    for count in [3, 10, 100, 1000] {
        let instance =
            |n| AffinityHash::of_instance(&Label::new(&format!("i-{n}")).expect("a label"));
        let replicas: Vec<AffinityHash> = (0..count).map(instance).collect();
        report(&format!("affinity-{count}"), TURNS.min(20_000_000 / count), || {
            let key = AffinityHash::of_key(black_box(b"user-0123456789"));
            black_box(pick_by_key(key, replicas.iter().copied().map(Some)));
        });
    }
    let now = Instant::now();
    let mut counts = RetryCounts::new(now);
    report("retry-budget", TURNS, || {
        counts.note_request(black_box(now));
        black_box(counts.take_retry(RetryBudget::DEFAULT, black_box(now)));
    });
    let second = Duration::from_secs(1);
    let limit = RateLimit { requests: 1_000_000, per: second, burst: 1_000_000 };
    let rate = Rate { service: Some(limit), caller: Some(limit), callers: Vec::new() };
    let limits = RateControl::new(rate, now);
    let caller = CallerUses::new(RATED_CALLERS_LIMIT, now).of(&0, || Some(limit), now);
    let mut at = now;
    report("rate-limit", TURNS, || {
        at += Duration::from_micros(2);
        black_box(limits.take(&caller, black_box(at))).ok();
    });
    let rules = ReplicaRules {
        balancing: Balancing::LeastRequests,
        outlier: Some(Outlier::DEFAULT),
        panic_percent: 50,
        slow_start: Duration::ZERO,
    };
    let mut replicas = Replicas::new(rules, now);
    replicas.update(0..3, now);
    let ids = [0, 1, 2].map(|key| replicas.find(&key).expect("a replica"));
    report("outlier-note", TURNS, || {
        replicas.note(ids[1], black_box(ReplicaOutcome::Success), black_box(now), |_, _, _| {});
    });
    let times = PeakEwma::new(now);
    for balancing in [Balancing::LeastRequests, Balancing::PeakEwma { decay: Balancing::DECAY }] {
        let mut random = 0_u64;
        report(&format!("choose-{}", name(balancing)), TURNS, || {
            random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            black_box(choose(3, random, |index| {
                let cost = tollway_routing::cost(balancing, 1, &times, black_box(now));
                Some(Candidate { cost, share: replicas.share(ids[index], now) })
            }));
        });
    }
    report("choose-whole-share", TURNS, || {
        black_box(choose(3, black_box(7), |_| Some(Candidate { cost: 1, share: Share::WHOLE })));
    });
}

fn name(balancing: Balancing) -> &'static str {
    match balancing {
        Balancing::LeastRequests => "least-requests",
        Balancing::PeakEwma { .. } => "peak-ewma",
    }
}

fn report(name: &str, turns: usize, mut turn: impl FnMut()) {
    let mut blocks: Vec<f64> = (0..BLOCKS)
        .map(|_| {
            let began = Instant::now();
            (0..turns).for_each(|_| turn());
            began.elapsed().as_nanos() as f64 / turns as f64
        })
        .collect();
    blocks.sort_by(f64::total_cmp);
    println!("{name:<32} {:>9.1} ns  median {:>9.1} ns", blocks[0], blocks[BLOCKS / 2]);
}
