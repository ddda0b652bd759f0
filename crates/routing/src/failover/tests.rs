use std::collections::VecDeque;

use proptest::prelude::*;
use tollway_model::Label;
use tollway_model::failover::FailoverNetwork;

use super::*;

const DRAWS: u32 = 100_000;

fn set(networks: &[(u32, u32)], threshold: u32, spill_over: Option<u32>) -> FailoverSet {
    let network = |(at, (priority, weight)): (usize, &(u32, u32))| FailoverNetwork {
        network: Label::new(&format!("n{at}")).unwrap(),
        priority: *priority,
        weight: *weight,
    };
    let networks = networks.iter().enumerate().map(network).collect();
    FailoverSet::new(&FailoverRules { networks, threshold, spill_over })
}

/// Healthy replicas of those that are registered.
fn of(healthy: u32, registered: u32) -> NetworkHealth {
    NetworkHealth { healthy, registered, under_way: 0, may_be_tried: registered > 0 }
}

/// The generator that the data path has.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The percentage of requests that each network gets.
fn shares(set: &FailoverSet, health: &[NetworkHealth]) -> Vec<f64> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut counts = vec![0_u32; health.len()];
    for _ in 0..DRAWS {
        let chosen = set.choose(|index| health[index], NetworkSet::default(), random.next());
        counts[chosen.unwrap().index] += 1;
    }
    counts.iter().map(|count| f64::from(*count) * 100.0 / f64::from(DRAWS)).collect()
}

#[track_caller]
fn assert_shares(set: &FailoverSet, health: &[NetworkHealth], expected: &[f64]) {
    let found = shares(set, health);
    let is_near = |(found, expected): (&f64, &f64)| (found - expected).abs() < 0.5;
    assert!(found.iter().zip(expected).all(is_near), "{found:?}, expected {expected:?}");
}

#[test]
fn the_first_priority_takes_all_while_it_is_healthy_enough() {
    let set = set(&[(0, 1), (1, 1)], 70, None);
    for healthy in [10, 9, 8, 7] {
        assert_shares(&set, &[of(healthy, 10), of(3, 3)], &[100.0, 0.0]);
    }
    // 35 of 100 are half of the threshold.
    assert_shares(&set, &[of(35, 100), of(3, 3)], &[50.0, 50.0]);
    assert_shares(&set, &[of(7, 100), of(3, 3)], &[10.0, 90.0]);
    assert_shares(&set, &[of(0, 10), of(3, 3)], &[0.0, 100.0]);
    // What is not there at all has no healthy replica.
    assert_shares(&set, &[of(0, 0), of(1, 1)], &[0.0, 100.0]);
}

#[test]
fn each_further_priority_takes_of_the_rest_what_its_health_allows() {
    let set = set(&[(5, 1), (0, 1), (9, 1)], 50, None);
    // The places are those of the rules, the order is that of priorities.
    assert_shares(&set, &[of(10, 100), of(25, 100), of(100, 100)], &[20.0, 50.0, 30.0]);
    // Together they are not healthy enough: 20, 10 and 10 of 100 make 50, 25 and 25.
    assert_shares(&set, &[of(5, 100), of(10, 100), of(5, 100)], &[25.0, 50.0, 25.0]);
    assert_shares(&set, &[of(1, 100), of(0, 100), of(0, 100)], &[100.0, 0.0, 0.0]);
}

#[test]
fn networks_of_a_priority_share_by_weight_and_health() {
    let set = set(&[(0, 3), (0, 1)], 70, None);
    assert_shares(&set, &[of(3, 3), of(3, 3)], &[75.0, 25.0]);
    // Numbers of replicas are each network's own word: a thousand draw no more than one.
    assert_shares(&set, &[of(1, 1), of(1000, 1000)], &[75.0, 25.0]);
    // Above the threshold nothing moves.
    assert_shares(&set, &[of(7, 10), of(10, 10)], &[75.0, 25.0]);
    assert_shares(&set, &[of(35, 100), of(10, 10)], &[60.0, 40.0]);
    assert_shares(&set, &[of(0, 1), of(1, 1)], &[0.0, 100.0]);
    // More healthy ones than are registered count as all.
    assert_shares(&set, &[of(9, 3), of(1, 0)], &[75.0, 25.0]);
}

#[test]
fn a_priority_is_as_healthy_as_its_networks_by_weight() {
    let set = set(&[(0, 3), (0, 1), (1, 1)], 100, None);
    assert_shares(&set, &[of(0, 2), of(2, 2), of(1, 1)], &[0.0, 25.0, 75.0]);
    assert_shares(&set, &[of(2, 2), of(0, 2), of(1, 1)], &[75.0, 0.0, 25.0]);
}

#[test]
fn the_share_follows_the_health_without_steps() {
    let set = set(&[(0, 1), (1, 1)], 70, None);
    let mut before = 100.0;
    for healthy in (0..=100).rev() {
        let share = shares(&set, &[of(healthy, 100), of(1, 1)])[0];
        assert!(share <= before + 0.5 && before - share < 2.0, "{healthy}: {before} to {share}");
        before = share;
    }
    assert!(before < 0.1);
}

