use std::collections::BTreeMap;
use std::time::Duration;

use super::*;

mod held;
mod simulated;
mod taken;

const LEASE: Duration = Duration::from_secs(3);
const AT_ONCE: Duration = Duration::ZERO;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn fresh() -> Placement<&'static str> {
    Placement::new(LEASE, Epoch(100), &BTreeMap::new(), AT_ONCE)
}

/// The orders to hosts.
fn settle(
    placement: &mut Placement<&'static str>,
    now: Duration,
) -> BTreeMap<&'static str, Vec<Order>> {
    placement.settle(now).orders
}

fn offering(actor_type: &str) -> Held {
    Held::from([(actor_type.to_owned(), BTreeMap::new())])
}

#[track_caller]
fn enter(placement: &mut Placement<&'static str>, host: &'static str, now: Duration) {
    let orders = placement.enter(&host, &offering("cart"), now);
    assert_eq!(orders, [], "a host that holds nothing has nothing to let go");
}

fn counts(owners: &Owners<&'static str>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for owner in owners.shards.iter().flatten() {
        *counts.entry(*owner).or_default() += 1;
    }
    counts
}

fn owned(placement: &Placement<&'static str>) -> BTreeMap<&'static str, usize> {
    placement.owners("cart").map(|owners| counts(&owners)).unwrap_or_default()
}

/// Carries out every order at once.
fn obey(placement: &mut Placement<&'static str>, orders: BTreeMap<&'static str, Vec<Order>>) {
    let epochs = epochs(placement);
    for (host, orders) in orders {
        for order in orders {
            if let Order::GiveBack { actor_type, shards } = order {
                for epoch in &epochs {
                    placement.given_back(&host, &actor_type, &shards, *epoch);
                }
            }
        }
    }
}

/// All epochs that a grant may have.
fn epochs(placement: &Placement<&'static str>) -> Vec<Epoch> {
    (100..=placement.last_epoch().0).map(Epoch).collect()
}

#[test]
fn the_shard_of_an_id_is_the_same_for_ever() {
    // Computed by another implementation of FNV-1a and of MurmurHash3's end.
    let expected = [("", 294), ("1", 982), ("order-4711", 705), ("grüße|x", 174)];
    for (id, shard) in expected {
        assert_eq!(Shard::of(id).number(), shard, "{id:?}");
    }
}

#[test]
fn ids_that_are_counted_up_spread_evenly() {
    let mut counts = vec![0; SHARDS];
    for number in 0..100 * SHARDS {
        counts[Shard::of(&format!("device-{number}")).number()] += 1;
    }
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(*least >= 60 && *most <= 145, "{least} to {most} of 100");
}

#[test]
fn the_first_host_gets_everything_at_once() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    let orders = settle(&mut placement, AT_ONCE);
    let all = Shard::all().collect();
    let grant = Order::Grant { actor_type: "cart".into(), epoch: Epoch(101), shards: all };
    assert_eq!(orders, BTreeMap::from([("a", vec![grant])]));
    assert_eq!(owned(&placement), BTreeMap::from([("a", SHARDS)]));
    assert_eq!(settle(&mut placement, AT_ONCE), BTreeMap::new(), "it is said once");
}

#[test]
fn a_second_host_gets_what_the_first_gives_back() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    enter(&mut placement, "b", AT_ONCE);
    let asked = settle(&mut placement, AT_ONCE);
    let Some([Order::GiveBack { shards, .. }]) = asked.get("a").map(Vec::as_slice) else {
        panic!("{asked:?}");
    };
    assert_eq!((asked.len(), shards.len()), (1, SHARDS / 2));
    assert_eq!(owned(&placement), BTreeMap::from([("a", SHARDS / 2)]), "what moves is nobody's");
    obey(&mut placement, asked.clone());
    let granted = settle(&mut placement, AT_ONCE);
    assert_eq!(granted.keys().collect::<Vec<_>>(), [&"b"]);
    assert_eq!(owned(&placement), BTreeMap::from([("a", SHARDS / 2), ("b", SHARDS / 2)]));
}

#[test]
fn what_was_asked_back_is_granted_anew_even_to_the_same_host() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    enter(&mut placement, "b", AT_ONCE);
    let asked = settle(&mut placement, AT_ONCE);
    placement.leave(&"b");
    assert_eq!(settle(&mut placement, AT_ONCE), BTreeMap::new(), "`a` is giving back still");
    assert_eq!(owned(&placement), BTreeMap::from([("a", SHARDS / 2)]));
    obey(&mut placement, asked);
    let granted = settle(&mut placement, AT_ONCE);
    let Some([Order::Grant { shards, epoch, .. }]) = granted.get("a").map(Vec::as_slice) else {
        panic!("{granted:?}");
    };
    assert_eq!(shards.len(), SHARDS / 2);
    assert!(*epoch > Epoch(101), "{epoch:?}");
}

