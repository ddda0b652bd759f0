use proptest::prelude::*;

use super::*;
use crate::balance::Share;

const RULES: LocalityRules = LocalityRules::DEFAULT;

fn levels(health: [(u32, u32); 3]) -> Levels {
    Levels::new(&RULES, health.map(|(healthy, registered)| LevelHealth { healthy, registered }))
}

fn percents(health: [(u32, u32); 3]) -> [u32; 3] {
    let levels = levels(health);
    Level::ALL.map(|level| levels.percent(level))
}

#[test]
fn the_nearest_level_keeps_a_share_in_proportion_to_its_health() {
    assert_eq!(percents([(3, 3), (3, 3), (3, 3)]), [100, 0, 0]);
    // At the threshold and above all is well.
    assert_eq!(percents([(7, 10), (3, 3), (0, 0)]), [100, 0, 0]);
    assert_eq!(percents([(5, 10), (3, 3), (3, 3)]), [71, 29, 0]);
    assert_eq!(percents([(1, 10), (1, 10), (3, 3)]), [14, 14, 71]);
    assert_eq!(percents([(0, 3), (3, 3), (3, 3)]), [0, 100, 0]);
    assert_eq!(percents([(0, 0), (0, 0), (3, 3)]), [0, 0, 100]);
    // All together cannot take the whole: each takes its part of it.
    assert_eq!(percents([(1, 10), (0, 0), (1, 10)]), [50, 0, 50]);
    assert_eq!(percents([(0, 3), (0, 3), (0, 3)]), [0, 0, 0]);
    // A share that is small is not none.
    assert_eq!(percents([(699, 1000), (3, 3), (0, 0)]), [100, 1, 0]);
}

/// Replicas with requests under way, by level.
fn choose(levels: &Levels, replicas: &[(Level, u32, Share)], random: u64) -> Option<NearChoice> {
    let replica = |at: usize| {
        let (_, under_way, share) = replicas[at];
        Some(NearReplica { candidate: Candidate { cost: under_way, share }, under_way })
    };
    choose_near(levels, replicas.len(), random, |at| replicas[at].0, replica)
}

const ZONE: Level = Level::Zone;
const REGION: Level = Level::Region;
const NETWORK: Level = Level::Network;

/// A number for each round that is as good as random.
fn random(round: u64) -> u64 {
    luck(round, 77)
}

#[test]
fn a_near_replica_takes_requests_until_it_has_so_many_more_than_one_that_is_further() {
    let levels = levels([(1, 1), (0, 0), (2, 2)]);
    let whole = Share::WHOLE;
    for round in 0..1000 {
        let at = |near: u32, far: u32| {
            let all = [(ZONE, near, whole), (NETWORK, far, whole), (NETWORK, far, whole)];
            let choice = choose(&levels, &all, random(round)).unwrap();
            (choice.level, choice.by)
        };
        assert_eq!(at(0, 0), (ZONE, NearBy::Nearest));
        assert_eq!(at(9, 0), (ZONE, NearBy::Nearest));
        assert_eq!(at(10, 0), (NETWORK, NearBy::Load));
        assert_eq!(at(10, 1), (ZONE, NearBy::Nearest));
        assert_eq!(at(500, 491), (ZONE, NearBy::Nearest));
        assert_eq!(at(500, 490), (NETWORK, NearBy::Load));
        assert_eq!(at(u32::MAX, u32::MAX), (ZONE, NearBy::Nearest));
    }
}

/// Requests arrive, and each replica ends some: what is the most that a near one has under way?
#[test]
fn a_single_near_replica_is_not_overloaded_however_many_requests_come() {
    let levels = levels([(1, 1), (2, 2), (7, 7)]);
    let mut replicas = vec![(ZONE, 0, Share::WHOLE)];
    replicas.extend([(REGION, 0, Share::WHOLE); 2]);
    replicas.extend([(NETWORK, 0, Share::WHOLE); 7]);
    for round in 0..2000 {
        let chosen = choose(&levels, &replicas, random(round)).unwrap();
        replicas[chosen.index].1 += 1;
        let most =
            |level: Level| replicas.iter().filter(|of| of.0 == level).map(|of| of.1).max().unwrap();
        let least =
            |level: Level| replicas.iter().filter(|of| of.0 == level).map(|of| of.1).min().unwrap();
        // Two choices leave a difference of a few within a level.
        assert!(most(ZONE) <= least(REGION) + RULES.spill_over + 4, "{replicas:?}");
        assert!(most(REGION) <= least(NETWORK) + RULES.spill_over + 4, "{replicas:?}");
    }
    let total: u32 = replicas.iter().map(|of| of.1).sum();
    assert!(replicas[0].1 * 5 < total, "{replicas:?}");
}