#[test]
fn a_request_that_failed_in_a_network_goes_to_others() {
    let set = set(&[(0, 1), (1, 1), (1, 1)], 70, None);
    let health = [of(3, 3), of(1, 1), of(1, 1)];
    let mut tried = NetworkSet::default();
    let mut random = Random(7);
    let mut seen = Vec::new();
    while let Some(chosen) = set.choose(|index| health[index], tried, random.next()) {
        assert!(!tried.contains(chosen.index), "{seen:?}");
        tried.insert(chosen.index);
        seen.push((chosen.index, chosen.by));
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert_eq!(seen[0], (0, ChosenBy::Priority));
    assert_eq!(seen[1].1, ChosenBy::Health);
}

#[test]
fn what_may_be_tried_is_tried_in_order_if_nothing_is_healthy() {
    let set = set(&[(1, 1), (0, 1), (2, 1)], 70, None);
    let health = [of(0, 1), NetworkHealth::default(), of(0, 2)];
    let mut tried = NetworkSet::default();
    for expected in [Some(0), Some(2), None] {
        let chosen = set.choose(|index| health[index], tried, 1);
        assert_eq!(chosen.map(|of| of.index), expected);
        if let Some(NetworkChoice { index, by }) = chosen {
            assert_eq!(by, ChosenBy::LastResort);
            tried.insert(index);
        }
    }
    assert_eq!(set.choose(|_| NetworkHealth::default(), NetworkSet::default(), 1), None);
}

#[test]
fn what_is_over_the_load_goes_to_the_next_priority() {
    let set = set(&[(0, 1), (1, 1), (2, 1)], 70, Some(10));
    let with = |healthy, under_way| NetworkHealth { under_way, ..of(healthy, healthy) };
    let choose = |health: [NetworkHealth; 3]| {
        let chosen = set.choose(|index| health[index], NetworkSet::default(), u64::MAX / 3);
        chosen.map(|of| (of.index, of.by)).unwrap()
    };
    let first = (0, ChosenBy::Priority);
    assert_eq!(choose([with(2, 19), with(1, 0), with(1, 0)]), first);
    assert_eq!(choose([with(2, 20), with(1, 0), with(1, 0)]), (1, ChosenBy::Load));
    assert_eq!(choose([with(2, 20), with(1, 10), with(1, 9)]), (2, ChosenBy::Load));
    assert_eq!(choose([with(2, 20), with(0, 0), with(1, 9)]), (2, ChosenBy::Load));
    // Where all are full, the first in order is no worse than the others.
    assert_eq!(choose([with(2, 20), with(1, 10), with(1, 10)]), first);
    assert_eq!(choose([with(0, 0), with(1, 5), with(1, 0)]), (1, ChosenBy::Health));
}

/// One request arrives at each step; each network has so many steps of work for one.
fn run_steps(
    set: &FailoverSet,
    steps: usize,
    took: usize,
    mut replicas: impl FnMut(usize) -> [u32; 2],
) -> Vec<usize> {
    let mut random = Random(99);
    let mut under_way: VecDeque<(usize, usize)> = VecDeque::new();
    let mut served = Vec::new();
    for step in 0..steps {
        while under_way.front().is_some_and(|(ends, _)| *ends <= step) {
            under_way.pop_front();
        }
        let healthy = replicas(step);
        let health = |index: usize| {
            let count = under_way.iter().filter(|(_, of)| *of == index).count();
            let under_way = u32::try_from(count).unwrap();
            NetworkHealth { under_way, ..of(healthy[index], 2) }
        };
        let chosen = set.choose(health, NetworkSet::default(), random.next()).unwrap();
        under_way.push_back((step + took, chosen.index));
        served.push(chosen.index);
    }
    served
}

#[test]
fn only_what_is_over_spills_and_it_comes_back_by_itself() {
    let set = set(&[(0, 1), (1, 1)], 70, Some(10));
    // 30 at one time; 20 find a place.
    let served = run_steps(&set, 3_000, 30, |_| [2, 2]);
    let spilt = served[300..].iter().filter(|index| **index == 1).count();
    assert!((850..=950).contains(&spilt), "{spilt} of 2700");
    // 15 at one time: none goes elsewhere.
    assert!(run_steps(&set, 1_000, 15, |_| [2, 2]).iter().all(|index| *index == 0));
}

#[test]
fn a_network_that_goes_and_comes_back_is_left_and_taken_at_once() {
    let set = set(&[(0, 1), (1, 1)], 70, None);
    let is_away = |step: usize| (100..200).contains(&step);
    let served = run_steps(&set, 300, 5, |step| if is_away(step) { [0, 2] } else { [2, 2] });
    for (step, index) in served.into_iter().enumerate() {
        assert_eq!(index, usize::from(is_away(step)), "step {step}");
    }
}

proptest! {
    #[test]
    fn a_network_that_was_tried_or_cannot_be_used_is_never_chosen(
        networks in proptest::collection::vec((0_u32..4, 1_u32..1_000_001), 1..=16),
        health in proptest::collection::vec((0_u32.., 0_u32.., 0_u32.., any::<bool>()), 16),
        threshold in 1_u32..=100,
        spill_over in proptest::option::of(1_u32..1_000_001),
        tried in 0_u32..65_536,
        random in any::<u64>(),
    ) {
        let set = set(&networks, threshold, spill_over);
        let health = |index: usize| {
            let (healthy, registered, under_way, may_be_tried) = health[index];
            let healthy = if index.is_multiple_of(3) { 0 } else { healthy };
            NetworkHealth { healthy, registered, under_way, may_be_tried }
        };
        let tried = NetworkSet(tried);
        let left = (0..networks.len()).filter(|index| !tried.contains(*index));
        match set.choose(health, tried, random) {
            Some(NetworkChoice { index, by }) => {
                prop_assert!(index < networks.len() && !tried.contains(index));
                let is_last = by == ChosenBy::LastResort;
                let of = health(index);
                let is_usable = if is_last { of.may_be_tried } else { of.healthy > 0 };
                prop_assert!(is_usable);
                // Of the networks that are healthy one is chosen.
                let mut left = left;
                prop_assert!(!is_last || left.all(|index| health(index).healthy == 0));
            }
            None => {
                let mut left = left;
                prop_assert!(left.all(|index| !health(index).may_be_tried));
            }
        }
    }
}