#[test]
fn another_type_is_not_touched_by_a_change() {
    let mut placement = fresh();
    let both =
        Held::from([("cart".to_owned(), BTreeMap::new()), ("meter".into(), BTreeMap::new())]);
    assert_eq!(placement.enter(&"a", &both, AT_ONCE), []);
    settle(&mut placement, AT_ONCE);
    let before = placement.owners("meter");
    enter(&mut placement, "b", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    assert_eq!(placement.owners("meter"), before);
    assert_eq!(placement.hosts("cart").collect::<Vec<_>>(), [&"a", &"b"]);
}

#[test]
fn a_silent_host_loses_its_shards_when_its_lease_ends() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    enter(&mut placement, "b", seconds(1));
    settle(&mut placement, seconds(1));
    assert_eq!(placement.next_moment(), Some(LEASE));
    assert_eq!(settle(&mut placement, seconds(2)), BTreeMap::new());
    let settled = placement.settle(LEASE);
    assert_eq!(settled.ended, ["a"]);
    assert_eq!(settled.orders.keys().collect::<Vec<_>>(), [&"b"]);
    assert_eq!(owned(&placement), BTreeMap::from([("b", SHARDS)]));
    assert!(!placement.renew(&"a", LEASE), "it has to enter again");
}

#[test]
fn who_retires_keeps_what_it_has_until_it_has_given_it_back() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    placement.retire(&"a");
    let asked = settle(&mut placement, AT_ONCE);
    assert_eq!(asked.len(), 1);
    enter(&mut placement, "b", AT_ONCE);
    assert_eq!(settle(&mut placement, AT_ONCE), BTreeMap::new(), "`a` may have turns under way");
    obey(&mut placement, asked);
    assert_eq!(settle(&mut placement, AT_ONCE).keys().collect::<Vec<_>>(), [&"b"]);
}

#[test]
fn a_returning_host_keeps_the_shards_that_it_reports() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    let half = Shard::all().filter(|shard| shard.number() % 2 == 0);
    let held = Held::from([("cart".to_owned(), half.map(|shard| (shard, Epoch(101))).collect())]);
    assert_eq!(placement.enter(&"a", &held, seconds(1)), []);
    let granted = settle(&mut placement, seconds(1));
    let Some([Order::Grant { shards, .. }]) = granted.get("a").map(Vec::as_slice) else {
        panic!("{granted:?}");
    };
    assert!(shards.iter().all(|shard| shard.number() % 2 == 1), "{shards:?}");
    assert_eq!(shards.len(), SHARDS / 2);
}

#[test]
fn a_host_gains_nothing_by_a_false_report_of_a_shard() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    let shard = Shard::of("x");
    for epoch in [Epoch(100), Epoch(101), Epoch(u64::MAX)] {
        let held = Held::from([("cart".to_owned(), BTreeMap::from([(shard, epoch)]))]);
        let reported = placement.enter(&"liar", &held, AT_ONCE);
        let shards = [shard].into_iter().collect();
        assert_eq!(reported, [Order::GiveBack { actor_type: "cart".into(), shards }], "{epoch:?}");
        assert!(!placement.holds(&"liar", "cart", shard, epoch));
    }
    assert!(placement.holds(&"a", "cart", shard, Epoch(101)));
}

/// A control plane that continues with what this one has stored.
fn restarted(placement: &Placement<&'static str>, now: Duration) -> Placement<&'static str> {
    let grants = BTreeMap::from([("cart".to_owned(), placement.grants("cart"))]);
    Placement::new(LEASE, Epoch(1000), &grants, now)
}

/// Everything, under this epoch.
fn everything(epoch: u64) -> Held {
    Held::from([("cart".to_owned(), Shard::all().map(|shard| (shard, Epoch(epoch))).collect())])
}

#[test]
fn after_a_restart_holders_are_known_and_what_is_free_is_granted_at_once() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    let odd: ShardSet = Shard::all().filter(|shard| shard.number() % 2 == 1).collect();
    placement.retire(&"a");
    settle(&mut placement, AT_ONCE);
    placement.given_back(&"a", "cart", &odd, Epoch(101));
    let mut placement = restarted(&placement, AT_ONCE);
    settle(&mut placement, AT_ONCE);
    assert_eq!(owned(&placement), BTreeMap::from([("a", SHARDS / 2)]), "callers find it");
    enter(&mut placement, "b", seconds(1));
    let granted = settle(&mut placement, seconds(1));
    let Some([Order::Grant { shards, epoch, .. }]) = granted.get("b").map(Vec::as_slice) else {
        panic!("{granted:?}");
    };
    assert_eq!((shards, epoch.0 > 1000), (&odd, true));
    assert_eq!(placement.next_moment(), Some(LEASE));
    assert_eq!(placement.settle(LEASE).ended, ["a"]);
    assert_eq!(owned(&placement), BTreeMap::from([("b", SHARDS)]));
}