#[test]
fn a_near_replica_with_less_than_its_share_leaves_the_rest_to_others() {
    let levels = levels([(1, 1), (0, 0), (1, 1)]);
    let replicas = [(ZONE, 0, Share::LEAST), (NETWORK, 3, Share::WHOLE)];
    let near = (0..10_000)
        .filter(|round| choose(&levels, &replicas, random(*round)).unwrap().level == ZONE)
        .count();
    assert!((850..1150).contains(&near), "{near}");
    // If that holds for all, the nearest has it.
    let replicas = [(ZONE, 0, Share::LEAST), (NETWORK, 0, Share::LEAST)];
    let near = (0..10_000)
        .filter(|round| choose(&levels, &replicas, random(*round)).unwrap().level == ZONE)
        .count();
    assert!((8500..9500).contains(&near), "{near}");
    // Those that may have none get none.
    let replicas = [(ZONE, 0, Share::NONE), (NETWORK, 0, Share::WHOLE)];
    assert!((0..100).all(|round| choose(&levels, &replicas, random(round)).unwrap().index == 1));
    assert_eq!(choose(&levels, &[(ZONE, 0, Share::NONE)], 7), None);
    assert_eq!(choose(&levels, &[], 7), None);
}

#[test]
fn where_a_level_has_no_connection_others_take_its_requests() {
    let levels = levels([(3, 3), (3, 3), (3, 3)]);
    for round in 0..100 {
        let region = choose(&levels, &[(REGION, 0, Share::WHOLE)], random(round)).unwrap();
        assert_eq!((region.level, region.by), (REGION, NearBy::Health));
    }
    let ill = self::levels([(0, 3), (0, 3), (3, 3)]);
    for round in 0..100 {
        let all = [(ZONE, 0, Share::WHOLE), (REGION, 0, Share::WHOLE)];
        let nearest = choose(&ill, &all, random(round)).unwrap();
        assert_eq!(nearest.level, REGION, "the one next to the level that was drawn");
    }
}

#[test]
fn connections_are_kept_to_near_replicas_and_to_some_of_the_others() {
    assert_eq!(near_quotas([3, 3, 3], 16), [3, 3, 3]);
    assert_eq!(near_quotas([20, 20, 20], 16), [8, 4, 4]);
    assert_eq!(near_quotas([20, 0, 20], 16), [12, 0, 4]);
    assert_eq!(near_quotas([20, 0, 2], 16), [14, 0, 2]);
    assert_eq!(near_quotas([2, 20, 20], 16), [2, 10, 4]);
    assert_eq!(near_quotas([0, 0, 20], 16), [0, 0, 16]);
    assert_eq!(near_quotas([9, 9, 9], 0), [0, 0, 0]);
}

fn health() -> impl Strategy<Value = [(u32, u32); 3]> {
    let one = (0_u32..30, 0_u32..30).prop_map(|(one, other)| (one.min(other), other));
    [one.clone(), one.clone(), one]
}

proptest! {
    #[test]
    fn shares_are_the_whole_and_a_healthier_level_has_no_less(
        health in health(),
        at in 0_usize..3,
        threshold in 1_u32..=100,
    ) {
        let rules = LocalityRules { threshold, ..RULES };
        let shares = |health: [(u32, u32); 3]| {
            let health = health.map(|(healthy, registered)| LevelHealth { healthy, registered });
            let shares = Levels::new(&rules, health).shares;
            let total: u64 = shares.iter().sum();
            shares.map(|share| if total == 0 { 0.0 } else { share as f64 / total as f64 })
        };
        let before = shares(health);
        let is_any = health.iter().any(|(healthy, _)| *healthy > 0);
        prop_assert!((before.iter().sum::<f64>() - f64::from(u8::from(is_any))).abs() < 1e-9);
        for (share, (healthy, _)) in before.iter().zip(&health) {
            prop_assert!(*share == 0.0 || *healthy > 0);
        }
        let mut better = health;
        if better[at].0 < better[at].1 {
            better[at].0 += 1;
        }
        let after = shares(better);
        prop_assert!(after[at] >= before[at] - 1e-9, "{before:?} {after:?}");
        for other in (0..3).filter(|other| *other != at) {
            prop_assert!(after[other] <= before[other] + 1e-9, "{before:?} {after:?}");
        }
    }

    #[test]
    fn one_is_chosen_if_one_may_be_and_its_level_is_its_own(
        health in health(),
        mut replicas in proptest::collection::vec((0_usize..3, 0_u32..40, 0_u8..3), 0..20),
        random: u64,
    ) {
        replicas.sort_by_key(|of| of.0);
        let share = |kind: u8| [Share::NONE, Share::LEAST, Share::WHOLE][usize::from(kind)];
        let all: Vec<_> = replicas
            .iter()
            .map(|(at, under_way, kind)| (Level::ALL[*at], *under_way, share(*kind)))
            .collect();
        match choose(&levels(health), &all, random) {
            Some(choice) => {
                prop_assert_eq!(all[choice.index].0, choice.level);
                prop_assert!(all[choice.index].2 > Share::NONE);
            }
            None => prop_assert!(all.iter().all(|of| of.2 == Share::NONE)),
        }
    }

    #[test]
    fn quotas_fit_and_leave_no_room_that_is_wanted(
        counts in [0_usize..40, 0_usize..40, 0_usize..40],
        room in 0_usize..40,
    ) {
        let quotas = near_quotas(counts, room);
        prop_assert!(quotas.iter().zip(&counts).all(|(quota, count)| quota <= count));
        let (used, there): (usize, usize) = (quotas.iter().sum(), counts.iter().sum());
        prop_assert_eq!(used, room.min(there));
    }
}