/// The harm: the first host to enter after a restart claims all shards, whatever it was granted.
#[test]
fn after_a_restart_a_claim_without_a_grant_gains_nothing() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    for epoch in [1, 101, 999, 1000, u64::MAX] {
        let mut placement = restarted(&placement, AT_ONCE);
        let wrong = placement.enter(&"liar", &everything(epoch), AT_ONCE);
        let all = Shard::all().collect();
        assert_eq!(wrong, [Order::GiveBack { actor_type: "cart".into(), shards: all }], "{epoch}");
        let orders = settle(&mut placement, AT_ONCE);
        assert_eq!(orders.keys().collect::<Vec<_>>(), [&"a"], "it is asked for a half: {orders:?}");
        assert!(Shard::all().all(|shard| !placement.holds(&"liar", "cart", shard, Epoch(epoch))));
        assert_eq!(placement.enter(&"a", &everything(101), AT_ONCE), [], "its grants are valid");
    }
    // What went elsewhere is not its former holder's, whichever of them comes first.
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    placement.leave(&"a");
    enter(&mut placement, "b", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    let mut placement = restarted(&placement, AT_ONCE);
    assert_eq!(placement.enter(&"a", &everything(101), AT_ONCE).len(), 1);
    assert!(!placement.holds(&"a", "cart", Shard::of("x"), Epoch(101)));
}

#[test]
fn of_a_shard_that_was_stored_twice_the_later_grant_counts() {
    let shards: ShardSet = [Shard::of("x")].into_iter().collect();
    let grants = Grants::from([(("a", Epoch(7)), shards.clone()), (("b", Epoch(5)), shards)]);
    let grants = BTreeMap::from([("cart".to_owned(), grants)]);
    let placement = Placement::new(LEASE, Epoch(100), &grants, AT_ONCE);
    assert!(placement.holds(&"a", "cart", Shard::of("x"), Epoch(7)));
    assert!(!placement.holds(&"b", "cart", Shard::of("x"), Epoch(5)));
}

/// The harm: an instance enters again and again as another life, and holds a share for each.
#[test]
fn of_many_lives_of_a_host_one_holds_something_and_the_last_waits() {
    let mut placement = fresh();
    enter(&mut placement, "other", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    enter(&mut placement, "life 1", AT_ONCE);
    let asked = settle(&mut placement, AT_ONCE);
    obey(&mut placement, asked);
    settle(&mut placement, AT_ONCE);
    let half = || BTreeMap::from([("life 1", SHARDS / 2), ("other", SHARDS / 2)]);
    assert_eq!(owned(&placement), half());
    assert!(!placement.succeed(&"life 1", &"life 2"), "its lease runs out first");
    enter(&mut placement, "life 2", seconds(1));
    assert!(!placement.renew(&"life 1", seconds(1)));
    settle(&mut placement, seconds(1));
    assert!(placement.succeed(&"life 2", &"life 3"), "it was granted nothing");
    enter(&mut placement, "life 3", seconds(2));
    // What is free otherwise is not granted to it either.
    placement.leave(&"other");
    assert_eq!(settle(&mut placement, seconds(2)), BTreeMap::new());
    assert_eq!(owned(&placement), BTreeMap::new());
    let settled = placement.settle(LEASE);
    assert_eq!(settled.ended, ["life 1"]);
    assert_eq!(owned(&placement), BTreeMap::from([("life 3", SHARDS)]));
}

#[test]
fn a_former_life_that_gives_everything_back_makes_way_at_once() {
    let mut placement = fresh();
    enter(&mut placement, "life 1", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    placement.succeed(&"life 1", &"life 2");
    enter(&mut placement, "life 2", AT_ONCE);
    let asked = settle(&mut placement, AT_ONCE);
    obey(&mut placement, asked);
    assert_eq!(placement.settle(AT_ONCE).ended, ["life 1"]);
    settle(&mut placement, AT_ONCE);
    assert_eq!(owned(&placement), BTreeMap::from([("life 2", SHARDS)]));
}

#[test]
fn a_host_that_is_ended_keeps_its_shards_until_its_lease_ends() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    assert!(!placement.run_out(&"a"));
    enter(&mut placement, "b", seconds(1));
    settle(&mut placement, seconds(1));
    assert!(!placement.renew(&"a", seconds(2)));
    assert!(placement.holds(&"a", "cart", Shard::of("x"), Epoch(101)));
    settle(&mut placement, LEASE);
    assert_eq!(owned(&placement), BTreeMap::from([("b", SHARDS)]));
}

#[test]
fn a_type_without_hosts_is_forgotten_and_its_version_never_returns() {
    let mut placement = fresh();
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    let before = placement.owners("cart").unwrap().version;
    placement.leave(&"a");
    assert_eq!(placement.settle(AT_ONCE).vacated, ["cart"]);
    assert_eq!(placement.owners("cart"), None);
    enter(&mut placement, "a", AT_ONCE);
    settle(&mut placement, AT_ONCE);
    assert!(placement.owners("cart").unwrap().version > before);
}
